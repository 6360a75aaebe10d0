//! Compares two ways round by round. What both share, such as neighbours on the machine, cancels
//! out.

use dimmer_probe::stats::{Estimate, Samples};

/// The order in which `ways` ways have their turn in a round. In `2 * ways` rounds, each way has
/// each place twice and follows each other way equally often, so that what a way leaves behind (a
/// warm core, a worker that still spins) does not favour one of them: the rows of a Latin square
/// after Williams, *Experimental designs balanced for the estimation of residual effects of
/// treatments*, 1949.
#[must_use]
pub fn order(round: usize, ways: usize) -> Vec<usize> {
    // 0, 1, n - 1, 2, n - 2 ...: all steps between neighbours differ.
    let first_row = (0..ways)
        .map(|turn| if turn % 2 == 1 { turn.div_ceil(2) } else { (ways - turn / 2) % ways });
    let row: Vec<usize> = first_row.map(|way| (way + round) % ways).collect();
    // An odd number of ways takes the mirror image, too.
    if (round / ways.max(1)).is_multiple_of(2) { row } else { row.into_iter().rev().collect() }
}

/// Rounds from which on the range of their differences contains the true median with more than
/// 95 %.
pub const ENOUGH: usize = 6;

/// The change from the first to the second value of each pair, in percent of the first: median with
/// 95 % interval; `None` without pairs.
#[must_use]
pub fn change_pct(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Estimate> {
    let changes = pairs.into_iter().map(|(before, after)| (after - before) / before * 100.0);
    changes.collect::<Samples>().estimate()
}

/// The first less the second value of each pair: median with 95 % interval; `None` without pairs.
#[must_use]
pub fn difference(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Estimate> {
    pairs.into_iter().map(|(first, second)| first - second).collect::<Samples>().estimate()
}

/// The probability that the range of `rounds` values contains the true median. It does, unless all
/// values lie on one side of it.
#[must_use]
pub fn range_holds_median_ratio(rounds: usize) -> f64 {
    1.0 - 2.0 * 0.5_f64.powi(i32::try_from(rounds).unwrap_or(i32::MAX))
}

/// The meaning of a change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The second way takes less, by this positive number.
    Less(Estimate),
    /// The second way takes more, by this number.
    More(Estimate),
    /// No difference was seen; a difference larger than this would have been seen.
    NoneLargerThan(f64),
}

/// A change counts if its interval does not contain zero.
#[must_use]
pub fn verdict(change: &Estimate) -> Verdict {
    if change.ci95.1 < 0.0 {
        Verdict::Less(change.scaled(-1.0))
    } else if change.ci95.0 > 0.0 {
        Verdict::More(*change)
    } else {
        Verdict::NoneLargerThan(change.bound())
    }
}

/// Whether a change is below a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// All of its interval is below it.
    Yes,
    /// No part of its interval is.
    No,
    /// A part of its interval is: more rounds would decide.
    Unknown,
}

/// Whether a change (percent) is at most `most`.
#[must_use]
pub fn within(change: &Estimate, most: f64) -> Within {
    match change.ci95 {
        (_, high) if high <= most => Within::Yes,
        (low, _) if low > most => Within::No,
        _ => Within::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_has_each_place_and_each_predecessor_equally_often() {
        for ways in 2..8 {
            let mut places = vec![vec![0; ways]; ways];
            let mut after = vec![vec![0; ways]; ways];
            for order in (0..2 * ways).map(|round| order(round, ways)) {
                for (place, way) in order.iter().enumerate() {
                    places[*way][place] += 1;
                }
                for pair in order.windows(2) {
                    after[pair[0]][pair[1]] += 1;
                }
            }
            assert_eq!(places, vec![vec![2; ways]; ways], "{ways} ways");
            for (way, followed) in after.iter().enumerate() {
                let expected: Vec<_> = (0..ways).map(|other| 2 * i32::from(other != way)).collect();
                assert_eq!(*followed, expected, "{ways} ways, after way {way}");
            }
        }
        assert_eq!([order(5, 0), order(5, 1)], [vec![], vec![0]]);
    }

    #[test]
    fn change_is_that_of_pairs_not_of_medians() {
        // The machine slows down by half from round to round. The second way is 10 % faster in
        // each.
        let change = change_pct([(100.0, 90.0), (150.0, 135.0), (225.0, 202.5)]).unwrap();
        assert!((change.median + 10.0).abs() < 1e-9, "{change:?}");
        assert!((change.ci95.0 + 10.0).abs() < 1e-9 && (change.ci95.1 + 10.0).abs() < 1e-9);
        assert_eq!(change_pct([]), None);
    }

    #[test]
    fn rounds_without_a_value_do_not_count() {
        let change = difference([(5.0, 4.0), (f64::NAN, 1.0), (5.0, 2.0)]).unwrap();
        assert_eq!((change.median, change.ci95), (2.0, (1.0, 3.0)));
    }

    #[test]
    fn interval_decides() {
        let estimate = |low, median, high| Estimate { median, ci95: (low, high) };
        assert_eq!(verdict(&estimate(-7.0, -6.0, -5.0)), Verdict::Less(estimate(5.0, 6.0, 7.0)));
        assert_eq!(verdict(&estimate(1.0, 2.0, 3.0)), Verdict::More(estimate(1.0, 2.0, 3.0)));
        assert_eq!(verdict(&estimate(-3.0, -2.0, 1.0)), Verdict::NoneLargerThan(3.0));
        assert_eq!(verdict(&estimate(0.0, 2.0, 4.0)), Verdict::NoneLargerThan(4.0));
    }

    #[test]
    fn a_bound_is_kept_if_all_of_the_interval_keeps_it() {
        let of = |low, high| within(&Estimate { median: low, ci95: (low, high) }, 1.0);
        assert_eq!(
            [of(-9.0, 1.0), of(0.9, 1.1), of(1.1, 2.0)],
            [Within::Yes, Within::Unknown, Within::No]
        );
        assert_eq!(of(f64::NAN, f64::NAN), Within::Unknown);
    }

    #[test]
    fn range_of_enough_rounds_holds_the_median_in_95_of_100() {
        assert!((range_holds_median_ratio(3) - 0.75).abs() < 1e-9);
        assert!(range_holds_median_ratio(ENOUGH - 1) < 0.95);
        assert!(range_holds_median_ratio(ENOUGH) > 0.95);
    }
}
