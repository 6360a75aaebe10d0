//! An outcome in sentences: the verdict with its numbers, and what it means to a user.
//!
//! Kernel names are between backticks, for outputs that print them in another font.

use dimmer_probe::mode::{Mode, RARE};
use dimmer_probe::outcome::{
    CurvePoint, Detail, Downclock, Episode, Findings, Gap, Instructions, Levels, Outcome,
    Recurrence, Surroundings, Throttle, Throttling,
};
use dimmer_probe::stats::Estimate;

use crate::number::{
    count, counted, grouped, interval, length, percent, percent_bound, percent_estimate, time,
    time_bound, time_estimate,
};

/// If at least this share of the bursts has an effect, the others are not mentioned.
const ALMOST_ALL: f64 = 0.95;

/// Below this clock over nominal, a point of a curve is certainly lowered.
const LOWERED: f64 = 0.99;

/// Number of kernels of a group that are named, if the group has more than one more.
const NAMED: usize = 2;

/// The mode as a title, and the question that it answers.
pub(super) fn title(mode: Mode) -> (&'static str, &'static str) {
    match mode {
        Mode::Downclock => ("Downclock", "from the first instruction to the settled clock"),
        Mode::Upclock => ("Upclock", "from the end of a long burst back to the nominal clock"),
        Mode::Throttle => ("Throttle", "from the first instruction to throttled execution"),
        Mode::Instructions => ("Instructions", "how many it takes to cause an effect"),
        Mode::Episode => ("Episode", "what one isolated burst costs the code after it"),
        Mode::Recurrence => ("Recurrence", "bursts at regular gaps"),
        Mode::Levels => ("Levels", "settled clock by number of active CPUs"),
    }
}

/// The modes that were measured, in order of first appearance.
pub(super) fn modes(findings: &Findings) -> Vec<Mode> {
    let mut modes = Vec::new();
    for outcome in &findings.outcomes {
        if !modes.contains(&outcome.mode) {
            modes.push(outcome.mode);
        }
    }
    modes
}

/// `absent, below 38 ns`, or `open` if some bursts have a cost that cannot be distinguished from
/// chance. A lower clock is bounded as a share, `absent, below 0.27 %`.
pub(super) fn absent(outcome: &Outcome) -> String {
    match outcome.mode {
        _ if some_cost(outcome).is_some() => {
            format!("open, below {}", time_bound(outcome.bound_ns))
        }
        _ if !outcome.bound_ns.is_finite() => "absent, but without a bound".to_owned(),
        Mode::Downclock | Mode::Levels if outcome.horizon_ns > 0.0 => {
            format!("absent, below {}", percent_bound(outcome.bound_ns / outcome.horizon_ns))
        }
        _ => format!("absent, below {}", time_bound(outcome.bound_ns)),
    }
}

/// The share of bursts with a cost, if it is too large for chance but the bursts cannot be
/// identified.
pub(super) fn some_cost(outcome: &Outcome) -> Option<Estimate> {
    match &outcome.detail {
        Detail::Episode(episode) if !outcome.effect => {
            episode.effect_share.filter(|share| share.ci95.0 > RARE)
        }
        _ => None,
    }
}

/// Kernels that were left out of the same mode for the same reason.
pub(super) struct SkippedGroup<'a> {
    /// `None`: all modes.
    pub(super) mode: Option<Mode>,
    pub(super) reason: &'a str,
    /// The kernels' names, of which the last ones may only be counted: `` `a`, `b` and 3 more``.
    pub(super) kernels: String,
}

/// What was skipped, by mode and reason, in order of first appearance.
pub(super) fn skipped(findings: &Findings) -> Vec<SkippedGroup<'_>> {
    let mut groups: Vec<(Option<Mode>, &str, Vec<&str>)> = Vec::new();
    for skipped in &findings.skipped {
        let same = |group: &&mut (Option<Mode>, &str, Vec<&str>)| {
            (group.0, group.1) == (skipped.mode, skipped.reason.as_str())
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.2.push(&skipped.kernel),
            None => groups.push((skipped.mode, &skipped.reason, vec![&skipped.kernel])),
        }
    }
    let group = |(mode, reason, kernels): (_, _, Vec<&str>)| SkippedGroup {
        mode,
        reason,
        kernels: listed(&kernels),
    };
    groups.into_iter().map(group).collect()
}

/// Names for a sentence; if there are many, only the first ones and the number of the rest.
fn listed(names: &[&str]) -> String {
    let quoted = |names: &[&str]| {
        names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    };
    match names {
        [] | [_] => quoted(names),
        [first @ .., last] if first.len() <= NAMED => format!("{} and `{last}`", quoted(first)),
        _ => format!("{} and {} more", quoted(&names[..NAMED]), length(names.len() - NAMED)),
    }
}

/// The gap at which bursts certainly cost the scalar code most; `None` if they certainly cost it
/// nothing at any gap. The cost changes little from one gap to the next, so a gap counts for no
/// more than the more expensive of its neighbors.
pub(super) fn worst_gap(recurrence: &Recurrence) -> Option<&Gap> {
    /// With some thirty gaps, the largest one is beyond its 95 % interval by chance more often than
    /// not. With an interval wider by this factor, that happens one time in twenty (Bonferroni: 3.1
    /// rather than 1.96 standard errors).
    const AMONG_MANY: f64 = 1.6;
    let gaps = &recurrence.gaps;
    let median = |index: usize| gaps.get(index).map(|gap| gap.slowdown_pct.median);
    let sure = |index: usize| {
        let neighbours = [index.checked_sub(1).and_then(median), median(index + 1)];
        let support = neighbours.into_iter().flatten().reduce(f64::max).unwrap_or(f64::INFINITY);
        let slowdown = gaps[index].slowdown_pct;
        let below = slowdown.median - slowdown.ci95.0;
        (slowdown.median - AMONG_MANY * below).min(support)
    };
    let worst = (0..gaps.len()).max_by(|a, b| sure(*a).total_cmp(&sure(*b)))?;
    (sure(worst) > 0.0).then(|| &gaps[worst])
}

/// The lowest point of a clock that does not settle lower, if it certainly was lowered.
pub(super) fn dip(downclock: &Downclock) -> Option<&CurvePoint> {
    let end = downclock.clock_ratio.estimate.ci95.0;
    let lowered = |point: &&CurvePoint| point.clock_ratio.ci95.1 < LOWERED.min(end);
    let clock = |point: &&CurvePoint| point.clock_ratio.median;
    let curve = downclock.curve.iter().filter(|_| downclock.settle_ns.is_none());
    curve.filter(lowered).min_by(|a, b| clock(a).total_cmp(&clock(b)))
}

/// The share of the bursts or stretches with an effect, if others have none.
pub(super) fn partial(share: Option<Estimate>) -> Option<Estimate> {
    share.filter(|share| share.median < ALMOST_ALL)
}

/// The result, in one or more sentences.
pub(super) fn verdict(outcome: &Outcome) -> String {
    let found = match &outcome.detail {
        Detail::Levels(levels) => return levels_verdict(levels),
        _ if !outcome.effect => {
            let few = match &outcome.detail {
                Detail::Episode(episode) => some_cost(outcome).map_or_else(
                    || rest_of(episode.effect_share),
                    |share| Some(which_cost(&share)),
                ),
                _ => None,
            };
            return capitalised(&format!(
                "{}: nothing larger was seen within {}{}.",
                absent(outcome),
                time(outcome.horizon_ns),
                few.unwrap_or_default()
            ));
        }
        Detail::Episode(episode) => episode_verdict(episode),
        Detail::Downclock(downclock) => downclock_verdict(downclock),
        Detail::Throttle(throttle) => throttle_verdict(throttle),
        Detail::Instructions(instructions) => instructions_verdict(instructions),
        Detail::Recurrence(recurrence) => recurrence_verdict(recurrence),
    };
    found.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// The state of clock and core independent of the probe, in one sentence.
pub(super) fn surroundings(findings: &Findings) -> Option<String> {
    let Surroundings { clock_ghz, busy_sibling_share } = findings.surroundings.as_ref()?;
    let ghz = |share| clock_ghz.samples.quantile(share).map(|ghz| grouped(ghz, 2));
    Some(format!(
        "Meanwhile, and without the probe's doing, the clock stood between {} and {} GHz in nine \
         cases of ten, and another hardware thread of the core was busy in {}.",
        ghz(0.05)?,
        ghz(0.95)?,
        percent(*busy_sibling_share)
    ))
}

/// The share of bursts that may still have a cost although no effect was seen.
fn rest_of(share: Option<Estimate>) -> Option<String> {
    let most = percent_bound(share?.ci95.1);
    Some(format!("; that is the mean over all bursts, of which at most {most} cost anything"))
}

/// Reports that some bursts have a cost, but that it is unknown which ones.
fn which_cost(share: &Estimate) -> String {
    format!(
        "; that is the mean over all bursts, of which {} cost something, but no more than any code \
         does as often by chance",
        percent_with_interval(share)
    )
}

/// The meaning for a user with such code.
pub(super) fn advice(outcome: &Outcome) -> String {
    match &outcome.detail {
        Detail::Levels(levels) => levels_advice(levels),
        Detail::Downclock(downclock) if !outcome.effect => format!(
            "The clock stays through {} of it: long stretches run at full speed.",
            time(downclock.observed_ns)
        ),
        Detail::Throttle(_) if !outcome.effect => {
            "It runs at its full throughput from the first instruction on.".to_owned()
        }
        Detail::Instructions(_) if !outcome.effect => {
            "No number of instructions that was tried causes anything.".to_owned()
        }
        Detail::Recurrence(_) if !outcome.effect => {
            "However often it recurs, the code between runs at full speed: leave it.".to_owned()
        }
        Detail::Episode(_) if some_cost(outcome).is_some() => {
            "What it costs cannot be told from what any code costs here by chance: probe again at \
             another time."
                .to_owned()
        }
        Detail::Episode(_) if !outcome.effect => {
            "It costs nothing to what runs after it here: leave it as it is.".to_owned()
        }
        Detail::Episode(episode) => episode_advice(outcome, episode),
        Detail::Downclock(downclock) => downclock_advice(downclock),
        Detail::Throttle(throttle) => throttle_advice(throttle),
        Detail::Instructions(instructions) => instructions_advice(instructions),
        Detail::Recurrence(recurrence) => recurrence_advice(recurrence),
    }
}

fn capitalised(sentence: &str) -> String {
    let mut characters = sentence.chars();
    let first = characters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + characters.as_str()
}

fn with_interval(ns: &Estimate) -> String {
    let (median, interval) = time_estimate(ns);
    format!("{median} {interval}")
}

fn percent_with_interval(ratio: &Estimate) -> String {
    let (median, interval) = percent_estimate(ratio);
    format!("{median} {interval}")
}

/// The factor of work per cycle that makes up for a lower clock.
fn break_even(clock_ratio: f64) -> String {
    grouped(1.0 / clock_ratio, 2)
}

fn throttling_verdict(throttling: Option<&Throttling>) -> Option<String> {
    let Throttling { throttled_ns, throttle_factor } = throttling?;
    Some(format!(
        "The code itself is throttled for {}, to {} of its settled throughput.",
        with_interval(&throttled_ns.estimate),
        percent(throttle_factor.median)
    ))
}

fn episode_verdict(episode: &Episode) -> Vec<Option<String>> {
    let clock = &episode.clock_ratio_after.estimate;
    let issue = &episode.issue_ratio_after.estimate;
    let delay = episode.release_delay_ns.as_ref().map(|delay| with_interval(&delay.estimate));
    let mut after =
        format!("Right after it the clock stands at {} of nominal", percent(clock.median));
    if let Some(delay) = delay {
        after.push_str(&format!(" and is back after {delay}"));
    }
    if let Some(stall) = &episode.release_stall_ns {
        after.push_str(&format!(", with a stall of {}", with_interval(&stall.estimate)));
    }
    after.push('.');
    let mean = episode.mean_extra_ns.as_ref();
    let mean =
        mean.map(|mean| format!("; over all bursts the mean cost is {}", with_interval(mean)));
    vec![
        partial(episode.effect_share).map(|share| {
            format!(
                "Only {} of the bursts cost anything that can be told, as it may be on a shared \
                 machine. What follows is about those{}.",
                percent_with_interval(&share),
                mean.unwrap_or_default()
            )
        }),
        Some(cost_verdict(episode)),
        Some(after),
        // Only a difference that its interval confirms is reported.
        (issue.ci95.1 < 0.99).then(|| {
            format!(
                "The core issues only {} of the usual instructions per cycle.",
                percent(issue.median)
            )
        }),
        throttling_verdict(episode.throttling.as_ref()),
        neighbours_verdict(episode),
    ]
}

/// The loss of the code after a burst, if it differs from zero.
fn cost_verdict(episode: &Episode) -> String {
    let burst = format!(
        "one burst of {} ({})",
        counted(episode.burst_instructions as usize, "instruction"),
        time(episode.burst_ns.estimate.median)
    );
    let extra = &episode.extra_ns.estimate;
    if extra.ci95.0 > 0.0 {
        capitalised(&format!("{burst} costs the code after it {}.", with_interval(extra)))
    } else {
        format!(
            "What {burst} costs the code after it cannot be told from nothing: {}.",
            with_interval(extra)
        )
    }
}

fn neighbours_verdict(episode: &Episode) -> Option<String> {
    if episode.neighbours.is_empty() {
        return None;
    }
    let hit: Vec<String> = episode
        .neighbours
        .iter()
        .filter(|neighbour| neighbour.effect)
        .map(|neighbour| {
            format!("CPU {} loses {}", neighbour.cpu, with_interval(&neighbour.extra_ns.estimate))
        })
        .collect();
    Some(match hit.as_slice() {
        [] => "Scalar code on the other CPUs watched is not affected.".to_owned(),
        _ => format!("Elsewhere, {}.", hit.join(", ")),
    })
}

fn episode_advice(outcome: &Outcome, episode: &Episode) -> String {
    if episode.extra_ns.estimate.ci95.0 <= 0.0 {
        return format!(
            "What the code after it loses is too little to tell from nothing: at most {}.",
            time(outcome.bound_ns)
        );
    }
    let cost = time(episode.extra_ns.estimate.median);
    match &episode.release_delay_ns {
        Some(delay) if outcome.mode == Mode::Upclock => format!(
            "Whatever runs on this core in the {} after such code runs at the lower clock.",
            time(delay.estimate.median)
        ),
        _ => format!(
            "A burst of this kind pays off only where it saves more than {cost} over narrower \
             code; short and rare ones are better narrowed or moved."
        ),
    }
}

fn downclock_verdict(downclock: &Downclock) -> Vec<Option<String>> {
    let clock = percent_with_interval(&downclock.clock_ratio.estimate);
    let levels = downclock.steps.len();
    vec![
        Some(match &downclock.settle_ns {
            Some(settle) => format!(
                "The clock settles {} after the first instruction, at {clock} of nominal.",
                with_interval(&settle.estimate)
            ),
            None if dip(downclock).is_some() => {
                format!("In the end the clock stands at {clock} of nominal.")
            }
            None => format!("The clock stays at {clock} of nominal."),
        }),
        dip(downclock).map(|dip| {
            format!(
                "On the way it is lower: {} at {} after the first instruction.",
                percent_with_interval(&dip.clock_ratio),
                time(dip.at_ns)
            )
        }),
        downclock.lowest.as_ref().map(|lowest| {
            format!(
                "Before that it stands at {}, from {} after the first instruction on.",
                percent_with_interval(&lowest.clock_ratio.estimate),
                time(lowest.after_ns.estimate.median)
            )
        }),
        partial(downclock.effect_share).map(|share| {
            format!(
                "That is so in {} of the stretches; in the others the clock stays.",
                percent_with_interval(&share)
            )
        }),
        (levels > 2).then(|| format!("In all it stands at {levels} levels one after the other.")),
        downclock
            .stall_ns
            .as_ref()
            .map(|stall| format!("The core stalls for {}.", with_interval(&stall.estimate))),
        throttling_verdict(downclock.throttling.as_ref()),
    ]
}

fn downclock_advice(downclock: &Downclock) -> String {
    let clock = downclock.clock_ratio.estimate.median;
    if downclock.settle_ns.is_none() || clock >= LOWERED {
        return "Long stretches keep the clock; only their beginning is slower.".to_owned();
    }
    format!(
        "A long stretch pays off if its width saves more than the clock loses: it must do at least \
         {} times the work of scalar code per cycle.",
        break_even(clock)
    )
}

fn throttle_verdict(throttle: &Throttle) -> Vec<Option<String>> {
    let instructions = throttle.pre_throttle_instructions.as_ref().map(|instructions| {
        let estimate = &instructions.estimate;
        format!(", {} instructions on", count(estimate.median))
    });
    vec![
        throttle.pre_throttle_ns.as_ref().map(|delay| {
            format!(
                "Throttled execution begins {} after the first instruction{}.",
                with_interval(&delay.estimate),
                instructions.unwrap_or_default()
            )
        }),
        throttling_verdict(throttle.throttling.as_ref()),
    ]
}

fn throttle_advice(throttle: &Throttle) -> String {
    match &throttle.pre_throttle_instructions {
        Some(before) if before.estimate.median >= 2.0 => format!(
            "Bursts of fewer than {} instructions are over before they are throttled.",
            count(before.estimate.median)
        ),
        _ => "No burst is too short to be throttled.".to_owned(),
    }
}

fn instructions_verdict(instructions: &Instructions) -> Vec<Option<String>> {
    let spread = match instructions.quantiles.as_slice() {
        [.., (many, high)] if one_is_enough(instructions) => (*high > 1.0)
            .then(|| format!("{} have one from {} instructions on.", percent(*many), count(*high))),
        [(few, low), .., (many, high)] if low < high => Some(format!(
            "{} of the bursts have it from {} instructions on, {} from {}.",
            percent(*few),
            count(*low),
            percent(*many),
            count(*high)
        )),
        _ => None,
    };
    vec![
        instructions.median.map(|median| {
            if one_is_enough(instructions) {
                return "Most bursts have an effect from the first instruction on.".to_owned();
            }
            format!(
                "Half of the bursts have an effect from {} [{}, {}] instructions on.",
                count(median.median),
                count(median.ci95.0),
                count(median.ci95.1)
            )
        }),
        spread,
    ]
}

/// Whether one instruction is enough for most bursts.
fn one_is_enough(instructions: &Instructions) -> bool {
    instructions.median.is_some_and(|median| median.ci95.1 <= 1.0)
}

fn instructions_advice(instructions: &Instructions) -> String {
    match instructions.quantiles.first() {
        Some((share, few)) if *few >= 2.0 => format!(
            "Fewer than {} instructions go unpunished in all but {} of the cases.",
            count(*few),
            percent(*share)
        ),
        _ => "A single instruction is enough: there is no harmless amount.".to_owned(),
    }
}

fn recurrence_verdict(recurrence: &Recurrence) -> Vec<Option<String>> {
    let burst = counted(recurrence.burst_instructions as usize, "instruction");
    let worst = match worst_gap(recurrence) {
        None => format!("The code between bursts of {burst} is not measurably slower at any gap."),
        Some(gap) => format!(
            "Bursts of {burst} make the scalar code between them up to {} slower, at gaps of {}.",
            percent_with_interval(&gap.slowdown_pct.scaled(0.01)),
            time(gap.gap_us * 1e3)
        ),
    };
    let change = change_verdict(recurrence)
        .unwrap_or_else(|| format!("{}.", capitalised(&recurrence.regime)));
    vec![Some(worst), Some(change), kept_verdict(recurrence)]
}

/// Where the behavior of recurring bursts changes, and how.
pub(super) fn change_verdict(recurrence: &Recurrence) -> Option<String> {
    let change = recurrence.regime_change_us?.scaled(1e3);
    let regime = recurrence.regime.trim_end_matches('.');
    let colon = if regime.is_empty() { "" } else { ": " };
    Some(format!("At gaps of {} the behaviour changes{colon}{regime}.", with_interval(&change)))
}

/// How long bursts must recur until the license level is kept, at the longest gap over which it
/// mostly is kept.
fn kept_verdict(recurrence: &Recurrence) -> Option<String> {
    let mostly = |gap: &&Gap| gap.kept_share.is_some_and(|share| share >= 0.5);
    let known = |gap: &&Gap| mostly(gap) && gap.kept_after_ms.is_some_and(|after| after >= 0.1);
    let gap = recurrence.gaps.iter().rev().find(known)?;
    let after = gap.kept_after_ms?;
    Some(format!(
        "The license is not kept at once: at gaps of {} bursts recur for {} before it first is; \
         from then on, {} of them run at full speed.",
        time(gap.gap_us * 1e3),
        time(after * 1e6),
        percent(gap.kept_share?)
    ))
}

fn recurrence_advice(recurrence: &Recurrence) -> String {
    match recurrence.regime_change_us {
        Some(change) => format!(
            "Keep such bursts well over {} apart, or gather them on a core of their own: closer \
             together, they affect the code between them all the time.",
            time(change.ci95.1 * 1e3)
        ),
        None => "The fewer such bursts, the less is lost.".to_owned(),
    }
}

fn levels_verdict(levels: &Levels) -> String {
    format!(
        "With {} CPU{} active the clock settles at {} GHz {}, {} of that of scalar code.",
        levels.active,
        if levels.active == 1 { "" } else { "s" },
        grouped(levels.clock_ghz.median, 3),
        interval(&levels.clock_ghz, 3),
        percent_with_interval(&levels.clock_ratio)
    )
}

fn levels_advice(levels: &Levels) -> String {
    if levels.clock_ratio.ci95.1 < 1.0 {
        format!(
            "Lasting use needs {} times the work of scalar code per cycle to break even.",
            break_even(levels.clock_ratio.median)
        )
    } else {
        "Lasting use keeps the clock of scalar code.".to_owned()
    }
}
