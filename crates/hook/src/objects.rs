//! The files that are loaded into this process, and when more are.
//!
//! The loader keeps a list for debuggers, and calls an empty function whenever it has changed the
//! list: after new files are mapped, and before any of their code runs. A hook there sees what
//! `dlopen` loads in time, whoever calls it, with one copy of the C library. (The loader's own
//! interface for auditors runs with a second copy, and nothing that is loaded without that
//! interface.) Files loaded into a namespace of their own (`dlmopen`) are not in the list.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// A loaded file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Loaded {
    /// What has to be added to addresses in the file.
    pub base: u64,
    /// The file.
    pub path: PathBuf,
}

/// The list's head, `r_debug` in link.h.
#[repr(C)]
struct Rendezvous {
    version: c_int,
    first: *const LinkMap,
    changed: u64,
    state: c_int,
    loader: u64,
}

/// An element, `link_map` in link.h.
#[repr(C)]
struct LinkMap {
    base: u64,
    name: *const c_char,
    dynamic: *const c_void,
    next: *const LinkMap,
    previous: *const LinkMap,
}

/// A link to the program that this process runs.
const PROGRAM: &str = "/proc/self/exe";

/// The state in which the list is whole.
const CONSISTENT: c_int = 0;

/// The loader's list for debuggers.
#[derive(Clone, Copy, Debug)]
pub struct Objects(*const Rendezvous);

// SAFETY: the list is read only in the loader's own call-back, or before there are other threads.
unsafe impl Send for Objects {}

impl Objects {
    /// Finds the list; `None` with a loader that keeps none.
    #[must_use]
    pub fn find() -> Option<Self> {
        // SAFETY: a lookup of a name, ended by zero.
        let list = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_r_debug".as_ptr()) };
        (!list.is_null()).then(|| Self(list.cast_const().cast()))
    }

    /// The function that is called on changes.
    #[must_use]
    pub fn changed(&self) -> u64 {
        // SAFETY: the loader's own structure, which lives as long as the process.
        unsafe { (*self.0).changed }
    }

    /// Whether the list is whole, and not just being changed.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        // SAFETY: as in `changed`.
        let state = unsafe { (*self.0).state };
        state == CONSISTENT
    }

    /// All loaded files, the program first; those without a file are left out.
    #[must_use]
    pub fn loaded(&self) -> Vec<Loaded> {
        let mut loaded = Vec::new();
        // SAFETY: as in `changed`.
        let mut next = unsafe { (*self.0).first };
        // SAFETY: a list of the loader, which is not changed meanwhile.
        while let Some(element) = unsafe { next.as_ref() } {
            let name: &[u8] = if element.name.is_null() {
                b""
            } else {
                // SAFETY: the loader ends its names with zero.
                unsafe { CStr::from_ptr(element.name) }.to_bytes()
            };
            let is_program = loaded.is_empty() && element.previous.is_null();
            match name {
                // The loader does not name the program.
                b"" if is_program => {
                    let path = std::fs::read_link(PROGRAM).unwrap_or_else(|_| PROGRAM.into());
                    loaded.push(Loaded { base: element.base, path });
                }
                b"" | b"linux-vdso.so.1" => {}
                name => loaded.push(Loaded {
                    base: element.base,
                    path: PathBuf::from(OsStr::from_bytes(name)),
                }),
            }
            next = element.next;
        }
        loaded
    }
}
