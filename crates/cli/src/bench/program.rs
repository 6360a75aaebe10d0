//! `dimmer bench program`: what observing costs a program, and what narrower code gives back.

use std::process::ExitCode;

use anyhow::Context;
use dimmer_bench::program::Run;
use dimmer_host::interrupt::Interrupt;
use dimmer_report::bench::{ProgramReport, Turns};

use super::ways::{Way, Ways};
use crate::args::BenchProgram;
use crate::{bad_input, launch};
use crate::{exit, output, progress};

pub(super) fn run(arguments: &BenchProgram) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let program = launch::Program::find(&arguments.command)?;
    program.takes_library().map_err(bad_input)?;
    launch::library()?;
    let interrupt = Interrupt::install().context("cannot prepare for interruption")?;
    let ways = match measure(arguments, &interrupt) {
        Err(error) => return super::end(error, &interrupt, "the program has ended"),
        Ok(ways) => ways,
    };
    let report = ProgramReport::new(launch::shown(&arguments.command), &ways);
    output::show(json, &report, &report.text(output::screen()))?;
    // An observed program must behave as it does without observation.
    Ok(if report.is_changed() { ExitCode::from(exit::NO) } else { ExitCode::SUCCESS })
}

/// The runs of each way, one for each round.
fn measure(arguments: &BenchProgram, interrupt: &Interrupt) -> anyhow::Result<Vec<Turns<Run>>> {
    let directory = tempfile::tempdir().context("cannot make a directory for results")?;
    let ways = Ways::new(directory.path(), &arguments.moves, None)?;
    let mut turns: Vec<Turns<Run>> = ways.all.iter().map(Way::turns).collect();
    let progress = progress::bar(u64::from(arguments.rounds) * turns.len() as u64);
    for round in 0..usize::try_from(arguments.rounds)? {
        for number in dimmer_bench::order(round, turns.len()) {
            let way = &ways.all[number];
            let what = format!("round {}, {}", round + 1, way.name);
            progress.set_message(what.clone());
            let run = dimmer_bench::program::run(&way.prefix, &arguments.command, interrupt);
            let run = run.with_context(|| what.clone())?;
            way.add(run, &mut turns[number]).context(what)?;
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(turns)
}
