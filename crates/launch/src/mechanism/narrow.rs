//! `--narrow`: a program chooses narrower vectors by itself, by its libraries' switches and by
//! CPUID.

use std::ffi::OsStr;
use std::path::Path;

use dimmer_host::cpuid::Cpuid;
use dimmer_host::faulting;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_narrow::{CPUID_WIDTH, Choice, Plan, Program, Width};

use super::{Definition, Prepared, Setup};
use crate::note::{Narrowed, Note};
use crate::{LaunchError, Request, preload, program};

/// The program is narrowed.
pub(super) const DEFINITION: Definition = Definition {
    name: "narrow",
    summary: "the program chooses narrower vectors, by its libraries' switches and by CPUID",
    moves: None,
    prepare,
};

/// The switch of the C library.
const C_LIBRARY: &str = "glibc";

fn prepare(setup: &mut Setup<'_>) -> Result<Prepared, LaunchError> {
    apply(setup)?;
    Ok(None)
}

/// Sets the variables that narrow the program in its environment.
pub(super) fn apply(setup: &mut Setup<'_>) -> Result<(), LaunchError> {
    let width = setup.request.width;
    let Means { plan, cpuid, .. } = Means::find(setup.request, setup.program)?;
    for setting in &plan.settings {
        setup.command.env(setting.name, &setting.value);
    }
    if cpuid.is_ok() {
        preload::preload(setup.command)?;
        let outer = std::env::var(CPUID_WIDTH).ok();
        setup.command.env(CPUID_WIDTH, narrower(width, outer.as_deref()).to_string());
    }
    if width == Width::Bits256
        && !Machine::read(&Root::live(), &Cpuid::instruction()).has_more_than_256_bits()
    {
        (setup.notes)(Note::NothingWider);
    }
    (setup.notes)(Note::Narrowed(Narrowed { plan, width, cpuid }));
    Ok(())
}

/// Whether anything narrows functions of the program whose calls may be moved.
pub(crate) fn can(request: &Request, program: &program::Program) -> Result<bool, LaunchError> {
    Ok(Means::find(request, program)?.reach())
}

/// The means to narrow a program.
struct Means {
    plan: Plan,
    /// Whether features can be hidden from CPUID; if not, the reason.
    cpuid: Result<(), String>,
    has_variants: bool,
}

impl Means {
    fn find(request: &Request, program: &program::Program) -> Result<Self, LaunchError> {
        let choice = dimmer_narrow::choose(&request.only)?;
        let (known, has_variants) = look(program);
        let value = |name: &str| std::env::var(name).ok();
        let plan = dimmer_narrow::plan(&known, request.width, &choice.switches, value);
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
fn look(program: &program::Program) -> (Program, bool) {
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
    fn libraries_of_this_program_are_found() {
        let own = std::env::current_exe().unwrap().into_os_string();
        let (known, _) = look(&program::Program::find(&[own]).unwrap());
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
