//! Sampling of the entries of regions that stay, by thread: one entry in 256 on average where they
//! are frequent, all where they are so rare that the cost does not matter.

use std::cell::Cell;

use dimmer_protocol::ticks;

use crate::arch::of_thread;

/// Maximum number of entries per sample, on average.
const MOST: u32 = 256;

/// Interval within which a sample should come, in ticks: about 0.5 to 2 ms.
const SOON: u64 = 1 << 21;

/// One sample in this number, on average, measures the clock as well.
const CLOCKED: u32 = 16;

of_thread! {
    fn sampler() -> Sampler, "dimmer_runtime_sampler";
}

/// A thread's state. All zero: its first entry is a sample.
#[derive(Debug)]
struct Sampler {
    /// Number of entries that are left before the next sample.
    passing: Cell<u32>,
    /// Total number of entries between the last sample and the next.
    passed: Cell<u32>,
    /// Number of entries per sample, on average; 0 means 1.
    period: Cell<u32>,
    /// Time of the last sample (ticks).
    last: Cell<u64>,
    /// State of the random number generator; 0 before the first number.
    chance: Cell<u64>,
}

/// Whether this entry is not a sample. Such an entry is counted.
#[inline]
pub(crate) fn passes() -> bool {
    let passing = &sampler().passing;
    let left = passing.get();
    if left > 0 {
        passing.set(left - 1);
    }
    left > 0
}

/// Takes this entry as a sample, at the time `now` (ticks). Returns the number of entries that it
/// stands for.
pub(crate) fn draw(now: u64) -> u32 {
    let own = sampler();
    let since = now.wrapping_sub(own.last.replace(now));
    let period = own.period.get().max(1);
    let period = if since > SOON {
        period / 2
    } else if since < SOON / 8 {
        period * 2
    } else {
        period
    };
    let period = period.clamp(1, MOST);
    own.period.set(period);
    let passing = own.below(2 * period - 1);
    own.passing.set(passing);
    own.passed.replace(passing) + 1
}

/// Whether this sample measures the clock.
pub(crate) fn is_clocked() -> bool {
    sampler().below(CLOCKED) == 0
}

impl Sampler {
    /// A random number below `limit`. A number that a signal handler draws in between may be drawn
    /// again.
    ///
    /// Source: Marsaglia, Xorshift RNGs (2003), and Vigna's multiplier for its upper bits.
    fn below(&self, limit: u32) -> u32 {
        let mut chance = self.chance.get();
        if chance == 0 {
            chance = (std::ptr::from_ref(self).addr() as u64 ^ ticks().rotate_left(32)) | 1;
        }
        chance ^= chance >> 12;
        chance ^= chance << 25;
        chance ^= chance >> 27;
        self.chance.set(chance);
        let upper = chance.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
        u32::try_from((upper * u64::from(limit)) >> 32).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enters `turns` times, `apart` ticks apart. Returns the number of samples, and of the entries
    /// that they stood for.
    fn enter(turns: u32, apart: u64) -> (u32, u32) {
        let (mut now, mut samples, mut stood_for) = (sampler().last.get(), 0, 0);
        for _ in 0..turns {
            now += apart;
            if !passes() {
                samples += 1;
                stood_for += draw(now);
            }
        }
        (samples, stood_for)
    }

    #[test]
    fn rare_entries_are_all_looked_at_and_frequent_ones_now_and_then() {
        assert_eq!(enter(1000, 10 * SOON), (1000, 1000));
        let (samples, stood_for) = enter(1_000_000, 10);
        assert!((3000..6000).contains(&samples), "{samples}");
        assert!((999_000..=1_000_000).contains(&stood_for), "{stood_for}");
        // As frequent as samples should be, or somewhat more.
        let (samples, _) = enter(100_000, SOON / 16);
        assert!((5_000..80_000).contains(&samples), "{samples}");
        enter(5000, 10 * SOON);
        assert_eq!(enter(1000, 10 * SOON).0, 1000);
    }
}
