//! Evidence about a marked region's code from the clock, which shows the license level. Clients
//! time chains of multiplications right before their regions and right after them. The longer a
//! chain takes, the lower the clock.
//!
//! The clock after a region is compared with the clock before it, or with the highest that the
//! user's clients saw lately, if that is higher: where wide SIMD code is frequent, the clock is
//! low before the region, too ([`Reference`]).

use std::ops::RangeInclusive;

use dimmer_processor::units::LicenseLevel;

use super::evidence::Evidence;

/// The clock is derived from at least this many chains. A guess: one in a few is interrupted on a
/// busy machine.
pub const LEAST_CHAINS: u64 = 16;

/// How long a chain may take on average (ticks): 300 cycles of multiplications (100 of 3 cycles
/// each, on Intel and AMD alike), on a core whose clock is an eighth to eight times that of the
/// counter.
const CHAIN_TICKS: RangeInclusive<f64> = 300.0 / 8.0..=300.0 * 8.0;

/// If a client reports clocks, at least one of this many examined calls comes with its clock. The
/// library reports it for one call in 16: the probability that it reports none is 4e-15.
const LOOKED_AT: u64 = 512;

/// Reports of a region's clients from which nothing was concluded yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingEvidence {
    /// Number of calls that stayed and were examined.
    pub stayed: u64,
    /// Number of these calls that came with the clock.
    pub clocks: u64,
    /// The total time of chains right before these calls (ticks).
    pub before_ticks: u64,
    /// The total time of chains right after these calls (ticks).
    pub after_ticks: u64,
}

/// A conclusion from a region's reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Concluded {
    /// Evidence about the code.
    pub evidence: Evidence,
    /// The mean time of a chain right before the region (ticks), if that is new.
    pub before_ticks: Option<f64>,
    /// Whether no machine can have reported this.
    pub is_lie: bool,
}

impl TimingEvidence {
    /// Adds newer reports.
    pub fn add(&mut self, news: &Self) {
        self.stayed = self.stayed.saturating_add(news.stayed);
        self.clocks = self.clocks.saturating_add(news.clocks);
        self.before_ticks = self.before_ticks.saturating_add(news.before_ticks);
        self.after_ticks = self.after_ticks.saturating_add(news.after_ticks);
    }

    /// Concludes from the reports and clears them. While there are too few, they are kept, and
    /// there is no evidence.
    ///
    /// `levels`: the clocks of L1, L2, ... as parts of the clock at L0. If none is known, or if a
    /// client reports no clock (`dimmer run` for unmodified programs), the region counts as what it
    /// was marked or hooked for: wide SIMD code of unknown width. `reference`:
    /// [`Reference::ticks`].
    pub fn conclude(&mut self, levels: &[f64], reference: Option<f64>) -> Concluded {
        let marked =
            Concluded { evidence: Evidence::Class(LicenseLevel::new(1)), ..Concluded::default() };
        if levels.is_empty() || (self.clocks == 0 && self.stayed >= LOOKED_AT) {
            *self = Self::default();
            return marked;
        }
        if self.clocks < LEAST_CHAINS {
            return Concluded::default();
        }
        let Self { clocks, before_ticks, after_ticks, .. } = std::mem::take(self);
        let [before, after] = [before_ticks, after_ticks].map(|ticks| ticks as f64 / clocks as f64);
        if ![before, after].iter().all(|mean| CHAIN_TICKS.contains(mean)) {
            // A chain that takes too long may have been interrupted; no chain is too short.
            let is_lie = before.min(after) < *CHAIN_TICKS.start();
            return Concluded { is_lie, ..Concluded::default() };
        }
        let ratio = reference.unwrap_or(f64::INFINITY).min(before) / after;
        Concluded { evidence: Evidence::Clock(ratio), before_ticks: Some(before), is_lie: false }
    }
}

/// The clock with which the clock after a region is compared: the highest before any region of a
/// user's clients at the last look. There is one for each user, because one user's reports are no
/// evidence for another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reference {
    last: Option<f64>,
    next: Option<f64>,
}

impl Reference {
    /// Records that a chain took `ticks` before a region of the user.
    pub fn note(&mut self, ticks: f64) {
        self.next = Some(self.next.map_or(ticks, |least| least.min(ticks)));
    }

    /// Ends a look at all clients.
    pub fn turn(&mut self) {
        self.last = self.next.take();
    }

    /// How long a chain takes at that clock (ticks); `None` if no client reported any at the last
    /// look.
    #[must_use]
    pub const fn ticks(&self) -> Option<f64> {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Levels: L1 has nine tenths of the clock.
    const LEVELS: [f64; 1] = [0.9];

    fn told(clocks: u64, before: u64, after: u64) -> TimingEvidence {
        let (before_ticks, after_ticks) = (clocks * before, clocks * after);
        TimingEvidence { stayed: 16 * clocks, clocks, before_ticks, after_ticks }
    }

    #[track_caller]
    fn check(
        mut timing: TimingEvidence,
        levels: &[f64],
        reference: Option<f64>,
        expected: Evidence,
    ) {
        assert_eq!(timing.conclude(levels, reference).evidence, expected);
    }

    #[test]
    fn the_clock_after_is_compared_with_the_highest_before() {
        check(told(16, 200, 250), &LEVELS, None, Evidence::Clock(0.8));
        check(told(16, 250, 250), &LEVELS, None, Evidence::Clock(1.0));
        check(told(16, 250, 250), &LEVELS, Some(200.0), Evidence::Clock(0.8));
        check(told(16, 200, 250), &LEVELS, Some(240.0), Evidence::Clock(0.8));
    }

    #[test]
    fn few_chains_are_kept_until_there_are_enough() {
        let mut chains = told(LEAST_CHAINS - 1, 200, 250);
        assert_eq!(chains.conclude(&LEVELS, None), Concluded::default());
        chains.add(&told(1, 200, 250));
        let concluded = chains.conclude(&LEVELS, None);
        assert_eq!(concluded.evidence, Evidence::Clock(0.8));
        assert_eq!(concluded.before_ticks, Some(200.0));
        assert_eq!(chains, TimingEvidence::default());
    }

    #[test]
    fn without_clocks_to_go_by_a_region_is_what_it_was_marked_for() {
        let marked = Evidence::Class(LicenseLevel::new(1));
        check(told(16, 200, 250), &[], None, marked);
        check(TimingEvidence::default(), &[], None, marked);
        let silent = |stayed| TimingEvidence { stayed, ..TimingEvidence::default() };
        check(silent(LOOKED_AT), &LEVELS, None, marked);
        // A client that reports its clock does not count as silent, however rarely it does.
        check(silent(LOOKED_AT - 1), &LEVELS, None, Evidence::None);
        check(
            TimingEvidence { stayed: LOOKED_AT, ..told(1, 200, 250) },
            &LEVELS,
            None,
            Evidence::None,
        );
    }

    #[test]
    fn what_no_clock_can_be_is_no_evidence() {
        for (before, after, is_lie) in
            [(1, 250, true), (250, 0, true), (1_000_000, 250, false), (250, 1_000_000, false)]
        {
            let concluded = told(16, before, after).conclude(&LEVELS, None);
            assert_eq!(concluded, Concluded { is_lie, ..Concluded::default() });
        }
        let mut most =
            TimingEvidence { clocks: u64::MAX, stayed: 1, before_ticks: u64::MAX, after_ticks: 1 };
        most.add(&most.clone());
        assert!(most.conclude(&LEVELS, None).is_lie);
    }

    #[test]
    fn the_reference_is_of_the_last_look_alone() {
        let mut reference = Reference::default();
        reference.note(250.0);
        reference.note(200.0);
        reference.note(220.0);
        assert_eq!(reference.ticks(), None);
        reference.turn();
        assert_eq!(reference.ticks(), Some(200.0));
        reference.note(240.0);
        reference.turn();
        assert_eq!(reference.ticks(), Some(240.0));
        reference.turn();
        assert_eq!(reference.ticks(), None);
    }
}
