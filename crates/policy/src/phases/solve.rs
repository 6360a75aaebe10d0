//! The threshold that takes least energy and is fast enough: energy scaling, the future work of
//! paper 004 (§2.1, §6.1).

use dimmer_processor::units::Nanos;

use super::threshold::{Threshold, sorted};
use super::{Core, Counts, Graph, Machine, Mark, Profile};

/// A threshold below all values, as none is negative.
const BELOW_ALL: f64 = -1.0;

/// A threshold above all values is this many times the highest: it stays above them if it is
/// rounded, and none of them is near it.
const ABOVE: f64 = 2.0;

/// How slow the program may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// All of the graph's edges take at most this long, migrations included.
    Deadline(Nanos),
    /// They take at most this many times as long as on the fast core alone.
    Slowdown(f64),
}

/// A threshold, and what the program takes with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Solution {
    /// The threshold.
    pub threshold: Threshold,
    /// The time of all edges, migrations included (ns).
    pub time_ns: f64,
    /// The energy of all edges, migrations included (pJ, which is mW times ns).
    pub energy_pj: f64,
    /// The number of migrations.
    pub migrations: f64,
    /// The time over that on the fast core alone.
    pub time_ratio: f64,
    /// The energy over that on the fast core alone.
    pub energy_ratio: f64,
}

/// Why there is no threshold.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsolved {
    /// The time of an edge was not measured.
    #[error("the edge `{start} -> {end}` has no time")]
    NoTime {
        /// The edge's start.
        start: Mark,
        /// The edge's end.
        end: Mark,
    },
    /// No threshold is fast enough.
    #[error(
        "the time is too short: with the fastest threshold, the program takes {:.6} s",
        least_ns / 1e9
    )]
    TooSlow {
        /// The shortest time of any threshold.
        least_ns: f64,
    },
}

/// The threshold with least energy of those that are fast enough; of equal ones, the highest.
///
/// Only thresholds that divide the marks differently are tried, so the result is exact. Marks
/// without a value count as fast. A thread moves at each mark that wants another core than the mark
/// before.
///
/// * `memory_share`: the part of an edge's time that is memory-bound, 0 to 1, such as
///   [`super::memory_share`] gives it.
///
/// # Errors
/// If an edge has no time, or no threshold is fast enough.
///
/// # Cost
/// O(n m) for n marks and m edges.
pub fn solve(
    graph: &Graph,
    profile: &Profile,
    memory_share: impl Fn(&Mark, &Mark, &Counts) -> f64,
    machine: &Machine,
    limit: Limit,
) -> Result<Solution, Unsolved> {
    let edges = edges(graph, profile, memory_share)?;
    let values = sorted(profile);
    let highest = values.last().copied().unwrap_or(0.0);
    let between = values.windows(2).rev().filter_map(|pair| match *pair {
        [low, high] => Some(Threshold::between(low, high)),
        _ => None,
    });
    // All marks are fast, then fewer and fewer, then none is.
    let thresholds =
        Threshold::new(ABOVE * highest).into_iter().chain(between).chain(Threshold::new(BELOW_ALL));
    let solutions: Vec<Solution> =
        thresholds.map(|threshold| cost(&edges, threshold, machine)).collect();
    let most_ns = match limit {
        Limit::Deadline(deadline) => deadline.as_f64(),
        Limit::Slowdown(times) => times * solutions.first().map_or(0.0, |fast| fast.time_ns),
    };
    let least_ns = solutions.iter().map(|solution| solution.time_ns).fold(f64::MAX, f64::min);
    let fast = solutions.first().copied();
    // The first one of equal minima, which has the highest threshold.
    let allowed = solutions.into_iter().filter(|solution| solution.time_ns <= most_ns);
    let best = allowed.min_by(|a, b| a.energy_pj.total_cmp(&b.energy_pj));
    let mut best = best.ok_or(Unsolved::TooSlow { least_ns })?;
    if let Some(fast) = fast.filter(|fast| fast.time_ns > 0.0 && fast.energy_pj > 0.0) {
        best.time_ratio = best.time_ns / fast.time_ns;
        best.energy_ratio = best.energy_pj / fast.energy_pj;
    }
    Ok(best)
}

/// An edge, as far as it matters here.
struct Edge {
    calls: f64,
    /// The parts of its time on the fast core.
    cpu_ns: f64,
    memory_ns: f64,
    /// The values of its start and its end.
    start: Option<f64>,
    end: Option<f64>,
}

fn edges(
    graph: &Graph,
    profile: &Profile,
    memory_share: impl Fn(&Mark, &Mark, &Counts) -> f64,
) -> Result<Vec<Edge>, Unsolved> {
    let edge = |(start, end, counts): (&Mark, &Mark, &Counts)| {
        let no_time = || Unsolved::NoTime { start: start.clone(), end: end.clone() };
        let time = counts.spent.time.ok_or_else(no_time)?.as_f64();
        // `max` takes the 0 if the share is not a number.
        let share = memory_share(start, end, counts).max(0.0).clamp(0.0, 1.0);
        Ok(Edge {
            calls: counts.calls as f64,
            cpu_ns: time * (1.0 - share),
            memory_ns: time * share,
            start: profile.value(start),
            end: profile.value(end),
        })
    };
    graph.edges().map(edge).collect()
}

fn cost(edges: &[Edge], threshold: Threshold, machine: &Machine) -> Solution {
    let core = |value: Option<f64>| value.map_or(Core::Fast, |value| threshold.core(value));
    let (mut time_ns, mut energy_pj, mut migrations) = (0.0, 0.0, 0.0);
    for edge in edges {
        let kind = machine.kind(core(edge.start));
        let cpu_ns = edge.cpu_ns * kind.cpu_factor;
        let memory_ns = edge.memory_ns * kind.memory_factor;
        time_ns += cpu_ns + memory_ns;
        energy_pj += cpu_ns * kind.cpu_power.mw() as f64;
        energy_pj += memory_ns * kind.memory_power.mw() as f64;
        if core(edge.start) != core(edge.end) {
            migrations += edge.calls;
        }
    }
    let moving_ns = migrations * machine.migration.as_f64();
    time_ns += moving_ns;
    energy_pj += moving_ns * machine.fast.cpu_power.mw() as f64;
    let (time_ratio, energy_ratio) = (1.0, 1.0);
    Solution { threshold, time_ns, energy_pj, migrations, time_ratio, energy_ratio }
}

#[cfg(test)]
mod tests {
    use dimmer_processor::units::MilliWatts;

    use super::*;
    use crate::phases::any::Any;
    use crate::phases::{Kind, Metric};

    /// A slow core at 40 % of the clock.
    const MACHINE: Machine = Machine {
        fast: kind(1.0, 1.0, [5600, 3100]),
        slow: kind(2.5, 1.05, [1900, 1500]),
        migration: Nanos::from_ns(1750),
    };

    const fn kind(cpu_factor: f64, memory_factor: f64, [cpu, memory]: [u64; 2]) -> Kind {
        let [cpu_power, memory_power] = [MilliWatts::from_mw(cpu), MilliWatts::from_mw(memory)];
        Kind { cpu_factor, memory_factor, cpu_power, memory_power }
    }

    fn share(_: &Mark, _: &Mark, counts: &Counts) -> f64 {
        Metric::L3MissRate.of(counts).unwrap_or(0.0) * 10.0
    }

    /// What the program takes if the marks with a value of at least this are slow: by the thread's
    /// way along each edge, not by sums.
    fn by_hand(graph: &Graph, profile: &Profile, least_slow: f64, machine: &Machine) -> (f64, f64) {
        let is_slow = |mark: &Mark| profile.value(mark).is_some_and(|value| value >= least_slow);
        let (mut time, mut energy) = (0.0, 0.0);
        for (start, end, counts) in graph.edges() {
            let ns = counts.spent.time.unwrap().as_f64();
            let memory = share(start, end, counts).clamp(0.0, 1.0);
            let kind = if is_slow(start) { machine.slow } else { machine.fast };
            let cpu = ns * (1.0 - memory) * kind.cpu_factor;
            let stalled = ns * memory * kind.memory_factor;
            let moves = if is_slow(start) == is_slow(end) { 0.0 } else { counts.calls as f64 };
            let moving = moves * machine.migration.as_f64();
            time += cpu + stalled + moving;
            energy += cpu * kind.cpu_power.mw() as f64 + stalled * kind.memory_power.mw() as f64;
            energy += moving * machine.fast.cpu_power.mw() as f64;
        }
        (time, energy)
    }

    #[test]
    fn no_division_of_the_marks_is_better_than_the_solution() {
        let mut any = Any::new(4);
        let mut solved = [0; 2];
        for _ in 0..1000 {
            let graph = any.graph();
            let profile = Profile::of(&graph, Metric::L3MissRate);
            let mut machine = MACHINE;
            machine.migration = Nanos::from_ns(any.below(100_000));
            let (fast, _) = by_hand(&graph, &profile, f64::INFINITY, &machine);
            let limit = 1.0 + any.share();
            let deadline = Limit::Deadline(Nanos::rounded(fast * limit));
            let limits =
                [(Limit::Slowdown(limit), fast * limit), (deadline, (fast * limit).round())];
            let (limit, most) = limits[usize::from(any.below(2) == 0)];
            let solution = solve(&graph, &profile, share, &machine, limit).unwrap();
            let mut divisions: Vec<f64> = profile.values().map(|(_, value)| value).collect();
            divisions.push(f64::INFINITY);
            let all: Vec<(f64, f64)> = divisions
                .iter()
                .map(|least| by_hand(&graph, &profile, *least, &machine))
                .filter(|(time, _)| *time <= most * (1.0 - 1e-9))
                .collect();
            assert!(solution.time_ns <= most);
            let near = |a: f64, b: f64| (a - b).abs() <= a.abs() * 1e-9 + 1e-9;
            assert!(all.iter().all(|(_, energy)| solution.energy_pj <= energy * (1.0 + 1e-9)));
            // And what the solution says is what the threshold gives.
            let above = profile.values().map(|(_, value)| value);
            let slow = above.filter(|value| solution.threshold.core(*value) == Core::Slow);
            let least = slow.fold(f64::INFINITY, f64::min);
            let (time, energy) = by_hand(&graph, &profile, least, &machine);
            assert!(near(solution.time_ns, time) && near(solution.energy_pj, energy));
            let (_, fast_energy) = by_hand(&graph, &profile, f64::INFINITY, &machine);
            assert!(near(solution.time_ratio, time / fast));
            assert!(near(solution.energy_ratio, energy / fast_energy));
            solved[usize::from(least.is_finite())] += 1;
        }
        assert!(solved.iter().all(|number| *number > 100), "{solved:?}");
    }

    #[test]
    fn what_cannot_be_solved_says_why() {
        let (a, b) = (Mark::new("A").unwrap(), Mark::new("B").unwrap());
        let mut graph = Graph::default();
        let mut spent = super::super::Counters::ZERO;
        spent.time = Some(Nanos::from_us(10));
        graph.add(&a, &b, &Counts { calls: 1, spent });
        let profile = Profile::default();
        let solve =
            |graph: &Graph, limit| solve(graph, &profile, |_, _, _| f64::NAN, &MACHINE, limit);
        let tight = Limit::Deadline(Nanos::from_us(9));
        assert_eq!(solve(&graph, tight), Err(Unsolved::TooSlow { least_ns: 10_000.0 }));
        // Nothing is known of any mark, so all are fast.
        let solution = solve(&graph, Limit::Slowdown(1.0)).unwrap();
        assert_eq!((solution.time_ns, solution.migrations), (10_000.0, 0.0));
        spent.time = None;
        graph.add(&a, &b, &Counts { calls: 1, spent });
        let error = solve(&graph, tight).unwrap_err();
        assert_eq!(error.to_string(), "the edge `A -> B` has no time");
    }

    #[test]
    fn the_more_time_there_is_the_less_energy_is_taken() {
        let mut any = Any::new(5);
        for _ in 0..200 {
            let graph = any.graph();
            let profile = Profile::of(&graph, Metric::L3MissRate);
            let energy = [1.0, 1.1, 1.5, 2.5, 10.0].map(|times| {
                solve(&graph, &profile, share, &MACHINE, Limit::Slowdown(times)).unwrap().energy_pj
            });
            assert!(energy.is_sorted_by(|less, more| less >= more), "{energy:?}");
        }
    }
}
