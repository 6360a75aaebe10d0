//! `dimmer bench program`: what observing costs a program, and what narrower code gives back.

use std::ffi::OsStr;
use std::process::ExitCode;

use anyhow::{Context, bail};
use dimmer_bench::program::Run;
use dimmer_host::interrupt::Interrupt;
use dimmer_launch::preload;
use dimmer_launch::program::{self, Program};
use dimmer_report::bench::{PLAIN, ProgramReport, Turns};

use super::ways::{Way, Ways};
use crate::args::BenchProgram;
use crate::{bad_input, not_launched};
use crate::{exit, output, progress};

pub(super) fn run(arguments: &BenchProgram, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let program = Program::find(&arguments.command).map_err(not_launched)?;
    program.check_preload().map_err(bad_input)?;
    preload::library()?;
    let ways = measure(arguments, interrupt)?;
    let report = ProgramReport::new(program::shown(&arguments.command), &ways);
    output::show(json, &report, &report.text(output::screen()))?;
    // An observed program must behave as it does without observation.
    Ok(if report.is_changed() { ExitCode::from(exit::NO) } else { ExitCode::SUCCESS })
}

/// The runs of each way, one for each round.
fn measure(arguments: &BenchProgram, interrupt: &Interrupt) -> anyhow::Result<Vec<Turns<Run>>> {
    let directory = tempfile::tempdir().context("cannot make a directory for results")?;
    let mut ways = Ways::new(directory.path(), &arguments.moves, None)?;
    let mut turns: Vec<Turns<Run>> = ways.all.iter().map(Way::turns).collect();
    let progress = progress::bar(u64::from(arguments.rounds) * turns.len() as u64);
    for round in 0..usize::try_from(arguments.rounds)? {
        for number in dimmer_bench::order(round, turns.len()) {
            let way = &ways.all[number];
            let what = format!("round {}, {}", round + 1, way.name);
            progress.set_message(what.clone());
            let run = dimmer_bench::program::run(&way.prefix, &arguments.command, interrupt);
            let run = run.with_context(|| what.clone())?;
            let status = run.outcome.status;
            let is_plains = turns[PLAIN].runs.iter().any(|run| run.outcome.status == status);
            if number != PLAIN && status == i32::from(exit::WRAPPER_FAILED) && !is_plains {
                let words = way.prefix.join(OsStr::new(" "));
                let by = words.display();
                bail!("{what}: Dimmer failed (status {status}); run it alone to see why: {by} ...");
            }
            way.add(run, &mut turns[number]).context(what)?;
            ways.check()?;
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(turns)
}
