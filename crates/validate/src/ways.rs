//! Compares ways to keep wide code apart, that of paper 003 among them, on the paper's workloads.

use dimmer_sim::scenario::Outcome;
use dimmer_sim::{Moving, SimError, Specialising};

use crate::inputs::Inputs;
use crate::specialised::{BUILD, How, PARSEC, Program, Vectors, mean, more};
use crate::{Follower, Paper, ValidateError};

/// A workload under all ways.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// The workload's name.
    pub load: &'static str,
    /// What AVX-512 costs without specialised cores (%): the web server's throughput, or the CPU
    /// time for the work of the program beside x265.
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
    /// What all programs get done, more than without specialised cores (%): a geometric mean.
    pub done: f64,
}

/// Number of workloads.
pub const WORKLOADS: usize = 4;

/// Runs the workloads on the model of the Xeon Gold 6130. Takes some ten seconds.
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
    let (narrow, plain) = (run(How::MuQss, Vectors::Avx)?, run(How::MuQss, Vectors::Avx512)?);
    // As the paper has them: throughput that is missing, or CPU time that is added.
    let loss = |runs: &[Found]| {
        let pairs = narrow.iter().zip(runs);
        mean(pairs.map(|(narrow, found)| match program {
            None => -more(found.rate, narrow.rate),
            Some(_) => more(narrow.rate, found.rate),
        }))
    };
    let without = loss(&plain);
    let mut ways = Vec::new();
    let all = Specialising::ALL.map(Moving::Specialise);
    for mechanism in [Moving::CoreScheduling].into_iter().chain(all) {
        let runs = run(How::By(mechanism), Vectors::Avx512)?;
        let done = runs.iter().zip(&plain);
        let done =
            mean(done.map(|(way, plain)| 100.0 * (done_over(&way.outcome, &plain.outcome) - 1.0)));
        let left = loss(&runs);
        let way_of = Way { loss: left, removed: 100.0 * (1.0 - left / without), done };
        ways.push((mechanism.name(), way_of));
    }
    Ok(Compared { load, loss: without, ways })
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
