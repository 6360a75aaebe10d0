//! Compares the policy loops, that of paper 001 among them, on the same workloads.
//!
//! What programs get done under each loop is given relative to the best of moving nothing, moving
//! all calls, and, where there are two programs, moving the calls of one. The loops do not have
//! this information.

use dimmer_policy::server::loops::{Definition, USUAL, thresholds};
use dimmer_processor::units::Nanos;
use dimmer_sim::{Moment, Moving};

use crate::inputs::Inputs;
use crate::server::{Load, Plan, Run, Vectors, WORKERS, Way};
use crate::{Follower, Paper, ValidateError};

/// A workload under all loops.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// The workload's name.
    pub load: &'static str,
    /// The best of moving nothing (`none`), all calls (`always`), and all calls of one
    /// program.
    pub best: &'static str,
    /// Each loop's name and result.
    pub loops: Vec<(&'static str, Loop)>,
}

/// The result of a loop with a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loop {
    /// What programs got done, relative to the best: a geometric mean over programs.
    pub done: f64,
    /// The part of a program's calls that run on the other side than under the best: the mean over
    /// programs.
    pub off: f64,
    /// The first time at which clients are on the same side as under the best (s); `None` if never.
    pub found_s: Option<f64>,
    /// How often the majority of clients changed sides.
    pub changes: usize,
}

/// Number of workloads.
pub const WORKLOADS: usize = 6;

/// A workload.
struct Workload {
    name: &'static str,
    load: Load,
    clients: usize,
    seconds: u64,
    /// The load in which only one program has marks, which most clients run; and the name of moving
    /// its calls.
    one: Option<(Load, &'static str)>,
}

/// The workloads.
fn loads() -> [Workload; WORKLOADS] {
    let alone = |name, load, clients, seconds| Workload { name, load, clients, seconds, one: None };
    let both = Load::both(Vectors::Avx512, 10);
    let one = Some((both.clone().without_encoders_marks(), "nginx alone"));
    [
        alone("nginx, AVX-512", Load::nginx(Vectors::Avx512), WORKERS, 45),
        alone("nginx, AVX2", Load::nginx(Vectors::Avx2), WORKERS, 25),
        alone("nginx, SSE", Load::nginx(Vectors::Sse), WORKERS, 25),
        alone("x264", Load::encoder(), 1, 25),
        Workload { one, ..alone("nginx, AVX-512, and x264 for a while", both, WORKERS + 1, 30) },
        alone("a server that changes its habits", Load::habits(), 4, 40),
    ]
}

/// Runs the workloads on the model of the i9-7940X. Takes some ten seconds.
///
/// * `follower`: if it stops the work, only the complete workloads are returned.
///
/// # Errors
/// If the model lacks what a workload needs.
pub fn compare(follower: &dyn Follower) -> Result<Vec<Compared>, ValidateError> {
    let inputs = Inputs::new(Paper::Library.model()?, follower);
    let mut compared = Vec::new();
    for Workload { name, load, clients, seconds, one } in loads() {
        if follower.stops() {
            break;
        }
        follower.begins(name);
        let run = |load: &Load, way: Way| {
            let named = |error| ValidateError::Sim { experiment: name, error };
            Plan::new(way, seconds).run(load, &inputs, 1).map_err(named)
        };
        // The best run, its name, and whether most clients are moved in it.
        let mut best = (run(&load, Way::As(Moving::None))?, Moving::None.name(), false);
        let always = Moving::Always;
        for (load, named) in [(&load, always.name())]
            .into_iter()
            .chain(one.as_ref().map(|(load, named)| (load, *named)))
        {
            let moved = run(load, Way::As(always))?;
            if over(&moved, &best.0) > 1.0 {
                best = (moved, named, true);
            }
        }
        let (best, named, is_moved) = best;
        let told = |run: &Run| {
            let is_best = |moved: usize| (2 * moved > clients) == is_moved;
            let first = run.course.0.iter().find(|(_, served)| is_best(served.moved));
            let found = if is_moved { first.map(|(at, _)| *at) } else { Some(Moment::START) };
            Loop {
                done: over(run, &best),
                off: off(run, &best),
                found_s: found.map(|at| at.since_start().as_f64() / 1e12),
                changes: run.changes(clients, true) + run.changes(clients, false),
            }
        };
        let under = |definition: &'static Definition| {
            let run = run(&load, way(definition))?;
            Ok((definition.name, told(&run)))
        };
        let loops = [&thresholds::DEFINITION, USUAL].map(under);
        let loops = loops.into_iter().collect::<Result<_, ValidateError>>()?;
        compared.push(Compared { load: name, best: named, loops });
    }
    Ok(compared)
}

/// How a loop is run here: the paper's with an exciter that fires five times as often, as runs are
/// shorter, and with the longest windows that it tried, which were best (figure 6.7); others as
/// they are.
fn way(definition: &'static Definition) -> Way {
    if *definition != thresholds::DEFINITION {
        return Way::As(Moving::Loop(definition));
    }
    Way::Paper(thresholds::Settings {
        exciter: Nanos::from_ms(20_000),
        window: Nanos::from_ms(800),
        ..thresholds::Settings::PAPER
    })
}

/// The part of a program's calls that run on the other side than most of them do in another run:
/// the mean over programs.
fn off(run: &Run, other: &Run) -> f64 {
    let (own, others) = (run.moved(), other.moved());
    let apart = own.iter().map(|(program, moved)| {
        let is_moved = others.get(program).is_some_and(|moved| *moved > 0.5);
        if is_moved { 1.0 - moved } else { *moved }
    });
    apart.sum::<f64>() / own.len() as f64
}

/// What programs got done in a run, relative to another run: the geometric mean over programs.
fn over(run: &Run, other: &Run) -> f64 {
    let (own, others) = (run.by_program(), other.by_program());
    let logs = own
        .iter()
        .map(|(program, served)| (served / others.get(program).copied().unwrap_or_default()).ln());
    (logs.sum::<f64>() / own.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use dimmer_policy::server::loops::{thresholds, trials};

    use super::*;

    #[test]
    fn on_each_of_the_workloads_dimmers_loop_is_no_worse_than_the_papers() {
        let compared = compare(&|| false).unwrap();
        assert_eq!(compared.len(), WORKLOADS);
        for Compared { load, loops, .. } in compared {
            let of = |name| loops.iter().find(|(of, _)| *of == name).unwrap().1;
            let (paper, trials) = (of(thresholds::DEFINITION.name), of(trials::DEFINITION.name));
            assert!(trials.done >= paper.done, "{load}: {trials:?} {paper:?}");
            assert!(trials.off <= paper.off, "{load}: {trials:?} {paper:?}");
            let never = f64::INFINITY;
            let (found, papers) = (trials.found_s.unwrap_or(never), paper.found_s.unwrap_or(never));
            assert!(found <= papers, "{load}: {found} {papers}");
        }
    }
}
