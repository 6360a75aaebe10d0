//! Requests of performance levels by registers ([`dimmer_host::pstate::levels`]): HWP and CPPC, for
//! machines on which the processor chooses its P-states, and no driver for cpufreq asks it.
//!
//! Each CPU makes its own request; SMT siblings run at the faster one of theirs.

use dimmer_host::cpufreq::clocks::Clocks;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::journal::{Journal, JournalError, Report};
use dimmer_host::msr;
use dimmer_host::pstate::levels::{Interface, Levels, check};
use dimmer_host::pstate::{Part, Pstates};
use dimmer_host::root::Root;
use dimmer_host::unavailable::Unavailable;

use super::cores::{Cores, Domain, LEFT_ALONE, ReadClock, Setting, Wanted, explain};

/// The back end of this machine. First undoes what a process has left that was killed.
///
/// # Errors
/// [`Unavailable`].
pub(crate) fn open(root: &Root) -> Result<Cores<Registers>, Unavailable> {
    let cpuid =
        Cpuid::of(root).map_err(|error| unavailable(explain(&error), "correct /cpuid.txt"))?;
    check(root, &cpuid)?;
    let (journal, _) = Journal::open(root)
        .map_err(|error| unavailable(explain(&error), "run `dimmer restore` as root"))?;
    let levels = check(root, &cpuid)?;
    let domain = |levels: &Levels| {
        let clocks = Clocks {
            slowest: levels.clock(levels.lowest),
            base: Some(levels.clock(levels.base)),
            fastest: levels.clock(levels.highest),
        };
        Domain { cpus: vec![levels.cpu], clocks }
    };
    let domains = levels.iter().map(domain).collect();
    let own = |levels: Levels| {
        let before = levels.requested(root)?;
        Ok(Own { levels, before, left: before })
    };
    let cpus = levels.into_iter().map(own).collect::<Result<_, Unavailable>>()?;
    Ok(Cores::new(root, domains, Registers { root: root.clone(), journal, cpuid, cpus }))
}

fn unavailable(why: String, remedy: &str) -> Unavailable {
    Unavailable::new("requests of performance levels", why, remedy)
}

/// The registers of all CPUs.
#[derive(Debug)]
pub(crate) struct Registers {
    root: Root,
    /// Undoes all changes when it is dropped.
    journal: Journal,
    cpuid: Cpuid,
    cpus: Vec<Own>,
}

/// A CPU, what it requested at first, and what this back end left.
#[derive(Debug)]
struct Own {
    levels: Levels,
    before: u64,
    left: u64,
}

impl Setting for Registers {
    const NAME: &str = "performance levels";

    fn set(&mut self, domain: usize, wanted: Option<Wanted>) -> Result<(), Unavailable> {
        let Some(own) = self.cpus.get_mut(domain) else { return Ok(()) };
        let Own { levels, before, left } = *own;
        let found = levels.requested(&self.root)?;
        if found != left {
            let why = format!("CPU {} requested {left:#x} and now requests {found:#x}", levels.cpu);
            return Err(unavailable(why, LEFT_ALONE));
        }
        let put = match wanted {
            Some(Wanted { clock, is_least: false }) => {
                levels.request(&mut self.journal, levels.level(clock))
            }
            Some(Wanted { clock, is_least: true }) => {
                levels.request_at_least(&mut self.journal, levels.level(clock), before)
            }
            None => levels.put(&mut self.journal, before),
        };
        put.map_err(|error| unavailable(explain(&error), LEFT_ALONE))?;
        own.left = levels.requested(&self.root)?;
        Ok(())
    }

    fn give_back(self) -> Result<Report, JournalError> {
        self.journal.undo()
    }

    fn has(&self, domain: usize, place: &str) -> bool {
        let is_of = |own: &Own| {
            let path = msr::path(&self.root, own.levels.cpu);
            msr::place(&path, own.levels.interface.request_register()) == place
        };
        self.cpus.get(domain).is_some_and(is_of)
    }

    fn clock(&self, domain: usize) -> Option<ReadClock> {
        let Levels { cpu, interface, .. } = self.cpus.get(domain)?.levels;
        let (root, cpuid) = (self.root.clone(), self.cpuid.clone());
        Some(Box::new(move || {
            // AMD's registers have no clock of a core that is not in a P-state.
            let now = Pstates::read_cpu(&root, &cpuid, cpu).ok()?;
            let has_clock = interface == Interface::Hwp && matches!(now.part, Part::Intel { .. });
            has_clock.then(|| now.part.clock(now.cpus.first()?.current)).flatten()
        }))
    }
}

#[cfg(test)]
mod tests;
