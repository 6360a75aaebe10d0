//! What back ends share whose requests are for cores: which thread asks which core for what.
//!
//! A request counts for the cores that share the clock of the one that executes the thread when it
//! asks. If several threads ask them, the fastest clock is in force, as within a module of the
//! paper's processor (paper 002, section 2.1). The request of a thread that has moved is moved by
//! [`BackEnd::follow`], or with the thread's next request; then its old core is free of it.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dimmer_host::cpufreq::clocks::Clocks;
use dimmer_host::journal::{self, JournalError, Owner, Pending, Report};
use dimmer_host::root::Root;
use dimmer_host::unavailable::Unavailable;
use dimmer_processor::units::{CpuId, KiloHertz};

use super::{BackEnd, Refused, Thread};
use crate::{Request, machine};

/// What is done about a domain that something else has changed.
pub(crate) const LEFT_ALONE: &str = "Dimmer leaves these CPUs alone until the program starts again";
/// What gives a domain back that a process has left changed.
const RESTORE: &str = "as root: dimmer restore; then start the program again";

/// An error with its causes, in one line.
pub(crate) fn explain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// Why a domain is not to be touched: another journal has one of these places.
fn holder(held: &[Pending], is_of_domain: impl Fn(&str) -> bool) -> Option<Unavailable> {
    held.iter().find_map(|one| {
        let path = one.paths.iter().find(|place| is_of_domain(place))?.clone();
        let process = one.process;
        let (why, remedy) = match one.owner {
            Owner::Kept => (JournalError::Kept { path }, RESTORE),
            Owner::Gone => (JournalError::Busy { path, process }, RESTORE),
            Owner::Lives | Owner::Hidden => (JournalError::Busy { path, process }, LEFT_ALONE),
        };
        Some(Unavailable::new("requests of clocks", why.to_string(), remedy))
    })
}

/// CPUs that have their clock in common.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    pub(crate) cpus: Vec<CpuId>,
    pub(crate) clocks: Clocks,
}

/// What is asked of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) clock: KiloHertz,
    /// Whether the machine may choose a faster clock, as it may without a request.
    pub(crate) is_least: bool,
}

/// The request of a thread.
#[derive(Clone, Copy, Debug)]
struct Asked {
    domain: usize,
    wanted: Wanted,
    request: Request,
}

/// Reads a clock.
pub(crate) type ReadClock = Box<dyn FnOnce() -> Option<KiloHertz>>;

/// How the clock of a domain is set.
pub(crate) trait Setting: Debug + Send {
    /// The back end's name.
    const NAME: &str;

    /// Sets the clock of the domain with this index; `None` sets what it was at first.
    ///
    /// # Errors
    /// [`Unavailable`]: something else has changed the domain. It was left as it is.
    fn set(&mut self, domain: usize, wanted: Option<Wanted>) -> Result<(), Unavailable>;

    /// Makes all as it was, as dropping this value does.
    ///
    /// # Errors
    /// [`JournalError`]: what is on record cannot be undone.
    fn give_back(self) -> Result<Report, JournalError>;

    /// Whether a place of a journal ([`journal::Pending::paths`]) is one that this sets for the
    /// domain.
    fn has(&self, domain: usize, place: &str) -> bool;

    /// Reads the clock that the kernel reports of the domain, without the setting: that may take
    /// the kernel some milliseconds.
    fn clock(&self, domain: usize) -> Option<ReadClock>;
}

/// Requests for cores.
#[derive(Debug)]
pub(crate) struct Cores<S> {
    domains: Vec<Domain>,
    /// The process that may make requests: its children have copies of the journal.
    process: u32,
    /// `None` once requests have ended.
    state: Mutex<Option<State<S>>>,
}

#[derive(Debug)]
struct State<S> {
    setting: S,
    /// What each thread asks for.
    threads: BTreeMap<u32, Asked>,
    /// What is in force in each domain.
    in_force: Vec<Option<Wanted>>,
    /// Why a domain is left alone.
    lost: Vec<Option<Unavailable>>,
}

impl<S: Setting> Cores<S> {
    /// Domains that are on record in another journal are left alone from the start: what they hold
    /// now is not what they are to get back.
    pub(crate) fn new(root: &Root, domains: Vec<Domain>, setting: S) -> Self {
        let held = journal::pending(root);
        let lost =
            (0..domains.len()).map(|domain| holder(&held, |place| setting.has(domain, place)));
        let (in_force, lost) = (vec![None; domains.len()], lost.collect());
        let state = State { setting, threads: BTreeMap::new(), in_force, lost };
        Self { domains, process: std::process::id(), state: Mutex::new(Some(state)) }
    }

    fn domain(&self, cpu: CpuId) -> Option<(usize, &Domain)> {
        self.domains.iter().enumerate().find(|(_, domain)| domain.cpus.contains(&cpu))
    }

    /// `None` in a child of fork, where another thread may have had the lock.
    fn lock(&self) -> Option<MutexGuard<'_, Option<State<S>>>> {
        let is_own = self.process == std::process::id();
        is_own.then(|| self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes this the request of the thread.
    fn put(&self, thread: Thread, request: Option<Request>, is_least: bool) -> Result<(), Refused> {
        let mut guard = self.lock().ok_or(Refused::Unknown)?;
        let state = guard.as_mut().ok_or(Refused::Unknown)?;
        let asked = request.and_then(|request| self.asked(thread.cpu, request, is_least));
        let result = state.put(thread.id, asked);
        if request.is_some() && asked.is_none() {
            result.and(Err(Refused::Unknown))
        } else {
            result
        }
    }

    /// What this request means for the CPU; `None` if it does not say which clock.
    fn asked(&self, cpu: CpuId, request: Request, is_least: bool) -> Option<Asked> {
        let (domain, found) = self.domain(cpu)?;
        let wanted = Wanted { clock: request.clock(&found.clocks)?, is_least };
        Some(Asked { domain, wanted, request })
    }
}

impl<S: Setting> State<S> {
    /// Makes this the request of the thread with this number. What is wrong with the domain that
    /// the thread leaves is reported: the request itself is not concerned.
    fn put(&mut self, thread: u32, asked: Option<Asked>) -> Result<(), Refused> {
        let before = match asked {
            Some(asked) => self.threads.insert(thread, asked),
            None => self.threads.remove(&thread),
        };
        let domain = asked.map(|asked| asked.domain);
        let left = before.map(|before| before.domain).filter(|left| Some(*left) != domain);
        let of_left = left.map_or(Ok(()), |left| self.update(left));
        let Some(domain) = domain else { return of_left };
        if let Err(Refused::Lost(trouble)) = of_left {
            machine::report(trouble);
        }
        let result = self.update(domain);
        if result.is_err() {
            self.threads.remove(&thread);
        }
        result
    }

    /// Puts the fastest clock in force that threads ask of this domain.
    fn update(&mut self, domain: usize) -> Result<(), Refused> {
        if let Some(Some(lost)) = self.lost.get(domain) {
            return Err(Refused::Lost(lost.clone()));
        }
        let asked = self.threads.values().filter(|asked| asked.domain == domain);
        let fastest = asked.map(|asked| asked.wanted).reduce(|one, other| Wanted {
            clock: one.clock.max(other.clock),
            is_least: one.is_least || other.is_least,
        });
        let Some(in_force) = self.in_force.get_mut(domain) else { return Err(Refused::Unknown) };
        if *in_force == fastest {
            return Ok(());
        }
        *in_force = fastest;
        self.setting.set(domain, fastest).map_err(|lost| {
            if let Some(known) = self.lost.get_mut(domain) {
                *known = Some(lost.clone());
            }
            Refused::Lost(lost)
        })
    }
}

impl<S: Setting> BackEnd for Cores<S> {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn follows_threads(&self) -> bool {
        false
    }

    fn request(&self, thread: Thread, request: Option<Request>) -> Result<(), Refused> {
        self.put(thread, request, false)
    }

    fn at_least_for(&self, thread: Thread, request: Request) -> Result<(), Refused> {
        self.put(thread, Some(request), true)
    }

    fn is_for(&self, thread: Thread) -> Option<bool> {
        let guard = self.lock()?;
        let asked = guard.as_ref()?.threads.get(&thread.id)?;
        Some(self.domains.get(asked.domain)?.cpus.contains(&thread.cpu))
    }

    fn follow(&self, thread: Thread) -> Result<(), Refused> {
        let mut guard = self.lock().ok_or(Refused::Unknown)?;
        let state = guard.as_mut().ok_or(Refused::Unknown)?;
        let Some(before) = state.threads.get(&thread.id).copied() else { return Ok(()) };
        let asked = self.asked(thread.cpu, before.request, before.wanted.is_least);
        let result = state.put(thread.id, asked);
        if let (Err(_), Some(asked)) = (&result, asked) {
            // The core is left alone. The request stays for the next one that the thread moves to.
            state.threads.insert(thread.id, asked);
        }
        result
    }

    fn domain_of(&self, cpu: CpuId) -> Vec<CpuId> {
        self.domain(cpu).map_or_else(|| vec![cpu], |(_, domain)| domain.cpus.clone())
    }

    fn clocks(&self, cpu: CpuId) -> Option<Clocks> {
        self.domain(cpu).map(|(_, domain)| domain.clocks)
    }

    fn clock(&self, cpu: CpuId) -> Option<KiloHertz> {
        let (domain, _) = self.domain(cpu)?;
        let read = self.lock()?.as_ref()?.setting.clock(domain)?;
        // Other threads may make requests meanwhile.
        read()
    }

    fn end(&self) -> Result<Report, JournalError> {
        let state = self.lock().and_then(|mut state| state.take());
        state.map_or_else(|| Ok(Report::default()), |state| state.setting.give_back())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refuses one domain, and notes the clocks of the others.
    #[derive(Debug)]
    struct Noted(Vec<Option<KiloHertz>>);

    impl Setting for Noted {
        const NAME: &str = "noted";

        fn set(&mut self, domain: usize, wanted: Option<Wanted>) -> Result<(), Unavailable> {
            if domain == 0 && wanted.is_none() {
                return Err(Unavailable::new("clocks", "changed", "none"));
            }
            self.0[domain] = wanted.map(|wanted| wanted.clock);
            Ok(())
        }

        fn give_back(self) -> Result<Report, JournalError> {
            Ok(Report::default())
        }

        fn has(&self, _: usize, _: &str) -> bool {
            false
        }

        fn clock(&self, _: usize) -> Option<ReadClock> {
            None
        }
    }

    #[test]
    fn a_request_leaves_a_lost_core_and_is_refused_there() {
        let [slowest, base, fastest] = [1000, 2000, 3000].map(KiloHertz::from_mhz);
        let clocks = Clocks { slowest, base: Some(base), fastest };
        let domains = [0, 1].map(|cpu| Domain { cpus: vec![CpuId::new(cpu)], clocks });
        let directory = tempfile::tempdir().expect("a directory");
        let root = Root::new(directory.path());
        let cores = Cores::new(&root, domains.to_vec(), Noted(vec![None; 2]));
        let on = |cpu| Thread { id: 7, cpu: CpuId::new(cpu) };
        let asked = |cpu| cores.request(on(cpu), Some(Request::TURBO));
        let clocks = || {
            let state = cores.lock().expect("the same process");
            state.as_ref().expect("not ended").setting.0.clone()
        };
        assert_eq!(asked(0), Ok(()));
        // The core that it leaves is lost, the one that it comes to is not.
        assert_eq!((asked(1), clocks()), (Ok(()), vec![Some(fastest); 2]));
        assert!(machine::trouble().is_some());
        // It cannot come back.
        assert!(matches!(asked(0), Err(Refused::Lost(_))));
        assert_eq!((clocks(), cores.is_for(on(0))), (vec![Some(fastest), None], None));
        // Nor follow the thread there, but the request stays for the next core.
        assert_eq!(asked(1), Ok(()));
        assert!(matches!(cores.follow(on(0)), Err(Refused::Lost(_))));
        assert_eq!((cores.follow(on(1)), clocks()), (Ok(()), vec![Some(fastest); 2]));
    }
}
