//! Running processes: their threads, the processes they start, and their CPU time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use dimmer_processor::units::CpuId;

use crate::root::Root;

/// A process id and a thread id.
pub type Thread = (u32, u32);

/// The threads of a process and of all processes that it started; processes that have ended are
/// missing. Kernels without `CONFIG_PROC_CHILDREN` do not report started processes. Reads one file
/// per thread.
#[must_use]
pub fn family(root: &Root, process: u32) -> BTreeSet<Thread> {
    let mut found = BTreeSet::new();
    let mut pending = vec![process];
    while let Some(process) = pending.pop() {
        for thread in threads(root, process) {
            if found.insert((process, thread)) {
                let children = root.text(&format!("/proc/{process}/task/{thread}/children"));
                let children = children.unwrap_or_default();
                pending.extend(
                    children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()),
                );
            }
        }
    }
    found
}

/// The threads of a process; none if it has ended.
#[must_use]
pub fn threads(root: &Root, process: u32) -> Vec<u32> {
    let names = root.list(&format!("/proc/{process}/task")).unwrap_or_default();
    names.iter().filter_map(|name| name.parse().ok()).collect()
}

/// Start time of a process (clock ticks since boot). It distinguishes the process from a later one
/// with the same id. `None` if there is no such process.
#[must_use]
pub fn began(root: &Root, process: u32) -> Option<u64> {
    began_of(&root.text(&format!("/proc/{process}/stat")).ok()?)
}

/// Start time of a thread, as [`began`]. `None` if the process has no such thread.
#[must_use]
pub fn thread_began(root: &Root, (process, thread): Thread) -> Option<u64> {
    began_of(&root.text(&format!("/proc/{process}/task/{thread}/stat")).ok()?)
}

/// The CPU that executes a thread, or executed it last, while it sleeps. `None` if the process has
/// no such thread, or the thread has ended.
#[must_use]
pub fn cpu(root: &Root, (process, thread): Thread) -> Option<CpuId> {
    let line = root.text(&format!("/proc/{process}/task/{thread}/stat")).ok()?;
    let has_ended = matches!(field(&line, 3)?, "Z" | "X");
    field(&line, 39)?.parse().ok().map(CpuId::new).filter(|_| !has_ended)
}

/// Whether a process has ended: there is none, or it is one that its parent has not waited for.
#[must_use]
pub fn has_ended(root: &Root, process: u32) -> bool {
    let is_over = |thread| cpu(root, (process, thread)).is_none();
    threads(root, process).into_iter().all(is_over)
}

/// Start time of a process, as [`began`], and the CPU time of all its threads since, also of those
/// that have ended, in steps of a clock tick (10 ms). `None` if there is no such process. Reads one
/// file, whatever the number of threads.
#[must_use]
pub fn on_cpu_since(root: &Root, process: u32) -> Option<(u64, Duration)> {
    let line = root.text(&format!("/proc/{process}/stat")).ok()?;
    let ticks = |number| field(&line, number)?.parse::<u64>().ok();
    let ticks = ticks(14)?.checked_add(ticks(15)?)?;
    let per_second = rustix::param::clock_ticks_per_second();
    Some((began_of(&line)?, Duration::from_secs_f64(ticks as f64 / per_second as f64)))
}

/// The start time in the kernel's line about a process or thread.
fn began_of(line: &str) -> Option<u64> {
    field(line, 22)?.parse().ok()
}

/// A field of that line after the name, by the number in proc(5). The name, field 2, may contain
/// any character.
fn field(line: &str, number: usize) -> Option<&str> {
    let (_, after) = line.rsplit_once(')')?;
    after.split_whitespace().nth(number.checked_sub(3)?)
}

/// Whether a process has this file in its memory. Compares only the names of the file and of its
/// directory, because its mount namespace may show other directories above. False for a process
/// whose memory map this process may not read.
#[must_use]
pub fn has_mapped(root: &Root, process: u32, file: &Path) -> bool {
    /// The kernel's mark after the name of a removed file (proc(5)).
    const REMOVED: &str = " (deleted)";
    let (Some(name), Some(directory)) = (file.file_name(), file.parent().and_then(Path::file_name))
    else {
        return false;
    };
    let end = Path::new(directory).join(name);
    let is_it = |line: &str| {
        let shown = line.split_once('/').map_or("", |(_, path)| path);
        Path::new(shown.strip_suffix(REMOVED).unwrap_or(shown)).ends_with(&end).then_some(())
    };
    root.find_in_lines(&format!("/proc/{process}/maps"), is_it).is_ok_and(|found| found.is_some())
}

/// Time since the kernel last saw values in the AVX-512 registers of a thread (ms), below zero if
/// it never did. `None` if the kernel or the processor does not have that (`arch_status`).
#[must_use]
pub fn avx512_elapsed_ms(root: &Root, (process, thread): Thread) -> Option<i64> {
    let text = root.text(&format!("/proc/{process}/task/{thread}/arch_status")).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix("AVX512_elapsed_ms:"))?;
    value.trim().parse().ok()
}

/// The name of a thread; empty if it has ended.
#[must_use]
pub fn name(root: &Root, thread: u32) -> String {
    let text = root.text(&format!("/proc/{thread}/comm")).unwrap_or_default();
    text.trim_end_matches('\n').to_owned()
}

/// CPU time of each thread of a process family. Reads two files per thread.
#[must_use]
pub fn on_cpu(root: &Root, process: u32) -> BTreeMap<Thread, Duration> {
    let time = |(process, thread): Thread| -> Option<(Thread, Duration)> {
        let text = root.text(&format!("/proc/{process}/task/{thread}/schedstat")).ok()?;
        let ns = text.split_whitespace().next()?.parse().ok()?;
        Some(((process, thread), Duration::from_nanos(ns)))
    };
    family(root, process).into_iter().filter_map(time).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_read_whatever_the_name_is() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        for name in ["a", "a b", ") S 1 (", ""] {
            assert_eq!(began_of(&format!("77 ({name}) {rest}")), Some(4711), "{name}");
        }
        for line in
            ["", "77 (a", "77 (a) S 1", "77 (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 x"]
        {
            assert_eq!(began_of(line), None, "{line}");
        }
    }

    #[test]
    fn the_cpu_time_of_a_process_is_that_in_both_modes() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        let proc = directory.path().join("proc/7");
        std::fs::create_dir_all(&proc).unwrap();
        let per_second = rustix::param::clock_ticks_per_second();
        for (times, on_cpu) in [
            (format!("{} {}", 2 * per_second, per_second), Some(Duration::from_secs(3))),
            ("0 0".to_owned(), Some(Duration::ZERO)),
            ("1 x".to_owned(), None),
            (format!("{} 1", u64::MAX), None),
        ] {
            let line = format!("7 (a) S 1 2 3 4 5 6 7 8 9 10 {times} 1 2 3 4 5 6 4711 20 21");
            std::fs::write(proc.join("stat"), line).unwrap();
            let expected = on_cpu.map(|on_cpu| (4711, on_cpu));
            assert_eq!(on_cpu_since(&root, 7), expected, "{times}");
        }
        assert_eq!(on_cpu_since(&root, 8), None);
        assert!(on_cpu_since(&Root::live(), std::process::id()).is_some());
    }

    #[test]
    fn a_thread_is_on_the_cpu_that_the_kernel_names_until_it_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        let path = root.path("/proc/7/task/8/stat");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let rest = (4..39).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        for (state, expected) in [("R", Some(CpuId::new(11))), ("Z", None), ("X", None)] {
            std::fs::write(&path, format!("8 (a ) b) {state} {rest} 11 0 0 0\n")).unwrap();
            assert_eq!(cpu(&root, (7, 8)), expected);
        }
        assert_eq!(cpu(&root, (7, 9)), None);
        assert!(has_ended(&root, 7) && has_ended(&root, 6));
        std::fs::create_dir(root.path("/proc/7/task/9")).unwrap();
        std::fs::write(root.path("/proc/7/task/9/stat"), format!("9 (c) S {rest} 11 0\n")).unwrap();
        assert!(!has_ended(&root, 7));
        let live = |thread| cpu(&Root::live(), (std::process::id(), thread));
        let own = crate::affinity::allowed().unwrap()[0];
        let pinned = move || {
            let _pinned = crate::affinity::pin(&Root::live(), own).unwrap();
            live(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs())
        };
        assert_eq!(std::thread::spawn(pinned).join().unwrap(), Some(own));
    }

    #[test]
    fn children_of_children_belong_to_the_family() {
        let directory = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/7/task/7/children", "12 ");
        write("proc/7/task/8/children", "20 21 ");
        write("proc/12/task/12/children", "30 ");
        write("proc/30/task/30/children", "");
        write("proc/30/task/30/schedstat", "5000 1 1\n");
        write(
            "proc/30/stat",
            "30 (a ) 7 (b) S 12 30 30 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 7788 9 10\n",
        );
        write("proc/30/comm", "a ) 7 (b\n");
        let root = Root::new(directory.path());
        assert_eq!((began(&root, 30), began(&root, 31)), (Some(7788), None));
        assert_eq!((name(&root, 30), name(&root, 31)), ("a ) 7 (b".into(), "".into()));
        assert_eq!(family(&root, 7), BTreeSet::from([(7, 7), (7, 8), (12, 12), (30, 30)]));
        assert_eq!(family(&root, 20), BTreeSet::new());
        assert_eq!(on_cpu(&root, 7), BTreeMap::from([((30, 30), Duration::from_micros(5))]));
    }
}
