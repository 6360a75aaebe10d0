//! Cores dedicated by cpusets, so that the scheduler puts nobody on them but whom they are for.
//!
//! The process stays in its own control group, the *base*; below it a group is made that has the
//! dedicated CPUs, and threads go in one by one ([`enter`]). All of it goes through the
//! [journal](crate::journal). Whose threads are let in, and on which CPUs, is decided elsewhere;
//! where there are no cpusets, [affinity] keeps off the dedicated cores what belongs to the program
//! itself, and nobody else.
//!
//! - Version 2: the kernel makes a *partition* of the CPUs, so that they leave all other groups. It
//!   needs Linux 6.7 and root, unless the base is the hierarchy's root or a partition itself.
//! - Version 1 keeps no thread off by itself: those that were in the base move to a group with the
//!   other CPUs. It needs a base whose CPUs are exclusively its own, as the hierarchy's root's are.
//!
//! Sources: Linux `Documentation/admin-guide/cgroup-v2.rst` ("Cpuset", "Threads"),
//! `Documentation/admin-guide/cgroup-v1/cpusets.rst`. Implements paper 001 §4.3.5, as far as the
//! operating system goes.

mod hierarchy;
mod release;
mod v1;
mod v2;

use dimmer_processor::units::CpuId;

use self::hierarchy::Base;
pub(crate) use self::hierarchy::{Mount, mounts, own_group};
use crate::affinity;
use crate::journal::{Journal, JournalError, Report};
use crate::root::{Root, RootError, format_cpu_list};
use crate::unavailable::Unavailable;

/// What the survey and errors call it.
const WHAT: &str = "dedicated cores by cpusets";

/// Written to a group's file of members: the thread that writes (Linux `kernel/cgroup/cgroup.c`,
/// `cgroup_procs_write_start`).
const ITSELF: &str = "0";

/// What is done where there are none.
const INSTEAD: &str =
    "until then, workers are pinned and the program's own threads keep off by affinity";

/// Why CPUs were not dedicated. Nothing is changed: what was done until then is undone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpusetError {
    /// The kernel, the permission, or the right place in the hierarchy is missing. Not fatal:
    /// affinity is what is left.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// No CPU was named.
    #[error("no cpu was named to be dedicated")]
    NoCpus,
    /// CPUs that this process's group does not have.
    #[error(
        "cpu {} cannot be dedicated: the control group {base} has {}",
        format_cpu_list(lacking),
        format_cpu_list(has)
    )]
    Lacking {
        /// Those.
        lacking: Vec<CpuId>,
        /// What there is.
        has: Vec<CpuId>,
        /// The group of this process.
        base: String,
    },
    /// Nothing would be left for everybody else.
    #[error(
        "cpu {} is all that the control group {base} has: nothing would be left for others",
        format_cpu_list(all)
    )]
    NothingLeft {
        /// All CPUs.
        all: Vec<CpuId>,
        /// The group of this process.
        base: String,
    },
    /// The journal cannot be written, or something in the hierarchy cannot be changed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A file of a group of ours cannot be written or read.
    #[error("cannot use the control group of dedicated cores")]
    Group(#[source] RootError),
}

/// Whether the scheduler spreads threads over the dedicated CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balancing {
    /// As on other CPUs.
    Balanced,
    /// Not at all: threads stay where they are pinned, and no balancing runs there.
    Isolated,
}

/// Dedicated CPUs. Dropping it gives them back; after a crash [`crate::journal::restore()`] does.
#[derive(Debug)]
pub struct Dedicated {
    journal: Journal,
    group: String,
    /// The file of a group that takes threads, and lists them.
    members: &'static str,
    cpus: Vec<CpuId>,
    intruders: usize,
}

impl Dedicated {
    /// Dedicates CPUs until what is returned is dropped. The journal is for nothing else: with an
    /// error, all that is in it is undone.
    ///
    /// No thread is let in yet. The calling process's own threads, like everybody else's, have left
    /// those CPUs on return; the calling thread may run on no others than before.
    ///
    /// # Errors
    /// [`CpusetError`], [`CpusetError::Unavailable`] where this machine or process cannot.
    ///
    /// # Cost
    /// Some ten small files; two for each thread of the machine with version 1, and with kernels
    /// before 6.2.
    pub fn begin(
        mut journal: Journal,
        cpus: &[CpuId],
        balancing: Balancing,
    ) -> Result<Self, CpusetError> {
        let base = find(journal.root())?;
        let has = base.cpus(journal.root());
        let lacking: Vec<CpuId> = cpus.iter().copied().filter(|cpu| !has.contains(cpu)).collect();
        if cpus.is_empty() {
            return Err(CpusetError::NoCpus);
        } else if !lacking.is_empty() {
            return Err(CpusetError::Lacking { lacking, has, base: base.group });
        }
        let mut dedicated = cpus.to_vec();
        dedicated.sort_unstable();
        dedicated.dedup();
        let others: Vec<CpuId> = has.into_iter().filter(|cpu| !cpus.contains(cpu)).collect();
        if others.is_empty() {
            return Err(CpusetError::NothingLeft { all: dedicated, base: base.group });
        }
        let mut own = affinity::allowed().unwrap_or_default();
        own.retain(|cpu| !cpus.contains(cpu));
        let made = if base.is_v2 {
            v2::make(&mut journal, &base, &dedicated, balancing)?
        } else {
            v1::make(&mut journal, &base, &dedicated, &others, balancing)?
        };
        if journal.root().is_live() && !own.is_empty() {
            // Kernels before 6.2 let it on all that is left now.
            let _ = affinity::allow(&own);
        }
        let (group, intruders) = made;
        let members = if base.is_v2 { v2::MEMBERS } else { v1::MEMBERS };
        Ok(Self { journal, group, members, cpus: dedicated, intruders })
    }

    /// The CPUs, ascending.
    #[must_use]
    pub fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }

    /// How many threads may still run on these CPUs, because this process may not move them. None
    /// with version 2. (Threads of the kernel do not count: they stay where they are.)
    #[must_use]
    pub const fn intruders(&self) -> usize {
        self.intruders
    }

    /// The file that lets threads in: those of this process, and of processes that it starts from
    /// now on.
    #[must_use]
    pub fn entrance(&self) -> String {
        format!("{}/{}", self.group, self.members)
    }

    /// Gives the CPUs back: whoever was let in goes on where everybody is.
    ///
    /// # Errors
    /// As [`Journal::undo`]. What could not be undone is in the report.
    pub fn undo(self) -> Result<Report, JournalError> {
        self.journal.undo()
    }
}

/// Lets the calling thread onto dedicated CPUs by their [entrance](Dedicated::entrance), and off
/// all others, until they are given back. Whoever dedicated them is this process, or one that has
/// started it.
///
/// # Errors
/// [`CpusetError::Group`]: they are given back already, or this process's rights do not suffice.
pub fn enter(root: &Root, entrance: &str) -> Result<(), CpusetError> {
    root.write_control(entrance, ITSELF).map_err(CpusetError::Group)
}

/// Whether CPUs can be dedicated here, as far as looking tells; in words, where and how.
///
/// # Errors
/// [`Unavailable`]: what is missing, and how to get it.
pub fn check(root: &Root) -> Result<String, Unavailable> {
    let base = find(root)?;
    let version = if base.is_v2 { "partitions (cgroup v2)" } else { "cpusets (cgroup v1)" };
    Ok(format!("{version} below {}: {}", base.group, format_cpu_list(&base.cpus(root))))
}

/// CPUs that a control group has for itself, and that group: a partition (version 2), or a cpuset
/// that is exclusive and not balanced (version 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its directory.
    pub group: String,
    /// Ascending.
    pub cpus: Vec<CpuId>,
}

/// The CPUs that others have for themselves: groups that this process is neither in nor below. None
/// where there are no cpusets.
///
/// # Cost
/// Three small files for each cpuset of the machine.
#[must_use]
pub fn held_by_others(root: &Root) -> Vec<Held> {
    let Ok(base) = Base::find(root) else { return Vec::new() };
    let (own, mut held, mut pending) = (base.path(), Vec::new(), vec![base.mount.clone()]);
    while let Some(group) = pending.pop() {
        let within = Base { group: group.clone(), ..base.clone() };
        let is_held =
            if base.is_v2 { v2::is_partition(root, &group) } else { v1::is_isolated(root, &group) };
        if is_held && !own.contains(&group) {
            held.push(Held { group: group.clone(), cpus: within.cpus(root) });
        }
        // Where a group has no such file, none below it has.
        let file = if base.is_v2 { v2::PARTITION } else { v1::BALANCED };
        let below = root.list(&group).unwrap_or_default().into_iter();
        let below = below.map(|name| within.file(&name));
        pending.extend(below.filter(|group| root.exists(&format!("{group}/{file}"))));
    }
    held
}

/// The control group below which CPUs can be dedicated.
fn find(root: &Root) -> Result<Base, Unavailable> {
    let base = Base::find(root)?;
    if base.is_v2 {
        v2::check(root, &base)?
    } else {
        v1::check(root, &base)?
    }
    let cpus = base.cpus(root);
    if cpus.len() < 2 {
        let why = format!("{} has only cpu {}", base.group, format_cpu_list(&cpus));
        return Err(unavailable(why, "give it two cores at least"));
    }
    Ok(base)
}

fn unavailable(why: impl Into<String>, remedy: &str) -> Unavailable {
    Unavailable::new(WHAT, why, format!("{remedy}; {INSTEAD}"))
}

/// A name below `base` for a group of this process that is not there yet.
fn free_name(root: &Root, base: &str) -> String {
    let process = std::process::id();
    let name = |number: u32| format!("{base}/dimmer.{process}.{number}");
    (0..).map(name).find(|path| !root.exists(path)).unwrap_or_else(|| name(0))
}
