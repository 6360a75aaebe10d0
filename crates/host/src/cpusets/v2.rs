//! Version 2: a partition. Its CPUs leave all other groups. As a *threaded* group it admits single
//! threads.
//!
//! Below the hierarchy's root, and below a partition, any group can become one (a *local*
//! partition). Elsewhere, each group from there up to the root must first allow these CPUs to be
//! given away (`cpuset.cpus.exclusive`: a *remote* partition, since Linux 6.7, only with
//! CAP_SYS_ADMIN).
//!
//! A change that an older kernel could not fully undo is refused: older kernels forget where
//! threads were pinned, and keep all threads off CPUs that are offline meanwhile. (Kernel threads
//! that are bound to a node do not count.)

use dimmer_processor::units::CpuId;

use super::hierarchy::{Base, lists, may_run_on};
use super::release::Release;
use super::{Balancing, CpusetError, free_name, unavailable};
use crate::journal::Journal;
use crate::privilege::{LinuxCapability, Privileges};
use crate::root::{Root, format_cpu_list};
use crate::unavailable::Unavailable;
use crate::{process, topology};

/// The file that admits threads and lists them.
pub(super) const MEMBERS: &str = "cgroup.threads";

/// The file that switches controllers on for a group's children.
const CONTROL: &str = "cgroup.subtree_control";

/// The file that says whether a group is a partition, and of which kind.
pub(super) const PARTITION: &str = "cpuset.cpus.partition";

/// The file with the CPUs that a group may give to a partition below it.
const EXCLUSIVE: &str = "cpuset.cpus.exclusive";

/// Whether partitions can be made below `base`, judged without trying.
pub(super) fn check(root: &Root, base: &Base) -> Result<(), Unavailable> {
    let procs = base.file("cgroup.procs");
    if !root.is_writable(&procs) {
        return Err(unavailable(format!("no permission to write {procs}"), "run as root"));
    }
    for group in base.path() {
        let control = format!("{group}/{CONTROL}");
        if !lists(root, &control, "cpuset") && !root.is_writable(&control) {
            let why = format!("no permission to switch cpuset on in {control}");
            return Err(unavailable(why, "run as root"));
        }
    }
    keeps_all(root, base)?;
    if is_top(root, base) || is_partition(root, &base.group) {
        return Ok(());
    }
    if !Privileges::read(root).has(LinuxCapability::SysAdmin) {
        let why = format!("partitions below {}, which is none, need CAP_SYS_ADMIN", base.group);
        return Err(unavailable(why, "run as root"));
    }
    let release = Release::read(root);
    if !root.exists(&base.file(EXCLUSIVE)) && release.is_before(6, 7) {
        let why = format!(
            "Linux {release} makes partitions below other partitions alone, and {} is none",
            base.group
        );
        return Err(unavailable(
            why,
            "use Linux 6.7 or later, or start in the hierarchy's root group",
        ));
    }
    Ok(())
}

/// Whether all threads may run on the same CPUs as now after a partition was made and removed.
fn keeps_all(root: &Root, base: &Base) -> Result<(), Unavailable> {
    let release = Release::read(root);
    if !release.keeps_pins()
        && let Some((thread, cpus)) = pinned(root, base)
    {
        return Err(release.forgets(thread, &cpus));
    }
    let online = topology::online(root).unwrap_or_default();
    let mut offline = topology::present(root).unwrap_or_default();
    offline.retain(|cpu| !online.contains(cpu));
    // From 6.5 on, the root's threads may run on CPUs that come online later: "cgroup/cpuset:
    // Include offline CPUs when tasks' cpumasks in top_cpuset are updated". That no later release
    // is needed is a guess: the change is missing in 6.1 and present in 6.12.
    if release.is_before(6, 5) && is_top(root, base) && !offline.is_empty() {
        let why = format!(
            "Linux {release} would keep everybody off cpu {} even when it is online again",
            format_cpu_list(&offline)
        );
        return Err(unavailable(why, "use Linux 6.5 or later, or bring it online"));
    }
    Ok(())
}

/// A thread of another process that may not run on some CPUs of its group, with the CPUs that it
/// may run on. Reads two small files per thread of the machine.
fn pinned(root: &Root, base: &Base) -> Option<(u32, Vec<CpuId>)> {
    let names = root.list("/proc").unwrap_or_default();
    let others = names.iter().filter_map(|name| name.parse().ok());
    let mut others = others.filter(|process| *process != std::process::id());
    others.find_map(|process| {
        process::threads(root, process).into_iter().find_map(|thread| {
            let directory = format!("/proc/{process}/task/{thread}");
            let allowed = may_run_on(root, &directory)?;
            let has = base.of(root, &directory)?.cpus(root);
            has.iter().any(|cpu| !allowed.contains(cpu)).then_some((thread, allowed))
        })
    })
}

/// Makes the partition. Returns its directory, and the number of threads that could not be moved
/// off (always 0).
pub(super) fn make(
    journal: &mut Journal,
    base: &Base,
    cpus: &[CpuId],
    balancing: Balancing,
) -> Result<(String, usize), CpusetError> {
    let root = journal.root().clone();
    for group in base.path() {
        journal.switch_on(&format!("{group}/{CONTROL}"), "cpuset")?;
    }
    let is_remote = !is_top(&root, base) && !is_partition(&root, &base.group);
    if is_remote {
        for group in base.path().iter().skip(1) {
            give_away(journal, &format!("{group}/{EXCLUSIVE}"), cpus)?;
        }
    }
    let group = free_name(&root, &base.group);
    journal.make_group(&group, MEMBERS)?;
    let list = format_cpu_list(cpus);
    let write = |name: &str, content: &str| {
        root.write_control(&format!("{group}/{name}"), content).map_err(CpusetError::Group)
    };
    write("cgroup.type", "threaded")?;
    write("cpuset.cpus", &list)?;
    if is_remote {
        write(EXCLUSIVE, &list)?;
    }
    let kind = match balancing {
        Balancing::Balanced => "root",
        Balancing::Isolated => "isolated",
    };
    write(PARTITION, kind)?;
    let made = root.text(&format!("{group}/{PARTITION}")).map_err(CpusetError::Group)?;
    if let Some(why) = refusal(&made, kind) {
        let why = format!("the kernel made no partition of cpu {list} below {}: {why}", base.group);
        return Err(unavailable(why, "name CPUs that no other group has for itself").into());
    }
    Ok((group, 0))
}

/// Adds CPUs to those that a group may give to partitions below it.
fn give_away(journal: &mut Journal, file: &str, cpus: &[CpuId]) -> Result<(), CpusetError> {
    let mut all = journal.root().cpu_list(file).map_err(CpusetError::Group)?;
    all.extend(cpus);
    all.sort_unstable();
    all.dedup();
    Ok(journal.change(file, &format_cpu_list(&all))?)
}

/// Whether the group is the root of the whole hierarchy. The root of a container's part is an
/// ordinary group and has a type.
fn is_top(root: &Root, base: &Base) -> bool {
    base.group == base.mount && !root.exists(&base.file("cgroup.type"))
}

pub(super) fn is_partition(root: &Root, group: &str) -> bool {
    let found = root.text(&format!("{group}/{PARTITION}")).unwrap_or_default();
    found == "root" || found == "isolated"
}

/// Why the kernel made no partition of `kind`, from the state it shows: `root invalid (reason)`.
fn refusal(found: &str, kind: &str) -> Option<String> {
    if found == kind {
        return None;
    }
    let reason = found.split_once('(').and_then(|(_, reason)| reason.strip_suffix(')'));
    Some(reason.unwrap_or(found).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_reason_is_told() {
        let found = "root invalid (Cpu list in cpuset.cpus not exclusive)";
        let reason = "Cpu list in cpuset.cpus not exclusive".to_owned();
        assert_eq!(refusal(found, "root"), Some(reason));
        assert_eq!(refusal("member", "root"), Some("member".to_owned()));
        assert_eq!(refusal("isolated", "isolated"), None);
    }
}
