//! Runs of the simulator. Other Python threads run meanwhile, and signals are looked for.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dimmer_policy::server::loops::Chosen;
use dimmer_processor::model::Model;
use dimmer_report::compare::{Governors, Loops};
use dimmer_report::sim::Run;
use dimmer_sim::scenario::{Outcome, Scenario};
use dimmer_sim::{Course, Decider, Governor, Moving, Observer, Settings, SimError};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use serde::Serialize;

use crate::input::{PyModel, PyScenario, refused};
use crate::policy::Policy;
use crate::python_loop::{Failure, PythonConstants};

/// How often signals are looked for. A guess: shorter than what a user notices.
const LOOK: Duration = Duration::from_millis(20);

/// Simulates a scenario on a model. Returns the document of `dimmer sim run --json`.
#[pyfunction]
pub(crate) fn simulate(
    py: Python<'_>,
    scenario: &Bound<'_, PyScenario>,
    model: &Bound<'_, PyModel>,
    policy: &Bound<'_, PyAny>,
    seed: u64,
) -> PyResult<String> {
    let (scenario, model) = (&scenario.get().scenario, &model.get().model);
    let policy = Policy::of(policy)?;
    let settings = settings(scenario, model, &policy, seed).map_err(refused)?;
    let failure = failure(&policy);
    let outcome = py.detach(|| one(scenario, model, settings, (), &signals(&failure)));
    if let Some(error) = failure.take() {
        return Err(error);
    }
    let (outcome, ()) = outcome.map_err(refused)?;
    let (governor, moving) = (policy.governor(), policy.moving());
    json(&Run { scenario, model, governor, moving, seed, outcome: &outcome }.document())
}

/// Compares policies on one scenario and model, each with all seeds. Returns the document of
/// `dimmer sim compare --json`.
#[pyfunction]
pub(crate) fn compare(
    py: Python<'_>,
    scenario: &Bound<'_, PyScenario>,
    model: &Bound<'_, PyModel>,
    policies: Vec<Bound<'_, PyAny>>,
    seeds: Vec<u64>,
) -> PyResult<String> {
    let (scenario, model) = (&scenario.get().scenario, &model.get().model);
    let policies: Vec<Policy> = policies.iter().map(Policy::of).collect::<PyResult<_>>()?;
    let policies = distinct(policies)?;
    let asked = u64::try_from(seeds.len()).unwrap_or(u64::MAX);
    let are_governors = policies.iter().all(|policy| matches!(policy, Policy::Governor(_)));
    if are_governors {
        let mut ways = policies.clone();
        let usual = Policy::Governor(Governor::Hardware);
        first(&mut ways, usual, |policy| policy.governor() == Governor::Hardware);
        let runs = repeat(py, scenario, model, &ways, &seeds, || ())?;
        let outcomes: Vec<Vec<Outcome>> = runs
            .into_iter()
            .map(|runs| runs.into_iter().map(|(outcome, ())| outcome).collect())
            .collect();
        let governors: Vec<Governor> = ways.iter().map(Policy::governor).collect();
        return json(&Governors::new(scenario, model, asked, &governors, &outcomes));
    }
    if policies.iter().any(|policy| matches!(policy, Policy::Governor(_))) {
        let said = "policies: governors of license levels (hardware, avxfreq, user, oracle, \
                    predictive) and what moves code are compared by different measures; compare \
                    one kind at a time";
        return Err(PyValueError::new_err(said));
    }
    let mut ways = policies;
    first(&mut ways, Policy::Moving(Moving::None), |policy| policy.moving() == Moving::None);
    let moves = scenario.settings(model, Governor::Hardware, Moving::Always, 1).map_err(refused)?;
    let hand_over_ns = moves.region_moves.map_or(0.0, |moves| 2.0 * moves.hand_over_ns);
    let runs = repeat(py, scenario, model, &ways, &seeds, Course::default)?;
    let loops: Vec<Moving> = ways.iter().map(Policy::moving).collect();
    json(&Loops::new(scenario, model, (asked, hand_over_ns), &loops, &runs))
}

/// Policies of different names: results name a policy, so each name stands for one.
fn distinct(policies: Vec<Policy>) -> PyResult<Vec<Policy>> {
    let mut ways: Vec<Policy> = Vec::new();
    for policy in policies {
        if ways.iter().all(|way| way.name() != policy.name()) {
            ways.push(policy);
        } else if matches!(policy, Policy::Python(..)) {
            let name = policy.name();
            return Err(PyValueError::new_err(format!(
                "policies: two are named `{name}`; give each an attribute `name`, another text"
            )));
        }
    }
    Ok(ways)
}

/// Puts what the others are compared with in the first place.
fn first(ways: &mut Vec<Policy>, usual: Policy, is_usual: impl Fn(&Policy) -> bool) {
    ways.retain(|policy| !is_usual(policy));
    ways.insert(0, usual);
}

/// The settings of a machine on which this policy decides.
fn settings(
    scenario: &Scenario,
    model: &Model,
    policy: &Policy,
    seed: u64,
) -> Result<Settings, SimError> {
    let mut settings = scenario.settings(model, policy.governor(), policy.moving(), seed)?;
    if let Policy::Python(definition, start) = policy
        && let Some(moves) = &mut settings.region_moves
        && let Decider::Server(server) = &mut moves.decider
    {
        server.decides = Chosen::new(PythonConstants { definition, start: start.clone() });
    }
    Ok(settings)
}

/// Where the exception that ends a run under this policy is kept.
fn failure(policy: &Policy) -> Failure {
    match policy {
        Policy::Python(_, of) => of.failure(),
        _ => Failure::default(),
    }
}

/// Returns whether a run has to stop: a method of its policy has failed, or a handler of a signal,
/// as that of Ctrl-C, has raised an exception.
fn signals(failure: &Failure) -> impl Fn() -> bool {
    let next = Mutex::new(Instant::now() + LOOK);
    move || {
        let now = Instant::now();
        let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
        if now >= *next {
            *next = now + LOOK;
            if let Err(error) = Python::attach(|py| py.check_signals()) {
                failure.set(error);
            }
        }
        failure.is_set()
    }
}

fn one<O: Observer>(
    scenario: &Scenario,
    model: &Model,
    settings: Settings,
    observer: O,
    stops: &dyn Fn() -> bool,
) -> Result<(Outcome, O), SimError> {
    scenario.run_on(model, settings, observer, &|_| stops())
}

/// Runs each policy with each seed on all processors; the results of each policy in the order of
/// the seeds. Each run has an object of its own of a policy in Python.
fn repeat<O: Observer + Send>(
    py: Python<'_>,
    scenario: &Scenario,
    model: &Model,
    policies: &[Policy],
    seeds: &[u64],
    observer: impl Fn() -> O + Sync,
) -> PyResult<Vec<Vec<(Outcome, O)>>> {
    let mut pending = Vec::new();
    for policy in policies {
        for seed in seeds {
            let policy = policy.for_run(py)?;
            let settings = settings(scenario, model, &policy, *seed).map_err(refused)?;
            pending.push((settings, failure(&policy)));
        }
    }
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(pending.len());
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((settings, failure)) = pending.get(at) else { return Ok(done) };
            let stops = || stop.load(Ordering::Relaxed) || failure.is_set();
            let ran = one(scenario, model, settings.clone(), observer(), &stops);
            let ran = failure.take().map_or_else(|| ran.map_err(refused), Err);
            match ran {
                Ok(ran) => done.push((at, ran)),
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    };
    let interrupt = Failure::default();
    let results = py.detach(|| {
        thread::scope(|scope| {
            let mut workers = Vec::new();
            while workers.len() < threads {
                match thread::Builder::new().spawn_scoped(scope, work) {
                    Ok(worker) => workers.push(worker),
                    Err(error) if workers.is_empty() => return Err(error),
                    // Fewer threads take longer, and have the same results.
                    Err(_) => break,
                }
            }
            let looks = signals(&interrupt);
            while !workers.iter().all(|worker| worker.is_finished()) {
                thread::sleep(LOOK / 20);
                if looks() {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            Ok(workers.into_iter().map(|worker| worker.join()).collect::<Vec<_>>())
        })
    });
    if let Some(error) = interrupt.take() {
        return Err(error);
    }
    let none = |error| PyOSError::new_err(format!("no thread of the simulator starts: {error}"));
    let mut done = Vec::new();
    for result in results.map_err(none)? {
        let lost = |_| PyRuntimeError::new_err("a thread of the simulator ended early");
        done.extend(result.map_err(lost)??);
    }
    done.sort_by_key(|(at, _)| *at);
    let mut done = done.into_iter().map(|(_, ran)| ran);
    Ok(policies.iter().map(|_| done.by_ref().take(seeds.len()).collect()).collect())
}

fn json(document: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(document).map_err(refused)
}
