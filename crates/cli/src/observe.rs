//! `dimmer observe`: runs a program with hooks in it, and tells what they saw.

mod document;
mod text;

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_host::{program, usage};
use dimmer_observe::{INTERVAL, Observed, Observer};
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_processor::units::LicenceLevel;
use rustix::process::{Pid, Signal, kill_process};

use crate::args::Observe;
use crate::output::{self, Output};
use crate::{bad_input, scan};
use document::Report;

/// The library to preload; it lies beside the command, or where libraries of installed programs do.
const LIBRARY: &str = "libdimmer_preload.so";

/// Where, as seen from the command's own directory.
const PLACES: [&str; 3] = ["", "deps", "../lib/dimmer"];

/// Classes whose functions are hooked if nothing is known of the processor: those that ask for a licence
/// level on some processor (`models/`).
const CLASSES: [InstructionClass; 4] = [
    InstructionClass::Heavy256,
    InstructionClass::Light512,
    InstructionClass::Heavy512,
    InstructionClass::Tile,
];

pub(crate) fn run(_root: &Root, arguments: &Observe) -> anyhow::Result<ExitCode> {
    let json = arguments.json.as_deref().map(Output::open).transpose()?;
    let machine = Machine::read(&Root::live(), &Cpuid::instruction());
    let model = scan::choose_model(arguments.model.as_deref(), &machine)?;
    let file = check(arguments)?;
    let library = library()?;
    let classes = classes(arguments, model.as_ref().map(|(model, _)| model));
    let interrupt = Interrupt::install().context("cannot prepare for interruption")?;
    let mut observer = Observer::new().context("cannot make a directory for ledgers")?;
    let mut command = Command::new(&file);
    command.args(&arguments.command[1..]);
    command.envs(observer.environment(&library, &classes));
    let before = usage::time_of_ended_children();
    let mut child = command
        .spawn()
        .map_err(|error| bad_input(format!("cannot run {}: {error}", file.display())))?;
    let deadline =
        arguments.seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let status = follow(&mut child, &mut observer, deadline, &interrupt)?;
    let on_cpu = usage::time_of_ended_children().saturating_sub(before);
    let observed = observer.finish().context("cannot read the ledgers")?;
    let report = Report::new(&Run {
        command: &arguments.command,
        status,
        on_cpu,
        observed: &observed,
        classes: &classes,
        model: model.as_ref().map(|(model, from)| (model, from.as_str())),
    });
    let rendered = serde_json::to_string_pretty(&report)? + "\n";
    match json {
        Some(json) if json.is_standard() => json.write(&rendered)?,
        json => {
            let width = u16::try_from(output::width()).unwrap_or(u16::MAX);
            eprint!("{}", text::render(&report, width));
            if let Some(json) = json {
                json.write(&rendered)?;
            }
        }
    }
    Ok(exit_code(status))
}

/// What was run, and what came of it.
struct Run<'a> {
    command: &'a [std::ffi::OsString],
    status: ExitStatus,
    /// The time that the program and its children had on CPUs.
    on_cpu: Duration,
    observed: &'a Observed,
    classes: &'a [InstructionClass],
    model: Option<(&'a Model, &'a str)>,
}

/// The file to execute, if hooks can get into it.
fn check(arguments: &Observe) -> anyhow::Result<PathBuf> {
    let Some(name) = arguments.command.first() else {
        return Err(bad_input("no program to run"));
    };
    let file = program::find(name, std::env::var_os("PATH").as_deref()).map_err(bad_input)?;
    let mut executed = file.clone();
    loop {
        let shown = executed.display().to_string();
        let bytes = std::fs::read(&executed)
            .map_err(|error| bad_input(format!("cannot read {shown}: {error}")))?;
        if program::changes_rights(&executed) {
            return Err(bad_input(format!(
                "{shown} runs with the rights of another user (setuid or setgid): the loader takes no \
                 library to preload then; run it as that user"
            )));
        }
        if let Some(interpreter) = program::interpreter_of_script(&bytes) {
            if interpreter == executed {
                return Err(bad_input(format!("{shown} is a script that names itself")));
            }
            executed = interpreter;
            continue;
        }
        return match dimmer_scan::interpreter(&bytes) {
            Ok(Some(_)) => Ok(file),
            Ok(None) => Err(bad_input(format!(
                "{shown} is linked statically: there is no loader to preload a library"
            ))),
            Err(error) => Err(bad_input(format!("{shown}: {error}"))),
        };
    }
}

fn library() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let directory = own.parent().unwrap_or(Path::new("/"));
    let mut places = PLACES.iter().map(|place| directory.join(place).join(LIBRARY));
    places.find(|place| place.is_file()).with_context(|| {
        format!(
            "{LIBRARY} is not beside {}, nor in ../lib/dimmer; `make build` makes both",
            own.display()
        )
    })
}

/// The classes whose functions are worth a hook.
fn classes(arguments: &Observe, model: Option<&Model>) -> Vec<InstructionClass> {
    if !arguments.classes.is_empty() {
        return arguments.classes.clone();
    }
    let Some(model) = model else { return CLASSES.to_vec() };
    let asks = |class: &InstructionClass| {
        let uses_zmm = *class >= InstructionClass::Light512;
        dimmer_scan::level([*class], uses_zmm, model) > LicenceLevel::new(0)
    };
    InstructionClass::ALL.into_iter().filter(asks).collect()
}

/// Waits until the program ends, or makes it end; looks at its ledgers meanwhile.
fn follow(
    child: &mut Child,
    observer: &mut Observer,
    deadline: Option<Instant>,
    interrupt: &Interrupt,
) -> anyhow::Result<ExitStatus> {
    let mut is_told = false;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for the program")? {
            return Ok(status);
        }
        observer.look().context("cannot read the ledgers")?;
        let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if !is_told && (is_over || interrupt.is_set()) {
            is_told = true;
            if let Some(child) = Pid::from_raw(i32::try_from(child.id()).unwrap_or_default()) {
                // It may have ended just now.
                let _ = kill_process(child, Signal::TERM);
            }
        }
        std::thread::sleep(INTERVAL);
    }
}

/// The program's own, as a shell tells it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
