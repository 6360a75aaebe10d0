//! What depends on the processor's architecture: one module for each, of which the target picks
//! one. Nothing else in this crate contains assembly, or knows registers and frames.
//!
//! # The contract
//!
//! Functions of the C library's names call into the other files of this crate, which decide. They
//! go on in the C library with the stack and with all registers that arguments may lie in as the
//! caller left them.
//!
//! - `forward!(name, before, otherwise)`: a function that saves the arguments, calls `before` with
//!   them, and goes on at the address that this returns; instead of null, in `otherwise`.
//! - `gather!(name, function)`: puts all arguments of a variadic function but the first into an
//!   array in memory, and calls `function` with the first and that array.
//! - `with_return_address!`: a function of two arguments that goes on in another, with its return
//!   address as third argument.
//! - `vfork`: makes the system call itself, because parent and child return on the same stack.
//! - `mutex_functions!`: functions whose first argument is a mutex. For kinds whose owner the
//!   kernel records, they call `mutexes::before` if the thread is away, and count in
//!   [`crate::thread::HELD`]. For all others they are a test and a jump.
//! - `cancel`: the functions of cancellation, and the handler by which a migrated thread is
//!   cancelled. A thread may be unwound from them, so they are assembly with unwinding records, and
//!   call Rust only while it cannot be.
//! - `thread_data`: the words of [`crate::thread`], all zero at a thread's start, read (`get`) and
//!   written (`set`) without a call that may allocate or be replaced by the program. Also their
//!   distance (`offset`) from what the C library names a thread by, and the address of such a word
//!   of another thread (`word_of`).
//! - `cpuid`: `set_faulting` makes the instruction that asks for the processor's features fault, or
//!   returns false where that is impossible. `FAULT` is the code of the signal. A `Query`
//!   recognizes the instruction, executes it, and writes an answer to the thread's registers.
//! - `empty_function`: recognizes the loader's function for debuggers, and makes the code of a
//!   jump to another.
//! - `ABOUT_THE_THREAD`: system calls that concern the thread and that not every architecture has.
//! - `FORKS`: those of them that fork.
//! - `FIRST_VERSION`: the first version of glibc for the architecture.
//!
//! System calls and the thread pointer are those of [`dimmer_runtime::calls`]. `cancel` takes the
//! thread pointer for the C library's name of a thread, as glibc does on x86-64.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("there is no `arch` module for this architecture: see the contract in arch.rs");
