//! Energy of cores and packages: power times time, summed up whenever power changes.
//!
//! Power is that of [`SupplyPower`] if the model has a `[supply]`, otherwise that of
//! [`PowerCurve`]. The latter depends on which cores execute, and at which clocks, not on what they
//! execute. A core that stands still, wakes up or serves a governor counts as executing. Waiting
//! has the power of the model's loads, whatever the idle state. No source gives the power of a core
//! in one idle state or another, so models do not give it either. A caller that lets cores enter
//! idle states gets the names of those states.

use dimmer_processor::model::{Missing, Model};
use dimmer_processor::power::PowerCurve;
use dimmer_processor::supply::{Activity, CoreState, SupplyPower};

use crate::{Moment, Picos};

/// Joules in a milliwatt times a picosecond.
const JOULES: f64 = 1e-15;

/// The energy of the whole run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Energy {
    /// For each package.
    pub packages: Vec<PackageEnergy>,
    /// For each core.
    pub cores: Vec<CoreEnergy>,
    /// Names of the idle states that idle cores enter and whose power the model does not give. They
    /// count as waiting.
    pub unknown_states: Vec<String>,
}

/// Energy of a package.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PackageEnergy {
    /// The whole energy (J); by a model's `[supply]`, that beyond the energy of idle cores.
    pub joules: f64,
    /// The part of it without what executing cores add, at the same voltage (J).
    pub waiting_joules: f64,
}

/// The energy of a core beyond that of waiting.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CoreEnergy {
    /// For everything that it executed (J).
    pub joules: f64,
    /// The same by P-state, in the model's order. The P-state is the slowest that is at least as
    /// fast as the core's clock.
    pub pstates: Vec<AtPState>,
}

/// Time and energy of a core at the clocks of a P-state.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AtPState {
    /// How long the core executed (ps).
    pub time: Picos,
    /// Energy beyond waiting (J).
    pub joules: f64,
}

/// Why the energy is unknown.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NoEnergy {
    /// The model has no usable power values.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The model's loads do not cover what the machine did.
    #[error(
        "no `[[power]]` of the model of {model} has {busy} `busy_cores` at {ghz:.2} GHz or more, which the energy needs"
    )]
    Beyond {
        /// The model's name.
        model: String,
        /// The number of cores that executed.
        busy: usize,
        /// The clock of the fastest one (GHz).
        ghz: f64,
    },
}

/// What gives the power of a machine.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// Loads: power by clocks.
    Curve(PowerCurve),
    /// Voltage and activity.
    Supply(SupplyPower),
}

impl Source {
    /// The source that a model has.
    pub(crate) fn new(model: &Model, curve: Result<PowerCurve, Missing>) -> Result<Self, Missing> {
        match SupplyPower::new(model) {
            Some(supply) => supply.map(Self::Supply),
            None => curve.map(Self::Curve),
        }
    }
}

/// Measures the power of a machine.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    source: Source,
    model: String,
    /// Clocks of P-states, fastest first (GHz).
    pstates: Vec<f64>,
    packages: Vec<Package>,
    /// The first operating point whose power is not known.
    beyond: Option<NoEnergy>,
    unknown_states: Vec<String>,
}

#[derive(Clone, Debug)]
struct Package {
    /// Everything is counted until then.
    since: Moment,
    waiting_mw: f64,
    cores: Vec<Core>,
    total: PackageEnergy,
    /// Why the current power is not known, if it is not.
    beyond: Option<NoEnergy>,
    /// Clocks of the cores that execute; kept so that measuring allocates nothing.
    busy: Vec<f64>,
    /// The state of each core, for power by voltage and activity.
    states: Vec<CoreState>,
}

#[derive(Clone, Debug)]
struct Core {
    /// The clock while the core executes (GHz); 0 while it waits.
    ghz: f64,
    /// The power beyond waiting.
    mw: f64,
    pstate: Option<usize>,
    total: CoreEnergy,
}

impl Meter {
    /// A meter for a machine with N cores, by package. All cores wait, at the clock `waits_at`
    /// (GHz).
    pub(crate) fn new(model: &Model, source: Source, cores: usize, waits_at: f64) -> Self {
        let of_package = model.shape.cores.as_ref().map(|cores| cores.value);
        let of_package = of_package.and_then(|cores| usize::try_from(cores).ok());
        let of_package = of_package.unwrap_or(cores).max(1);
        let pstates: Vec<f64> =
            model.pstates.iter().map(|state| state.mhz.value as f64 / 1000.0).collect();
        let total = CoreEnergy { joules: 0.0, pstates: vec![AtPState::default(); pstates.len()] };
        let package = |first: usize| Package {
            since: Moment::START,
            waiting_mw: 0.0,
            cores: vec![
                Core { ghz: 0.0, mw: 0.0, pstate: None, total: total.clone() };
                of_package.min(cores - first)
            ],
            total: PackageEnergy::default(),
            beyond: None,
            busy: Vec::new(),
            states: vec![
                CoreState { ghz: waits_at, executes: None, waits: false };
                of_package.min(cores - first)
            ],
        };
        let packages = (0..cores).step_by(of_package).map(package).collect();
        let model = model.identity.name.clone();
        let mut meter =
            Self { source, model, pstates, packages, beyond: None, unknown_states: Vec::new() };
        for package in 0..meter.packages.len() {
            meter.measure(package, waits_at);
        }
        meter
    }

    /// Lets idle cores enter the model's idle states.
    pub(crate) fn with_idle_states(self, model: &Model) -> Self {
        let unknown_states = model.cstates.iter().map(|state| state.name.clone()).collect();
        Self { unknown_states, ..self }
    }

    /// Lets these cores wait by MWAIT while they execute nothing.
    pub(crate) fn with_mwait(mut self, cores: &[usize], waits_at: f64) -> Self {
        for core in cores {
            let (package, core) = self.place(*core);
            if let Some(package) = self.packages.get_mut(package) {
                package.states[core].waits = true;
            }
            self.measure(package, waits_at);
        }
        self
    }

    /// Sets whether a core waits by MWAIT from now on while it executes nothing.
    pub(crate) fn waits(&mut self, now: Moment, core: usize, waits: bool) {
        let (place, core) = self.place(core);
        let state = self.packages[place].states[core];
        // Loads have one power of waiting.
        if state.waits != waits && matches!(self.source, Source::Supply(_)) {
            self.count(place, now);
            self.packages[place].states[core].waits = waits;
            self.measure(place, state.ghz);
        }
    }

    /// Sets the clock at which a core executes from now on (GHz), or 0 if it waits; `own_ghz` is
    /// its clock in either case. If all cores of its package wait, the voltage is that of this one.
    pub(crate) fn change(&mut self, now: Moment, core: usize, ghz: f64, own_ghz: f64) {
        let (place, core) = self.place(core);
        let package = &self.packages[place];
        if package.cores[core].ghz != ghz || package.states[core].ghz != own_ghz {
            self.count(place, now);
            let package = &mut self.packages[place];
            package.cores[core].ghz = ghz;
            let state = &mut package.states[core];
            state.ghz = own_ghz;
            state.executes = (ghz > 0.0).then(|| state.executes.unwrap_or(Activity::BUSY));
            self.measure(place, own_ghz);
        }
    }

    /// The part of a busy core's power that remains while memory stalls it, if power depends on
    /// what cores execute.
    pub(crate) fn stalled(&self) -> Option<f64> {
        match &self.source {
            Source::Curve(_) => None,
            Source::Supply(supply) => Some(supply.stalled()),
        }
    }

    /// Sets what a core executes from now on, if it executes something.
    pub(crate) fn executes(&mut self, now: Moment, core: usize, activity: Activity) {
        let (place, core) = self.place(core);
        let state = self.packages[place].states[core];
        if state.executes.is_some_and(|before| before != activity) {
            self.count(place, now);
            self.packages[place].states[core].executes = Some(activity);
            self.measure(place, state.ghz);
        }
    }

    /// A core's package, and its place there.
    fn place(&self, core: usize) -> (usize, usize) {
        let of_package = self.packages.first().map_or(1, |package| package.cores.len());
        (core / of_package, core % of_package)
    }

    /// Forgets everything up to now.
    pub(crate) fn forget(&mut self, now: Moment) {
        self.advance(now);
        self.beyond = None;
        for package in &mut self.packages {
            package.total = PackageEnergy::default();
            for core in &mut package.cores {
                core.total.joules = 0.0;
                core.total.pstates.fill(AtPState::default());
            }
        }
    }

    /// Counts everything up to now.
    pub(crate) fn advance(&mut self, now: Moment) {
        (0..self.packages.len()).for_each(|package| self.count(package, now));
    }

    pub(crate) fn energy(&self) -> Result<Energy, NoEnergy> {
        if let Some(beyond) = &self.beyond {
            return Err(beyond.clone());
        }
        let cores = self.packages.iter().flat_map(|package| &package.cores);
        Ok(Energy {
            packages: self.packages.iter().map(|package| package.total).collect(),
            cores: cores.map(|core| core.total.clone()).collect(),
            unknown_states: self.unknown_states.clone(),
        })
    }

    fn count(&mut self, package: usize, now: Moment) {
        let package = &mut self.packages[package];
        let span = now - package.since;
        if span == Picos::ZERO {
            return;
        }
        package.since = now;
        if self.beyond.is_none() {
            self.beyond.clone_from(&package.beyond);
        }
        let waiting = package.waiting_mw * span.as_f64() * JOULES;
        package.total.waiting_joules += waiting;
        package.total.joules += waiting;
        for core in package.cores.iter_mut().filter(|core| core.ghz > 0.0) {
            let joules = core.mw * span.as_f64() * JOULES;
            package.total.joules += joules;
            core.total.joules += joules;
            if let Some(at) = core.pstate.and_then(|pstate| core.total.pstates.get_mut(pstate)) {
                at.time += span;
                at.joules += joules;
            }
        }
    }

    /// Computes the current power of a package.
    fn measure(&mut self, package: usize, waits_at: f64) {
        let Self { source, packages, pstates, model, .. } = self;
        let package = &mut packages[package];
        let curve = match source {
            Source::Curve(curve) => curve,
            Source::Supply(supply) => return package.measure(supply, pstates),
        };
        package.busy.clear();
        package.busy.extend(package.cores.iter().map(|core| core.ghz).filter(|ghz| *ghz > 0.0));
        let fastest = package.busy.iter().copied().fold(0.0, f64::max);
        let rail = if fastest > 0.0 { fastest } else { waits_at };
        let is_known = package.busy.is_empty() || curve.covers(rail, &package.busy);
        let mut known = curve.waiting_mw(rail).filter(|_| is_known);
        package.waiting_mw = known.unwrap_or(0.0);
        for core in package.cores.iter_mut().filter(|core| core.ghz > 0.0) {
            let mw = curve.core_mw(core.ghz, rail);
            core.mw = mw.unwrap_or(0.0);
            core.pstate = pstates.iter().rposition(|ghz| *ghz >= core.ghz);
            known = known.and(mw);
        }
        package.beyond = known.is_none().then(|| NoEnergy::Beyond {
            model: model.clone(),
            busy: package.busy.len(),
            ghz: rail,
        });
    }
}

impl Package {
    /// Computes the current power by voltage and activity.
    fn measure(&mut self, supply: &SupplyPower, pstates: &[f64]) {
        self.waiting_mw = supply.package_mw(&self.states);
        for (index, core) in self.cores.iter_mut().enumerate() {
            let mw = supply.core_mw(index, &self.states);
            if core.ghz > 0.0 {
                core.mw = mw;
                core.pstate = pstates.iter().rposition(|ghz| *ghz >= core.ghz);
            } else {
                self.waiting_mw += mw;
            }
        }
    }
}
