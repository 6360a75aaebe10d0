//! Dedicates cores by cpusets: the scheduler then places only admitted threads on them.
//!
//! The process stays in its own control group, the *base*. A group below it gets the dedicated
//! CPUs, and threads enter that group one by one ([`enter`]). Every change goes through the
//! [journal]. Which threads enter, and on which CPUs, is decided elsewhere. Without
//! cpusets, [affinity] keeps only the program's own threads off the dedicated cores, and no other
//! threads.
//!
//! - Version 2: the kernel makes a *partition* of the CPUs, which removes them from all other
//!   groups. This needs Linux 6.7 and root, unless the base is the hierarchy's root or a partition
//!   itself.
//! - Version 1 excludes no threads by itself: the threads of the base move to a group with the
//!   other CPUs. This needs a base that owns its CPUs exclusively, as the hierarchy's root does.
//!
//! Sources: Linux `Documentation/admin-guide/cgroup-v2.rst` ("Cpuset", "Threads"),
//! `Documentation/admin-guide/cgroup-v1/cpusets.rst`. Implements the operating-system part of paper
//! 001 §4.3.5.

mod hierarchy;
mod release;
mod v1;
mod v2;

use dimmer_processor::units::CpuId;

use self::hierarchy::Base;
pub(crate) use self::hierarchy::{Mount, mounts, own_group};
use crate::affinity;
use crate::journal::{self, Journal, JournalError, Report};
use crate::root::{Root, RootError, format_cpu_list};
use crate::unavailable::Unavailable;

/// The feature's name in the survey and in errors.
const WHAT: &str = "dedicated cores by cpusets";

/// Written to a group's member file, it stands for the writing thread (Linux
/// `linux/kernel/cgroup/cgroup.c`, `cgroup_procs_write_start`).
const ITSELF: &str = "0";

/// What Dimmer does without cpusets.
const INSTEAD: &str =
    "until then, workers are pinned and the program's own threads keep off by affinity";

/// Why CPUs were not dedicated. The machine is unchanged: changes made until then are undone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpusetError {
    /// The kernel, the permission, or the right place in the hierarchy is missing. Not fatal: the
    /// caller can still use affinity.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The list of CPUs is empty.
    #[error("no cpu was named to be dedicated")]
    NoCpus,
    /// The control group of this process lacks some of the CPUs.
    #[error(
        "cpu {} cannot be dedicated: the control group {base} has {}",
        format_cpu_list(lacking),
        format_cpu_list(has)
    )]
    Lacking {
        /// The CPUs that the group lacks.
        lacking: Vec<CpuId>,
        /// The CPUs that the group has.
        has: Vec<CpuId>,
        /// The group of this process.
        base: String,
    },
    /// No CPU would be left for other threads.
    #[error(
        "cpu {} is all that the control group {base} has: nothing would be left for others",
        format_cpu_list(all)
    )]
    NothingLeft {
        /// All CPUs of the group.
        all: Vec<CpuId>,
        /// The group of this process.
        base: String,
    },
    /// The journal cannot be written, or an entry of the hierarchy cannot be changed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A file of one of Dimmer's groups cannot be written or read.
    #[error("cannot use the control group of dedicated cores")]
    Group(#[source] RootError),
}

/// Whether the scheduler balances load over the dedicated CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balancing {
    /// As on other CPUs.
    Balanced,
    /// No balancing: threads stay where they are pinned.
    Isolated,
}

/// Dedicated CPUs. Dropping it returns them; after a crash, [`crate::journal::restore()`] does.
#[derive(Debug)]
pub struct Dedicated {
    journal: Journal,
    group: String,
    /// The group's file that admits threads and lists them.
    members: &'static str,
    cpus: Vec<CpuId>,
    intruders: usize,
}

impl Dedicated {
    /// Dedicates CPUs until the result is dropped. The journal must hold nothing else: on an error,
    /// everything in it is undone.
    ///
    /// No thread is admitted yet. On return, all threads have left those CPUs, also those of the
    /// calling process, except kernel threads and [`Self::intruders`]. The calling thread may run
    /// on no CPU that it could not use before.
    ///
    /// # Errors
    /// [`CpusetError`]; [`CpusetError::Unavailable`] if this machine or process cannot dedicate
    /// CPUs.
    ///
    /// # Cost
    /// About ten small files. Version 1, and kernels before 6.2, add two per thread of the machine.
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
            // Kernels before 6.2 let the thread run on all CPUs that are left now.
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

    /// Number of threads that may still run on these CPUs because this process may not move them. 0
    /// with version 2. Kernel threads do not count: they stay where they are.
    #[must_use]
    pub const fn intruders(&self) -> usize {
        self.intruders
    }

    /// The file that admits threads: those of this process, and those of processes that it starts
    /// later.
    #[must_use]
    pub fn entrance(&self) -> String {
        format!("{}/{}", self.group, self.members)
    }

    /// Returns the CPUs. Admitted threads continue on the CPUs of all other threads.
    ///
    /// # Errors
    /// As [`Journal::undo`]. The report lists what could not be undone.
    pub fn undo(self) -> Result<Report, JournalError> {
        self.journal.undo()
    }
}

/// Moves the calling thread to dedicated CPUs by their [entrance](Dedicated::entrance), and off all
/// others, until the CPUs are returned. This process, or a process that started it, must have
/// dedicated them.
///
/// # Errors
/// [`CpusetError::Group`]: the CPUs are returned already, or this process lacks the permission.
pub fn enter(root: &Root, entrance: &str) -> Result<(), CpusetError> {
    root.write_control(entrance, ITSELF).map_err(CpusetError::Group)
}

/// Whether CPUs can be dedicated here, judged without trying; returns where and how, in words.
///
/// # Errors
/// [`Unavailable`]: what is missing, and how to get it.
pub fn check(root: &Root) -> Result<String, Unavailable> {
    let base = find(root)?;
    let version = if base.is_v2 { "partitions (cgroup v2)" } else { "cpusets (cgroup v1)" };
    Ok(format!("{version} below {}: {}", base.group, format_cpu_list(&base.cpus(root))))
}

/// CPUs that a control group has exclusively, and that group: a partition (version 2), or a cpuset
/// that is exclusive and not balanced (version 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The group's directory.
    pub group: String,
    /// The CPUs, ascending.
    pub cpus: Vec<CpuId>,
}

/// The CPUs that other groups have exclusively. A group counts as other if this process is neither
/// in it nor below it. Empty without cpusets.
///
/// # Cost
/// Three small files per cpuset of the machine.
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
        // If a group lacks this file, so do all groups below it.
        let file = if base.is_v2 { v2::PARTITION } else { v1::BALANCED };
        let below = root.list(&group).unwrap_or_default().into_iter();
        let below = below.map(|name| within.file(&name));
        pending.extend(below.filter(|group| root.exists(&format!("{group}/{file}"))));
    }
    held
}

/// The control group below which CPUs can be dedicated, by a change that can be put on record.
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
    if let Some(path) = journal::unwritable(root) {
        let why = format!("no permission to write {path}, where changes are put on record");
        return Err(unavailable(why, "run as root"));
    }
    Ok(base)
}

fn unavailable(why: impl Into<String>, remedy: &str) -> Unavailable {
    Unavailable::new(WHAT, why, format!("{remedy}; {INSTEAD}"))
}

/// An unused name below `base` for a group of this process.
fn free_name(root: &Root, base: &str) -> String {
    let process = std::process::id();
    let name = |number: u32| format!("{base}/dimmer.{process}.{number}");
    (0..).map(name).find(|path| !root.exists(path)).unwrap_or_else(|| name(0))
}
