//! The core's clock, told by how long a chain of multiplications takes; and the time-stamp counter.

use std::arch::asm;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Turns of four multiplications in a chain: 300 to 400 core cycles.
const TURNS: u32 = 25;

/// The time-stamp counter.
#[inline]
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has it, and Linux lets programs read it unless they ask not to.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// How long a chain of multiplications takes (ticks), three core cycles each on every core of the last decade: the slower the
/// clock, the longer. About 0.1 us.
pub(crate) fn chain() -> u64 {
    let (begin, end): (u64, u64);
    // SAFETY: changes nothing but the registers that are named.
    unsafe {
        asm!(
            "lfence",
            "rdtsc",
            "shl rdx, 32",
            "or rax, rdx",
            "mov {begin}, rax",
            "lfence",
            "2:",
            "imul {link:e}, {link:e}, 3",
            "imul {link:e}, {link:e}, 3",
            "imul {link:e}, {link:e}, 3",
            "imul {link:e}, {link:e}, 3",
            "sub {turns:e}, 1",
            "jnz 2b",
            "lfence",
            "rdtsc",
            "shl rdx, 32",
            "or rax, rdx",
            begin = out(reg) begin,
            link = inout(reg) 1_u64 => _,
            turns = inout(reg) TURNS => _,
            out("rax") end,
            out("rdx") _,
            options(nomem, nostack),
        );
    }
    end.wrapping_sub(begin)
}

/// Ticks of the time-stamp counter in a nanosecond, measured once for a millisecond.
#[must_use]
pub fn ticks_per_ns() -> f64 {
    static MEASURED: OnceLock<f64> = OnceLock::new();
    *MEASURED.get_or_init(|| {
        let (begin, since) = (Instant::now(), ticks());
        while begin.elapsed() < Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        ticks().saturating_sub(since) as f64 / begin.elapsed().as_nanos() as f64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_takes_some_time_and_no_more() {
        let fastest = (0..1000).map(|_| chain()).min().unwrap_or(0);
        let cycles = f64::from(TURNS) * 12.0;
        // Clocks from an eighth to eight times that of the counter.
        assert!((cycles / 8.0..cycles * 8.0).contains(&(fastest as f64)), "{fastest}");
    }
}
