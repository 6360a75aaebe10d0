//! Hooks in a running program: how often the functions with wide-vector code are called, how long
//! they take, and how much time passes in between, without changing what the program does.
//!
//! [`Hooks::take`] puts a jump over the entry of each such function of a loaded file. Calls are
//! counted by the thread that makes them, and some are timed; the numbers are in a ledger
//! ([`OwnLedger`]), which another process can read meanwhile ([`Ledger`]). A counted call costs a
//! fraction of a nanosecond, a timed one some 60 ns.
//!
//! With [`Hooks::move_by`], calls can be made on another core as well, as [`Ledger::decide`] says
//! for each function.

mod arena;
mod away;
mod entry;
mod file;
mod hooks;
mod ledger;
mod objects;
mod offload;
mod plan;
mod process;
mod registers;
mod rows;
mod slots;
mod swap;
mod trial;

pub use away::{CannotMove, Mover, SIGNALS_ARE_RIGHT, come_home, go_again, stay};
pub use hooks::{HookError, Hooks, replace_code};
pub use ledger::{
    Head, Ledger, LedgerError, Look, Names, NoRoom, Object, Orders, OwnLedger, SiteEntry, Thread,
    TimedCall,
};
pub use objects::{Loaded, Objects};
pub use offload::{LeafCall, LeafEnd};
pub use plan::{Counts, PlannedEntry, is_own_ground, keep_plan, kept_counts, needed, prepare_plan};
pub use process::only_count;
pub use rows::is_stub;
pub use slots::{expect_process, expect_thread, is_restricted, restrict};
pub use swap::{AWAY, forget_thread, thread_offset};
pub use trial::{OWN_FILE, Overhead, Round, Trip};

/// The environment variable that names the directory to make the ledger in.
pub const DIRECTORY: &str = "DIMMER_LEDGERS";

/// The environment variable that lists the classes of instructions whose functions are hooked,
/// separated by commas.
pub const CLASSES: &str = "DIMMER_HOOK_CLASSES";

/// The environment variable that names the directory in which it is kept what to hook of a file,
/// for these classes.
pub const PLANS: &str = "DIMMER_HOOK_PLANS";

/// The environment variable by which hooks are made whose calls can be moved. Its value says which
/// calls are, as long as nothing else is decided: `none` or `all`.
pub const MOVE: &str = "DIMMER_HOOK_MOVE";

/// The time-stamp counter, in whose ticks calls are timed.
#[must_use]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has it, and Linux lets programs read it unless they ask not
    // to.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Pairs of calls that are timed in a second of a thread's life. A timed call takes some 60 ns more
/// where everything lies in caches, and 0.3 to 0.5 us in an encoder, which needs its caches itself:
/// with 20 000 pairs a second x265 ran 1.7 % slower than with none (median of 9 rounds, Emerald
/// Rapids).
const PAIRS_PER_SECOND: f64 = 4000.0;

/// How many calls pass from one timed pair to the next, for a thread with so many hooked calls a
/// second.
#[must_use]
pub fn period(calls_per_second: f64) -> u32 {
    // Pairs overlap when all calls are timed, so up to twice as many calls as pairs are.
    if calls_per_second.is_nan() || calls_per_second <= 2.0 * PAIRS_PER_SECOND {
        return 1;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
    let period = (calls_per_second / PAIRS_PER_SECOND).min(1e9) as u32;
    period
}
