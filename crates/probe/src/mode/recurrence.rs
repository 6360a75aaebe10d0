//! Bursts at regular gaps: what happens between isolated episodes and a steady state.
//!
//! A governor with a memory may keep a licence while bursts recur, and give it back between them
//! only from some gap on. At every gap the scalar work between bursts is compared with the same
//! work between scalar stand-ins. Where clock or burst time change from one kind to the other is
//! then narrowed down by bisection.

use std::sync::Arc;
use std::time::Duration;

use super::Mode;
use crate::kernel::{self, Kernel};
use crate::lab::{Lab, ModeError};
use crate::outcome::{Detail, Gap, Outcome, Recurrence};
use crate::program::{Program, Trace, Work};
use crate::response::SMALLEST_COST_NS;
use crate::stats::{Estimate, Samples, floor_index};

/// Gaps of a full sweep (us).
const GAPS_US: [f64; 16] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 400.0, 700.0, 1000.0, 2000.0, 5000.0, 10_000.0,
    30_000.0, 100_000.0,
];

/// Gaps of a quick sweep (us).
const QUICK_GAPS_US: [f64; 10] =
    [1.0, 3.0, 10.0, 30.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0];

/// Scalar work in one program, if cycles are short (ns).
const PROGRAM_NS: f64 = 6e6;

/// The clock at the end of a gap counts as lowered below this.
const LOWERED: f64 = 0.996;

/// How much longer than at the shortest gap a burst must take to count as throttled anew. After a
/// long gap it also has to fetch its code again, which was seen to cost up to half its time.
const THROTTLED: f64 = 2.0;

/// How close the bisection brackets the change: ratio of its two ends.
const BRACKET: f64 = 1.03;

/// What one gap gave, before it is an outcome.
#[derive(Clone, Debug)]
struct Observed {
    gap: Gap,
    /// Whether scalar work is slower at this gap.
    has_effect: bool,
    disturbed: usize,
    stolen: usize,
    preemptions: u64,
    repetitions: usize,
}

/// Measures bursts of `instructions` at all gaps.
pub(crate) fn measure(lab: &mut Lab<'_>, instructions: u32) -> Result<Outcome, ModeError> {
    let gaps_us: &[f64] = if lab.is_quick() { &QUICK_GAPS_US } else { &GAPS_US };
    let deadline = lab.deadline(1.0, Duration::from_secs(90));
    let mut observed = Vec::new();
    for &gap_us in gaps_us {
        observed.push(observe(lab, instructions, gap_us)?);
    }
    let signal = Signal::of(&observed);
    let effect = observed.iter().any(|one| one.has_effect);
    let mut bracket =
        signal.as_ref().filter(|_| effect).and_then(|signal| signal.bracket(&observed));
    while let (Some(signal), Some((low, high))) = (&signal, bracket) {
        if high / low < BRACKET || deadline.is_over() {
            break;
        }
        let middle = observe(lab, instructions, (low * high).sqrt())?;
        let at = middle.gap.gap_us;
        bracket = Some(if signal.is_kept(&middle.gap) { (at, high) } else { (low, at) });
        observed.push(middle);
    }
    observed.sort_by(|a, b| a.gap.gap_us.total_cmp(&b.gap.gap_us));
    let gaps: Vec<Gap> = observed.iter().map(|one| one.gap).collect();
    let cost_ns = |gap: &Gap, slowdown_pct: f64| slowdown_pct / 100.0 * gap.gap_us * 1000.0;
    let near = gaps.iter().filter(|gap| gap.gap_us <= 1000.0);
    let bound_ns =
        near.map(|gap| cost_ns(gap, gap.slowdown_pct.bound())).fold(f64::INFINITY, f64::min);
    let regime_change_us =
        bracket.map(|(low, high)| Estimate { median: (low * high).sqrt(), ci95: (low, high) });
    let detail = Recurrence {
        burst_instructions: instructions,
        regime: match (&signal, regime_change_us) {
            (Some(signal), Some(_)) => signal.words().to_owned(),
            _ => "all gaps behave alike".to_owned(),
        },
        regime_change_us,
        gaps,
    };
    Ok(Outcome {
        repetitions: observed.iter().map(|one| one.repetitions).sum(),
        disturbed_windows: observed.iter().map(|one| one.disturbed).sum(),
        stolen_windows: observed.iter().map(|one| one.stolen).sum(),
        preemptions: observed.iter().map(|one| one.preemptions).sum(),
        effect,
        bound_ns,
        horizon_ns: gaps_us.last().copied().unwrap_or(0.0) * 1000.0,
        ..lab.outcome(Mode::Recurrence, Detail::Recurrence(detail))
    })
}

/// What tells one regime from the other.
#[derive(Clone, Copy, Debug)]
enum Signal {
    /// The clock just before the next burst: lowered while the licence is kept.
    Clock {
        /// Half way between the two.
        threshold: f64,
    },
    /// The burst's duration (ns): throttled when the licence was given back.
    Burst {
        /// Half way between the two, logarithmically.
        threshold: f64,
    },
}

impl Signal {
    /// The signal that differs between the shortest and the longest gaps; `None` if none does.
    fn of(observed: &[Observed]) -> Option<Self> {
        let (first, last) = (&observed.first()?.gap, &observed.last()?.gap);
        // The shortest gaps may be too short for the clock to show; the lowest of all counts.
        let lowest = observed.iter().map(|one| one.gap.clock_ratio).fold(f64::INFINITY, f64::min);
        if lowest < LOWERED && last.clock_ratio > LOWERED && last.clock_ratio - lowest > 0.004 {
            return Some(Self::Clock { threshold: (lowest + last.clock_ratio) / 2.0 });
        }
        let (warm, cold) = (first.burst_ns.median, last.burst_ns.median);
        let apart = first.burst_ns.ci95.1 < last.burst_ns.ci95.0;
        (apart && cold > THROTTLED * warm).then(|| Self::Burst { threshold: (warm * cold).sqrt() })
    }

    /// Whether the licence is kept over this gap.
    fn is_kept(self, gap: &Gap) -> bool {
        match self {
            Self::Clock { threshold } => gap.clock_ratio < threshold,
            Self::Burst { threshold } => gap.burst_ns.median < threshold,
        }
    }

    /// The last gap over which the licence is kept and the one after it; `None` if it is kept over
    /// none or over all.
    fn bracket(self, observed: &[Observed]) -> Option<(f64, f64)> {
        let kept = observed.iter().rposition(|one| self.is_kept(&one.gap))?;
        let next = observed.get(kept + 1)?;
        Some((observed[kept].gap.gap_us, next.gap.gap_us))
    }

    fn words(self) -> &'static str {
        match self {
            Self::Clock { .. } => {
                "below this gap the lowered clock lasts until the next burst; above it the \
                 nominal clock returns in between"
            }
            Self::Burst { .. } => {
                "below this gap bursts run at full speed; above it each is throttled anew"
            }
        }
    }
}

/// Measures one gap: baseline, bursts, bursts, baseline, so that drift cancels.
fn observe(lab: &mut Lab<'_>, instructions: u32, gap_us: f64) -> Result<Observed, ModeError> {
    let repetitions = match (lab.is_quick(), gap_us > 1500.0) {
        (true, true) => 4,
        (true, false) => 8,
        (false, true) if gap_us > 20_000.0 => 5,
        (false, true) => 10,
        (false, false) => 30,
    };
    let pairs = lab.calibration.pairs(gap_us * 1000.0).max(2);
    let least = if lab.is_quick() { 4 } else { 6 };
    let cycles = floor_index(PROGRAM_NS / (gap_us * 1000.0)).clamp(least, 1500);
    let settle = cycles / 3;
    let stand_in = Arc::new(kernel::stand_in());
    let wide = Arc::clone(&lab.kernel);
    let mut program = Program::default();
    let mut series = |kernel: &Arc<Kernel>, cycles: usize| {
        let mut works = vec![Work::burst(kernel, instructions)];
        works.extend(std::iter::repeat_n(lab.calibration.pair(), pairs).flatten());
        program.push(&works, cycles)
    };
    let before = series(&stand_in, cycles);
    let bursts = series(&wide, 2 * cycles);
    let after = series(&stand_in, cycles);
    let expected_ns = 5.0 * cycles as f64 * pairs as f64 * lab.calibration.pair_ns;
    let (mut slowdowns, mut ratios, mut burst_times) = (Vec::new(), Vec::new(), Vec::new());
    let (mut base_stalls, mut own_stalls) = (Stalls::default(), Stalls::default());
    let (mut disturbed, mut preemptions) = (0, 0);
    // A fair share of the time for each gap; four repetitions in any case.
    let deadline = lab.deadline(0.06, Duration::from_secs(20));
    for repetition in 0..repetitions {
        if repetition >= 4 && deadline.is_over() {
            break;
        }
        let (trace, _) = lab.run(&program, None, expected_ns)?;
        preemptions += trace.preemptions;
        let cut = |first, range| Series::cut(lab, &trace, first, pairs, range);
        let base = [cut(before, settle..cycles), cut(after, settle..cycles)];
        let own = cut(bursts, settle..2 * cycles);
        disturbed += own.disturbed + base.iter().map(|series| series.disturbed).sum::<usize>();
        let base_pair_ns = (base[0].pair_ns + base[1].pair_ns) / 2.0;
        let base_clock_ns = (base[0].clock_end_ns + base[1].clock_end_ns) / 2.0;
        slowdowns.push((own.pair_ns / base_pair_ns - 1.0) * 100.0);
        ratios.push(base_clock_ns / own.clock_end_ns);
        base.into_iter().for_each(|series| base_stalls.add(series.stalls));
        own_stalls.add(own.stalls);
        burst_times.extend(own.bursts_ns);
    }
    let gap_us = pairs as f64 * lab.calibration.pair_ns / 1000.0;
    let (stall_share, stall_ns) = own_stalls.beyond(&base_stalls);
    let stalls_pct = stall_share * stall_ns / (gap_us * 1000.0) * 100.0;
    let nothing = Estimate { median: f64::NAN, ci95: (f64::NAN, f64::NAN) };
    let estimate = |values: Samples| values.estimate().unwrap_or(nothing);
    let slowdown_count = slowdowns.len();
    let slowdowns: Samples = slowdowns.into_iter().map(|pct| pct + stalls_pct).collect();
    // Slower by far more than the error, by more than a clock step is at least, and by more than
    // a change of code costs.
    let stands_out = slowdowns.centre().is_some_and(|(mean, error)| mean > 4.5 * error);
    let is_slow = stands_out
        && slowdowns.quantile(0.5).is_some_and(|pct| {
            pct > (1.0 / LOWERED - 1.0) * 100.0 && pct / 100.0 * gap_us * 1000.0 > SMALLEST_COST_NS
        });
    Ok(Observed {
        gap: Gap {
            gap_us,
            slowdown_pct: estimate(slowdowns),
            stall_share,
            burst_ns: estimate(burst_times.into_iter().collect()),
            clock_ratio: Samples::new(ratios).quantile(0.5).unwrap_or(f64::NAN),
        },
        has_effect: is_slow || stall_share > 0.0,
        disturbed,
        stolen: base_stalls.lengths_ns.len(),
        preemptions,
        repetitions: slowdown_count,
    })
}

/// Stalls in gaps.
#[derive(Debug, Default)]
struct Stalls {
    /// Gaps that had one.
    stalled: usize,
    /// Gaps in all.
    gaps: usize,
    lengths_ns: Vec<f64>,
}

impl Stalls {
    fn add(&mut self, other: Self) {
        self.stalled += other.stalled;
        self.gaps += other.gaps;
        self.lengths_ns.extend(other.lengths_ns);
    }

    /// Share of gaps with a stall of their own, and the stalls' length (ns); chance stalls, whose
    /// share is that of `baseline`, may fall into the same gaps. Zeros where the difference may be chance (4.5 binomial errors) or is rare (less than
    /// one gap in twenty).
    fn beyond(&self, baseline: &Self) -> (f64, f64) {
        // Half a count more on either side keeps the errors of none and of all above zero.
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

/// Bursts and gaps of one half of a program.
#[derive(Debug)]
struct Series {
    /// Mean time of an undisturbed pair (ns).
    pair_ns: f64,
    /// Mean time of the clock windows at the end of the gaps (ns).
    clock_end_ns: f64,
    stalls: Stalls,
    bursts_ns: Vec<f64>,
    disturbed: usize,
}

impl Series {
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
        let (mut stalls_ns, mut bursts_ns) = (Vec::new(), Vec::new());
        let (mut disturbed, mut stalled_gaps) = (0, 0);
        let n_gaps = cycles.len();
        for cycle in cycles {
            let burst = first + cycle * width;
            if !trace.interrupted(burst) {
                bursts_ns.push(ns(burst));
            }
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
            stalls: Stalls { stalled: stalled_gaps, gaps: n_gaps, lengths_ns: stalls_ns },
            bursts_ns,
            disturbed,
        }
    }
}
