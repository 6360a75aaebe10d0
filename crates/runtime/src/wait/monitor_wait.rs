//! The processor's monitor-wait: instructions that wait for a write to a cache line, for a bounded
//! time, without polling it, and without a system call. They leave the core's power, and the share
//! of the SMT sibling, to others.
//!
//! They are meant for waits that have already lasted tens of pauses: starting one takes longer than
//! a look at the line, and waking up takes longer than a look that succeeds. Without such
//! instructions, waiters continue with `pause`.
//!
//! | | monitor | wait | deadline |
//! |---|---|---|---|
//! | WAITPKG | `umonitor` | `umwait`, state C0.1 | the time-stamp counter's value |
//! | MONITORX | `monitorx` | `mwaitx`, state C0 | ticks of that counter |
//!
//! WAITPKG is on Intel processors since Tremont, Alder Lake and Sapphire Rapids, MONITORX on AMD's
//! since Excavator.
//!
//! A write to the line between the monitor and the wait ends the wait at once, so the condition is
//! checked in between. Kernels limit `umwait` as well (`/sys/devices/system/cpu/umwait_control`).
//!
//! Sources: Intel SDM volume 2, UMONITOR, UMWAIT; AMD64 Architecture Programmer's Manual volume 3,
//! MONITORX, MWAITX.

use std::arch::asm;
use std::arch::x86_64::_rdtsc;
use std::sync::atomic::{AtomicU8, Ordering};

use dimmer_host::cpuid::{Cpuid, Feature};

/// The longest wait, in ticks of the time-stamp counter: 5 to 10 us. It is also the delay with
/// which a worker that waits for one thread's line sees another thread's. A guess.
const TICKS: u32 = 20_000;

/// How this processor waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instruction {
    Pause,
    Umwait,
    Mwaitx,
}

/// The one in use: its index in [`Instruction::ALL`]. Before [`choose`], `pause`.
static CHOSEN: AtomicU8 = AtomicU8::new(0);

impl Instruction {
    const ALL: [Self; 3] = [Self::Pause, Self::Umwait, Self::Mwaitx];

    /// The instruction that a processor has.
    fn of(cpuid: &Cpuid) -> Self {
        if cpuid.usable(Feature::Waitpkg) {
            Self::Umwait
        } else if cpuid.usable(Feature::Monitorx) {
            Self::Mwaitx
        } else {
            Self::Pause
        }
    }
}

/// Selects the instruction of this processor. Takes some 100 us in a virtual machine, since the
/// hypervisor answers CPUID.
pub(crate) fn choose() {
    let own = Instruction::of(&Cpuid::instruction());
    let place = Instruction::ALL.iter().position(|instruction| *instruction == own);
    // Relaxed: no other data depends on it.
    CHOSEN.store(place.and_then(|place| u8::try_from(place).ok()).unwrap_or(0), Ordering::Relaxed);
}

/// Waits for a write to the line while `is_waited_for` returns true: some microseconds at most, and
/// perhaps without a write. Returns whether the processor has such instructions; if not, the
/// function did nothing.
///
/// Touches nothing in thread-local storage.
#[inline(never)]
pub(crate) fn wait<T>(line: *const T, is_waited_for: impl FnOnce() -> bool) -> bool {
    let chosen = Instruction::ALL.get(usize::from(CHOSEN.load(Ordering::Relaxed)));
    match chosen {
        None | Some(Instruction::Pause) => return false,
        Some(Instruction::Umwait) => {
            // SAFETY: `choose` has found the instruction.
            unsafe { umonitor(line.cast()) };
            if is_waited_for() {
                // SAFETY: reads a counter.
                let now = unsafe { _rdtsc() };
                // SAFETY: `choose` has found the instruction.
                unsafe { umwait(now.saturating_add(TICKS.into())) };
            }
        }
        Some(Instruction::Mwaitx) => {
            // SAFETY: `choose` has found the instruction.
            unsafe { monitorx(line.cast()) };
            if is_waited_for() {
                // SAFETY: `choose` has found the instruction.
                unsafe { mwaitx(TICKS) };
            }
        }
    }
    true
}

/// Monitors the line that holds this address.
///
/// # Safety
/// The processor has WAITPKG.
#[inline]
unsafe fn umonitor(line: *const u8) {
    // SAFETY: reads no more than a load of that byte would.
    unsafe { asm!("umonitor {}", in(reg) line, options(nostack, preserves_flags)) };
}

/// Waits for a write to the line, until the counter reaches `deadline`.
///
/// # Safety
/// The processor has WAITPKG.
#[inline]
unsafe fn umwait(deadline: u64) {
    /// C0.1, which the core leaves sooner than C0.2.
    const C0_1: u32 = 1;
    let [low, high] = [deadline & u64::from(u32::MAX), deadline >> 32];
    // SAFETY: waits; changes only flags.
    unsafe { asm!("umwait {:e}", in(reg) C0_1, in("eax") low, in("edx") high, options(nostack)) };
}

/// Monitors the line that holds this address.
///
/// # Safety
/// The processor has MONITORX.
#[inline]
unsafe fn monitorx(line: *const u8) {
    let none = 0_u32;
    // SAFETY: reads no more than a load of that byte would. No extensions, no hints.
    unsafe {
        asm!("monitorx", in("rax") line, in("ecx") none, in("edx") none, options(nostack, preserves_flags));
    }
}

/// Waits for a write to the line, for at most `ticks` ticks.
///
/// # Safety
/// The processor has MONITORX.
#[inline]
unsafe fn mwaitx(ticks: u32) {
    /// C0: the shallowest state, which the core leaves soonest.
    const C0: u32 = 0xF0;
    /// Flag: `ebx` holds a maximum time.
    const TIMED: u32 = 1 << 1;
    // SAFETY: waits. The compiler reserves `rbx`, so it is restored.
    unsafe {
        asm!(
            "xchg rbx, {ticks}",
            "mwaitx",
            "xchg rbx, {ticks}",
            ticks = inout(reg) u64::from(ticks) => _,
            in("eax") C0,
            in("ecx") TIMED,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(all(test, not(loom)))]
#[expect(clippy::print_stdout, reason = "tests say why they are skipped")]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::time::{Duration, Instant};

    use iced_x86::{Code, Decoder, DecoderOptions};

    use super::*;

    /// The instruction of a processor with these feature bits in leaves 7 and 0x80000001.
    fn processor(seven: u32, extended: u32) -> Instruction {
        let table = format!(
            "0x0 0x0: eax=0x7 ebx=0x0 ecx=0x0 edx=0x0\n\
             0x7 0x0: eax=0x0 ebx=0x0 ecx={seven:#x} edx=0x0\n\
             0x80000000 0x0: eax=0x80000001 ebx=0x0 ecx=0x0 edx=0x0\n\
             0x80000001 0x0: eax=0x0 ebx=0x0 ecx={extended:#x} edx=0x0\n"
        );
        Instruction::of(&Cpuid::parse(&table).unwrap())
    }

    #[test]
    fn the_processor_tells_what_it_waits_with() {
        assert_eq!(processor(0, 0), Instruction::Pause);
        assert_eq!(processor(1 << 5, 0), Instruction::Umwait);
        assert_eq!(processor(0, 1 << 29), Instruction::Mwaitx);
        assert_eq!(processor(1 << 5, 1 << 29), Instruction::Umwait);
        // Adjacent bits are other features.
        assert_eq!(processor(!(1 << 5), !(1 << 29)), Instruction::Pause);
    }

    /// The instructions of a function, from its first one to its return or its jump to another
    /// function.
    fn decoded(function: *const ()) -> Vec<Code> {
        /// More than the length of any of them.
        const BYTES: usize = 256;
        // SAFETY: the function's code and what follows it, which is code of this program, too.
        let code = unsafe { std::slice::from_raw_parts(function.cast::<u8>(), BYTES) };
        let codes = Decoder::new(64, code, DecoderOptions::NONE).into_iter();
        let codes: Vec<Code> = codes.map(|instruction| instruction.code()).collect();
        let is_end = |code: &Code| matches!(code, Code::Retnq | Code::Jmp_rel32_64);
        let end = codes.iter().position(is_end).expect("an end");
        codes[..end].to_vec()
    }

    #[track_caller]
    fn check(function: *const (), expected: &[Code]) {
        let found = decoded(function);
        let is_expected = |code: &&Code| expected.contains(code);
        assert_eq!(
            found.iter().filter(is_expected).copied().collect::<Vec<_>>(),
            expected,
            "{found:?}"
        );
    }

    #[test]
    fn instructions_are_what_they_are_called() {
        check(umonitor as *const (), &[Code::Umonitor_r64]);
        check(umwait as *const (), &[Code::Umwait_r32]);
        check(monitorx as *const (), &[Code::Monitorxq]);
        let exchange = Code::Xchg_rm64_r64;
        check(mwaitx as *const (), &[exchange, Code::Mwaitx, exchange]);
    }

    #[test]
    fn a_wait_ends_by_a_write_and_by_the_deadline() {
        choose();
        let word = AtomicU32::new(0);
        if !wait(&raw const word, || true) {
            println!("SKIPPED: the processor has neither WAITPKG nor MONITORX");
            return;
        }
        // No thread writes: the deadline ends it.
        let begin = Instant::now();
        assert!(wait(&raw const word, || true));
        assert!(begin.elapsed() < Duration::from_secs(1));
        let is_waiting = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    wait(&raw const word, || word.load(Ordering::Acquire) == 0);
                }
                is_waiting.store(false, Ordering::Release);
            });
            word.store(1, Ordering::Release);
        });
        assert!(!is_waiting.load(Ordering::Acquire));
    }

    #[test]
    fn without_instructions_nothing_is_done() {
        if Instruction::of(&Cpuid::instruction()) == Instruction::Pause {
            choose();
            assert!(!wait(&raw const CHOSEN, || unreachable!()));
        } else {
            println!("SKIPPED: the processor has instructions for waiting");
        }
    }
}
