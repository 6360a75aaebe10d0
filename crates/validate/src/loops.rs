//! The feedback loop of paper 001 beside Dimmer's, on the same workloads.
//!
//! What each gets done is told against the better of moving nothing and moving all of it, which no loop knows beforehand.

use dimmer_sim::Mechanism;

use crate::server::{FOLLOWED, Load, Plan, Run, Vectors, Way};
use crate::{ValidateError, i9_7940x};

/// A workload under both loops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// The workload.
    pub load: &'static str,
    /// The better of moving nothing (`none`) and all (`offload-always`).
    pub best: &'static str,
    /// The paper's loop.
    pub paper: Loop,
    /// Dimmer's.
    pub trials: Loop,
}

/// What a loop did with a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loop {
    /// What programs got done over what they do under the best: a geometric mean over programs.
    pub done: f64,
    /// The part of the time in which most clients were where they are not under the best.
    pub off: f64,
    /// The time from which on they were where they are under the best, for the first time (s); `None` if never.
    pub found_s: Option<f64>,
    /// How often most clients changed sides.
    pub changes: usize,
}

/// How many workloads there are.
pub const WORKLOADS: usize = 6;

/// The workloads: what they are, how many clients there are, and for how many seconds they run.
fn loads() -> [(&'static str, Load, usize, u64); WORKLOADS] {
    [
        ("nginx, AVX-512", Load::nginx(Vectors::Avx512), 16, 45),
        ("nginx, AVX2", Load::nginx(Vectors::Avx2), 16, 25),
        ("nginx, SSE", Load::nginx(Vectors::Sse), 16, 25),
        ("x264", Load::encoder(), 1, 25),
        ("nginx, AVX-512, and x264 for a while", Load::both(Vectors::Avx512), 17, 30),
        ("a server that changes its habits", Load::habits(), 4, 40),
    ]
}

/// Runs them on the model of the i9-7940X. Takes some ten seconds.
///
/// * `stops`: whether to leave it at the workloads that are complete; asked before each.
///
/// # Errors
/// If the model lacks what a workload needs.
pub fn compare(stops: &dyn Fn() -> bool) -> Result<Vec<Compared>, ValidateError> {
    let model = i9_7940x()?;
    let mut compared = Vec::new();
    for (name, load, clients, seconds) in loads() {
        if stops() {
            break;
        }
        let run = |way: Way| {
            let named = |error| ValidateError::Sim { experiment: name, error };
            Plan::new(way, seconds).run(&load, &model).map_err(named)
        };
        let none = run(Way::As(Mechanism::None))?;
        let always = run(Way::As(Mechanism::OffloadAlways))?;
        let is_always = over(&always, &none) > 1.0;
        let (best, mechanism) =
            if is_always { (&always, Mechanism::OffloadAlways) } else { (&none, Mechanism::None) };
        let told = |run: &Run| {
            let is_best = |offloaded: usize| (2 * offloaded > clients) == is_always;
            let end = run.outcome.end;
            let on =
                run.course.mean(0, end, |served| f64::from(u8::from(is_best(served.offloaded))));
            let first = run.course.0.iter().find(|(_, served)| is_best(served.offloaded));
            let found = if is_always { first.map(|(at, _)| *at) } else { Some(0) };
            Loop {
                done: over(run, best),
                off: 1.0 - on,
                found_s: found.map(|at| at as f64 / 1e12),
                changes: run.changes(clients, true) + run.changes(clients, false),
            }
        };
        let (paper, trials) = (run(FOLLOWED)?, run(Way::As(Mechanism::Offload))?);
        let (paper, trials) = (told(&paper), told(&trials));
        compared.push(Compared { load: name, best: mechanism.name(), paper, trials });
    }
    Ok(compared)
}

/// What programs got done in a run over what they did in another.
fn over(run: &Run, other: &Run) -> f64 {
    let (own, others) = (run.by_program(), other.by_program());
    let logs = own
        .iter()
        .map(|(program, served)| (served / others.get(program).copied().unwrap_or_default()).ln());
    (logs.sum::<f64>() / own.len() as f64).exp()
}
