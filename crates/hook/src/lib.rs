//! Hooks in a running program. They measure how often the functions with wide SIMD code are
//! called, how long they take, and how much time passes in between. They do not change what the
//! program does.
//!
//! [`Hooks::take`] puts a jump over the entry of each such function of a loaded file. The thread
//! that makes a call counts it, and times some of its calls. The numbers are in a ledger
//! ([`OwnLedger`]), which another process can read at the same time ([`Ledger`]). A counted call
//! costs a fraction of a nanosecond, a timed one 25 to 69 ns.
//!
//! With [`Hooks::move_by`], calls can also run on another core. [`Ledger::decide`] decides this for
//! each function.

mod arch;
mod arena;
mod error;
mod file;
pub mod gate;
mod giving_up;
mod hooks;
mod ledger;
mod mapping;
mod marks;
mod mover;
mod objects;
mod overhead;
mod page;
mod phases;
mod plan;
mod process;
mod sections;
mod site;
mod slots;
mod trial;
mod unhook;

pub use arch::leaf::{LeafCall, LeafEnd};
pub use arch::rows::is_stub;
pub use arch::thread_block::{
    MIGRATED, allow_migration, inhibit_migration, is_migrated, is_migration_inhibited, note_away,
    note_home, thread_offset,
};
pub use error::{CannotMove, HookError};
pub use giving_up::{GivenUp, giving_up, has_given_up, is_restricted};
pub use hooks::{Hooks, replace_code};
pub use ledger::{
    Head, Ledger, LedgerError, Look, Names, NoRoom, Object, Orders, OwnLedger, PhaseCounts,
    SiteEntry, Thread, TimedCall,
};
pub use marks::{
    GRAPH_FILE, INTERVAL, LEARN, LEARNED_FILE, MARKS, NAMES_FILE, OWN_MARK, PHASES, PROFILE_FILE,
    switch_off,
};
pub use mover::{Mover, SIGNALS_ARE_RIGHT, cut_migration_short};
pub use objects::{Loaded, Objects};
pub use overhead::Overhead;
pub use phases::Phases;
pub use plan::{
    Counts, PlannedEntry, add_to_plan, is_own_ground, keep_plan, kept_counts, needed, prepare_plan,
};
pub use process::never_time;
pub use sections::{SECTIONS, Watcher};
pub use slots::{expect_process, expect_thread, forget_thread};
pub use trial::{OWN_FILE, Round, Trip, pass_own_mark};

/// The environment variable that names the directory to make the ledger in.
pub const DIRECTORY: &str = "DIMMER_LEDGERS";

/// The environment variable that lists the instruction classes whose functions are hooked,
/// separated by commas.
pub const CLASSES: &str = "DIMMER_HOOK_CLASSES";

/// The environment variable that names the directory of plans: what to hook of each file, for these
/// classes.
pub const PLANS: &str = "DIMMER_HOOK_PLANS";

/// The environment variable that makes hooks whose calls can be moved. Its value is the default for
/// calls without another decision: `none` or `all` of them move.
pub const MOVE: &str = "DIMMER_HOOK_MOVE";

/// The time-stamp counter. Calls are timed in its ticks.
#[must_use]
pub fn ticks() -> u64 {
    arch::ticks()
}

/// Cycles of the chain of multiplications that measures the clock next to some timed calls.
pub const CHAIN_CYCLES: u32 = arch::CHAIN_CYCLES;

/// Pairs of calls that are timed in a second of a thread's life while its program is followed
/// closely. A timed call takes some 60 ns more if everything lies in caches. It takes 0.3 to 0.5 us
/// more in an encoder, which needs its caches itself: with 20 000 pairs a second x265 ran 1.7 %
/// slower than with none (median of 9 rounds, Emerald Rapids).
pub const PAIRS_PER_SECOND: f64 = 4000.0;

/// The number of calls from one timed pair to the next, for a thread with `calls_per_second` hooked
/// calls a second, so that `pairs_per_second` pairs are timed.
#[must_use]
pub fn period(calls_per_second: f64, pairs_per_second: f64) -> u32 {
    // Pairs overlap if all calls are timed. So all calls can be timed up to twice this rate.
    if calls_per_second.is_nan() || calls_per_second <= 2.0 * pairs_per_second {
        return 1;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
    let period = (calls_per_second / pairs_per_second).min(1e9) as u32;
    period
}
