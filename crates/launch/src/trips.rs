//! Measures what it takes to move a call of a hooked function: the thread there and back, with all
//! its processor state.

use std::collections::BTreeSet;
use std::io;

use dimmer_hook::{
    CannotMove, HookError, Hooks, LeafCall, LeafEnd, LedgerError, Mover, OwnLedger,
    SIGNALS_ARE_RIGHT,
};
use dimmer_host::affinity::{self, AffinityError};
use dimmer_host::root::Root;
use dimmer_probe::stats::Samples;
use dimmer_processor::units::CpuId;
use dimmer_runtime::{CannotMigrate, Cores, StartError, check_migration};

/// Number of measured calls of each kind.
pub const CALLS: usize = 2000;

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

/// Dedicates these cores for the rest of this process's life, and times moved calls that do
/// nothing, of both kinds in turn. The calling thread keeps off the cores meanwhile. Takes some
/// milliseconds. Call it only once.
///
/// # Errors
/// [`TripError`].
pub fn round_trips(root: &Root, cpus: &[CpuId]) -> Result<RoundTrips, TripError> {
    check_migration()?;
    let cores = Cores::start(root, cpus)?;
    let allowed = affinity::allowed()?;
    let rest: Vec<CpuId> = allowed.iter().filter(|cpu| !cpus.contains(cpu)).copied().collect();
    affinity::allow(&rest)?;
    dimmer_runtime::calls::dedicate(cores);
    let directory = tempfile::tempdir().map_err(TripError::Directory)?;
    let mut hooks = Hooks::new(OwnLedger::create(directory.path())?, BTreeSet::new(), None);
    hooks.move_by(MOVER, false)?;
    let took = hooks.trial_moved(CALLS);
    affinity::allow(&allowed)?;
    let took = took?;
    Ok(RoundTrips {
        migrated: took.iter().map(|trip| trip.moved_ns).collect(),
        delegated: took.iter().map(|trip| trip.delegated_ns).collect(),
    })
}
