//! One self-contained page: what this machine does with wide SIMD code, in words and plots.

use dimmer_probe::mode::Mode;
use dimmer_probe::outcome::{Findings, Instrument, Outcome};
use maud::{Markup, html};

use super::readings::readings;
use super::verdict::{self, KernelFindings, by_kernel};
use super::{finding, levels, words};
use crate::machine::MachineDescription;
use crate::number::{grouped, length, time};
use crate::page::{Drawing as _, PageError, command, page, prose, unfold};

/// The findings as an HTML page.
pub(super) fn render(
    findings: &Findings,
    machine: &MachineDescription,
) -> Result<String, PageError> {
    let kernels = by_kernel(findings);
    let (with, without): (Vec<_>, Vec<_>) =
        kernels.iter().partition(|kernel| kernel.transitions().any(|outcome| outcome.effect));
    let verdict = verdict::of(findings);
    let mut sections = Vec::new();
    for kernel in with {
        sections.push(finding::kernel(kernel).of(kernel.name)?);
    }
    let without: Vec<Markup> = without
        .into_iter()
        .filter(|kernel| kernel.transitions().next().is_some())
        .map(|kernel| finding::absent(kernel).of(kernel.name))
        .collect::<Result<_, _>>()?;
    let main = html! {
        (facts(findings, machine))
        (overview(findings, &kernels))
        @for section in &sections { (section) }
        @if !without.is_empty() {
            section {
                h2 { "Without an effect" }
                p { "What was looked for and not found, and how large it could be at most." }
                div.quiet { @for kernel in &without { (kernel) } }
            }
        }
        (levels::section(&kernels))
        (skipped(findings))
        (method(&findings.instrument))
        (quality(findings))
    };
    let about = ("Dimmer probe", machine.brand.as_str());
    Ok(page(about, verdict.title, &verdict.sentences, &main, machine).into_string())
}

fn facts(findings: &Findings, machine: &MachineDescription) -> Markup {
    let unknown = || "not told".to_owned();
    let hypervisor = machine.hypervisor.clone().unwrap_or_else(|| "none seen".to_owned());
    let facts = [
        ("Processor", format!("{} ({})", machine.brand, machine.vendor)),
        ("Microarchitecture", machine.microarchitecture.clone()),
        ("Hypervisor", hypervisor),
        ("Kernel", machine.kernel.clone().unwrap_or_else(unknown)),
        ("Microcode", machine.microcode.clone().unwrap_or_else(unknown)),
        ("CPUs in use", length(machine.cpus)),
        ("Nominal clock", format!("{} GHz", grouped(findings.instrument.nominal_ghz, 3))),
        ("Time-stamp counter", format!("{} GHz", grouped(findings.tsc_ghz, 3))),
    ];
    html! {
        section {
            h2 { "The machine" }
            dl.facts {
                @for (term, value) in &facts { div { dt { (term) } dd { (value) } } }
            }
            p.command { (command(&machine.command)) }
        }
    }
}

/// Every kernel in one line: the first reading of each mode.
fn overview(findings: &Findings, kernels: &[KernelFindings<'_>]) -> Markup {
    let modes = words::modes(findings);
    if modes.is_empty() {
        return html! {};
    }
    let first = |mode: Mode| {
        let of_mode = kernels.iter().flat_map(|kernel| kernel.shown(mode)).next();
        of_mode.and_then(|outcome| readings(outcome).into_iter().next())
    };
    html! {
        section {
            h2 { "At a glance" }
            div.scroll tabindex="0" {
                table.glance {
                    thead {
                        tr {
                            th scope="col" { "Kernel" }
                            @for mode in &modes {
                                th scope="col" {
                                    (words::title(*mode).0)
                                    @if let Some(reading) = first(*mode) {
                                        span.label { (reading.label) }
                                    }
                                }
                            }
                        }
                    }
                    tbody {
                        @for kernel in kernels {
                            tr {
                                th scope="row" {
                                    code { (kernel.name) }
                                    span.label { (kernel.class) }
                                }
                                @for mode in &modes { (glance(*mode, kernel.shown(*mode))) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// One cell. It contains the mode for narrow pages, where cells are not below the header.
fn glance(mode: Mode, outcome: Option<&Outcome>) -> Markup {
    let Some(outcome) = outcome else { return html! { td.none { "–" } } };
    let reading = readings(outcome).into_iter().next();
    let class = if outcome.effect { "effect" } else { "absent" };
    html! {
        td class=(class) {
            span.mode { (words::title(mode).0) }
            @if let Some(reading) = reading {
                (reading.value.unwrap_or_default())
                @if let Some(interval) = reading.interval { span.interval { (interval) } }
            }
        }
    }
}

fn skipped(findings: &Findings) -> Markup {
    if findings.skipped.is_empty() {
        return html! {};
    }
    html! {
        section {
            h2 { "Skipped" }
            ul.skipped {
                @for group in words::skipped(findings) {
                    li {
                        (prose(&group.kernels))
                        @if let Some(mode) = group.mode { " in mode " (mode) }
                        ": " (group.reason) "."
                    }
                }
            }
        }
    }
}

fn method(instrument: &Instrument) -> Markup {
    html! {
        section {
            h2 { "How it was measured" }
            p {
                "By timing alone, which needs no privilege and works inside virtual machines. A \
                 chain of multiplications takes a known number of core cycles ("
                (instrument.multiplication_cycles) " each, found by comparison with additions), so \
                 its duration on the time-stamp counter is the clock; independent additions beside \
                 it show throttled issue. Bursts of the code in question alternate with scalar \
                 stand-ins that take about as long, so that drift cancels. All repetitions are laid \
                 over each other at the end of the burst."
            }
            p {
                "Where this page speaks of a license: some processors run wide code at full \
                 speed only under one. The first wide instructions ask for it and are throttled until \
                 it is granted; while it is held the clock may be lower, and some time after the last \
                 of them it is given back."
            }
            p {
                "Numbers are medians; brackets hold the 95 % interval of the median. “Absent, below \
                 X” means that nothing stands out, and that with 95 % probability the mean cost, or the \
                 mean clock's loss, is below X."
            }
            dl.facts {
                div { dt { "Window of scalar code" } dd { (time(instrument.window_ns)) } }
                div { dt { "Reading a time stamp" } dd { (time(instrument.overhead_ns)) } }
                div { dt { "Resolution" } dd { (time(instrument.resolution_ns)) } }
                div { dt { "Additions per cycle" } dd { (grouped(instrument.issue_per_cycle, 2)) } }
            }
        }
    }
}

/// The quality of each measurement.
fn quality(findings: &Findings) -> Markup {
    if findings.outcomes.is_empty() {
        return html! {};
    }
    let header = [
        "kernel",
        "mode",
        "CPU",
        "threads",
        "repetitions",
        "left out",
        "stolen",
        "preempted",
        "bound",
        "watched for",
    ];
    let row = |outcome: &Outcome| {
        vec![
            outcome.kernel.clone(),
            outcome.mode.to_string(),
            outcome.cpu.to_string(),
            outcome.threads.to_string(),
            length(outcome.repetitions),
            length(outcome.disturbed_windows),
            length(outcome.stolen_windows),
            grouped(outcome.preemptions as f64, 0),
            time(outcome.bound_ns),
            time(outcome.horizon_ns),
        ]
    };
    let rows: Vec<Vec<String>> = findings.outcomes.iter().map(row).collect();
    html! {
        section {
            h2 { "How good it is" }
            p {
                "Windows into which an interrupt fell are left out and counted; so are stolen ones, \
                 which took more than twice their time without an interrupt of this system."
            }
            @if let Some(surroundings) = words::surroundings(findings) {
                p { (surroundings) " Runs differ as that does." }
            }
            (unfold("All measurements", &header.map(str::to_owned), &rows))
        }
    }
}
