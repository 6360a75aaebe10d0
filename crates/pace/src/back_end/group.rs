//! Requests as clamps of the program's control group ([`dimmer_host::uclamp::group`]), for programs
//! that may not set clamps of their threads.
//!
//! All CPUs count as one domain: the clamps are those of the program as a whole, wherever its
//! threads are, so the fastest request of all its threads is in force. A group that has processes
//! of others is left alone.

use dimmer_host::cpufreq;
use dimmer_host::cpufreq::clocks::Clocks;
use dimmer_host::journal::{Journal, JournalError, Report};
use dimmer_host::root::Root;
use dimmer_host::uclamp::group::{GroupClamps, format};
use dimmer_host::unavailable::Unavailable;
use dimmer_processor::units::KiloHertz;

use super::cores::{Cores, Domain, ReadClock, Setting, Wanted, explain};
use super::own_file::OwnFile;
use super::uclamp::clamps;

const WHAT: &str = "requests as clamps of the control group";

fn unavailable(why: String, remedy: &str) -> Unavailable {
    Unavailable::new(WHAT, why, remedy)
}

/// The back end of this process's group. First undoes what a process has left that was killed.
///
/// # Errors
/// [`Unavailable`].
pub(crate) fn open(root: &Root) -> Result<Cores<Group>, Unavailable> {
    let found = GroupClamps::find(root)?;
    found.check_own(root)?;
    let policies = cpufreq::policies(root);
    let all: Option<Vec<Clocks>> = policies.iter().map(|policy| Clocks::of(root, policy)).collect();
    let clocks = all.and_then(|all| all.into_iter().reduce(both)).ok_or_else(|| {
        let why = "a policy does not report the limits of its clock".to_owned();
        unavailable(why, "use another driver for cpufreq")
    })?;
    let (journal, _) = Journal::open(root)
        .map_err(|error| unavailable(explain(&error), "run `dimmer restore` as root"))?;
    let file = |path| {
        OwnFile::new(WHAT, root, path)
            .map_err(|error| unavailable(explain(&JournalError::Before(error)), "run as root"))
    };
    let [lowest, highest] = found.files();
    let (lowest, highest) = (file(lowest)?, file(highest)?);
    let cpus = policies.into_iter().flat_map(|policy| policy.cpus).collect();
    let group = Group { journal, fastest: clocks.fastest, lowest, highest };
    Ok(Cores::new(root, vec![Domain { cpus, clocks }], group))
}

/// The clocks of two kinds of CPUs together. A clamp is a share of the fastest one.
fn both(one: Clocks, other: Clocks) -> Clocks {
    Clocks {
        slowest: one.slowest.min(other.slowest),
        base: one.base.zip(other.base).map(|(one, other)| one.max(other)),
        fastest: one.fastest.max(other.fastest),
    }
}

/// The clamps of the group.
#[derive(Debug)]
pub(crate) struct Group {
    /// Undoes all changes when it is dropped.
    journal: Journal,
    fastest: KiloHertz,
    lowest: OwnFile,
    highest: OwnFile,
}

impl Setting for Group {
    const NAME: &str = "group clamps";

    /// What is wanted at least is wanted exactly: [`super::for_server`] leaves this back end out.
    fn set(&mut self, _domain: usize, wanted: Option<Wanted>) -> Result<(), Unavailable> {
        let Self { journal, fastest, lowest, highest } = self;
        lowest.check(journal.root())?;
        highest.check(journal.root())?;
        let own = wanted.map(|wanted| clamps(wanted.clock, *fastest));
        lowest.write(journal, own.map(|own| format(own.lowest)).as_deref())?;
        highest.write(journal, own.map(|own| format(own.highest)).as_deref())?;
        lowest.note(journal.root())?;
        highest.note(journal.root())
    }

    fn give_back(self) -> Result<Report, JournalError> {
        self.journal.undo()
    }

    fn has(&self, _domain: usize, place: &str) -> bool {
        [&self.lowest, &self.highest].iter().any(|file| file.path == place)
    }

    /// The group's threads may be on CPUs of several clocks.
    fn clock(&self, _domain: usize) -> Option<ReadClock> {
        None
    }
}

#[cfg(test)]
mod tests;
