//! Bursts at regular gaps: what happens between isolated episodes and a steady state.
//!
//! A governor with a memory may keep a licence while bursts recur, and give it back between them
//! only from some gap on. At every gap the scalar work between bursts is compared with the same
//! work between scalar stand-ins. Where bursts are no longer kept at full speed (or, if bursts do
//! not show it, where the clock is no longer lowered until the next burst) is then narrowed down
//! by bisection.
//!
//! The memory has to be filled: on Emerald Rapids bursts are throttled one by one for the first 2.5
//! ms of recurrence (gaps of 20 us) to 10 ms (180 us), and up to 18 ms close to the change; then
//! they are kept, with relapses. So a series runs for a while before it counts, and the time until
//! the first burst is kept is an outcome of its own.

use std::sync::Arc;
use std::time::Duration;

use super::{Mode, episode, ramp};
use crate::kernel::{self, Kernel};
use crate::lab::{Lab, ModeError};
use crate::outcome::{Detail, Gap, Outcome, Recurrence};
use crate::presence::SMALLEST_COST_NS;
use crate::program::{Operands, Program, Trace, Work};
use crate::stats::{Estimate, Samples, floor_index};

/// Gaps of a full sweep (us).
const GAPS_US: [f64; 16] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 400.0, 700.0, 1000.0, 2000.0, 5000.0, 10_000.0,
    30_000.0, 100_000.0,
];

/// Gaps of a quick sweep (us).
const QUICK_GAPS_US: [f64; 10] =
    [1.0, 3.0, 10.0, 30.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0];

/// How long bursts recur before they count (ns): enough for gaps up to 180 us on Emerald Rapids.
/// Close to the change medians of up to 18 ms were seen, so the share kept there is understated.
const LEARNING_NS: f64 = 12e6;

/// Scalar work that is measured in one series (ns): several times the milliseconds between relapses.
const MEASURED_NS: f64 = 10e6;

/// The same in a quick probe (ns).
const QUICK_MEASURED_NS: f64 = 4e6;

/// Gaps above this get few repetitions (us).
const LONG_GAP_US: f64 = 1500.0;

/// Gaps above this get fewest (us).
const VERY_LONG_GAP_US: f64 = 20_000.0;

/// Most time for one gap, if the fewest repetitions do not take longer.
const LONGEST: Duration = Duration::from_secs(3);

/// How precise the slow-down is to be: standard error (%).
const PRECISION_PCT: f64 = 0.15;

/// The clock at the end of a gap counts as lowered below this.
const LOWERED: f64 = 0.996;

/// How much longer than at full speed an isolated burst must take to count as throttled. Fetching
/// its code again was seen to cost up to half its time.
const THROTTLED: f64 = 2.0;

/// From this share of bursts at full speed on, a gap counts as kept. A choice, not a measurement:
/// low, because who keeps bursts apart wants a gap over which hardly any is kept. It was made with
/// shares from Emerald Rapids and the 240 to 260 us of a Xeon 6 in view, and it matters: at a half
/// the change would lie between 50 and 200 us there, rather than at 190 to 280.
const KEPT: f64 = 0.1;

/// How close the bisection brackets the change: ratio of its two ends.
const BRACKET: f64 = 1.03;

/// What one gap gave, before it is an outcome.
#[derive(Clone, Debug)]
struct Observed {
    gap: Gap,
    /// Standard error of the share of bursts that are kept.
    kept_error: f64,
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
    let burst = Burst {
        instructions,
        settle_ns: episode::look(lab, instructions, Operands::Loaded)?.quiet_ns,
        full_speed_ns: f64::from(instructions) / ramp::rate(lab)?,
    };
    let mut observed = Vec::new();
    for &gap_us in gaps_us {
        observed.push(observe(lab, burst, gap_us)?);
    }
    let signal = Signal::of(&observed);
    let is_throttled_anew = matches!(signal, Some(Signal::Bursts));
    let effect = is_throttled_anew || observed.iter().any(|one| one.has_effect);
    let mut bracket =
        signal.as_ref().filter(|_| effect).and_then(|signal| signal.bracket(&observed));
    while let (Some(signal), Some((low, high))) = (&signal, bracket) {
        // Gaps are whole pairs: closer than one and a half there is nothing between.
        let is_close = (high - low) * 1000.0 < 1.5 * lab.calibration.pair_ns;
        if high / low < BRACKET || is_close || deadline.is_over() {
            break;
        }
        let middle = observe(lab, burst, (low * high).sqrt())?;
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
    let regime_change_us = bracket.map(|(low, high)| {
        let at = (low * high).sqrt();
        let sure = signal.as_ref().map_or((low, high), |signal| signal.sure(&observed, at));
        Estimate { median: at, ci95: (sure.0.min(low), sure.1.max(high)) }
    });
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
    /// Bursts at full speed: the licence was kept since the last one.
    Bursts,
    /// The clock just before the next burst: lowered while the licence is kept.
    Clock {
        /// Half way between the two.
        threshold: f64,
    },
}

impl Signal {
    /// The signal that differs between the shortest and the longest gaps; `None` if none does.
    /// Bursts come first: their times differ by factors, and do not wander with the clock.
    fn of(observed: &[Observed]) -> Option<Self> {
        let (first, last) = (&observed.first()?.gap, &observed.last()?.gap);
        if Self::Bursts.is_kept(first) && !Self::Bursts.is_kept(last) {
            return Some(Self::Bursts);
        }
        // The shortest gaps may be too short for the clock to show; the lowest of all counts.
        let slow = observed.iter().filter(|one| one.has_effect);
        let lowest = slow.map(|one| one.gap.clock_ratio).fold(f64::INFINITY, f64::min);
        let lowered = lowest < LOWERED && last.clock_ratio > LOWERED;
        (lowered && last.clock_ratio - lowest > 0.004)
            .then(|| Self::Clock { threshold: (lowest + last.clock_ratio) / 2.0 })
    }

    /// Whether the licence is kept over this gap.
    fn is_kept(self, gap: &Gap) -> bool {
        match self {
            Self::Bursts => gap.kept_share.is_some_and(|share| share >= KEPT),
            Self::Clock { threshold } => {
                gap.clock_ratio < threshold && gap.slowdown_pct.ci95.0 > 0.0
            }
        }
    }

    /// The last gap up to which the licence is kept and the one after it; `None` if it is kept over
    /// none or over all. Longer ones that seem kept by chance do not count.
    fn bracket(self, observed: &[Observed]) -> Option<(f64, f64)> {
        let kept = |one: &&Observed| self.is_kept(&one.gap);
        let mut from_kept = observed.iter().skip_while(|one| !kept(one));
        let mut last = from_kept.next()?;
        for one in from_kept {
            if !kept(&one) {
                return Some((last.gap.gap_us, one.gap.gap_us));
            }
            last = one;
        }
        None
    }

    /// The closest gaps to either side of the change that surely are kept, and surely are not: near
    /// the change a licence is kept in some series and not in others.
    fn sure(self, ascending: &[Observed], change_us: f64) -> (f64, f64) {
        let side = |one: &Observed, sign: f64| {
            let share = one.gap.kept_share.map(|share| share + sign * 1.96 * one.kept_error);
            self.is_kept(&Gap { kept_share: share, ..one.gap })
        };
        let change = ascending.partition_point(|one| one.gap.gap_us < change_us);
        let low = ascending[..change].iter().rfind(|one| side(one, -1.0));
        let high = ascending[change..].iter().find(|one| !side(one, 1.0));
        (low.map_or(f64::INFINITY, |one| one.gap.gap_us), high.map_or(0.0, |one| one.gap.gap_us))
    }

    fn words(self) -> &'static str {
        match self {
            Self::Bursts => {
                "below this gap the licence is kept, and bursts run at full speed; above it each \
                 is throttled anew"
            }
            Self::Clock { .. } => {
                "below this gap the lowered clock lasts until the next burst; above it the \
                 nominal clock returns in between"
            }
        }
    }
}

/// What recurs.
#[derive(Clone, Copy, Debug)]
struct Burst {
    instructions: u32,
    /// Time in which every trace of bursts is gone (ns).
    settle_ns: f64,
    /// How long it takes at full speed (ns).
    full_speed_ns: f64,
}

/// Measures one gap: baseline, bursts, bursts, baseline, so that drift cancels; until the slow-down
/// is precise or its time is used up.
fn observe(lab: &mut Lab<'_>, burst: Burst, gap_us: f64) -> Result<Observed, ModeError> {
    let (least, most) = match (lab.is_quick(), gap_us > LONG_GAP_US) {
        (true, true) => (4, 4),
        (true, false) => (8, 20),
        (false, true) if gap_us > VERY_LONG_GAP_US => (2, 5),
        (false, true) => (4, 10),
        (false, false) => (30, lab.settings.repetitions.max(30)),
    };
    let instructions = burst.instructions;
    let pairs = lab.calibration.pairs(gap_us * 1000.0).max(2);
    let period_ns = gap_us * 1000.0 + burst.full_speed_ns;
    let gaps_in = |ns: f64| floor_index((ns / period_ns).ceil());
    let measured = gaps_in(if lab.is_quick() { QUICK_MEASURED_NS } else { MEASURED_NS }).max(2);
    let (settle, learn) = (gaps_in(burst.settle_ns), gaps_in(LEARNING_NS));
    let (base_cycles, cycles) = (settle + measured, learn + 2 * measured);
    let stand_in = Arc::new(kernel::stand_in());
    let wide = Arc::clone(&lab.kernel);
    let mut program = Program::default();
    let mut series = |kernel: &Arc<Kernel>, cycles: usize| {
        let mut works = vec![Work::burst(kernel, instructions)];
        works.extend(std::iter::repeat_n(lab.calibration.pair(), pairs).flatten());
        program.push(&works, cycles)
    };
    let before = series(&stand_in, base_cycles);
    let bursts = series(&wide, cycles);
    let after = series(&stand_in, base_cycles);
    let expected_ns = (2 * base_cycles + cycles) as f64 * pairs as f64 * lab.calibration.pair_ns;
    let (mut slowdowns, mut ratios) = (Vec::new(), Vec::new());
    let mut timed = Vec::new();
    let (mut base_stalls, mut own_stalls) = (Stalls::default(), Stalls::default());
    let (mut disturbed, mut preemptions) = (0, 0);
    // A fair share of the time for each gap; a few repetitions in any case.
    let deadline = lab.deadline(0.04, LONGEST);
    for repetition in 0..most {
        let is_precise = || {
            let centre = Samples::new(slowdowns.clone()).centre();
            centre.is_some_and(|(_, error)| error < PRECISION_PCT)
        };
        if repetition >= least.min(4) && deadline.is_over() || repetition >= least && is_precise() {
            break;
        }
        let (trace, _) = lab.run(&program, None, expected_ns)?;
        preemptions += trace.preemptions;
        let cut = |first, range| Series::cut(lab, &trace, first, pairs, range);
        let base = [before, after].map(|first| cut(first, settle..base_cycles));
        let own = cut(bursts, learn..cycles);
        let all = (0..cycles).map(|cycle| bursts + cycle * (1 + 2 * pairs));
        timed.push(all.map(|window| Timed::of(lab, &trace, bursts, window)).collect::<Vec<_>>());
        disturbed += own.disturbed + base.iter().map(|series| series.disturbed).sum::<usize>();
        let base_pair_ns = (base[0].pair_ns + base[1].pair_ns) / 2.0;
        let base_clock_ns = (base[0].clock_end_ns + base[1].clock_end_ns) / 2.0;
        slowdowns.push((own.pair_ns / base_pair_ns - 1.0) * 100.0);
        ratios.push(base_clock_ns / own.clock_end_ns);
        base.into_iter().for_each(|series| base_stalls.add(series.stalls));
        own_stalls.add(own.stalls);
    }
    let gap_us = pairs as f64 * lab.calibration.pair_ns / 1000.0;
    let keeping = Keeping::of(&timed, learn, burst.full_speed_ns);
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
            slowdown_pct: mean(&slowdowns).unwrap_or(nothing),
            stall_share,
            burst_ns: estimate(
                timed.iter().flat_map(|one| &one[learn..]).map(|burst| burst.ns).collect(),
            ),
            kept_share: keeping.map(|keeping| keeping.share.0),
            kept_after_ms: keeping.and_then(|keeping| keeping.after_ns).map(|ns| ns / 1e6),
            clock_ratio: Samples::new(ratios).trimmed_mean(0.05).unwrap_or(f64::NAN),
        },
        kept_error: keeping.map_or(0.0, |keeping| keeping.share.1),
        has_effect: is_slow || stall_share > 0.0,
        disturbed,
        stolen: base_stalls.lengths_ns.len(),
        preemptions,
        repetitions: slowdown_count,
    })
}

/// One burst of a series.
#[derive(Clone, Copy, Debug)]
struct Timed {
    /// Begin, after the first burst of the series (ns).
    at_ns: f64,
    /// Duration without the time stamp's (ns); NaN if interrupted.
    ns: f64,
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

/// Which bursts ran at full speed, because the licence was kept since the one before.
#[derive(Clone, Copy, Debug)]
struct Keeping {
    /// Their share once the memory is filled, and its standard error.
    share: (f64, f64),
    /// Median time from the first burst of a series to the first of them (ns); `None` if most
    /// series have none.
    after_ns: Option<f64>,
}

impl Keeping {
    /// Tells them by their time: nearer to full speed than to the first burst of a series, which is
    /// isolated. `None` if that one is not throttled.
    fn of(series: &[Vec<Timed>], learn: usize, full_speed_ns: f64) -> Option<Self> {
        let isolated: Samples = series.iter().filter_map(|one| Some(one.first()?.ns)).collect();
        let isolated_ns = isolated.quantile(0.5)?;
        if isolated_ns < THROTTLED * full_speed_ns {
            return None;
        }
        let threshold = (full_speed_ns * isolated_ns).sqrt();
        let share = |one: &Vec<Timed>| {
            let times = || one[learn..].iter().map(|burst| burst.ns).filter(|ns| ns.is_finite());
            times().filter(|ns| *ns < threshold).count() as f64 / times().count() as f64
        };
        // If even the first, isolated burst is not throttled, somebody else on the core, whose wide
        // code is not seen here, holds the licence: such a series says nothing.
        let own = |one: &&Vec<Timed>| one.first().is_some_and(|burst| burst.ns >= threshold);
        // Bursts of one series are kept together or not at all: series are what is independent.
        let shares: Vec<f64> =
            series.iter().filter(own).map(share).filter(|share| share.is_finite()).collect();
        let n = shares.len() as f64;
        let mean = shares.iter().sum::<f64>() / n;
        let variance = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let first = |one: &Vec<Timed>| Some(one.iter().find(|burst| burst.ns < threshold)?.at_ns);
        let firsts: Samples = series.iter().filter(own).filter_map(first).collect();
        let most = 2 * firsts.len() >= shares.len() && mean >= KEPT;
        let after_ns = firsts.quantile(0.5).filter(|_| most);
        Some(Self { share: (mean, (variance / n).sqrt()), after_ns })
    }
}

/// Mean and its interval: where the clock wanders, single slow-downs are of several kinds, and the
/// median jumps between them.
fn mean(samples: &Samples) -> Option<Estimate> {
    let (mean, half) = samples.mean95()?;
    Some(Estimate { median: mean, ci95: (mean - half, mean + half) })
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
            disturbed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A series of bursts 1 us apart: 500 ns if throttled, else 125 ns.
    fn series(throttled: [bool; 4]) -> Vec<Timed> {
        let timed = |(index, throttled): (usize, bool)| Timed {
            at_ns: index as f64 * 1000.0,
            ns: if throttled { 500.0 } else { 125.0 },
        };
        throttled.into_iter().enumerate().map(timed).collect()
    }

    #[test]
    fn series_that_begin_with_somebody_elses_licence_say_nothing() {
        let own = series([true, true, true, true]);
        let kept = series([true, true, false, false]);
        let others = series([false, false, false, false]);
        let all = [own.clone(), own.clone(), own.clone(), kept, others];
        let keeping = Keeping::of(&all, 2, 125.0).unwrap();
        assert_eq!(keeping.share.0, 0.25);
        assert!(keeping.after_ns.is_none());
    }

    #[test]
    fn bursts_that_are_never_throttled_tell_nothing() {
        assert!(Keeping::of(&[series([false; 4])], 2, 125.0).is_none());
    }
}
