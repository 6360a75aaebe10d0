//! Requests of P-states by the kernel's module `dimmer_pstate`: as by registers (`pstates`), but
//! without rights to all registers, and undone by the kernel when the process ends, however it
//! ends.
//!
//! A clock is the slowest allowed P-state that is at least as fast.

use dimmer_host::cpufreq::clocks::Clocks;
use dimmer_host::journal::{JournalError, Report};
use dimmer_host::pstate::driver::Driver;
use dimmer_host::root::Root;
use dimmer_host::topology;
use dimmer_host::unavailable::Unavailable;
use dimmer_processor::units::CpuId;
use rustix::io::Errno;

use super::cores::{Cores, Domain, LEFT_ALONE, ReadClock, Setting, Wanted};

/// The back end of this machine.
///
/// # Errors
/// [`Unavailable`].
pub(crate) fn open(root: &Root) -> Result<Cores<Module>, Unavailable> {
    let driver = Driver::open(root)?;
    let online = topology::online(root)
        .map_err(|error| unavailable(error.to_string(), "mount /proc and /sys"))?;
    let (Some((slowest, _)), Some((fastest, _))) =
        (driver.states().first(), driver.states().last())
    else {
        return Err(unavailable("it allows no P-state".to_owned(), "load it with others"));
    };
    let clocks = Clocks { slowest: *slowest, base: driver.base(), fastest: *fastest };
    let domains = online.iter().map(|cpu| Domain { cpus: vec![*cpu], clocks }).collect();
    let cpus = online.into_iter().map(|cpu| Own { cpu, has_request: false }).collect();
    Ok(Cores::new(root, domains, Module { driver, cpus }))
}

fn unavailable(why: String, remedy: &str) -> Unavailable {
    Unavailable::new("requests of P-states by the module dimmer_pstate", why, remedy)
}

/// The module's file.
#[derive(Debug)]
pub(crate) struct Module {
    driver: Driver,
    cpus: Vec<Own>,
}

/// A CPU, and whether this back end has a request there. The module lets no other program make one
/// meanwhile.
#[derive(Debug)]
struct Own {
    cpu: CpuId,
    has_request: bool,
}

impl Drop for Module {
    /// A child of fork may have the file open, which the module waits for.
    fn drop(&mut self) {
        for own in self.cpus.iter().filter(|own| own.has_request) {
            let _ = self.driver.request(own.cpu, None);
        }
    }
}

impl Setting for Module {
    const NAME: &str = "dimmer_pstate";

    /// What the CPU requests without this back end is not known here, so what is wanted at least is
    /// wanted exactly: [`super::for_server`] leaves this back end out.
    fn set(&mut self, domain: usize, wanted: Option<Wanted>) -> Result<(), Unavailable> {
        let Some(own) = self.cpus.get_mut(domain) else { return Ok(()) };
        let cpu = own.cpu;
        let state = wanted.and_then(|Wanted { clock, .. }| {
            let states = self.driver.states();
            states.iter().find(|(own, _)| *own >= clock).or(states.last()).map(|(_, state)| *state)
        });
        match self.driver.request(cpu, state) {
            Ok(()) => own.has_request = state.is_some(),
            // The CPU is offline: the module has taken the request back, and no thread runs there.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => {
                own.has_request = false;
            }
            Err(error) => return Err(unavailable(format!("CPU {cpu}: {error}"), LEFT_ALONE)),
        }
        Ok(())
    }

    fn give_back(self) -> Result<Report, JournalError> {
        // What the module does not take back now, it does when the process ends.
        drop(self);
        Ok(Report::default())
    }

    /// The kernel keeps requests of processes apart; no journal has them.
    fn has(&self, _domain: usize, _place: &str) -> bool {
        false
    }

    /// Which P-state is in force does not say at which clock the core runs.
    fn clock(&self, _domain: usize) -> Option<ReadClock> {
        None
    }
}
