//! What it takes to move a call of a hooked function: the thread there and back, with all that the
//! processor keeps of it.

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
use dimmer_runtime::{CannotTravel, Cores, StartError, check_travel};

/// Calls of each kind that are measured.
pub const CALLS: usize = 2000;

/// Why calls cannot be moved here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HookedError {
    /// Threads cannot go on elsewhere.
    #[error(transparent)]
    Travel(#[from] CannotTravel),
    /// Their registers cannot be taken along.
    #[error(transparent)]
    Registers(#[from] CannotMove),
    /// The cores cannot be had.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The kernel does not let threads be kept off them.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// No function of Dimmer's own can be hooked.
    #[error(transparent)]
    Hook(#[from] HookError),
    /// Nothing can be counted.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// There can be no temporary directory.
    #[error("cannot make a directory for the ledger")]
    Directory(#[source] io::Error),
}

/// How calls move within this process.
const MOVER: Mover = Mover { leave, come_home, cut_short, end_at_home, lend, unwind_lent };

extern "C" fn leave() -> u32 {
    dimmer_runtime::calls::leave_home().unwrap_or(0)
}

extern "C" fn come_home() -> u64 {
    dimmer_runtime::calls::come_home_quietly().unwrap_or(SIGNALS_ARE_RIGHT)
}

extern "C" fn cut_short() {
    dimmer_runtime::calls::come_home_early();
}

extern "C" fn end_at_home() -> u64 {
    dimmer_runtime::calls::end_at_home().unwrap_or(SIGNALS_ARE_RIGHT)
}

fn lend(call: LeafCall<'_>) -> Option<LeafEnd> {
    dimmer_runtime::dedicated()?.lend(move || call.make()).ok()
}

extern "C" fn unwind_lent() {
    dimmer_runtime::calls::unwind_lent();
}

/// What moved calls take that do nothing (ns each).
#[derive(Clone, Debug, Default)]
pub struct RoundTrips {
    /// Moved with their thread.
    pub moved: Samples,
    /// Of leaf functions, lent.
    pub lent: Samples,
}

/// Dedicates these cores for the rest of this process's life, and times moved calls that do
/// nothing, of both kinds in turn; the calling thread keeps off the cores meanwhile. Takes some
/// milliseconds. To be called once.
///
/// # Errors
/// [`HookedError`].
pub fn round_trips(root: &Root, cpus: &[CpuId]) -> Result<RoundTrips, HookedError> {
    check_travel()?;
    let cores = Cores::start(root, cpus)?;
    let allowed = affinity::allowed()?;
    let rest: Vec<CpuId> = allowed.iter().filter(|cpu| !cpus.contains(cpu)).copied().collect();
    affinity::allow(&rest)?;
    dimmer_runtime::calls::dedicate(cores);
    let directory = tempfile::tempdir().map_err(HookedError::Directory)?;
    let mut hooks = Hooks::new(OwnLedger::create(directory.path())?, BTreeSet::new(), None);
    hooks.move_by(MOVER, false)?;
    let took = hooks.trial_moved(CALLS);
    affinity::allow(&allowed)?;
    let took = took?;
    Ok(RoundTrips {
        moved: took.iter().map(|trip| trip.moved_ns).collect(),
        lent: took.iter().map(|trip| trip.lent_ns).collect(),
    })
}
