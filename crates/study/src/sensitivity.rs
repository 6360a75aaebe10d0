//! By which factor one parameter must change for another mechanism to be first.

use std::sync::{Mutex, PoisonError};

use dimmer_processor::model::{Model, Sourced};
use dimmer_processor::units::nearest;
use dimmer_sim::scenario::Scenario;
use rayon::prelude::*;

use crate::cache::{Cache, Kept};
use crate::matrix::{Case, Cell, Follower, Job, Plan, StudyError};
use crate::mechanism::Mechanism;
use crate::ranking::Place;

/// The largest factor, as a power of two; the least one is its inverse.
const MOST: f64 = 3.0;

/// Halvings of the range from 1 to the largest factor: a factor is found to 2^(3/32), 7 %.
const HALVINGS: u32 = 5;

/// What changes, by one factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// How long a level is kept after its last use.
    Hold,
    /// How long a change of level throttles code and stops the core.
    Switch,
    /// What moving a region, a thread or data costs.
    Move,
    /// How far the clocks of levels are below L0's.
    Clock,
}

/// What changes a first place: each parameter that the model has, with at most one factor above 1
/// and one below; `None` if the study ended before all were found.
pub type Turns = Option<Vec<(Parameter, Vec<Turn>)>>;

/// A factor with which another mechanism is first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// The one nearest to 1 in its direction, to 7 %.
    pub factor: f64,
    /// The mechanism that is first then.
    pub first: Mechanism,
}

impl Parameter {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Hold, Self::Switch, Self::Move, Self::Clock];

    /// The name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hold => "hold time",
            Self::Switch => "switch time",
            Self::Move => "move cost",
            Self::Clock => "clocks below L0",
        }
    }

    /// The scenario and the model with this parameter changed.
    fn scaled(self, scenario: &Scenario, model: &Model, factor: f64) -> (Scenario, Model) {
        let (mut scenario, mut model) = (scenario.clone(), model.clone());
        let time = |value: &mut Option<Sourced<u64>>| {
            if let Some(ns) = value {
                ns.value = nearest(ns.value as f64 * factor);
            }
        };
        match self {
            Self::Hold => {
                let release = &mut model.release;
                time(&mut release.hold_ns);
                time(&mut release.extended_ns);
                time(&mut release.recurrence_ns);
                for long in &mut model.long_recurrences {
                    long.gap_ns.value = nearest(long.gap_ns.value as f64 * factor);
                }
            }
            Self::Switch => {
                time(&mut model.request.throttled_ns);
                time(&mut model.request.stall_ns);
                time(&mut model.request.slot_ns);
                time(&mut model.release.stall_ns);
                model.rules.iter_mut().for_each(|rule| time(&mut rule.grant_ns));
            }
            Self::Move => {
                model.moves.iter_mut().for_each(|one| one.ns.value *= factor);
                if let Some(ns) = scenario.hand_over_ns() {
                    scenario = scenario.with_hand_over_ns(ns * factor);
                }
            }
            Self::Clock => lower(&mut model, factor),
        }
        (scenario, model)
    }
}

/// Changes how far the clocks of levels are below L0's, by a factor. No clock falls below a tenth
/// of L0's.
fn lower(model: &mut Model, factor: f64) {
    let Some((first, others)) = model.levels.split_first_mut() else { return };
    let scaled = |own: f64, of: f64| (of - (of - own) * factor).max(0.1 * of);
    for level in others {
        for bin in &mut level.bins {
            let same = first.bins.iter().rfind(|of| of.from_cores <= bin.cores);
            if let Some(of) = same {
                let mhz = scaled(bin.mhz.value as f64, of.mhz.value as f64);
                bin.mhz.value = nearest(mhz);
            }
        }
        for ratio in [&mut level.clock_ratio, &mut level.issue_ratio].into_iter().flatten() {
            ratio.value = scaled(ratio.value, 1.0);
        }
    }
}

/// The mechanism in the first place: none, if it shares it.
fn first(places: &[Place]) -> Option<Mechanism> {
    let has_first = |place: &&Place| place.rank == Some(1);
    let none = places.iter().filter(has_first).find(|place| place.mechanism == Mechanism::None);
    none.or_else(|| places.iter().find(has_first)).map(|place| place.mechanism)
}

/// Whether a mechanism that was first is so no longer.
fn is_turned(was: Mechanism, places: &[Place]) -> bool {
    let is_first = |of| places.iter().any(|place| place.mechanism == of && place.rank == Some(1));
    !is_first(was) || (was != Mechanism::None && is_first(Mechanism::None))
}

/// The factor nearest to 1 from 1 to the largest (`sign` 1) or the least (-1), as a power of two,
/// for which `turns` returns something; `None` if it does not at the end of the range.
fn bisected<T, E>(
    sign: f64,
    mut turns: impl FnMut(f64) -> Result<Option<T>, E>,
) -> Result<Option<(f64, T)>, E> {
    let Some(mut found) = turns((sign * MOST).exp2())? else { return Ok(None) };
    let (mut near, mut far) = (0.0, MOST);
    for _ in 0..HALVINGS {
        let middle = (near + far) / 2.0;
        match turns((sign * middle).exp2())? {
            Some(turned) => (far, found) = (middle, turned),
            None => near = middle,
        }
    }
    Ok(Some(((sign * far).exp2(), found)))
}

impl Plan {
    /// For each case, the factors by which each parameter must change for another mechanism to be
    /// first: from 1/8 to 8, by bisection, which assumes that the first place turns once in each
    /// direction. Parameters that the model lacks are left out. If the follower stops the work,
    /// cases that are not complete have `None`.
    ///
    /// # Errors
    /// [`StudyError`].
    pub fn sensitivity(
        &self,
        cases: &[Case],
        cache: &Cache,
        follower: &Follower<'_>,
    ) -> Result<Vec<Turns>, StudyError> {
        let complete = Mutex::new(0);
        let of_case = |case: &Case| {
            let turns = self.turns(case, cache, follower)?;
            let mut complete = complete.lock().unwrap_or_else(PoisonError::into_inner);
            *complete += 1;
            (follower.advances)(*complete, cases.len());
            Ok(turns)
        };
        self.pool()?.install(|| cases.par_iter().with_max_len(1).map(of_case).collect())
    }

    fn turns(
        &self,
        case: &Case,
        cache: &Cache,
        follower: &Follower<'_>,
    ) -> Result<Turns, StudyError> {
        if case.is_partial() {
            return Ok(None);
        }
        let places = case.ranking();
        let Some(was) = first(&places).filter(|_| places.len() > 1) else {
            return Ok(Some(Vec::new()));
        };
        let mechanisms: Vec<Mechanism> = places
            .iter()
            .filter(|place| place.rank.is_some())
            .map(|place| place.mechanism)
            .collect();
        let (scenario, model) = (&self.scenarios[case.scenario], &self.models[case.model]);
        let kept: Mutex<Option<Kept>> = Mutex::new(None);
        let ranked = |parameter: Parameter, factor: f64| -> Result<Option<Case>, StudyError> {
            let (of, on) = parameter.scaled(&scenario.value, &model.value, factor);
            let job = Job {
                scenario: (&scenario.name, &of),
                model: (&model.name, &on),
                base: (&scenario.value, &model.value),
                variant: format!(", {} x {factor}", parameter.name()),
            };
            let mut cells = Vec::new();
            for mechanism in &mechanisms {
                let cell = self.cell(&job, *mechanism, &kept, cache, follower)?;
                if cell == Cell::NotRun {
                    return Ok(None);
                }
                cells.push((*mechanism, cell));
            }
            Ok(Some(Case { cells, ..*case }))
        };
        let mut turns = Vec::new();
        for parameter in Parameter::ALL {
            let (of, on) = parameter.scaled(&scenario.value, &model.value, 2.0);
            let has = on != model.value || of.hand_over_ns() != scenario.value.hand_over_ns();
            if !has {
                continue;
            }
            let turned = |factor: f64| -> Result<Option<Mechanism>, Stop> {
                let case = ranked(parameter, factor)?.ok_or(Stop::Follower)?;
                let places = case.ranking();
                Ok(first(&places).filter(|_| is_turned(was, &places)))
            };
            let found = [1.0, -1.0].into_iter().map(|sign| bisected(sign, turned));
            let found: Result<Vec<_>, Stop> = found.collect();
            match found {
                Ok(found) => {
                    let found = found.into_iter().flatten();
                    turns.push((
                        parameter,
                        found.map(|(factor, first)| Turn { factor, first }).collect(),
                    ));
                }
                Err(Stop::Follower) => return Ok(None),
                Err(Stop::Error(error)) => return Err(error),
            }
        }
        Ok(Some(turns))
    }
}

/// Why a search ends before its result.
enum Stop {
    Follower,
    Error(StudyError),
}

impl From<StudyError> for Stop {
    fn from(error: StudyError) -> Self {
        Self::Error(error)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::path::Path;

    use dimmer_processor::model::builtin;

    use super::*;
    use crate::matrix::Named;

    #[test]
    fn the_factor_is_found_to_seven_percent() {
        let find = |sign: f64, turns: &dyn Fn(f64) -> bool| {
            let found = bisected(sign, |factor| Ok::<_, Infallible>(turns(factor).then_some(())));
            found.unwrap().map(|(factor, ())| factor)
        };
        let up = find(1.0, &|factor| factor >= 3.0).unwrap();
        assert!((3.0..3.0 * 1.07).contains(&up), "{up}");
        let down = find(-1.0, &|factor| factor <= 0.4).unwrap();
        assert!(down <= 0.4 && down > 0.4 / 1.07, "{down}");
        assert_eq!(find(1.0, &|factor| factor > 8.0), None);
        assert_eq!(find(-1.0, &|factor| factor < 0.1), None);
    }

    #[test]
    fn each_parameter_changes_what_it_names() {
        let model = Model::parse(Path::new("model"), builtin("i9-7940x").unwrap()).unwrap();
        let scenario = crate::builtin::scenario("nginx-avx512").unwrap();
        let (_, hold) = Parameter::Hold.scaled(&scenario, &model, 2.0);
        assert_eq!(hold.release.hold_ns.unwrap().value, 2 * 664_000);
        let (of, _) = Parameter::Move.scaled(&scenario, &model, 0.5);
        assert_eq!(of.hand_over_ns(), Some(3000.0));
        let (_, clock) = Parameter::Clock.scaled(&scenario, &model, 0.5);
        let [l0, l1] = [0, 1].map(|level: usize| clock.levels[level].bins[0].mhz.value);
        assert_eq!((l0, l1), (4300, 3850));
        let (_, switch) = Parameter::Switch.scaled(&scenario, &model, 2.0);
        assert!(switch != model && switch.release.hold_ns == model.release.hold_ns);
    }

    #[test]
    fn an_interrupted_search_is_no_result() {
        let text = "schema = 'dimmer/scenario/1'\nname = 'short'\nsource = 'made up'\n\
                    model = 'i9-7940x'\ncores = 1\nend_us = 2_000\n\
                    [[code]]\nname = 'wide'\nclass = 'heavy-512'\nper_cycle = 1.0\n\
                    [[thread]]\nname = 'worker'\ntimes = 0\n\
                    steps = [{ run = 'wide', us = 50 }, { sleep_us = 50 }]\n";
        let scenario = Scenario::parse(Path::new("short.toml"), text).unwrap();
        let model = Model::parse(Path::new("model"), builtin("i9-7940x").unwrap()).unwrap();
        let plan = Plan {
            scenarios: vec![Named { name: "short".to_owned(), value: scenario }],
            models: vec![Named { name: "i9-7940x".to_owned(), value: model }],
            mechanisms: vec![Mechanism::Narrow],
            seeds: 1,
            jobs: 1,
        };
        let (going, stopped) = (follower(&|| false), follower(&|| true));
        let cache = Cache::new(Some(Path::new("/proc/no/such")));
        let complete = plan.carry_out(&cache, &going).unwrap();
        assert!(plan.sensitivity(&complete, &cache, &going).unwrap()[0].is_some());
        assert_eq!(plan.sensitivity(&complete, &cache, &stopped).unwrap(), [None]);
        let partial = plan.carry_out(&cache, &stopped).unwrap();
        assert_eq!(plan.sensitivity(&partial, &cache, &going).unwrap(), [None]);
    }

    fn follower(stops: &(dyn Fn() -> bool + Sync)) -> Follower<'_> {
        Follower { stops, advances: &|_, _| () }
    }
}
