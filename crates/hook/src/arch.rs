//! What depends on the processor's architecture. One module for each, of which the target picks
//! one. Nothing else in this crate contains assembly, or knows registers and frames.
//!
//! # The contract
//!
//! - `entry`: `build` makes the stub that counts a call, from the displaced instructions of a
//!   function. It changes no register, uses no stack but the red zone, and reads and writes only
//!   the thread block, the thread's counters and the decision or the gate.
//! - `thread_block`: the block that stubs and the code below keep for each thread, found without a
//!   call, all zero at a thread's start; each change is one instruction, as signal handlers make
//!   hooked calls too.
//! - `rows`: the table of return addresses, and the return stubs that identify a row by the address
//!   that a function returns to, with unwinding records that find the caller.
//! - `swap`: `slow` takes over a call whose countdown has ended, times it, and claims a slot for a
//!   thread that has none, without a system call. All registers are as before.
//! - `migrate`: `entry` takes over a call that may migrate, and calls [`crate::mover`] before and
//!   after it; all of the processor's state goes along on the stack.
//! - `delegate`, `leaf`: the same for calls of leaf functions, of which registers go: `entry`
//!   at home, [`crate::LeafCall::make`] on the worker.
//! - `mark`: `entry` passes a mark and hands the call back, on whatever kernel thread the thread
//!   runs then; all of the processor's state goes along on the stack.
//! - `section`: `entry` reports a call, and its end if that is wanted, and hands the call back; all
//!   of the processor's state goes along on the stack.
//! - `take_out`: has [`crate::unhook`] take hooks out at a call that `swap` would time, and hands
//!   the call back; all of the processor's state goes along on the stack.
//! - `registers`: `Form` says how the processor's state is stored, or why it cannot be.
//! - `empty`: functions that do nothing, for measuring hooks.
//! - `CHAIN_CYCLES`: how long the chain takes that measures the clock next to timed calls.
//! - `ticks`: a counter that runs at one rate on all processors and that programs can read.
//! - `copy`, `word_of_thread`: without calls into code that may be hooked or not executable.
//!
//! Offsets that assembly uses are operands, from `repr(C)` types of this crate. Calls and returns
//! stay paired, for return prediction and shadow stacks.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("there is no `arch` module for this architecture: see the contract in arch.rs");
