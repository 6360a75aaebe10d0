//! Ways in which a thread waits until another one changes a word.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dimmer_host::cpuid::{Cpuid, Feature};
use dimmer_host::root::Root;
use rustix::thread::{futex, sched_yield};

use crate::arch::{ticks_now, waits};

/// Looks at the word in a turn of a spinning wait.
const LOOKS: u32 = 64;

/// The longest turn of a monitor-wait, in ticks of the time-stamp counter: some 0.1 ms. It is
/// longer than the random time before a word changes, so that hardly any wait starts again; by the
/// kernel's limit, those by UMWAIT do.
const TURN_TICKS: u32 = 400_000;

/// The longest turn of a wait in the kernel.
const NAP: Duration = Duration::from_millis(20);

/// A way to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Looks again and again.
    Spin,
    /// Looks, with a PAUSE in between.
    Pause,
    /// Looks, with `sched_yield(2)` in between.
    Yield,
    /// UMWAIT in state C0.1 or C0.2.
    Umwait {
        /// The state, as the instruction has it.
        state: u32,
    },
    /// MWAITX with the hint for C0 or C1.
    Mwaitx {
        /// The hint, as the instruction has it.
        hint: u32,
    },
    /// FUTEX_WAIT: the thread sleeps.
    Futex,
}

impl Way {
    /// Why this processor, as the hypervisor shows it, does not have it, or the kernel does not
    /// allow it; `None` if nothing is in the way.
    pub(super) fn lacks(self, cpuid: &Cpuid, root: &Root) -> Option<String> {
        match self {
            Self::Umwait { state } => lacks_state(cpuid, root, state),
            Self::Mwaitx { .. } => lacks(cpuid, Feature::Monitorx),
            _ => None,
        }
    }

    /// Waits for a bounded time while the word is `value`. The caller has checked [`Way::lacks`].
    pub(super) fn wait(self, word: &AtomicU32, value: u32) {
        // Ordering: Acquire pairs with the Release of the thread that changes the word. Nothing
        // depends on it but the time.
        let is_changed = || word.load(Ordering::Acquire) != value;
        let line: *const u8 = std::ptr::from_ref(word).cast();
        match self {
            Self::Spin => {
                let _ = (0..LOOKS).any(|_| is_changed());
            }
            Self::Pause => {
                let _ = (0..LOOKS).any(|_| {
                    spin_loop();
                    is_changed()
                });
            }
            Self::Yield => sched_yield(),
            Self::Umwait { state } => {
                // SAFETY: the caller has checked that the processor has it.
                unsafe { waits::umonitor(line) };
                if !is_changed() {
                    let deadline = ticks_now().saturating_add(TURN_TICKS.into());
                    // SAFETY: as before.
                    unsafe { waits::umwait(state, deadline) };
                }
            }
            Self::Mwaitx { hint } => {
                // SAFETY: the caller has checked that the processor has it.
                unsafe { waits::monitorx(line) };
                if !is_changed() {
                    // SAFETY: as before.
                    unsafe { waits::mwaitx(hint, TURN_TICKS) };
                }
            }
            Self::Futex => {
                let nap = futex::Timespec { tv_sec: 0, tv_nsec: NAP.subsec_nanos().into() };
                // Why it ends does not matter: the caller looks at the word.
                let _ = futex::wait(word, futex::Flags::PRIVATE, value, Some(&nap));
            }
        }
    }
}

/// Why UMWAIT and TPAUSE cannot be used in a state; `None` if they can.
pub(super) fn lacks_state(cpuid: &Cpuid, root: &Root, state: u32) -> Option<String> {
    lacks(cpuid, Feature::Waitpkg).or_else(|| {
        let path = format!("{CONTROL}/enable_c02");
        let is_deep = state == 0 && root.integer(&path).is_ok_and(|allows| allows == 0);
        is_deep.then(|| format!("the kernel allows no C0.2: {path} holds 0"))
    })
}

/// Why TPAUSE cannot be used in a state for this many ticks; `None` if it can.
pub(super) fn lacks_pause(cpuid: &Cpuid, root: &Root, state: u32, ticks: u64) -> Option<String> {
    lacks_state(cpuid, root, state).or_else(|| {
        let path = format!("{CONTROL}/max_time");
        // 0 is no limit.
        let limit = root.integer(&path).ok().and_then(|limit| u64::try_from(limit).ok());
        let is_short = limit.is_some_and(|limit| (1..ticks).contains(&limit));
        is_short.then(|| format!("the kernel limits it to less than {ticks} ticks ({path})"))
    })
}

/// What the kernel allows UMWAIT and TPAUSE (Linux
/// `Documentation/ABI/testing/sysfs-devices-system-cpu`).
const CONTROL: &str = "/sys/devices/system/cpu/umwait_control";

/// Why an extension cannot be used; `None` if it can.
fn lacks(cpuid: &Cpuid, feature: Feature) -> Option<String> {
    let why = || format!("the processor, as the hypervisor shows it, has no {}", feature.name());
    (!cpuid.usable(feature)).then(why)
}

#[cfg(test)]
#[expect(clippy::print_stdout, reason = "tests say why they are skipped")]
mod tests {
    use super::*;

    const ALL: [Way; 8] = [
        Way::Spin,
        Way::Pause,
        Way::Yield,
        Way::Umwait { state: 1 },
        Way::Umwait { state: 0 },
        Way::Mwaitx { hint: 0xf0 },
        Way::Mwaitx { hint: 0 },
        Way::Futex,
    ];

    #[test]
    fn every_wait_ends_by_itself_and_by_a_change() {
        let own = Cpuid::instruction();
        for way in ALL {
            if let Some(why) = way.lacks(&own, &Root::live()) {
                println!("SKIPPED: {way:?}: {why}");
                continue;
            }
            let word = AtomicU32::new(1);
            way.wait(&word, 1);
            way.wait(&word, 0);
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    while word.load(Ordering::Acquire) == 1 {
                        way.wait(&word, 1);
                    }
                });
                word.store(2, Ordering::Release);
                assert!(waiter.join().is_ok());
            });
        }
    }

    #[test]
    fn names_the_extension_that_a_processor_lacks() {
        let bare = Cpuid::parse("0x0 0x0: eax=0x0 ebx=0x0 ecx=0x0 edx=0x0\n").unwrap();
        let root = Root::new("/nowhere");
        let missing = ALL.map(|way| way.lacks(&bare, &root).map(|why| why.ends_with("waitpkg")));
        assert_eq!(missing[..3], [None; 3]);
        assert_eq!(missing[3..7], [Some(true), Some(true), Some(false), Some(false)]);
        assert_eq!(missing[7], None);
    }

    #[test]
    fn names_what_the_kernel_does_not_allow() {
        // WAITPKG: leaf 7, bit 5 of ecx.
        let has =
            "0x0 0x0: eax=0x7 ebx=0x0 ecx=0x0 edx=0x0\n0x7 0x0: eax=0x0 ebx=0x0 ecx=0x20 edx=0x0\n";
        let has = Cpuid::parse(has).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        let reasons = || {
            let waits = [1, 0].map(|state| Way::Umwait { state }.lacks(&has, &root));
            let pauses = [1, 0].map(|state| lacks_pause(&has, &root, state, 30_000));
            [waits, pauses].concat().into_iter().map(|why| why.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(reasons(), [false; 4], "a kernel without such limits");
        std::fs::create_dir_all(root.path(CONTROL)).unwrap();
        for (allows, limit, expected) in [
            ("1", "100000", [false; 4]),
            ("0", "100000", [false, true, false, true]),
            ("1", "0", [false; 4]),
            ("1", "20000", [false, false, true, true]),
        ] {
            std::fs::write(root.path(&format!("{CONTROL}/enable_c02")), allows).unwrap();
            std::fs::write(root.path(&format!("{CONTROL}/max_time")), limit).unwrap();
            assert_eq!(reasons(), expected, "{allows} {limit}");
        }
    }
}
