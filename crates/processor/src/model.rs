//! Processor models: a processor described in a file, every value with its source.
//!
//! A model holds what is known and no more. A value that nobody has measured or published is
//! absent; who needs it asks [`Model::require`] and gets an error that names it. The format is
//! described in `docs/model.md`; reading is [`Model::parse`], writing [`Model::to_toml`].

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

/// A value and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Sourced<T> {
    /// The value, in the unit that its key names.
    pub value: T,
    /// Paper and section, manual, or measurement.
    pub source: String,
    /// Whether the source infers or remembers it rather than having measured it.
    pub guess: bool,
    /// The 95 % interval, for measurements that have one.
    pub ci95: Option<(T, T)>,
}

/// Who the processor is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its marketing name.
    pub name: String,
    /// As CPUID gives it: `GenuineIntel`.
    pub vendor: String,
    /// The design.
    pub microarchitecture: String,
    /// What the model is, where that needs saying: the machine's settings, what is missing.
    pub note: Option<String>,
}

/// How many of what there is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape {
    /// Packages of the machine.
    pub packages: Option<Sourced<u32>>,
    /// Cores of a package.
    pub cores: Option<Sourced<u32>>,
    /// Hardware threads of a core.
    pub threads_per_core: Option<Sourced<u32>>,
    /// Second-level cache of a core, or of the cores that share one (KiB).
    pub l2_kib: Option<Sourced<u64>>,
    /// Third-level cache of a package, or of the cores that share one (KiB).
    pub l3_kib: Option<Sourced<u64>>,
}

/// A group of cores of one kind, where not all are alike or not all share a clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// How many cores it has; at least one.
    pub cores: Sourced<u32>,
    /// Its highest clock (MHz).
    pub max_mhz: Option<Sourced<u64>>,
    /// Work per cycle, the fastest cluster's being 1.
    pub capacity_ratio: Option<Sourced<f64>>,
}

/// The cores that have one clock between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum Domain {
    /// Each core has its own.
    Core,
    /// A module or cluster has one.
    Cluster,
    /// The package has one.
    Package,
}

/// Clocks and limits that do not depend on a license.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clock {
    /// Who shares a clock.
    pub domain: Option<Sourced<Domain>>,
    /// The time-stamp counter (MHz).
    pub tsc_mhz: Option<Sourced<u64>>,
    /// The lowest clock (MHz).
    pub min_mhz: Option<Sourced<u64>>,
    /// The clock that is guaranteed (MHz).
    pub base_mhz: Option<Sourced<u64>>,
    /// The highest clock of one core (MHz).
    pub max_mhz: Option<Sourced<u64>>,
    /// Rated power of a package (mW).
    pub tdp_mw: Option<Sourced<u64>>,
}

/// The highest clock with a number of cores active.
#[derive(Clone, Debug, PartialEq)]
pub struct Bin {
    /// From so many active cores on; numbers between two bins are unknown.
    pub from_cores: u32,
    /// Up to so many.
    pub cores: u32,
    /// The clock (MHz).
    pub mhz: Sourced<u64>,
}

/// A license level: a cap on the clock, or on issue.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// Its name: `L0`.
    pub name: String,
    /// The cap by active cores, ascending; empty where unknown.
    pub bins: Vec<Bin>,
    /// The cap relative to the first level's, for measurements that know no more.
    pub clock_ratio: Option<Sourced<f64>>,
    /// Instructions issued per cycle relative to the first level, where issue is what is capped.
    pub issue_ratio: Option<Sourced<f64>>,
    /// The cap with one core active that is left where the firmware reduces levels as far as it
    /// can, so that software may decide (MHz).
    pub reduced_mhz: Option<Sourced<u64>>,
}

/// The state of the upper register halves that a rule asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upper {
    /// Any.
    Any,
    /// Left dirty by 512-bit code.
    Dirty,
}

/// Which code asks for which level.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The class of the code.
    pub class: InstructionClass,
    /// The state of the upper register halves.
    pub upper: Upper,
    /// The level it asks for.
    pub level: Sourced<LicenseLevel>,
    /// Median number of instructions until it does.
    pub instructions: Option<Sourced<u64>>,
    /// Standard deviation of that number's natural logarithm; absent or 0: always the same.
    pub instructions_log_sd: Option<Sourced<f64>>,
    /// Instructions per cycle below which it does not.
    pub density_per_cycle: Option<Sourced<f64>>,
    /// Median time from the first instruction to the level (ns).
    pub grant_ns: Option<Sourced<u64>>,
    /// Standard deviation of that time's natural logarithm; absent or 0: always the same.
    pub grant_log_sd: Option<Sourced<f64>>,
}

/// Whether levels in between are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum Path {
    /// One after the other.
    InTurn,
    /// The level asked for at once.
    Directly,
}

/// From the wish for a level to the level.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// Throughput of wide code meanwhile, 1 being unthrottled.
    pub throttle_factor: Option<Sourced<f64>>,
    /// The same for instructions that wait for each other.
    pub chained_throttle_factor: Option<Sourced<f64>>,
    /// How long that lasts (ns).
    pub throttled_ns: Option<Sourced<u64>>,
    /// How long the voltage alone changes, for code that keeps its clock but wants more (ns).
    pub voltage_ns: Option<Sourced<u64>>,
    /// How long the core stands still at the change (ns).
    pub stall_ns: Option<Sourced<u64>>,
    /// The power-control unit serves wishes in slots of this length (ns): all of one slot together,
    /// when the slowest is decided.
    pub slot_ns: Option<Sourced<u64>>,
    /// Share of wishes made together with the one that begins a slot that are served in the next
    /// slot only.
    pub missed_share: Option<Sourced<f64>>,
    /// Levels in between.
    pub path: Option<Sourced<Path>>,
}

/// From the last wide instruction back to the nominal clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Release {
    /// How long the level is held after an isolated burst (ns).
    pub hold_ns: Option<Sourced<u64>>,
    /// Share of releases that take longer.
    pub extended_share: Option<Sourced<f64>>,
    /// The same while another core of the package has a level; absent: no other share.
    pub extended_share_beside: Option<Sourced<f64>>,
    /// How long those take at most, evenly spread from `hold_ns` (ns).
    pub extended_ns: Option<Sourced<u64>>,
    /// From which level alone they do; absent: from any.
    pub extended_level: Option<Sourced<LicenseLevel>>,
    /// After code of which class or a more demanding one; absent: after any.
    pub extended_class: Option<Sourced<InstructionClass>>,
    /// How long the core stands still at the change (ns).
    pub stall_ns: Option<Sourced<u64>>,
    /// While bursts recur at gaps below this, the level is not given back at all (ns).
    pub recurrence_ns: Option<Sourced<u64>>,
    /// For how long bursts must have recurred before that (ns).
    pub recurrence_after_ns: Option<Sourced<u64>>,
    /// How much longer code takes meanwhile, as measured with the most demanding class.
    pub recurrence_slowdown: Option<Sourced<f64>>,
    /// What an isolated burst of the most demanding class costs on average, as measured (ns): where
    /// the effect comes and goes, less than the values above make one expect.
    pub episode_ns: Option<Sourced<u64>>,
}

/// An operating point.
#[derive(Clone, Debug, PartialEq)]
pub struct PState {
    /// Its name: `P2`.
    pub name: String,
    /// The clock (MHz).
    pub mhz: Sourced<u64>,
    /// The voltage (mV).
    pub mv: Option<Sourced<u64>>,
}

/// Power in one situation.
#[derive(Clone, Debug, PartialEq)]
pub struct Power {
    /// What runs where.
    pub load: String,
    /// The P-state of the cores that run it.
    pub pstate: String,
    /// How many cores of the package execute at it; absent: not known, or not what the simulator's
    /// code is like.
    pub busy_cores: Option<u32>,
    /// How many more execute at a slower one, and at which; absent: none. The others wait.
    pub slow: Option<(u32, String)>,
    /// Power of the package (mW).
    pub package_mw: Sourced<u64>,
}

/// A change from one P-state to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    /// From which.
    pub from: String,
    /// To which.
    pub to: String,
    /// How long the request keeps the core (ns).
    pub request_ns: Option<Sourced<u64>>,
    /// From the request to the new clock (ns).
    pub total_ns: Option<Sourced<u64>>,
}

/// An idle state.
#[derive(Clone, Debug, PartialEq)]
pub struct CState {
    /// Its name: `C6`.
    pub name: String,
    /// Time to wake up (ns).
    pub exit_ns: Sourced<u64>,
    /// Stay from which it pays (ns).
    pub residency_ns: Option<Sourced<u64>>,
}

/// The price of moving something from core to core.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// What moves, from where to where: one of [`Move::KINDS`].
    pub kind: String,
    /// One way (ns).
    pub ns: Sourced<f64>,
}

impl Move {
    /// What can be moved.
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

/// A processor.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Who it is.
    pub identity: Identity,
    /// How many of what.
    pub shape: Shape,
    /// Groups of unlike cores; empty where all are alike.
    pub clusters: Vec<Cluster>,
    /// Clocks and limits.
    pub clock: Clock,
    /// License levels, the unrestricted one first; at least one.
    pub levels: Vec<Level>,
    /// Which code asks for which level.
    pub rules: Vec<Rule>,
    /// How a level is got.
    pub request: Request,
    /// How it is given back.
    pub release: Release,
    /// Operating points, fastest first; empty where unknown.
    pub pstates: Vec<PState>,
    /// Power.
    pub power: Vec<Power>,
    /// Changes between operating points.
    pub transitions: Vec<Transition>,
    /// Idle states, shallowest first.
    pub cstates: Vec<CState>,
    /// Prices of moving.
    pub moves: Vec<Move>,
}

/// A value that a model does not have and somebody needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model of {model} does not say `{key}`, which {needed_for} needs")]
pub struct Missing {
    /// Whose model.
    pub model: String,
    /// Which value, by its key in the file.
    pub key: &'static str,
    /// What for.
    pub needed_for: &'static str,
}

impl Model {
    /// A model of which nothing is known but the processor's name: one level, no rules.
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
            pstates: Vec::new(),
            power: Vec::new(),
            transitions: Vec::new(),
            cstates: Vec::new(),
            moves: Vec::new(),
        }
    }

    /// `value`, or the error that says what is missing.
    ///
    /// # Errors
    /// [`Missing`]: the model does not have it; not fatal for others.
    pub fn require<'a, T>(
        &self,
        value: Option<&'a Sourced<T>>,
        key: &'static str,
        needed_for: &'static str,
    ) -> Result<&'a T, Missing> {
        let missing = || Missing { model: self.identity.name.clone(), key, needed_for };
        value.map(|sourced| &sourced.value).ok_or_else(missing)
    }

    /// The clock at `level` over that at the lowest one, with one core active.
    ///
    /// # Errors
    /// [`Missing`] if the model says neither the ratio nor both clocks.
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

    /// The level that code of `class` asks for, upper register halves being as given; the first
    /// level where no rule speaks of it.
    #[must_use]
    pub fn level_of(&self, class: InstructionClass, upper: Upper) -> LicenseLevel {
        let applies =
            |rule: &&Rule| rule.class == class && (rule.upper == Upper::Any || rule.upper == upper);
        let levels = self.rules.iter().filter(applies).map(|rule| rule.level.value);
        levels.max().unwrap_or(LicenseLevel::new(0))
    }
}

impl Level {
    /// A level of which nothing but the name is known.
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

    /// The highest clock with `active` cores (MHz); `None` where the model does not say.
    #[must_use]
    pub fn mhz(&self, active: u32) -> Option<u64> {
        let holds = |bin: &&Bin| (bin.from_cores..=bin.cores).contains(&active);
        self.bins.iter().find(holds).map(|bin| bin.mhz.value)
    }
}

impl<T> Sourced<T> {
    /// A value that somebody has measured or published.
    pub fn new(value: T, source: impl Into<String>) -> Self {
        Self { value, source: source.into(), guess: false, ci95: None }
    }

    /// With the interval that the measurement gave.
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
