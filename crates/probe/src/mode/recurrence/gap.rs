//! One gap: series of bursts between series of scalar stand-ins.

use std::sync::Arc;
use std::time::Duration;

use super::keeping::{Alone, FullSpeed, Keeping};
use crate::detection::SMALLEST_COST_NS;
use crate::kernel::{self, Kernel};
use crate::lab::{Deadline, Lab, ModeError};
use crate::outcome::Gap;
use crate::program::{Program, Trace, Work};
use crate::stats::{Estimate, Samples, floor_index};

/// Time for which bursts recur before they count (ns): enough for gaps up to 180 us on Emerald
/// Rapids. Close to the change it was seen to take up to 18 ms; shares there are too low.
const LEARNING_NS: f64 = 12e6;

/// Scalar work that is measured in one series (ns): several times the milliseconds between
/// relapses.
const MEASURED_NS: f64 = 10e6;

/// The same, in a quick probe (ns).
const QUICK_MEASURED_NS: f64 = 4e6;

/// Gaps above this get few repetitions (us).
pub(super) const LONG_GAP_US: f64 = 1500.0;

/// Gaps above this get the fewest repetitions (us).
const VERY_LONG_GAP_US: f64 = 20_000.0;

/// Share of the mode's time for one gap.
const SHARE_OF_TIME: f64 = 0.04;

/// Time limit for one gap, unless the minimum number of repetitions takes longer.
const LONGEST: Duration = Duration::from_secs(3);

/// Precision of the slow-down at which a measurement ends: standard error (%).
const PRECISION_PCT: f64 = 0.15;

/// Gaps above this are long compared with an episode (us): if most of their issue windows are slow,
/// the burst is not the reason.
const EPISODE_US: f64 = 40.0;

/// Ratio to nominal below which the clock at the end of a gap counts as lowered.
const LOWERED: f64 = 0.996;

/// The burst that recurs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    pub(super) instructions: u32,
    /// Time after which every trace of bursts is gone (ns).
    pub(super) settle_ns: f64,
    /// Duration at full speed (ns).
    pub(super) full_speed_ns: f64,
}

/// A program for one gap: stand-ins, bursts, stand-ins, so that drift cancels.
pub(super) struct Series {
    program: Program,
    /// Scalar work in a gap: number of pairs of clock and issue windows.
    pairs: usize,
    /// First windows of stand-ins, bursts and stand-ins.
    firsts: [usize; 3],
    /// The stand-ins that count.
    base: std::ops::Range<usize>,
    /// The bursts that count.
    own: std::ops::Range<usize>,
    expected_ns: f64,
}

impl Series {
    pub(super) fn new(lab: &Lab<'_>, burst: Burst, gap_us: f64) -> Self {
        let pairs = lab.calibration.pairs(gap_us * 1000.0).max(2);
        let period_ns = gap_us * 1000.0 + burst.full_speed_ns;
        let gaps_in = |ns: f64| floor_index((ns / period_ns).ceil());
        let measured = gaps_in(if lab.is_quick() { QUICK_MEASURED_NS } else { MEASURED_NS }).max(2);
        let (settle, learn) = (gaps_in(burst.settle_ns), gaps_in(LEARNING_NS));
        let (base, own) = (settle..settle + measured, learn..learn + 2 * measured);
        let mut program = Program::default();
        let mut push = |kernel: &Arc<Kernel>, cycles: usize| {
            let mut works = vec![Work::burst(kernel, burst.instructions)];
            works.extend(std::iter::repeat_n(lab.calibration.pair(), pairs).flatten());
            program.push(&works, cycles)
        };
        let stand_in = Arc::new(kernel::stand_in());
        let firsts =
            [push(&stand_in, base.end), push(&lab.kernel, own.end), push(&stand_in, base.end)];
        let cycles = (2 * base.end + own.end) as f64;
        let expected_ns = cycles * pairs as f64 * lab.calibration.pair_ns;
        Self { program, pairs, firsts, base, own, expected_ns }
    }

    pub(super) fn run(&self, lab: &mut Lab<'_>) -> Result<Run, ModeError> {
        let (trace, _) = lab.run(&self.program, None, self.expected_ns)?;
        let [before, bursts, after] = self.firsts;
        let cut = |first, range| Scalar::cut(lab, &trace, first, self.pairs, range);
        let base = [before, after].map(|first| cut(first, self.base.clone()));
        let own = cut(bursts, self.own.clone());
        let pair_ns = (base[0].pair_ns + base[1].pair_ns) / 2.0;
        let clock_ns = (base[0].clock_end_ns + base[1].clock_end_ns) / 2.0;
        let all = (0..self.own.end).map(|cycle| bursts + cycle * (1 + 2 * self.pairs));
        // Not from the calibration: the clock and other hardware threads may have changed since.
        let gap_us = self.pairs as f64 * pair_ns / 1000.0;
        let company = (gap_us > EPISODE_US).then_some(own.issue);
        let mut base_stalls = Stalls::default();
        let disturbed = own.disturbed + base.iter().map(|one| one.disturbed).sum::<usize>();
        base.iter().for_each(|one| base_stalls.add(&one.stalls));
        Ok(Run {
            gap_us,
            slower_pct: (own.pair_ns / pair_ns - 1.0) * 100.0,
            clock_ratio: clock_ns / own.clock_end_ns,
            bursts: all.map(|window| Timed::of(lab, &trace, bursts, window)).collect(),
            stand_ins: self.stand_ins(lab, &trace),
            learn: self.own.start,
            stalls: own.stalls,
            base_stalls,
            issue: company.into_iter().fold(base[0].issue.max(base[1].issue), f64::max),
            disturbed,
            preemptions: trace.preemptions,
        })
    }

    /// The stand-ins before the bursts, in the order of time.
    fn stand_ins(&self, lab: &Lab<'_>, trace: &Trace) -> Vec<Timed> {
        let first = self.firsts[0];
        let windows = (0..self.base.end).map(|cycle| first + cycle * (1 + 2 * self.pairs));
        windows.map(|window| Timed::of(lab, trace, first, window)).collect()
    }
}

/// Result of one run.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// Scalar work between two bursts, as the time that it takes between stand-ins (us).
    pub(super) gap_us: f64,
    /// Slow-down of the scalar work, without stalls (%).
    slower_pct: f64,
    /// Clock at the end of the gap over that of the stand-ins.
    pub(super) clock_ratio: f64,
    /// All bursts, in the order of time.
    pub(super) bursts: Vec<Timed>,
    /// The stand-ins before them.
    pub(super) stand_ins: Vec<Timed>,
    /// Number of bursts that fill the memory and do not count.
    pub(super) learn: usize,
    stalls: Stalls,
    base_stalls: Stalls,
    /// Ratio of issue windows to clock windows, between stand-ins and in long gaps. It is larger
    /// while another hardware thread of the core is busy.
    pub(super) issue: f64,
    disturbed: usize,
    preemptions: u64,
}

/// One burst of a series.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    /// Start, after the first burst of the series (ns).
    pub(super) at_ns: f64,
    /// Duration without the time stamp (ns); NaN if interrupted.
    pub(super) ns: f64,
}

impl Timed {
    fn of(lab: &Lab<'_>, trace: &Trace, first: usize, window: usize) -> Self {
        let since = trace.stamps[window].ticks().saturating_sub(trace.stamps[first].ticks());
        let ns = lab.calibration.ns(trace.ticks(window)) - lab.calibration.instrument.overhead_ns;
        Self {
            at_ns: lab.calibration.ns(since),
            ns: if trace.interrupted(window) { f64::NAN } else { ns },
        }
    }
}

/// Measures all gaps in turn, because other code on the core may keep licenses for seconds. Each
/// gap is measured until its slow-down is precise or the time is used up.
pub(super) fn sweep(
    lab: &mut Lab<'_>,
    burst: Burst,
    gaps_us: &[f64],
) -> Result<Vec<Vec<Run>>, ModeError> {
    let series: Vec<Series> = gaps_us.iter().map(|gap| Series::new(lab, burst, *gap)).collect();
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); gaps_us.len()];
    // A fair share of the time for each gap, and always a few repetitions.
    let gaps = gaps_us.len() as f64;
    let deadline = lab.deadline(SHARE_OF_TIME * gaps, LONGEST.mul_f64(gaps));
    loop {
        let mut is_over = true;
        for ((series, runs), gap_us) in series.iter().zip(&mut runs).zip(gaps_us) {
            if !is_enough(lab, runs, *gap_us, deadline) {
                runs.push(series.run(lab)?);
                is_over = false;
            }
        }
        if is_over {
            return Ok(runs);
        }
    }
}

fn is_enough(lab: &Lab<'_>, runs: &[Run], gap_us: f64, deadline: Deadline) -> bool {
    let (least, most) = match (lab.is_quick(), gap_us > LONG_GAP_US) {
        (true, true) => (4, 4),
        (true, false) => (8, 20),
        (false, true) if gap_us > VERY_LONG_GAP_US => (2, 5),
        (false, true) => (4, 10),
        (false, false) => (30, lab.settings.repetitions.max(30)),
    };
    let n = runs.len();
    let is_precise = || {
        let centre = runs.iter().map(|run| run.slower_pct).collect::<Samples>().centre();
        centre.is_some_and(|(_, error)| error < PRECISION_PCT)
    };
    n >= most || n >= least.min(4) && deadline.is_over(lab) || n >= least && is_precise()
}

/// Result of the runs of one gap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observed {
    pub(super) gap: Gap,
    /// Whether scalar work is slower at this gap.
    pub(super) has_effect: bool,
    pub(super) disturbed: usize,
    pub(super) stolen: usize,
    pub(super) preemptions: u64,
    pub(super) repetitions: usize,
}

impl Observed {
    /// `alone` is the criterion for runs in which no other program's wide code can have kept the
    /// license.
    pub(super) fn of(runs: &[Run], full_speed: Option<FullSpeed>, alone: Alone) -> Self {
        let gap_us = runs.iter().map(|run| run.gap_us).sum::<f64>() / runs.len() as f64;
        let keeping = full_speed.and_then(|full_speed| Keeping::of(runs, full_speed, alone));
        let (mut stalls, mut base_stalls) = (Stalls::default(), Stalls::default());
        for run in runs {
            stalls.add(&run.stalls);
            base_stalls.add(&run.base_stalls);
        }
        let (stall_share, stall_ns) = stalls.beyond(&base_stalls);
        let stalls_pct = stall_share * stall_ns / (gap_us * 1000.0) * 100.0;
        let nothing = Estimate { median: f64::NAN, ci95: (f64::NAN, f64::NAN) };
        let slower: Samples = runs.iter().map(|run| run.slower_pct + stalls_pct).collect();
        // The slow-down must be far larger than the error, larger than the smallest clock step, and
        // larger than the cost of a change of code. The error of few runs may be small by chance;
        // the interval is not.
        let is_above = mean(&slower).is_some_and(|mean| mean.ci95.0 > 0.0);
        let stands_out =
            is_above && slower.centre().is_some_and(|(mean, error)| mean > 4.5 * error);
        let is_slow = stands_out
            && slower.quantile(0.5).is_some_and(|pct| cost_ns(gap_us, pct) > least_ns(gap_us));
        let learned = runs.iter().flat_map(|run| run.bursts.get(run.learn..).unwrap_or_default());
        let burst_ns: Samples = learned.map(|burst| burst.ns).collect();
        let ratios: Samples = runs.iter().map(|run| run.clock_ratio).collect();
        Self {
            gap: Gap {
                gap_us,
                slowdown_pct: mean(&slower).unwrap_or(nothing),
                stall_share,
                burst_ns: burst_ns.estimate().unwrap_or(nothing),
                kept_share: keeping.map(|keeping| keeping.share),
                kept_after_ms: keeping.and_then(|keeping| keeping.after_ns).map(|ns| ns / 1e6),
                clock_ratio: ratios.trimmed_mean(0.05).unwrap_or(f64::NAN),
            },
            has_effect: is_slow || stall_share > 0.0,
            disturbed: runs.iter().map(|run| run.disturbed).sum(),
            stolen: base_stalls.lengths_ns.len(),
            preemptions: runs.iter().map(|run| run.preemptions).sum(),
            repetitions: runs.len(),
        }
    }
}

/// What a slow-down costs in one gap (ns).
fn cost_ns(gap_us: f64, slowdown_pct: f64) -> f64 {
    slowdown_pct / 100.0 * gap_us * 1000.0
}

/// The smallest cost that counts as an effect in one gap (ns).
fn least_ns(gap_us: f64) -> f64 {
    SMALLEST_COST_NS.max(cost_ns(gap_us, (1.0 / LOWERED - 1.0) * 100.0))
}

/// The largest cost that bursts may have in one such gap, or have unseen, at 95 % (ns); `None` if
/// the gap was not measured.
pub(super) fn bound_ns(gap: &Gap) -> Option<f64> {
    let bound = cost_ns(gap.gap_us, gap.slowdown_pct.bound());
    bound.is_finite().then(|| bound.max(least_ns(gap.gap_us)))
}

/// Mean and its interval. Where the clock wanders, single slow-downs are of several kinds, and the
/// median would jump between them.
fn mean(samples: &Samples) -> Option<Estimate> {
    let (mean, half) = samples.mean95()?;
    Some(Estimate { median: mean, ci95: (mean - half, mean + half) })
}

/// Stalls in gaps.
#[derive(Clone, Debug, Default)]
struct Stalls {
    /// Number of gaps with a stall.
    stalled: usize,
    /// Number of all gaps.
    gaps: usize,
    lengths_ns: Vec<f64>,
}

impl Stalls {
    fn add(&mut self, other: &Self) {
        self.stalled += other.stalled;
        self.gaps += other.gaps;
        self.lengths_ns.extend(&other.lengths_ns);
    }

    /// Share of gaps with a stall of their own, and the stalls' length (ns). Chance stalls, whose
    /// share is that of `baseline`, may fall into the same gaps. Zeros if the difference may be
    /// chance (4.5 binomial errors) or is rare (less than one gap in twenty).
    fn beyond(&self, baseline: &Self) -> (f64, f64) {
        // Half a count more on each side keeps the errors of none and of all above zero.
        let share = |s: &Self| (s.stalled as f64 + 0.5) / (s.gaps as f64 + 1.0);
        let variance = |s: &Self| share(s) * (1.0 - share(s)) / (s.gaps as f64 + 1.0);
        let error = (variance(self) + variance(baseline)).sqrt();
        let beyond = share(self) - share(baseline);
        if beyond < 0.05 || beyond < 4.5 * error {
            return (0.0, 0.0);
        }
        let lengths: Samples = self.lengths_ns.iter().copied().collect();
        let own = (beyond / (1.0 - share(baseline))).min(1.0);
        (own, lengths.quantile(0.5).unwrap_or(0.0))
    }
}

/// The scalar work in the gaps of one third of a program.
#[derive(Debug)]
struct Scalar {
    /// Mean time of an undisturbed pair (ns).
    pair_ns: f64,
    /// Mean time of the clock windows at the end of the gaps (ns).
    clock_end_ns: f64,
    /// Upper quartile of issue windows over clock windows.
    issue: f64,
    stalls: Stalls,
    disturbed: usize,
}

impl Scalar {
    fn cut(
        lab: &Lab<'_>,
        trace: &Trace,
        first: usize,
        pairs: usize,
        cycles: std::ops::Range<usize>,
    ) -> Self {
        let width = 1 + 2 * pairs;
        let ns = |window: usize| lab.calibration.ns(trace.ticks(window));
        let typical = lab.calibration.pair_ns;
        let (mut sum, mut count) = (0.0, 0.0);
        let (mut end_sum, mut end_count) = (0.0, 0.0);
        let mut issues = Vec::new();
        let mut stalls_ns = Vec::new();
        let (mut disturbed, mut stalled_gaps) = (0, 0);
        let n_gaps = cycles.len();
        for cycle in cycles {
            let burst = first + cycle * width;
            let mut stalled = false;
            for pair in 0..pairs {
                let window = burst + 1 + 2 * pair;
                if trace.interrupted(window) || trace.interrupted(window + 1) {
                    disturbed += 1;
                    continue;
                }
                let taken = ns(window) + ns(window + 1);
                if taken > 2.0 * typical {
                    stalled = true;
                    stalls_ns.push(taken - typical);
                    continue;
                }
                sum += taken;
                count += 1.0;
                issues.push(ns(window + 1) / ns(window));
                if 4 * pair >= 3 * pairs || pair + 1 == pairs {
                    end_sum += ns(window);
                    end_count += 1.0;
                }
            }
            stalled_gaps += usize::from(stalled);
        }
        Self {
            pair_ns: sum / count,
            clock_end_ns: end_sum / end_count,
            issue: Samples::new(issues).quantile(0.75).unwrap_or(f64::NAN),
            stalls: Stalls { stalled: stalled_gaps, gaps: n_gaps, lengths_ns: stalls_ns },
            disturbed,
        }
    }
}

/// A run in which only the bursts matter.
#[cfg(test)]
pub(super) fn run_of(bursts: Vec<Timed>, learn: usize) -> Run {
    Run {
        gap_us: 1.0,
        slower_pct: 0.0,
        clock_ratio: 1.0,
        bursts,
        stand_ins: vec![Timed { at_ns: 0.0, ns: 60.0 }; 2],
        learn,
        stalls: Stalls::default(),
        base_stalls: Stalls::default(),
        issue: 1.0,
        disturbed: 0,
        preemptions: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(gap_us: f64, half_pct: f64) -> Gap {
        let of = |median: f64, half: f64| Estimate { median, ci95: (median - half, median + half) };
        Gap {
            gap_us,
            slowdown_pct: of(0.1, half_pct),
            stall_share: 0.0,
            burst_ns: of(100.0, 1.0),
            kept_share: None,
            kept_after_ms: None,
            clock_ratio: 1.0,
        }
    }

    #[test]
    fn a_bound_is_never_below_what_counts_as_an_effect() {
        assert_eq!(bound_ns(&gap(1.0, 0.2)), Some(20.0));
        assert_eq!(bound_ns(&gap(1.0, 3.9)), Some(40.0));
        let long = bound_ns(&gap(1000.0, 0.05)).unwrap();
        assert!((long - 4016.0).abs() < 1.0, "{long}");
        assert_eq!(bound_ns(&gap(1.0, f64::NAN)), None);
    }
}
