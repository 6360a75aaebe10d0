//! `dimmer run --narrow`: makes a program choose narrower vectors by itself.

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

/// The switch of the C library.
const C_LIBRARY: &str = "glibc";

/// Sets the variables that narrow the program in its environment, and prints them.
pub(super) fn prepare(
    arguments: &Run,
    program: &launch::Program,
    command: &mut Command,
) -> anyhow::Result<()> {
    let width = arguments.width;
    let Means { plan, cpuid, .. } = Means::find(arguments, program)?;
    for setting in &plan.settings {
        command.env(setting.name, &setting.value);
    }
    if cpuid.is_ok() {
        super::preload(command)?;
        let outer = std::env::var(CPUID_WIDTH).ok();
        command.env(CPUID_WIDTH, narrower(width, outer.as_deref()).to_string());
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

/// Whether anything narrows functions of the program whose calls may be moved.
pub(super) fn can(arguments: &Run, program: &launch::Program) -> anyhow::Result<bool> {
    Ok(Means::find(arguments, program)?.reach())
}

/// The means to narrow a program.
struct Means {
    plan: Plan,
    /// Whether features can be hidden from CPUID; if not, the reason.
    cpuid: Result<(), String>,
    has_variants: bool,
}

impl Means {
    fn find(arguments: &Run, program: &launch::Program) -> anyhow::Result<Self> {
        let choice = dimmer_narrow::choose(&arguments.only).map_err(bad_input)?;
        let (known, has_variants) = look(program);
        let value = |name: &str| std::env::var(name).ok();
        let plan = dimmer_narrow::plan(&known, arguments.width, &choice.switches, value);
        let cpuid = cpuid(&choice, &known);
        Ok(Self { plan, cpuid, has_variants })
    }

    /// Whether any of the means reaches functions that may be moved. The C library's own functions
    /// are never moved, and its switch reaches no others except [variants](is_variant).
    fn reach(&self) -> bool {
        let mut settings = self.plan.settings.iter();
        self.cpuid.is_ok()
            || settings.any(|setting| setting.switch.name != C_LIBRARY || self.has_variants)
    }
}

/// Whether the C library chooses code in this file, or this file among others, by the features that
/// its switch hides: vector mathematics (glibc 2.36, sysdeps/x86_64/fpu/multiarch/svml_*), and
/// libraries for newer processors (ld.so(8), glibc-hwcaps).
fn is_variant(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("libmvec.") || file.iter().any(|part| part == "glibc-hwcaps")
}

/// Whether features can be hidden from CPUID; if not, the reason.
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

/// The narrower of the two widths, if this command runs within another one like it.
fn narrower(width: Width, outer: Option<&str>) -> Width {
    outer.and_then(|outer| outer.parse().ok()).map_or(width, |outer: Width| outer.min(width))
}

/// What is known about the program before it runs, and whether [variants](is_variant) are among the
/// files that it loads.
fn look(program: &launch::Program) -> (Program, bool) {
    let mut has_variants = false;
    let mut known = Program {
        names: [&program.file, &program.executed]
            .into_iter()
            .flat_map(|file| names(file))
            .collect(),
        ..Program::default()
    };
    for (index, loaded) in program.loaded().into_iter().enumerate() {
        has_variants |= is_variant(&loaded.file);
        if index == 0 {
            known.is_go = loaded.needed.is_go;
        } else {
            known.libraries.extend(names(&loaded.file));
        }
        known.libraries.extend(loaded.needed.libraries);
    }
    (known, has_variants)
}

/// A file's name, and its name after following all links.
fn names(file: &Path) -> Vec<String> {
    let real = file.canonicalize().ok();
    let names = [file.file_name(), real.as_deref().and_then(Path::file_name)];
    names.into_iter().flatten().map(|name: &OsStr| name.to_string_lossy().into_owned()).collect()
}

/// The settings that were made, and those that were not.
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
    // With a masked CPUID, these need no further settings.
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
        let (known, _) = look(&launch::Program::find(&[own]).unwrap());
        assert!(known.libraries.iter().any(|library| library == "libc.so.6"), "{known:?}");
        assert!(!known.is_go);
    }

    #[test]
    fn the_c_librarys_switch_reaches_variants_alone() {
        #[track_caller]
        fn check(libraries: &[&str], cpuid: Result<(), String>, has_variants: bool, reach: bool) {
            let libraries = libraries.iter().map(|library| (*library).to_owned()).collect();
            let known = Program { libraries, ..Program::default() };
            let all = dimmer_narrow::choose(&[]).unwrap();
            let plan = dimmer_narrow::plan(&known, Width::Bits256, &all.switches, |_| None);
            assert_eq!(Means { plan, cpuid, has_variants }.reach(), reach, "{known:?}");
        }
        let no = || Err("no such device".to_owned());
        check(&["libc.so.6"], no(), false, false);
        check(&["libc.so.6"], no(), true, true);
        check(&["libc.so.6"], Ok(()), false, true);
        check(&["libc.so.6", "libcrypto.so.3"], no(), false, true);
        // A C library without the switch.
        check(&[], no(), true, false);
        let are = |file: &str| is_variant(Path::new(file));
        assert!(are("/lib/libmvec.so.1") && are("/lib/glibc-hwcaps/x86-64-v4/libz.so.1"));
        assert!(!are("/lib/libm.so.6") && !are("/lib/libc.so.6"));
    }
}
