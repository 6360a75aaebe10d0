//! Finds the bursts that have a cost, and the mean cost of a burst.
//!
//! On a shared machine the same burst may cost microseconds in one millisecond and nothing in the
//! next. (The reason is not known. It was seen at every clock of the core, most often at the
//! highest, with bursts of every length, for some milliseconds at a time.) A median over both kinds
//! would describe neither, so the two kinds are separated by their cost. Baselines have a cost now
//! and then too, when the clock wanders or time is stolen, and bursts have one by chance as often.
//! The long stretches of scalar code before each burst show how often that is; the excess of bursts
//! over chance shows the cost of the others.

use crate::stats::{self, Estimate, Samples, batch_mean95, floor_index, share95};

/// Number of deviations of the baselines' costs by which a cost must differ from theirs to count.
const APART: f64 = 5.0;

/// The smallest cost that counts as an effect of the clock (ns). A wide burst and its stand-in
/// leave branch predictors and front end in different states; on Zen 5 that was seen to cost the
/// code after it up to 6 ns, less than two mispredicted branches.
pub(crate) const SMALLEST_COST_NS: f64 = 20.0;

/// Bursts with a cost count as an effect only if the probability that chance produces as many is
/// below this. Some ten thresholds are tried, on nearly the same repetitions.
const BY_CHANCE: f64 = 1.0 / 30_000.0;

/// Number of consecutive repetitions that resampling takes together: the effect comes and goes, and
/// lasts for tens of milliseconds.
const STRETCH: usize = 20;

/// Number of resamples. Fewer than the 1000 of Efron and Tibshirani ("An Introduction to the
/// Bootstrap", §13), so that it takes milliseconds; a guess.
const RESAMPLES: usize = 400;

/// Largest factor between the median of a cost and either end of its interval. With a wider
/// interval, chance and effect cannot be separated, and the cost is not known. A guess.
const TOLD: f64 = 2.0;

/// Cost of each repetition, in the order of time (ns).
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    /// Upper limit for the cost of any effect: a larger cost is stolen time (ns).
    pub(crate) most: f64,
    pub(crate) bursts: Vec<f64>,
    /// The baseline beside each burst.
    pub(crate) baselines: Vec<f64>,
    /// Stretches around each burst without burst or stand-in; empty if there are none.
    pub(crate) quiet: Vec<Vec<f64>>,
}

/// The bursts that have the effect.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Detection {
    /// The repetitions whose burst has it, ascending; `None` if all bursts are of one kind.
    pub(crate) with: Option<Vec<usize>>,
    /// The share of bursts with a cost, less the share by chance; `None` with fewer than two
    /// repetitions.
    pub(crate) share: Option<Estimate>,
    /// Cost of the bursts with the effect (ns). The interval covers the doubt about which these
    /// are. `None` if all bursts are of one kind.
    pub(crate) cost: Option<Estimate>,
}

impl Costs {
    /// Mean cost of a burst, including bursts without the effect. A cost beyond `most` counts as
    /// `most`, so that a long stretch of stolen time does not drown everything else.
    pub(crate) fn mean(&self) -> Option<Estimate> {
        // The cost of the instrument itself is in the median of each kind of epoch.
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

    /// Separates bursts with the effect from those without.
    pub(crate) fn detection(&self) -> Detection {
        let Some((typical, least)) = self.noise() else {
            return Detection { with: None, share: None, cost: None };
        };
        let Some(threshold) = self.threshold(typical, least) else {
            let share = self.share_above(typical + least);
            return Detection { with: None, share, cost: None };
        };
        let is_told =
            |cost: &Estimate| cost.ci95.0 > cost.median / TOLD && cost.ci95.1 < cost.median * TOLD;
        let cost = self.cost_above(threshold).filter(is_told);
        // There are two kinds, and not one with a tail, if those with the effect lie well above the
        // noise.
        let two = cost.filter(|cost| cost.median > typical + 2.0 * least);
        let with = two.map(|cost| self.nearest_to(cost.median, threshold));
        Detection { with, share: self.share_above(threshold), cost: two }
    }

    /// Cost of the bursts above the threshold that exceed chance: half of that excess costs more.
    /// The interval comes from stretches drawn with repetition. `None` if there is no excess, or if
    /// one resample in twenty or more has none.
    fn cost_above(&self, threshold: f64) -> Option<Estimate> {
        let stretches = self.stretches(threshold);
        let chances_a_burst = self.chances_a_burst();
        let cost = |chosen: &mut dyn Iterator<Item = usize>| {
            let events = chosen.flat_map(|index| stretches[index].iter().copied()).collect();
            median_beyond_chance(events, chances_a_burst)
        };
        let median = cost(&mut (0..stretches.len()))?;
        let mut random = fastrand::Rng::with_seed(1);
        let mut resample =
            || cost(&mut (0..stretches.len()).map(|_| random.usize(0..stretches.len())));
        let found: Samples = (0..RESAMPLES).filter_map(|_| resample()).collect();
        let ci95 = (found.quantile(0.025)?, found.quantile(0.975)?);
        (found.len() * 20 > RESAMPLES * 19).then_some(Estimate { median, ci95 })
    }

    /// The costs above the threshold in each stretch; the flag is set if the cost is a burst's.
    fn stretches(&self, threshold: f64) -> Vec<Vec<(f64, bool)>> {
        let mut stretches = vec![Vec::new(); self.bursts.len().div_ceil(STRETCH)];
        for (index, (burst, baseline)) in self.bursts.iter().zip(&self.baselines).enumerate() {
            let quiet = self.quiet.get(index).map(Vec::as_slice).unwrap_or_default();
            let chances = quiet.iter().chain([baseline]).map(|cost| (*cost, false));
            let all = chances.chain([(*burst, true)]);
            let above = all.filter(|(cost, _)| self.is_above(*cost, threshold));
            stretches[index / STRETCH].extend(above);
        }
        stretches
    }

    /// A cost above which bursts stand out from chance; `None` if there is none. Several thresholds
    /// may be as good as the best, within one standard deviation of noise. The result is the
    /// highest of them, because fewest costs above it happen by chance.
    fn threshold(&self, typical: f64, least: f64) -> Option<f64> {
        let thresholds = std::iter::successors(Some(least), |above| Some(2.0 * above))
            .take_while(|above| *above < self.most)
            .map(|above| typical + above);
        let tell =
            |threshold: &f64| self.exceeds_chance(*threshold) && self.exceeds_baselines(*threshold);
        let tried: Vec<(f64, f64)> = thresholds
            .filter(tell)
            .map(|threshold| (threshold, self.stands_out(threshold)))
            .collect();
        let best = tried.iter().map(|(_, stands_out)| *stands_out).fold(0.0, f64::max);
        let good = tried.iter().filter(|(_, stands_out)| *stands_out >= best - 1.0);
        good.map(|(threshold, _)| *threshold).next_back()
    }

    /// Number of bursts that cost more than the threshold, less the number by chance.
    pub(crate) fn more_above(&self, threshold: f64) -> usize {
        let (bursts, by_chance) = (self.above(threshold), self.chances(threshold));
        floor_index(bursts as f64 - by_chance.len() as f64 / self.chances_a_burst() + 0.5)
    }

    /// Typical cost of a baseline, and the additional cost that is beyond its noise; `None` if
    /// there are no baselines.
    fn noise(&self) -> Option<(f64, f64)> {
        let baselines = Samples::new(self.baselines.clone());
        let typical = baselines.quantile(0.5)?;
        let away: Samples = baselines.values().iter().map(|cost| (cost - typical).abs()).collect();
        // 1.4826 median deviations are a standard deviation of normal errors.
        let deviation = 1.4826 * away.quantile(0.5)?;
        Some((typical, (APART * deviation).max(SMALLEST_COST_NS)))
    }

    /// Number of bursts that cost more than the threshold.
    fn above(&self, threshold: f64) -> usize {
        self.bursts.iter().filter(|cost| self.is_above(**cost, threshold)).count()
    }

    fn is_above(&self, cost: f64, threshold: f64) -> bool {
        cost > threshold && cost < self.most
    }

    /// Costs above the threshold without a burst, ascending.
    fn chances(&self, threshold: f64) -> Samples {
        let all = self.baselines.iter().chain(self.quiet.iter().flatten());
        all.copied().filter(|cost| self.is_above(*cost, threshold)).collect()
    }

    /// Number of samples of chance for each burst.
    fn chances_a_burst(&self) -> f64 {
        let quiet: usize = self.quiet.iter().map(Vec::len).sum();
        (self.baselines.len() + quiet) as f64 / self.bursts.len().max(1) as f64
    }

    /// Number of standard deviations by which bursts above the threshold exceed chance. Without an
    /// effect, both are rare events of one frequency.
    fn stands_out(&self, threshold: f64) -> f64 {
        let bursts = self.above(threshold) as f64;
        let (chances, each) = (self.chances(threshold).len() as f64, self.chances_a_burst());
        let expected = (bursts + chances) / (1.0 + each);
        (bursts - chances / each) / (expected * (1.0 + 1.0 / each)).sqrt().max(1.0)
    }

    /// Whether too many bursts cost more than the threshold for chance to be the reason.
    fn exceeds_chance(&self, threshold: f64) -> bool {
        let bursts = self.above(threshold);
        let all = bursts + self.chances(threshold).len();
        stats::at_least(bursts, all, 1.0 / (1.0 + self.chances_a_burst())) < BY_CHANCE
    }

    /// Whether more bursts than baselines cost more than the threshold, by a sign test at two
    /// standard deviations. Only baselines show what any code leaves behind; stretches without a
    /// stand-in do not.
    fn exceeds_baselines(&self, threshold: f64) -> bool {
        let baselines = self.baselines.iter().filter(|cost| self.is_above(**cost, threshold));
        let baselines = baselines.count() as f64;
        let bursts = self.above(threshold) as f64;
        bursts - baselines > 2.0 * (bursts + baselines).sqrt()
    }

    /// The share of bursts above the threshold, less the share by chance.
    fn share_above(&self, threshold: f64) -> Option<Estimate> {
        let mark = |cost: f64| f64::from(u8::from(self.is_above(cost, threshold)));
        share95(&self.against_chance(mark, mark, mark))
    }

    /// A value for each burst, less the mean of the values that chance produced around it.
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

    /// The bursts whose cost is nearest to `cost`, ascending: as many as exceed chance above the
    /// threshold.
    fn nearest_to(&self, cost: f64, threshold: f64) -> Vec<usize> {
        let bursts = self.bursts.iter().enumerate();
        let above = bursts.filter(|(_, own)| self.is_above(**own, threshold));
        let mut with: Vec<usize> = above.map(|(index, _)| index).collect();
        let away = |index: &usize| (self.bursts[*index] - cost).abs();
        with.sort_by(|a, b| away(a).total_cmp(&away(b)));
        with.truncate(self.more_above(threshold));
        with.sort_unstable();
        with
    }
}

/// The cost above which half of the excess of bursts over chance lies; `None` if there is no
/// excess. Each event is a cost (ns) and whether it is a burst's.
fn median_beyond_chance(mut events: Vec<(f64, bool)>, chances_a_burst: f64) -> Option<f64> {
    let weight = |is_burst: bool| if is_burst { 1.0 } else { -1.0 / chances_a_burst };
    let excess: f64 = events.iter().map(|(_, is_burst)| weight(*is_burst)).sum();
    events.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    let mut above = 0.0;
    let half = events.iter().find(|(_, is_burst)| {
        above += weight(*is_burst);
        above >= excess / 2.0
    });
    half.map(|(cost, _)| *cost).filter(|_| excess > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1000 repetitions with noise of some 10 ns. In a share of them the clock wanders, which costs
    /// bursts and baselines 300 to 1300 ns alike. Bursts in `with` cost 1400 ns more.
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
        let detection = costs(0.1, |_| false).detection();
        assert_eq!(detection.with, None);
        let (low, high) = detection.share.unwrap().ci95;
        assert!(low == 0.0 && high < 0.04, "{detection:?}");
    }

    #[test]
    fn a_minority_is_found_among_as_many_chances() {
        let costs = costs(0.05, |index| index % 20 == 0);
        let detection = costs.detection();
        let with: Samples = detection.with.unwrap().iter().map(|&i| costs.bursts[i]).collect();
        let middle = with.quantile(0.5).unwrap();
        assert!((middle - 1400.0).abs() < 50.0, "{middle}");
        let share = detection.share.unwrap();
        assert!(share.ci95.0 < 0.05 && 0.05 < share.ci95.1, "{share:?}");
    }

    #[test]
    fn what_stand_ins_cost_as_well_is_no_effect() {
        let mut costs = costs(0.02, |index| index % 10 == 0);
        for index in (5..1000).step_by(10) {
            costs.baselines[index] += 1400.0;
        }
        assert_eq!(costs.detection().with, None);
    }

    #[test]
    fn two_in_a_hundred_are_found_among_as_many_chances() {
        let detection = costs(0.02, |index| index % 50 == 0).detection();
        assert!(
            detection.with.as_ref().is_some_and(|with| (15..=25).contains(&with.len())),
            "{detection:?}"
        );
    }

    #[test]
    fn a_few_among_twice_as_many_chances_have_their_cost() {
        let detection = costs(0.08, |index| index % 25 == 0).detection();
        let cost = detection.cost.unwrap();
        assert!(cost.ci95.0 < 1400.0 && 1400.0 < cost.ci95.1, "{cost:?}");
        assert!((cost.median / 1400.0 - 1.0).abs() < 0.1, "{cost:?}");
    }

    #[test]
    fn what_may_cost_much_or_little_has_no_cost() {
        // Some cost 200 ns, and as many cost 1400 ns. The median of both is not a cost of either
        // kind.
        let scattered = |index: usize| (index.wrapping_mul(2_654_435_761) >> 9) % 30;
        let mut costs = costs(0.0, |index| scattered(index) == 0);
        for index in (0..1000).filter(|index| scattered(*index) == 1) {
            costs.bursts[index] += 200.0;
        }
        let detection = costs.detection();
        assert_eq!((detection.with, detection.cost), (None, None));
        assert!(detection.share.unwrap().ci95.0 > 0.02, "{:?}", detection.share);
    }

    #[test]
    fn without_quiet_stretches_the_baselines_tell_chance() {
        let mut costs = costs(0.05, |index| index % 10 == 0);
        costs.quiet.clear();
        let share = costs.detection().share.unwrap();
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
        let width = |costs: Costs| costs.detection().share.unwrap().half_width();
        let scattered = width(costs(0.0, |index| index % 3 == 0));
        let in_runs = width(costs(0.0, |index| index % 600 < 200));
        assert!(in_runs > 5.0 * scattered, "{in_runs} {scattered}");
    }

    #[test]
    fn bursts_that_all_cost_the_same_are_of_one_kind() {
        let mut costs = costs(0.0, |_| false);
        costs.bursts.iter_mut().for_each(|cost| *cost += 60.0);
        assert_eq!(costs.detection().with, None);
    }

    #[test]
    fn nothing_measured_is_nothing_told() {
        let costs =
            Costs { most: 10_000.0, bursts: Vec::new(), baselines: Vec::new(), quiet: Vec::new() };
        assert_eq!(costs.detection(), Detection { with: None, share: None, cost: None });
        assert_eq!(costs.mean(), None);
    }
}
