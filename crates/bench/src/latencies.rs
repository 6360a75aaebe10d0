//! What `dimmer probe --mode latency,pstate` measures: tables 4 and 5 of paper 002 on this machine.
//!
//! The parts are in `dimmer-probe`, which does not know the runtime whose moves stand beside those
//! of the kernel; it is measured as in [`crate::moves`].

use dimmer_host::cpuid::{Cpuid, CpuidError};
use dimmer_host::journal::{Journal, JournalError, Report};
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_probe::handoff;
use dimmer_probe::lab::Observer;
use dimmer_probe::latency::{self, LatencyError, Plan};
use dimmer_probe::transition::{self, Measured, TransitionError};
use dimmer_processor::units::CpuId;

use crate::moves::{self, Moves, MovesError, Way};

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The CPU to measure on.
    pub cpu: CpuId,
    /// Whether to measure what waiting, waking and moving cost.
    pub latency: bool,
    /// Whether to measure operating points.
    pub pstate: bool,
    /// Samples of each measurement; a twentieth of them for each pair of operating points.
    pub samples: usize,
    /// Operating points, at most.
    pub points: usize,
}

/// What was measured; `None` if it was not asked for.
#[derive(Debug, Default)]
pub struct Latencies {
    /// What waiting, waking and moving cost.
    pub latency: Option<latency::Found>,
    /// What the runtime's moves cost, or why there are none.
    pub moves: Option<Result<Moves, String>>,
    /// How long clocks take to change; or, if something else was measured, why not.
    pub pstate: Option<Result<Measured, String>>,
}

/// What was undone, also if there is no result.
#[derive(Debug, Default)]
pub struct Undone {
    /// Of processes that have ended.
    pub of_ended: Report,
    /// Of this one. If it is not complete, the machine is not as it was.
    pub own: Report,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LatenciesError {
    /// Threads cannot be pinned, or nothing can be timed.
    #[error(transparent)]
    Latency(#[from] LatencyError),
    /// Clocks cannot be requested, and nothing else was asked for.
    #[error(transparent)]
    Transition(#[from] TransitionError),
    /// The made-up machine's processor is not described as it must be.
    #[error(transparent)]
    Cpuid(#[from] CpuidError),
    /// The journal cannot be opened.
    #[error("cannot open the journal")]
    Journal(#[source] JournalError),
    /// The requests of clocks cannot be undone; `dimmer restore` will.
    #[error("cannot undo the requests of clocks")]
    Undo(#[source] JournalError),
}

impl LatenciesError {
    /// Whether this machine, or another process on it, does not let clocks be requested. What else
    /// is asked for can be measured.
    fn is_of_clocks(&self) -> bool {
        matches!(
            self,
            Self::Cpuid(_) | Self::Journal(_) | Self::Transition(TransitionError::Points(_))
        )
    }
}

/// Measures it. Clocks are requested under `root`; all else is this machine's. All requests are
/// undone, in any case.
///
/// # Errors
/// [`LatenciesError`].
pub fn measure(
    root: &Root,
    machine: &Machine,
    asked: Asked,
    undone: &mut Undone,
    observer: &mut dyn Observer,
) -> Result<Latencies, LatenciesError> {
    let mut found = Latencies::default();
    if asked.pstate {
        found.pstate = match transitions(root, asked, undone, observer) {
            Ok(measured) => Some(Ok(measured)),
            Err(error) if asked.latency && error.is_of_clocks() => Some(Err(explain(&error))),
            Err(error) => return Err(error),
        };
    }
    if asked.latency {
        let plan = Plan {
            allowed: &machine.allowed,
            topology: &machine.topology,
            home: asked.cpu,
            samples: asked.samples,
        };
        let live = Root::live();
        let mut latency = latency::measure(&live, &Cpuid::instruction(), plan, observer)?;
        if !latency.interrupted {
            let moves = runtime_moves(&live, machine, asked, observer);
            latency.interrupted = moves.as_ref().is_ok_and(|moves| moves.is_cut);
            found.moves = Some(moves.map_err(|error| explain(&error)));
        }
        found.latency = Some(latency);
    }
    Ok(found)
}

/// The ways of the runtime.
pub const OF_RUNTIME: [Way; 3] = [Way::Migration, Way::Migrate, Way::Delegate];

fn runtime_moves(
    root: &Root,
    machine: &Machine,
    asked: Asked,
    observer: &mut dyn Observer,
) -> Result<Moves, MovesError> {
    let home = asked.cpu;
    let siblings = machine.topology.siblings(home);
    let away = handoff::away_from(home, &machine.allowed, &siblings);
    let cpus = (home, away.ok_or(MovesError::OneCpu(home))?);
    let rounds = asked.samples.div_ceil(IN_A_ROUND).max(1);
    moves::measure_ways(root, cpus, &OF_RUNTIME, rounds, |round, turn| {
        let turns = OF_RUNTIME.len() as f64;
        let share = (round as f64 + turn as f64 / turns) / rounds as f64;
        observer.begins("measuring moves by the runtime", share);
        !observer.wants_stop()
    })
}

fn transitions(
    root: &Root,
    asked: Asked,
    undone: &mut Undone,
    observer: &mut dyn Observer,
) -> Result<Measured, LatenciesError> {
    let (mut journal, of_ended) = Journal::open(root).map_err(LatenciesError::Journal)?;
    undone.of_ended = of_ended;
    let cpuid = Cpuid::of(root)?;
    let amount = (asked.points, asked.samples.div_ceil(IN_A_PAIR).max(1));
    let measured = transition::measure_here(&mut journal, &cpuid, asked.cpu, amount, observer);
    undone.own = journal.undo().map_err(LatenciesError::Undo)?;
    Ok(measured?)
}

/// Samples for each of a pair of operating points: its transitions take up to milliseconds.
const IN_A_PAIR: usize = 20;

/// Samples for each round of moves, which has thousands of the quick ones.
const IN_A_ROUND: usize = 40;

/// An error with its causes.
fn explain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
#[expect(clippy::print_stdout, reason = "tests say why they are skipped")]
mod tests {
    use super::*;

    /// Lets this many turns pass.
    struct Impatient(usize);

    impl Observer for Impatient {
        fn begins(&mut self, _what: &str, _done: f64) {
            self.0 = self.0.saturating_sub(1);
        }

        fn wants_stop(&self) -> bool {
            self.0 == 0
        }
    }

    #[test]
    fn moves_begin_on_the_named_cpu_and_end_when_asked_to() {
        let root = Root::live();
        let machine = Machine::read(&root, &Cpuid::instruction());
        let Some(&cpu) = machine.allowed.last().filter(|_| machine.allowed.len() > 1) else {
            println!("SKIPPED: this process may use one CPU");
            return;
        };
        let asked = Asked { cpu, latency: true, pstate: false, samples: 1_000_000, points: 2 };
        let moves = runtime_moves(&root, &machine, asked, &mut Impatient(3)).unwrap();
        assert!(moves.is_cut && moves.home == cpu && moves.away != cpu, "{moves:?}");
        assert!(moves.trips.iter().all(|trips| OF_RUNTIME.contains(&trips.way)), "{moves:?}");
    }
}
