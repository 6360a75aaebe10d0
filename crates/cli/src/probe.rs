//! `dimmer probe`: from arguments to a plan, from findings to files.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use dimmer_bench::latencies::{self as bench, Asked};
use dimmer_fleet::baseline::Comparison;
use dimmer_fleet::document::Document;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::journal::{Journal, Report};
use dimmer_host::machine::Machine;
use dimmer_host::models;
use dimmer_host::root::{Root, format_cpu_list};
use dimmer_host::turbo::Turbo;
use dimmer_launch::cache;
use dimmer_probe::kernel::{self, Kernel};
use dimmer_probe::lab::{Effort, Settings};
use dimmer_probe::machine;
use dimmer_probe::mode::Mode;
use dimmer_probe::outcome::Findings;
use dimmer_probe::question::Question;
use dimmer_probe::request::{self, Request};
use dimmer_probe::session::{self, Plan};
use dimmer_probe::target::Load;
use dimmer_processor::model::Model;
use dimmer_processor::units::CpuId;
use dimmer_report::{MachineDescription, probe as report};

use crate::args::{PreThrottle, Probe};
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::{bad_input, exit, measured, merge, restore};

pub(crate) fn run(root: &Root, arguments: &Probe) -> anyhow::Result<ExitCode> {
    let begin = SystemTime::now();
    // The code runs on the real processor, whatever root the files are read from.
    let machine = Machine::read(&Root::live(), &Cpuid::instruction());
    if arguments.list {
        output::print(&report::kernels(&machine))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(model) = known(&machine, arguments) {
        output::print(&format!("known: {}\n", model.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    arguments.load.check(root)?;
    if arguments.names_two_outputs() {
        return Err(bad_input("`-` and --json=FILE name two places for the JSON: give one"));
    }
    if arguments.mode.iter().any(|mode| mode.0.mode().is_none()) {
        return latencies(root, &machine, arguments, begin);
    }
    let plan = plan(&machine, arguments)?;
    let outputs = Outputs::open(arguments)?;
    arguments.textfile.check()?;
    let baseline = arguments.baseline.as_deref().map(Document::read);
    let baseline = baseline.transpose().map_err(merge::wrong)?;
    measured::check_clock(&machine)?;
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let journal = if arguments.turbo_off { Some(turbo_off(root)?) } else { None };
    if let Some(before) = baseline.as_ref().filter(|before| before.interrupted) {
        eprintln!("warning: the probe of {} was interrupted", before.file.display());
    }
    let mut silicon = machine::silicon_for(&machine, &plan, arguments.huge_pages)?;
    let mut progress = Progress::new(interrupt.clone(), Duration::ZERO);
    let findings = session::run(&mut silicon, &plan, &mut progress);
    progress.finish();
    let undone = journal.map_or(Ok(Report::default()), Journal::undo);
    let undone = undone.context("cannot switch turbo back on");
    let ended = undone.and_then(|undone| restore::ended(&undone));
    restore::print_second(&findings, &ended);
    let findings = match (findings, interrupt.exit_status()) {
        // After an interrupt, the reason for a failure does not matter.
        (Err(_), Some(status)) => {
            eprintln!("interrupted: nothing was complete yet");
            ended?;
            return Ok(ExitCode::from(status));
        }
        (findings, _) => findings?,
    };
    let description = description(&machine, begin);
    let written = outputs.write(&findings, &machine, &description)?;
    // Part of a probe would pass for all of it.
    if !findings.interrupted {
        arguments.textfile.write(|| report::textfile(&findings, &description))?;
    }
    // After the files: without them, a probe with `--once` is not done.
    if arguments.is_about_the_machine() && !findings.interrupted {
        keep_model(&findings, &machine, &description, arguments.quick);
    }
    let is_text = written.is_some();
    if let Some(files) = written {
        output::print(&report::text(&findings, output::screen()))?;
        for file in files {
            output::print(&format!("wrote {}\n", file.display()))?;
        }
    }
    ended?;
    match baseline {
        Some(before)
            if is_worse(&before, &findings, &description, is_text)? && !interrupt.is_set() =>
        {
            Ok(ExitCode::from(exit::NO))
        }
        _ => Ok(output::end(&interrupt)),
    }
}

/// The stored model of this kind of machine, if `--once` leaves nothing to measure: all files that
/// are to be written are there, and JSON is a complete probe of this kind of machine.
fn known(machine: &Machine, arguments: &Probe) -> Option<PathBuf> {
    let has_content = |path: &Path| match std::fs::read_dir(path) {
        Ok(mut files) => files.next().is_some(),
        Err(_) => path.metadata().is_ok_and(|about| about.len() > 0),
    };
    let is_of_this = |path: &Path| {
        // Not by way of `bounded_file`, as the file may be written next.
        let text = std::fs::read_to_string(path).unwrap_or_default();
        Document::parse(path, &text).is_ok_and(|Document { machine: of, interrupted, .. }| {
            let kind = (&of.brand, &of.microcode, &of.hypervisor);
            let own = (&machine.identity.brand, &machine.microcode, &machine.hypervisor);
            kind == own && !interrupted
        })
    };
    let is_done = arguments.once
        && arguments.files().all(has_content)
        && arguments.json.json.as_deref().is_none_or(is_of_this);
    models::measured(&Root::live(), machine).filter(|_| is_done)
}

/// Prints what differs from an earlier probe, on standard error unless text is on standard output.
/// Returns whether a cost is higher.
fn is_worse(
    before: &Document,
    findings: &Findings,
    description: &MachineDescription,
    is_text: bool,
) -> anyhow::Result<bool> {
    let document = serde_json::to_string(&report::document(findings, description))?;
    let after = Document::parse(Path::new("this probe"), &document)?;
    let compared = Comparison::new(before, &after);
    let screen = if is_text { output::screen() } else { output::error_screen() };
    let text =
        dimmer_report::merge::comparison(&compared, &before.file.display().to_string(), screen);
    if is_text {
        output::print(&format!("\n{text}"))?;
    } else {
        eprint!("{text}");
    }
    if compared.compared == 0 {
        anyhow::bail!("--baseline: {} measured nothing that this probe did", before.file.display());
    }
    Ok(!compared.worse.is_empty())
}

/// Measures what runs no kernel.
fn latencies(
    root: &Root,
    machine: &Machine,
    arguments: &Probe,
    begin: SystemTime,
) -> anyhow::Result<ExitCode> {
    let asks = |question| arguments.mode.iter().any(|mode| mode.0 == question);
    let other = arguments.mode.iter().find_map(|mode| mode.0.mode()).map(Mode::name);
    if let Some(other) = other.or(arguments.of_kernels()) {
        return Err(bad_input(format!("{other} does not go with the modes latency and pstate")));
    }
    let asked = Asked {
        cpu: measured::cpu(machine, arguments.cpu.cpu)?,
        latency: asks(Question::Latency),
        pstate: asks(Question::Pstate),
        samples: usize::try_from(arguments.repetitions)? / if arguments.quick { 5 } else { 1 },
        points: if arguments.quick { 3 } else { 8 },
    };
    let json = arguments.json.open()?;
    if asked.latency {
        measured::check_clock(machine)?;
    }
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let mut progress = Progress::new(interrupt.clone(), Duration::ZERO);
    let mut undone = bench::Undone::default();
    let found = bench::measure(root, machine, asked, &mut undone, &mut progress);
    progress.finish();
    eprint!("{}", dimmer_report::restore::text(&undone.of_ended));
    let ended = restore::ended(&undone.own);
    restore::print_second(&found, &ended);
    let found = found?;
    let about = description(machine, begin);
    let document = report::latency::document(&found, &about);
    output::show(json, &document, &report::latency::text(&found, output::screen()))?;
    ended?;
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
    let begin = SystemTime::now();
    let kernels = request::usual_and(kernels.iter().map(Arc::as_ref));
    let request = Request { kernels: &kernels, quick: true, ..Request::default() };
    let settings = Settings { effort: Effort::Quick, repetitions: 1000, threads: 1, load: None };
    let plan = request.plan(cpu, settings);
    let mut silicon = machine::silicon_for(machine, &plan, false)?;
    let mut progress = Progress::new(interrupt.clone(), Duration::ZERO);
    let findings = session::run(&mut silicon, &plan, &mut progress);
    progress.finish();
    if interrupt.is_set() {
        return Ok(None);
    }
    let (findings, description) = (findings?, description(machine, begin));
    keep_model(&findings, machine, &description, true);
    Ok(Some(model_of(&findings, machine, &description)))
}

/// Checks everything that the user asked for.
fn plan(machine: &Machine, arguments: &Probe) -> anyhow::Result<Plan> {
    let modes: Vec<Mode> = arguments.mode.iter().filter_map(|mode| mode.0.mode()).collect();
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
    let request = Request {
        modes: &modes,
        kernels: &kernels,
        bursts: &arguments.burst,
        quick: arguments.quick,
        all_cpus: arguments.all_cpus,
    };
    let settings = Settings {
        effort: Effort::Full,
        repetitions: usize::try_from(arguments.repetitions).unwrap_or(usize::MAX),
        threads: arguments.threads,
        load: match arguments.pre_throttle {
            PreThrottle::None => None,
            PreThrottle::Scalar => Some(Load::Scalar),
            PreThrottle::Vector => Some(Load::Vector),
        },
    };
    Ok(request.plan(cpu, settings))
}

fn turbo_off(root: &Root) -> anyhow::Result<Journal> {
    let (mut journal, leftovers) = Journal::open(root).context("cannot open the journal")?;
    eprint!("{}", dimmer_report::restore::text(&leftovers));
    Turbo::off(&mut journal).context("cannot switch turbo off")?;
    Ok(journal)
}

/// Describes the machine for the report.
pub(crate) fn description(machine: &Machine, begin: SystemTime) -> MachineDescription {
    MachineDescription::new(machine, begin, env!("CARGO_PKG_VERSION"))
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
        let open = |path: &Option<PathBuf>| path.as_deref().map(Output::open).transpose();
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

    /// Returns which files it has written; `None` if it has written to standard output, where no
    /// text may follow.
    fn write(
        self,
        findings: &Findings,
        host: &Machine,
        machine: &MachineDescription,
    ) -> anyhow::Result<Option<Vec<PathBuf>>> {
        let quiet = [&self.json, &self.report, &self.model];
        let quiet = quiet.into_iter().flatten().any(Output::is_standard);
        let mut written = Vec::new();
        let mut note = |path: &Option<PathBuf>| {
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
        Ok((!quiet).then_some(written))
    }
}

/// Caches the model of this machine for the commands that need one.
fn keep_model(findings: &Findings, host: &Machine, machine: &MachineDescription, quick: bool) {
    let Some(path) = dimmer_host::cache::model(host, quick) else { return };
    if let Err(error) = cache::replace(&path, &model_of(findings, host, machine).to_toml()) {
        eprintln!("warning: cannot keep the model for other commands: {}: {error}", path.display());
    }
}

/// The processor model made from the findings.
fn model_of(findings: &Findings, host: &Machine, machine: &MachineDescription) -> Model {
    let by = format!("dimmer {} on {}", machine.version, machine.time);
    machine::model(findings, host, &by)
}
