//! Auto: [`dimmer_policy::auto`] chooses among a machine's mechanisms while a workload runs. In the
//! simulator, it can be compared with each mechanism alone on the same workload.
//! `docs/study-json.md` describes how results are kept in the cache.

use std::sync::atomic::{AtomicUsize, Ordering};

use dimmer_policy::auto::{Auto, Settings as Trials};
use dimmer_processor::model::Model;
use dimmer_processor::units::Time;
use dimmer_sim::scenario::{ChoosesMode, Scenario};
use dimmer_sim::{Governor, Mode, Moment, Moving, Picos, Settings, SimError};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::matrix::{Follower, Plan, StudyError};
use crate::mechanism::Mechanism;

/// Mechanisms that auto chooses among, if they apply. Two that need a machine of their own, as the
/// paper's way to specialise and Dimmer's do, cannot be among them at once. One under which code of
/// the workload runs above the clock of its level is no candidate there.
const CANDIDATES: [Mechanism; 8] = [
    Mechanism::None,
    Mechanism::Narrow,
    Mechanism::Delegate,
    Mechanism::SpecialiseLearning,
    Mechanism::Boost,
    Mechanism::PhasesLearning,
    Mechanism::User,
    Mechanism::Predictive,
];

/// How long workloads run, and from when on they count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Length {
    /// Simulated time (s).
    pub seconds: usize,
    /// What is before, auto may take to learn (s).
    pub learning: usize,
}

impl Length {
    /// A run of this many seconds, whose first half is for learning.
    #[must_use]
    pub const fn of(seconds: usize) -> Self {
        Self { seconds, learning: seconds / 2 }
    }
}

const SECOND: Picos = Picos::from_ps(1_000_000_000_000);

/// The time over which auto may not lose (s).
const ANY: usize = 10;

/// A workload that has more segments in a simulated second takes hours to simulate, and is as
/// steady in a tenth of a window as others are in a whole one.
const DENSE: u64 = 3_000_000;

/// What came of auto on a workload on a processor, beside each mechanism alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// How many times shorter the run and all times of auto were: 10 where the workload is
    /// dense, otherwise 1.
    pub shorter: u64,
    /// Mechanisms alone, none first: how much more work they do than none after the learning time.
    /// Those under which code runs above the clock of its level, and bounds, are not among them.
    pub alone: Vec<(Mechanism, f64)>,
    /// The mechanisms that auto had.
    pub candidates: Vec<Mechanism>,
    /// How much more work auto does than none after the learning time.
    pub gain: f64,
    /// The same for the ten seconds with the least.
    pub worst: f64,
    /// What was in force at the end, trials aside.
    pub chosen: Mechanism,
    /// Whether code ran above the clock of its level.
    pub is_below: bool,
}

impl Judgement {
    /// The mechanism that does the most work alone.
    #[must_use]
    pub fn best(&self) -> (Mechanism, f64) {
        let best = self.alone.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a });
        best.unwrap_or((Mechanism::None, 0.0))
    }
}

/// The seed of all runs.
const SEED: u64 = 1;

/// Judges each scenario on each model of a plan, in that order, with seed 1, except for what the
/// cache has. `None` where the study ended before.
///
/// # Errors
/// If the threads cannot be started.
pub fn judge_all(
    plan: &Plan,
    length: Length,
    cache: &Cache,
    follower: &Follower<'_>,
) -> Result<Vec<Case>, StudyError> {
    let places = (0..plan.scenarios.len())
        .flat_map(|scenario| (0..plan.models.len()).map(move |model| (scenario, model)));
    let places: Vec<(usize, usize)> = places.collect();
    let complete = AtomicUsize::new(0);
    let one = |(scenario, model): &(usize, usize)| {
        let (of, on) = (&plan.scenarios[*scenario].value, &plan.models[*model].value);
        let label = format!("auto {} {}", length.seconds, length.learning);
        let mut kept = cache.open(of, on);
        let judgement = kept.run(&label, SEED).map_or_else(
            || {
                let judged = judge(of, on, SEED, length, follower.stops).transpose();
                judged.map(|judged| kept.keep(&label, SEED, &judged))
            },
            Some,
        );
        // Relaxed: only the number counts.
        let before = complete.fetch_add(1, Ordering::Relaxed);
        (follower.advances)(before + 1, places.len());
        Case { scenario: *scenario, model: *model, judgement }
    };
    Ok(plan.pool()?.install(|| places.par_iter().with_max_len(1).map(one).collect()))
}

/// A scenario on a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The number of the scenario in the plan.
    pub scenario: usize,
    /// The number of the model in the plan.
    pub model: usize,
    /// What came of it, or in words, why it does not apply; `None` if the study ended before.
    pub judgement: Option<Result<Judgement, String>>,
}

/// Runs a workload under each mechanism alone and under auto. `None` if `stops` returned true
/// before all had ended.
///
/// # Errors
/// In words, why not even none applies, or what cannot be simulated.
pub fn judge(
    scenario: &Scenario,
    model: &Model,
    seed: u64,
    length: Length,
    stops: &dyn Fn() -> bool,
) -> Result<Option<Judgement>, String> {
    let words = |error: SimError| error.to_string();
    Mechanism::None.on(scenario, model)?;
    let shorter = if is_dense(scenario, model, seed).map_err(words)? { 10 } else { 1 };
    let step = SECOND / shorter;
    let scenario = scenario.endless(Moment::START + step * length.seconds as u64);
    let mut all: Vec<(Mechanism, Course)> = Vec::new();
    for mechanism in Mechanism::ALL.into_iter().filter(|mechanism| !mechanism.is_bound()) {
        let Ok(way) = mechanism.on(&scenario, model) else { continue };
        let settings = way.settings(model, seed).map_err(words)?;
        let mut course = Course::new(step);
        let run = way.scenario.run_in_modes(model, settings, &mut course, (), stops);
        let (outcome, ()) = run.map_err(words)?;
        if outcome.is_partial {
            return Ok(None);
        }
        if outcome.is_at_its_levels() {
            all.push((mechanism, course));
        }
    }
    let is_safe = |mechanism: &Mechanism| all.iter().any(|(alone, _)| alone == mechanism);
    let candidates: Vec<Mechanism> = CANDIDATES.into_iter().filter(is_safe).collect();
    let settings = machine(&candidates, &scenario, model, seed).map_err(words)?;
    let mut chooses = Chooses {
        course: Course::new(step),
        modes: candidates.iter().map(|mechanism| mode(*mechanism)).collect(),
        trials: Trials::USUAL.faster(shorter),
        auto: None,
    };
    let run = scenario.run_in_modes(model, settings, &mut chooses, (), stops);
    let (outcome, ()) = run.map_err(words)?;
    if outcome.is_partial {
        return Ok(None);
    }
    let Some((_, none)) = all.first() else { return Err("none was not simulated".to_owned()) };
    let from = length.learning.min(none.steps.len().saturating_sub(1));
    let gain = |course: &Course| course.over(none, from, none.steps.len() - 1);
    if gain(none).is_nan() {
        return Err("no program does any work under none after the learning time".to_owned());
    }
    let tens = (0..none.steps.len().saturating_sub(ANY)).filter_map(|begin| {
        let gain = chooses.course.over(none, begin, begin + ANY);
        (!gain.is_nan()).then_some(gain)
    });
    Ok(Some(Judgement {
        shorter,
        alone: all.iter().map(|(mechanism, course)| (*mechanism, gain(course))).collect(),
        gain: gain(&chooses.course),
        worst: tens.reduce(f64::min).unwrap_or(0.0),
        chosen: chooses.auto.map_or(Mechanism::None, |auto| candidates[auto.chosen()]),
        candidates,
        is_below: !outcome.is_at_its_levels(),
    }))
}

/// Whether a workload's segments are more than [`DENSE`] allows, by its first fiftieth of a second.
fn is_dense(scenario: &Scenario, model: &Model, seed: u64) -> Result<bool, SimError> {
    const PART: u64 = 50;
    let scenario = scenario.endless(Moment::START + SECOND / PART);
    let settings = scenario.settings(model, Governor::Hardware, Moving::None, seed)?;
    let (outcome, ()) = scenario.run_on(model, settings, (), &|_| false)?;
    Ok(outcome.segments > DENSE / PART)
}

/// The machine that has all of these mechanisms, each to be in force alone.
fn machine(
    candidates: &[Mechanism],
    scenario: &Scenario,
    model: &Model,
    seed: u64,
) -> Result<Settings, SimError> {
    let mut settings = scenario.settings(model, Governor::Hardware, Moving::None, seed)?;
    settings.changes_mode = true;
    for mechanism in candidates {
        if let Ok(way) = mechanism.on(scenario, model) {
            let own = way.settings(model, seed)?;
            settings.region_moves = own.region_moves.or(settings.region_moves);
            settings.specialise = own.specialise.or(settings.specialise);
            settings.phases = own.phases.or(settings.phases);
        }
    }
    Ok(settings)
}

/// What is in force while a candidate is.
fn mode(mechanism: Mechanism) -> Mode {
    let none = Mode::NONE;
    match mechanism {
        Mechanism::Narrow => Mode { is_narrow: true, ..none },
        Mechanism::Delegate => Mode { moves_regions: true, ..none },
        Mechanism::SpecialiseLearning => Mode { specialises: true, ..none },
        Mechanism::Boost => Mode { requests_pstates: true, ..none },
        Mechanism::PhasesLearning => Mode { migrates: true, ..none },
        Mechanism::User => Mode { governor: Governor::User, ..none },
        Mechanism::Predictive => Mode { governor: Governor::Predictive, ..none },
        _ => none,
    }
}

/// The work of each program up to each step: a second, or a part of one.
#[derive(Clone, Debug)]
struct Course {
    step: Picos,
    steps: Vec<Vec<f64>>,
}

impl Course {
    fn new(step: Picos) -> Self {
        Self { step, steps: Vec::new() }
    }

    fn next_step(&self) -> Moment {
        Moment::START + self.step * self.steps.len() as u64
    }

    fn sees(&mut self, now: Moment, work: &[f64]) {
        while self.next_step() <= now {
            self.steps.push(work.to_vec());
        }
    }

    /// How much more work is done than in another run from one step to another: a geometric mean
    /// over programs that do some in the other run. NaN if none does.
    fn over(&self, other: &Self, from: usize, to: usize) -> f64 {
        let done = |of: &Self, program: usize| {
            let at = |step: usize| of.steps.get(step).map(|work| work[program]);
            Some(at(to)? - at(from)?)
        };
        let programs = other.steps.first().map_or(0, Vec::len);
        let ratios = (0..programs).filter_map(|program| {
            let (own, other) = (done(self, program)?, done(other, program)?);
            (other > 0.0).then(|| (own / other).ln())
        });
        let logs: Vec<f64> = ratios.collect();
        (logs.iter().sum::<f64>() / logs.len() as f64).exp() - 1.0
    }
}

impl ChoosesMode for Course {
    fn next(&self, _now: Moment) -> Moment {
        self.next_step()
    }

    fn choose(&mut self, now: Moment, work: &[f64]) -> Mode {
        self.sees(now, work);
        Mode::NONE
    }
}

/// Auto on a simulated machine.
struct Chooses {
    course: Course,
    modes: Vec<Mode>,
    trials: Trials,
    auto: Option<Auto>,
}

impl ChoosesMode for Chooses {
    fn next(&self, now: Moment) -> Moment {
        let auto = self.auto.as_ref().map(|auto| auto.next_wakeup(now.time()).moment());
        // What rounds down to now is later.
        let auto = auto.unwrap_or(now).max(now + Picos::from_ps(1_000_000));
        if self.auto.is_none() { now } else { auto.min(self.course.next_step()) }
    }

    fn choose(&mut self, now: Moment, work: &[f64]) -> Mode {
        self.course.sees(now, work);
        let time: Time = now.time();
        let auto =
            self.auto.get_or_insert_with(|| Auto::new(self.trials, self.modes.len(), time, work));
        self.modes[auto.step(time, work)]
    }
}

#[cfg(test)]
mod tests;
