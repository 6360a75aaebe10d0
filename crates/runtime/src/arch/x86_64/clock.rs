//! The core's clock, measured by the duration of a chain of multiplications.

use std::arch::asm;

/// Iterations of four multiplications in a chain: 300 to 400 core cycles.
const TURNS: u32 = 25;

/// Duration of a chain of multiplications (ticks). Each takes three core cycles on every core of
/// the last decade: the slower the clock, the longer the chain. About 0.1 us.
pub(crate) fn chain() -> u64 {
    let (begin, end): (u64, u64);
    // SAFETY: changes only the registers that are named.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_takes_some_time_and_no_more() {
        let fastest = (0..1000).map(|_| chain()).min().unwrap_or(0);
        let cycles = f64::from(TURNS) * 12.0;
        // Core clocks from an eighth to eight times that of the counter.
        assert!((cycles / 8.0..cycles * 8.0).contains(&(fastest as f64)), "{fastest}");
    }
}
