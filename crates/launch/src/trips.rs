//! Measures what it takes to move a call of a hooked function: the thread there and back, with all
//! its processor state.

use std::collections::BTreeSet;
use std::io;
use std::iter::repeat_n;
use std::time::Duration;

use dimmer_hook::{
    CannotMove, HookError, Hooks, LeafCall, LeafEnd, LedgerError, Mover, OwnLedger,
    SIGNALS_ARE_RIGHT, Trip,
};
use dimmer_host::affinity::{self, AffinityError};
use dimmer_host::root::Root;
use dimmer_probe::stats::{Estimate, Samples};
use dimmer_processor::units::CpuId;
use dimmer_runtime::{CannotMigrate, Cores, StartError, check_migration};

/// Number of measured calls of each kind, back to back.
pub const CALLS: usize = 2000;

/// Gaps between calls after which moved ones are timed, and how many: the other core sleeps more
/// deeply after a longer one. Takes 0.2 s in all.
const GAPS: [(Duration, usize); 5] = [
    (Duration::ZERO, 200),
    (Duration::from_micros(10), 100),
    (Duration::from_micros(100), 50),
    (Duration::from_millis(1), 20),
    (Duration::from_millis(10), 6),
];

/// Why calls cannot be moved here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TripError {
    /// Threads cannot migrate.
    #[error(transparent)]
    Migrate(#[from] CannotMigrate),
    /// Their registers cannot migrate with them.
    #[error(transparent)]
    Registers(#[from] CannotMove),
    /// The cores cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The kernel does not allow threads to be kept off the cores.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// No function of Dimmer's own can be hooked.
    #[error(transparent)]
    Hook(#[from] HookError),
    /// Calls cannot be counted.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// No temporary directory can be made.
    #[error("cannot make a directory for the ledger")]
    Directory(#[source] io::Error),
}

/// How calls move within this process.
const MOVER: Mover = Mover {
    begin_migration,
    end_migration,
    cut_migration_short,
    end_cut_migration,
    delegate,
    unwind_delegated,
};

extern "C" fn begin_migration(_: u32) -> u32 {
    dimmer_runtime::calls::begin_migration().unwrap_or(0)
}

extern "C" fn end_migration() -> u64 {
    dimmer_runtime::calls::end_migration().unwrap_or(SIGNALS_ARE_RIGHT)
}

extern "C" fn cut_migration_short() {
    dimmer_runtime::calls::cut_migration_short();
}

extern "C" fn end_cut_migration() -> u64 {
    dimmer_runtime::calls::end_cut_migration().unwrap_or(SIGNALS_ARE_RIGHT)
}

fn delegate(call: LeafCall<'_>) -> Option<LeafEnd> {
    dimmer_runtime::dedicated()?.delegate_leaf(move || call.make()).ok()
}

extern "C" fn unwind_delegated() {
    dimmer_runtime::calls::unwind_delegated();
}

/// The times of moved calls that do nothing (ns each).
#[derive(Clone, Debug, Default)]
pub struct RoundTrips {
    /// Calls that migrated with their thread.
    pub migrated: Samples,
    /// Calls of leaf functions that were delegated.
    pub delegated: Samples,
}

impl RoundTrips {
    fn new(trips: &[Trip]) -> Self {
        Self {
            migrated: trips.iter().map(|trip| trip.moved_ns).collect(),
            delegated: trips.iter().map(|trip| trip.delegated_ns).collect(),
        }
    }

    /// The kind that takes less time by its median. `None` without calls.
    #[must_use]
    pub fn quicker(&self) -> Option<Estimate> {
        let kinds = [&self.migrated, &self.delegated].into_iter().filter_map(Samples::estimate);
        kinds.min_by(|a, b| a.median.total_cmp(&b.median))
    }
}

/// Dedicates these cores for the rest of this process's life, and times moved calls that do
/// nothing, of both kinds in turn, back to back. The calling thread keeps off the cores meanwhile.
/// Takes some milliseconds. Call it, or [`round_trips_after_gaps`], only once.
///
/// # Errors
/// [`TripError`].
pub fn round_trips(root: &Root, cpus: &[CpuId]) -> Result<RoundTrips, TripError> {
    let trips = trips(root, cpus, repeat_n(Duration::ZERO, CALLS))?;
    Ok(RoundTrips::new(&trips))
}

/// Likewise, after each of some gaps without a call, from none to the first one that is not shorter
/// than `longest`: for up to 0.2 s.
///
/// # Errors
/// [`TripError`].
pub fn round_trips_after_gaps(
    root: &Root,
    cpus: &[CpuId],
    longest: Duration,
) -> Result<Vec<(Duration, RoundTrips)>, TripError> {
    let longer = GAPS.partition_point(|(gap, _)| *gap < longest);
    let gaps = &GAPS[..(longer + 1).min(GAPS.len())];
    let trips = trips(root, cpus, gaps.iter().flat_map(|(gap, calls)| repeat_n(*gap, *calls)))?;
    let mut rest = &trips[..];
    let after = gaps.iter().map(|(gap, calls)| {
        let (these, others) = rest.split_at(*calls);
        rest = others;
        (*gap, RoundTrips::new(these))
    });
    Ok(after.collect())
}

/// Moved calls on these cores, of both kinds after each gap.
fn trips(
    root: &Root,
    cpus: &[CpuId],
    gaps: impl Iterator<Item = Duration>,
) -> Result<Vec<Trip>, TripError> {
    check_migration()?;
    let cores = Cores::start(root, cpus)?;
    let allowed = affinity::allowed()?;
    let rest: Vec<CpuId> = allowed.iter().filter(|cpu| !cpus.contains(cpu)).copied().collect();
    affinity::allow(&rest)?;
    dimmer_runtime::calls::dedicate(cores);
    let directory = tempfile::tempdir().map_err(TripError::Directory)?;
    let mut hooks = Hooks::new(OwnLedger::create(directory.path())?, BTreeSet::new(), None);
    hooks.move_by(MOVER, false)?;
    let took = hooks.trial_moved(gaps);
    affinity::allow(&allowed)?;
    Ok(took?)
}
