//! Which bursts cost anything, and what a burst costs on average.
//!
//! On a shared machine the same burst may cost microseconds in one millisecond and nothing in the
//! next. (Why is not known: it was seen at every clock of the core and with bursts of every length,
//! for some milliseconds at a time.) A median over both would be a median of nothing, so the
//! two kinds are told apart by their cost. Baselines cost something now and then as well, when the
//! clock wanders or time is stolen; as many bursts do so by chance, and have to be taken out.

use crate::stats::{Estimate, Samples, batch_mean95, share95};

/// How many deviations of the baselines' costs a cost must be away from theirs to be something.
const APART: f64 = 5.0;

/// The smallest cost that counts as an effect of the clock (ns). A wide burst and its stand-in
/// leave branch predictors and front end in different states; on Zen 5 that was seen to cost the
/// code after it up to 6 ns, less than two mispredicted branches.
pub(crate) const SMALLEST_COST_NS: f64 = 20.0;

/// How many standard deviations more bursts than baselines must cost something: by chance one
/// threshold in 30 000 gives that, and some ten are tried, at nearly the same repetitions.
const STANDS_OUT: f64 = 4.0;

/// What each repetition costs, in the order of time (ns): bursts, and the baselines beside them.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    pub(crate) bursts: Vec<f64>,
    pub(crate) baselines: Vec<f64>,
}

/// Which bursts have the effect.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Presence {
    /// The repetitions whose burst has it, ascending; `None` if they are of one kind.
    pub(crate) with: Option<Vec<usize>>,
    /// The share of bursts that cost something, less that of baselines; `None` with fewer than two
    /// repetitions.
    pub(crate) share: Option<Estimate>,
}

impl Costs {
    /// What a burst costs on average, those without the effect included. Time stolen for long must
    /// not drown everything else: a cost beyond `cap_ns` counts as that much.
    pub(crate) fn mean(&self, cap_ns: f64) -> Option<Estimate> {
        let capped = |cost: &f64| cost.clamp(-cap_ns, cap_ns);
        let both = self.bursts.iter().zip(&self.baselines);
        let differences: Vec<f64> = both.map(|(a, b)| capped(a) - capped(b)).collect();
        let (mean, half) = batch_mean95(&differences)?;
        Some(Estimate { median: mean, ci95: (mean - half, mean + half) })
    }

    /// Tells bursts with the effect from those without.
    pub(crate) fn presence(&self) -> Presence {
        let Some((typical, least)) = self.noise() else {
            return Presence { with: None, share: None };
        };
        let thresholds = std::iter::successors(Some(least), |above| Some(2.0 * above));
        let highest = self.bursts.iter().copied().fold(f64::MIN, f64::max) - typical;
        let thresholds = thresholds.take_while(|above| *above < highest);
        let best = thresholds
            .map(|above| typical + above)
            .max_by(|a, b| self.stands_out(*a).total_cmp(&self.stands_out(*b)))
            .filter(|threshold| self.stands_out(*threshold) >= STANDS_OUT);
        let Some(threshold) = best else {
            return Presence { with: None, share: self.share_above(typical + least) };
        };
        let with = self.above_beyond_chance(threshold);
        let costs: Samples = with.iter().map(|&index| self.bursts[index]).collect();
        // Two kinds, not the tail of one: those with the effect lie well above the noise.
        let two = costs.quantile(0.5).is_some_and(|middle| middle > typical + 2.0 * least);
        Presence { with: two.then_some(with), share: self.share_above(threshold) }
    }

    /// How many more bursts than baselines cost more than this.
    pub(crate) fn more_above(&self, threshold: f64) -> usize {
        let (bursts, baselines) = self.above(threshold);
        bursts.saturating_sub(baselines)
    }

    /// What a baseline typically costs, and how much more is beyond its noise; `None` without any.
    fn noise(&self) -> Option<(f64, f64)> {
        let quiet = Samples::new(self.baselines.clone());
        let typical = quiet.quantile(0.5)?;
        let away: Samples = quiet.values().iter().map(|cost| (cost - typical).abs()).collect();
        // 1.4826 median deviations are a standard deviation of normal errors.
        let deviation = 1.4826 * away.quantile(0.5)?;
        Some((typical, (APART * deviation).max(SMALLEST_COST_NS)))
    }

    /// How many bursts and how many baselines cost more than this.
    fn above(&self, threshold: f64) -> (usize, usize) {
        let count = |costs: &[f64]| costs.iter().filter(|cost| **cost > threshold).count();
        (count(&self.bursts), count(&self.baselines))
    }

    /// By how many standard deviations more bursts than baselines cost more than this (a sign test).
    fn stands_out(&self, threshold: f64) -> f64 {
        let (bursts, baselines) = self.above(threshold);
        (bursts as f64 - baselines as f64) / ((bursts + baselines) as f64).sqrt().max(1.0)
    }

    /// The share of bursts above the threshold, less that of baselines.
    fn share_above(&self, threshold: f64) -> Option<Estimate> {
        let mark = |cost: &f64| f64::from(u8::from(*cost > threshold));
        let both = self.bursts.iter().zip(&self.baselines);
        share95(&both.map(|(burst, baseline)| mark(burst) - mark(baseline)).collect::<Vec<f64>>())
    }

    /// The bursts above the threshold, without as many as baselines are: for each such baseline
    /// the burst nearest to it in cost is left out.
    fn above_beyond_chance(&self, threshold: f64) -> Vec<usize> {
        let bursts = self.bursts.iter().enumerate().filter(|(_, cost)| **cost > threshold);
        let mut with: Vec<usize> = bursts.map(|(index, _)| index).collect();
        for chance in self.baselines.iter().filter(|cost| **cost > threshold) {
            let away = |index: &usize| (self.bursts[*index] - chance).abs();
            let nearest =
                (0..with.len()).min_by(|a, b| away(&with[*a]).total_cmp(&away(&with[*b])));
            if let Some(nearest) = nearest {
                with.remove(nearest);
            }
        }
        with
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1000 repetitions with noise of some 10 ns; in a share of them the clock wanders, which costs
    /// bursts and baselines 300 to 1300 ns alike; bursts in `with` cost 1400 ns more.
    fn costs(wanders: f64, with: impl Fn(usize) -> bool) -> Costs {
        let mut state = 88_172_645_463_325_252_u64;
        let mut uniform = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let mut one = |extra: f64| {
            let noise = 40.0 * (uniform() - 0.5);
            let chance = if uniform() < wanders { 300.0 + 1000.0 * uniform() } else { 0.0 };
            noise + chance + extra
        };
        let mut costs = Costs { bursts: Vec::new(), baselines: Vec::new() };
        for index in 0..1000 {
            costs.bursts.push(one(if with(index) { 1400.0 } else { 0.0 }));
            costs.baselines.push(one(0.0));
        }
        costs
    }

    #[test]
    fn chance_is_no_effect() {
        let presence = costs(0.1, |_| false).presence();
        assert_eq!(presence.with, None);
        let (low, high) = presence.share.unwrap().ci95;
        assert!(low == 0.0 && high < 0.04, "{presence:?}");
    }

    #[test]
    fn a_minority_is_found_among_as_many_chances() {
        let costs = costs(0.05, |index| index % 20 == 0);
        let presence = costs.presence();
        let with: Samples = presence.with.unwrap().iter().map(|&i| costs.bursts[i]).collect();
        let middle = with.quantile(0.5).unwrap();
        assert!((middle - 1400.0).abs() < 50.0, "{middle}");
        let share = presence.share.unwrap();
        assert!(share.ci95.0 < 0.05 && 0.05 < share.ci95.1, "{share:?}");
    }

    #[test]
    fn absent_bounds_what_a_minority_would_cost() {
        let bound = |costs: &Costs| costs.mean(10_000.0).unwrap().bound();
        let too_few = costs(0.05, |index| index % 100 == 0);
        assert!(bound(&too_few) > 14.0, "{}", bound(&too_few));
        let none = costs(0.0, |_| false);
        assert!(bound(&none) < 5.0, "{}", bound(&none));
    }

    #[test]
    fn time_stolen_for_long_does_not_drown_the_mean() {
        let mut costs = costs(0.0, |_| false);
        costs.bursts[500] = 5e6;
        assert!(costs.mean(10_000.0).unwrap().median < 15.0);
    }

    #[test]
    fn runs_of_bursts_with_the_effect_widen_the_interval() {
        let width = |costs: Costs| costs.presence().share.unwrap().half_width();
        let scattered = width(costs(0.0, |index| index % 3 == 0));
        let in_runs = width(costs(0.0, |index| index % 600 < 200));
        assert!(in_runs > 5.0 * scattered, "{in_runs} {scattered}");
    }

    #[test]
    fn bursts_that_all_cost_the_same_are_of_one_kind() {
        let mut costs = costs(0.0, |_| false);
        costs.bursts.iter_mut().for_each(|cost| *cost += 60.0);
        assert_eq!(costs.presence().with, None);
    }

    #[test]
    fn nothing_measured_is_nothing_told() {
        let costs = Costs { bursts: Vec::new(), baselines: Vec::new() };
        assert_eq!(costs.presence(), Presence { with: None, share: None });
        assert_eq!(costs.mean(1.0), None);
    }
}
