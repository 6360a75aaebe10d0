//! `dimmer observe`: runs a program with hooks in it, and reports what they observed.

mod known;
mod plans;
mod uprobes;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context;
use dimmer_host::cpufreq;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::machine::Machine;
use dimmer_host::relay::Relay;
use dimmer_host::root::Root;
use dimmer_host::usage;
use dimmer_observe::{Observed, Observer};
use dimmer_probe::handoff;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_processor::units::LicenseLevel;
use dimmer_report::observe::{Report, Run};

use crate::args::{Observe, Via};
use crate::named::{self, Wanted};
use crate::output::{self, Output};
use crate::{bad_input, launch, scan, state};

/// Classes whose functions are hooked if nothing is known about the processor: those that request a
/// license level on some processor (`models/`).
const CLASSES: [InstructionClass; 4] = [
    InstructionClass::Heavy256,
    InstructionClass::Light512,
    InstructionClass::Heavy512,
    InstructionClass::Tile,
];

pub(crate) fn run(
    root: &Root,
    arguments: &Observe,
    to: Option<Output>,
) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let page = arguments.page.open()?;
    let begun = jiff::Timestamp::now();
    let machine = Machine::read(&Root::live(), &Cpuid::instruction());
    let model = scan::choose_model(arguments.model.name(), &machine)?;
    let classes = classes(arguments, model.as_ref().map(|(model, _)| model), &machine);
    let end = End { after: arguments.duration.duration };
    let (mut seen, via) = match (arguments.process.pid, arguments.via) {
        (Some(_), Some(Via::Hooks)) => {
            return Err(bad_input(
                "--via hooks does not work with --pid: hooks need a program that starts; expected uprobes",
            ));
        }
        (Some(process), _) => (uprobes::attach(root, process, &classes, &end)?, Via::Uprobes),
        (None, Some(Via::Uprobes)) => {
            (uprobes::start(root, &arguments.command, &classes, &end)?, Via::Uprobes)
        }
        (None, _) => (start(arguments, &classes, &end)?, Via::Hooks),
    };
    let known = known::known(
        &seen.observed,
        &classes,
        &wanted(arguments),
        seen.plans.as_deref(),
        model.as_ref().map(|(model, _)| model),
    );
    let begin =
        |file: &Path, entry| known.get(file).map_or(entry, |functions| functions.begin(entry));
    seen.observed.gather(begin);
    let own_cpu = usage::own_time();
    // Measuring takes some 30 ms, and only functions that were called can be moved.
    let is_called = seen.observed.threads.iter().any(|thread| !thread.functions.is_empty());
    let hand_off = if is_called { handoff::round_trip(root).unwrap_or_default() } else { None };
    let report = Report::new(&Run {
        command: &seen.command,
        is_counted: via == Via::Uprobes,
        hand_off,
        is_governable: !cpufreq::policies(root).is_empty(),
        status: seen.status,
        on_cpu: seen.on_cpu,
        own_cpu,
        observed: &seen.observed,
        known: &known,
        classes: &classes,
        machine: &machine,
        functions: &arguments.function,
        model: model.as_ref().map(|(model, from)| (model, from.as_str())),
    });
    if let Some(page) = page {
        // Reads the time zone tables, which takes some milliseconds.
        let begun = begun.to_zoned(jiff::tz::TimeZone::system());
        let description = crate::probe::description(&machine, &begun);
        page.write(&report.page(&description)?)?;
    }
    match json {
        Some(json) if json.is_standard() => json.write_json(&report)?,
        json => {
            output::report(to, &report.text(output::error_screen()))?;
            if let Some(json) = json {
                json.write_json(&report)?;
            }
        }
    }
    Ok(seen.status.map_or(ExitCode::SUCCESS, launch::exit_code))
}

/// The result of observing.
struct Seen {
    command: Vec<String>,
    status: Option<ExitStatus>,
    on_cpu: Duration,
    observed: Observed,
    /// Where plans for its files are that contain the number of functions of the classes.
    plans: Option<PathBuf>,
}

/// Starts a program with hooks in it, and follows it to its end.
fn start(arguments: &Observe, classes: &[InstructionClass], end: &End) -> anyhow::Result<Seen> {
    let words = &arguments.command;
    let program = launch::Program::find(words)?;
    program
        .takes_library()
        .map_err(|why| bad_input(format!("{why}; as root, --via uprobes counts its calls")))?;
    let mut observer = Observer::new();
    let mut command = Command::new(&program.file);
    command.args(&words[1..]);
    // Named functions have their own plans. For files that are loaded later there is no class to
    // make a plan for.
    let wanted = wanted(arguments);
    let named = (!wanted.is_empty()).then(|| named::plans(&program, &wanted)).transpose()?;
    let plans = if named.is_none() { state::plans(classes) } else { None };
    if let Ok(observer) = &observer {
        let environment = match &named {
            Some(plans) => observer.environment(&[], Some(plans.directory.path())),
            None => observer.environment(classes, plans.as_deref()),
        };
        if named.is_none() {
            plans::prepare(&program, classes, &environment);
        }
        command.envs(environment);
        let library = launch::library()?;
        command.env(launch::PRELOAD, launch::preload(&library, std::env::var_os(launch::PRELOAD)));
    }
    let begun = Instant::now();
    let before = usage::time_of_ended_children();
    let relay = Relay::begin().context("cannot prepare for signals")?;
    let mut child = program.spawn(&mut command, &relay)?;
    let look = || {
        observer.iter_mut().for_each(Observer::look);
        Ok(())
    };
    let status = launch::follow(&mut child, end.deadline(), &relay, look)?;
    drop(relay);
    let on_cpu = usage::time_of_ended_children().saturating_sub(before);
    let observed = match observer {
        Ok(observer) => observer.finish(),
        Err(why) => {
            Observed::nothing(begun.elapsed(), format!("The program ran unobserved: {why}."))
        }
    };
    Ok(Seen { command: launch::shown(words), status: Some(status), on_cpu, observed, plans })
}

/// The functions that the user has named.
fn wanted(arguments: &Observe) -> Vec<Wanted> {
    arguments.function.iter().map(|text| Wanted::parse(text)).collect()
}

/// When to end, if the program has not ended by then.
struct End {
    /// Time after the end of the preparations.
    after: Option<Duration>,
}

impl End {
    /// The deadline, if the preparations end now.
    fn deadline(&self) -> Option<Instant> {
        self.after.map(|after| Instant::now() + after)
    }
}

/// The classes whose functions are worth a hook.
fn classes(arguments: &Observe, model: Option<&Model>, machine: &Machine) -> Vec<InstructionClass> {
    if !arguments.function.is_empty() {
        return InstructionClass::ALL.to_vec();
    }
    if !arguments.classes.is_empty() {
        return arguments.classes.clone();
    }
    let runs = |class: &InstructionClass| machine.runs(*class);
    let usual = || CLASSES.into_iter().filter(runs).collect();
    let Some(model) = model else { return usual() };
    let asks = |class: &InstructionClass| {
        let uses_zmm = *class >= InstructionClass::Light512;
        dimmer_scan::level([*class], uses_zmm, model) > LicenseLevel::new(0)
    };
    let asking: Vec<InstructionClass> =
        InstructionClass::ALL.into_iter().filter(runs).filter(asks).collect();
    // On a processor without levels there is nothing to gain, but the calls are reported
    // nevertheless.
    if asking.is_empty() { usual() } else { asking }
}
