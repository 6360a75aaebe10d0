//! The real instructions of the phases, on this machine.

use std::process::ExitCode;

use anyhow::Context;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_probe::phases::{self, Code, Wide};
use dimmer_report::phases as report;

use super::{Kind, Phase};
use crate::output::{self, Output};
use crate::progress::{self, Progress};
use crate::{args, bad_input, measured};

/// Limit of the duration of all phases together (µs): nothing can stop a run in the middle.
const LONGEST_US: u64 = 20_000_000;

/// Approximate duration of all runs if their number is not given (µs).
const USUAL_US: u64 = 3_000_000;

pub(super) fn run(
    arguments: &args::Phases,
    phases: &[Phase],
    csv: Option<Output>,
) -> anyhow::Result<ExitCode> {
    if arguments.governor != args::Governor::Hardware {
        return Err(bad_input(
            "--governor: without --model the real instructions run on this machine, where the processor \
             itself governs its levels; the others are simulated: name the processor by --model",
        ));
    }
    let total_us: u64 = phases.iter().map(|phase| phase.us).sum();
    if total_us > LONGEST_US {
        return Err(bad_input(format!(
            "phases of {} s together: at most {} s on the machine itself, as nothing can end a run in \
             the middle; --model simulates longer ones",
            total_us / 1_000_000,
            LONGEST_US / 1_000_000,
        )));
    }
    let machine = Machine::read(&Root::live(), &Cpuid::instruction());
    let cpu = measured::cpu(&machine, arguments.cpu.cpu)?;
    measured::check_clock(&machine)?;
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let mut silicon = dimmer_probe::machine::silicon(&machine, cpu, false)?;
    let is_wide = phases.iter().any(|phase| phase.kind != Kind::Scalar);
    let wide = is_wide.then(|| Wide::of(&silicon)).transpose()?;
    let code = |kind| match (kind, &wide) {
        (Kind::Heavy, Some(wide)) => wide.heavy.clone(),
        (Kind::Waiting, Some(wide)) => wide.waiting.clone(),
        _ => Code::Scalar,
    };
    let real = phases
        .iter()
        .map(|phase| phases::Phase { code: code(phase.kind), ns: phase.us as f64 * 1000.0 });
    let real: Vec<phases::Phase> = real.collect();
    let repeat = arguments.repeat.unwrap_or((USUAL_US / total_us).clamp(3, super::RUNS));
    let mut progress = Progress::new(interrupt.clone(), progress::SHOWN_AFTER);
    let found = phases::run(
        &mut silicon,
        cpu,
        &real,
        usize::try_from(repeat).unwrap_or(usize::MAX),
        &mut progress,
    );
    progress.finish();
    let found = found?;
    let end = interrupt.exit_status();
    if found.runs.is_empty() {
        eprintln!("interrupted: nothing was complete yet");
        return Ok(end.map_or(ExitCode::SUCCESS, ExitCode::from));
    }
    let bits = wide.as_ref().map_or(512, |wide| wide.bits);
    let named = super::named(phases, bits);
    let partial = end.map_or(String::new(), |_| {
        format!("PARTIAL: interrupted when {} of {repeat} runs were complete.\n", found.runs.len())
    });
    let is_quiet = csv.as_ref().is_some_and(Output::is_standard);
    if let Some(csv) = csv {
        csv.write(&report::measured(&named, &found)?)?;
    }
    if is_quiet {
        eprint!("{partial}");
    } else {
        let lack = wide.as_ref().and_then(|wide| wide.lacks.as_ref());
        let lack = lack
            .map_or(String::new(), |why| format!("{bits}-bit instead of 512-bit code: {why}\n"));
        output::print(&format!(
            "on CPU {cpu} of this machine, {}\n{lack}{partial}\n{}\n{}",
            machine.identity.brand,
            report::table(&named, |index| found.iterations(index), output::screen()),
            report::notes(&named, &found)
        ))?;
    }
    Ok(output::end(&interrupt))
}
