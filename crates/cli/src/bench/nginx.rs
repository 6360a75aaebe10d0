//! `dimmer bench nginx`: the ways to run a web server, their turns, and the results.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use dimmer_bench::BenchError;
use dimmer_bench::nginx::{Cpus, Experiment, Tls, Tools};
use dimmer_host::cpuid::Cpuid;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_launch::{cache, preload};
use dimmer_report::bench::{NginxMeasured, NginxReport, OBSERVE, lost};

use super::ways::{Way, Ways, observed};
use crate::args::{self, BenchNginx};
use crate::{exit, output, progress};

pub(crate) fn run(
    root: &Root,
    arguments: &BenchNginx,
    interrupt: &Interrupt,
) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let seconds = arguments.duration.whole_seconds(1)?;
    let cpus = Cpus::choose(root)?;
    // Both ways need the library, and would report its absence only after the first turns.
    preload::library()?;
    let tools = Tools::find()?;
    let versions = tools.versions();
    let measured = measure(root, tools, cpus, (arguments, seconds), interrupt)?;
    let machine = Machine::read(&Root::live(), &Cpuid::instruction());
    let report =
        NginxReport::new(&machine, &versions, (cpus, tls(arguments.tls)), seconds, &measured);
    output::show(json, &report, &report.text(output::screen()))?;
    Ok(if report.has_errors() { ExitCode::from(exit::NO) } else { ExitCode::SUCCESS })
}

/// The cipher.
fn tls(asked: args::Tls) -> Tls {
    match asked {
        args::Tls::Chacha => Tls::ChaCha,
        args::Tls::Aes => Tls::Aes,
        args::Tls::Rsa => Tls::Rsa,
    }
}

fn measure(
    root: &Root,
    tools: Tools,
    cpus: Cpus,
    (arguments, seconds): (&BenchNginx, u32),
    interrupt: &Interrupt,
) -> anyhow::Result<NginxMeasured> {
    let directory = tempfile::tempdir().context("cannot make a directory for results")?;
    // The server's CPU, and the CPU that its calls are moved to. The experiment restricts this
    // command to the CPU of the load. A policy server must see more CPUs, so it is started before.
    let from = ([cpus.server, cpus.away], cpus.away);
    let mut ways = Ways::new(directory.path(), &arguments.moves, Some(from))?;
    let experiment = Experiment::prepare(root, tools, cpus, tls(arguments.tls))?;
    let turns = ways.all.iter().map(Way::turns).collect();
    let mut measured = NginxMeasured { ways: turns, forecasts: Vec::new() };
    let progress = progress::bar(u64::from(arguments.rounds) * ways.all.len() as u64);
    for round in 0..usize::try_from(arguments.rounds)? {
        for number in dimmer_bench::order(round, ways.all.len()) {
            let way = &ways.all[number];
            let what = format!("round {}, {}", round + 1, way.name);
            progress.set_message(what.clone());
            let run = experiment.run(&way.prefix, seconds, interrupt);
            let run = run.with_context(|| what.clone())?;
            if run.load.requests == 0 {
                bail!("{what}: no request was answered");
            }
            way.add(run, &mut measured.ways[number]).context(what)?;
            ways.check()?;
            if number == OBSERVE {
                measured.forecasts.push(forecast(&observed(directory.path()))?);
            }
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    if interrupt.is_set() {
        return Err(BenchError::Interrupted.into());
    }
    Ok(measured)
}

/// The share of time that `dimmer observe` predicts as lost, or why it predicts none.
fn forecast(observed: &Path) -> anyhow::Result<Result<f64, String>> {
    let read = || -> anyhow::Result<_> { Ok(lost(&cache::read(observed)?)?) };
    read().context("cannot read what was observed")
}
