//! The answer to the first question: does wide SIMD code slow this machine down, from which rate
//! of bursts on, how much at worst, and what to do next.

use std::collections::BTreeSet;

use dimmer_probe::kernel;
use dimmer_probe::mode::Mode;
use dimmer_probe::outcome::{Detail, Downclock, Episode, Findings, Outcome, Skipped};
use dimmer_probe::stats::Estimate;
use dimmer_processor::class::InstructionClass;

use super::words::{absent, change_verdict, dip, partial, some_cost, worst_gap};
use crate::number::{counted, grouped, length, percent, time, time_estimate};

/// Whether wide SIMD code has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It slows the machine down.
    Yes,
    /// It does not, as far as was measured.
    No,
    /// Chance explains what was seen as well, or interrupts left too little to see.
    Open,
    /// No wide SIMD code was measured.
    NotMeasured,
}

impl Effect {
    /// The name in results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Open => "open",
            Self::NotMeasured => "not-measured",
        }
    }
}

/// The verdict of a probe.
pub(crate) struct Verdict {
    pub(crate) effect: Effect,
    /// One sentence.
    pub(crate) title: &'static str,
    /// What was measured, in a sentence.
    measured: String,
    /// The costliest findings, in sentences.
    pub(crate) sentences: Vec<String>,
    /// `None` if no isolated bursts were measured.
    pub(crate) break_even: Option<BreakEven>,
    /// The largest slowdown that surely was seen, of code between bursts or of the clock (%).
    pub(crate) worst_pct: Option<f64>,
}

/// The rate of isolated bursts at which the code after them loses [`LOSS`] of a core's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BreakEven {
    /// Bursts a second, on one core.
    pub(crate) per_second: f64,
    /// Whether no cost was found, so that the true rate is higher.
    pub(crate) is_bound: bool,
    /// Instructions in a burst.
    pub(crate) instructions: u32,
}

/// The share of a core's time that [`BreakEven`] is about: less is lost in noise on most machines.
const LOSS: f64 = 0.01;

impl Verdict {
    /// What to do next.
    pub(crate) const fn next(&self) -> &'static str {
        match self.effect {
            Effect::Yes => "`dimmer observe -- YOUR-PROGRAM` shows which functions cause it",
            Effect::No => "nothing to do: leave wide SIMD code as it is on this machine",
            Effect::Open => "probe again when the machine is idle, or without --quick",
            Effect::NotMeasured => "`dimmer probe` without --kernel measures wide SIMD code",
        }
    }

    /// The verdict in lines of text.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.title.to_owned()];
        if self.effect == Effect::No {
            lines.push(self.measured.clone());
        }
        if let Some(BreakEven { per_second, is_bound, instructions }) = self.break_even {
            let rate = length_of_rate(per_second);
            let burst = counted(instructions as usize, "instruction");
            lines.push(if is_bound {
                format!(
                    "Break-even: none found; even {rate} isolated bursts of {burst} a second cost \
                     less than 1 % of a core's time."
                )
            } else {
                format!(
                    "Break-even: {rate} isolated bursts of {burst} a second cost 1 % of a core's time."
                )
            });
        }
        match self.worst_pct {
            Some(worst) => {
                lines.push(format!("Worst case: up to {} slower.", percent(worst / 100.0)));
            }
            None if self.effect == Effect::NotMeasured => {}
            None => lines.push("Worst case: no slowdown was found.".to_owned()),
        }
        lines.push(format!("Next: {}.", self.next()));
        lines
    }
}

/// A rate to two digits.
fn length_of_rate(per_second: f64) -> String {
    let step = 10_f64.powf(per_second.max(1.0).log10().floor() - 1.0).max(1.0);
    grouped((per_second / step).floor() * step, 0)
}

/// The costliest isolated burst, or what one costs at most.
fn break_even(findings: &Findings) -> Option<BreakEven> {
    let episodes = || {
        findings.outcomes.iter().filter_map(|outcome| match &outcome.detail {
            Detail::Episode(episode) if outcome.mode == Mode::Episode => Some((outcome, episode)),
            _ => None,
        })
    };
    let surely = |(_, episode): &(&Outcome, &Episode)| episode.extra_ns.estimate.ci95.0 > 0.0;
    let cost = |(_, episode): (&Outcome, &Episode)| {
        // Where only some bursts cost anything, the mean over all of them counts.
        let mean = episode.mean_extra_ns.filter(|_| partial(episode.effect_share).is_some());
        (mean.unwrap_or(episode.extra_ns.estimate).median, episode.burst_instructions)
    };
    let with = episodes().filter(|(outcome, _)| outcome.effect).filter(surely).map(cost);
    let found = with.filter(|(ns, _)| *ns > 0.0).max_by(|a, b| a.0.total_cmp(&b.0));
    let bound = || {
        let bounds =
            episodes().map(|(outcome, episode)| (outcome.bound_ns, episode.burst_instructions));
        bounds.filter(|(ns, _)| *ns > 0.0).max_by(|a, b| a.0.total_cmp(&b.0))
    };
    let is_bound = found.is_none();
    let (ns, instructions) = found.or_else(bound)?;
    Some(BreakEven { per_second: LOSS * 1e9 / ns, is_bound, instructions })
}

/// The largest sure slowdown (%): of code between recurring bursts, or of a stretch's clock.
fn worst_pct(findings: &Findings) -> Option<f64> {
    let of = |outcome: &Outcome| match &outcome.detail {
        Detail::Recurrence(recurrence) => Some(worst_gap(recurrence)?.slowdown_pct.median),
        Detail::Downclock(downclock) => Some(100.0 * (1.0 / lowest(downclock)?.0 - 1.0)),
        _ => None,
    };
    let worst = findings.outcomes.iter().filter(|outcome| outcome.effect).filter_map(of);
    worst.filter(|pct| *pct > 0.0).max_by(f64::total_cmp)
}

/// One kernel and all its outcomes, in order.
pub(crate) struct KernelFindings<'a> {
    pub(crate) name: &'a str,
    pub(crate) class: InstructionClass,
    pub(crate) outcomes: Vec<&'a Outcome>,
}

impl<'a> KernelFindings<'a> {
    /// All outcomes except settled levels, which have their own section.
    pub(crate) fn transitions(&self) -> impl Iterator<Item = &'a Outcome> {
        self.outcomes.iter().copied().filter(|outcome| outcome.mode != Mode::Levels)
    }

    /// The outcome that represents a mode if there is room for one: the first with an effect, or
    /// the first if none has one.
    pub(crate) fn shown(&self, mode: Mode) -> Option<&'a Outcome> {
        let mut of_mode = self.outcomes.iter().copied().filter(|outcome| outcome.mode == mode);
        let first = of_mode.next()?;
        if first.effect { Some(first) } else { of_mode.find(|o| o.effect).or(Some(first)) }
    }

    /// The cost of isolated bursts of each length, in ascending order of instructions.
    pub(crate) fn episodes(&self) -> Vec<(u32, Estimate)> {
        let of_mode = self.outcomes.iter().filter(|outcome| outcome.mode == Mode::Episode);
        let mut costs: Vec<(u32, Estimate)> = of_mode
            .filter_map(|outcome| match &outcome.detail {
                Detail::Episode(episode) => {
                    Some((episode.burst_instructions, episode.extra_ns.estimate))
                }
                _ => None,
            })
            .collect();
        costs.sort_unstable_by_key(|cost| cost.0);
        costs
    }

    /// Whether any mode showed an effect.
    pub(crate) fn has_effect(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome.effect)
    }
}

/// Outcomes by kernel, in order of first appearance.
pub(crate) fn by_kernel(findings: &Findings) -> Vec<KernelFindings<'_>> {
    let mut kernels: Vec<KernelFindings<'_>> = Vec::new();
    for outcome in &findings.outcomes {
        match kernels.iter_mut().find(|kernel| kernel.name == outcome.kernel) {
            Some(kernel) => kernel.outcomes.push(outcome),
            None => kernels.push(KernelFindings {
                name: &outcome.kernel,
                class: outcome.class,
                outcomes: vec![outcome],
            }),
        }
    }
    kernels
}

/// Summarizes the findings.
pub(crate) fn of(findings: &Findings) -> Verdict {
    let kernels = by_kernel(findings);
    let (with, without): (Vec<_>, Vec<_>) = kernels.iter().partition(|kernel| kernel.has_effect());
    let wide = |kernel: &&KernelFindings<'_>| kernel.class >= InstructionClass::Light256;
    let is_open = findings.outcomes.iter().any(|outcome| some_cost(outcome).is_some())
        || findings.skipped.iter().any(|skipped| is_unanswered(findings, skipped));
    let (effect, title) = if with.iter().copied().any(|kernel| wide(&kernel)) {
        (Effect::Yes, "Wide SIMD code slows this machine down.")
    } else if is_open {
        (Effect::Open, "Whether wide SIMD code slows this machine down remains open.")
    } else if kernels.is_empty() {
        (Effect::NotMeasured, "Nothing was measured.")
    } else if !with.is_empty() {
        (Effect::No, "Some code slows this machine down, but no wide SIMD code does.")
    } else if without.iter().copied().any(|kernel| wide(&kernel)) {
        (Effect::No, "Wide SIMD code costs nothing on this machine.")
    } else {
        (Effect::NotMeasured, "The code that was measured costs nothing on this machine.")
    };
    let measured = measured(&kernels);
    let of_all = (effect == Effect::No).then(|| measured.clone());
    let found = [costliest, recurring, lowered, released].into_iter();
    let mut sentences: Vec<String> =
        of_all.into_iter().chain(found.filter_map(|of| of(findings))).collect();
    sentences.extend(tally(&with, &without));
    if findings.interrupted {
        sentences
            .push("The run was ended before all was done; what is here is complete.".to_owned());
    }
    Verdict {
        effect,
        title,
        measured,
        sentences,
        break_even: break_even(findings),
        worst_pct: worst_pct(findings),
    }
}

/// Whether this is wide SIMD code whose every measurement in this mode was disturbed.
fn is_unanswered(findings: &Findings, skipped: &Skipped) -> bool {
    let is_measured =
        |outcome: &Outcome| outcome.kernel == skipped.kernel && skipped.mode == Some(outcome.mode);
    skipped.is_disturbed
        && kernel::find(&skipped.kernel).is_ok_and(|kernel| kernel.is_wide())
        && !findings.outcomes.iter().any(is_measured)
}

/// How many kernels were measured, and of which classes of wide SIMD code.
fn measured(kernels: &[KernelFindings<'_>]) -> String {
    let wide: Vec<InstructionClass> = kernels
        .iter()
        .map(|kernel| kernel.class)
        .filter(|class| *class >= InstructionClass::Light256)
        .collect();
    let classes = BTreeSet::from_iter(wide.iter().copied());
    let classes: Vec<&str> = classes.iter().map(|class| class.name()).collect();
    let others = match kernels.len() - wide.len() {
        0 => String::new(),
        others => format!(", and {} of other code", length(others)),
    };
    format!(
        "Measured: {} of wide SIMD code ({}){others}.",
        counted(wide.len(), "kernel"),
        classes.join(", ")
    )
}

/// The most expensive isolated burst, of those that certainly cost anything.
fn costliest(findings: &Findings) -> Option<String> {
    let bursts = findings.outcomes.iter().filter(|outcome| outcome.effect).filter_map(|outcome| {
        match &outcome.detail {
            Detail::Episode(episode) if outcome.mode == Mode::Episode => Some((outcome, episode)),
            _ => None,
        }
    });
    let bursts = bursts.filter(|(_, episode)| episode.extra_ns.estimate.ci95.0 > 0.0);
    let cost = |(_, episode): &(_, &Episode)| episode.extra_ns.estimate.median;
    let (outcome, episode) = bursts.max_by(|a, b| cost(a).total_cmp(&cost(b)))?;
    let (extra, interval) = time_estimate(&episode.extra_ns.estimate);
    let share = partial(episode.effect_share).map(|share| {
        format!(" in {} of the cases, and too little to tell in the others", percent(share.median))
    });
    Some(format!(
        "The costliest isolated burst, {} of `{}`, costs the code after it {extra} {interval}{}.",
        counted(episode.burst_instructions as usize, "instruction"),
        outcome.kernel,
        share.unwrap_or_default()
    ))
}

/// The kernel whose recurring bursts cost most, of those that certainly cost anything.
fn recurring(findings: &Findings) -> Option<String> {
    let worst = findings.outcomes.iter().filter(|outcome| outcome.effect).filter_map(|outcome| {
        match &outcome.detail {
            Detail::Recurrence(recurrence) => Some((outcome, recurrence, worst_gap(recurrence)?)),
            _ => None,
        }
    });
    let (outcome, recurrence, gap) = worst
        .filter(|(_, _, gap)| gap.slowdown_pct.ci95.0 > 0.0)
        .max_by(|a, b| a.2.slowdown_pct.median.total_cmp(&b.2.slowdown_pct.median))?;
    let slowdown = format!(
        "Recurring bursts, {} of `{}` each, make the code between them up to {} slower.",
        counted(recurrence.burst_instructions as usize, "instruction"),
        outcome.kernel,
        percent(gap.slowdown_pct.median / 100.0)
    );
    let change = change_verdict(recurrence).map(|change| format!(" {change}"));
    Some(slowdown + &change.unwrap_or_default())
}

/// The lowest clock of a stretch, and the time from which it holds; `None` if it is never certainly
/// lowered.
pub(super) fn lowest(downclock: &Downclock) -> Option<(f64, f64)> {
    let on_the_way = downclock
        .lowest
        .as_ref()
        .map(|lowest| (lowest.clock_ratio.estimate.median, lowest.after_ns.estimate.median));
    let settled = downclock
        .settle_ns
        .as_ref()
        .map(|settle| (downclock.clock_ratio.estimate.median, settle.estimate.median));
    let dip = dip(downclock).map(|dip| (dip.clock_ratio.median, dip.at_ns));
    on_the_way.or(settled).or(dip)
}

/// The stretch that lowers the clock most, and where the clock settles.
fn lowered(findings: &Findings) -> Option<String> {
    let lowered = findings.outcomes.iter().filter(|outcome| outcome.effect).filter_map(|outcome| {
        match &outcome.detail {
            Detail::Downclock(downclock) => Some((outcome, downclock, lowest(downclock)?)),
            _ => None,
        }
    });
    let (outcome, downclock, (ratio, after_ns)) =
        lowered.min_by(|a, b| (a.2).0.total_cmp(&(b.2).0))?;
    let mut sentence = match partial(downclock.effect_share) {
        Some(share) => format!("In {} of the cases, a", percent(share.median)),
        None => "A".to_owned(),
    };
    sentence.push_str(&format!(
        " long stretch of `{}` takes the clock {} down within {}",
        outcome.kernel,
        percent(1.0 - ratio),
        time(after_ns)
    ));
    let settled = &downclock.clock_ratio.estimate;
    match &downclock.settle_ns {
        Some(settle) if downclock.lowest.is_some() => sentence.push_str(&format!(
            "; after {} it settles at {} of nominal",
            time(settle.estimate.median),
            percent(settled.median)
        )),
        None => sentence.push_str(", but not for long"),
        Some(_) => {}
    }
    Some(sentence + ".")
}

/// The longest time to the nominal clock after a long stretch.
fn released(findings: &Findings) -> Option<String> {
    let released =
        findings.outcomes.iter().filter(|outcome| outcome.effect).filter_map(|outcome| {
            match &outcome.detail {
                Detail::Episode(episode) if outcome.mode == Mode::Upclock => {
                    Some((outcome, episode.release_delay_ns.as_ref()?.estimate))
                }
                _ => None,
            }
        });
    let (outcome, delay) = released.max_by(|a, b| a.1.median.total_cmp(&b.1.median))?;
    let (delay, interval) = time_estimate(&delay);
    Some(format!(
        "After a long stretch of `{}` the nominal clock is back {delay} {interval} later.",
        outcome.kernel
    ))
}

/// How many kernels have an effect, and what is known about the others.
fn tally(with: &[&KernelFindings<'_>], without: &[&KernelFindings<'_>]) -> Option<String> {
    let outcomes = || without.iter().flat_map(|kernel| kernel.transitions());
    let episodes = outcomes().filter(|outcome| outcome.mode == Mode::Episode);
    // An episode's bound is for a burst; other bounds are for longer stretches, and say less.
    let largest = |a: &&Outcome, b: &&Outcome| a.bound_ns.total_cmp(&b.bound_ns);
    let bound = episodes.max_by(largest).or_else(|| outcomes().max_by(largest)).map(absent);
    let all = length(with.len() + without.len());
    match (with.len(), without.len(), bound) {
        (0, 1, Some(bound)) => Some(format!("In the kernel measured an effect is {bound}.")),
        (0, 2.., Some(bound)) => {
            Some(format!("In all {all} kernels measured an effect is {bound}."))
        }
        (some, 1.., Some(bound)) => Some(format!(
            "An effect was found in {} of {all} kernels; in the rest it is {bound}.",
            length(some)
        )),
        (some @ 2.., 0, _) => Some(format!("An effect was found in all {} kernels.", length(some))),
        _ => None,
    }
}
