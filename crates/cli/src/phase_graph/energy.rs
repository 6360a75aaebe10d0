//! The threshold for least energy, by a processor model.

use dimmer_policy::phases::{
    Counts, Graph, Limit, Machine, Mark, Profile, Solution, Unsolved, solve,
};
use dimmer_processor::model::{Model, PState};
use dimmer_processor::units::Nanos;
use dimmer_report::phase_graph::{Solved, meaning};

use crate::{args, bad_input, model};

/// How much longer the program may take, if the user does not say (percent). A guess: what many
/// accept as the price of less energy.
const SLOWER: f64 = 10.0;

/// How long a core waits for an L3 miss, if the user does not say. A guess: what processors of the
/// last years take.
const MISS: Nanos = Nanos::from_ns(80);

/// Solves for the threshold, on a core in the model's fastest P-state and one in a slow one.
/// `round_trip`: a migration there and back.
pub(super) fn solved(
    arguments: &args::PhaseGraph,
    graph: &Graph,
    profile: &Profile,
    round_trip: Option<Nanos>,
) -> anyhow::Result<(Solution, Solved)> {
    let energy = &arguments.energy;
    let Some(name) = energy.model.name() else {
        return Err(bad_input(
            "`--threshold energy` needs the processor: `--model MODEL` (`dimmer sim model list` \
             lists those there are)",
        ));
    };
    let Some(round_trip) = round_trip else {
        return Err(bad_input(
            "`--threshold energy` needs the time of a migration, which is measured only if the \
             graph has times: expected `--migration TIME`, as in `1.75us`",
        ));
    };
    if profile.values().next().is_none() {
        return Err(bad_input(format!(
            "`--threshold energy`: the graph has no counts of {}, so no mark has a value",
            meaning(arguments.metric.metric())
        )));
    }
    let model = model::read(name)?;
    let (fast, slow) = states(&model, energy.slow.as_deref())?;
    let one_way = Nanos::from_ns(round_trip.ns() / 2);
    let machine = Machine::of(&model, fast, slow, one_way).map_err(bad_input)?;
    let graph = with_times(graph, fast.mhz.value as f64 / 1000.0);
    if graph.edges().all(|(_, _, counts)| counts.spent.l3_misses.is_none()) {
        return Err(bad_input(
            "`--threshold energy` needs L3 misses, and the graph has none: they say which part of \
             an edge's time memory takes",
        ));
    }
    let miss_ns = energy.miss.unwrap_or(MISS).as_f64();
    let share = |_: &Mark, _: &Mark, counts: &Counts| {
        let misses = counts.spent.l3_misses.unwrap_or(0) as f64;
        misses * miss_ns / counts.spent.time.map_or(f64::NAN, Nanos::as_f64)
    };
    let limit = match energy.deadline {
        Some(deadline) => Limit::Deadline(deadline),
        None => Limit::Slowdown(1.0 + energy.slower.unwrap_or(SLOWER) / 100.0),
    };
    let solution = solve(&graph, profile, share, &machine, limit).map_err(|error| match error {
        Unsolved::TooSlow { .. } => bad_input(format!("--deadline: {error}")),
        Unsolved::NoTime { start, end } => bad_input(format!(
            "`--threshold energy` needs the time or the cycles of each edge: `{start} -> {end}` has \
             neither"
        )),
        error => bad_input(error),
    })?;
    let Solution { time_ratio, energy_ratio, .. } = solution;
    let [fast, slow] = [fast, slow].map(|state| state.name.clone());
    Ok((solution, Solved { model: model.identity.name, fast, slow, time_ratio, energy_ratio }))
}

/// The fastest P-state, and the slow one of this name, or the slowest.
fn states<'a>(model: &'a Model, slow: Option<&str>) -> anyhow::Result<(&'a PState, &'a PState)> {
    let mhz = |state: &&PState| state.mhz.value;
    let states = &model.pstates;
    let found = match slow {
        Some(name) => states.iter().find(|state| state.name == name),
        None => states.iter().min_by_key(mhz),
    };
    let fastest = states.iter().max_by_key(mhz);
    let slower = |than: &&PState| -> Vec<&str> {
        let slower = states.iter().filter(|state| state.mhz.value < than.mhz.value);
        slower.map(|state| state.name.as_str()).collect()
    };
    let differs = |(fast, slow): &(&PState, &PState)| mhz(fast) > mhz(slow);
    fastest.zip(found).filter(differs).ok_or_else(|| {
        bad_input(match (slow, fastest) {
            (Some(name), Some(fastest)) if !slower(&fastest).is_empty() => format!(
                "--slow {name}: expected a slower P-state than {}: {}",
                fastest.name,
                slower(&fastest).join(", ")
            ),
            _ => format!(
                "the model of {} has no two P-states of different clocks, expected [[pstate]] \
                 entries",
                model.identity.name
            ),
        })
    })
}

/// The graph with times of edges that have cycles alone, which were counted at this clock.
fn with_times(graph: &Graph, ghz: f64) -> Graph {
    let mut timed = Graph::default();
    for (start, end, counts) in graph.edges() {
        let mut counts = *counts;
        let by_cycles = || counts.spent.cycles.map(|cycles| Nanos::rounded(cycles as f64 / ghz));
        counts.spent.time = counts.spent.time.or_else(by_cycles);
        timed.add(start, end, &counts);
    }
    timed
}
