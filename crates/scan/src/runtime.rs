//! Runtimes of languages that use code and stacks in ways that compiled C does not.
//!
//! They walk native stacks by their own rules, run their code on their own stacks, resume what was
//! resumed before, or copy their code elsewhere. A return address that is not the caller's, or a
//! jump over an entry, may break them.

use std::fmt;
use std::str::FromStr;

use crate::ScanError;
use crate::elf::{self, Symbol};

/// A runtime that is part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Runtime {
    /// Go's, which walks goroutines' stacks and moves them.
    Go,
    /// OCaml's, whose collector walks the native stack from one return address to the next.
    OCaml,
    /// Haskell's (GHC), whose code jumps to functions and keeps its own stack.
    Haskell,
    /// A Java virtual machine (HotSpot, OpenJ9, GraalVM), which walks native stacks.
    Java,
    /// V8 (Node.js, Electron), which walks native stacks and copies its own code elsewhere.
    V8,
    /// Erlang's, whose code runs on its own stacks.
    Erlang,
    /// .NET's (`CoreCLR`, Mono), which unwinds native stacks itself.
    DotNet,
    /// Ruby's, whose continuations return more than once.
    Ruby,
    /// Guile's, whose continuations also return more than once.
    Guile,
}

/// Each runtime with its name.
const NAMES: [(Runtime, &str); 9] = [
    (Runtime::Go, "Go"),
    (Runtime::OCaml, "OCaml"),
    (Runtime::Haskell, "Haskell"),
    (Runtime::Java, "Java"),
    (Runtime::V8, "V8"),
    (Runtime::Erlang, "Erlang"),
    (Runtime::DotNet, ".NET"),
    (Runtime::Ruby, "Ruby"),
    (Runtime::Guile, "Guile"),
];

/// Functions that only these runtimes define.
const FUNCTIONS: [(&str, Runtime); 9] = [
    ("JNI_CreateJavaVM", Runtime::Java),
    ("caml_main", Runtime::OCaml),
    ("caml_startup", Runtime::OCaml),
    ("coreclr_initialize", Runtime::DotNet),
    ("enif_alloc", Runtime::Erlang),
    ("hs_init", Runtime::Haskell),
    ("mono_jit_init", Runtime::DotNet),
    ("ruby_init", Runtime::Ruby),
    ("scm_boot_guile", Runtime::Guile),
];

/// The prefix of the names of V8's functions for isolates, its isolated instances.
const V8: &str = "_ZN2v87Isolate";

impl Runtime {
    /// Whether it copies code of its file elsewhere. Then not even a jump may be put over an entry
    /// there.
    #[must_use]
    pub fn copies_code(self) -> bool {
        self == Self::V8
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(runtime, _)| runtime == self).map(|(_, name)| *name);
        f.write_str(name.unwrap_or_default())
    }
}

/// The error for a text that names no runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a runtime")]
pub struct UnknownRuntime;

impl FromStr for Runtime {
    type Err = UnknownRuntime;

    fn from_str(name: &str) -> Result<Self, UnknownRuntime> {
        let found = NAMES.iter().find(|(_, known)| *known == name);
        found.map(|(runtime, _)| *runtime).ok_or(UnknownRuntime)
    }
}

/// The runtime in the ELF file `bytes`, recognized by what a stripped file keeps: sections of Go's
/// linker, the comment of GHC's compiler, and functions that others call by name. A runtime that is
/// linked statically into a stripped program (V8 in Chrome) is not recognized.
///
/// # Errors
/// As [`crate::scan`], for problems in the headers and the symbols.
pub fn runtime(bytes: &[u8]) -> Result<Option<Runtime>, ScanError> {
    for name in [".note.go.buildid", ".go.buildinfo"] {
        if elf::section(bytes, name)?.is_some() {
            return Ok(Some(Runtime::Go));
        }
    }
    let comment = elf::section(bytes, ".comment")?.unwrap_or_default();
    if comment.split(|byte| *byte == 0).any(|word| word.starts_with(b"GHC ")) {
        return Ok(Some(Runtime::Haskell));
    }
    Ok(elf::symbols(bytes)?.iter().find_map(of_function))
}

fn of_function(symbol: &Symbol<'_>) -> Option<Runtime> {
    let found = FUNCTIONS.binary_search_by_key(&symbol.name, |(name, _)| name);
    let is_v8 = || symbol.name.starts_with(V8).then_some(Runtime::V8);
    found.ok().map(|at| FUNCTIONS[at].1).or_else(is_v8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_known_by_what_they_define() {
        assert!(FUNCTIONS.is_sorted_by_key(|(name, _)| name));
        let of =
            |name| of_function(&Symbol { address: 1, size: 1, function: true, local: false, name });
        assert_eq!(of("JNI_CreateJavaVM"), Some(Runtime::Java));
        assert_eq!(of("_ZN2v87Isolate3NewERKNS0_12CreateParamsE"), Some(Runtime::V8));
        assert_eq!(of("main"), None);
        for (runtime, name) in NAMES {
            assert_eq!((name.parse(), runtime.to_string()), (Ok(runtime), name.to_owned()));
        }
        assert_eq!("C".parse::<Runtime>(), Err(UnknownRuntime));
    }

    #[test]
    fn compiled_c_has_none() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(runtime(&own).unwrap(), None);
    }
}
