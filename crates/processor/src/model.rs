//! Processor models: a processor described in a file, every value with its source.
//!
//! A model contains only what is known. A value that was never measured or published is absent; a
//! caller that needs it calls [`Model::require`] and gets an error that names it. `docs/model.md`
//! describes the format. [`Model::parse`] reads it, [`Model::to_toml`] writes it.

mod builtin;
mod check;
mod keys;
mod read;
mod write;

#[cfg(test)]
mod tests;

use std::fmt;

use crate::class::InstructionClass;
use crate::units::LicenseLevel;

pub use self::builtin::{BUILTIN, builtin};
pub use self::keys::KEYS;
pub use self::read::{ModelError, Problem};

/// A value and its source.
#[derive(Clone, Debug, PartialEq)]
pub struct Sourced<T> {
    /// The value, in the unit of its key.
    pub value: T,
    /// The source: paper and section, manual, or measurement.
    pub source: String,
    /// Whether the source infers or remembers the value instead of measuring it.
    pub guess: bool,
    /// The 95 % interval, if the measurement has one.
    pub ci95: Option<(T, T)>,
}

/// The processor's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The marketing name.
    pub name: String,
    /// The vendor as CPUID reports it: `GenuineIntel`.
    pub vendor: String,
    /// The microarchitecture's name.
    pub microarchitecture: String,
    /// A remark on the model, if needed: the machine's settings, what is missing.
    pub note: Option<String>,
}

/// Numbers of packages, cores and threads, and cache sizes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape {
    /// Packages per machine.
    pub packages: Option<Sourced<u32>>,
    /// Cores per package.
    pub cores: Option<Sourced<u32>>,
    /// Hardware threads per core.
    pub threads_per_core: Option<Sourced<u32>>,
    /// Second-level cache of a core, or of the cores that share one (KiB).
    pub l2_kib: Option<Sourced<u64>>,
    /// Third-level cache of a package, or of the cores that share one (KiB).
    pub l3_kib: Option<Sourced<u64>>,
}

/// A group of cores of one kind, if the cores are of several kinds or do not all share a clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// The cluster's name.
    pub name: String,
    /// Number of cores; at least one.
    pub cores: Sourced<u32>,
    /// The cluster's highest clock (MHz).
    pub max_mhz: Option<Sourced<u64>>,
    /// Work per cycle, relative to the fastest cluster.
    pub capacity_ratio: Option<Sourced<f64>>,
    /// Power of a core at the same clock and voltage, relative to [`Supply::core_mw`].
    pub power_ratio: Option<Sourced<f64>>,
}

/// The set of cores that share one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum Domain {
    /// Each core has its own clock.
    Core,
    /// The cores of a module or cluster share a clock.
    Cluster,
    /// The cores of a package share a clock.
    Package,
}

/// Clocks and limits that do not depend on the license.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clock {
    /// The set of cores that share a clock.
    pub domain: Option<Sourced<Domain>>,
    /// Frequency of the time-stamp counter (MHz).
    pub tsc_mhz: Option<Sourced<u64>>,
    /// The lowest clock (MHz).
    pub min_mhz: Option<Sourced<u64>>,
    /// The guaranteed clock (MHz).
    pub base_mhz: Option<Sourced<u64>>,
    /// The highest clock of one core (MHz).
    pub max_mhz: Option<Sourced<u64>>,
    /// Rated power of a package (mW).
    pub tdp_mw: Option<Sourced<u64>>,
    /// The time from one decision of the power control about clocks that software asks to raise to
    /// the next (ns).
    pub raise_period_ns: Option<Sourced<u64>>,
    /// The step of the divisors by which cores divide the clock of their cluster's fastest core.
    /// Absent: cores of a cluster do not depend on each other's clocks.
    pub divisor_step: Option<Sourced<f64>>,
    /// The largest divisor; absent: any.
    pub divisor_most: Option<Sourced<f64>>,
}

/// Supply voltage, and the power that depends on it and on what cores execute, beyond that of a
/// processor whose cores are all idle. All powers are those at 1 V, and grow with its square.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Supply {
    /// The set of cores that share a voltage: those of a package, or each core its own.
    pub domain: Option<Sourced<Domain>>,
    /// Power of a package of which a core executes, or waits by MWAIT (mW).
    pub awake_mw: Option<Sourced<u64>>,
    /// Power that a core adds while it executes at 1 GHz (mW).
    pub core_mw: Option<Sourced<u64>>,
    /// The part of that which remains while memory stalls the core.
    pub stalled_ratio: Option<Sourced<f64>>,
    /// Power that a core adds while it waits by MWAIT (mW).
    pub waiting_mw: Option<Sourced<u64>>,
}

/// The highest clock for a number of active cores.
#[derive(Clone, Debug, PartialEq)]
pub struct Bin {
    /// Lowest number of active cores; numbers between two bins are unknown.
    pub from_cores: u32,
    /// Highest number of active cores.
    pub cores: u32,
    /// The clock (MHz).
    pub mhz: Sourced<u64>,
}

/// A license level: a cap on the clock, or on the issue rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// The level's name: `L0`.
    pub name: String,
    /// The cap by active cores, ascending; empty where unknown.
    pub bins: Vec<Bin>,
    /// The cap relative to the first level's, if the measurement gives no absolute value.
    pub clock_ratio: Option<Sourced<f64>>,
    /// Instructions issued per cycle relative to the first level, if the level caps the issue rate.
    pub issue_ratio: Option<Sourced<f64>>,
    /// The remaining cap with one core active (MHz) if the firmware reduces levels as far as it
    /// can, so that software may decide.
    pub reduced_mhz: Option<Sourced<u64>>,
}

/// The state of the upper register halves that a rule requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upper {
    /// Any state.
    Any,
    /// Dirty: 512-bit code has left values in them.
    Dirty,
}

/// A rule: which code requests which level.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The class of the code.
    pub class: InstructionClass,
    /// The state of the upper register halves.
    pub upper: Upper,
    /// The requested level.
    pub level: Sourced<LicenseLevel>,
    /// Median number of instructions until the request.
    pub instructions: Option<Sourced<u64>>,
    /// Standard deviation of that number's natural logarithm; absent or 0: the number is constant.
    pub instructions_log_sd: Option<Sourced<f64>>,
    /// Instructions per cycle below which the code makes no request.
    pub density_per_cycle: Option<Sourced<f64>>,
    /// Median time from the first instruction to the grant of the level (ns).
    pub grant_ns: Option<Sourced<u64>>,
    /// Standard deviation of that time's natural logarithm; absent or 0: the time is constant.
    pub grant_log_sd: Option<Sourced<f64>>,
}

/// Whether the core passes through the levels in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum Path {
    /// One level after the other.
    InTurn,
    /// Directly to the requested level.
    Directly,
}

/// From the request for a level to its grant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// Throughput of wide code until the grant, relative to unthrottled code.
    pub throttle_factor: Option<Sourced<f64>>,
    /// The same for instructions that depend on each other.
    pub chained_throttle_factor: Option<Sourced<f64>>,
    /// Duration of the throttling (ns).
    pub throttled_ns: Option<Sourced<u64>>,
    /// Duration of a change of voltage alone, for code that keeps its clock but needs more voltage
    /// (ns).
    pub voltage_ns: Option<Sourced<u64>>,
    /// How long the core stalls at the change (ns).
    pub stall_ns: Option<Sourced<u64>>,
    /// The power-control unit serves requests in slots of this length (ns): all requests of a slot
    /// together, once the slowest is decided.
    pub slot_ns: Option<Sourced<u64>>,
    /// Of the requests made together with the one that starts a slot, the share that is served only
    /// in the next slot.
    pub missed_share: Option<Sourced<f64>>,
    /// Handling of the levels in between.
    pub path: Option<Sourced<Path>>,
}

/// From the last wide instruction back to the nominal clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Release {
    /// How long the level is held after an isolated burst (ns).
    pub hold_ns: Option<Sourced<u64>>,
    /// Share of releases that take longer than `hold_ns`.
    pub extended_share: Option<Sourced<f64>>,
    /// The same share while another core of the package holds a level; absent: `extended_share`.
    pub extended_share_beside: Option<Sourced<f64>>,
    /// Longest duration of those releases (ns); they are evenly spread from `hold_ns` to it.
    pub extended_ns: Option<Sourced<u64>>,
    /// The only level with such releases; absent: any level.
    pub extended_level: Option<Sourced<LicenseLevel>>,
    /// The least demanding class of code with such releases; absent: any class.
    pub extended_class: Option<Sourced<InstructionClass>>,
    /// How long the core stalls at the change (ns).
    pub stall_ns: Option<Sourced<u64>>,
    /// While bursts recur at gaps below this, the level is not released at all (ns).
    pub recurrence_ns: Option<Sourced<u64>>,
    /// How long bursts must have recurred before that (ns).
    pub recurrence_after_ns: Option<Sourced<u64>>,
    /// Relative increase of code's run time meanwhile, measured with the most demanding class.
    pub recurrence_slowdown: Option<Sourced<f64>>,
    /// Average cost of an isolated burst of the most demanding class, as measured (ns). If the
    /// effect comes and goes, it is less than the values above suggest.
    pub episode_ns: Option<Sourced<u64>>,
}

/// A lower clock between long bursts that recur.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRecurrence {
    /// The level that such a burst asks for at least.
    pub level: Sourced<LicenseLevel>,
    /// Shortest duration of such a burst (ns).
    pub burst_ns: Sourced<u64>,
    /// While such bursts recur at gaps below this, code runs slower between them (ns).
    pub gap_ns: Sourced<u64>,
    /// Relative increase of code's run time between them.
    pub slowdown: Sourced<f64>,
}

/// An operating point.
#[derive(Clone, Debug, PartialEq)]
pub struct PState {
    /// The P-state's name: `P2`.
    pub name: String,
    /// The clock (MHz).
    pub mhz: Sourced<u64>,
    /// The voltage (mV).
    pub mv: Option<Sourced<u64>>,
    /// The C-state, by name, in which another core of the package must be, so that the processor
    /// chooses this P-state by itself. A request needs none.
    pub needs_idle: Option<Sourced<String>>,
}

/// Power of a package in one situation.
#[derive(Clone, Debug, PartialEq)]
pub struct Power {
    /// Description of the load: the code and the cores that run it.
    pub load: String,
    /// The P-state of the cores that run the load.
    pub pstate: String,
    /// Number of cores of the package that execute in that P-state. Absent if it is unknown, or if
    /// the simulator's code differs from the load.
    pub busy_cores: Option<u32>,
    /// Number of cores that execute in a slower P-state, and that P-state; absent: none. The other
    /// cores wait.
    pub slow: Option<(u32, String)>,
    /// Power of the package (mW).
    pub package_mw: Sourced<u64>,
}

/// A change from one P-state to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    /// The P-state before.
    pub from: String,
    /// The P-state after.
    pub to: String,
    /// How long the request occupies the core (ns).
    pub request_ns: Option<Sourced<u64>>,
    /// Time from the request to the new clock (ns).
    pub total_ns: Option<Sourced<u64>>,
}

/// An idle state.
#[derive(Clone, Debug, PartialEq)]
pub struct CState {
    /// The C-state's name: `C6`.
    pub name: String,
    /// Wake-up time (ns).
    pub exit_ns: Sourced<u64>,
    /// Shortest stay that pays off (ns).
    pub residency_ns: Option<Sourced<u64>>,
}

/// The cost of moving something from core to core.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// What moves, and between which cores: one of [`Move::KINDS`].
    pub kind: String,
    /// One-way cost (ns).
    pub ns: Sourced<f64>,
}

impl Move {
    /// All kinds of moves.
    pub const KINDS: [&str; 7] = [
        "cache-line between siblings",
        "cache-line within a cluster",
        "cache-line within a package",
        "cache-line between packages",
        "thread by the kernel",
        "thread in user mode",
        "thread in user mode between clusters",
    ];
}

/// A processor model.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The processor's identity.
    pub identity: Identity,
    /// Numbers of packages, cores and threads, and cache sizes.
    pub shape: Shape,
    /// Groups of cores that differ; empty if all cores are alike.
    pub clusters: Vec<Cluster>,
    /// Clocks and limits.
    pub clock: Clock,
    /// License levels, at least one; the unrestricted level comes first.
    pub levels: Vec<Level>,
    /// Which code requests which level.
    pub rules: Vec<Rule>,
    /// How a level is granted.
    pub request: Request,
    /// How a level is released.
    pub release: Release,
    /// The lower clocks between long bursts.
    pub long_recurrences: Vec<LongRecurrence>,
    /// Operating points, fastest first; empty where unknown.
    pub pstates: Vec<PState>,
    /// Voltage and the power that depends on it.
    pub supply: Supply,
    /// Power in measured situations.
    pub power: Vec<Power>,
    /// Changes between operating points.
    pub transitions: Vec<Transition>,
    /// Idle states, shallowest first.
    pub cstates: Vec<CState>,
    /// Costs of moving.
    pub moves: Vec<Move>,
}

/// A value that the model lacks, and what a computation uses in its place. Results that rest on it
/// name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Assumed {
    /// The value's key in the file, with what it is about where several tables have the key:
    /// `request.stall_ns`, ``level.bins of `L1` ``.
    pub key: String,
    /// What is used in its place, with its unit.
    pub value: String,
}

impl Assumed {
    /// In the place of `key`, `value` is used.
    #[must_use]
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self { key: key.into(), value: value.into() }
    }
}

impl fmt::Display for Assumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.value)
    }
}

/// A value that a model lacks and a caller needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model of {model} does not say `{key}`, which {needed_for} needs")]
pub struct Missing {
    /// The model's name.
    pub model: String,
    /// The missing value's key in the file.
    pub key: &'static str,
    /// The purpose that needs the value.
    pub needed_for: &'static str,
}

impl Model {
    /// A model without any knowledge except the processor's name: one level, no rules.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            shape: Shape::default(),
            clusters: Vec::new(),
            clock: Clock::default(),
            levels: vec![Level::named("L0")],
            rules: Vec::new(),
            request: Request::default(),
            release: Release::default(),
            long_recurrences: Vec::new(),
            pstates: Vec::new(),
            supply: Supply::default(),
            power: Vec::new(),
            transitions: Vec::new(),
            cstates: Vec::new(),
            moves: Vec::new(),
        }
    }

    /// What a move of this kind takes (ns).
    #[must_use]
    pub fn price(&self, kind: &str) -> Option<&Sourced<f64>> {
        self.moves.iter().find(|one| one.kind == kind).map(|one| &one.ns)
    }

    /// The cluster of each core of a package, with its number. Cores outside of any cluster come
    /// after those, and are left out.
    pub fn clusters_of_cores(&self) -> impl Iterator<Item = (usize, &Cluster)> {
        self.clusters.iter().enumerate().flat_map(|(number, cluster)| {
            let cores = usize::try_from(cluster.cores.value).unwrap_or(usize::MAX);
            std::iter::repeat_n((number, cluster), cores)
        })
    }

    /// Returns `value`, or an error that names the missing value.
    ///
    /// # Errors
    /// [`Missing`]: the model lacks the value; not fatal for other values.
    pub fn require<'a, T>(
        &self,
        value: Option<&'a Sourced<T>>,
        key: &'static str,
        needed_for: &'static str,
    ) -> Result<&'a T, Missing> {
        let missing = || Missing { model: self.identity.name.clone(), key, needed_for };
        value.map(|sourced| &sourced.value).ok_or_else(missing)
    }

    /// The ratio of the clock at `level` to the clock at the first level, with one core active.
    ///
    /// # Errors
    /// [`Missing`] if the model has neither the ratio nor both clocks.
    pub fn clock_ratio(
        &self,
        level: LicenseLevel,
        needed_for: &'static str,
    ) -> Result<f64, Missing> {
        let at = |index: u32| self.levels.get(usize::try_from(index).ok()?);
        let told = at(level.index()).and_then(|level| level.clock_ratio.as_ref());
        let clock = |index| at(index).and_then(|level| level.mhz(1)).map(|mhz| mhz as f64);
        let ratio = told.map(|ratio| ratio.value);
        let ratio = ratio.or_else(|| Some(clock(level.index())? / clock(0)?));
        ratio.ok_or_else(|| Missing {
            model: self.identity.name.clone(),
            key: "level.clock_ratio",
            needed_for,
        })
    }

    /// The level that code of `class` requests in the given state of the upper register halves; the
    /// first level if no rule applies.
    #[must_use]
    pub fn level_of(&self, class: InstructionClass, upper: Upper) -> LicenseLevel {
        let applies =
            |rule: &&Rule| rule.class == class && (rule.upper == Upper::Any || rule.upper == upper);
        let levels = self.rules.iter().filter(applies).map(|rule| rule.level.value);
        levels.max().unwrap_or(LicenseLevel::new(0))
    }
}

impl Level {
    /// A level with a name and no known values.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            bins: Vec::new(),
            clock_ratio: None,
            issue_ratio: None,
            reduced_mhz: None,
        }
    }

    /// The highest clock with `active` cores active (MHz); `None` if the model lacks it.
    #[must_use]
    pub fn mhz(&self, active: u32) -> Option<u64> {
        let holds = |bin: &&Bin| (bin.from_cores..=bin.cores).contains(&active);
        self.bins.iter().find(holds).map(|bin| bin.mhz.value)
    }
}

impl<T> Sourced<T> {
    /// A value that was measured or published.
    pub fn new(value: T, source: impl Into<String>) -> Self {
        Self { value, source: source.into(), guess: false, ci95: None }
    }

    /// Adds the interval of the measurement.
    #[must_use]
    pub fn with_interval(mut self, low: T, high: T) -> Self {
        self.ci95 = Some((low, high));
        self
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Core => "core",
            Self::Cluster => "cluster",
            Self::Package => "package",
        })
    }
}
