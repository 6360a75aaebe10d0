//! Which entries of regions that stay are looked at more closely, thread by thread: one in 256 on average where they are frequent,
//! all where they are so rare that it does not matter.

use std::cell::Cell;

/// At most so many entries to a sample, on average.
const MOST: u32 = 256;

/// Ticks within which a sample should come: about 0.5 to 2 ms.
const SOON: u64 = 1 << 21;

/// One sample in so many, on average, tells the clock as well.
const CLOCKED: u32 = 16;

thread_local! {
    /// Entries until the next sample.
    static UNTIL: Cell<u32> = const { Cell::new(1) };
    /// How many those were.
    static DRAWN: Cell<u32> = const { Cell::new(1) };
    /// How many they are on average.
    static PERIOD: Cell<u32> = const { Cell::new(1) };
    /// When the last sample was (ticks).
    static LAST: Cell<u64> = const { Cell::new(0) };
}

/// Whether this entry is no sample; it is counted then.
#[inline]
pub(crate) fn passes() -> bool {
    let until = UNTIL.get().wrapping_sub(1);
    if until != 0 {
        UNTIL.set(until);
    }
    until != 0
}

/// This entry is a sample, at that moment (ticks): how many entries it stands for.
pub(crate) fn draw(now: u64) -> u32 {
    let since = now.wrapping_sub(LAST.replace(now));
    let period = PERIOD.get();
    let period = if since > SOON {
        period / 2
    } else if since < SOON / 8 {
        period * 2
    } else {
        period
    };
    let period = period.clamp(1, MOST);
    PERIOD.set(period);
    let until = fastrand::u32(1..2 * period);
    UNTIL.set(until);
    DRAWN.replace(until)
}

/// Whether this sample tells the clock.
pub(crate) fn is_clocked() -> bool {
    fastrand::u32(..CLOCKED) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enters for so many turns, so many ticks apart; how many were samples, and how many entries they stood for.
    fn enter(turns: u32, apart: u64) -> (u32, u32) {
        let (mut now, mut samples, mut stood_for) = (LAST.get(), 0, 0);
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
