//! The clock of a CPU by the duration of a chain of multiplications, where no register with it can
//! be read.
//!
//! Uses `unsafe` because only assembly keeps the chain as it is.

use std::arch::asm;
use std::time::{Duration, Instant};

use dimmer_processor::units::{CpuId, KiloHertz};

use crate::affinity;
use crate::root::Root;

/// Iterations of four multiplications in a chain.
const TURNS: u32 = 1000;

/// The core cycles of a multiplication of 32 bits that waits for the one before, on every core of
/// the last decade (Agner Fog, "Instruction tables": `IMUL r32,r32,i`).
const CYCLES: u32 = 3;

/// Chains of which the fastest counts: interrupts and a hypervisor only make one longer.
const TRIES: usize = 3;

/// The clock of this CPU now, as it executes the calling thread, which goes there and back. It is
/// not that of what the CPU executed before: one that was asleep may still be on its way to a
/// faster clock. `None` if the thread may not run there.
///
/// # Cost
/// Of that CPU, 36,000 cycles (9 us at 4 GHz, 45 us at 0.8 GHz) and a wake-up if it sleeps; of the
/// calling thread, two migrations, and the wait for its turn if the CPU is busy.
#[must_use]
pub fn on(root: &Root, cpu: CpuId) -> Option<KiloHertz> {
    let _there = affinity::pin(root, cpu).ok()?;
    let took = (0..TRIES).map(|_| chain()).min()?;
    clock(took)
}

/// The clock at which a chain takes this long.
fn clock(took: Duration) -> Option<KiloHertz> {
    let cycles = u128::from(4 * TURNS * CYCLES);
    // Cycles by ns are GHz.
    let khz = (cycles * 1_000_000).checked_div(took.as_nanos())?;
    u64::try_from(khz).ok().map(KiloHertz::from_khz)
}

/// How long a chain of [`TURNS`] times four multiplications takes.
fn chain() -> Duration {
    let begin = Instant::now();
    // SAFETY: changes only the registers that are named.
    unsafe {
        asm!(
            // Each multiplication waits for the result of the one before; the counter of the loop
            // runs beside them.
            "2:",
            "imul {link:e}, {link:e}, 3",
            "imul {link:e}, {link:e}, 3",
            "imul {link:e}, {link:e}, 3",
            "imul {link:e}, {link:e}, 3",
            "sub {turns:e}, 1",
            "jnz 2b",
            // Until the last one is done.
            "lfence",
            link = inout(reg) 1_u64 => _,
            turns = inout(reg) TURNS => _,
            options(nomem, nostack),
        );
    }
    begin.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_three_microseconds_is_a_clock_of_four_gigahertz() {
        assert_eq!(clock(Duration::from_micros(3)), Some(KiloHertz::from_mhz(4000)));
        assert_eq!(clock(Duration::from_micros(15)), Some(KiloHertz::from_mhz(800)));
        assert_eq!(clock(Duration::ZERO), None);
    }

    #[test]
    fn a_cpu_has_a_clock_and_the_thread_comes_back() {
        let allowed = affinity::allowed().unwrap();
        let clock = on(&Root::live(), allowed[0]).unwrap();
        // Emulators and busy hosts may be slow; no core is faster than this.
        assert!(clock > KiloHertz::from_khz(0) && clock < KiloHertz::from_mhz(10_000), "{clock}");
        assert_eq!(on(&Root::live(), CpuId::new(100_000)), None);
        assert_eq!(affinity::allowed().unwrap(), allowed);
    }
}
