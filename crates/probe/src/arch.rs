//! What depends on the processor's architecture: one module for each, of which the target picks
//! one. Nothing else in this crate contains assembly, or knows instructions and registers.
//!
//! # The contract
//!
//! - `features::Feature`: the extensions of the instruction set that kernels need, public as
//!   [`crate::kernel::Feature`].
//! - `kernels`: `templates` lists the kernels, in the order in which users see them, and `split`
//!   cuts a template into instructions. A test compares declarations with the decoded bytes.
//! - `routines`: the code of windows of work ([`crate::program::Work`]): `clock`, `unit`, `issue`,
//!   registers that are left `dirty` or `zeroed`, and a `burst` of exactly as many instructions of
//!   a kernel as asked for. Code runs at any address, and keeps to the contract of the loop.
//! - `drive`: the loop that runs routines one after the other and stamps the time before each,
//!   with a note if an interrupt came since the last stamp. It makes no system call, allocates
//!   nothing, and touches no memory but groups, steps, stamps and operands.
//! - `call`: calls a routine from ordinary code.
//! - `operands`: what routines load: numbers that stay finite and normal, and shapes of tiles.
//! - `waits`: the instructions that wait for a write or a time, by name.
//! - `ticks_now`: the counter in whose ticks the loop stamps, which runs at one rate.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("there is no `arch` module for this architecture: see the contract in arch.rs");
