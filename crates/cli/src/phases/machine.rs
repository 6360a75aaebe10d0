//! The real instructions of the phases, on this machine.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_probe::phases::{self, Code, Found, Seen, Wide};
use dimmer_probe::stats::Samples;

use super::{Kind, Phase};
use crate::output::Output;
use crate::progress::Progress;
use crate::{args, bad_input, measured};

/// Limit of the duration of all phases together (µs): nothing can stop a run in the middle.
const LONGEST_US: u64 = 20_000_000;

/// Approximate duration of all runs if their number is not given (µs).
const USUAL_US: u64 = 3_000_000;

/// Time before the progress bar appears.
const SILENT: Duration = Duration::from_secs(2);

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
    let mut silicon = measured::silicon(&machine, cpu)?;
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
    let mut progress = Progress::new(interrupt.clone(), SILENT);
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
    let names: Vec<String> = phases.iter().map(|phase| phase.kind.name(bits)).collect();
    let is_quiet = csv.as_ref().is_some_and(Output::is_standard);
    if let Some(csv) = csv {
        let of = |seen: &Seen| {
            [super::iterations(seen.iterations), format!("{:.1}", seen.lost_ns / 1000.0)]
        };
        let runs = found.runs.iter().map(|run| run.iter().map(of).collect());
        csv.write(&super::series(phases, &names, ["iterations", "lost_us"], runs)?)?;
    }
    if !is_quiet {
        println!("on CPU {cpu} of this machine, {}", machine.identity.brand);
        if let Some(why) = wide.as_ref().and_then(|wide| wide.lacks.as_ref()) {
            println!("{bits}-bit instead of 512-bit code: {why}");
        }
        println!("\n{}", super::table(phases, &names, |index| found.iterations(index)));
        print!("{}", notes(&found, phases, &names));
    }
    Ok(match end {
        Some(status) => {
            eprintln!("interrupted: {} of {repeat} runs were complete", found.runs.len());
            ExitCode::from(status)
        }
        None => ExitCode::SUCCESS,
    })
}

/// The quality of the measurement.
fn notes(found: &Found, phases: &[Phase], names: &[String]) -> String {
    let runs = found.runs.len();
    let mut text = String::new();
    let mut longest = 0.0_f64;
    for (index, (phase, name)) in phases.iter().zip(names).enumerate() {
        let ns = phase.us as f64 * 1000.0;
        let of = |what: fn(&Seen) -> f64| {
            found.runs.iter().map(|run| what(&run[index])).collect::<Samples>()
        };
        let lasted = of(|seen| if seen.is_disturbed { f64::NAN } else { seen.lasted_ns });
        longest = longest.max(lasted.quantile(0.5).map_or(0.0, |lasted| lasted / ns - 1.0));
        let disturbed = found.disturbed(index);
        if disturbed > 0 {
            let most_us = of(|seen| seen.lost_ns).quantile(1.0).unwrap_or(0.0) / 1000.0;
            text.push_str(&format!(
                "Phase {}, {name}: left out {disturbed} of {runs} runs, in which others had the CPU for more than 1 % \
                 of it, {most_us:.0} µs at most{}.\n",
                index + 1,
                if disturbed == runs { "; more runs (--repeat) may find it undisturbed" } else { "" },
            ));
        }
    }
    if found.preemptions > 0 {
        text.push_str(&format!(
            "The kernel gave the CPU to another thread {} times in {runs} runs.\n",
            found.preemptions
        ));
    }
    text.push_str(&format!(
        "{runs} runs; what was completed in the time asked for, after which a phase goes on for {:.1} % of it, or less, \
         until the next begins.\n",
        100.0 * longest
    ));
    text
}
