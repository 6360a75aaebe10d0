//! Core specialisation in the kernel: the module `dimmer_xcr0`, on whose narrow CPUs wide code
//! faults, and the scheduler that moves it to wide ones. `docs/specialise.md` describes both.
//!
//! This file: what the module's files hold, and what is missing to use either part. [`sets`]: which
//! CPUs can be wide. [`session`]: specialises CPUs until a signal. `loader`: the program that loads
//! the scheduler, where it is and how it is started.

mod loader;
pub mod session;
pub mod sets;

use std::path::PathBuf;

use dimmer_processor::units::CpuId;

use crate::cpusets::mounts;
use crate::journal::{self, Owner};
use crate::privilege::{LinuxCapability, Privileges};
use crate::root::{Root, RootError, format_cpu_list};
use crate::unavailable::Unavailable;

/// The module's directory.
const MODULE: &str = "/sys/kernel/dimmer_xcr0";
/// The module's file with the narrow CPUs; empty if all are wide.
pub(crate) const NARROW: &str = "/sys/kernel/dimmer_xcr0/narrow";
/// The kernel's directory of loadable schedulers (Linux `Documentation/scheduler/sched-ext.rst`).
pub(crate) const SCHED_EXT_DIRECTORY: &str = "/sys/kernel/sched_ext";
/// Where the loader keeps the scheduler's maps, in a file system of type `bpf`.
const BPF: &str = "/sys/fs/bpf";
/// The name of Dimmer's scheduler (`bpf/specialise.bpf.c`).
const OWN: &str = "dimmer";

/// What the module's files hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The narrow CPUs, ascending.
    pub narrow: Vec<CpuId>,
    /// The wide CPUs that are online, ascending.
    pub wide: Vec<CpuId>,
    /// Whether Dimmer's scheduler is loaded; if not, the module moves threads by their affinity.
    pub is_scheduled: bool,
    /// What happened since the module was loaded.
    pub counts: Counts,
}

/// What happened since the module was loaded. Each field is the module's file of that name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How often wide code met a narrow CPU.
    pub faults: u64,
    /// How often a thread ran on a wide CPU after that.
    pub moves: u64,
    /// The time until it did, summed up (ns).
    pub move_ns: u64,
    /// How often a thread came back to a narrow CPU.
    pub returns: u64,
    /// Phases of wide code that a system call ended.
    pub ended_by_calls: u64,
    /// Phases of wide code that time ended.
    pub ended_by_time: u64,
    /// How often wide code ran on a narrow CPU because its thread may run on no other.
    pub allowed: u64,
    /// How often it ran there because its thread had faulted too often at one place.
    pub limits: u64,
    /// Moves by affinity, without the scheduler.
    pub without_scheduler: u64,
    /// Writes of the register XCR0.
    pub switches: u64,
    /// How often a narrow CPU stayed wide until its next switch.
    pub missed: u64,
}

impl Module {
    /// Reads the module's files; `None` if it is not loaded.
    ///
    /// # Errors
    /// [`RootError`]: a file cannot be read, or holds neither a list of CPUs nor a number.
    ///
    /// # Cost
    /// Fourteen small files.
    pub fn read(root: &Root) -> Result<Option<Self>, RootError> {
        if !root.exists(NARROW) {
            return Ok(None);
        }
        let count = |name: &str| root.count(&format!("{MODULE}/{name}"));
        Ok(Some(Self {
            narrow: root.cpu_list(NARROW)?,
            wide: root.cpu_list(&format!("{MODULE}/wide"))?,
            is_scheduled: loaded_scheduler(root).is_some_and(|name| name == OWN),
            counts: Counts {
                faults: count("faults")?,
                moves: count("moves")?,
                move_ns: count("move_ns")?,
                returns: count("returns")?,
                ended_by_calls: count("ended_by_calls")?,
                ended_by_time: count("ended_by_time")?,
                allowed: count("allowed")?,
                limits: count("limits")?,
                without_scheduler: count("without_scheduler")?,
                switches: count("switches")?,
                missed: count("missed")?,
            },
        }))
    }
}

/// The name of the scheduler of sched_ext that is loaded; `None` if there is none.
#[must_use]
pub(crate) fn loaded_scheduler(root: &Root) -> Option<String> {
    let state = root.text(&format!("{SCHED_EXT_DIRECTORY}/state")).ok()?;
    let name = root.text(&format!("{SCHED_EXT_DIRECTORY}/root/ops"));
    (state != "disabled").then(|| name.unwrap_or_else(|_| "of unknown name".to_owned()))
}

/// Checks that the module is loaded and that this process may set its narrow CPUs.
///
/// # Errors
/// [`Unavailable`].
pub(crate) fn check_module(root: &Root) -> Result<(), Unavailable> {
    let missing = |why: String, remedy: &str| Unavailable::new("module dimmer_xcr0", why, remedy);
    if !root.exists(NARROW) {
        return Err(missing(
            format!("no {MODULE}: it is not loaded, so no wide code faults on narrow CPUs"),
            "as root: make -C kernel && insmod kernel/dimmer_xcr0.ko; if it refuses, the kernel's \
             log says why (`dimmer_xcr0: refused`)",
        ));
    }
    if !root.is_writable(NARROW) {
        return Err(missing(format!("no permission to write {NARROW}"), "run as root"));
    }
    Ok(())
}

/// Checks that this process may load Dimmer's scheduler, and finds the program that does.
///
/// # Errors
/// [`Unavailable`], also if another scheduler is loaded.
pub(crate) fn check_scheduler(root: &Root) -> Result<PathBuf, Unavailable> {
    let missing = |why: String, remedy: &str| {
        Unavailable::new("scheduler of core specialisation", why, remedy)
    };
    if !root.exists(SCHED_EXT_DIRECTORY) {
        return Err(missing(
            format!("no {SCHED_EXT_DIRECTORY}: the kernel is built without loadable schedulers"),
            "use Linux 6.12 or later with CONFIG_SCHED_CLASS_EXT, or `dimmer specialise --affinity`",
        ));
    }
    let privileges = Privileges::read(root);
    let needs = [LinuxCapability::Bpf, LinuxCapability::Perfmon];
    if !needs.into_iter().all(|needed| privileges.has_or_admin(needed)) {
        return Err(missing(
            "loading a scheduler needs CAP_BPF and CAP_PERFMON".to_owned(),
            "run as root",
        ));
    }
    if let Some(name) = loaded_scheduler(root).filter(|name| name != OWN) {
        return Err(missing(
            format!("another one is loaded ({name}), and the kernel takes one at a time"),
            "end the program that has loaded it",
        ));
    }
    if !mounts(root).iter().any(|mount| mount.point == BPF && mount.kind == "bpf") {
        return Err(missing(
            format!("no file system of type bpf at {BPF}, where its maps go"),
            "as root: mount -t bpf bpf /sys/fs/bpf",
        ));
    }
    loader::find(root).ok_or_else(|| {
        missing(
            format!("no program {} beside dimmer or in the directories of PATH", loader::NAME),
            "build it by ci/kernel.sh, and put it there",
        )
    })
}

/// Checks that no other program specialises CPUs now.
///
/// # Errors
/// [`Unavailable`], with the program as far as it is known; or the module's file cannot be read.
fn check_unused(root: &Root) -> Result<(), Unavailable> {
    let taken = |why: String, remedy: &str| Unavailable::new("core specialisation", why, remedy);
    if loaded_scheduler(root).is_some_and(|name| name == OWN) {
        return Err(taken(
            "Dimmer's scheduler is loaded already".to_owned(),
            "`dimmer-specialise wide CPUS` changes which CPUs are wide, or end it first",
        ));
    }
    let narrow = root.cpu_list(NARROW).map_err(|error| {
        taken(error.to_string(), "load the module again: rmmod dimmer_xcr0, then insmod")
    })?;
    if narrow.is_empty() {
        return Ok(());
    }
    let narrow = format_cpu_list(&narrow);
    let pending = journal::pending(root);
    let owner = pending.iter().find(|one| one.paths.iter().any(|path| path == NARROW));
    Err(match owner {
        Some(one) if one.owner == Owner::Lives => taken(
            format!("process {} has made CPUs {narrow} narrow", one.process),
            "end that process first",
        ),
        Some(_) => taken(format!("a killed run has left CPUs {narrow} narrow"), "dimmer restore"),
        None => taken(
            format!("CPUs {narrow} are narrow already, by something else than `dimmer specialise`"),
            "end what has set them, or widen all, as root: echo > /sys/kernel/dimmer_xcr0/narrow",
        ),
    })
}
