//! Wide code, core by core: the time in it, and gaps between bursts that ask for a license level.

use dimmer_policy::license::hardware::Rules;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::units::LicenseLevel;
use dimmer_sim::{Moment, Segment};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest gap that has a bucket of its own (ns): a minute. Longer ones share the last bucket.
const LONGEST_NS: u64 = 60_000_000_000;

/// Bursts of code that asks for a level on a core, and the gaps between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bursts {
    /// Bursts on all cores.
    pub count: u64,
    /// Time of all cores in code of more than 128 bits, whether or not it asks for a level (s).
    pub wide_s: f64,
    /// The median gap from a burst's end to the next one's start on the core (µs); `None` without
    /// a second burst on any.
    pub gap_us: Option<f64>,
    /// The part of the gaps that are shorter than the level is held; `None` if the model does not
    /// say how long that is, or there are no gaps.
    pub kept: Option<f64>,
}

/// Sees what cores run.
pub(super) struct Gaps {
    rules: Rules,
    hold_ns: Option<f64>,
    cores: Vec<Core>,
    gaps: Histogram<u64>,
    count: u64,
    wide_ns: f64,
}

/// A core.
#[derive(Clone, Default)]
struct Core {
    /// Threads on it whose code asks for a level.
    asking: Vec<usize>,
    /// When the present burst started, or the last one ended.
    since: Option<Moment>,
    /// Threads on it whose code is of more than 128 bits.
    wide: Vec<usize>,
    /// When the first of these started.
    wide_since: Moment,
}

impl Gaps {
    pub(super) fn of(rules: Rules, cores: u32, hold_ns: Option<f64>) -> Self {
        let cores = usize::try_from(cores).unwrap_or(usize::MAX);
        let gaps = Histogram::new_with_bounds(1, LONGEST_NS, 3);
        let gaps = gaps.unwrap_or_else(|_| unreachable!("these bounds are accepted"));
        let cores = vec![Core::default(); cores];
        Self { rules, hold_ns, cores, gaps, count: 0, wide_ns: 0.0 }
    }

    /// A thread starts a segment on a core, or resumes it.
    pub(super) fn runs(&mut self, now: Moment, core: usize, thread: usize, segment: &Segment) {
        self.count_wide(now, core, thread, segment.class > InstructionClass::Heavy128);
        if self.rules.level_of(&segment.demand()) == LicenseLevel::new(0) {
            return self.end_burst(now, core, thread);
        }
        let Some(Core { asking, since, .. }) = self.cores.get_mut(core) else { return };
        if asking.contains(&thread) {
            return;
        }
        asking.push(thread);
        if asking.len() > 1 {
            return;
        }
        if let Some(ended) = since.replace(now) {
            let gap = (now - ended).ps() / 1000;
            // Code that follows at once belongs to the same burst.
            if gap == 0 {
                return;
            }
            self.gaps.saturating_record(gap);
        }
        self.count += 1;
    }

    /// A thread no longer runs on a core.
    pub(super) fn stops(&mut self, now: Moment, core: usize, thread: usize) {
        self.count_wide(now, core, thread, false);
        self.end_burst(now, core, thread);
    }

    /// A thread no longer runs code that asks for a level on a core.
    fn end_burst(&mut self, now: Moment, core: usize, thread: usize) {
        let Some(Core { asking, since, .. }) = self.cores.get_mut(core) else { return };
        let before = asking.len();
        asking.retain(|of| *of != thread);
        if before > 0 && asking.is_empty() {
            *since = Some(now);
        }
    }

    /// Counts the time in which a core runs wide code. From now on a thread on it does, or does
    /// not.
    fn count_wide(&mut self, now: Moment, core: usize, thread: usize, is_wide: bool) {
        let Some(Core { wide, wide_since, .. }) = self.cores.get_mut(core) else { return };
        let before = wide.len();
        wide.retain(|of| *of != thread);
        wide.extend(is_wide.then_some(thread));
        match (before, wide.len()) {
            (0, 1..) => *wide_since = now,
            (1.., 0) => self.wide_ns += (now - *wide_since).ps() as f64 / 1000.0,
            _ => {}
        }
    }

    /// What was seen until the end.
    pub(super) fn bursts(mut self, end: Moment) -> Bursts {
        for core in 0..self.cores.len() {
            let Core { asking, wide, .. } = &self.cores[core];
            for thread in [&asking[..], &wide[..]].concat() {
                self.stops(end, core, thread);
            }
        }
        let seen = !self.gaps.is_empty();
        let kept = |hold: f64| {
            let hold = dimmer_processor::units::whole(hold);
            self.gaps.count_between(0, hold.saturating_sub(1)) as f64 / self.gaps.len() as f64
        };
        Bursts {
            count: self.count,
            wide_s: self.wide_ns / 1e9,
            gap_us: seen.then(|| self.gaps.value_at_quantile(0.5) as f64 / 1e3),
            kept: self.hold_ns.filter(|_| seen).map(kept),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dimmer_processor::model::{Model, builtin};

    use super::*;

    /// Bursts of 512-bit code on one core: pairs of start and end (µs).
    #[track_caller]
    fn check(bursts: &[(u64, u64)], expected: (u64, Option<f64>, Option<f64>)) {
        let text = builtin("i9-7940x").unwrap();
        let model = Model::parse(Path::new("model"), text).unwrap();
        let rules = Rules::new(&model).unwrap();
        let mut gaps = Gaps::of(rules, 1, Some(664_000.0));
        let at = |us: u64| Moment::from_ps(us * 1_000_000);
        for (start, end) in bursts {
            gaps.runs(at(*start), 0, 7, &Segment::FMA_512);
            gaps.runs(at(*end), 0, 7, &Segment::SCALAR);
        }
        let found = gaps.bursts(at(10_000));
        assert_eq!((found.count, found.gap_us.map(f64::round), found.kept), expected);
        let wide: u64 = bursts.iter().map(|(start, end)| end - start).sum();
        assert!((found.wide_s * 1e6 - wide as f64).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn gaps_run_from_the_end_of_a_burst_to_the_next_start() {
        check(&[(0, 10), (100, 110), (200, 210)], (3, Some(90.0), Some(1.0)));
        check(
            &[(0, 10), (100, 110), (1000, 1010), (2000, 2010)],
            (4, Some(890.0), Some(1.0 / 3.0)),
        );
        check(&[(5, 10)], (1, None, None));
        check(&[], (0, None, None));
        // The second follows at once.
        check(&[(0, 10), (10, 20)], (1, None, None));
    }

    /// A Zen 5 has no license levels.
    #[test]
    fn wide_code_counts_where_it_asks_for_no_level() {
        let model = Model::parse(Path::new("model"), builtin("zen-5").unwrap()).unwrap();
        let mut gaps = Gaps::of(Rules::new(&model).unwrap(), 2, None);
        let at = |us: u64| Moment::from_ps(us * 1_000_000);
        // Two threads of a core together, and one of another core until the end.
        gaps.runs(at(10), 0, 1, &Segment::FMA_512);
        gaps.runs(at(20), 0, 2, &Segment::FMA_512);
        gaps.runs(at(30), 0, 1, &Segment::SCALAR);
        gaps.stops(at(40), 0, 2);
        gaps.runs(at(50), 1, 3, &Segment::FMA_512);
        let found = gaps.bursts(at(100));
        assert_eq!(found.count, 0);
        assert!((found.wide_s * 1e6 - 80.0).abs() < 1e-6, "{found:?}");
    }
}
