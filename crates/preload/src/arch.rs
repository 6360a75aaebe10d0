//! What depends on the processor's architecture: one module for each, of which the target picks
//! one. Nothing else in this crate contains assembly, or knows registers and frames.
//!
//! # The contract
//!
//! Functions of the C library's names call into the other files of this crate, which decide. They
//! go on in the C library with all registers that arguments may lie in, and with the stack, as the
//! caller left them.
//!
//! - `starts!`, `comes_home!`, `syscall`: save the arguments, call the function that decides, and
//!   go on at the address that it returns.
//! - `gathers!`: puts all arguments of a variadic function but the first into an array in memory.
//! - `with_return_address!`: passes the return address as a third argument.
//! - `vfork`: makes the system call itself, since parent and child return on the same stack.
//! - `mutex_functions!`: functions whose first argument is a mutex. Those of a kind that the kernel
//!   records call `mutexes::before`, except at home, and count. All others go on with a jump.
//! - `cancel`: the functions of cancellation, and the handler by which a migrated thread is
//!   cancelled. Unwinding may start in them, so they are assembly with unwinding records.
//! - `thread_data`: the words of [`crate::thread`], in static thread-local storage, all zero at a
//!   thread's start, read and written without a call; `offset`, their distance from the C library's
//!   name of a thread.
//! - `cpuid`: makes the instruction that asks for the processor's features fault, recognizes it,
//!   executes it, and knows the places of registers in the context of a signal.
//! - `empty_function`: recognizes the loader's function for debuggers; the bytes of a jump.
//! - `FIRST_VERSION`: the first version of glibc for the architecture.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("there is no `arch` module for this architecture: see the contract in arch.rs");
