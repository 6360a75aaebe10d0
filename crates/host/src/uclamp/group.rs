//! The clamps of a control group (version 2): limits within which the clamps of its threads count.
//!
//! A thread that has set no clamps of its own has those of its group. Source: Linux
//! `Documentation/admin-guide/cgroup-v2.rst` (`cpu.uclamp.min`, `cpu.uclamp.max`), and
//! `uclamp_tg_restrict` of its scheduler.

use std::collections::BTreeSet;

use super::{FULL, check_governors};
use crate::cpusets::{mounts, own_group};
use crate::journal;
use crate::process;
use crate::root::Root;
use crate::unavailable::Unavailable;

/// The noun in refusals.
const WHAT: &str = "clamps of the control group (cpu.uclamp)";

/// What gives a program a control group that it may change.
const SCOPE: &str = "as root: systemd-run --scope -p Delegate=yes PROGRAM, with Linux 5.4 or later that has \
     CONFIG_UCLAMP_TASK_GROUP";

/// The files of a group's clamps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupClamps {
    /// The directory of the group.
    pub group: String,
}

impl GroupClamps {
    /// Finds the group of this process, if the governors of all CPUs follow clamps, and this
    /// process may write the group's and put that on record. Changes nothing.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub fn find(root: &Root) -> Result<Self, Unavailable> {
        let missing = |why: String| Unavailable::new(WHAT, why, SCOPE);
        let mount = mounts(root).into_iter().find(|mount| mount.kind == "cgroup2");
        let own = own_group(root, "");
        let (Some(mount), Some(own)) = (mount, own) else {
            return Err(missing("no control groups of version 2 for this process".to_owned()));
        };
        let found = Self { group: mount.directory(&own) };
        for path in found.files() {
            if !root.exists(&path) {
                return Err(missing(format!("no {path}")));
            }
            if !root.is_writable(&path) {
                return Err(missing(format!("no permission to write {path}")));
            }
        }
        if let Some(path) = journal::unwritable(root) {
            return Err(missing(format!("no permission to write {path}")));
        }
        check_governors(root, WHAT)?;
        Ok(found)
    }

    /// The files of the least and of the highest utilization.
    #[must_use]
    pub fn files(&self) -> [String; 2] {
        ["min", "max"].map(|end| format!("{}/cpu.uclamp.{end}", self.group))
    }

    /// Checks that the group has no other processes than this one and those that it has started,
    /// and no groups below, whose processes have these clamps, too.
    ///
    /// # Errors
    /// [`Unavailable`]: it has some, or its files cannot be read.
    pub fn check_own(&self, root: &Root) -> Result<(), Unavailable> {
        let path = format!("{}/cgroup.procs", self.group);
        let refuse = |why: String| Unavailable::new(WHAT, why, SCOPE);
        let members = root.text(&path).map_err(|error| refuse(error.to_string()))?;
        let names = root.list(&self.group).map_err(|error| refuse(error.to_string()))?;
        let is_group = |name: &String| root.exists(&format!("{}/{name}/cgroup.procs", self.group));
        if let Some(below) = names.into_iter().find(is_group) {
            return Err(refuse(format!("{} has a group below it, {below}", self.group)));
        }
        let family = process::family(root, std::process::id());
        let family: BTreeSet<u32> = family.into_iter().map(|(process, _)| process).collect();
        let is_other = |process: &u32| *process != std::process::id() && !family.contains(process);
        let mut members = members.lines().filter_map(|line| line.trim().parse().ok());
        members.find(is_other).map_or(Ok(()), |other| {
            let why = format!("{path} has process {other}, which this program has not started");
            Err(refuse(why))
        })
    }
}

/// Clamps from 0 to [`FULL`] as the files have them, in percent with two digits, or `max`.
#[must_use]
pub fn format(clamp: u32) -> String {
    if clamp >= FULL {
        return "max".to_owned();
    }
    let hundredths = clamp * 10_000 / FULL;
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpufreq::POLICIES;

    const GROUP: &str = "/sys/fs/cgroup/app.scope";

    fn machine(without: &str, members: &str) -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        let own = std::process::id().to_string();
        for (path, content) in [
            ("/proc/self/cgroup".to_owned(), "1:cpuset:/other\n0::/app.scope\n"),
            ("/proc/self/mounts".to_owned(), "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"),
            (format!("{GROUP}/cpu.uclamp.min"), "0.00\n"),
            (format!("{GROUP}/cpu.uclamp.max"), "max\n"),
            (format!("{GROUP}/cgroup.procs"), &format!("{own}\n{members}")),
            (format!("{POLICIES}/policy0/scaling_governor"), "schedutil\n"),
        ] {
            if !without.is_empty() && path.ends_with(without) {
                continue;
            }
            let path = root.path(&path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        (directory, root)
    }

    #[test]
    fn finds_the_group_of_this_process_with_its_files() {
        let found = GroupClamps::find(&machine("", "").1).unwrap();
        assert_eq!(found.files()[0], format!("{GROUP}/cpu.uclamp.min"));
        let why = |without| GroupClamps::find(&machine(without, "").1).unwrap_err().why;
        assert_eq!(why("self/cgroup"), "no control groups of version 2 for this process");
        assert_eq!(why("uclamp.max"), format!("no {GROUP}/cpu.uclamp.max"));
        assert!(why("scaling_governor").starts_with("no policy under"));
    }

    #[test]
    fn a_group_with_processes_of_others_is_not_changed() {
        let check = |members| {
            let (_directory, root) = machine("", members);
            GroupClamps::find(&root).unwrap().check_own(&root)
        };
        assert_eq!(check(""), Ok(()));
        let why = check("1\n").unwrap_err().why;
        assert_eq!(
            why,
            format!("{GROUP}/cgroup.procs has process 1, which this program has not started")
        );
        let (_directory, root) = machine("", "");
        let found = GroupClamps::find(&root).unwrap();
        std::fs::create_dir(root.path(&format!("{GROUP}/below"))).unwrap();
        std::fs::write(root.path(&format!("{GROUP}/below/cgroup.procs")), "7\n").unwrap();
        let why = found.check_own(&root).unwrap_err().why;
        assert_eq!(why, format!("{GROUP} has a group below it, below"));
        std::fs::remove_file(root.path(&format!("{GROUP}/cgroup.procs"))).unwrap();
        assert!(found.check_own(&root).is_err());
    }

    #[test]
    fn clamps_are_percent_with_two_digits() {
        let texts = ["0.00", "20.01", "50.00", "max"];
        for (clamp, text) in [0, 205, 512, FULL].into_iter().zip(texts) {
            assert_eq!(format(clamp), text);
        }
    }
}
