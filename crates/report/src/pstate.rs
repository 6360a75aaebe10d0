//! The P-states of a machine, in words and as JSON. `docs/pstate.md` describes the document.

use dimmer_host::cpufreq::POLICIES;
use dimmer_host::pstate::{CpuState, Part, Plan, Pstates};
use dimmer_host::root::format_cpu_list;
use dimmer_host::tune;
use dimmer_processor::pstate::{Definition, Limits, States};
use dimmer_processor::units::{CpuId, KiloHertz, MicroVolts};
use serde::Serialize;

use crate::screen::Screen;
use crate::table::{Cell, Table};

/// The document `dimmer/pstate/1`.
pub fn document(pstates: &Pstates) -> impl Serialize {
    let identity = &pstates.identity;
    let (states, limits, has_hwp) = match &pstates.part {
        Part::Amd { states, .. } => {
            (states.all().map(|(number, one)| State::of(states, number, one)).collect(), None, None)
        }
        Part::Intel { limits, has_hwp } => (Vec::new(), Some(limits), Some(*has_hwp)),
    };
    Document {
        schema: "dimmer/pstate/1",
        vendor: identity.vendor.clone(),
        brand: identity.brand.clone(),
        family: identity.family,
        model: identity.model,
        fastest: pstates.part.fastest(),
        slowest: pstates.part.slowest(),
        base: limits.map(|limits| limits.base),
        turbo: limits.map(|limits| limits.turbo.clone()).unwrap_or_default(),
        hwp: has_hwp,
        states,
        cpus: pstates.cpus.iter().map(|state| Cpu::of(pstates, *state)).collect(),
    }
}

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    vendor: String,
    brand: String,
    family: u8,
    model: u8,
    fastest: u8,
    slowest: u8,
    base: Option<u8>,
    turbo: Vec<u8>,
    hwp: Option<bool>,
    states: Vec<State>,
    cpus: Vec<Cpu>,
}

#[derive(Serialize)]
struct State {
    state: u8,
    enabled: bool,
    boosted: bool,
    frequency_khz: Option<u64>,
    voltage_uv: Option<u64>,
}

impl State {
    fn of(states: &States, number: u8, definition: Definition) -> Self {
        Self {
            state: number,
            enabled: definition.is_enabled,
            boosted: number < states.base(),
            frequency_khz: definition.frequency.map(KiloHertz::khz),
            voltage_uv: definition.voltage.map(MicroVolts::uv),
        }
    }
}

#[derive(Serialize)]
struct Cpu {
    cpu: u32,
    requested: u8,
    current: u8,
    differs: bool,
}

impl Cpu {
    fn of(pstates: &Pstates, CpuState { cpu, requested, current }: CpuState) -> Self {
        let differs = pstates.differing.contains(&cpu);
        Self { cpu: cpu.index(), requested, current, differs }
    }
}

/// The P-states as text.
pub fn text(pstates: &Pstates, screen: Screen) -> String {
    let identity = &pstates.identity;
    let mut text = format!("{} ({})\n\n", identity.brand, identity.microarchitecture);
    match &pstates.part {
        Part::Amd { states, fastest, slowest } => {
            text += &definitions(states, screen);
            text += &format!("\nP{fastest} to P{slowest} can be requested.\n");
            if !states.has_voltages() {
                text += "No public manual gives the voltages of this model.\n";
            }
        }
        Part::Intel { limits, has_hwp } => text += &ratios(limits, *has_hwp),
    }
    if !pstates.differing.is_empty() {
        let cpus = format_cpu_list(&pstates.differing);
        text += &format!("note: CPUs {cpus} have other definitions than those shown\n");
    }
    text + "\n" + &cpus(&pstates.cpus, screen)
}

fn definitions(states: &States, screen: Screen) -> String {
    let mut table = Table::new(["P-state", "in use", "MHz", "mV", ""]);
    for (number, definition) in states.all() {
        let in_use = if definition.is_enabled { "yes" } else { "no" };
        let mhz = definition.frequency.filter(|_| definition.is_enabled).map(mhz);
        let mv = definition
            .voltage
            .filter(|_| definition.is_enabled)
            .map(|voltage| voltage.mv().to_string());
        let is_boosted = number < states.base();
        table.row([
            Cell::from(format!("P{number}")),
            Cell::from(in_use),
            Cell::right(mhz.unwrap_or_else(|| "-".to_owned())),
            Cell::right(mv.unwrap_or_else(|| "-".to_owned())),
            Cell::from(if is_boosted { "boosted: the processor alone chooses it" } else { "" }),
        ]);
    }
    table.render(screen)
}

fn ratios(limits: &Limits, has_hwp: bool) -> String {
    let Limits { lowest, base, turbo } = limits;
    let mut text = format!(
        "P{lowest} to P{} can be requested: ratios to 100 MHz. P{base} is the highest without turbo.\n",
        limits.highest()
    );
    if !turbo.is_empty() {
        let turbo: Vec<String> = turbo.iter().map(ToString::to_string).collect();
        text += &format!("With turbo, fewest active cores first: {}.\n", turbo.join(", "));
    }
    text += "The processor chooses the voltages.\n";
    if has_hwp {
        text += "It chooses P-states, too (HWP), and ignores requests.\n";
    }
    text
}

/// The CPUs, those in the same state together.
fn cpus(states: &[CpuState], screen: Screen) -> String {
    let mut rows: Vec<(u8, u8, Vec<CpuId>)> = Vec::new();
    for &CpuState { cpu, requested, current } in states {
        match rows.iter_mut().find(|row| (row.0, row.1) == (requested, current)) {
            Some((.., cpus)) => cpus.push(cpu),
            None => rows.push((requested, current, vec![cpu])),
        }
    }
    let mut table = Table::new(["CPUs", "requested", "current"]);
    for (requested, current, cpus) in rows {
        table.row([format_cpu_list(&cpus), format!("P{requested}"), format!("P{current}")]);
    }
    table.render(screen)
}

/// What was set, and until when.
pub fn begin(part: &Part, plan: &Plan, is_kept: bool) -> String {
    let mut text = String::new();
    for (number, raw) in &plan.definitions {
        if let Part::Amd { states, .. } = part {
            text += &format!("P{number} is defined as {}.\n", described(states.decode(*raw)));
        }
    }
    for (number, cpus) in &plan.requests {
        let cpus = format_cpu_list(cpus);
        text += &format!("CPUs {cpus} request P{number} ({}).\n", state(part, plan, *number));
    }
    text + if is_kept {
        "`dimmer restore` undoes this.\n"
    } else {
        "This lasts until a signal ends it (Ctrl-C).\n"
    }
}

/// What `dimmer pstate tune` changes, and what this machine lacks for it. Files of several policies
/// that change alike are one line.
pub fn tuning(plan: &tune::Plan) -> String {
    let mut lines: Vec<(String, Vec<String>, &str, &str)> = Vec::new();
    for tune::Change { path, before, after } in &plan.changes {
        let (policy, name) = of_policy(path).unwrap_or(("", path));
        match lines
            .iter_mut()
            .find(|line| (line.0.as_str(), line.2, line.3) == (name, before, after))
        {
            Some((_, policies, ..)) => policies.push(policy.to_owned()),
            None => lines.push((name.to_owned(), vec![policy.to_owned()], before, after)),
        }
    }
    let mut text = String::new();
    for (name, policies, before, after) in lines {
        let policies = policies.join(" ");
        let blank = if policies.is_empty() { "" } else { " of " };
        text += &format!("{name}{blank}{policies}: {before} -> {after}\n");
    }
    if plan.is_awake {
        text += &format!("{}: 0, so that no core sleeps\n", tune::WAKE_UP);
    }
    for missing in &plan.missing {
        text += &format!("not here: {}: {} ({})\n", missing.what, missing.why, missing.remedy);
    }
    text
}

/// The policy and the name of a policy's file.
fn of_policy(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix(POLICIES)?.strip_prefix('/')?.split_once('/')
}

/// A P-state once the plan is carried out.
fn state(part: &Part, plan: &Plan, number: u8) -> String {
    match part {
        Part::Amd { states, .. } => {
            let redefined = plan.definitions.iter().find(|(redefined, _)| *redefined == number);
            let definition = redefined.map(|(_, raw)| states.decode(*raw));
            definition.or_else(|| states.definition(number)).map(described).unwrap_or_default()
        }
        Part::Intel { .. } => format!("{} MHz", mhz(Limits::frequency(number))),
    }
}

fn described(definition: Definition) -> String {
    let frequency = definition.frequency.map(|frequency| format!("{} MHz", mhz(frequency)));
    let voltage = definition.voltage.map(|voltage| format!("{} mV", voltage.mv()));
    frequency.into_iter().chain(voltage).collect::<Vec<_>>().join(", ")
}

fn mhz(frequency: KiloHertz) -> String {
    (frequency.khz() / 1000).to_string()
}
