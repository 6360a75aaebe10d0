//! `dimmer run --mechanism narrow`: has a program choose narrower vectors by itself.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use dimmer_host::cpuid::Cpuid;
use dimmer_host::faulting;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_narrow::{CPUID_WIDTH, Choice, Plan, Program, Width};

use crate::args::Run;
use crate::{bad_input, launch};

/// Puts what narrows it into the program's environment, and says what that is.
pub(super) fn prepare(
    arguments: &Run,
    program: &launch::Program,
    command: &mut Command,
) -> anyhow::Result<()> {
    let choice = dimmer_narrow::choose(&arguments.only).map_err(bad_input)?;
    let known = look(program);
    let width = arguments.width;
    let value = |name: &str| std::env::var(name).ok();
    let plan = dimmer_narrow::plan(&known, width, &choice.switches, value);
    let cpuid = cpuid(&choice, &known);
    for setting in &plan.settings {
        command.env(setting.name, &setting.value);
    }
    if cpuid.is_ok() {
        super::preload(command)?;
        command.env(CPUID_WIDTH, narrower(width, value(CPUID_WIDTH).as_deref()).to_string());
    }
    if width == Width::Bits256
        && !Machine::read(&Root::live(), &Cpuid::instruction()).has_more_than_256_bits()
    {
        eprintln!(
            "Nothing to narrow to 256 bits: this processor shows nothing wider (see --width 128)."
        );
    }
    eprint!("{}", text(&plan, width, &cpuid));
    Ok(())
}

/// Whether features can be hidden from CPUID; if not, why.
fn cpuid(choice: &Choice, known: &Program) -> Result<(), String> {
    if !choice.cpuid {
        return Err(String::new());
    }
    if known.is_go {
        let why = "the Go runtime would take the instruction for a crash";
        return Err(why.to_owned());
    }
    faulting::check().map_err(|unavailable| format!("{} ({})", unavailable.why, unavailable.remedy))
}

/// The narrower one of the two, when this command runs within another one like it.
fn narrower(width: Width, outer: Option<&str>) -> Width {
    outer.and_then(|outer| outer.parse().ok()).map_or(width, |outer: Width| outer.min(width))
}

/// What is known of the program before it runs.
fn look(program: &launch::Program) -> Program {
    let mut known = Program {
        names: [&program.file, &program.executed]
            .into_iter()
            .flat_map(|file| names(file))
            .collect(),
        ..Program::default()
    };
    for (index, loaded) in program.loaded().into_iter().enumerate() {
        if index == 0 {
            known.is_go = loaded.needed.is_go;
        } else {
            known.libraries.extend(names(&loaded.file));
        }
        known.libraries.extend(loaded.needed.libraries);
    }
    known
}

/// A file's name, and its name behind all links.
fn names(file: &Path) -> Vec<String> {
    let real = file.canonicalize().ok();
    let names = [file.file_name(), real.as_deref().and_then(Path::file_name)];
    names.into_iter().flatten().map(|name: &OsStr| name.to_string_lossy().into_owned()).collect()
}

/// What was set, and what was not.
fn text(plan: &Plan, width: Width, cpuid: &Result<(), String>) -> String {
    let mut text = format!("Narrow, to {width} bits:\n");
    // Writing to a string cannot fail.
    for setting in &plan.settings {
        let _ = writeln!(text, "  {}={}", setting.name, setting.value);
        let _ = writeln!(text, "      for {}", setting.switch.title);
        if !setting.switch.side_effect.is_empty() {
            let _ = writeln!(text, "      note: {}", setting.switch.side_effect);
        }
    }
    match cpuid {
        Ok(()) => {
            let hidden = match width {
                Width::Bits256 => "AVX-512 and AMX",
                Width::Bits128 => "AVX-512, AMX, AVX2 and AVX",
            };
            let _ = writeln!(text, "  {CPUID_WIDTH}={width}");
            let _ = writeln!(text, "      CPUID does not show {hidden}, to whatever else asks it");
        }
        Err(why) if why.is_empty() => {}
        Err(why) => {
            let _ = writeln!(text, "  not applied: features stay visible to CPUID: {why}");
        }
    }
    for kept in &plan.kept {
        let _ = writeln!(text, "  not applied: {}={} was set already,", kept.name, kept.value);
        let _ = writeln!(text, "      for {}", kept.switch.title);
    }
    // With masked CPUID, nothing remains to be done for these.
    for advice in plan.advice.iter().filter(|_| cpuid.is_err()) {
        let (title, arguments) = (advice.switch.title, advice.arguments);
        let _ = writeln!(text, "  not applied: pass {arguments}, for {title}");
    }
    if text.lines().count() == 1 {
        text.push_str("  nothing to set for this program\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrower_one_of_two_commands_counts() {
        assert_eq!(narrower(Width::Bits256, None), Width::Bits256);
        assert_eq!(narrower(Width::Bits256, Some("128")), Width::Bits128);
        assert_eq!(narrower(Width::Bits128, Some("256")), Width::Bits128);
        assert_eq!(narrower(Width::Bits128, Some("")), Width::Bits128);
    }

    #[test]
    fn what_is_not_applied_is_said_with_the_reason() {
        let known = Program { names: vec!["x264".to_owned()], ..Program::default() };
        let all = dimmer_narrow::choose(&[]).unwrap();
        let plan = dimmer_narrow::plan(&known, Width::Bits128, &all.switches, |_| None);
        let told = text(&plan, Width::Bits128, &Err("no such device".to_owned()));
        assert_eq!(
            told,
            "Narrow, to 128 bits:\n  not applied: features stay visible to CPUID: no such device\n  \
             not applied: pass --asm sse4.2, for x264\n"
        );
    }

    #[test]
    fn libraries_of_this_program_are_found() {
        let own = std::env::current_exe().unwrap().into_os_string();
        let known = look(&launch::Program::find(&[own]).unwrap());
        assert!(known.libraries.iter().any(|library| library == "libc.so.6"), "{known:?}");
        assert!(!known.is_go);
    }
}
