//! The results of `dimmer doctor`: which commands work on this machine, and the survey of its
//! capabilities. `docs/doctor-json.md` describes the document.

mod uses;

use std::borrow::Cow;

use dimmer_host::capability::{Area, Capability, State, Survey};
use serde::Serialize;

pub use uses::{Use, Verdict};

use crate::screen::{Screen, lines};

/// Indentation of the text of a capability.
const INDENT: &str = "      ";

/// Where the remark on a command begins.
const VERDICT_INDENT: &str = "                     ";

/// The survey as text, `width` columns wide: a line for each command, and with `is_all` each
/// capability.
pub fn text(survey: &Survey, is_all: bool, screen: Screen) -> String {
    let width = usize::from(screen.width);
    let mut lines = machine_lines(survey);
    lines.push(String::new());
    for one in Use::ALL {
        let (verdict, remark) = one.verdict(survey);
        lines.extend(wrapped(
            &format!("  {:<10} {:<7} {remark}", one.name(), verdict.name()),
            "",
            VERDICT_INDENT,
            width,
        ));
    }
    if !is_all {
        lines.push(
            "\nEvery capability, and how to get those that are missing: dimmer doctor --all"
                .to_owned(),
        );
        return lines.join("\n") + "\n";
    }
    let total = survey.capabilities.len();
    let available = survey.capabilities.iter().filter(|c| c.is_available()).count();
    for area in Area::ALL {
        lines.push(String::new());
        lines.push(area.name().to_owned());
        for capability in survey.capabilities.iter().filter(|c| c.area == area) {
            lines.extend(capability_lines(capability, width));
        }
    }
    lines.push(String::new());
    lines.push(format!("{available} of {total} capabilities are available here."));
    lines.join("\n") + "\n"
}

/// Lines of `width` columns: the first begins with `first`, the others with `rest`.
fn wrapped(text: &str, first: &str, rest: &str, width: usize) -> Vec<String> {
    let options = lines(width).initial_indent(first).subsequent_indent(rest);
    textwrap::wrap(text, options).into_iter().map(Cow::into_owned).collect()
}

fn machine_lines(survey: &Survey) -> Vec<String> {
    let machine = &survey.machine;
    let identity = &machine.identity;
    let topology = &machine.topology;
    let online = topology.cpus.iter().filter(|cpu| cpu.online).count();
    let tsc = match machine.tsc.frequency {
        Some((frequency, source)) => format!("{:.3} GHz by {}", frequency.ghz(), source.name()),
        None => "of unknown frequency".to_owned(),
    };
    let kind = match identity.borrowed {
        Some((named, feature)) => format!("unknown: no {named} has {feature}"),
        None => identity.microarchitecture.to_string(),
    };
    vec![
        format!(
            "{} ({kind}, family {} model {} stepping {})",
            identity.brand, identity.family, identity.model, identity.stepping
        ),
        format!(
            "{online} CPUs online on {} cores, {} usable by this process; {}; kernel {}",
            topology.online_cores(),
            machine.allowed.len(),
            machine.hypervisor.as_deref().map_or("no hypervisor seen".to_owned(), |name| {
                format!("virtual machine under {name}")
            }),
            machine.kernel_release.as_deref().unwrap_or("unknown"),
        ),
        format!(
            "time-stamp counter {tsc}, {}",
            if machine.tsc.invariant { "invariant" } else { "NOT invariant" }
        ),
    ]
}

/// A line with the verdict, and the details below it.
fn capability_lines(capability: &Capability, width: usize) -> Vec<String> {
    let (mark, words) = match &capability.state {
        State::Available { detail } => ("yes", detail.clone()),
        State::Unavailable(unavailable) => {
            ("no ", format!("{}. To get it: {}", unavailable.why, unavailable.remedy))
        }
        State::NotApplicable { why } => ("-  ", why.clone()),
    };
    let enables = capability
        .enables
        .map_or_else(|| "no command uses it yet".to_owned(), |enables| format!("for {enables}"));
    let head = format!("  {mark} {} ({enables})", capability.title);
    [wrapped(&head, "", INDENT, width), wrapped(&words, INDENT, INDENT, width)].concat()
}

/// The document `dimmer/doctor/2`.
pub fn document(survey: &Survey) -> impl Serialize {
    Document::of(survey)
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    machine: MachineDocument<'a>,
    commands: Vec<CommandDocument>,
    capabilities: Vec<CapabilityDocument<'a>>,
}

#[derive(Serialize)]
struct CommandDocument {
    command: &'static str,
    verdict: &'static str,
    remark: String,
}

#[derive(Serialize)]
struct MachineDocument<'a> {
    vendor: &'a str,
    brand: &'a str,
    microarchitecture: String,
    family: u8,
    model: u8,
    stepping: u8,
    microcode: Option<&'a str>,
    hypervisor: Option<&'a str>,
    kernel_release: Option<&'a str>,
    packages: usize,
    cores_online: usize,
    cpus: Vec<CpuDocument>,
    allowed_cpus: Vec<u32>,
    tsc_invariant: bool,
    tsc_khz: Option<u64>,
    tsc_source: Option<&'static str>,
    clocksource: Option<&'a str>,
    features: Vec<&'static str>,
}

#[derive(Serialize)]
struct CpuDocument {
    cpu: u32,
    core: u32,
    package: u32,
    node: Option<u32>,
    kind: &'static str,
    online: bool,
    siblings: Vec<u32>,
}

#[derive(Serialize)]
struct CapabilityDocument<'a> {
    id: &'static str,
    title: &'static str,
    area: &'static str,
    state: &'static str,
    detail: Option<&'a str>,
    why: Option<&'a str>,
    remedy: Option<&'a str>,
    enables: Option<&'static str>,
}

impl<'a> Document<'a> {
    fn of(survey: &'a Survey) -> Self {
        Self {
            schema: "dimmer/doctor/2",
            machine: MachineDocument::of(survey),
            commands: Use::ALL
                .iter()
                .map(|one| {
                    let (verdict, remark) = one.verdict(survey);
                    CommandDocument { command: one.name(), verdict: verdict.name(), remark }
                })
                .collect(),
            capabilities: survey.capabilities.iter().map(CapabilityDocument::of).collect(),
        }
    }
}

impl<'a> MachineDocument<'a> {
    fn of(survey: &'a Survey) -> Self {
        let machine = &survey.machine;
        let topology = &machine.topology;
        let mut packages: Vec<u32> = topology.cpus.iter().map(|cpu| cpu.package.index()).collect();
        packages.sort_unstable();
        packages.dedup();
        let cpus = topology.cpus.iter().map(|cpu| CpuDocument {
            cpu: cpu.id.index(),
            core: cpu.core.index(),
            package: cpu.package.index(),
            node: cpu.node.map(|node| node.index()),
            kind: match cpu.kind {
                dimmer_processor::topology::CoreKind::Uniform => "uniform",
                dimmer_processor::topology::CoreKind::Performance => "performance",
                dimmer_processor::topology::CoreKind::Efficiency => "efficiency",
            },
            online: cpu.online,
            siblings: topology.siblings(cpu.id).into_iter().map(|id| id.index()).collect(),
        });
        Self {
            vendor: &machine.identity.vendor,
            brand: &machine.identity.brand,
            microarchitecture: machine.identity.microarchitecture.to_string(),
            family: machine.identity.family,
            model: machine.identity.model,
            stepping: machine.identity.stepping,
            microcode: machine.microcode.as_deref(),
            hypervisor: machine.hypervisor.as_deref(),
            kernel_release: machine.kernel_release.as_deref(),
            packages: packages.len(),
            cores_online: topology.online_cores(),
            cpus: cpus.collect(),
            allowed_cpus: machine.allowed.iter().map(|cpu| cpu.index()).collect(),
            tsc_invariant: machine.tsc.invariant,
            tsc_khz: machine.tsc.frequency.map(|(frequency, _)| frequency.khz()),
            tsc_source: machine.tsc.frequency.map(|(_, source)| source.name()),
            clocksource: machine.tsc.clocksource.as_deref(),
            features: machine.features.iter().map(|feature| feature.name()).collect(),
        }
    }
}

impl<'a> CapabilityDocument<'a> {
    fn of(capability: &'a Capability) -> Self {
        let (state, detail, why, remedy) = match &capability.state {
            State::Available { detail } => ("available", Some(detail.as_str()), None, None),
            State::Unavailable(unavailable) => (
                "unavailable",
                None,
                Some(unavailable.why.as_str()),
                Some(unavailable.remedy.as_str()),
            ),
            State::NotApplicable { why } => ("not-applicable", None, Some(why.as_str()), None),
        };
        Self {
            id: capability.id,
            title: capability.title,
            area: capability.area.name(),
            state,
            detail,
            why,
            remedy,
            enables: capability.enables,
        }
    }
}
