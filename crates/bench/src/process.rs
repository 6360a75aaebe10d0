//! Other processes, as `/proc/PID/stat` describes them (proc(5)).

use std::collections::BTreeMap;
use std::time::Duration;

use dimmer_host::root::{Root, RootError};

/// A process at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The process's id.
    pub id: u32,
    /// The name of its program, at most 15 bytes of it.
    pub name: String,
    /// The process that started it, or adopted it.
    pub parent: u32,
    /// Time of its threads on CPUs so far, including the kernel's on their behalf, in ticks of the
    /// kernel.
    pub ticks: u64,
}

impl Process {
    /// Parses a line of `/proc/PID/stat`; `None` if it is none.
    ///
    /// The name is in parentheses and may contain anything, also parentheses and blanks. No later
    /// field contains a parenthesis.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.rsplit_once(')')?;
        let (id, name) = before.split_once(" (")?;
        // The state is the first of these fields and the third of all (proc(5)): the times are 14
        // and 15.
        let fields: Vec<&str> = after.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Self {
            id: id.parse().ok()?,
            name: name.to_owned(),
            parent: u32::try_from(number(4)?).ok()?,
            ticks: number(14)?.checked_add(number(15)?)?,
        })
    }

    /// The process `id` now; `None` if there is none.
    #[must_use]
    pub fn read(root: &Root, id: u32) -> Option<Self> {
        Self::parse(&root.text(&format!("/proc/{id}/stat")).ok()?)
    }

    /// Its time on CPUs.
    #[must_use]
    pub fn time_on_cpus(&self) -> Duration {
        let ticks_per_second = rustix::param::clock_ticks_per_second();
        Duration::from_secs_f64(self.ticks as f64 / ticks_per_second as f64)
    }
}

/// Finds the worker of a server: the descendant of `ancestor` that is called `name` and whose
/// parent, perhaps `ancestor` itself, is called `name`, too. `None` if there is none.
///
/// # Errors
/// [`RootError`]: `/proc` cannot be read.
pub fn worker(root: &Root, ancestor: u32, name: &str) -> Result<Option<u32>, RootError> {
    let ids = root.list("/proc")?.into_iter().filter_map(|entry| entry.parse().ok());
    // Processes may end between listing and reading.
    let all = ids.filter_map(|id| Process::read(root, id)).map(|process| (process.id, process));
    let all: BTreeMap<u32, Process> = all.collect();
    let is_worker = |process: &&Process| {
        let parent = all.get(&process.parent);
        process.name == name
            && parent.is_some_and(|parent| parent.name == name)
            && descends(&all, process.id, ancestor)
    };
    Ok(all.values().find(is_worker).map(|process| process.id))
}

fn descends(all: &BTreeMap<u32, Process>, id: u32, ancestor: u32) -> bool {
    let mut id = id;
    // Ids are used again, so reads at different moments might form a circle.
    for _ in 0..all.len() {
        match all.get(&id) {
            Some(process) if process.parent == ancestor => return true,
            Some(process) => id = process.parent,
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of a process with 12 ticks in user mode and 30 in the kernel.
    fn line(id: u32, name: &str, parent: u32) -> String {
        format!(
            "{id} ({name}) S {parent} 1 1 0 -1 4194624 391 0 2 0 12 30 7 8 20 0 1 0 3698081 5 6\n"
        )
    }

    #[test]
    fn name_may_hold_blanks_and_parentheses() {
        for name in ["nginx", "a b", "a) S 1 (b", "(", ")", ") ", ""] {
            let expected = Process { id: 77, name: name.to_owned(), parent: 5, ticks: 42 };
            assert_eq!(Process::parse(&line(77, name, 5)), Some(expected));
        }
    }

    #[test]
    fn lines_that_are_cut_off_are_no_process() {
        let whole = line(77, "a b", 5);
        let end = whole.find(" 30 ").unwrap() + 1;
        for length in 0..end {
            assert_eq!(Process::parse(&whole[..length]), None, "{}", &whole[..length]);
        }
    }

    #[track_caller]
    fn check(processes: &[(u32, &str, u32)], expected: Option<u32>) {
        let directory = tempfile::tempdir().unwrap();
        for (id, name, parent) in processes {
            let own = directory.path().join(format!("proc/{id}"));
            std::fs::create_dir_all(&own).unwrap();
            std::fs::write(own.join("stat"), line(*id, name, *parent)).unwrap();
        }
        std::fs::create_dir_all(directory.path().join("proc/sys")).unwrap();
        let found = worker(&Root::new(directory.path()), 10, "nginx").unwrap();
        assert_eq!(found, expected);
    }

    #[test]
    fn worker_is_the_child_of_a_master_below_the_ancestor() {
        check(&[(10, "nginx", 1), (11, "nginx", 10)], Some(11));
        check(&[(10, "dimmer", 1), (11, "nginx", 10)], None);
        check(&[(10, "dimmer", 1), (11, "nginx", 10), (12, "nginx", 11)], Some(12));
        check(&[(3, "nginx", 1), (4, "nginx", 3), (10, "dimmer", 1)], None);
        check(&[(10, "dimmer", 1), (20, "nginx", 21), (21, "nginx", 20)], None);
    }
}
