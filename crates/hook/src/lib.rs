//! Hooks in a running program: how often the functions with wide-vector code are called, how long they
//! take, and how much time passes in between, without changing what the program does.
//!
//! [`Hooks::take`] puts a jump over the entry of each such function of a loaded file. Calls are counted by
//! the thread that makes them, and some are timed; the numbers are in a [`Ledger`], which another process
//! can read meanwhile. A counted call costs a fraction of a nanosecond, a timed one some 60 ns.

mod arena;
mod entry;
mod hooks;
mod ledger;
mod objects;
mod plan;
mod swap;

pub use hooks::{HookError, Hooked, Hooks};
pub use ledger::{Ledger, LedgerError, Object, SiteEntry, Thread, TimedCall};
pub use objects::{Loaded, Objects};
pub use swap::forget_thread;

/// The environment variable that names the directory to make the ledger in.
pub const DIRECTORY: &str = "DIMMER_LEDGERS";

/// The environment variable that lists the classes of instructions whose functions are hooked, separated
/// by commas.
pub const CLASSES: &str = "DIMMER_HOOK_CLASSES";

/// The time-stamp counter, in whose ticks calls are timed.
#[must_use]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has it, and Linux lets programs read it unless they ask not to.
    unsafe { std::arch::x86_64::_rdtsc() }
}
