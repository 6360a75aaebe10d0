//! All ways to wait for a word, and the one in use between spinning and sleeping.
//!
//! Monitor-wait (instructions that wait for a write to a cache line) leaves the core's power, and
//! the share of the SMT sibling, to others. It is meant for waits that have already lasted tens of
//! pauses: starting one takes longer than a look at the line, and waking up takes longer than a
//! look that succeeds. Without such instructions, waiters continue to spin.

use std::sync::atomic::{AtomicUsize, Ordering};

use dimmer_host::cpuid::Cpuid;

use super::spin;
use super::way::Way;
use crate::arch::MONITORS;

/// The monitor in use: its index in [`MONITORS`]; none if it is beyond them, as before [`choose`].
static CHOSEN: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Index of the best monitor that a processor has.
fn best(cpuid: &Cpuid) -> Option<usize> {
    MONITORS.iter().position(|way| (way.is_available)(cpuid))
}

/// Selects the way of this processor. Takes some 100 us in a virtual machine, since the hypervisor
/// answers CPUID.
pub(crate) fn choose() {
    // Relaxed: no other data depends on it.
    CHOSEN.store(best(&Cpuid::instruction()).unwrap_or(usize::MAX), Ordering::Relaxed);
}

/// The processor's monitor-wait, if it has one.
#[inline]
pub(super) fn monitor() -> Option<&'static Way> {
    // A model of the protocol has no cache lines.
    if cfg!(all(test, loom)) {
        return None;
    }
    MONITORS.get(CHOSEN.load(Ordering::Relaxed))
}

/// The way that this processor waits for longer than some looks take, and shorter than a sleep.
#[inline]
pub(super) fn patient() -> &'static Way {
    monitor().unwrap_or(&spin::WAY)
}

#[cfg(all(test, not(loom)))]
#[expect(clippy::print_stdout, reason = "tests say why they are skipped")]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use super::super::{sleep, word::Word};
    use super::*;

    /// The ways that a processor with these feature bits in leaves 7 and 0x80000001 has.
    fn processor(seven: u32, extended: u32) -> &'static str {
        let table = format!(
            "0x0 0x0: eax=0x7 ebx=0x0 ecx=0x0 edx=0x0\n\
             0x7 0x0: eax=0x0 ebx=0x0 ecx={seven:#x} edx=0x0\n\
             0x80000000 0x0: eax=0x80000001 ebx=0x0 ecx=0x0 edx=0x0\n\
             0x80000001 0x0: eax=0x0 ebx=0x0 ecx={extended:#x} edx=0x0\n"
        );
        best(&Cpuid::parse(&table).unwrap()).map_or(spin::WAY.name, |index| MONITORS[index].name)
    }

    #[test]
    fn the_processor_tells_what_it_waits_with() {
        assert_eq!(processor(0, 0), "spin");
        assert_eq!(processor(1 << 5, 0), "umwait");
        assert_eq!(processor(0, 1 << 29), "mwaitx");
        assert_eq!(processor(1 << 5, 1 << 29), "umwait");
        // Adjacent bits are other features.
        assert_eq!(processor(!(1 << 5), !(1 << 29)), "spin");
    }

    #[test]
    fn each_way_sees_a_change_and_ends_without_one() {
        let own = Cpuid::instruction();
        for way in MONITORS.iter().chain([&spin::WAY, &sleep::WAY]) {
            if !(way.is_available)(&own) {
                println!("SKIPPED: this processor does not have {}", way.name);
                continue;
            }
            let word = Word::default();
            // SAFETY: the processor has it.
            let wait = |value: u32| unsafe { (way.wait)(&word, &|now| now == value) };
            assert_eq!(wait(1), Some(0), "{}: what is not waited for", way.name);
            // No thread writes: the time limit ends it.
            let begin = Instant::now();
            assert_eq!(wait(0), None, "{}", way.name);
            assert!(begin.elapsed() < Duration::from_secs(10), "{}", way.name);
            let is_waiting = AtomicBool::new(true);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while wait(0).is_none() {}
                    is_waiting.store(false, Ordering::Release);
                });
                word.post(1);
            });
            assert!(!is_waiting.load(Ordering::Acquire), "{}", way.name);
        }
    }
}
