//! How long a critical section must be to gain if its owner asks for a faster clock.
//!
//! Implements paper 002, section 4.4. [`Boost`] is a change of the clock around a section,
//! [`Boost::shortest`] its break-even, and [`Boost::least_wait`] that of the wait before it.
//! [`Boosts`] has the two changes of the paper for a processor model: the owner's (`ownr`) and one
//! step.

mod processor;

use dimmer_processor::units::{KiloHertz, Picos, nearest};

pub use self::processor::{Boosts, Lacks};

/// A faster clock for a critical section: what it is, and what asking for it costs.
///
/// The thread waits for the lock at the clock `waiting`. With the lock, it requests `boosted`, and
/// at the end of the section `normal`, at which the section would run without a boost. The owner of
/// the paper's strategy `ownr` waits at the slowest clock; with one step (figure 3d), `waiting` and
/// `normal` are the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Boost {
    waiting: KiloHertz,
    normal: KiloHertz,
    boosted: KiloHertz,
    costs: Costs,
}

/// What the requests of a [`Boost`] take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// How long the request for the faster clock occupies the core.
    pub request: Picos,
    /// From the end of that request to the faster clock: `wait` less `wrmsr` in the paper's table
    /// 4. The core executes meanwhile.
    pub ramp: Picos,
    /// How long the request for the normal clock occupies the core at the end of the section.
    pub back: Picos,
    /// How long the request for the clock while waiting occupies the core; zero if the thread
    /// waits at the normal clock.
    pub down: Picos,
}

/// Whether a boost of a section pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The section takes no longer with the boost, and the wait hides the request before it.
    Pays,
    /// The section is shorter than [`Boost::shortest`].
    ShortSection,
    /// The wait is shorter than [`Boost::least_wait`].
    ShortWait,
}

/// Clocks that are no boost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no boost: waiting at {waiting}, then {normal} or {boosted}; expected clocks above 0, a normal \
     one that is no slower than the one while waiting, and a boosted one that is faster"
)]
pub struct NoBoost {
    waiting: KiloHertz,
    normal: KiloHertz,
    boosted: KiloHertz,
}

/// The parts of a ramp by which its progress is summed up; an even number.
const PARTS: u32 = 64;

impl Boost {
    /// The boost between these clocks.
    ///
    /// # Errors
    /// [`NoBoost`] unless 0 < `waiting` <= `normal` < `boosted`.
    pub fn new(
        waiting: KiloHertz,
        normal: KiloHertz,
        boosted: KiloHertz,
        costs: Costs,
    ) -> Result<Self, NoBoost> {
        if KiloHertz::from_khz(0) < waiting && waiting <= normal && normal < boosted {
            Ok(Self { waiting, normal, boosted, costs })
        } else {
            Err(NoBoost { waiting, normal, boosted })
        }
    }

    /// The clock that is requested for the section.
    #[must_use]
    pub fn boosted(&self) -> KiloHertz {
        self.boosted
    }

    /// The clock that is requested for the section, divided by that without a boost.
    #[must_use]
    pub fn speedup(&self) -> f64 {
        self.boosted.ghz() / self.normal.ghz()
    }

    /// The length of the shortest section that gains: the time that it takes at the normal clock.
    /// `None` if none gains, because memory stalls it all the time.
    ///
    /// * `stalled`: the part of that time in which the section waits for memory, whatever the
    ///   clock; from 0 to 1.
    ///
    /// # Assumptions
    /// Those of the paper: (1) the section executes the same instructions per cycle at each clock,
    /// but see below; (2) the lock itself costs nothing; (3) the clock rises linearly; (4) a change
    /// to a slower clock takes as long as its request.
    ///
    /// # Derivation
    /// With `f_S`, `f_B` and `f_T` for the clocks while waiting, normal and boosted, a section of
    /// `t` at `f_B` has `t f_B` cycles. With the boost it takes both requests, the ramp, and then
    /// what is left at `f_T`. During the ramp it executes `t_ramp (f_S + f_T) / 2` cycles. That
    /// is no longer than `t` if
    ///
    /// ```text
    /// t >= f_T / (f_T - f_B) (t_request + t_back) + 1/2 (f_T - f_S) / (f_T - f_B) t_ramp
    /// ```
    ///
    /// the paper's formula for `ownr`. With one step, `f_S` is `f_B`, and what remains of the last
    /// term is `t_ramp / 2`, the paper's second formula.
    ///
    /// Without assumption 1, let memory stall the section for `s t` at any clock, evenly over its
    /// instructions. In a unit of time at the clock `f`, it completes
    ///
    /// ```text
    /// r(f) = 1 / ((1 - s) f_B / f + s)
    /// ```
    ///
    /// units of its time at `f_B`. Let `P` be the mean of `r` from `f_S` to `f_T`: it completes
    /// `P t_ramp` during the ramp, and the rest at `r(f_T)`. So it gains if
    ///
    /// ```text
    /// t_request + t_ramp + t_back + (t - P t_ramp) / r(f_T) <= t, or
    /// t >= (t_request + t_back + t_ramp (1 - P / r(f_T))) / (1 - 1 / r(f_T))
    /// ```
    ///
    /// which is the formula above where `s` is 0: there `r(f)` is `f / f_B`.
    ///
    /// All of this has the ramp end before the section does. If a section gains that ends within
    /// the ramp, the result is where `t_request + t_back + x` is what is completed in the first `x`
    /// of the ramp.
    ///
    /// # Cost
    /// Some microseconds; no allocation.
    #[must_use]
    pub fn shortest(&self, stalled: f64) -> Option<Picos> {
        let [waiting, boosted] = [self.waiting, self.boosted].map(KiloHertz::ghz);
        let Costs { request, ramp, back, .. } = self.costs;
        let requests = (request + back).as_f64();
        let ramp = ramp.as_f64();
        // How far the section is behind one at the normal clock after `x` of the ramp.
        let behind = |x: f64| {
            let reached = waiting + (boosted - waiting) * if ramp > 0.0 { x / ramp } else { 1.0 };
            let done = mean(waiting, reached, |ghz| self.progress(ghz, stalled));
            requests + x * (1.0 - done)
        };
        let left = behind(ramp);
        let gain = self.progress(boosted, stalled) - 1.0;
        let length = if left > 0.0 {
            // It catches up at the boosted clock.
            requests + ramp + left / gain
        } else {
            requests + root(behind, ramp)
        };
        // Lengths beyond the range of `Picos` (213 days) count as none.
        (gain > 0.0 && length < Picos::MAX.as_f64()).then(|| Picos::rounded(length))
    }

    /// The shortest wait for the lock for which the clock while waiting is worth its request: the
    /// time that this request occupies the core.
    #[must_use]
    pub fn least_wait(&self) -> Picos {
        self.costs.down
    }

    /// Whether the boost pays for a section of this length at the normal clock, after this wait;
    /// `stalled` as for [`Boost::shortest`].
    #[must_use]
    pub fn verdict(&self, section: Picos, wait: Picos, stalled: f64) -> Verdict {
        if self.shortest(stalled).is_none_or(|shortest| section < shortest) {
            Verdict::ShortSection
        } else if wait < self.least_wait() {
            Verdict::ShortWait
        } else {
            Verdict::Pays
        }
    }

    /// What a section of 1 at the normal clock completes at this clock (GHz) in a time of 1.
    fn progress(&self, ghz: f64, stalled: f64) -> f64 {
        let stalled = stalled.clamp(0.0, 1.0);
        1.0 / ((1.0 - stalled) * self.normal.ghz() / ghz + stalled)
    }
}

/// The mean of a smooth function between two values, by Simpson's rule: exact where it is linear.
fn mean(from: f64, to: f64, of: impl Fn(f64) -> f64) -> f64 {
    let at = |part: u32| of(from + (to - from) * f64::from(part) / f64::from(PARTS));
    let weight = |part: u32| match part {
        0 | PARTS => 1.0,
        _ if part % 2 == 1 => 4.0,
        _ => 2.0,
    };
    let sum: f64 = (0..=PARTS).map(|part| weight(part) * at(part)).sum();
    sum / f64::from(3 * PARTS)
}

/// Where a function that rises at most once, from 0 or more, and falls then, is 0, up to `end`,
/// where it is not above 0.
fn root(of: impl Fn(f64) -> f64, end: f64) -> f64 {
    // Halving the range as often as a number has digits.
    let halves = 0..f64::MANTISSA_DIGITS;
    let (_, high) = halves.fold((0.0, end), |(low, high), _| {
        let middle = f64::midpoint(low, high);
        if of(middle) > 0.0 { (middle, high) } else { (low, middle) }
    });
    high
}

/// A span as cycles of a clock, to the nearest one.
#[must_use]
pub fn cycles(span: Picos, clock: KiloHertz) -> u64 {
    // 1 ps at 1 kHz is 1e-9 cycles.
    nearest(span.as_f64() * clock.khz() as f64 / 1e9)
}

#[cfg(test)]
mod tests;
