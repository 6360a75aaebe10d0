//! The files that are loaded into this process, and notice when more are loaded.
//!
//! The loader keeps a list for debuggers. After each change of the list it calls an empty function:
//! after new files are mapped, and before any of their code runs. A hook there sees in time what
//! `dlopen` loads, for any caller, with one copy of the C library. (The loader's own interface for
//! auditors runs with a second copy, and with nothing that is loaded without that interface.) Files
//! loaded into a namespace of their own (`dlmopen`) are not in the list.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// A loaded file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Loaded {
    /// The difference between addresses in memory and in the file.
    pub base: u64,
    /// The file's path.
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

/// The state in which the list is complete.
const CONSISTENT: c_int = 0;

/// The loader's list for debuggers.
#[derive(Clone, Copy, Debug)]
pub struct Objects(*const Rendezvous);

// SAFETY: the list is read only in the loader's own call-back, or before there are other threads.
unsafe impl Send for Objects {}

impl Objects {
    /// Finds the list; `None` if the loader keeps none.
    #[must_use]
    pub fn find() -> Option<Self> {
        // SAFETY: a lookup of a name, ended by zero.
        let list = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_r_debug".as_ptr()) };
        (!list.is_null()).then(|| Self(list.cast_const().cast()))
    }

    /// Address of the function that the loader calls on changes.
    #[must_use]
    pub fn changed(&self) -> u64 {
        // SAFETY: the loader's own structure, which lives as long as the process.
        unsafe { (*self.0).changed }
    }

    /// Whether the list is complete. It is not while the loader changes it.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        // SAFETY: the loader's own structure, which lives as long as the process.
        let state = unsafe { (*self.0).state };
        state == CONSISTENT
    }

    /// All loaded files, the program first. Entries without a file are left out.
    #[must_use]
    pub fn loaded(&self) -> Vec<Loaded> {
        let mut loaded = Vec::new();
        // SAFETY: the loader's own structure, which lives as long as the process.
        let mut next = unsafe { (*self.0).first };
        // SAFETY: the loader's list, which does not change meanwhile.
        while let Some(element) = unsafe { next.as_ref() } {
            let name: &[u8] = if element.name.is_null() {
                b""
            } else {
                // SAFETY: the loader's names end with a zero byte.
                unsafe { CStr::from_ptr(element.name) }.to_bytes()
            };
            let is_program = loaded.is_empty() && element.previous.is_null();
            match name {
                // The loader's list has no name for the program.
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
