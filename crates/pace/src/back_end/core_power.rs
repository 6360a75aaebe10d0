//! Requests by the classes of Intel Speed Select core power ([`dimmer_host::core_power`]).
//!
//! A request puts the thread's core into a class. When power is short, the cores of the first
//! classes get it first.
//!
//! There are four classes in each power domain, so a request is for the slowest class that is as
//! fast. Nothing is changed before the first request for a core of the domain. From then on until
//! the process ends, the domain's classes are those of [`Limits::classes`], and its cores without a
//! request are in [`ORDINARY`]. Before every change, the domain's switch and classes and the class
//! of the core must be as this back end left them; before the first one, the classes of all cores.
//! CPUs that are not online when the back end is opened keep their core's class.

use dimmer_host::core_power::{self, CLASSES, Class, DEVICE, DomainId, Place, State};
use dimmer_host::cpufreq::clocks::Clocks;
use dimmer_host::cpufreq::{self, POLICIES, Policy};
use dimmer_host::journal::{Journal, JournalError, Report};
use dimmer_host::root::Root;
use dimmer_host::unavailable::Unavailable;
use dimmer_processor::units::{CpuId, KiloHertz};

use super::cores::{Cores, Domain, LEFT_ALONE, ReadClock, Setting, Wanted, explain};

/// The class of requests for more than the base clock.
const FAST: u8 = 0;
/// The class of cores without a request.
const ORDINARY: u8 = 1;
/// The class of requests for more than the slowest clock, up to the base clock.
const BASE: u8 = 2;
/// The class of requests for the slowest clock.
const SLOW: u8 = 3;

/// On, and a class comes before all with a higher number.
const ORDERED: State = State { is_on: true, is_ordered: true };

/// The back end of this machine. First undoes what a process has left that was killed.
///
/// # Errors
/// [`Unavailable`].
pub(crate) fn open(root: &Root) -> Result<Cores<Classes>, Unavailable> {
    core_power::read(root)?;
    let (journal, _) = Journal::open(root)
        .map_err(|error| unavailable(explain(&error), "run `dimmer restore` as root"))?;
    let found = core_power::read(root)?;
    core_power::check(root, &found)?;
    let policies: Vec<(Policy, Clocks)> = cpufreq::policies(root)
        .into_iter()
        .filter_map(|policy| Clocks::of(root, &policy).map(|clocks| (policy, clocks)))
        .collect();
    let (mut cores, mut domains, mut shared) = (Vec::new(), Vec::new(), Vec::new());
    for (power, found) in found.into_iter().enumerate() {
        let first = domains.len();
        for core in found.cores {
            let (policy, clocks) = policy_of(&policies, &core.cpus)?;
            let place = Place::Core(found.id, core.number);
            let (fastest, left) = (clocks.fastest, core.class.into());
            cores.push(Own { place, power, policy, fastest, left });
            domains.push(Domain { cpus: core.cpus, clocks });
        }
        let limits = Limits::of(domains.get(first..).unwrap_or_default());
        shared.push(Power {
            id: found.id,
            is_ready: false,
            lost: None,
            limits,
            state: found.state.word(),
            feature: found.feature.map(u64::from),
            classes: found.classes,
        });
    }
    Ok(Cores::new(root, domains, Classes { root: root.clone(), journal, cores, shared }))
}

fn unavailable(why: String, remedy: &str) -> Unavailable {
    Unavailable::new("requests by Intel Speed Select core power", why, remedy)
}

/// The policy that has the clocks of a core.
fn policy_of(
    policies: &[(Policy, Clocks)],
    cpus: &[CpuId],
) -> Result<(Policy, Clocks), Unavailable> {
    let of_core =
        |(policy, _): &&(Policy, Clocks)| policy.cpus.iter().any(|cpu| cpus.contains(cpu));
    policies.iter().find(of_core).cloned().ok_or_else(|| {
        let cpus: Vec<String> = cpus.iter().map(ToString::to_string).collect();
        let why =
            format!("no policy under {POLICIES} has the clocks of CPU {}", cpus.join(" and "));
        unavailable(why, "use a driver for cpufreq, such as intel_pstate")
    })
}

/// The highest clocks of two classes: those of the core whose clocks are the highest.
#[derive(Clone, Copy, Debug)]
struct Limits {
    slow: KiloHertz,
    /// `None` if the kernel does not report the base of each core.
    base: Option<KiloHertz>,
}

impl Limits {
    fn of(cores: &[Domain]) -> Self {
        let clocks = || cores.iter().map(|core| core.clocks);
        let slow = clocks().map(|clocks| clocks.slowest).max();
        let bases: Option<Vec<KiloHertz>> = clocks().map(|clocks| clocks.base).collect();
        Self {
            slow: slow.unwrap_or(KiloHertz::from_khz(0)),
            base: bases.and_then(|bases| bases.into_iter().max()),
        }
    }

    /// What the classes mean, by number. Without a base clock, [`BASE`] has no request.
    fn classes(self) -> [Class; CLASSES as usize] {
        let base = self.base.map_or(0, Class::ratio);
        let any = Class { weight: 0, min: 0, max: Class::ANY };
        let mut classes = [any; CLASSES as usize];
        for (class, number) in classes.iter_mut().zip(0..) {
            match number {
                FAST => class.min = base,
                BASE if base > 0 => (class.min, class.max) = (base, base),
                SLOW => class.max = Class::ratio(self.slow),
                _ => {}
            }
        }
        classes
    }

    /// The class of a request for a clock, on a core whose fastest clock is this.
    fn class(self, clock: KiloHertz, fastest: KiloHertz) -> u8 {
        match self.base {
            _ if clock >= fastest => FAST,
            _ if clock <= self.slow => SLOW,
            Some(base) if clock <= base => BASE,
            _ => FAST,
        }
    }
}

/// The classes of all power domains.
#[derive(Debug)]
pub(crate) struct Classes {
    root: Root,
    /// Undoes all changes when it is dropped.
    journal: Journal,
    cores: Vec<Own>,
    shared: Vec<Power>,
}

/// A core and the class in which this back end left it.
#[derive(Debug)]
struct Own {
    place: Place,
    /// Its power domain, by index.
    power: usize,
    policy: Policy,
    fastest: KiloHertz,
    left: u64,
}

/// A power domain as this back end left it.
#[derive(Debug)]
struct Power {
    id: DomainId,
    /// Whether its classes are those of requests.
    is_ready: bool,
    /// Why the whole domain is left alone.
    lost: Option<Unavailable>,
    limits: Limits,
    state: u64,
    /// `None` with TPMI.
    feature: Option<u64>,
    classes: [u64; CLASSES as usize],
}

impl Power {
    /// Its places with what they were left at.
    fn left(&self) -> impl Iterator<Item = (Place, u64)> {
        let classes = (0..).zip(self.classes);
        let classes = classes.map(|(number, word)| (Place::Class(self.id, number), word));
        let feature = self.feature.map(|word| (Place::Feature(self.id), word));
        feature.into_iter().chain([(Place::State(self.id), self.state)]).chain(classes)
    }

    /// Checks that it is as it was left.
    fn check(&self, root: &Root) -> Result<(), Unavailable> {
        match &self.lost {
            Some(lost) => Err(lost.clone()),
            None => check(root, self.left().collect()),
        }
    }
}

/// Checks that places hold what they were left at.
fn check(root: &Root, left: Vec<(Place, u64)>) -> Result<(), Unavailable> {
    let changed = core_power::changed(root, left.iter().copied());
    let changed = changed.map_err(|error| unavailable(explain(&error), LEFT_ALONE))?;
    let Some((place, found)) = changed else { return Ok(()) };
    let before = left.iter().find(|(known, _)| *known == place).map_or(0, |(_, word)| *word);
    let why = format!("{} held {before:#x} and now holds {found:#x}", place.name());
    Err(unavailable(why, LEFT_ALONE))
}

impl Classes {
    fn put(&mut self, place: Place, word: u64) -> Result<(), Unavailable> {
        let put = self.journal.change_core_power(place, word);
        put.map_err(|error| unavailable(explain(&error), LEFT_ALONE))
    }

    /// Switches the feature on that classes need before TPMI. Some processors refuse that or
    /// ignore it, and have classes all the same: as for Intel's tool (`isst_pm_qos_config` in
    /// `isst-core.c`), [`Place::State`] decides. Returns what the switch holds then.
    fn put_feature(&mut self, id: DomainId) -> Result<u64, Unavailable> {
        let place = Place::Feature(id);
        match self.journal.change_core_power(place, 1) {
            Ok(()) => return Ok(1),
            Err(JournalError::Change(_) | JournalError::NotTaken { .. }) => {}
            Err(error) => return Err(unavailable(explain(&error), LEFT_ALONE)),
        }
        let found = core_power::changed(&self.root, [(place, 1)]);
        let found = found.map_err(|error| unavailable(explain(&error), LEFT_ALONE))?;
        Ok(found.map_or(1, |(_, found)| found))
    }

    /// Gives the classes of a power domain their meaning, puts its cores into [`ORDINARY`], and
    /// switches it on.
    fn prepare(&mut self, power: usize) -> Result<(), Unavailable> {
        let Some(domain) = self.shared.get(power) else { return Ok(()) };
        let (id, has_feature) = (domain.id, domain.feature.is_some());
        let classes = domain.limits.classes().map(Class::word);
        let cores = self.cores.iter().filter(|own| own.power == power);
        let cores: Vec<(Place, u64)> = cores.map(|own| (own.place, own.left)).collect();
        check(&self.root, cores.clone())?;
        for (number, word) in (0..).zip(classes) {
            self.put(Place::Class(id, number), word)?;
        }
        for (place, _) in cores {
            self.put(place, ORDINARY.into())?;
        }
        let feature = if has_feature { Some(self.put_feature(id)?) } else { None };
        self.put(Place::State(id), ORDERED.word())?;
        for own in self.cores.iter_mut().filter(|own| own.power == power) {
            own.left = ORDINARY.into();
        }
        if let Some(domain) = self.shared.get_mut(power) {
            (domain.is_ready, domain.state, domain.classes) = (true, ORDERED.word(), classes);
            domain.feature = feature;
        }
        Ok(())
    }
}

impl Setting for Classes {
    const NAME: &str = "core power";

    /// What is wanted at least is wanted exactly: [`super::for_server`] leaves this back end out.
    fn set(&mut self, domain: usize, wanted: Option<Wanted>) -> Result<(), Unavailable> {
        let Some(own) = self.cores.get(domain) else { return Ok(()) };
        let Some(power) = self.shared.get(own.power) else { return Ok(()) };
        let (place, index, left) = (own.place, own.power, own.left);
        let class = wanted.map_or(ORDINARY, |wanted| power.limits.class(wanted.clock, own.fastest));
        let mut ready = power.check(&self.root);
        if ready.is_ok() && !power.is_ready {
            ready = self.prepare(index);
        } else if ready.is_ok() {
            check(&self.root, vec![(place, left)])?;
        }
        if let (Err(lost), Some(power)) = (&ready, self.shared.get_mut(index)) {
            power.lost = Some(lost.clone());
        }
        ready?;
        self.put(place, class.into())?;
        if let Some(own) = self.cores.get_mut(domain) {
            own.left = class.into();
        }
        Ok(())
    }

    fn give_back(self) -> Result<Report, JournalError> {
        self.journal.undo()
    }

    /// All: a power domain that another process has changed has its classes, whichever the core.
    fn has(&self, _domain: usize, place: &str) -> bool {
        place.starts_with(DEVICE)
    }

    fn clock(&self, domain: usize) -> Option<ReadClock> {
        let (root, policy) = (self.root.clone(), self.cores.get(domain)?.policy.clone());
        Some(Box::new(move || cpufreq::clock(&root, &policy)))
    }
}

#[cfg(test)]
mod tests;
