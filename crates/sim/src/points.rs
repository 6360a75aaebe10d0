//! Operating points that software requests: which cores share a clock, what a change costs, and
//! what rated power allows.
//!
//! Each core requests a P-state, or none, which stands for the fastest one that it may have. The
//! cores of a frequency domain share a clock: the fastest request of those that execute is in force
//! (paper 002 §2.1, §2.2). A request occupies the core that makes it for a time. Then the clock
//! ramps linearly (paper 002 §4.4), in steps of 100 MHz. If rated power does not allow the
//! requests, the whole package runs at the fastest P-state that it allows; a clock that is to rise
//! above the base waits for those that still fall (paper 002 §4.3). Without a request, some
//! processors choose their fastest P-states only while a core is deeply idle (paper 002 §2.1). On
//! some processors the cores of a cluster divide the clock of the fastest of them, so that a slow
//! one is raised by it (paper 004 §4.3).

use std::ops::Range;

use dimmer_processor::divisors::Divisors;
use dimmer_processor::model::{Domain, Model};
use dimmer_processor::power::PowerCurve;
use dimmer_processor::units::{Nanos, whole};

use crate::{Moment, Picos, Ruling, SimError};

/// Steps of a ramp (GHz): those of processors' P-states.
const STEP_GHZ: f64 = 0.1;

/// The cost of a change between two P-states (ps); `None` where the model does not give it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Change {
    /// How long the request occupies the core that makes it.
    pub(crate) request: Option<Picos>,
    /// From the request to the new clock.
    pub(crate) total: Option<Picos>,
}

/// The operating points of a machine.
#[derive(Clone, Debug)]
pub(crate) struct Points {
    model: String,
    /// Name and clock (GHz), in the model's order.
    states: Vec<(String, f64)>,
    /// `changes[from][to]`.
    changes: Vec<Vec<Option<Change>>>,
    /// The request of each core.
    wishes: Vec<Wish>,
    /// What counts as the request of cores that make none: now, and while no core of the package is
    /// in the idle state that faster P-states need.
    automatic: Wish,
    shallow: Wish,
    domains: Vec<Shared>,
    domain_of: Vec<usize>,
    /// Cores of a package.
    of_package: usize,
    /// Whether a domain counts against rated power with all of its cores, including those that
    /// wait: a module executes as a whole.
    is_whole: bool,
    /// How cores depend on the fastest one of their cluster, if they do.
    divided: Option<Divided>,
    /// The power curve by which rated power limits clocks.
    curve: Option<PowerCurve>,
    /// The clock that rated power always allows (GHz).
    base_ghz: f64,
    /// Clocks of cores that execute; kept so that nothing is allocated.
    busy: Vec<f64>,
}

/// Clusters whose cores divide the clock of the fastest of them.
#[derive(Clone, Debug)]
struct Divided {
    divisors: Divisors,
    /// The cluster of each core, as cores.
    clusters: Vec<Range<usize>>,
}

impl Divided {
    /// Those of a model with N cores, if it has any.
    fn new(model: &Model, cores: usize, of_package: usize) -> Option<Self> {
        let divisors = Divisors::new(model)?;
        let clusters = clusters(model, cores, of_package);
        let of_core = clusters.into_iter().flat_map(|cluster| {
            let cores = cluster.len();
            std::iter::repeat_n(cluster, cores)
        });
        Some(Self { divisors, clusters: of_core.collect() })
    }
}

/// A request: a P-state, or the fastest clock there is (`None`). Smaller is faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Wish(Option<usize>);

/// Cores that share a clock.
#[derive(Clone, Debug)]
struct Shared {
    cores: Range<usize>,
    /// The request in force, or in force when the ramp is over.
    target: Wish,
    /// The current clock (GHz); infinite if only the level limits it.
    ghz: f64,
    ramp: Option<Ramp>,
    /// Whether it is to rise once others have slowed down.
    waits: bool,
    /// Whether its clock or its target has changed since [`Points::has_changed`] was last called.
    is_changed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Ramp {
    from: f64,
    to: f64,
    begin: Moment,
    end: Moment,
    /// The number of steps, and how many of them are done.
    steps: u32,
    done: u32,
}

impl Ramp {
    /// When the next step is: half-way between the moments at which the linear ramp has the clocks
    /// before and after it. So the steps take as many cycles as the ramp.
    fn next(&self) -> Moment {
        let share = (f64::from(self.done) + 0.5) / f64::from(self.steps);
        self.begin + Picos::from_ps(whole((self.end - self.begin).as_f64() * share))
    }
}

impl Points {
    /// The points of a machine with a core for each of these requests, which are indices of
    /// P-states; `None` if the model has no P-states.
    pub(crate) fn new(
        model: &Model,
        curve: Option<&PowerCurve>,
        wishes: &[Option<usize>],
    ) -> Option<Self> {
        let cores = wishes.len();
        let wishes: Vec<Wish> = wishes.iter().copied().map(Wish).collect();
        let state = |state: &dimmer_processor::model::PState| {
            (state.name.clone(), state.mhz.value as f64 / 1000.0)
        };
        let states: Vec<(String, f64)> = model.pstates.iter().map(state).collect();
        if states.is_empty() {
            return None;
        }
        let place = |name: &str| states.iter().position(|(known, _)| known == name);
        let mut changes = vec![vec![None; states.len()]; states.len()];
        for one in &model.transitions {
            let ps = |ns: &Option<dimmer_processor::model::Sourced<u64>>| {
                ns.as_ref().map(|ns| Nanos::from_ns(ns.value).picos())
            };
            if let (Some(from), Some(to)) = (place(&one.from), place(&one.to)) {
                changes[from][to] =
                    Some(Change { request: ps(&one.request_ns), total: ps(&one.total_ns) });
            }
        }
        let shared = |cores: Range<usize>| {
            let target = wishes[cores.clone()].iter().copied().min().unwrap_or(Wish(None));
            let ghz = target.0.map_or(f64::INFINITY, |wish| states[wish].1);
            Shared { cores, target, ghz, ramp: None, waits: false, is_changed: false }
        };
        let of_package = model.shape.cores.as_ref().map(|cores| cores.value);
        let of_package = of_package.and_then(|cores| usize::try_from(cores).ok()).unwrap_or(cores);
        let domains: Vec<Shared> =
            domains(model, cores, of_package.max(1)).into_iter().map(shared).collect();
        let mut domain_of = vec![0; cores];
        for (index, domain) in domains.iter().enumerate() {
            domain_of[domain.cores.clone()].fill(index);
        }
        let needs_none = model.pstates.iter().position(|state| state.needs_idle.is_none());
        let kind = model.clock.domain.as_ref().map(|domain| domain.value);
        Some(Self {
            model: model.identity.name.clone(),
            states,
            changes,
            divided: Divided::new(model, cores, of_package.max(1)),
            wishes,
            automatic: Wish(None),
            shallow: Wish(needs_none.filter(|fastest| *fastest > 0)),
            domains,
            domain_of,
            of_package: of_package.max(1),
            is_whole: kind == Some(Domain::Cluster),
            curve: curve.cloned(),
            base_ghz: model.clock.base_mhz.as_ref().map_or(0.0, |mhz| mhz.value as f64 / 1000.0),
            busy: Vec::new(),
        })
    }

    /// The clock that the core's domain allows (GHz); infinite if only the level limits it.
    ///
    /// Cores of a cluster without a request do not divide clocks, nor have theirs divided.
    pub(crate) fn ghz(&self, core: usize) -> f64 {
        let own = |core: usize| self.domains[self.domain_of[core]].ghz;
        let Some(divided) = self.divided.as_ref().filter(|_| own(core).is_finite()) else {
            return own(core);
        };
        let requested = divided.clusters[core].clone().map(own).filter(|ghz| ghz.is_finite());
        divided.divisors.ghz(own(core), requested.fold(0.0, f64::max))
    }

    /// The cores whose clock depends on that of a domain.
    pub(crate) fn reached(&self, domain: usize) -> Range<usize> {
        let own = self.cores(domain);
        match &self.divided {
            Some(Divided { clusters, .. }) if !own.is_empty() => {
                let (first, last) = (&clusters[own.start], &clusters[own.end - 1]);
                first.start.min(own.start)..last.end.max(own.end)
            }
            _ => own,
        }
    }

    /// The domain of a core.
    pub(crate) fn domain(&self, core: usize) -> usize {
        self.domain_of[core]
    }

    /// The P-state in force in a domain.
    pub(crate) fn ruling(&self, domain: usize) -> Ruling {
        let Shared { target, ramp, .. } = &self.domains[domain];
        Ruling { pstate: target.0, is_changing: ramp.is_some() }
    }

    /// The cores of a domain.
    pub(crate) fn cores(&self, domain: usize) -> Range<usize> {
        self.domains[domain].cores.clone()
    }

    /// The domains of a core's package.
    pub(crate) fn neighbours(&self, core: usize) -> Range<usize> {
        let first = core - core % self.of_package;
        let last = (first + self.of_package).min(self.domain_of.len()) - 1;
        self.domain_of[first]..self.domain_of[last] + 1
    }

    /// Requests this P-state for the core from now on. Returns the cost; `None` if the core
    /// requests it already.
    ///
    /// # Errors
    /// If the model does not give the cost of this change.
    pub(crate) fn ask(&mut self, core: usize, wish: usize) -> Result<Option<Change>, SimError> {
        let from = match std::mem::replace(&mut self.wishes[core], Wish(Some(wish))).0 {
            Some(from) if from == wish => return Ok(None),
            // The clock of the first P-state may be lower than that without a request.
            None if wish == 0 => return Ok(Some(Change::default())),
            from => from.unwrap_or(0),
        };
        let name = |index: usize| self.states[index].0.clone();
        let change = self.changes[from][wish].ok_or_else(|| SimError::NoTransition {
            model: self.model.clone(),
            from: name(from),
            to: name(wish),
        })?;
        Ok(Some(change))
    }

    /// The cost of a change from one clock to another (GHz): that between the nearest P-states.
    pub(crate) fn change(&self, from: f64, to: f64) -> Option<Change> {
        let nearest = |ghz: f64| {
            let away = |index: &usize| (self.states[*index].1 - ghz).abs();
            (0..self.states.len()).min_by(|one, other| away(one).total_cmp(&away(other)))
        };
        self.changes[nearest(from)?][nearest(to)?]
    }

    /// Sets the domains of a core's package to the requests in force. Without a request, the clock
    /// is `fastest` (GHz), or that of a P-state that needs no idle core if none `is_deep`. `asked`
    /// is the start and the end of the change of this core's domain, if the core made a request;
    /// changes of other domains start now. Returns the package's domains.
    pub(crate) fn rule(
        &mut self,
        now: Moment,
        core: usize,
        asked: Option<(Moment, Moment)>,
        fastest: f64,
        is_deep: bool,
        is_active: impl Fn(usize) -> bool,
    ) -> Range<usize> {
        self.automatic = if is_deep { Wish(None) } else { self.shallow };
        let domains = self.neighbours(core);
        let cap = self.cap(domains.clone(), fastest, &is_active);
        // What falls makes room for what rises.
        for rises in [false, true] {
            for index in domains.clone() {
                let wish = self.fastest_wish(index, &is_active);
                let from = self.domains[index].target;
                let target = wish.map_or(from, |wish| wish.max(cap));
                if (target < from) != rises {
                    continue;
                }
                self.domains[index].waits =
                    rises && !self.has_room(index, target, domains.clone(), fastest, &is_active);
                if from == target || self.domains[index].waits {
                    continue;
                }
                self.domains[index].target = target;
                let known = self.changes[from.0.unwrap_or(0)][target.0.unwrap_or(0)];
                let (begin, end) = match asked.filter(|_| index == self.domain_of[core]) {
                    Some(asked) => asked,
                    None => {
                        let total = known.and_then(|known| known.total).unwrap_or_default();
                        (now, now + total)
                    }
                };
                self.ramp(index, now, begin, end, fastest);
            }
        }
        domains
    }

    /// If a core has its own clock, sets it to `from` now, and lets it rise to what the core is
    /// allowed within a span (GHz).
    pub(crate) fn rise(&mut self, now: Moment, core: usize, from: f64, span: Picos, fastest: f64) {
        let index = self.domain_of[core];
        if self.domains[index].cores.len() == 1 && self.domains[index].ghz > from {
            self.domains[index].ghz = from;
            self.ramp(index, now, now, now + span, fastest);
        }
    }

    /// Takes the next step of a domain's ramp.
    pub(crate) fn step(&mut self, index: usize) {
        let clock = self.clock(self.domains[index].target);
        let domain = &mut self.domains[index];
        let Some(ramp) = &mut domain.ramp else { return };
        ramp.done += 1;
        domain.ghz =
            ramp.from + (ramp.to - ramp.from) * f64::from(ramp.done) / f64::from(ramp.steps);
        if ramp.done == ramp.steps {
            (domain.ghz, domain.ramp) = (clock, None);
        }
    }

    /// Whether a change is over for which another domain of the package may wait.
    pub(crate) fn makes_room(&self, index: usize) -> bool {
        let waits = |other: usize| self.domains[other].waits;
        self.domains[index].ramp.is_none() && self.neighbours(self.cores(index).start).any(waits)
    }

    /// Whether the domain's clock or its target has changed since the last call.
    pub(crate) fn has_changed(&mut self, index: usize) -> bool {
        std::mem::take(&mut self.domains[index].is_changed)
    }

    /// When a domain's next step is due.
    pub(crate) fn next(&self, index: usize) -> Option<Moment> {
        Some(self.domains[index].ramp.as_ref()?.next())
    }

    /// Lets the domain's clock go to its target from `begin` to `end`. Without a request, the clock
    /// is `fastest` (GHz).
    fn ramp(&mut self, index: usize, now: Moment, begin: Moment, end: Moment, fastest: f64) {
        let clock = self.clock(self.domains[index].target);
        let domain = &mut self.domains[index];
        domain.is_changed = true;
        let (from, to) = (domain.ghz.min(fastest), clock.min(fastest));
        let steps = steps(from, to).min(if end > begin { u32::MAX } else { 1 });
        domain.ramp =
            (end > now && steps > 0).then_some(Ramp { from, to, begin, end, steps, done: 0 });
        domain.ghz = if domain.ramp.is_some() { from } else { clock };
    }

    /// The clock of a request (GHz).
    fn clock(&self, wish: Wish) -> f64 {
        wish.0.map_or(f64::INFINITY, |state| self.states[state].1)
    }

    /// The fastest request of the domain's cores that execute; `None` if none of them does.
    fn fastest_wish(&self, domain: usize, is_active: impl Fn(usize) -> bool) -> Option<Wish> {
        let cores = self.domains[domain].cores.clone();
        let wish = |core: usize| match self.wishes[core] {
            Wish(None) => self.automatic,
            wish => wish,
        };
        cores.filter(|core| is_active(*core)).map(wish).min()
    }

    /// The fastest P-state that rated power allows all cores of these domains to have.
    fn cap(
        &mut self,
        domains: Range<usize>,
        fastest: f64,
        is_active: &impl Fn(usize) -> bool,
    ) -> Wish {
        let Some(curve) = self.curve.take() else { return Wish(None) };
        let mut busy = std::mem::take(&mut self.busy);
        let mut allowed = Wish(None);
        for cap in std::iter::once(None).chain((0..self.states.len()).map(Some)).map(Wish) {
            allowed = cap;
            busy.clear();
            for domain in domains.clone() {
                let Some(wish) = self.fastest_wish(domain, is_active) else { continue };
                let ghz = self.clock(wish.max(cap)).min(fastest);
                let counts = |core: &usize| self.is_whole || is_active(*core);
                let cores = self.domains[domain].cores.clone().filter(counts);
                busy.extend(cores.map(|_| ghz));
            }
            if curve.allows(&busy) {
                break;
            }
        }
        (self.curve, self.busy) = (Some(curve), busy);
        allowed
    }

    /// Whether rated power allows a domain's cores this P-state while those of the others of its
    /// package have the clocks that they still have, or are about to have.
    fn has_room(
        &mut self,
        index: usize,
        target: Wish,
        domains: Range<usize>,
        fastest: f64,
        is_active: &impl Fn(usize) -> bool,
    ) -> bool {
        let to = self.clock(target).min(fastest);
        let Some(curve) = self.curve.take_if(|_| to > self.base_ghz) else { return true };
        let mut busy = std::mem::take(&mut self.busy);
        busy.clear();
        for domain in domains {
            let Shared { cores, target, ghz, .. } = &self.domains[domain];
            if !cores.clone().any(is_active) {
                continue;
            }
            let others = ghz.max(self.clock(*target)).min(fastest);
            let counts = |core: &usize| self.is_whole || is_active(*core);
            let cores = cores.clone().filter(counts);
            busy.extend(cores.map(|_| if domain == index { to } else { others }));
        }
        let has_room = curve.allows(&busy);
        (self.curve, self.busy) = (Some(curve), busy);
        has_room
    }
}

/// The number of steps between two clocks (GHz).
fn steps(from: f64, to: f64) -> u32 {
    // Rounding must not turn a step of 100 MHz into two.
    let steps = ((to - from).abs() / STEP_GHZ - 1e-6).ceil();
    u32::try_from(whole(steps)).unwrap_or(u32::MAX)
}

/// The cores that share each clock, in order.
fn domains(model: &Model, cores: usize, of_package: usize) -> Vec<Range<usize>> {
    let one = |core: usize| core..core + 1;
    match model.clock.domain.as_ref().map(|domain| domain.value) {
        Some(Domain::Package) => groups(&[of_package], cores, of_package),
        Some(Domain::Cluster) => clusters(model, cores, of_package),
        Some(Domain::Core) | None => (0..cores).map(one).collect(),
    }
}

/// The cores of each cluster, in order. A core outside of any cluster is one of its own.
fn clusters(model: &Model, cores: usize, of_package: usize) -> Vec<Range<usize>> {
    let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    let sizes: Vec<usize> =
        model.clusters.iter().map(|cluster| count(cluster.cores.value)).collect();
    groups(&sizes, cores, of_package)
}

/// The cores of each package in groups of these sizes, and then one by one.
fn groups(sizes: &[usize], cores: usize, of_package: usize) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    for package in (0..cores).step_by(of_package) {
        let end = (package + of_package).min(cores);
        let mut first = package;
        let mut sizes = sizes.iter();
        while first < end {
            let last = first.saturating_add(sizes.next().copied().unwrap_or(1).max(1)).min(end);
            groups.push(first..last);
            first = last;
        }
    }
    groups
}
