//! The answer to the first question, in a sentence: is there an effect here, and how large?

use dimmer_probe::mode::Mode;
use dimmer_probe::outcome::{Detail, Downclock, Episode, Findings, Outcome};
use dimmer_probe::stats::Estimate;
use dimmer_processor::class::InstructionClass;

use crate::report::number::{counted, length, percent, time, time_estimate};
use crate::report::words::{absent, change_verdict, dip, partial, some_cost, worst_gap};

/// The page's heading and the sentences under it.
pub(super) struct Headline {
    pub(super) title: &'static str,
    pub(super) sentences: Vec<String>,
}

/// One kernel and all that was found out about it, in order.
pub(super) struct KernelFindings<'a> {
    pub(super) name: &'a str,
    pub(super) class: InstructionClass,
    pub(super) outcomes: Vec<&'a Outcome>,
}

impl<'a> KernelFindings<'a> {
    /// All outcomes but settled levels, which have a section of their own.
    pub(super) fn transitions(&self) -> impl Iterator<Item = &'a Outcome> {
        self.outcomes.iter().copied().filter(|outcome| outcome.mode != Mode::Levels)
    }

    /// The outcome of a mode that stands for it where there is room for one: the first with an
    /// effect, else the first.
    pub(super) fn shown(&self, mode: Mode) -> Option<&'a Outcome> {
        let mut of_mode = self.outcomes.iter().copied().filter(|outcome| outcome.mode == mode);
        let first = of_mode.next()?;
        if first.effect { Some(first) } else { of_mode.find(|o| o.effect).or(Some(first)) }
    }

    /// What isolated bursts of each length cost, ascending by instructions.
    pub(super) fn episodes(&self) -> Vec<(u32, Estimate)> {
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

    /// Whether any mode saw an effect.
    pub(super) fn has_effect(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome.effect)
    }
}

/// Outcomes by kernel, in order of first appearance.
pub(super) fn by_kernel(findings: &Findings) -> Vec<KernelFindings<'_>> {
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

/// Sums up.
pub(super) fn headline(findings: &Findings) -> Headline {
    let kernels = by_kernel(findings);
    let (with, without): (Vec<_>, Vec<_>) = kernels.iter().partition(|kernel| kernel.has_effect());
    let wide = |kernel: &&KernelFindings<'_>| kernel.class >= InstructionClass::Light256;
    let is_open = findings.outcomes.iter().any(|outcome| some_cost(outcome).is_some());
    let title = if kernels.is_empty() {
        "Nothing was measured."
    } else if with.iter().copied().any(|kernel| wide(&kernel)) {
        "Wide-vector code slows this machine down."
    } else if is_open {
        "Whether wide-vector code slows this machine down could not be told."
    } else if !with.is_empty() {
        "Some code slows this machine down, but no wide-vector code does."
    } else if without.iter().copied().any(|kernel| wide(&kernel)) {
        "Wide-vector code costs nothing on this machine."
    } else {
        "The code that was measured costs nothing on this machine."
    };
    let mut sentences: Vec<String> = [costliest, recurring, lowered, released]
        .into_iter()
        .filter_map(|of| of(findings))
        .collect();
    sentences.extend(tally(&with, &without));
    if findings.interrupted {
        sentences
            .push("The run was ended before all was done; what is here is complete.".to_owned());
    }
    Headline { title, sentences }
}

/// The isolated burst that costs most, of those that surely cost anything.
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

/// The kernel whose recurring bursts cost most, of those that surely cost anything.
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
        "Recurring bursts of `{}` make the code between them up to {} slower.",
        outcome.kernel,
        percent(gap.slowdown_pct.median / 100.0)
    );
    let change = change_verdict(recurrence).map(|change| format!(" {change}"));
    Some(slowdown + &change.unwrap_or_default())
}

/// The lowest clock of a stretch, and from when on; `None` if it is never surely lowered.
fn lowest(downclock: &Downclock) -> Option<(f64, f64)> {
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

/// The stretch that takes the clock down most, and where it ends.
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

/// How many kernels have an effect, and what is known of the others.
fn tally(with: &[&KernelFindings<'_>], without: &[&KernelFindings<'_>]) -> Option<String> {
    let outcomes = || without.iter().flat_map(|kernel| kernel.transitions());
    let episodes = outcomes().filter(|outcome| outcome.mode == Mode::Episode);
    // An episode's bound is a burst's; others are of longer stretches, and say less.
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
