//! Requests as preferences of the processor ([`dimmer_host::cpufreq::preference`]): hints, for
//! processes that may write these files, but not the limits of clocks.
//!
//! The processor goes on choosing the clock. Before every change the file must hold what this back
//! end left there, and the governor must be the same.

use dimmer_host::cpufreq::clocks::Clocks;
use dimmer_host::cpufreq::{self, POLICIES, Policy, preference};
use dimmer_host::journal::{Journal, JournalError, Report};
use dimmer_host::root::Root;
use dimmer_host::unavailable::Unavailable;
use dimmer_processor::units::KiloHertz;

use super::cores::{Cores, Domain, ReadClock, Setting, Wanted, explain};
use super::own_file::OwnFile;

const WHAT: &str = "requests as preferences of the processor (EPP)";

/// The back end of this machine. First undoes what a process has left that was killed.
///
/// # Errors
/// [`Unavailable`].
pub(crate) fn open(root: &Root) -> Result<Cores<Preferences>, Unavailable> {
    preference::check(root)?;
    let unavailable =
        |error: JournalError, remedy: &str| Unavailable::new(WHAT, explain(&error), remedy);
    let (journal, _) =
        Journal::open(root).map_err(|error| unavailable(error, "run `dimmer restore` as root"))?;
    let (mut domains, mut policies) = (Vec::new(), Vec::new());
    for (policy, clocks) in preference::check(root)? {
        let own = OwnPolicy::new(root, &policy, clocks)
            .map_err(|error| unavailable(JournalError::Before(error), "use another driver"))?;
        policies.push(own);
        domains.push(Domain { cpus: policy.cpus, clocks });
    }
    Ok(Cores::new(root, domains, Preferences { root: root.clone(), journal, policies }))
}

/// The preferences of all policies.
#[derive(Debug)]
pub(crate) struct Preferences {
    root: Root,
    /// Undoes all changes when it is dropped.
    journal: Journal,
    policies: Vec<OwnPolicy>,
}

/// The preference of a policy.
#[derive(Debug)]
struct OwnPolicy {
    policy: Policy,
    clocks: Clocks,
    governor: OwnFile,
    preference: OwnFile,
    /// The names to choose from, the fastest first.
    offered: Vec<&'static str>,
}

impl OwnPolicy {
    fn new(
        root: &Root,
        policy: &Policy,
        clocks: Clocks,
    ) -> Result<Self, dimmer_host::root::RootError> {
        let governor = format!("{POLICIES}/{}/scaling_governor", policy.name);
        Ok(Self {
            policy: policy.clone(),
            clocks,
            governor: OwnFile::new(WHAT, root, governor)?,
            preference: OwnFile::new(WHAT, root, preference::path(policy))?,
            offered: preference::offered(root, policy),
        })
    }

    /// The preference that stands for a clock.
    fn name(&self, clock: KiloHertz) -> &'static str {
        let Clocks { slowest, fastest, .. } = self.clocks;
        let range = fastest.khz().saturating_sub(slowest.khz()).max(1);
        let below = fastest.khz().saturating_sub(clock.khz());
        // The steps between: the fastest name for the fastest clock alone, the last one for the
        // slowest alone, and the others in equal parts of the range. A guess.
        let last = self.offered.len().saturating_sub(1);
        let between = u64::try_from(last.saturating_sub(1)).unwrap_or(0);
        let step = match below {
            0 => 0,
            _ if clock <= slowest => last,
            _ => 1 + usize::try_from(below * between / range).unwrap_or(0),
        };
        self.offered.get(step.min(last)).copied().unwrap_or("default")
    }

    fn set(&mut self, journal: &mut Journal, wanted: Option<Wanted>) -> Result<(), Unavailable> {
        self.governor.check(journal.root())?;
        self.preference.check(journal.root())?;
        let name = wanted.map(|wanted| self.name(wanted.clock));
        self.preference.write(journal, name)?;
        self.preference.note(journal.root())
    }
}

impl Setting for Preferences {
    const NAME: &str = "preferences";

    /// What is wanted at least is wanted exactly: [`super::for_server`] leaves this back end out.
    fn set(&mut self, domain: usize, wanted: Option<Wanted>) -> Result<(), Unavailable> {
        let Self { journal, policies, .. } = self;
        policies.get_mut(domain).map_or(Ok(()), |policy| policy.set(journal, wanted))
    }

    fn give_back(self) -> Result<Report, JournalError> {
        self.journal.undo()
    }

    fn has(&self, domain: usize, place: &str) -> bool {
        self.policies.get(domain).is_some_and(|own| own.preference.path == place)
    }

    fn clock(&self, domain: usize) -> Option<ReadClock> {
        let (root, policy) = (self.root.clone(), self.policies.get(domain)?.policy.clone());
        Some(Box::new(move || cpufreq::clock(&root, &policy)))
    }
}

#[cfg(test)]
mod tests;
