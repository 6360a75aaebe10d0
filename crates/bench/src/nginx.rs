//! Measures a stock web server with TLS under load: CPU time of its worker per request.
//!
//! It follows paper 001, §6.3, and the measurement by Krasnov that the paper repeats:
//! ChaCha20-Poly1305, which OpenSSL runs with the widest vectors there are, beside compression,
//! which is scalar code. This experiment is smaller: one worker and one thread of load, gzip alone,
//! some seconds.

mod load;
mod server;
mod site;
mod tools;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use dimmer_host::affinity::{self, Pinned};
use dimmer_host::interrupt::Interrupt;
use dimmer_host::root::Root;
use dimmer_host::topology;
use dimmer_processor::units::CpuId;

use crate::BenchError;
use crate::process::Process;
use server::Server;
use site::Site;

pub use load::{CONNECTIONS, Load};
pub use site::{DOCUMENT_BYTES, Tls};
pub use tools::Tools;

/// Load before each measured one: connections are made, caches filled, and hooks installed.
const WARM_UP_SECONDS: u32 = 1;

/// Load after each measured one. Its answers are compared with the document.
const CHECK_SECONDS: u32 = 1;

/// The CPU of each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    /// The worker's CPU, for it alone.
    pub server: CpuId,
    /// The CPU of the load and of everything else.
    pub load: CpuId,
    /// Whether both are hardware threads of one core, and so slow each other down.
    pub same_core: bool,
    /// The CPU to which calls of the server are moved: a third one, or if there is none, the
    /// load's.
    pub away: CpuId,
}

impl Cpus {
    /// Chooses two of the CPUs that this process may run on. The server has the last one, which
    /// interrupts visit least. The load has the first one of another core.
    ///
    /// # Errors
    /// [`BenchError::OneCpu`]; [`BenchError::Affinity`] if the kernel does not report these CPUs.
    pub fn choose(root: &Root) -> Result<Self, BenchError> {
        let allowed = affinity::allowed()?;
        let siblings = |cpu| topology::read(root).map(|found| found.siblings(cpu));
        let siblings = |cpu| siblings(cpu).unwrap_or_default();
        Self::of(&allowed, siblings).ok_or(BenchError::OneCpu { allowed: allowed.len() })
    }

    fn of(allowed: &[CpuId], siblings: impl Fn(CpuId) -> Vec<CpuId>) -> Option<Self> {
        let (server, others) = allowed.split_last()?;
        let siblings = siblings(*server);
        let other_core = others.iter().find(|cpu| !siblings.contains(cpu));
        let load = other_core.or(others.first())?;
        let third = others.iter().rev().find(|cpu| *cpu != load && !siblings.contains(cpu));
        let away = *third.unwrap_or(load);
        Some(Self { server: *server, load: *load, same_core: other_core.is_none(), away })
    }
}

/// One way in one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// The results of the load.
    pub load: Load,
    /// The worker's time on its CPU during the load.
    pub on_cpu: Duration,
}

impl Run {
    /// The worker's time on its CPU per request, in microseconds; not finite without requests.
    #[must_use]
    pub fn cpu_us_per_request(&self) -> f64 {
        self.on_cpu.as_secs_f64() * 1e6 / self.load.requests as f64
    }

    /// The part of the time that the worker was on its CPU; not finite without requests.
    #[must_use]
    pub fn busy_ratio(&self) -> f64 {
        self.on_cpu.as_secs_f64() * self.load.requests_per_s / self.load.requests as f64
    }
}

/// Everything that the runs share. Dropping it removes the directory and unpins the thread.
#[derive(Debug)]
pub struct Experiment {
    tools: Tools,
    cpus: Cpus,
    site: Site,
    _pinned: Pinned,
}

impl Experiment {
    /// Makes the site, and pins the calling thread to the load's CPU, and with it everything that
    /// the thread will start. The server pins its worker itself.
    ///
    /// # Errors
    /// [`BenchError`]; nothing is left behind then.
    pub fn prepare(root: &Root, tools: Tools, cpus: Cpus, tls: Tls) -> Result<Self, BenchError> {
        let site = Site::make(&tools, cpus.server, tls)?;
        let _pinned = affinity::pin(root, cpus.load)?;
        Ok(Self { tools, cpus, site, _pinned })
    }

    /// A directory that lives as long as this experiment.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.site.directory()
    }

    /// The CPU of each side.
    #[must_use]
    pub fn cpus(&self) -> Cpus {
        self.cpus
    }

    /// Starts the server with the command `prefix` before its own, loads it for `seconds`, and ends
    /// it as a service manager would, so that the prefix's command has ended when this returns.
    ///
    /// # Errors
    /// [`BenchError`]; the server has ended then, too.
    pub fn run(
        &self,
        prefix: &[OsString],
        seconds: u32,
        interrupt: &Interrupt,
    ) -> Result<Run, BenchError> {
        let root = Root::live();
        let server = Server::start(&root, &self.tools, &self.site, prefix, interrupt)?;
        let url = self.site.url();
        let load = |seconds| load::run(&self.tools, &url, seconds, None, interrupt);
        load(WARM_UP_SECONDS)?;
        let before = server.worker(&root)?;
        let seen = load(seconds)?;
        let after = server.worker(&root)?;
        let check = self.site.check()?;
        let checked = load::run(&self.tools, &url, CHECK_SECONDS, Some(&check), interrupt)?;
        let seen = Load { checked: checked.checked, wrong: checked.wrong, ..seen };
        server.end(interrupt)?;
        Ok(Run { load: seen, on_cpu: between(&before, &after) })
    }
}

fn between(before: &Process, after: &Process) -> Duration {
    after.time_on_cpus().saturating_sub(before.time_on_cpus())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(allowed: &[u32], siblings: &[u32], expected: Option<(u32, u32, bool, u32)>) {
        let ids = |numbers: &[u32]| numbers.iter().copied().map(CpuId::new).collect::<Vec<_>>();
        let expected = expected.map(|(server, load, same_core, away)| Cpus {
            server: CpuId::new(server),
            load: CpuId::new(load),
            same_core,
            away: CpuId::new(away),
        });
        assert_eq!(Cpus::of(&ids(allowed), |_| ids(siblings)), expected);
    }

    #[test]
    fn load_is_on_another_core_where_there_is_one() {
        check(&[0, 1, 2, 3], &[2], Some((3, 0, false, 1)));
        check(&[2, 3, 5], &[2], Some((5, 3, false, 3)));
        check(&[2, 3], &[2], Some((3, 2, true, 2)));
        check(&[7], &[], None);
        check(&[], &[], None);
    }

    #[test]
    fn time_is_divided_by_requests() {
        let load = Load { requests: 20_000, requests_per_s: 4000.0, ..Load::default() };
        let run = Run { load, on_cpu: Duration::from_secs(4) };
        assert!((run.cpu_us_per_request() - 200.0).abs() < 1e-9);
        assert!((run.busy_ratio() - 0.8).abs() < 1e-9);
    }
}
