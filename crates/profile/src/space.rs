//! Which files are mapped where in the processes of a profile, and what these are called.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::{File, Interner, Place, names_process};

/// Most mappings that forked processes copy (a guess: a thousand times those of a desktop). A
/// damaged file could otherwise need memory in proportion to the square of its length.
const MOST_COPIES: usize = 10_000_000;

/// A part of a file in memory.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    end: u64,
    /// Offset in the file of the first byte.
    offset: u64,
    content: Content,
}

/// What is mapped.
#[derive(Clone, Copy, Debug)]
enum Content {
    /// A file, by its index.
    File(u32),
    /// Memory.
    Memory,
    /// Code that the kernel gives to programs (vDSO).
    Kernel,
}

/// Mappings of one process, by their start.
type Mappings = BTreeMap<u64, Mapping>;

/// The processes of a profile at one moment.
#[derive(Debug, Default)]
pub(crate) struct Spaces {
    mappings: BTreeMap<u32, Rc<Mappings>>,
    /// Names of threads, by process and thread.
    names: BTreeMap<(u32, u32), Rc<str>>,
    pub(crate) files: Interner<File>,
    /// Paths of jitdumps, by the process that has mapped them.
    pub(crate) jitdumps: BTreeMap<u32, String>,
    /// Mappings that were copied.
    copies: usize,
}

/// Whether a mapping's path names a file, rather than memory.
pub(crate) fn is_file(path: &str) -> bool {
    path.starts_with('/')
        && !["//anon", "/dev/zero", "/SYSV", "/memfd:", "/anon_hugepage"]
            .iter()
            .any(|memory| path.starts_with(memory))
}

impl Spaces {
    /// A process maps executable code. Returns whether there was room for it.
    pub(crate) fn map(
        &mut self,
        pid: u32,
        addresses: std::ops::Range<u64>,
        offset: u64,
        path: &str,
        build_id: Option<Vec<u8>>,
    ) -> bool {
        if addresses.is_empty() {
            return true;
        }
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        if names_process(path, "jit-", ".dump") {
            self.jitdumps.insert(pid, path.to_owned());
        }
        let content = if is_file(path) {
            Content::File(self.files.number(File { path: path.to_owned(), build_id }))
        } else if path.starts_with("[vdso") || path == "[vsyscall]" {
            Content::Kernel
        } else {
            Content::Memory
        };
        let shared = self.mappings.entry(pid).or_default();
        if Rc::strong_count(shared) > 1 {
            self.copies += shared.len();
            if self.copies > MOST_COPIES {
                return false;
            }
        }
        let mappings = Rc::make_mut(shared);
        cut(mappings, &addresses);
        mappings.insert(addresses.start, Mapping { end: addresses.end, offset, content });
        true
    }

    /// A thread was started, possibly in a new process.
    pub(crate) fn fork(&mut self, parent: (u32, u32), child: (u32, u32)) {
        if parent.0 != child.0
            && let Some(mappings) = self.mappings.get(&parent.0).cloned()
        {
            self.mappings.insert(child.0, mappings);
        }
        if let Some(name) = self.names.get(&parent).cloned() {
            self.names.insert(child, name);
        }
    }

    /// A thread has a new name, in a process that executes another program if `is_exec`.
    pub(crate) fn name(&mut self, pid: u32, tid: u32, name: &str, is_exec: bool) {
        if is_exec {
            self.mappings.remove(&pid);
        }
        self.names.insert((pid, tid), name.into());
    }

    /// The name of a process: that of its first thread.
    pub(crate) fn program(&self, pid: u32, tid: u32) -> String {
        let first = self.names.get(&(pid, pid)).or_else(|| self.names.get(&(pid, tid)));
        first.map_or_else(|| format!("process {pid}"), |name| (**name).to_owned())
    }

    /// What is at an address of a process; `None` if nothing is known to be mapped there.
    pub(crate) fn place(&self, pid: u32, address: u64) -> Option<Place> {
        let mappings = self.mappings.get(&pid);
        let before = mappings.and_then(|mappings| mappings.range(..=address).next_back());
        let (start, mapping) = before.filter(|(_, mapping)| address < mapping.end)?;
        Some(match mapping.content {
            Content::File(file) => {
                Place::Offset { file, offset: mapping.offset.wrapping_add(address - start) }
            }
            Content::Memory => Place::Memory { pid, address },
            Content::Kernel => Place::Kernel,
        })
    }
}

/// Removes what is mapped at these addresses.
fn cut(mappings: &mut Mappings, addresses: &std::ops::Range<u64>) {
    let before = mappings.range(..addresses.start).next_back();
    let first = before.filter(|(_, mapping)| mapping.end > addresses.start);
    let first = first.map(|(start, _)| *start);
    let others = mappings.range(addresses.clone()).map(|(start, _)| *start);
    let overlapped: Vec<u64> = first.into_iter().chain(others).collect();
    for start in overlapped {
        let Some(old) = mappings.remove(&start) else { continue };
        if start < addresses.start {
            mappings.insert(start, Mapping { end: addresses.start, ..old });
        }
        if old.end > addresses.end {
            let offset = old.offset.wrapping_add(addresses.end - start);
            mappings.insert(addresses.end, Mapping { offset, ..old });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_mappings_replace_parts_of_earlier_ones() {
        let mut spaces = Spaces::default();
        assert!(spaces.map(1, 0x1000..0x5000, 0, "/a", None));
        assert!(spaces.map(1, 0x2000..0x3000, 0x100, "/b", None));
        let at = |address| spaces.place(1, address);
        assert_eq!(at(0x1fff), Some(Place::Offset { file: 0, offset: 0xfff }));
        assert_eq!(at(0x2001), Some(Place::Offset { file: 1, offset: 0x101 }));
        assert_eq!(at(0x3000), Some(Place::Offset { file: 0, offset: 0x2000 }));
        assert_eq!(at(0x5000), None);
    }

    #[test]
    fn children_have_their_parents_mappings_until_they_execute() {
        let mut spaces = Spaces::default();
        spaces.name(1, 1, "shell", false);
        assert!(spaces.map(1, 0..0x1000, 0, "/shell", None));
        spaces.fork((1, 1), (2, 2));
        assert!(spaces.map(2, 0x1000..0x2000, 0, "/more", None));
        assert_eq!(spaces.place(1, 0x1000), None);
        assert_eq!(
            (spaces.place(2, 5), spaces.program(2, 2)),
            (spaces.place(1, 5), "shell".into())
        );
        spaces.name(2, 2, "other", true);
        assert_eq!(spaces.place(2, 5), None);
        assert_eq!(
            (spaces.program(2, 7), spaces.program(3, 3)),
            ("other".into(), "process 3".into())
        );
    }

    #[test]
    fn memory_is_no_file_and_deleted_files_keep_their_names() {
        let mut spaces = Spaces::default();
        for (number, path) in (0..).zip(["//anon", "[heap]", "/memfd:doublemapper (deleted)"]) {
            let address = number * 0x1000;
            assert!(spaces.map(1, address..address + 0x1000, 0, path, None));
            assert_eq!(spaces.place(1, address), Some(Place::Memory { pid: 1, address }));
        }
        assert!(spaces.map(1, 0x8000..0x9000, 0, "[vdso]", None));
        assert_eq!(spaces.place(1, 0x8000), Some(Place::Kernel));
        assert!(spaces.map(1, 0x9000..0xa000, 0, "/lib/x.so (deleted)", None));
        assert_eq!(spaces.files.into_values()[0].path, "/lib/x.so");
    }

    #[test]
    fn a_mapped_jitdump_is_its_processs() {
        let mut spaces = Spaces::default();
        let paths = ["/home/u/.debug/jit/java-jit-1/jit-7.dump", "/lib/jit.so", "/x/jit-.dump"];
        for (pid, path) in (7..).zip(paths) {
            assert!(spaces.map(pid, 0x1000..0x2000, 0, path, None));
        }
        assert_eq!(spaces.jitdumps, BTreeMap::from([(7, paths[0].to_owned())]));
    }
}
