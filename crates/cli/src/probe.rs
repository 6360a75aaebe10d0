//! `dimmer probe`: from arguments to a plan, from findings to files.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use dimmer_host::cache;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::events::{self, Counts};
use dimmer_host::interrupt::Interrupt;
use dimmer_host::journal::Journal;
use dimmer_host::machine::Machine;
use dimmer_host::perf::Countable;
use dimmer_host::root::{Root, format_cpu_list};
use dimmer_host::tile;
use dimmer_host::turbo::Turbo;
use dimmer_probe::handoff;
use dimmer_probe::kernel::{self, Kernel};
use dimmer_probe::lab::{Effort, Settings};
use dimmer_probe::mode::Mode;
use dimmer_probe::outcome::Findings;
use dimmer_probe::session::{self, Item, Plan};
use dimmer_probe::silicon::{Silicon, SiliconConfig};
use dimmer_probe::target::{Load, TargetError};
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::{Identity, Model, Move, Shape, Sourced};
use dimmer_processor::topology::Topology;
use dimmer_processor::units::CpuId;
use dimmer_report::{MachineDescription, probe as report};

use crate::args::{PreThrottle, Probe};
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::{bad_input, measured, restore};
use dimmer_launch::cache as kept;

/// Kernels of a quick probe: each class once, the light and narrow ones as controls.
const REPRESENTATIVES: [&str; 6] = [
    "vfmadd231pd-512-unrolled",
    "vfmadd231pd-512-unrolled-load",
    "vpaddd-512-unrolled",
    "vfmadd231pd-256-unrolled",
    "tdpbf16ps-tile-unrolled",
    "vfmadd231sd-scalar-unrolled",
];

/// Modes in which a quick probe measures each kernel.
const QUICK_MODES: [Mode; 3] = [Mode::Episode, Mode::Downclock, Mode::Recurrence];

/// Default number of instructions in a burst: about what one short call of a vectorized library
/// function executes.
const BURST: u32 = 800;

/// Bursts from one instruction to about a millisecond, beside [`BURST`].
const SWEEP: [u32; 5] = [1, 31, 10_000, 200_000, 4_000_000];

/// Time for a quick probe; calibration and the minimum repetitions may need more.
const QUICK_BUDGET: Duration = Duration::from_secs(16);

/// Time for a full probe.
const FULL_BUDGET: Duration = Duration::from_secs(420);

pub(crate) fn run(root: &Root, arguments: &Probe) -> anyhow::Result<ExitCode> {
    let begin = jiff::Zoned::now();
    // The code runs on the real processor, whatever root the files are read from.
    let machine = Machine::read(&Root::live(), &Cpuid::instruction());
    if arguments.list {
        output::print(&list(&machine))?;
        return Ok(ExitCode::SUCCESS);
    }
    let plan = plan(&machine, arguments)?;
    let outputs = Outputs::open(arguments)?;
    measured::check_clock(&machine)?;
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let journal = if arguments.turbo_off { Some(turbo_off(root)?) } else { None };
    let mut silicon = silicon(&machine, &plan, arguments.huge_pages)?;
    let mut progress = Progress::new(interrupt.clone(), Duration::ZERO);
    let findings = session::run(&mut silicon, &plan, &mut progress);
    progress.finish();
    if let Some(journal) = journal {
        let undone = journal.undo().context("cannot switch turbo back on")?;
        eprint!("{}", restore::words(&undone));
    }
    let findings = match (findings, interrupt.exit_status()) {
        // After an interrupt, the reason for a failure does not matter.
        (Err(_), Some(status)) => {
            eprintln!("interrupted: nothing was complete yet");
            return Ok(ExitCode::from(status));
        }
        (findings, _) => findings?,
    };
    let description = description(&machine, &begin);
    if arguments.is_about_the_machine() && !findings.interrupted {
        keep_model(&findings, &machine, &description, arguments.quick);
    }
    outputs.write(&findings, &machine, &description)?;
    Ok(output::end(&interrupt))
}

/// Measures a model of this machine by a quick probe of the usual kernels and of `kernels`, and
/// caches it. `None` if the probe was interrupted.
pub(crate) fn calibrate(
    machine: &Machine,
    cpu: CpuId,
    kernels: &[Arc<Kernel>],
    interrupt: &Interrupt,
) -> anyhow::Result<Option<Model>> {
    let begin = jiff::Zoned::now();
    let others = kernels.iter().filter(|kernel| !REPRESENTATIVES.contains(&kernel.name.as_str()));
    let usual = REPRESENTATIVES.iter().filter_map(|name| kernel::find(name).ok());
    let kernels: Vec<Kernel> = usual.chain(others.map(|kernel| (**kernel).clone())).collect();
    let plan = Plan {
        items: items(&Asked { kernels: &kernels, quick: true, ..Asked::default() }),
        cpu,
        settings: Settings { effort: Effort::Quick, repetitions: 1000, threads: 1, load: None },
        budget: QUICK_BUDGET,
        only_where_effect: true,
    };
    let mut silicon = silicon(machine, &plan, false)?;
    let mut progress = Progress::new(interrupt.clone(), Duration::ZERO);
    let findings = session::run(&mut silicon, &plan, &mut progress);
    progress.finish();
    if interrupt.is_set() {
        return Ok(None);
    }
    let (findings, description) = (findings?, description(machine, &begin));
    keep_model(&findings, machine, &description, true);
    Ok(Some(model_of(&findings, machine, &description)))
}

fn silicon(machine: &Machine, plan: &Plan, huge_pages: bool) -> Result<Silicon, TargetError> {
    Silicon::new(SiliconConfig {
        cpus: measured::usable(machine, plan.cpu),
        topology: machine.topology.clone(),
        features: features(machine, plan),
        huge_pages,
        events: events(machine),
    })
}

/// Checks everything that the user asked for.
fn plan(machine: &Machine, arguments: &Probe) -> anyhow::Result<Plan> {
    let modes: Vec<Mode> = arguments.mode.iter().map(|mode| mode.0).collect();
    let kernels = arguments.kernel.iter().map(|name| kernel::find(name).map_err(bad_input));
    let kernels: Vec<Kernel> = kernels.collect::<Result<_, _>>()?;
    let cpu = measured::cpu(machine, arguments.cpu.cpu)?;
    let usable = machine.allowed.len().max(1);
    if !(1..=usable).contains(&arguments.threads) {
        return Err(bad_input(format!(
            "--threads {}: this process may use {usable} CPUs ({}), so 1 to {usable}",
            arguments.threads,
            format_cpu_list(&machine.allowed),
        )));
    }
    let explicit = !modes.is_empty();
    Ok(Plan {
        items: items(&Asked {
            modes: &modes,
            kernels: &kernels,
            bursts: &arguments.burst,
            quick: arguments.quick,
            all_cpus: arguments.all_cpus,
        }),
        cpu,
        settings: Settings {
            effort: if arguments.quick { Effort::Quick } else { Effort::Full },
            repetitions: usize::try_from(arguments.repetitions).unwrap_or(usize::MAX),
            threads: arguments.threads,
            load: match arguments.pre_throttle {
                PreThrottle::None => None,
                PreThrottle::Scalar => Some(Load::Scalar),
                PreThrottle::Vector => Some(Load::Vector),
            },
        },
        budget: if arguments.quick { QUICK_BUDGET } else { FULL_BUDGET },
        only_where_effect: !explicit,
    })
}

/// The user's request; a list is empty if the user named nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Asked<'a> {
    modes: &'a [Mode],
    kernels: &'a [Kernel],
    bursts: &'a [u32],
    quick: bool,
    /// Whether heavy code may run on all CPUs.
    all_cpus: bool,
}

/// The requested modes, kernels and bursts. The defaults for the rest fit the time: all kernels in
/// the modes that look for an effect, a few kernels in the modes that examine it. Levels, which
/// load the whole machine, only on request.
fn items(asked: &Asked<'_>) -> Vec<Item> {
    let Asked { modes, kernels, bursts, quick, all_cpus } = *asked;
    let named = |names: &[&str]| -> Vec<Kernel> {
        names.iter().filter_map(|name| kernel::find(name).ok()).collect()
    };
    let representatives = named(&REPRESENTATIVES);
    let burst = if bursts.is_empty() { &[BURST] } else { bursts };
    let with_levels = |modes: &[Mode]| -> Vec<Mode> {
        let others = modes.iter().copied().filter(|mode| *mode != Mode::Levels);
        others.chain(all_cpus.then_some(Mode::Levels)).collect()
    };
    match (modes.is_empty(), kernels.is_empty()) {
        (false, false) => Plan::cross(modes, kernels, burst),
        (false, true) if quick => Plan::cross(modes, &representatives, burst),
        (false, true) => Plan::cross(modes, kernel::all(), burst),
        (true, false) if quick => Plan::cross(&with_levels(&QUICK_MODES), kernels, burst),
        (true, false) => Plan::cross(&with_levels(&Mode::ALL), kernels, burst),
        (true, true) if quick => Plan::cross(&with_levels(&QUICK_MODES), &representatives, burst),
        (true, true) => {
            let find = [Mode::Episode, Mode::Downclock, Mode::Throttle];
            let examine = with_levels(&[Mode::Upclock, Mode::Instructions, Mode::Recurrence]);
            let sweep = if bursts.is_empty() { &SWEEP } else { bursts };
            let swept = [Mode::Episode, Mode::Recurrence];
            let mut items = Plan::cross(&find, kernel::all(), burst);
            items.extend(Plan::cross(&examine, &representatives, burst));
            items.extend(Plan::cross(&swept, &representatives[..1], sweep));
            items
        }
    }
}

/// Extensions that code may use; AMX only if the kernel permits it to this process.
fn features(machine: &Machine, plan: &Plan) -> Vec<String> {
    let tiles = plan.items.iter().any(|item| item.kernel.class == InstructionClass::Tile);
    let permitted = tiles && tile::permit().is_ok();
    let names = machine.features.iter().map(|feature| feature.name().to_owned());
    names.filter(|name| permitted || !name.starts_with("amx")).collect()
}

/// Cycles, and this microarchitecture's events for license levels and throttling.
fn events(machine: &Machine) -> Vec<Countable> {
    let documented = events::documented(machine.identity.microarchitecture).unwrap_or_default();
    let relevant = documented
        .iter()
        .filter(|event| matches!(event.counts, Counts::LicenseCycles(_) | Counts::ThrottledCycles));
    std::iter::once(Countable::Cycles)
        .chain(relevant.map(|event| Countable::Event(*event)))
        .collect()
}

fn turbo_off(root: &Root) -> anyhow::Result<Journal> {
    let (mut journal, leftovers) = Journal::open(root).context("cannot open the journal")?;
    eprint!("{}", restore::words(&leftovers));
    Turbo::off(&mut journal).context("cannot switch turbo off")?;
    Ok(journal)
}

fn list(machine: &Machine) -> String {
    let mut text = String::new();
    let has = |name: &str| machine.features.iter().any(|feature| feature.name() == name);
    for kernel in kernel::all() {
        let missing: Vec<&str> =
            kernel.needs.iter().map(|feature| feature.name()).filter(|name| !has(name)).collect();
        let note = if missing.is_empty() {
            String::new()
        } else {
            format!("not here: no {}", missing.join(", "))
        };
        let line = format!("{:<34} {:<10} {note}", kernel.name, kernel.class.name());
        text += &(line.trim_end().to_owned() + "\n");
    }
    text
}

/// Describes the machine for the report.
pub(crate) fn description(machine: &Machine, begin: &jiff::Zoned) -> MachineDescription {
    MachineDescription {
        vendor: machine.identity.vendor.clone(),
        brand: machine.identity.brand.clone(),
        microarchitecture: machine.identity.microarchitecture.to_string(),
        microcode: machine.microcode.clone(),
        hypervisor: machine.hypervisor.clone(),
        kernel: machine.kernel_release.clone(),
        cpus: machine.allowed.len(),
        time: begin.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command: std::env::args().collect::<Vec<_>>().join(" "),
    }
}

/// The outputs, opened before anything is measured.
struct Outputs<'a> {
    arguments: &'a Probe,
    json: Option<Output>,
    report: Option<Output>,
    model: Option<Output>,
}

impl<'a> Outputs<'a> {
    fn open(arguments: &'a Probe) -> anyhow::Result<Self> {
        let open =
            |path: &Option<std::path::PathBuf>| path.as_deref().map(Output::open).transpose();
        if let Some(path) = &arguments.csv {
            output::directory(path)?;
        }
        Ok(Self {
            arguments,
            json: arguments.json.open()?,
            report: arguments.page.open()?,
            model: open(&arguments.emit_model)?,
        })
    }

    fn write(
        self,
        findings: &Findings,
        host: &Machine,
        machine: &MachineDescription,
    ) -> anyhow::Result<()> {
        let quiet = [&self.json, &self.report, &self.model];
        let quiet = quiet.into_iter().flatten().any(Output::is_standard);
        if !quiet {
            output::print(&report::text(findings, output::screen()))?;
        }
        let mut written = Vec::new();
        let mut note = |path: &Option<std::path::PathBuf>| {
            written.extend(path.iter().filter(|path| path.as_os_str() != "-").cloned());
        };
        if let Some(file) = self.json {
            file.write_json(&report::document(findings, machine))?;
            note(&self.arguments.json.json);
        }
        if let Some(path) = &self.arguments.csv {
            for (name, content) in report::series(findings)? {
                let path = path.join(name);
                let written = std::fs::write(&path, content);
                written.with_context(|| format!("cannot write {}", path.display()))?;
            }
            note(&self.arguments.csv);
        }
        if let Some(file) = self.report {
            file.write(&report::page(findings, machine)?)?;
            note(&self.arguments.page.report);
        }
        if let Some(file) = self.model {
            file.write(&model_of(findings, host, machine).to_toml())?;
            note(&self.arguments.emit_model);
        }
        if !quiet {
            for path in written {
                output::print(&format!("wrote {}\n", path.display()))?;
            }
        }
        Ok(())
    }
}

/// Caches the model of this machine for the commands that need one.
fn keep_model(findings: &Findings, host: &Machine, machine: &MachineDescription, quick: bool) {
    let Some(path) = cache::model(&host.identity, quick) else { return };
    if let Err(error) = kept::replace(&path, &model_of(findings, host, machine).to_toml()) {
        eprintln!("warning: cannot keep the model for other commands: {}: {error}", path.display());
    }
}

/// The processor model made from the findings.
fn model_of(findings: &Findings, host: &Machine, machine: &MachineDescription) -> Model {
    let count = |count: usize| {
        let count = u32::try_from(count).ok().filter(|count| *count > 0)?;
        Some(Sourced::new(count, "Linux: /sys/devices/system/cpu"))
    };
    let topology = &host.topology;
    let packages: BTreeSet<_> = topology.cpus.iter().map(|cpu| cpu.package).collect();
    let cores = topology.online_cores() / packages.len().max(1);
    let siblings = topology.cpus.iter().map(|cpu| 1 + topology.siblings(cpu.id).len()).max();
    let virtual_machine = machine.hypervisor.as_ref().map_or(String::new(), |name| {
        format!(" in a virtual machine under {name}, which may hide cores and siblings")
    });
    let identity = Identity {
        name: machine.brand.clone(),
        vendor: machine.vendor.clone(),
        microarchitecture: machine.microarchitecture.clone(),
        note: Some(format!(
            "Measured by dimmer {} on {}{virtual_machine}.",
            machine.version, machine.time
        )),
    };
    let shape = Shape {
        packages: count(packages.len()),
        cores: count(cores),
        threads_per_core: count(siblings.unwrap_or(0)),
        ..Shape::default()
    };
    let mut model = dimmer_probe::model::of(findings, identity, shape);
    model.moves.extend(cache_line(topology));
    model
}

/// Time for a cache line to go from one CPU to another, if this process may run on two.
fn cache_line(topology: &Topology) -> Option<Move> {
    let root = Root::live();
    let (home, other) = handoff::two_cpus(&root).ok()?.ok()?;
    let trip = handoff::round_trip(&root).ok()??;
    let package = |cpu| topology.cpu(cpu).map(|cpu| cpu.package);
    let kind = if topology.siblings(home).contains(&other) {
        "cache-line between siblings"
    } else if package(home) == package(other) {
        "cache-line within a package"
    } else {
        "cache-line between packages"
    };
    let source = format!("dimmer probe: half of a round trip between cpu {home} and cpu {other}");
    Some(Move { kind: kind.to_owned(), ns: Sourced::new(trip.median / 2.0, source) })
}
