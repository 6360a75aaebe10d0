//! The number of instructions that cause the effect: the thesis's REQUIRED_INSTRUCTIONS mode (paper
//! 000 §3.2.5).
//!
//! The thesis added one instruction at a time until the license changed, and repeated that a
//! thousand times. Here every count is tried a number of times, and the cost of each repetition
//! shows whether it had an effect. The share of bursts with an effect, as a function of the count,
//! is the distribution of the required number. Bursts have bare operands: there is no vector
//! instruction that is not counted.

use super::Mode;
use super::episode;
use crate::epoch::{self, Epochs, Plan};
use crate::lab::{LEAST_USABLE, Lab, ModeError, check_usable};
use crate::outcome::{Detail, Instructions, Outcome};
use crate::program::Operands;
use crate::response::{self, Response};
use crate::stats::Estimate;

/// The longest burst tried. 256-bit multiply-adds need up to 30 845 on Skylake-X (paper 000
/// §3.3.3).
const LONGEST: u32 = 65_536;

/// Maximum number of repetitions at one count, as a factor of the usual number. If few bursts have
/// the effect at all, more repetitions are necessary to see any.
const MOST_ROUNDS: usize = 5;

/// Minimum number of the longest bursts, measured beside each count, that have the effect.
const LEAST_REFERENCE: usize = 20;

/// Measures the distribution of the required number.
pub(crate) fn measure(lab: &mut Lab<'_>) -> Result<Outcome, ModeError> {
    let look = episode::look(lab, LONGEST, Operands::Bare)?;
    let mut plan = episode::plan(lab, LONGEST, Operands::Bare, &look);
    let repetitions = if lab.is_quick() { 20 } else { 100 };
    let repetitions = repetitions.min(lab.settings.repetitions);
    plan.batch = plan.batch.min(repetitions);
    let saturated = repeat(lab, &plan, repetitions)?;
    check_usable(saturated.len(), &format!("burst of {LONGEST} instructions"))?;
    let full = response::analyse(lab.calibration, &saturated.own);
    let mut detail = Instructions { response: Vec::new(), quantiles: Vec::new(), median: None };
    let mut totals = Totals::default();
    totals.add(&saturated);
    if full.effect {
        let sweep = Sweep { plan: plan.clone(), repetitions, full: full.clone() };
        let mut response = Vec::new();
        let mut count = 1;
        while count <= LONGEST {
            let point = sweep.share_at(lab, count, &mut totals)?;
            response.extend(point);
            if point.is_some_and(Point::suffices_always) && (response.len() > 1 || count == 1) {
                break;
            }
            count = count.saturating_mul(2);
        }
        for _ in 0..if lab.is_quick() { 3 } else { 8 } {
            let Some(between) = widest_step(&response) else { break };
            let Some(point) = sweep.share_at(lab, between, &mut totals)? else { break };
            response.push(point);
            response.sort_unstable_by_key(|point| point.instructions);
        }
        detail = distribution(&response);
    }
    Ok(Outcome {
        repetitions: totals.repetitions,
        disturbed_windows: totals.disturbed,
        stolen_windows: totals.stolen,
        preemptions: totals.preemptions,
        effect: full.effect,
        bound_ns: full.bound_ns(),
        horizon_ns: full.horizon_ns,
        ..lab.outcome(Mode::Instructions, Detail::Instructions(detail))
    })
}

/// The bursts of one length.
#[derive(Clone, Copy, Debug)]
struct Point {
    instructions: u32,
    /// Share with an effect, over that of the longest bursts; at most 1.
    share: f64,
    /// Number of bursts.
    tried: usize,
    /// Number of the longest bursts, tried in turn with these, that had the effect: as many of
    /// these as could have had it.
    could: usize,
}

impl Point {
    /// Whether the share may well be 1: two standard errors reach it.
    fn suffices_always(self) -> bool {
        let Self { share, could, .. } = self;
        share + 2.0 * (share * (1.0 - share) / could.max(1) as f64).sqrt() >= 1.0
    }
}

/// The measurement of the counts.
struct Sweep {
    /// Plan of the longest burst.
    plan: Plan,
    repetitions: usize,
    /// Response to the longest burst.
    full: Response,
}

impl Sweep {
    /// Measures bursts of `count` instructions, in turn with the longest ones. `None` if even the
    /// longest bursts hardly had any effect in the meantime, as may happen on a shared machine, or
    /// nearly all bursts were interrupted.
    fn share_at(
        &self,
        lab: &mut Lab<'_>,
        count: u32,
        totals: &mut Totals,
    ) -> Result<Option<Point>, ModeError> {
        let short = Plan { instructions: count, ..self.plan.clone() };
        let least = LEAST_REFERENCE.min(self.repetitions / 2);
        let most = MOST_ROUNDS * self.repetitions;
        let (mut tried, mut reference) = (Epochs::default(), Epochs::default());
        while tried.len() < self.repetitions || self.hits(&reference) < least {
            epoch::run(lab, &short, &mut tried)?;
            epoch::run(lab, &self.plan, &mut reference)?;
            if tried.len() + tried.discarded >= most {
                break;
            }
        }
        totals.add(&tried);
        totals.add(&reference);
        let share = |epochs: &Epochs| self.hits(epochs) as f64 / epochs.len() as f64;
        let could = self.hits(&reference);
        let is_enough = could >= least.max(1) && tried.len() >= LEAST_USABLE;
        Ok(is_enough.then(|| Point {
            instructions: count,
            share: (share(&tried) / share(&reference)).min(1.0),
            tried: tried.len(),
            could,
        }))
    }

    /// Number of bursts that cost more than half of an effect's cost, less the number by chance.
    fn hits(&self, epochs: &Epochs) -> usize {
        let half = self.full.extra_ns.quantile(0.5).unwrap_or(f64::INFINITY) / 2.0;
        self.full.costs(&epochs.own).more_above(half)
    }
}

fn repeat(lab: &mut Lab<'_>, plan: &Plan, repetitions: usize) -> Result<Epochs, ModeError> {
    let mut epochs = Epochs::default();
    while epochs.len() + epochs.discarded < repetitions {
        epoch::run(lab, plan, &mut epochs)?;
    }
    Ok(epochs)
}

/// Sums over all counts.
#[derive(Debug, Default)]
struct Totals {
    repetitions: usize,
    disturbed: usize,
    stolen: usize,
    preemptions: u64,
}

impl Totals {
    fn add(&mut self, epochs: &Epochs) {
        self.repetitions += epochs.len();
        self.disturbed += epochs.disturbed();
        self.stolen += epochs.stolen();
        self.preemptions += epochs.preemptions;
    }
}

/// The most informative next count: in the middle of the largest step of the share, if that is more
/// than a quarter and there is a number in between.
fn widest_step(response: &[Point]) -> Option<u32> {
    let steps = response
        .windows(2)
        .map(|pair| (pair[1].share - pair[0].share, pair[0].instructions, pair[1].instructions));
    let open = steps.filter(|(step, low, high)| *step > 0.25 && high - low > 1);
    let widest = open.max_by(|a, b| a.0.total_cmp(&b.0))?;
    let middle = (f64::from(widest.1) * f64::from(widest.2)).sqrt();
    let middle = crate::lab::floor_u32(middle + 0.5);
    Some(middle.clamp(widest.1 + 1, widest.2 - 1))
}

/// Quantiles of the required number, from the share at each count. The shares are first made
/// monotone (by pooling adjacent violators).
fn distribution(response: &[Point]) -> Instructions {
    let monotone = monotone(response);
    let at = |share: f64| -> Option<f64> {
        let index = monotone.iter().position(|point| point.1 >= share)?;
        let (count, reached) = monotone[index];
        let (below, before) = index.checked_sub(1).map_or((count, 0.0), |i| monotone[i]);
        // Linear in the logarithm of the count, because the counts are spaced so.
        let part = if reached > before { (share - before) / (reached - before) } else { 1.0 };
        Some((below.ln() + (count.ln() - below.ln()) * part.clamp(0.0, 1.0)).exp())
    };
    let quantiles = [0.05, 0.25, 0.5, 0.75, 0.95];
    let quantiles = quantiles.into_iter().filter_map(|share| Some((share, at(share)?))).collect();
    let median = at(0.5).map(|median| {
        // The share at the median is binomial: its error is half a standard deviation of the
        // sample, carried back through the curve.
        let n = response.iter().map(|point| point.could).min().unwrap_or(1).max(1) as f64;
        let error = 1.96 * 0.5 / n.sqrt();
        let ends = (at((0.5 - error).max(0.0)), at((0.5 + error).min(1.0)));
        Estimate { median, ci95: (ends.0.unwrap_or(median), ends.1.unwrap_or(median)) }
    });
    let response = response.iter().map(|point| (point.instructions, point.share, point.tried));
    Instructions { response: response.collect(), quantiles, median }
}

fn monotone(response: &[Point]) -> Vec<(f64, f64)> {
    // Each block: the counts that it spans, mean share, weight.
    let mut blocks: Vec<(Vec<u32>, f64, f64)> = Vec::new();
    for Point { instructions, share, could, .. } in response {
        blocks.push((vec![*instructions], *share, *could as f64));
        while let [.., before, last] = blocks.as_slice()
            && before.1 > last.1
        {
            let weight = before.2 + last.2;
            let share = (before.1 * before.2 + last.1 * last.2) / weight;
            let counts = before.0.iter().chain(&last.0).copied().collect();
            blocks.truncate(blocks.len() - 2);
            blocks.push((counts, share, weight));
        }
    }
    let points = blocks.into_iter().flat_map(|(counts, share, _)| {
        counts.into_iter().map(move |count| (f64::from(count), share))
    });
    points.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bursts of these lengths, with their shares and the number that could have had the effect.
    fn points(points: &[(u32, f64, usize)]) -> Vec<Point> {
        let point = |&(instructions, share, could): &(u32, f64, usize)| Point {
            instructions,
            share,
            tried: 2 * could,
            could,
        };
        points.iter().map(point).collect()
    }

    #[test]
    fn distribution_of_a_sharp_threshold() {
        let found =
            distribution(&points(&[(1, 0.0, 50), (9, 0.0, 50), (10, 1.0, 50), (16, 1.0, 50)]));
        assert_eq!(found.response[1], (9, 0.0, 100));
        let median = found.median.unwrap();
        assert!((9.0..=10.0).contains(&median.median), "{median:?}");
        assert!((9.0..=10.0).contains(&median.ci95.0) && median.ci95.1 <= 10.0);
    }

    #[test]
    fn one_instruction_is_found_as_one() {
        let found = distribution(&points(&[(1, 1.0, 50)]));
        assert_eq!(found.median.unwrap().median, 1.0);
    }

    #[test]
    fn violators_are_pooled() {
        let given = points(&[(1, 0.0, 10), (2, 0.6, 10), (4, 0.4, 10), (8, 1.0, 10)]);
        let points = monotone(&given);
        assert_eq!(points, [(1.0, 0.0), (2.0, 0.5), (4.0, 0.5), (8.0, 1.0)]);
    }

    #[test]
    fn no_response_has_no_quantiles() {
        let found = distribution(&points(&[(1, 0.0, 50), (2, 0.02, 50)]));
        assert!(found.median.is_none() && found.quantiles.is_empty());
    }
}
