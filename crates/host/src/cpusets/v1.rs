//! Version 1: one group with exclusively the dedicated CPUs, and one with the other CPUs, to which
//! threads move.
//!
//! If the kernel would forget that threads are pinned, the request is refused when a pinned thread
//! may run on the dedicated CPUs and would have to move.

use dimmer_processor::units::CpuId;

use super::hierarchy::{Base, may_run_on};
use super::release::Release;
use super::{Balancing, CpusetError, free_name, unavailable};
use crate::journal::Journal;
use crate::process;
use crate::root::{Root, format_cpu_list};
use crate::unavailable::Unavailable;

/// The file that admits threads and lists them.
pub(super) const MEMBERS: &str = "tasks";

/// The file that says whether the group's CPUs are exclusive among its sibling groups.
const EXCLUSIVE: &str = "cpuset.cpu_exclusive";

/// The file that says whether the scheduler balances load over the group's CPUs.
pub(super) const BALANCED: &str = "cpuset.sched_load_balance";

/// Number of scans of the base's threads. A scan finds the threads started during the one before. A
/// guess.
const LOOKS: u32 = 8;

/// Whether CPUs can be dedicated below `base`, judged without trying.
pub(super) fn check(root: &Root, base: &Base) -> Result<(), Unavailable> {
    let tasks = base.file(MEMBERS);
    if !root.is_writable(&tasks) {
        return Err(unavailable(format!("no permission to write {tasks}"), "run as root"));
    }
    if flag(root, &base.group, EXCLUSIVE) == Some(false) {
        let why =
            format!("the CPUs of {} are not exclusively its own ({EXCLUSIVE} is 0)", base.group);
        return Err(unavailable(why, "start in the hierarchy's root group"));
    }
    Ok(())
}

/// The flag in a group's file, if the file exists.
fn flag(root: &Root, group: &str, name: &str) -> Option<bool> {
    root.text(&format!("{group}/{name}")).ok().map(|flag| flag == "1")
}

/// Whether a group's CPUs are reserved for its own threads.
pub(super) fn is_isolated(root: &Root, group: &str) -> bool {
    flag(root, group, EXCLUSIVE) == Some(true) && flag(root, group, BALANCED) == Some(false)
}

/// Makes the group. Returns its directory, and the number of threads that could not be moved off.
pub(super) fn make(
    journal: &mut Journal,
    base: &Base,
    cpus: &[CpuId],
    others: &[CpuId],
    balancing: Balancing,
) -> Result<(String, usize), CpusetError> {
    let root = journal.root().clone();
    if let Some((group, shared)) = who_shares(&root, base, cpus) {
        let why = format!("the control group {group} has cpu {} as well", format_cpu_list(&shared));
        return Err(unavailable(why, "name other CPUs, or end what runs there").into());
    }
    let release = Release::read(&root);
    if !release.keeps_pins()
        && let Some((thread, allowed)) = pinned(&root, base, cpus)
    {
        return Err(release.forgets(thread, &allowed).into());
    }
    // A cpuset without memory nodes admits no threads.
    let nodes = ["cpuset.effective_mems", "cpuset.mems"];
    let nodes = nodes.iter().find_map(|name| root.text(&base.file(name)).ok()).unwrap_or_default();
    let make = |journal: &mut Journal, group: &str, cpus: &[CpuId]| {
        journal.make_group(group, MEMBERS)?;
        for (name, content) in [("cpuset.cpus", &format_cpu_list(cpus)), ("cpuset.mems", &nodes)] {
            let file = format!("{group}/{name}");
            root.write_control(&file, content).map_err(CpusetError::Group)?;
        }
        Ok::<(), CpusetError>(())
    };
    let group = free_name(&root, &base.group);
    make(journal, &group, cpus)?;
    root.write_control(&format!("{group}/{EXCLUSIVE}"), "1").map_err(CpusetError::Group)?;
    if balancing == Balancing::Isolated {
        let file = format!("{group}/{BALANCED}");
        root.write_control(&file, "0").map_err(CpusetError::Group)?;
    }
    let rest = format!("{group}.others");
    make(journal, &rest, others)?;
    let intruders = clear(&root, base, &rest, cpus);
    Ok((group, intruders))
}

/// A sibling group that shares some of these CPUs, and the shared CPUs.
fn who_shares(root: &Root, base: &Base, cpus: &[CpuId]) -> Option<(String, Vec<CpuId>)> {
    root.list(&base.group).unwrap_or_default().into_iter().find_map(|name| {
        let group = base.file(&name);
        let theirs = root.cpu_list(&format!("{group}/cpuset.cpus")).ok()?;
        let shared: Vec<CpuId> = cpus.iter().copied().filter(|cpu| theirs.contains(cpu)).collect();
        (!shared.is_empty()).then_some((group, shared))
    })
}

/// A thread of another process in the base that may run on some of these CPUs but not on all CPUs
/// of the base, with the CPUs that it may run on.
fn pinned(root: &Root, base: &Base, cpus: &[CpuId]) -> Option<(u32, Vec<CpuId>)> {
    let own = process::threads(root, std::process::id());
    let has = base.cpus(root);
    let members = root.text(&base.file(MEMBERS)).unwrap_or_default();
    let mut others = members.lines().filter_map(|thread| thread.parse().ok());
    others.find_map(|thread| {
        let allowed = may_run_on(root, &format!("/proc/{thread}"))?;
        let would_move = !own.contains(&thread) && cpus.iter().any(|cpu| allowed.contains(cpu));
        let is_pinned = has.iter().any(|cpu| !allowed.contains(cpu));
        (would_move && is_pinned).then_some((thread, allowed))
    })
}

/// Moves threads that may run on these CPUs from the base to another group. Returns the number that
/// could not be moved.
fn clear(root: &Root, base: &Base, rest: &str, cpus: &[CpuId]) -> usize {
    let mut refused = Vec::new();
    for _ in 0..LOOKS {
        let members = root.text(&base.file(MEMBERS)).unwrap_or_default();
        let there: Vec<&str> =
            members.lines().filter(|thread| may_run(root, thread, cpus)).collect();
        let to_move: Vec<&str> = there
            .iter()
            .copied()
            .filter(|thread| !refused.contains(&(*thread).to_owned()))
            .collect();
        if to_move.is_empty() {
            break;
        }
        for thread in to_move {
            if root.write_control(&format!("{rest}/{MEMBERS}"), thread).is_err() {
                refused.push(thread.to_owned());
            }
        }
    }
    refused.iter().filter(|thread| may_run(root, thread, cpus)).count()
}

/// Whether a user thread may run on one of these CPUs.
fn may_run(root: &Root, thread: &str, cpus: &[CpuId]) -> bool {
    let allowed = may_run_on(root, &format!("/proc/{thread}")).unwrap_or_default();
    cpus.iter().any(|cpu| allowed.contains(cpu))
}
