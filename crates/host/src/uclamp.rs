//! Clamps of a thread's utilization (uclamp): between which shares of the fastest clock the
//! governor `schedutil` chooses the clock of the core that executes the thread.
//!
//! Source: Linux `Documentation/scheduler/sched-util-clamp.rst` and its system calls. The clamps go
//! with the thread from core to core, and end with it. Neither raising nor lowering them takes
//! rights. A thread inherits those of the thread that creates it. On a core the highest clamps of
//! all threads count that are ready to run there.
//!
//! Uses `unsafe` because no crate used here wraps `sched_setattr` with clamps.

pub mod group;

use std::io;

use crate::cpufreq::{self, POLICIES};
use crate::root::Root;
use crate::unavailable::Unavailable;

/// The clamp that stands for the fastest clock (SCHED_CAPACITY_SCALE).
pub const FULL: u32 = 1024;

/// The governor that follows clamps.
const SCHEDUTIL: &str = "schedutil";
/// Exists if the kernel has clamps.
const LIMIT: &str = "/proc/sys/kernel/sched_util_clamp_min";
/// The noun in refusals.
const WHAT: &str = "clamps of a thread's utilization (uclamp)";

/// SCHED_FLAG_KEEP_POLICY, KEEP_PARAMS, UTIL_CLAMP_MIN and UTIL_CLAMP_MAX
/// (`include/uapi/linux/sched.h`).
const CLAMPS_ALONE: u64 = 0x08 | 0x10 | 0x20 | 0x40;

/// `struct sched_attr` of Linux 5.3 (`include/uapi/linux/sched/types.h`).
#[derive(Debug, Default)]
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    times: [u64; 3],
    lowest: u32,
    highest: u32,
}

const SIZE: u32 = 56;
const _: () = assert!(size_of::<Attributes>() == SIZE as usize);

/// The clamps of a thread, from 0 to [`FULL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clamps {
    /// The least utilization that the governor assumes.
    pub lowest: u32,
    /// The highest utilization that the governor assumes.
    pub highest: u32,
}

impl Clamps {
    /// Those of the calling thread.
    ///
    /// # Errors
    /// The kernel's error, or [`io::ErrorKind::Unsupported`] before Linux 5.3.
    pub fn own() -> io::Result<Self> {
        Self::of(0)
    }

    /// Those of the thread with this number in the kernel; 0 means the calling one.
    ///
    /// # Errors
    /// As [`Self::own`]; ESRCH without such a thread.
    pub fn of(thread: u32) -> io::Result<Self> {
        let mut found = Attributes::default();
        // SAFETY: the kernel writes at most `SIZE` bytes to `found`, which has them and lives until
        // the call returns.
        let result =
            unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut found, SIZE, 0) };
        match result {
            0 if found.size < SIZE => Err(io::ErrorKind::Unsupported.into()),
            0 => Ok(Self { lowest: found.lowest, highest: found.highest }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Gives them to the calling thread. A system call.
    ///
    /// # Errors
    /// The kernel's error: EOPNOTSUPP without clamps, EINVAL if they are out of order.
    pub fn set(self) -> io::Result<()> {
        self.set_for(0)
    }

    /// Gives them to the thread with this number in the kernel; 0 means the calling one.
    ///
    /// # Errors
    /// As [`Self::set`]; ESRCH without such a thread, EPERM if it is another user's.
    pub fn set_for(self, thread: u32) -> io::Result<()> {
        let Self { lowest, highest } = self;
        let wanted =
            Attributes { size: SIZE, flags: CLAMPS_ALONE, lowest, highest, ..Default::default() };
        // SAFETY: the kernel reads `SIZE` bytes of `wanted`, which lives until the call returns.
        let result =
            unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const wanted, 0) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Checks that the kernel has clamps, and that the governors of all CPUs follow them. Changes
/// nothing.
///
/// # Errors
/// [`Unavailable`].
pub fn check(root: &Root) -> Result<(), Unavailable> {
    let missing = |why: String, remedy: &str| Err(Unavailable::new(WHAT, why, remedy));
    if let Some(why) = refusal(root) {
        return missing(why, "use a kernel from 5.3 on that was built with CONFIG_UCLAMP_TASK");
    }
    check_governors(root, WHAT)
}

/// Checks that the governors of all CPUs follow clamps.
///
/// # Errors
/// [`Unavailable`] of `what`.
fn check_governors(root: &Root, what: &str) -> Result<(), Unavailable> {
    let missing = |why: String, remedy: &str| Err(Unavailable::new(what, why, remedy));
    let policies = cpufreq::policies(root);
    if policies.is_empty() {
        let why = format!("no policy under {POLICIES}: the kernel does not set the clock");
        return missing(why, "use bare metal, with a driver for cpufreq");
    }
    for policy in policies {
        let governor = policy.governor.as_deref().unwrap_or("unknown");
        if governor != SCHEDUTIL {
            let why = format!("the governor {governor} of {} does not follow them", policy.name);
            return missing(why, "as root: echo schedutil into each policy's scaling_governor");
        }
    }
    Ok(())
}

/// Why the kernel has no clamps; `None` if it has them. A made-up machine has them if it has the
/// file of their limit.
fn refusal(root: &Root) -> Option<String> {
    if !root.is_live() {
        return (!root.exists(LIMIT)).then(|| format!("no {LIMIT}"));
    }
    if let Err(error) = Clamps::own() {
        return Some(format!("sched_getattr: {error}"));
    }
    // Out of order, so that a kernel with clamps refuses them and changes nothing.
    match (Clamps { lowest: FULL, highest: 0 }).set() {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => None,
        Err(error) => Some(format!("sched_setattr: {error}")),
        Ok(()) => Some("sched_setattr takes clamps that are out of order".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MADE_UP: [(&str, &str); 3] =
        [(LIMIT, "1024"), ("policy0", "schedutil"), ("policy4", "schedutil")];

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        for (name, content) in files {
            let path = match name.strip_prefix("policy") {
                Some(_) => format!("{POLICIES}/{name}/scaling_governor"),
                None => (*name).to_owned(),
            };
            let path = root.path(&path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        (directory, root)
    }

    #[test]
    fn needs_the_kernel_and_the_governor_of_every_policy() {
        let why = |files: &[_]| check(&machine(files).1).err().map(|missing| missing.why);
        assert_eq!(why(&MADE_UP), None);
        assert_eq!(why(&MADE_UP[1..]).as_deref(), Some("no /proc/sys/kernel/sched_util_clamp_min"));
        assert_eq!(
            why(&MADE_UP[..1]).as_deref(),
            Some(
                "no policy under /sys/devices/system/cpu/cpufreq: the kernel does not set the clock"
            )
        );
        assert_eq!(
            why(&[MADE_UP[0], MADE_UP[1], ("policy4", "powersave")]).as_deref(),
            Some("the governor powersave of policy4 does not follow them")
        );
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "a test that cannot run here says so")]
    fn a_thread_has_the_clamps_that_it_sets_and_no_other_thread_does() {
        if let Some(why) = refusal(&Root::live()) {
            println!("skipped: {why}");
            return;
        }
        let wanted = Clamps { lowest: 100, highest: 200 };
        let other = Clamps::own().unwrap();
        std::thread::spawn(move || {
            wanted.set().unwrap();
            assert_eq!(Clamps::own().unwrap(), wanted);
        })
        .join()
        .unwrap();
        assert_eq!(Clamps::own().unwrap(), other);
    }
}
