//! Gaps between bursts of code that asks for a license level, core by core.

use dimmer_policy::license::hardware::Rules;
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
    /// Time in them (s).
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
    wide: Vec<usize>,
    /// When the present burst started, or the last one ended.
    since: Option<Moment>,
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
        if self.rules.level_of(&segment.demand()) == LicenseLevel::new(0) {
            return self.stops(now, core, thread);
        }
        let Some(Core { wide, since }) = self.cores.get_mut(core) else { return };
        if wide.contains(&thread) {
            return;
        }
        wide.push(thread);
        if wide.len() > 1 {
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

    /// A thread no longer runs such code on a core.
    pub(super) fn stops(&mut self, now: Moment, core: usize, thread: usize) {
        let Some(Core { wide, since }) = self.cores.get_mut(core) else { return };
        let before = wide.len();
        wide.retain(|of| *of != thread);
        if before > 0 && wide.is_empty() {
            let began = since.replace(now).unwrap_or(now);
            self.wide_ns += (now - began).ps() as f64 / 1000.0;
        }
    }

    /// What was seen until the end.
    pub(super) fn bursts(mut self, end: Moment) -> Bursts {
        for core in 0..self.cores.len() {
            for thread in self.cores[core].wide.clone() {
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
}
