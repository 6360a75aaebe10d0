//! Writes the findings as a processor model: every value names its measurement as its source.
//!
//! A class of instructions gets a level of its own if its clock differs from those of the others. A
//! value that was not measured stays absent. A class without an effect keeps the first level; its
//! source states the bound that the measurement allows.

mod long_recurrence;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::{Bin, Identity, Level, Model, Rule, Shape, Sourced, Upper};
use dimmer_processor::units::{LicenseLevel, nearest};

use self::long_recurrence::Usual;
use crate::mode::Mode;
use crate::outcome::{Detail, Findings, Gap, Outcome, Throttling};
use crate::stats::Estimate;

/// Clocks closer than this are the same level: half a step of 100 MHz at 5 GHz.
const SAME_LEVEL: f64 = 0.01;

/// Largest half-width of a clock's interval that is precise enough to distinguish levels.
const PRECISE: f64 = 0.01;

/// The model of the processor on which the findings were made.
#[must_use]
pub fn of(findings: &Findings, identity: Identity, shape: Shape) -> Model {
    let mut model = Model::new(identity);
    model.shape = shape;
    model.clock.tsc_mhz = Some(Sourced::new(
        nearest(findings.tsc_ghz * 1000.0),
        "dimmer probe: time-stamp counter against the system's clock",
    ));
    let nominal_mhz = nearest(findings.instrument.nominal_ghz * 1000.0);
    let source = "dimmer probe: multiplication chain, scalar code on one CPU, as the machine ran";
    model.levels[0].bins.push(Bin {
        from_cores: 1,
        cores: 1,
        mhz: Sourced::new(nominal_mhz, source),
    });
    let classes = classes(findings);
    add_levels(&mut model, &classes);
    let outcomes = heaviest_first(findings, &classes);
    add_request(&mut model, &outcomes);
    add_release(&mut model, &outcomes);
    add_long_recurrences(&mut model, &outcomes);
    model
}

/// The outcomes on the classes that ask for a level, those on the heaviest class first. How levels
/// are requested and released is written once for all classes, and not every mode measures each: a
/// quick probe has the time for one kernel's recurrence.
fn heaviest_first<'a>(findings: &'a Findings, classes: &[Class<'_>]) -> Vec<&'a Outcome> {
    let mut with_effect: Vec<&Class<'_>> =
        classes.iter().filter(|class| class.clock.is_some()).collect();
    with_effect.sort_by_key(|class| Reverse(class.class));
    let of_class = |class: &Class<'_>| {
        let (class, upper) = (class.class, class.upper);
        findings.outcomes.iter().filter(move |outcome| is_of(outcome, class, upper))
    };
    with_effect.into_iter().flat_map(of_class).collect()
}

/// Findings on one class.
struct Class<'a> {
    class: InstructionClass,
    upper: Upper,
    /// The clock at which its code settles, over nominal, and the measurement of it; `None` if it
    /// asks for no level.
    clock: Option<(Estimate, &'a Outcome)>,
    /// The measurement that saw the effect, or saw none.
    evidence: &'a Outcome,
    instructions: Option<Estimate>,
}

fn classes(findings: &Findings) -> Vec<Class<'_>> {
    let mut classes: Vec<Class<'_>> = Vec::new();
    for class in InstructionClass::ALL {
        for upper in [Upper::Any, Upper::Dirty] {
            let of_class = |outcome: &&Outcome| is_of(outcome, class, upper);
            let outcomes: Vec<&Outcome> = findings.outcomes.iter().filter(of_class).collect();
            let Some(first) = outcomes.first() else { continue };
            let with_effect = || outcomes.iter().filter(|outcome| outcome.effect);
            let clocks = with_effect().filter_map(|outcome| Some((clock_of(outcome)?, *outcome)));
            // What only costs time, neither throttled nor at a lower clock, asks for no level.
            let asks = |(clock, outcome): &(Estimate, &Outcome)| {
                1.0 - clock.median > SAME_LEVEL || throttling(outcome).is_some()
            };
            let clock = lowest(clocks.filter(asks).collect());
            let evidence = clock.as_ref().map(|(_, outcome)| *outcome);
            let evidence = evidence.or_else(|| with_effect().next().copied()).unwrap_or(first);
            let instructions = outcomes.iter().find_map(|outcome| match &outcome.detail {
                Detail::Instructions(found) if outcome.effect => found.median,
                _ => None,
            });
            classes.push(Class { class, upper, clock, evidence, instructions });
        }
    }
    classes
}

/// Whether an outcome is of this class and state of the upper halves, and not of a mixture.
fn is_of(outcome: &Outcome, class: InstructionClass, upper: Upper) -> bool {
    outcome.class == class
        && outcome.kernel.ends_with("-dirty") == (upper == Upper::Dirty)
        && !outcome.kernel.contains('+')
}

/// The lowest of the precise clocks; if none is precise, the most precise one.
fn lowest(mut clocks: Vec<(Estimate, &Outcome)>) -> Option<(Estimate, &Outcome)> {
    clocks.sort_by(|a, b| a.0.half_width().total_cmp(&b.0.half_width()));
    let precise = clocks.iter().take_while(|(clock, _)| clock.half_width() < PRECISE).count();
    clocks.truncate(precise.max(1));
    clocks.into_iter().min_by(|a, b| a.0.median.total_cmp(&b.0.median))
}

/// The clock over nominal that an outcome measured.
fn clock_of(outcome: &Outcome) -> Option<Estimate> {
    match &outcome.detail {
        // The license's clock is the lowest one. If no clock settled, the effect is throttling.
        Detail::Downclock(found) => {
            let lowest = found.lowest.as_ref().map(|lowest| lowest.clock_ratio.estimate);
            let settled = found.settle_ns.as_ref().map(|_| found.clock_ratio.estimate);
            lowest.or(settled)
        }
        Detail::Episode(found) => Some(found.clock_ratio_after.estimate),
        Detail::Levels(found) if found.active == 1 => Some(found.clock_ratio),
        _ => None,
    }
}

fn source(outcome: &Outcome) -> String {
    let Outcome { mode, kernel, repetitions, .. } = outcome;
    format!("dimmer probe: {mode} of {kernel}, {repetitions} repetitions")
}

fn add_levels(model: &mut Model, classes: &[Class<'_>]) {
    let mut clocks: Vec<&(Estimate, &Outcome)> =
        classes.iter().filter_map(|class| class.clock.as_ref()).collect();
    clocks.sort_by(|a, b| b.0.median.total_cmp(&a.0.median));
    for (estimate, outcome) in clocks {
        let lowest = model.levels.last().and_then(|level| level.clock_ratio.as_ref());
        // The first level has no stored ratio (it is 1); no class that asks for a level gets it.
        if lowest.is_none_or(|lowest| lowest.value - estimate.median > SAME_LEVEL) {
            let ratio = ratio(estimate, outcome);
            let name = format!("L{}", model.levels.len());
            model.levels.push(Level { clock_ratio: Some(ratio), ..Level::named(&name) });
        }
    }
    for class in classes {
        let index = class.clock.as_ref().map_or(0, |(estimate, _)| level_of(model, estimate));
        let source = if class.clock.is_some() {
            source(class.evidence)
        } else if class.evidence.effect {
            format!("{}: an effect, but no lower clock", source(class.evidence))
        } else {
            let bound = class.evidence.bound_ns;
            format!("{}: no effect above {bound:.0} ns", source(class.evidence))
        };
        model.rules.push(Rule {
            class: class.class,
            upper: class.upper,
            level: Sourced::new(LicenseLevel::new(index), source),
            instructions: class.instructions.map(|found| {
                let source = format!("dimmer probe: instructions, {} class", class.class);
                Sourced::new(nearest(found.median).max(1), source)
                    .with_interval(nearest(found.ci95.0).max(1), nearest(found.ci95.1).max(1))
            }),
            instructions_log_sd: None,
            density_per_cycle: None,
            grant_ns: None,
            grant_log_sd: None,
        });
    }
}

/// The level whose ratio is closest.
fn level_of(model: &Model, estimate: &Estimate) -> u32 {
    let distance = |level: &Level| {
        level.clock_ratio.as_ref().map_or(f64::INFINITY, |r| (r.value - estimate.median).abs())
    };
    let closest = (0..model.levels.len())
        .min_by(|a, b| distance(&model.levels[*a]).total_cmp(&distance(&model.levels[*b])));
    closest.and_then(|index| u32::try_from(index).ok()).unwrap_or(0)
}

/// The throttling that an outcome measured.
fn throttling(outcome: &Outcome) -> Option<Throttling> {
    match &outcome.detail {
        Detail::Downclock(found) => found.throttling.clone(),
        Detail::Episode(found) => found.throttling.clone(),
        Detail::Throttle(found) => found.throttling.clone(),
        _ => None,
    }
}

/// Adds what the outcomes show about how levels are requested: each value by the first that has it.
fn add_request(model: &mut Model, outcomes: &[&Outcome]) {
    if let Some((outcome, found)) = outcomes.iter().find_map(|o| Some((o, throttling(o)?))) {
        model.request.throttle_factor = Some(ratio(&found.throttle_factor, outcome));
        model.request.throttled_ns = Some(time(found.throttled_ns.estimate, outcome));
    }
    // The heaviest code that was seen to lower the clock, without a stall, shows that there is
    // none: what lighter code has is not that of a request.
    let mut with_effect = outcomes.iter().filter(|outcome| outcome.effect);
    let stall = with_effect.find_map(|outcome| match &outcome.detail {
        Detail::Downclock(found) => {
            Some(found.stall_ns.as_ref().map(|stall| time(stall.estimate, outcome)))
        }
        _ => None,
    });
    model.request.stall_ns = stall.flatten();
}

/// Adds what the outcomes show about how levels are released: each value by the first that has it.
fn add_release(model: &mut Model, outcomes: &[&Outcome]) {
    let of_mode = |mode: Mode| outcomes.iter().find(|o| o.mode == mode && o.effect);
    // An isolated burst, or a settled stretch if no burst was measured.
    let episode = of_mode(Mode::Episode).or_else(|| of_mode(Mode::Upclock));
    if let Some((outcome, Detail::Episode(found))) = episode.map(|o| (o, &o.detail)) {
        let of = |quantity: &Option<crate::outcome::Quantity>| {
            quantity.as_ref().map(|quantity| time(quantity.estimate, outcome))
        };
        model.release.hold_ns = of(&found.release_delay_ns);
        model.release.stall_ns = of(&found.release_stall_ns);
        model.release.episode_ns = found.mean_extra_ns.map(|mean| time(mean, outcome));
    } else if let Some(without) = outcomes.iter().find(|outcome| outcome.mode == Mode::Episode) {
        // Long stretches lower the clock, and of a burst nothing is left after its end.
        let source = format!("{}: no effect above {:.0} ns", source(without), without.bound_ns);
        model.release.hold_ns = Some(Sourced::new(0, source));
    }
    let recurrence = usual_recurrence(outcomes);
    if let Some((outcome, Detail::Recurrence(found))) = recurrence.map(|o| (o, &o.detail)) {
        let hold_ns = model.release.hold_ns.as_ref().map_or(0, |hold| hold.value);
        let change = found.regime_change_us.map(|change| change.scaled(1000.0));
        // A change close to the hold is the hold itself, and not the memory of recurring bursts.
        model.release.recurrence_ns = change
            .map(|change| time(change, outcome))
            .filter(|change| change.value > hold_ns.saturating_mul(2));
        // A gap well below the change: close to it, chance delays the first kept burst.
        let change_us = found.regime_change_us.map_or(0.0, |change| change.median);
        let mut well_below = found.gaps.iter().rev().filter(|gap| 2.0 * gap.gap_us < change_us);
        let gap = well_below.find_map(|gap| Some((gap.gap_us, gap.kept_after_ms?)));
        let after = gap.filter(|_| model.release.recurrence_ns.is_some()).map(|(gap_us, ms)| {
            Sourced::new(
                nearest(ms * 1e6),
                format!("{} at gaps of {gap_us:.0} us", source(outcome)),
            )
        });
        model.release.recurrence_after_ns = after;
        // Without a change, what short bursts cost while the level is held, throttling included.
        let (kept_us, kept_below) = if model.release.recurrence_ns.is_some() {
            (LEAST_GAP_US..change_us, "up to the change")
        } else {
            (0.0..hold_ns as f64 / 1000.0, "below the hold")
        };
        model.release.recurrence_slowdown = while_kept(&found.gaps, kept_us).map(|share| {
            let (low, high) = share.ci95;
            let source = format!("{} at gaps {kept_below}", source(outcome));
            let rounded = |share: f64| (share.clamp(0.0, 1.0) * 1e4).round() / 1e4;
            Sourced::new(rounded(share.median), source).with_interval(rounded(low), rounded(high))
        });
    }
}

/// The recurrence of the heaviest code with an effect, or if there is none, of the heaviest. The
/// first one of a kernel is that of bursts of the usual length.
fn usual_recurrence<'a>(outcomes: &[&'a Outcome]) -> Option<&'a Outcome> {
    let mut kernels = BTreeSet::new();
    let of_mode = outcomes.iter().copied().filter(|outcome| outcome.mode == Mode::Recurrence);
    let usual: Vec<_> = of_mode.filter(|outcome| kernels.insert(&outcome.kernel)).collect();
    usual.iter().find(|outcome| outcome.effect).or(usual.first()).copied()
}

/// Adds how bursts slow code that are longer than those of the other values.
fn add_long_recurrences(model: &mut Model, outcomes: &[&Outcome]) {
    let Some(class) = outcomes.first().map(|outcome| outcome.class) else { return };
    let rules = model.rules.iter().filter(|rule| rule.class == class && rule.upper == Upper::Any);
    let Some(level) = rules.map(|rule| rule.level.value).max() else { return };
    let of = |value: &Option<Sourced<u64>>| value.as_ref().map_or(0.0, |ns| ns.value as f64);
    let release = &model.release;
    let kept_below_ns = of(&release.recurrence_ns).max(of(&release.hold_ns));
    let lowered = model.levels.get(usize::try_from(level.index()).unwrap_or(usize::MAX));
    let lowered = lowered.and_then(|level| Some(1.0 / level.clock_ratio.as_ref()?.value - 1.0));
    let kept = release.recurrence_slowdown.as_ref().map(|share| share.value).or(lowered);
    let usual =
        Usual { kept_below_ns, kept: kept.unwrap_or(0.0), episode_ns: of(&release.episode_ns) };
    let of_class: Vec<&Outcome> =
        outcomes.iter().filter(|outcome| outcome.class == class).copied().collect();
    model.long_recurrences = long_recurrence::recurrences(&of_class, level, &usual);
}

/// The shortest gap below a change at which the slow-down counts (us): in shorter ones it may be
/// throttling.
const LEAST_GAP_US: f64 = 5.0;

/// Slow-down of code at gaps in which the level is kept (a share): the mean over gaps, weighted by
/// how precisely each was measured.
fn while_kept(gaps: &[Gap], kept_us: Range<f64>) -> Option<Estimate> {
    let below = gaps.iter().filter(|gap| kept_us.contains(&gap.gap_us));
    let (mut weights, mut sum) = (0.0_f64, 0.0);
    for slowdown in below.map(|gap| gap.slowdown_pct).filter(|one| one.half_width() > 0.0) {
        let weight = slowdown.half_width().powi(-2);
        weights += weight;
        sum += weight * slowdown.median / 100.0;
    }
    let (mean, half) = (sum / weights, 0.01 / weights.sqrt());
    (weights > 0.0).then_some(Estimate { median: mean, ci95: (mean - half, mean + half) })
}

fn time(estimate: Estimate, outcome: &Outcome) -> Sourced<u64> {
    Sourced::new(nearest(estimate.median), source(outcome))
        .with_interval(nearest(estimate.ci95.0), nearest(estimate.ci95.1))
}

/// A ratio, rounded to four digits, because no measurement gives more; above 0, at most 1.
fn ratio(estimate: &Estimate, outcome: &Outcome) -> Sourced<f64> {
    let rounded = |value: f64| ((value * 1e4).round() / 1e4).clamp(1e-4, 1.0);
    Sourced::new(rounded(estimate.median), source(outcome))
        .with_interval(rounded(estimate.ci95.0), rounded(estimate.ci95.1))
}
