//! Compares ways out for wide code, that of paper 003 among them, on the paper's workloads.

use dimmer_processor::units::Nanos;
use dimmer_sim::scenario::Outcome;
use dimmer_sim::{Governor, Moving, SimError, Specialising};

use crate::inputs::Inputs;
use crate::specialised::{BUILD, How, PARSEC, Program, Vectors, mean, more};
use crate::{Follower, Paper, ValidateError};

/// A workload under all ways.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// The workload's name.
    pub load: &'static str,
    /// What AVX-512 costs without any of them (%): the web server's throughput, or the CPU time for
    /// the work of the program beside x265.
    pub loss: f64,
    /// Each way's name and result.
    pub ways: Vec<(&'static str, Way)>,
}

/// The result of a way with a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// What AVX-512 still costs (%).
    pub loss: f64,
    /// The part of the loss that is no more (%).
    pub removed: f64,
    /// What all programs get done, more than without any of the ways (%): a geometric mean.
    pub done: f64,
}

/// The name and the meaning of each way, in Markdown, in the order of [`Compared::ways`]. The web
/// server has no `narrow-half-speed`.
pub const MEANINGS: [(&str, &str); 10] = [
    (
        "core-scheduling",
        "hard core scheduling by cookies, which the paper cites: threads that have executed 512-bit \
         code do not share a core with others",
    ),
    (
        "specialise",
        "the paper's way: threads run on a fixed number of wide cores, from their first 512-bit \
         instruction to their next system call",
    ),
    (
        "specialise-learning",
        "Dimmer's: the number of wide cores follows the load, phases are learned, and threads stay \
         near their data",
    ),
    ("specialise-told", "the same on the processor that the paper wishes for"),
    (
        "narrow",
        "256-bit code, as with `dimmer run --narrow`. The web server's takes more cycles, by \
         published numbers. x265's takes as long as its 512-bit code, as the scenario assumes, and \
         asks for no level; in the paper it costs other programs 4.1 % (R003-02)",
    ),
    (
        "narrow-half-speed",
        "the same, with x265's functions that have wide code at half the speed: the most that \
         Dimmer assumes of narrower code",
    ),
    (
        "delegate",
        "all calls of marked regions run on dedicated cores. Their number follows the load by \
         Dimmer's rule, up to that of the paper's wide cores, but a hundred times as fast, because \
         runs last 2 s. The way there and back takes 541 ns, as measured on a Zen 5 \
         (docs/RESULTS.md). x265's region is all that it does between two waits: most of its \
         functions take less time than a move",
    ),
    (
        "migrate",
        "the same with 1423 ns. The simulator has no other difference between the two: the \
         caller's CPU runs other threads meanwhile, where Dimmer's caller spins",
    ),
    (
        "avxfreq",
        "the governor of paper 000 in software. It counts heavy 512-bit instructions alone, so \
         light 512-bit code runs above the clock of its level",
    ),
    (
        "oracle",
        "of the processor's governor and those in software, the one that does the work the soonest \
         with no code above the clock of its level: a bound for governors",
    ),
];

/// The time that a delegated call takes for the way there and back, and a migrated one: hooked
/// calls on a Zen 5 in a virtual machine (`docs/RESULTS.md`), not on the paper's processor.
const DELEGATED: Nanos = Nanos::from_ns(541);
const MIGRATED: Nanos = Nanos::from_ns(1423);

/// Number of workloads.
pub const WORKLOADS: usize = 4;

/// Runs the workloads on the model of the Xeon Gold 6130. Takes half a minute.
///
/// * `follower`: if it stops the work, only the complete workloads are returned.
///
/// # Errors
/// If the model lacks what a workload needs.
pub fn compare(follower: &dyn Follower) -> Result<Vec<Compared>, ValidateError> {
    let inputs = Inputs::new(Paper::Specialisation.model()?, follower);
    let [batch, pipeline] = PARSEC;
    let beside = [
        ("a batch program beside x265", batch),
        ("a pipeline beside x265", pipeline),
        ("a build beside x265", BUILD),
    ];
    let mut compared = Vec::new();
    for (name, program) in
        [("nginx", None)].into_iter().chain(beside.map(|(name, program)| (name, Some(program))))
    {
        if follower.stops() {
            break;
        }
        follower.begins(name);
        let one = workload(name, program, &inputs);
        let one = one.map_err(|error| ValidateError::Sim { experiment: name, error })?;
        if follower.stops() {
            break;
        }
        compared.push(one);
    }
    Ok(compared)
}

/// What a run of a workload gives.
struct Found {
    /// Throughput, or work for each CPU time.
    rate: f64,
    outcome: Outcome,
}

/// A workload under all ways: the web server, or a program beside x265.
fn workload(
    load: &'static str,
    program: Option<(&'static str, &'static str)>,
    inputs: &Inputs<'_>,
) -> Result<Compared, SimError> {
    let run = |how: How, vectors: Vectors| {
        inputs.each_seed(|seed| {
            let (name, load) = match program {
                None => ("nginx", vectors.nginx()),
                Some((name, file)) => (name, vectors.beside(file)),
            };
            let outcome = how.run(&load, inputs, seed)?;
            let of = Program::of(&outcome, name);
            let rate = if program.is_none() { of.requests } else { 1.0 / of.each_ns() };
            Ok(Found { rate, outcome })
        })
    };
    let (avx, plain) = (run(How::MuQss, Vectors::Avx)?, run(How::MuQss, Vectors::Avx512)?);
    // As the paper has them: throughput that is missing, or CPU time that is added.
    let loss = |runs: &[Found]| {
        let pairs = avx.iter().zip(runs);
        mean(pairs.map(|(avx, found)| match program {
            None => -more(found.rate, avx.rate),
            Some(_) => more(avx.rate, found.rate),
        }))
    };
    let without = loss(&plain);
    let mut ways = Vec::new();
    for (name, how, vectors) in tried(program.is_none()) {
        let runs = run(how, vectors)?;
        let done = runs.iter().zip(&plain).map(|(way, plain)| match program {
            // A request with other vectors takes another number of instructions.
            None if vectors != Vectors::Avx512 => more(way.rate, plain.rate),
            _ => 100.0 * (done_over(&way.outcome, &plain.outcome) - 1.0),
        });
        let (done, left) = (mean(done), loss(&runs));
        ways.push((name, Way { loss: left, removed: 100.0 * (1.0 - left / without), done }));
    }
    Ok(Compared { load, loss: without, ways })
}

/// The ways that are tried on a workload, and the instructions with which it works.
fn tried(is_web: bool) -> Vec<(&'static str, How, Vectors)> {
    let mechanisms =
        [Moving::CoreScheduling].into_iter().chain(Specialising::ALL.map(Moving::Specialise));
    let mut tried: Vec<_> =
        mechanisms.map(|one| (one.name(), How::By(one), Vectors::Avx512)).collect();
    tried.push(("narrow", How::MuQss, Vectors::Avx2));
    if !is_web {
        tried.push(("narrow-half-speed", How::MuQss, Vectors::SlowAvx2));
    }
    tried.push(("delegate", How::Away(DELEGATED), Vectors::Avx512));
    tried.push(("migrate", How::Away(MIGRATED), Vectors::Avx512));
    let governors = [Governor::AvxFreq, Governor::Oracle];
    tried.extend(governors.map(|one| (one.name(), How::Governed(one), Vectors::Avx512)));
    tried
}

/// What programs got done over what they did in the other run: a geometric mean.
fn done_over(one: &Outcome, other: &Outcome) -> f64 {
    let mut names: Vec<&str> = one.threads.iter().map(|thread| thread.program.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let log = |name: &&str| {
        let [one, other] = [one, other].map(|of| Program::of(of, name).instructions);
        (one / other).ln()
    };
    mean(names.iter().map(log)).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_has_a_meaning() {
        let names = |is_web| tried(is_web).into_iter().map(|(name, ..)| name);
        assert!(names(false).eq(MEANINGS.map(|(name, _)| name)));
        assert!(names(true).all(|name| names(false).any(|other| name == other)));
    }
}
