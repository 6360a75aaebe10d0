//! `dimmer ps`: which processes use wide SIMD code.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_processor::class::InstructionClass;
use dimmer_ps::code::Codes;
use dimmer_ps::look::Look;
use dimmer_ps::{Host, Process};
use dimmer_report::ps::Report;

use crate::args::Ps;
use crate::bad_input;
use crate::output;
use crate::scan;

/// The time between two looks, once and with `--watch`.
const INTERVALS: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];

/// Longest delay before a signal is handled.
const TICK: Duration = Duration::from_millis(50);

pub(crate) fn run(root: &Root, arguments: &Ps) -> anyhow::Result<ExitCode> {
    let mut json = arguments.json.open()?;
    let machine = Machine::read(&Root::live(), &Cpuid::instruction());
    let model = crate::model::choose(arguments.model.name(), &machine)?;
    let model = model.as_ref().map(|(model, from)| (model, from.as_str()));
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let runs = InstructionClass::ALL.into_iter().filter(|class| machine.runs(*class));
    let runs: Vec<InstructionClass> = runs.collect();
    let interval = arguments.interval.unwrap_or(INTERVALS[usize::from(arguments.watch)]);
    let is_shown = |one: &Process| {
        arguments.all || one.uses_avx512() || one.is_busy() || arguments.process.pid.is_some()
    };
    let look = || {
        let look = Look::new(root, arguments.process.pid);
        match arguments.process.pid.filter(|pid| !look.processes.contains_key(pid)) {
            Some(pid) => Err(bad_input(format!("--pid {pid}: no process with memory of its own"))),
            None => Ok(look),
        }
    };
    let mut before = look()?;
    loop {
        wait(interval, &interrupt);
        if interrupt.is_set() {
            return Ok(output::end(&interrupt));
        }
        let after = look()?;
        let mut host = Host::between(&before, &after);
        let mut codes = Codes::open(runs.clone());
        let progress = scan::progress();
        host.find_code(root, &mut codes, is_shown, |file| {
            progress.set_message(output::printable(file, false));
            progress.tick();
            !interrupt.is_set()
        });
        progress.finish_and_clear();
        codes.keep();
        let report = Report::new(&host, model, is_shown);
        if json.as_ref().is_none_or(|json| !json.is_standard()) {
            let text = report.text(arguments.cgroup, output::screen());
            if arguments.watch {
                output::clear_terminal().context("cannot clear the terminal")?;
                output::print(&(text + "\n"))?;
            } else {
                output::print(&text)?;
            }
        }
        if !arguments.watch {
            json.map_or(Ok(()), |json| json.write_json(&report))?;
            return Ok(output::end(&interrupt));
        }
        if let Some(json) = &mut json {
            json.add(&(serde_json::to_string(&report)? + "\n"))?;
        }
        before = after;
    }
}

/// Waits, or until a signal.
fn wait(interval: Duration, interrupt: &Interrupt) {
    let end = Instant::now() + interval;
    while !interrupt.is_set() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(TICK));
    }
}
