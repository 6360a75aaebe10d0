//! Distributions as few points of their quantile function, and how each draw depends on the one
//! before.

/// Shares at which a distribution may have a point.
const SHARES: [f64; 33] = [
    0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5,
    0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999,
    0.9999, 1.0,
];

/// The share from which values are the tail.
const TAIL: f64 = 0.95;

/// Maximum number of points.
const MOST_POINTS: usize = 17;

/// Number of places of a segment at which the line is compared with the quantile function.
const PLACES: u32 = 16;

/// Error at which no further point is added, as a share of the mean.
const GOOD: f64 = 0.001;

/// Numbers of which a correlation is computed at least.
const FEW_PAIRS: usize = 100;

/// The strongest correlation that a scenario may have.
const MOST_CORRELATION: f64 = 0.99;

/// Correlation below which draws count as independent.
const NO_CORRELATION: f64 = 0.05;

/// Values, each with the number of times that it stands for, in the order in which they came.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values {
    all: Vec<(f64, f64)>,
    /// Indices of values that come right after the value before them.
    after: Vec<usize>,
    is_cut: bool,
}

/// A distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Points of the quantile function, ascending: share and value. Between two, it is a line.
    pub points: Vec<(f64, f64)>,
    /// The correlation of a value with the next one, as normal scores; 0 if it is small, or not
    /// known.
    pub correlation: f64,
    /// The mean; that of the points is the same.
    pub mean: f64,
    /// Number of values of which it was made.
    pub values: usize,
}

impl Values {
    /// Adds a value that stands for `times`.
    pub fn add(&mut self, value: f64, times: f64) {
        if !self.is_cut && !self.all.is_empty() {
            self.after.push(self.all.len());
        }
        self.is_cut = false;
        self.all.push((value, times));
    }

    /// What came between the last value and the next is not known.
    pub fn cut(&mut self) {
        self.is_cut = true;
    }

    /// The values less `value`, and not below zero.
    #[must_use]
    pub fn less(&self, value: f64) -> Self {
        let mut less = self.clone();
        less.all.iter_mut().for_each(|(own, _)| *own = (*own - value).max(0.0));
        less
    }

    /// Cuts values down to `factor` times the one below which 99 % of a thousand or more lie.
    pub(crate) fn cap(&mut self, factor: f64) {
        if let Some(sorted) = Sorted::new(&self.all).filter(|_| self.all.len() >= 1000) {
            let most = factor * sorted.quantile(0.99);
            self.all.iter_mut().for_each(|(value, _)| *value = value.min(most));
        }
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The number of times for which they all stand.
    #[must_use]
    pub fn times(&self) -> f64 {
        self.all.iter().map(|(_, times)| times).sum()
    }

    /// The sum, each as often as it stands for.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.all.iter().map(|(value, times)| value * times).sum()
    }

    /// Their distribution; `None` if there are none.
    #[must_use]
    pub fn distribution(&self) -> Option<Distribution> {
        let sorted = Sorted::new(&self.all)?;
        Some(Distribution {
            points: sorted.points(),
            correlation: self.correlation(),
            mean: sorted.mean(0.0, 1.0),
            values: self.len(),
        })
    }

    /// The correlation of normal scores of which Spearman's rank correlation is that of the pairs:
    /// 2 sin(π ρ / 6), if the scores are normal (Pearson 1907).
    fn correlation(&self) -> f64 {
        if self.after.len() < FEW_PAIRS {
            return 0.0;
        }
        let ranks = self.ranks();
        let pairs = || self.after.iter().map(|at| (ranks[at - 1], ranks[*at]));
        let n = self.after.len() as f64;
        let mean = |sum: f64| sum / n;
        let first = mean(pairs().map(|(first, _)| first).sum());
        let second = mean(pairs().map(|(_, second)| second).sum());
        let (mut both, mut of_first, mut of_second) = (0.0, 0.0, 0.0);
        for (a, b) in pairs() {
            both += (a - first) * (b - second);
            of_first += (a - first).powi(2);
            of_second += (b - second).powi(2);
        }
        let spearman = both / (of_first * of_second).sqrt();
        let normal = 2.0 * (std::f64::consts::PI * spearman / 6.0).sin();
        let normal = normal.clamp(-MOST_CORRELATION, MOST_CORRELATION);
        if normal.abs() >= NO_CORRELATION { normal } else { 0.0 }
    }

    /// The rank of each value; equal values have the middle of their ranks.
    fn ranks(&self) -> Vec<f64> {
        let mut order: Vec<usize> = (0..self.all.len()).collect();
        order.sort_by(|a, b| self.all[*a].0.total_cmp(&self.all[*b].0));
        let mut ranks = vec![0.0; order.len()];
        let mut rest = order.as_slice();
        let mut below = 0;
        while let Some(first) = rest.first() {
            let value = self.all[*first].0;
            let equal = rest.partition_point(|at| self.all[*at].0 <= value).max(1);
            let (these, others) = rest.split_at(equal);
            these.iter().for_each(|at| ranks[*at] = below as f64 + equal as f64 / 2.0);
            (rest, below) = (others, below + equal);
        }
        ranks
    }
}

/// Values in ascending order, as a function of the share below.
struct Sorted {
    values: Vec<f64>,
    /// The share of all up to and with each value, and the sum of their shares times values.
    until: Vec<(f64, f64)>,
}

impl Sorted {
    fn new(all: &[(f64, f64)]) -> Option<Self> {
        let mut all = all.to_vec();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let times: f64 = all.iter().map(|(_, times)| times).sum();
        let (mut share, mut sum) = (0.0, 0.0);
        let until = |(value, own): &(f64, f64)| {
            share += own / times;
            sum += value * own / times;
            (share, sum)
        };
        let until: Vec<(f64, f64)> = all.iter().map(until).collect();
        let values: Vec<f64> = all.iter().map(|(value, _)| *value).collect();
        (!values.is_empty() && times > 0.0).then_some(Self { values, until })
    }

    /// The value below which this share lies.
    fn quantile(&self, share: f64) -> f64 {
        let index = self.until.partition_point(|(until, _)| *until < share);
        self.values[index.min(self.values.len() - 1)]
    }

    /// The integral of the quantile function up to this share.
    fn integral(&self, share: f64) -> f64 {
        let index = self.until.partition_point(|(until, _)| *until < share);
        let index = index.min(self.values.len() - 1);
        let (until, sum) = if index == 0 { (0.0, 0.0) } else { self.until[index - 1] };
        sum + (share - until) * self.values[index]
    }

    /// The mean of the values from one share to another.
    fn mean(&self, from: f64, to: f64) -> f64 {
        (self.integral(to) - self.integral(from)) / (to - from)
    }

    /// How far the line from one share to another is from the quantile function, times its width.
    fn error(&self, (from, first): (f64, f64), (to, last): (f64, f64)) -> f64 {
        let error = |place: u32| {
            let part = (f64::from(place) + 0.5) / f64::from(PLACES);
            let line = first + part * (last - first);
            (self.quantile(from + part * (to - from)) - line).abs()
        };
        let errors: f64 = (0..PLACES).map(error).sum();
        errors / f64::from(PLACES) * (to - from)
    }

    /// Few points whose lines come near the quantile function, with the same mean: a point is added
    /// where the error is the largest, until it is small everywhere.
    fn points(&self) -> Vec<(f64, f64)> {
        let at = |index: usize| (SHARES[index], self.quantile(SHARES[index]));
        let mean = self.mean(0.0, 1.0);
        let mut chosen = vec![0, SHARES.len() - 1];
        while chosen.len() < MOST_POINTS {
            let wide = chosen.windows(2).filter(|pair| pair[1] - pair[0] > 1);
            let errors = wide.map(|pair| (self.error(at(pair[0]), at(pair[1])), pair));
            let Some((error, pair)) = errors.max_by(|a, b| a.0.total_cmp(&b.0)) else { break };
            if error <= GOOD * mean {
                break;
            }
            let middle = |index: &usize| {
                self.error(at(pair[0]), at(*index)) + self.error(at(*index), at(pair[1]))
            };
            let best = (pair[0] + 1..pair[1]).min_by(|a, b| middle(a).total_cmp(&middle(b)));
            chosen.extend(best);
            chosen.sort_unstable();
        }
        let mut points: Vec<(f64, f64)> = chosen.into_iter().map(at).collect();
        without_middles(&mut points);
        // Few values may be far above all others: in the tail each line has the mean of its values.
        let tail = points.partition_point(|(share, _)| *share <= TAIL).max(1);
        for index in tail..points.len() {
            let ((from, before), (to, last)) = (points[index - 1], points[index]);
            let right = 2.0 * self.mean(from, to) - before;
            points[index].1 = right.clamp(before, last.max(before));
        }
        let lines = points.windows(2).map(|pair| {
            let [(from, first), (to, last)] = [pair[0], pair[1]];
            (first + last) / 2.0 * (to - from)
        });
        let lines: f64 = lines.sum();
        if lines > 0.0 {
            points.iter_mut().for_each(|(_, value)| *value *= mean / lines);
        }
        points
    }
}

/// Drops points between two of the same value.
fn without_middles(points: &mut Vec<(f64, f64)>) {
    let values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
    let is_middle = |index: usize| {
        let around = index.checked_sub(1).and_then(|before| values.get(before..index + 2));
        around.is_some_and(|around| around.iter().all(|value| *value == around[0]))
    };
    let mut index = 0;
    points.retain(|_| {
        index += 1;
        !is_middle(index - 1)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(of: impl Iterator<Item = f64>) -> Values {
        let mut values = Values::default();
        of.for_each(|value| values.add(value, 1.0));
        values
    }

    fn mean(points: &[(f64, f64)]) -> f64 {
        let part = |pair: &[(f64, f64)]| (pair[0].1 + pair[1].1) / 2.0 * (pair[1].0 - pair[0].0);
        points.windows(2).map(part).sum()
    }

    #[test]
    fn one_value_is_a_line() {
        let one = values(std::iter::repeat_n(3.0, 5)).distribution().unwrap();
        assert_eq!(
            (one.points, one.mean, one.correlation),
            (vec![(0.0, 3.0), (1.0, 3.0)], 3.0, 0.0)
        );
        assert_eq!(Values::default().distribution(), None);
    }

    #[test]
    fn means_are_kept_whatever_the_tail() {
        // One in two thousand is a thousand times as long.
        let tail = |n: u32| if n.is_multiple_of(2000) { 1e6 } else { f64::from(n % 1000) };
        let seen = values((0..20_000).map(tail)).distribution().unwrap();
        assert!((mean(&seen.points) / seen.mean - 1.0).abs() < 1e-6, "{seen:?}");
        assert!(seen.points.len() <= MOST_POINTS);
        let middle = seen.points.iter().find(|(share, _)| *share == 0.5);
        let near = |value: f64| (value / 500.0 - 1.0).abs() < 0.1;
        assert!(middle.is_none_or(|(_, value)| near(*value)), "{seen:?}");
    }

    #[test]
    fn steps_are_found() {
        let seen = values((0..1000).map(|n| if n < 700 { 1.0 } else { 50.0 }));
        let points = seen.distribution().unwrap().points;
        let at = |wanted: f64| {
            let after = points.iter().position(|(share, _)| *share >= wanted).unwrap();
            let ((from, first), (to, last)) = (points[after - 1], points[after]);
            first + (last - first) * (wanted - from) / (to - from)
        };
        assert!(at(0.6) < 1.2 && at(0.8) > 45.0, "{points:?}");
    }

    #[test]
    fn values_count_as_often_as_they_stand_for() {
        let mut two = Values::default();
        two.add(10.0, 9.0);
        two.add(110.0, 1.0);
        assert_eq!((two.distribution().unwrap().mean, two.times(), two.sum()), (20.0, 10.0, 200.0));
    }

    #[test]
    fn correlation_is_that_of_normal_scores() {
        // Sums of uniform numbers are near enough to normal ones.
        let mut state = 1_u64;
        let mut normal = || {
            let draw = |_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 40) as f64 / f64::from(1 << 24) - 0.5
            };
            (0..12).map(draw).sum::<f64>()
        };
        let mut last = 0.0;
        let chain = (0..20_000).map(|_| {
            last = 0.6 * last + 0.8 * normal();
            f64::exp(last)
        });
        let seen = values(chain).distribution().unwrap().correlation;
        assert!((seen - 0.6).abs() < 0.03, "{seen}");
        let mut apart = Values::default();
        (0..1000).for_each(|n| {
            apart.cut();
            apart.add(f64::from(n), 1.0);
        });
        assert_eq!(apart.distribution().unwrap().correlation, 0.0);
    }
}
