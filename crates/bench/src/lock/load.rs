//! What competing threads do in their sections and between them: cache lines, and computation for a
//! given time.

use std::hint::black_box;
use std::time::Instant;

/// Times that the speed of the machine is measured.
const TIMES: u32 = 101;

/// What competing threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Computation in a section, after the cache lines (ns).
    pub hold_ns: u32,
    /// Computation between two sections of a thread (ns).
    pub gap_ns: u32,
}

impl Load {
    /// Nothing but the cache lines.
    pub const LINES_ALONE: Self = Self { hold_ns: 0, gap_ns: 0 };

    /// The loads of several threads: a lock that is taken all the time, and locks that are taken
    /// half of the time or less, by short and by long sections.
    pub const ALL: [Self; 7] = [
        Self::LINES_ALONE,
        Self { hold_ns: 100, gap_ns: 100 },
        Self { hold_ns: 100, gap_ns: 1_000 },
        Self { hold_ns: 500, gap_ns: 500 },
        Self { hold_ns: 1_000, gap_ns: 1_000 },
        Self { hold_ns: 1_000, gap_ns: 10_000 },
        Self { hold_ns: 10_000, gap_ns: 10_000 },
    ];

    /// The loads of this number of threads: one thread never waits, whatever it does in between.
    pub(super) fn of(threads: u32) -> &'static [Self] {
        if threads == 1 { &[Self::LINES_ALONE] } else { &Self::ALL }
    }
}

/// Computes for a number of steps, each of which waits for the one before it.
#[inline(never)]
pub(super) fn compute(steps: u32) {
    let mut number = black_box(1_u64);
    for _ in 0..steps {
        number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 1;
    }
    black_box(number);
}

/// How fast this machine computes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    steps_per_ms: u64,
}

/// A load in steps of [`compute`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    pub(super) hold: u32,
    pub(super) gap: u32,
}

impl Speed {
    pub(super) fn measure() -> Self {
        const STEPS: u32 = 10_000;
        let took = |_| {
            let begin = Instant::now();
            compute(STEPS);
            begin.elapsed().as_nanos()
        };
        // The fastest: others were disturbed.
        let took = (0..TIMES).map(took).min().unwrap_or(1);
        let steps = u128::from(STEPS) * 1_000_000 / took.max(1);
        Self { steps_per_ms: u64::try_from(steps).unwrap_or(u64::MAX) }
    }

    pub(super) fn timed(self, load: Load) -> Timed {
        let steps = |ns: u32| {
            let steps = self.steps_per_ms.saturating_mul(ns.into()) / 1_000_000;
            u32::try_from(steps).unwrap_or(u32::MAX)
        };
        Timed { hold: steps(load.hold_ns), gap: steps(load.gap_ns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_lasts_as_long_as_it_should() {
        let speed = Speed { steps_per_ms: 500_000 };
        let Timed { hold, gap } = speed.timed(Load { hold_ns: 100, gap_ns: 1_000 });
        assert_eq!((hold, gap), (50, 500));
        assert!(Speed::measure().steps_per_ms > 0);
    }
}
