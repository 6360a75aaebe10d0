//! Which switches apply to a program, and what its environment must contain for them.

use crate::merge::merge;
use crate::switch::LOADERS;
use crate::{Means, SWITCHES, Switch, Width};

/// The name that chooses masking CPUID. It is not a switch of a library.
const CPUID: &str = "cpuid";

/// A request that cannot be met.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NarrowError {
    /// No switch has this name. Nothing was chosen.
    #[error("unknown switch `{name}`; expected one of {accepted}")]
    UnknownSwitch {
        /// The unknown name.
        name: String,
        /// The accepted names.
        accepted: String,
    },
    /// Vectors cannot be narrowed to this width.
    #[error("unknown width `{0}`; expected 256 or 128")]
    UnknownWidth(String),
}

/// The means that may be used.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Switches, for programs that they apply to.
    pub switches: Vec<&'static Switch>,
    /// Whether CPUID may hide features.
    pub cpuid: bool,
}

/// The switches with these names, and masking CPUID for `cpuid`. Everything if there is no name.
///
/// # Errors
/// [`NarrowError::UnknownSwitch`] if a name is unknown.
pub fn choose(names: &[String]) -> Result<Choice, NarrowError> {
    if names.is_empty() {
        return Ok(Choice { switches: SWITCHES.iter().collect(), cpuid: true });
    }
    let mut choice = Choice { switches: Vec::new(), cpuid: false };
    for name in names {
        if name == CPUID {
            choice.cpuid = true;
        } else if let Some(switch) = SWITCHES.iter().find(|switch| switch.name == name) {
            choice.switches.push(switch);
        } else {
            let accepted: Vec<&str> = SWITCHES.iter().map(|one| one.name).chain([CPUID]).collect();
            let accepted = accepted.join(", ");
            return Err(NarrowError::UnknownSwitch { name: name.clone(), accepted });
        }
    }
    Ok(choice)
}

/// What is known of a program before it runs.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// The names of the executed files: the program, and for a script also its interpreter. Without
    /// directories.
    pub names: Vec<String>,
    /// The names of the libraries that it needs, directly or indirectly. Without directories.
    pub libraries: Vec<String>,
    /// Whether the Go toolchain built it.
    pub is_go: bool,
}

/// What to do for a program.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Variables to set.
    pub settings: Vec<Setting>,
    /// Variables that must stay as the user has set them.
    pub kept: Vec<Kept>,
    /// Arguments that only the user can give.
    pub advice: Vec<Advice>,
}

/// A variable to set.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The switch that needs it.
    pub switch: &'static Switch,
    /// The name of the variable.
    pub name: &'static str,
    /// The value, merged with what the user had set.
    pub value: String,
}

/// A variable that keeps the user's value.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The switch whose library reads it.
    pub switch: &'static Switch,
    /// The name of the variable.
    pub name: &'static str,
    /// The user's value.
    pub value: String,
}

/// Arguments for the user to give.
#[derive(Clone, Copy, Debug)]
pub struct Advice {
    /// The switch of the program that takes them.
    pub switch: &'static Switch,
    /// The arguments for the width.
    pub arguments: &'static str,
}

/// Plans how `program` uses vectors of at most `width`, by `switches`. `environment` returns the
/// value that a variable would have in the program's environment.
#[must_use]
pub fn plan(
    program: &Program,
    width: Width,
    switches: &[&'static Switch],
    environment: impl Fn(&str) -> Option<String>,
) -> Plan {
    let mut plan = Plan::default();
    for switch in switches.iter().copied().filter(|switch| concerns(switch, program)) {
        match switch.means {
            Means::Environment(variables) => {
                for variable in variables {
                    let (name, own) = (variable.name, variable.value(width));
                    let existing = environment(name).filter(|value| !value.is_empty());
                    match existing {
                        // A feature that is on by default.
                        None if own == "1" => {}
                        None => plan.settings.push(Setting { switch, name, value: own }),
                        Some(value) if value == own => {}
                        Some(value) => match merge(variable.merge, &value, &own, width) {
                            Some(merged) if merged == value => {}
                            Some(value) => plan.settings.push(Setting { switch, name, value }),
                            None => plan.kept.push(Kept { switch, name, value }),
                        },
                    }
                }
            }
            Means::Arguments { at_256, at_128 } => {
                let arguments = match width {
                    Width::Bits256 => at_256,
                    Width::Bits128 => at_128,
                };
                plan.advice.push(Advice { switch, arguments });
            }
        }
    }
    plan
}

fn concerns(switch: &Switch, program: &Program) -> bool {
    let applies = &switch.applies;
    let is_one_of = |names: &[&str]| {
        program.names.iter().any(|own| names.iter().any(|name| is_version_of(own, name)))
    };
    program.libraries.iter().any(|library| applies.libraries.contains(&stem(library)))
        || is_one_of(applies.programs)
        || applies.loaders && is_one_of(&LOADERS)
        || applies.go && program.is_go
}

/// The stem of a library's name: `libcrypto` of `libcrypto.so.3`, `libscipy_openblas64_` of
/// `libscipy_openblas64_-32a4b2a6.so`.
fn stem(library: &str) -> &str {
    let name = library.split(".so").next().unwrap_or(library);
    name.split('-').next().unwrap_or(name)
}

/// Whether a program has this name, with or without a version: `python3.11` is a `python`.
fn is_version_of(own: &str, name: &str) -> bool {
    own.strip_prefix(name).is_some_and(|rest| {
        rest.trim_start_matches('-').chars().all(|c| c.is_ascii_digit() || c == '.')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str, libraries: &[&str]) -> Program {
        let libraries = libraries.iter().map(|one| (*one).to_owned()).collect();
        Program { names: vec![name.to_owned()], libraries, is_go: false }
    }

    /// Compares the names of the variables that are set, and of the user's that are kept.
    #[track_caller]
    fn check(program: &Program, environment: &[(&str, &str)], set: &[&str], kept: &[&str]) -> Plan {
        let value = |name: &str| {
            let found = environment.iter().find(|(own, _)| *own == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let all = choose(&[]).unwrap();
        let plan = plan(program, Width::Bits256, &all.switches, value);
        let names: Vec<&str> = plan.settings.iter().map(|setting| setting.name).collect();
        assert_eq!(names, set);
        let names: Vec<&str> = plan.kept.iter().map(|kept| kept.name).collect();
        assert_eq!(names, kept);
        plan
    }

    #[test]
    fn switches_apply_where_their_library_is() {
        let openssl = program("openssl", &["libssl.so.3", "libcrypto.so.3", "libc.so.6"]);
        check(&openssl, &[], &["GLIBC_TUNABLES", "OPENSSL_ia32cap"], &[]);
        check(&program("true", &["libc.so.6"]), &[], &["GLIBC_TUNABLES"], &[]);
        check(&program("true", &["libcryptonite.so.1"]), &[], &[], &[]);
        let bundled = program("tool", &["libscipy_openblas64_-32a4b2a6.so"]);
        check(&bundled, &[], &["OPENBLAS_CORETYPE"], &[]);
    }

    #[test]
    fn interpreters_get_all_that_is_silent() {
        let silent = [
            "OPENSSL_ia32cap",
            "OPENBLAS_CORETYPE",
            "ONEDNN_MAX_CPU_ISA",
            "DNNL_MAX_CPU_ISA",
            "MKL_ENABLE_INSTRUCTIONS",
            "NPY_DISABLE_CPU_FEATURES",
        ];
        check(&program("bash", &[]), &[], &silent, &[]);
        check(&program("python3.11", &[]), &[], &silent, &[]);
        check(&program("pythonesque", &[]), &[], &[], &[]);
        let java = check(
            &program("java", &["libjli.so"]),
            &[],
            &[silent.as_slice(), &["JAVA_TOOL_OPTIONS"]].concat(),
            &[],
        );
        assert!(java.settings.iter().any(|setting| setting.value == "-XX:UseAVX=2"));
        let go = Program { is_go: true, ..program("server", &[]) };
        check(&go, &[("GODEBUG", "http2debug=1")], &["GODEBUG"], &[]);
    }

    #[test]
    fn what_the_user_has_set_is_merged_or_kept() {
        let blas = program("tool", &["libopenblas.so.0", "libc.so.6"]);
        let theirs =
            [("OPENBLAS_CORETYPE", "SkylakeX"), ("GLIBC_TUNABLES", "glibc.malloc.check=1")];
        let plan = check(&blas, &theirs, &["GLIBC_TUNABLES"], &["OPENBLAS_CORETYPE"]);
        assert!(
            plan.settings[0].value.starts_with("glibc.malloc.check=1:glibc.cpu.hwcaps=-AVX512F")
        );
        let ours = [("OPENBLAS_CORETYPE", "Haswell")];
        check(&blas, &ours, &["GLIBC_TUNABLES"], &[]);
    }

    #[test]
    fn arguments_are_the_users() {
        let plan = check(&program("x264", &[]), &[], &[], &[]);
        assert_eq!(plan.advice[0].arguments, "--asm avx2");
    }

    #[test]
    fn what_one_plan_set_another_leaves() {
        for width in [Width::Bits128, Width::Bits256] {
            for switch in &SWITCHES {
                let Means::Environment(variables) = switch.means else { continue };
                for variable in variables {
                    let own = variable.value(width);
                    let again = merge(variable.merge, &own, &own, width);
                    assert!(again.is_none_or(|again| again == own), "{}: {own}", variable.name);
                }
            }
        }
    }

    #[test]
    fn names_are_checked() {
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let choice = choose(&names(&["libcrypto", "cpuid"])).unwrap();
        assert!(choice.cpuid && choice.switches.len() == 1);
        let told = choose(&names(&["libcrypt"])).unwrap_err().to_string();
        assert!(told.starts_with("unknown switch `libcrypt`; expected one of glibc, libcrypto,"));
        assert!(told.ends_with(", ffmpeg, cpuid"));
        for (index, switch) in SWITCHES.iter().enumerate() {
            assert!(!switch.source.is_empty());
            assert!(SWITCHES[..index].iter().all(|other| other.name != switch.name));
        }
    }
}
