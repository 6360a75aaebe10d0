//! Which bursts cost anything, and what a burst costs on average.
//!
//! On a shared machine the same burst may cost microseconds in one millisecond and nothing in the
//! next. (Why is not known: it was seen at every clock of the core, most at the highest, with bursts of every length,
//! for some milliseconds at a time.) A median over both would be a median of nothing, so the
//! two kinds are told apart by their cost. Baselines cost something now and then as well, when the
//! clock wanders or time is stolen; as many bursts do so by chance, and have to be taken out. How
//! many that is, the long stretches of scalar code before each burst tell.

use crate::stats::{self, Estimate, Samples, batch_mean95, floor_index, share95};

/// How many deviations of the baselines' costs a cost must be away from theirs to be something.
const APART: f64 = 5.0;

/// The smallest cost that counts as an effect of the clock (ns). A wide burst and its stand-in
/// leave branch predictors and front end in different states; on Zen 5 that was seen to cost the
/// code after it up to 6 ns, less than two mispredicted branches.
pub(crate) const SMALLEST_COST_NS: f64 = 20.0;

/// How improbable it must be that as many bursts cost something by chance; some ten thresholds are
/// tried, at nearly the same repetitions.
const BY_CHANCE: f64 = 1.0 / 30_000.0;

/// The share of the bursts above a threshold that must be there beyond chance. With fewer, what
/// bursts with the effect cost cannot be told from what any code costs by chance.
const PURE: f64 = 0.5;

/// What each repetition costs, in the order of time (ns).
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    /// What no effect costs, whatever it is: more is time that somebody else took (ns).
    pub(crate) most: f64,
    pub(crate) bursts: Vec<f64>,
    /// Beside each burst its baseline.
    pub(crate) baselines: Vec<f64>,
    /// Around each burst, stretches without burst or stand-in; none where there are no such.
    pub(crate) quiet: Vec<Vec<f64>>,
}

/// Which bursts have the effect.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Presence {
    /// The repetitions whose burst has it, ascending; `None` if they are of one kind.
    pub(crate) with: Option<Vec<usize>>,
    /// The share of bursts that cost something, less that by chance; `None` with fewer than two
    /// repetitions.
    pub(crate) share: Option<Estimate>,
}

impl Costs {
    /// What a burst costs on average, those without the effect included. Time stolen for long must
    /// not drown everything else: a cost beyond the most counts as that much.
    pub(crate) fn mean(&self) -> Option<Estimate> {
        // What the instrument itself costs is in the median of each kind of epoch.
        let typical = |costs: Samples| costs.quantile(0.5).unwrap_or(0.0);
        let stand_in = typical(self.baselines.iter().copied().collect());
        let nothing = typical(self.quiet.iter().flatten().copied().collect());
        let capped = |cost: f64| cost.clamp(-self.most, self.most);
        let differences = self.against_chance(
            |burst| capped(burst - stand_in),
            |baseline| capped(baseline - stand_in),
            |quiet| capped(quiet - nothing),
        );
        let (mean, half) = batch_mean95(&differences)?;
        Some(Estimate { median: mean, ci95: (mean - half, mean + half) })
    }

    /// Tells bursts with the effect from those without.
    pub(crate) fn presence(&self) -> Presence {
        let Some((typical, least)) = self.noise() else {
            return Presence { with: None, share: None };
        };
        let Some(threshold) = self.threshold(typical, least) else {
            return Presence { with: None, share: self.share_above(typical + least) };
        };
        let with = self.above_beyond_chance(threshold);
        let costs: Samples = with.iter().map(|&index| self.bursts[index]).collect();
        // Two kinds, not the tail of one: those with the effect lie well above the noise.
        let two = costs.quantile(0.5).is_some_and(|middle| middle > typical + 2.0 * least);
        Presence { with: two.then_some(with), share: self.share_above(threshold) }
    }

    /// A cost above which bursts stand out from chance; `None` if they do nowhere. Of those as
    /// good as the best, within the standard deviation that is their noise, the highest: there
    /// least happens by chance.
    fn threshold(&self, typical: f64, least: f64) -> Option<f64> {
        let thresholds = std::iter::successors(Some(least), |above| Some(2.0 * above))
            .take_while(|above| *above < self.most)
            .map(|above| typical + above);
        let tell =
            |threshold: &f64| self.exceeds_chance(*threshold) && self.exceeds_baselines(*threshold);
        let tried: Vec<(f64, f64)> = thresholds
            .filter(|threshold| self.is_pure(*threshold) && tell(threshold))
            .map(|threshold| (threshold, self.stands_out(threshold)))
            .collect();
        let best = tried.iter().map(|(_, stands_out)| *stands_out).fold(0.0, f64::max);
        let good = tried.iter().filter(|(_, stands_out)| *stands_out >= best - 1.0);
        good.map(|(threshold, _)| *threshold).next_back()
    }

    /// How many more bursts than by chance cost more than this.
    pub(crate) fn more_above(&self, threshold: f64) -> usize {
        floor_index(self.beyond_chance(threshold) + 0.5)
    }

    fn beyond_chance(&self, threshold: f64) -> f64 {
        let chances = self.chances(threshold).len() as f64;
        self.above(threshold) as f64 - chances / self.chances_a_burst()
    }

    /// Whether most bursts that cost more than this have the effect.
    fn is_pure(&self, threshold: f64) -> bool {
        self.beyond_chance(threshold) >= PURE * self.above(threshold) as f64
    }

    /// What a baseline typically costs, and how much more is beyond its noise; `None` without any.
    fn noise(&self) -> Option<(f64, f64)> {
        let baselines = Samples::new(self.baselines.clone());
        let typical = baselines.quantile(0.5)?;
        let away: Samples = baselines.values().iter().map(|cost| (cost - typical).abs()).collect();
        // 1.4826 median deviations are a standard deviation of normal errors.
        let deviation = 1.4826 * away.quantile(0.5)?;
        Some((typical, (APART * deviation).max(SMALLEST_COST_NS)))
    }

    /// How many bursts cost more than this.
    fn above(&self, threshold: f64) -> usize {
        self.bursts.iter().filter(|cost| self.is_above(**cost, threshold)).count()
    }

    fn is_above(&self, cost: f64, threshold: f64) -> bool {
        cost > threshold && cost < self.most
    }

    /// What cost more than this without a burst, ascending.
    fn chances(&self, threshold: f64) -> Samples {
        let all = self.baselines.iter().chain(self.quiet.iter().flatten());
        all.copied().filter(|cost| self.is_above(*cost, threshold)).collect()
    }

    /// How often it was looked what happens by chance, for each burst.
    fn chances_a_burst(&self) -> f64 {
        let quiet: usize = self.quiet.iter().map(Vec::len).sum();
        (self.baselines.len() + quiet) as f64 / self.bursts.len().max(1) as f64
    }

    /// By how many standard deviations more bursts cost more than this than by chance, both being
    /// rare events of one frequency if there is no effect.
    fn stands_out(&self, threshold: f64) -> f64 {
        let bursts = self.above(threshold) as f64;
        let (chances, each) = (self.chances(threshold).len() as f64, self.chances_a_burst());
        let expected = (bursts + chances) / (1.0 + each);
        (bursts - chances / each) / (expected * (1.0 + 1.0 / each)).sqrt().max(1.0)
    }

    /// Whether too many bursts cost more than this to do so by chance.
    fn exceeds_chance(&self, threshold: f64) -> bool {
        let bursts = self.above(threshold);
        let all = bursts + self.chances(threshold).len();
        stats::at_least(bursts, all, 1.0 / (1.0 + self.chances_a_burst())) < BY_CHANCE
    }

    /// Whether more bursts than baselines cost more than this, by a sign test at two standard
    /// deviations: what stretches without a stand-in cannot tell is what any code leaves behind.
    fn exceeds_baselines(&self, threshold: f64) -> bool {
        let baselines = self.baselines.iter().filter(|cost| self.is_above(**cost, threshold));
        let baselines = baselines.count() as f64;
        let bursts = self.above(threshold) as f64;
        bursts - baselines > 2.0 * (bursts + baselines).sqrt()
    }

    /// The share of bursts above the threshold, less that by chance.
    fn share_above(&self, threshold: f64) -> Option<Estimate> {
        let mark = |cost: f64| f64::from(u8::from(self.is_above(cost, threshold)));
        share95(&self.against_chance(mark, mark, mark))
    }

    /// A value of each burst, less the mean of the values of what happened around it by chance.
    fn against_chance(
        &self,
        burst: impl Fn(f64) -> f64,
        baseline: impl Fn(f64) -> f64,
        quiet: impl Fn(f64) -> f64,
    ) -> Vec<f64> {
        let both = self.bursts.iter().zip(&self.baselines).enumerate();
        let difference = |(index, (own, beside)): (usize, (&f64, &f64))| {
            let around = self.quiet.get(index).map(Vec::as_slice).unwrap_or_default();
            let chance = baseline(*beside) + around.iter().map(|cost| quiet(*cost)).sum::<f64>();
            burst(*own) - chance / (1.0 + around.len() as f64)
        };
        both.map(difference).collect()
    }

    /// The bursts above the threshold, without as many as it is by chance: for each of these the
    /// burst is left out that is nearest in cost to what happened by chance.
    fn above_beyond_chance(&self, threshold: f64) -> Vec<usize> {
        let bursts = self.bursts.iter().enumerate();
        let bursts = bursts.filter(|(_, cost)| self.is_above(**cost, threshold));
        let mut with: Vec<usize> = bursts.map(|(index, _)| index).collect();
        let chances = self.chances(threshold);
        let number = floor_index(chances.len() as f64 / self.chances_a_burst() + 0.5);
        for index in 0..number {
            let Some(chance) = chances.quantile((index as f64 + 0.5) / number as f64) else {
                break;
            };
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
        let mut costs =
            Costs { most: 10_000.0, bursts: Vec::new(), baselines: Vec::new(), quiet: Vec::new() };
        for index in 0..1000 {
            costs.bursts.push(one(if with(index) { 1400.0 } else { 0.0 }));
            costs.baselines.push(one(0.0));
            costs.quiet.push((0..8).map(|_| one(0.0)).collect());
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
    fn what_stand_ins_cost_as_well_is_no_effect() {
        let mut costs = costs(0.02, |index| index % 10 == 0);
        for index in (5..1000).step_by(10) {
            costs.baselines[index] += 1400.0;
        }
        assert_eq!(costs.presence().with, None);
    }

    #[test]
    fn two_in_a_hundred_are_found_among_as_many_chances() {
        let presence = costs(0.02, |index| index % 50 == 0).presence();
        assert!(
            presence.with.as_ref().is_some_and(|with| (15..=25).contains(&with.len())),
            "{presence:?}"
        );
    }

    #[test]
    fn a_few_among_many_chances_have_no_cost() {
        // Of the bursts, 6 % cost 300 ns and 12 % as much by chance: which is which, nobody can tell.
        let mut costs = costs(0.0, |_| false);
        let often = |index: usize, of: usize| if index.is_multiple_of(of) { 300.0 } else { 0.0 };
        for index in 0..1000 {
            costs.bursts[index] += often(index, 8) + often(index + 1, 16);
            costs.baselines[index] += often(index, 8);
            costs.quiet[index].iter_mut().for_each(|cost| *cost += often(index, 8));
        }
        let presence = costs.presence();
        assert_eq!(presence.with, None);
        assert!(presence.share.unwrap().ci95.0 > 0.05, "{:?}", presence.share);
    }

    #[test]
    fn without_quiet_stretches_the_baselines_tell_chance() {
        let mut costs = costs(0.05, |index| index % 10 == 0);
        costs.quiet.clear();
        let share = costs.presence().share.unwrap();
        assert!(share.ci95.0 < 0.1 && 0.1 < share.ci95.1, "{share:?}");
    }

    #[test]
    fn absent_bounds_what_a_minority_would_cost() {
        let bound = |costs: &Costs| costs.mean().unwrap().bound();
        let too_few = costs(0.05, |index| index % 100 == 0);
        assert!(bound(&too_few) > 14.0, "{}", bound(&too_few));
        let none = costs(0.0, |_| false);
        assert!(bound(&none) < 5.0, "{}", bound(&none));
    }

    #[test]
    fn time_stolen_for_long_does_not_drown_the_mean() {
        let mut costs = costs(0.0, |_| false);
        costs.bursts[500] = 5e6;
        assert!(costs.mean().unwrap().median < 15.0);
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
        let costs =
            Costs { most: 10_000.0, bursts: Vec::new(), baselines: Vec::new(), quiet: Vec::new() };
        assert_eq!(costs.presence(), Presence { with: None, share: None });
        assert_eq!(costs.mean(), None);
    }
}
