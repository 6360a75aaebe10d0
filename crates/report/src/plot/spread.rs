//! The distribution of times over powers of ten, with the share of the calls as bars.

use plotters::prelude::*;

use super::axis::Axis;
use super::charts::Figure;
use super::{DrawError, LINE, draw, mark, panel};
use crate::number::{grouped, percent, round_time, time};

/// Half the width of a bucket, as a factor: times are recorded in 16 buckets for each doubling.
const HALF_BUCKET: f64 = 1.0219;

/// How many calls took how long: `buckets` has the middle of each bucket (ns) and its calls.
/// `marked` is a time with its name. `None` without calls that took any time.
pub(crate) fn spread(
    name: &str,
    buckets: &[(f64, f64)],
    marked: Option<(f64, &str)>,
) -> Result<Option<Figure>, DrawError> {
    // Times that are too short for the time-stamp counter have no place among powers of ten.
    let takes_time = |at: f64| at > 0.0 && at.is_finite();
    let mut some = buckets.iter().filter(|(at, _)| takes_time(*at));
    let Some(first) = some.next() else { return Ok(None) };
    let last = some.next_back().unwrap_or(first);
    let marked = marked.filter(|(at, _)| takes_time(*at));
    let all: f64 = buckets.iter().map(|(_, calls)| calls).sum();
    let shares: Vec<(f64, f64)> = buckets.iter().map(|(at, calls)| (*at, calls / all)).collect();
    let highest = shares.iter().map(|(_, share)| *share).fold(0.0, f64::max);
    let near = marked.map(|(at, _)| at);
    let low = near.unwrap_or(first.0).min(first.0) / 1.5;
    let high = near.unwrap_or(last.0).max(last.0) * 1.5;
    let x = Axis::logarithmic(low, high, round_time);
    let y = Axis::linear(0.0, highest * 1.25, |share, decimals| {
        format!("{} %", grouped(share * 100.0, decimals.saturating_sub(2)))
    });
    let label = format!("Share of calls by {name}");
    let plot = draw(200, &label, |area| {
        let mut panel = panel(area, "calls", &x, &y, Some(name))?;
        panel.draw_series(shares.iter().map(|(at, share)| {
            Rectangle::new([(at / HALF_BUCKET, 0.0), (at * HALF_BUCKET, *share)], LINE.filled())
        }))?;
        match marked {
            Some((at, note)) => mark(&mut panel, at, (at, at), note),
            None => Ok(()),
        }
    })?;
    let row = |(at, share): &(f64, f64)| vec![time(*at), percent(*share), grouped(share * all, 0)];
    Ok(Some(Figure {
        caption: format!("How {name} is spread over {} calls; buckets of 4.4 %.", grouped(all, 0)),
        plot,
        header: ["about", "share", "calls"].map(str::to_owned).to_vec(),
        rows: shares.iter().map(row).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_too_short_to_be_told_are_drawn_at_the_begin() {
        let figure = spread("time", &[(0.0, 5.0), (10.0, 3.0), (20.0, 2.0)], Some((0.0, "kept")));
        assert_eq!(figure.unwrap().unwrap().rows.len(), 3);
        assert!(spread("time", &[(0.0, 5.0)], None).unwrap().is_none());
    }
}
