//! Bursts at regular gaps: the behaviour between isolated episodes and a steady state.
//!
//! A governor with a memory may keep a license while bursts recur, and release it between them only
//! from some gap on. At every gap, scalar work between bursts is compared with the same work
//! between scalar stand-ins. A separate measurement ([`change`]) then finds the gap from which
//! bursts are no longer kept at full speed. If bursts do not show it, it finds the gap from which
//! the clock is no longer lowered until the next burst.
//!
//! The memory has to be filled: on Emerald Rapids bursts are throttled one by one for the first 4.7
//! ms of recurrence (gaps of 50 us) to 9 ms (180 us). It also empties while the license is kept.
//! Then bursts are throttled again for some ms, and so on, so that at most 50 to 70 % are kept. So
//! a series runs for a while before it counts, and the time until the first burst is kept is an
//! outcome of its own.

mod change;
mod gap;
mod keeping;

use std::time::Duration;

use self::change::Signal;
use self::gap::{Burst, Observed, Run};
use self::keeping::{Alone, FullSpeed};
use super::{Mode, episode, ramp};
use crate::lab::{Lab, ModeError, disturbed};
use crate::outcome::{Detail, Gap, Outcome, Recurrence};
use crate::program::Operands;
use crate::stats::Estimate;

/// Gaps of a full sweep (us).
const GAPS_US: [f64; 16] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 400.0, 700.0, 1000.0, 2000.0, 5000.0, 10_000.0,
    30_000.0, 100_000.0,
];

/// Gaps of a quick sweep (us).
const QUICK_GAPS_US: [f64; 10] =
    [1.0, 3.0, 10.0, 30.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0];

/// Time limit for everything, unless the minimum number of repetitions takes longer.
const LONGEST: Duration = Duration::from_secs(90);

/// Measures bursts of `instructions` at all gaps.
pub(crate) fn measure(lab: &mut Lab<'_>, instructions: u32) -> Result<Outcome, ModeError> {
    let gaps_us: &[f64] = if lab.is_quick() { &QUICK_GAPS_US } else { &GAPS_US };
    let deadline = lab.deadline(1.0, LONGEST);
    let burst = Burst {
        instructions,
        settle_ns: episode::look(lab, instructions, Operands::Loaded)?.quiet_ns,
        full_speed_ns: f64::from(instructions) / ramp::rate(lab)?,
    };
    let sweep = gap::sweep(lab, burst, gaps_us)?;
    let full_speed = FullSpeed::of(&sweep, burst.full_speed_ns);
    let alone = Alone::of(sweep.iter().flatten());
    let observed = |runs: &Vec<Run>| Observed::of(runs, full_speed, alone);
    let mut all: Vec<Observed> = sweep.iter().map(observed).collect();
    let signal = Signal::of(&all, full_speed);
    let is_throttled_anew = matches!(signal, Some((Signal::Bursts(_), _)));
    let effect = is_throttled_anew || all.iter().any(|one| one.has_effect);
    let mut change_us = None;
    if let Some((signal, range)) = signal {
        let passes = change::passes(lab, burst, range, alone, deadline)?;
        change_us = passes.change_us(signal, alone);
        all.extend(passes.rungs().iter().map(observed));
    }
    all.sort_by(|a, b| a.gap.gap_us.total_cmp(&b.gap.gap_us));
    // Beyond the change, or without a change, other programs are the reason for bursts at full
    // speed.
    let kept_to_us = change_us.map_or(0.0, |change| change.median);
    for one in all.iter_mut().filter(|one| one.gap.gap_us > kept_to_us) {
        one.gap.kept_after_ms = None;
    }
    let gaps: Vec<Gap> = all.iter().map(|one| one.gap).collect();
    // Longer gaps have too few repetitions to bound anything.
    let near = || gaps.iter().filter(|gap| gap.gap_us <= gap::LONG_GAP_US);
    let Some(bound_ns) = near().filter_map(gap::bound_ns).reduce(f64::max) else {
        return Err(disturbed("series of bursts"));
    };
    let horizon_us = near().map(|gap| gap.gap_us).fold(0.0, f64::max);
    let detail = Recurrence {
        burst_instructions: instructions,
        regime: regime(signal.map(|(signal, _)| signal), change_us).to_owned(),
        regime_change_us: change_us,
        gaps,
    };
    Ok(Outcome {
        repetitions: all.iter().map(|one| one.repetitions).sum(),
        disturbed_windows: all.iter().map(|one| one.disturbed).sum(),
        stolen_windows: all.iter().map(|one| one.stolen).sum(),
        preemptions: all.iter().map(|one| one.preemptions).sum(),
        effect,
        bound_ns,
        horizon_ns: horizon_us * 1000.0,
        ..lab.outcome(Mode::Recurrence, Detail::Recurrence(detail))
    })
}

/// What changes with the gap, in words.
fn regime(signal: Option<Signal>, change_us: Option<Estimate>) -> &'static str {
    match (signal, change_us) {
        (None, _) => "all gaps behave alike",
        (Some(_), None) => {
            "the gaps seem to differ, but too little, or too few series had the core for \
             themselves, to say where it changes"
        }
        (Some(Signal::Bursts(_)), Some(_)) => {
            "below this gap the license is kept, and bursts run at full speed; above it each is \
             throttled again"
        }
        (Some(Signal::Clock), Some(_)) => {
            "below this gap the lowered clock lasts until the next burst; above it the nominal \
             clock returns in between"
        }
    }
}
