//! The mechanisms of `dimmer run`, and the table of them.
//!
//! A mechanism is a file here with a [`Definition`], which [`ALL`] lists. The command line has a
//! flag of the same name; whatever else it says about mechanisms comes from the table.

mod auto;
mod boost;
mod delegate;
mod interval;
mod migrate;
mod moving;
mod narrow;
mod phases;
mod specialise;
mod unhooking;

use std::fmt;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use dimmer_host::root::Root;
use dimmer_observe::INTERVAL;
use dimmer_processor::units::CpuId;

use crate::account::Summary;
use crate::forms::Spent;
use crate::note::Notes;
use crate::program::Program;
use crate::{LaunchError, Request};
pub use boost::Boosting;
pub(crate) use narrow::can as can_narrow;

/// A mechanism.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// Its name, and that of its flag.
    pub name: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// How it moves calls, if it does. Of several that do, the first that is asked for prepares
    /// the program, in all their ways.
    pub moves: Option<How>,
    /// Sets up the program's environment before it starts.
    prepare: fn(&mut Setup<'_>) -> Result<Prepared, LaunchError>,
}

/// All mechanisms, in the order in which they are listed.
pub const ALL: [&Definition; 7] = [
    &narrow::DEFINITION,
    &migrate::DEFINITION,
    &delegate::DEFINITION,
    &auto::DEFINITION,
    &specialise::DEFINITION,
    &phases::DEFINITION,
    &boost::DEFINITION,
];

/// A mechanism that follows the program; `None` if there is nothing to follow.
pub(crate) type Prepared = Option<Box<dyn Mechanism>>;

/// A mechanism at work on a program.
pub(crate) trait Mechanism: fmt::Debug {
    /// The CPUs that calls or threads move to; `None` if none does.
    fn cpus(&self) -> Option<&[CpuId]>;

    /// The program was started, as this process.
    fn started(&mut self, _process: u32) {}

    /// The program and this process have stood still for a time, since the last look.
    fn stood_still(&mut self, _for: Duration) {}

    /// Looks at the program, and acts on what it sees. Called once [`Self::next_look`] has passed,
    /// or earlier.
    fn look(&mut self, notes: &mut Notes<'_>);

    /// The time from now until it has to look again.
    fn next_look(&self) -> Duration {
        INTERVAL
    }

    /// Undoes what concerns others, and sums up.
    fn finish(self: Box<Self>, end: &End, notes: &mut Notes<'_>) -> Summary;
}

/// How calls, or the threads that make them, are moved to other cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// Calls migrate with their thread.
    pub migrates: bool,
    /// Calls of leaf functions are delegated to a worker.
    pub delegates: bool,
    /// A policy server, or else trials of the program's mechanisms, make the final decision, and
    /// earlier runs decide whether the program has narrower code instead.
    pub is_auto: bool,
    /// Threads that make them go to other cores until their phase is over.
    pub specialises: bool,
    /// Threads migrate when they make them, by a profile.
    pub follows_phases: bool,
}

impl How {
    /// In no way.
    pub(crate) const NONE: Self = Self {
        migrates: false,
        delegates: false,
        is_auto: false,
        specialises: false,
        follows_phases: false,
    };

    /// In both ways.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            migrates: self.migrates || other.migrates,
            delegates: self.delegates || other.delegates,
            is_auto: self.is_auto || other.is_auto,
            specialises: self.specialises || other.specialises,
            follows_phases: self.follows_phases || other.follows_phases,
        }
    }

    /// Whether threads are moved rather than calls.
    #[must_use]
    pub const fn moves_threads(self) -> bool {
        self.specialises || self.follows_phases
    }
}

/// A program that is about to start.
pub(crate) struct Setup<'a> {
    pub(crate) root: &'a Root,
    pub(crate) request: &'a Request,
    /// The mechanisms that are asked for.
    pub(crate) asked: &'a [&'static Definition],
    /// How all of them move calls.
    pub(crate) how: How,
    pub(crate) program: &'a Program,
    pub(crate) command: &'a mut Command,
    pub(crate) notes: &'a mut Notes<'a>,
}

/// How a program ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) status: ExitStatus,
    /// Whether others have asked it to end, by a signal.
    pub(crate) is_asked_for: bool,
    pub(crate) spent: Spent,
}

/// How all of these mechanisms move calls; `None` if none does.
#[must_use]
pub fn how(asked: &[&Definition]) -> Option<How> {
    asked.iter().filter_map(|definition| definition.moves).reduce(How::and)
}

/// Checks that these mechanisms go together.
pub(crate) fn check(asked: &[&Definition], request: &Request) -> Result<(), LaunchError> {
    let is_boost = |one: &&&Definition| one.name == boost::DEFINITION.name;
    if asked.iter().any(|one| is_boost(&one))
        && let Some(other) = asked.iter().find(|one| !is_boost(one))
    {
        return Err(LaunchError::BoostsAlone { other: other.name });
    }
    if !request.sections.is_empty() && !asked.iter().any(|one| is_boost(&one)) {
        return Err(LaunchError::SectionsWithoutBoost);
    }
    let moves_calls = how(asked).is_some_and(|how| !how.moves_threads());
    if request.is_traced && !moves_calls {
        return Err(LaunchError::TracesCalls);
    }
    let moving = || asked.iter().filter_map(|one| Some((one.name, one.moves?)));
    if let Some((name, how)) = moving().find(|(_, how)| how.moves_threads()) {
        if let Some((other, _)) = moving().find(|(other, _)| *other != name) {
            return Err(LaunchError::MovesAlone { name, other });
        }
        if how.specialises && request.is_dedicated {
            return Err(LaunchError::SpecialisesUndedicated);
        }
    }
    Ok(())
}

/// Prepares the program for each of the mechanisms that are asked for.
pub(crate) fn prepare(setup: &mut Setup<'_>) -> Result<Vec<Box<dyn Mechanism>>, LaunchError> {
    let mut prepared = Vec::new();
    let mut is_moving = false;
    // Those that move calls first: with narrower code, the library is preloaded already.
    let (moving, others): (Vec<&Definition>, Vec<&Definition>) =
        setup.asked.iter().copied().partition(|definition| definition.moves.is_some());
    for definition in moving.into_iter().chain(others) {
        let is_second = definition.moves.is_some() && is_moving;
        is_moving |= definition.moves.is_some();
        if !is_second {
            prepared.extend((definition.prepare)(setup)?);
        }
    }
    Ok(prepared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mechanism_is_told_from_the_others() {
        for (index, definition) in ALL.iter().enumerate() {
            let Definition { name, summary, moves, .. } = definition;
            assert!(name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-'));
            assert!(!summary.is_empty() && !summary.ends_with('.'), "{name}: {summary}");
            let others = || ALL.iter().take(index);
            assert!(others().all(|other| other.name != *name && other.summary != *summary));
            assert!(moves.is_none() || others().all(|other| other.moves != *moves), "{name}");
            assert_eq!(how(&[definition]), *moves);
        }
    }

    #[test]
    fn several_mechanisms_move_calls_in_all_their_ways() {
        let all = how(&ALL).unwrap();
        assert!(all.migrates && all.delegates && all.is_auto);
        assert_eq!(how(&[]), None);
    }
}
