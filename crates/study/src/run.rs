//! One simulated run of a mechanism, and what is kept of it.

mod bursts;

use dimmer_policy::license::hardware::Rules;
use dimmer_processor::model::{Missing, Model};
use dimmer_processor::units::LicenseLevel;
use dimmer_sim::scenario::{Outcome, ThreadOutcome};
use dimmer_sim::{Course, Moment, Observer, Picos, Segment, Served, SimError, Totals};
use serde::{Deserialize, Serialize};

pub use self::bursts::Bursts;
use self::bursts::Gaps;

use crate::mechanism::Way;
use crate::work::done;

/// What is kept of a run. Times are of all cores together, in seconds of simulated time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The work of each program, by its name.
    pub programs: Vec<Program>,
    /// Energy of all packages (J), or why it is not known.
    pub joules: Result<f64, String>,
    /// Simulated time.
    pub length_s: f64,
    /// Dedicated cores, averaged over time.
    pub dedicated_cores: f64,
    /// Time at each level, executing at full rate.
    pub at_level_s: Vec<f64>,
    /// The part of the busy time that lower clocks take, by the clocks of the model with one core
    /// active; `None` if it does not say them.
    pub slower: Option<f64>,
    /// Executing code that is throttled until it has its level.
    pub throttled_s: f64,
    /// Standing still while clocks change.
    pub still_s: f64,
    /// In interrupts and calls of governors, and in requests for P-states.
    pub governor_s: f64,
    /// Waking up, or taking over threads from other CPUs.
    pub delayed_s: f64,
    /// With nothing to run.
    pub idle_s: f64,
    /// The part of the time at levels in which the level was lower than the code asks for.
    pub below_s: f64,
    /// Changes of level.
    pub changes: u64,
    /// Calls of marked regions, if anything decides about them.
    pub calls: u64,
    /// Calls that ran on dedicated cores.
    pub moved: u64,
    /// Migrations at marks.
    pub migrations: u64,
    /// Traps at wide code.
    pub traps: u64,
    /// What one move takes (ns), there and back but for migrations at marks, if the mechanism moves
    /// code and this is known.
    pub move_ns: Option<f64>,
    /// Under the oracle, the governor whose way it chose.
    pub way: Option<String>,
    /// Bursts of code that asks for a level, if they were looked at.
    pub bursts: Option<Bursts>,
}

/// The work of a program in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// The program's name.
    pub name: String,
    /// Whether requests are counted; otherwise instructions.
    pub is_serving: bool,
    /// Work a second.
    pub rate: f64,
    /// The longest 99th percentile of its threads' requests (µs), if it served any.
    pub p99_us: Option<f64>,
}

impl Run {
    /// Time in which cores executed something, or were kept from it.
    #[must_use]
    pub fn busy_s(&self) -> f64 {
        let levels: f64 = self.at_level_s.iter().sum();
        levels + self.throttled_s + self.still_s + self.governor_s + self.delayed_s
    }

    /// The part of the busy time in which the core's level was above L0.
    #[must_use]
    pub fn lowered(&self) -> f64 {
        part(self.at_level_s.iter().skip(1).sum::<f64>() + self.throttled_s, self.busy_s())
    }

    /// The part of the busy time in which the core stood still or was throttled.
    #[must_use]
    pub fn switching(&self) -> f64 {
        part(self.throttled_s + self.still_s, self.busy_s())
    }

    fn slower(&self, model: &Model) -> Option<f64> {
        let lost = self.at_level_s.iter().zip(0..).map(|(seconds, level)| {
            let ratio = model.clock_ratio(LicenseLevel::new(level), "the time lost").ok()?;
            Some(seconds * (1.0 - ratio))
        });
        Some(part(lost.sum::<Option<f64>>()?, self.busy_s()))
    }

    /// How much of something there was in a second of simulated time.
    #[must_use]
    pub fn a_second(&self, count: u64) -> f64 {
        part(count as f64, self.length_s)
    }

    /// The geometric mean of the programs' work, over that in another run of the same workload.
    /// Programs that do none there, such as one that only sleeps, do not count.
    #[must_use]
    pub fn speed_over(&self, other: &Self) -> f64 {
        let pairs = self.programs.iter().zip(&other.programs);
        let pairs = pairs.filter(|(_, other)| other.rate > 0.0);
        let logs: Vec<f64> = pairs.map(|(own, other)| (own.rate / other.rate).ln()).collect();
        (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp()
    }

    /// Whether any program does some work.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.programs.iter().any(|program| program.rate > 0.0)
    }

    /// Energy for the same work, over that in another run; `None` if this one does no work.
    #[must_use]
    pub fn energy_over(&self, other: &Self) -> Option<f64> {
        let watts = |run: &Self| Some(run.joules.as_ref().ok()? / run.length_s);
        let speed = Some(self.speed_over(other)).filter(|speed| *speed > 0.0)?;
        Some(watts(self)? / watts(other)? / speed)
    }

    /// The longest 99th percentile of any program's requests (µs), if any was served.
    #[must_use]
    pub fn p99_us(&self) -> Option<f64> {
        self.programs.iter().filter_map(|program| program.p99_us).reduce(f64::max)
    }
}

fn part(of: f64, all: f64) -> f64 {
    if all > 0.0 { of / all } else { 0.0 }
}

/// Runs a workload under a mechanism with a seed. `None` if `stops` returned true before its end.
///
/// * `looks`: whether bursts of wide code are looked at, which takes longer.
///
/// # Errors
/// As [`dimmer_sim::scenario::Scenario::run_on`].
pub fn measure(
    way: &Way,
    model: &Model,
    seed: u64,
    looks: bool,
    stops: &dyn Fn() -> bool,
) -> Result<Option<Run>, SimError> {
    let settings = way.settings(model, seed)?;
    let moves = settings.region_moves.as_ref().map(|moves| 2.0 * moves.hand_over_ns);
    let traps = settings.specialise.as_ref().map(|of| of.trap_ns + of.interrupt_ns);
    let migrations = settings.phases.as_ref().and_then(|_| migration_ns(model));
    let move_ns = moves.or(traps).or(migrations);
    let cores = settings.cores;
    let gaps = looks.then(|| Gaps::new(model, cores)).transpose()?;
    let watch = Watch { course: Course::default(), gaps };
    let (outcome, watch) = way.scenario.run_on(model, settings, watch, &|_| stops())?;
    Ok((!outcome.is_partial).then(|| {
        let mut run = Run::new(&outcome, watch, move_ns);
        run.slower = run.slower(model);
        run
    }))
}

/// A migration at marks, one way, as they are counted (ns).
fn migration_ns(model: &Model) -> Option<f64> {
    let kinds = ["thread in user mode between clusters", "thread in user mode"];
    kinds.into_iter().find_map(|kind| model.price(kind)).map(|ns| ns.value)
}

/// Sees the policy server's decisions, and bursts if these are looked at.
struct Watch {
    course: Course,
    gaps: Option<Gaps>,
}

impl Observer for Watch {
    fn sees_segments(&self) -> bool {
        self.gaps.is_some()
    }

    fn runs(&mut self, now: Moment, core: usize, thread: usize, segment: &Segment) {
        if let Some(gaps) = &mut self.gaps {
            gaps.runs(now, core, thread, segment);
        }
    }

    fn stops(&mut self, now: Moment, core: usize, thread: usize) {
        if let Some(gaps) = &mut self.gaps {
            gaps.stops(now, core, thread);
        }
    }

    fn serves(&mut self, now: Moment, served: Served) {
        self.course.serves(now, served);
    }
}

impl Run {
    fn new(outcome: &Outcome, watch: Watch, move_ns: Option<f64>) -> Self {
        let seconds = |time: Picos| time.as_f64() / 1e12;
        let sum = |of: fn(&Totals) -> Picos| {
            outcome.cores.iter().map(|core| seconds(of(core))).sum::<f64>()
        };
        let levels = outcome.cores.first().map_or(0, |core| core.level.len());
        let at_level =
            |level: usize| outcome.cores.iter().map(|core| seconds(core.level[level])).sum::<f64>();
        let of_threads =
            |of: fn(&ThreadOutcome) -> u64| outcome.threads.iter().map(of).sum::<u64>();
        let energy = outcome.energy.as_ref().map_err(ToString::to_string);
        let joules =
            energy.map(|energy| energy.packages.iter().map(|package| package.joules).sum::<f64>());
        let programs = done(outcome).into_iter().map(|(name, done)| Program {
            name: name.to_owned(),
            is_serving: done.is_serving,
            rate: done.rate(),
            p99_us: done.p99.map(|ns| ns as f64 / 1e3),
        });
        let dedicated = |served: &Served| served.cores as f64;
        Self {
            programs: programs.collect(),
            joules,
            length_s: seconds(outcome.end.since_start()),
            dedicated_cores: watch.course.mean(Moment::START, outcome.end, dedicated),
            at_level_s: (0..levels).map(at_level).collect(),
            slower: None,
            throttled_s: sum(|core| core.throttled),
            still_s: sum(|core| core.still),
            governor_s: sum(|core| core.stolen),
            delayed_s: sum(|core| core.delayed),
            idle_s: sum(|core| core.idle),
            below_s: sum(|core| core.below),
            changes: outcome.cores.iter().map(|core| core.changes).sum(),
            calls: of_threads(|thread| thread.calls),
            moved: of_threads(|thread| thread.moved),
            migrations: of_threads(|thread| thread.migrations),
            traps: of_threads(|thread| thread.traps),
            move_ns,
            way: outcome.oracle_way.map(|way| way.name().to_owned()),
            bursts: watch.gaps.map(|gaps| gaps.bursts(outcome.end)),
        }
    }
}

/// The time after its last use through which a level is kept (ns), by a model; `None` if it does
/// not say it.
#[must_use]
pub fn hold_ns(model: &Model) -> Option<f64> {
    let hold = model.release.hold_ns.as_ref()?.value;
    let recurrence = model.release.recurrence_ns.as_ref().map_or(0, |ns| ns.value);
    Some(hold.max(recurrence) as f64)
}

impl Gaps {
    fn new(model: &Model, cores: u32) -> Result<Self, Missing> {
        Ok(Self::of(Rules::new(model)?, cores, hold_ns(model)))
    }
}
