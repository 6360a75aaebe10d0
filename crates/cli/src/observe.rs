//! `dimmer observe`: runs a program with hooks in it, and reports what they observed.

mod known;
mod marks;
mod scenario;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use dimmer_host::cpufreq;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_host::usage;
use dimmer_launch::LaunchError;
use dimmer_launch::named::Wanted;
use dimmer_launch::observe::{self, Options};
use dimmer_launch::trips::{self, RoundTrips};
use dimmer_observe::Observed;
use dimmer_probe::stats::Estimate;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_processor::units::LicenseLevel;
use dimmer_report::observe::{Report, Run};
use dimmer_report::phase_graph::chosen;

use crate::args::{Observe, Via};
use crate::output::{self, Output};
use crate::run::cores;
use crate::{bad_input, exit, not_launched};

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
    let to_graph = marks::output(arguments)?;
    arguments.textfile.check()?;
    let to_trace = arguments.trace.as_deref().map(Output::open).transpose()?;
    let to_scenario = arguments.scenario.as_deref().map(Output::open).transpose()?;
    let begun = SystemTime::now();
    let machine = Machine::read(&Root::live(), &Cpuid::instruction());
    let model = crate::model::choose(arguments.model.name(), &machine)?;
    let classes = classes(arguments, model.as_ref().map(|(model, _)| model), &machine);
    let named = arguments.named();
    let wanted: Vec<Wanted> = arguments.function.iter().map(|text| Wanted::parse(text)).collect();
    let requests: Vec<Wanted> = arguments.request.iter().map(|text| Wanted::parse(text)).collect();
    let options = Options {
        command: &arguments.command,
        classes: &classes,
        functions: &wanted,
        marks: marks::of(arguments)?,
        after: arguments.duration.duration,
        is_traced: arguments.scenario.is_some() || arguments.trace.is_some(),
        requests: &requests,
    };
    let (seen, via) = match (arguments.process.pid, arguments.via) {
        (Some(_), Some(Via::Hooks)) => {
            return Err(bad_input(
                "--via hooks does not work with --pid: hooks need a program that starts; expected uprobes",
            ));
        }
        (Some(process), _) => {
            (observe::attach(root, process, &classes, arguments.duration.duration), Via::Uprobes)
        }
        (None, Some(Via::Uprobes)) => (observe::start_counted(root, &options), Via::Uprobes),
        (None, _) => (observe::start(&options), Via::Hooks),
    };
    let mut seen = seen.map_err(|error| match error {
        LaunchError::NoPreload(why) => {
            bad_input(format!("{why}; as root, --via uprobes counts its calls"))
        }
        error => not_launched(error),
    })?;
    let known = known::known(
        &seen.observed,
        &classes,
        |file, function| match options.marks {
            Some(_) => known::is_hooked(&seen.observed, file, function),
            None => known::is_wanted(&wanted, file, function),
        },
        seen.plans.as_deref(),
        model.as_ref().map(|(model, _)| model),
    );
    let begin =
        |file: &Path, entry| known.get(file).map_or(entry, |functions| functions.begin(entry));
    seen.observed.gather(begin);
    let own_cpu = usage::own_time();
    let hand_off = hand_off(root, &seen.observed);
    let run = Run {
        command: &seen.command,
        is_counted: via == Via::Uprobes,
        choice: seen.choice.as_ref(),
        hand_off: &hand_off,
        is_governable: !cpufreq::policies(root).is_empty(),
        status: seen.status,
        on_cpu: seen.usage.on_cpu,
        switches: seen.usage.switches,
        own_cpu,
        observed: &seen.observed,
        known: &known,
        classes: &classes,
        machine: &machine,
        functions: named,
        model: model.as_ref().map(|(model, from)| (model, from.as_str())),
    };
    let report = Report::new(&run);
    let scenario =
        to_scenario.map(|to| scenario::write(to, arguments, &run, seen.usage.in_kernel, begun));
    let description = crate::probe::description(&machine, begun);
    arguments.textfile.write(|| report.textfile(&description))?;
    if let Some(to) = to_trace {
        output::timeline(to, &report.timeline(&seen.observed))?;
    }
    if let Some(page) = page {
        page.write(&report.page(&description)?)?;
    }
    match json {
        Some(json) if json.is_standard() => json.write_json(&report)?,
        json => {
            let mut text = report.text(output::error_screen());
            if let Some(choice) = &seen.choice {
                text.push('\n');
                text.push_str(&chosen(choice, output::error_screen()));
            }
            output::report(to, &text)?;
            if let Some(json) = json {
                json.write_json(&report)?;
            }
        }
    }
    // The report is there whether there is a scenario or a graph, or not.
    scenario.transpose()?;
    if let Some(to_graph) = to_graph {
        marks::write(to_graph, root, &seen)?;
    }
    Ok(seen.status.map_or(ExitCode::SUCCESS, exit::of_program))
}

/// What moving a call takes on this machine, after gaps as long as those between the observed calls
/// (ns), by the quicker of both kinds. Empty if there was no call, and where none can be moved.
fn hand_off(root: &Root, observed: &Observed) -> Vec<(f64, Estimate)> {
    let functions = observed.functions();
    let longest = functions.values().filter_map(|tally| tally.gap_after.quantile(1.0));
    let Some(longest_ns) = longest.reduce(f64::max) else { return Vec::new() };
    let Ok(longest) = Duration::try_from_secs_f64(longest_ns / 1e9) else { return Vec::new() };
    let Ok(cpus) = cores(root, None) else { return Vec::new() };
    let after = trips::round_trips_after_gaps(root, &cpus, longest).unwrap_or_default();
    let median =
        |(gap, trips): &(Duration, RoundTrips)| Some((gap.as_nanos() as f64, trips.quicker()?));
    after.iter().filter_map(median).collect()
}

/// The classes whose functions are worth a hook.
fn classes(arguments: &Observe, model: Option<&Model>, machine: &Machine) -> Vec<InstructionClass> {
    if !arguments.named().is_empty() {
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
