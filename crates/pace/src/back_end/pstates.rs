//! Requests of P-states by registers ([`dimmer_host::pstate`]): paper 002's own way, for machines
//! on which the kernel has no driver for cpufreq, which would write the same registers.
//!
//! A clock is the slowest P-state that is at least as fast. Each CPU makes its own request; SMT
//! siblings and cores of a module run at the faster one of theirs (paper 002, section 2).

use dimmer_host::cpufreq::clocks::Clocks;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::journal::{Journal, JournalError, Report};
use dimmer_host::msr;
use dimmer_host::pstate::{self, CpuState, Part, Pstates, SetError};
use dimmer_host::root::Root;
use dimmer_host::unavailable::Unavailable;
use dimmer_processor::units::{CpuId, KiloHertz};

use super::cores::{Cores, Domain, LEFT_ALONE, ReadClock, Setting, Wanted, explain};

/// The back end of this machine. First undoes what a process has left that was killed.
///
/// # Errors
/// [`Unavailable`].
pub(crate) fn open(root: &Root) -> Result<Cores<Registers>, Unavailable> {
    let cpuid =
        Cpuid::of(root).map_err(|error| unavailable(explain(&error), "correct /cpuid.txt"))?;
    pstate::check_requests(root, &Pstates::read(root, &cpuid)?)?;
    let (journal, _) = Journal::open(root)
        .map_err(|error| unavailable(explain(&error), "run `dimmer restore` as root"))?;
    let Pstates { part, cpus, .. } = Pstates::read(root, &cpuid)?;
    let clock = |number| {
        let missing = || unavailable(format!("P{number} is not in use"), "restart the machine");
        part.clock(number).ok_or_else(missing)
    };
    let clocks = Clocks {
        slowest: clock(part.slowest())?,
        base: Some(clock(part.base())?),
        fastest: clock(part.fastest())?,
    };
    let domains = cpus.iter().map(|state| Domain { cpus: vec![state.cpu], clocks }).collect();
    let own =
        |CpuState { cpu, requested, .. }: CpuState| Own { cpu, before: requested, left: requested };
    let cpus = cpus.into_iter().map(own).collect();
    Ok(Cores::new(root, domains, Registers { root: root.clone(), journal, cpuid, part, cpus }))
}

fn unavailable(why: String, remedy: &str) -> Unavailable {
    Unavailable::new("requests of P-states", why, remedy)
}

/// The registers of all CPUs.
#[derive(Debug)]
pub(crate) struct Registers {
    root: Root,
    /// Undoes all changes when it is dropped.
    journal: Journal,
    cpuid: Cpuid,
    part: Part,
    cpus: Vec<Own>,
}

/// A CPU, the P-state that it requested at first, and the one that this back end left.
#[derive(Debug)]
struct Own {
    cpu: CpuId,
    before: u8,
    left: u8,
}

/// The slowest P-state that is at least this fast. Intel's numbers rise with the clock, AMD's fall.
fn number(part: &Part, clock: KiloHertz) -> u8 {
    let (slowest, fastest) = (part.slowest(), part.fastest());
    let numbers = slowest.min(fastest)..=slowest.max(fastest);
    let fast = numbers.filter_map(|number| Some((part.clock(number)?, number)));
    let slowest = fast.filter(|(found, _)| *found >= clock).min();
    slowest.map_or(fastest, |(_, number)| number)
}

impl Setting for Registers {
    const NAME: &str = "P-states";

    fn set(&mut self, domain: usize, wanted: Option<Wanted>) -> Result<(), Unavailable> {
        let Some(own) = self.cpus.get_mut(domain) else { return Ok(()) };
        let Own { cpu, before, left } = *own;
        let found = self.part.requested(&self.root, cpu)?;
        if found != left {
            let why = format!("CPU {cpu} requested P{left} and now requests P{found}");
            return Err(unavailable(why, LEFT_ALONE));
        }
        let wanted = wanted.map_or(before, |Wanted { clock, is_least }| {
            // A P-state that is not in use has no clock: it is left.
            let without = self.part.clock(before);
            let is_as_fast = without.is_none_or(|without| without >= clock);
            if is_least && is_as_fast { before } else { number(&self.part, clock) }
        });
        match pstate::request(&mut self.journal, &self.part, cpu, wanted) {
            Ok(()) | Err(SetError::Journal(JournalError::NotTaken { .. })) => {}
            Err(error) => return Err(unavailable(explain(&error), LEFT_ALONE)),
        }
        own.left = self.part.requested(&self.root, cpu)?;
        Ok(())
    }

    fn give_back(self) -> Result<Report, JournalError> {
        self.journal.undo()
    }

    fn has(&self, domain: usize, place: &str) -> bool {
        let is_of = |own: &Own| {
            msr::place(&msr::path(&self.root, own.cpu), self.part.request_register()) == place
        };
        self.cpus.get(domain).is_some_and(is_of)
    }

    fn clock(&self, domain: usize) -> Option<ReadClock> {
        let cpu = self.cpus.get(domain)?.cpu;
        let (root, cpuid, part) = (self.root.clone(), self.cpuid.clone(), self.part.clone());
        Some(Box::new(move || {
            let now = Pstates::read_cpu(&root, &cpuid, cpu).ok()?;
            part.clock(now.cpus.first()?.current)
        }))
    }
}

#[cfg(test)]
mod tests;
