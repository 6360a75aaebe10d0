//! What depends on the processor's architecture: one module for each, of which the target picks
//! one. Nothing else in this crate contains assembly, or knows registers and frames.
//!
//! # The contract
//!
//! - `Context`: where a thread resumes. At most 44 bytes and no alignment beyond 4 (it lies in a
//!   lane's line behind the word), `Copy`, with an all-zero `default`.
//! - `switch(save, load, message)`: leaves this stack and resumes another. All state that the ABI
//!   has callees keep goes along, with the control words of floating point. Async-signal-safe. A
//!   message of two pointers arrives.
//! - `prepare(end, entry, argument)`: a context that calls `entry` on an empty stack, aligned as
//!   the ABI wants.
//! - `thread_pointer`, `set_thread_pointer`: the address of thread-local storage, without a system
//!   call. Where programs may not change it, `dimmer_host::migration::can_change_thread_pointer`
//!   says so, and nothing migrates.
//! - `of_thread!`: variables of each thread, found without a call that may allocate, lock, or be
//!   replaced by the program. Ordinary ones with `cfg(miri)`.
//! - `system_call(number, arguments)`: touches neither `errno` nor thread-local storage.
//! - `MONITORS`: ways to wait for a write to a line, best first, each for a bounded time
//!   ([`crate::wait::Way`]). May be empty.
//! - `chain()`: duration in ticks of a chain of dependent instructions that takes a fixed number of
//!   core cycles.
//! - `RESTORER`, `FRAME_WORDS`, `begins_frame`, `call_with_frames!`, `STACK_POINTER`: how the
//!   kernel enters handlers: the flag of an action with a return address, whether words of the
//!   stack begin such a frame, the frames of a caller, the interrupted stack pointer.
//! - `cancellation_handler!`: a handler that calls a function of ours first and then jumps to
//!   another handler, without a frame of its own below it.
//!
//! Stacks grow down. A store of a 64-bit word is not torn. Ordering is never taken from the
//! architecture but where `// Ordering:` says so ([`crate::signals::fence_all`] makes it real).

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{system_call, thread_pointer};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("there is no `arch` module for this architecture: see the contract in arch.rs");
