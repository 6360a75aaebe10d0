//! The plots, each with its data as rows for a table.

use std::ops::Range;

use dimmer_probe::outcome::{CurvePoint, Gap, Instructions, Quantity, Recurrence};
use dimmer_probe::stats::Estimate;
use maud::Markup;
use plotters::prelude::*;

use super::axis::Axis;
use super::bins::Bins;
use super::{DrawError, LINE, Panel, SCALE, STALL, draw, mark, panel};
use crate::number::{TimeUnit, count, counted, grouped, length, percent, round_time, time};

/// A plot, its caption, and its data.
pub(crate) struct Figure {
    pub(crate) caption: String,
    pub(crate) plot: Markup,
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// An interval that is more than this many times as wide as usual does not determine the ends of an
/// axis.
const UNUSUAL: f64 = 3.0;

/// Height of a panel of shares, in units of the page.
const SHARE_HEIGHT: u32 = 100;

fn titles(header: &[&str]) -> Vec<String> {
    header.iter().map(ToString::to_string).collect()
}

fn three(estimate: &Estimate, decimals: usize) -> [String; 3] {
    let (low, high) = estimate.ci95;
    [estimate.median, low, high].map(|value| grouped(value, decimals))
}

/// A line with the band of its interval.
fn banded(
    panel: &mut Panel<'_, '_>,
    points: &[(f64, Estimate)],
    colour: RGBColor,
) -> Result<(), DrawError> {
    let upper = points.iter().map(|(x, y)| (*x, y.ci95.1));
    let lower = points.iter().rev().map(|(x, y)| (*x, y.ci95.0));
    panel.draw_series([Polygon::new(
        upper.chain(lower).collect::<Vec<_>>(),
        colour.mix(0.22).filled(),
    )])?;
    let line = points.iter().map(|(x, y)| (*x, y.median));
    panel.draw_series([PathElement::new(
        line.collect::<Vec<_>>(),
        colour.stroke_width(2 * SCALE),
    )])?;
    Ok(())
}

/// A line with a dot at each point.
fn dotted(panel: &mut Panel<'_, '_>, points: &[(f64, f64)]) -> Result<(), DrawError> {
    panel.draw_series([PathElement::new(points.to_vec(), LINE.stroke_width(2 * SCALE))])?;
    panel.draw_series(points.iter().map(|point| Circle::new(*point, 4 * SCALE, LINE.filled())))?;
    Ok(())
}

/// Bars from zero: shares of stalls.
fn bars(
    panel: &mut Panel<'_, '_>,
    points: impl Iterator<Item = (f64, f64)>,
) -> Result<(), DrawError> {
    let bars = points.filter(|(_, share)| *share > 0.0).map(|(x, share)| {
        PathElement::new(vec![(x, 0.0), (x, share)], STALL.stroke_width(3 * SCALE))
    });
    panel.draw_series(bars)?;
    Ok(())
}

fn percent_axis(low: f64, high: f64) -> Axis {
    Axis::linear(low, high, |ratio, decimals| {
        format!("{} %", grouped(ratio * 100.0, decimals.saturating_sub(2)))
    })
}

/// The range of all intervals, with some margin.
fn extent<'a>(estimates: impl Iterator<Item = &'a Estimate>) -> (f64, f64) {
    let (low, high) = estimates
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), estimate| {
            (low.min(estimate.ci95.0), high.max(estimate.ci95.1))
        });
    let room = (high - low) * 0.06;
    (low - room, high + room)
}

/// The range of the intervals that are not far wider than most, and of the other medians that are
/// certainly not zero, with some margin. So a few uncertain values do not enlarge the range.
fn robust_extent<'a>(estimates: impl Iterator<Item = &'a Estimate> + Clone) -> (f64, f64) {
    let width = |estimate: &Estimate| estimate.ci95.1 - estimate.ci95.0;
    let mut widths: Vec<f64> = estimates.clone().map(width).collect();
    widths.sort_unstable_by(f64::total_cmp);
    let usual = widths.get(widths.len() / 2).copied().unwrap_or(0.0);
    let shown: Vec<Estimate> = estimates
        .filter_map(|estimate| {
            let (low, high) = estimate.ci95;
            if width(estimate) <= usual * UNUSUAL {
                Some(*estimate)
            } else if low > 0.0 || high < 0.0 {
                Some(Estimate { ci95: (estimate.median, estimate.median), ..*estimate })
            } else {
                None
            }
        })
        .collect();
    extent(shown.iter())
}

/// The upper end of an axis that leaves room for the text of a mark.
fn with_headroom(low: f64, high: f64) -> f64 {
    high + (high - low).max(0.02) * 0.25
}

/// Clock and stalls over time; `None` without points.
pub(crate) fn clock(
    points: &[CurvePoint],
    since: &str,
    marks: &[(&str, &Quantity)],
) -> Result<Option<Figure>, DrawError> {
    let points: Vec<&CurvePoint> = points.iter().filter(|point| point.at_ns > 0.0).collect();
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Ok(None) };
    let x = Axis::logarithmic(first.at_ns, last.at_ns, round_time);
    let (low, high) = extent(points.iter().map(|point| &point.clock_ratio));
    // A constant clock shall look constant.
    let y = percent_axis(low.min(0.98), with_headroom(low, high.max(1.0)));
    let stalls = percent_axis(0.0, 1.0);
    let label = format!("Clock over nominal and share of stalls against time {since}");
    let curve: Vec<(f64, Estimate)> =
        points.iter().map(|point| (point.at_ns, point.clock_ratio)).collect();
    let plot = draw(300, &label, |area| {
        let (above, below) = area.split_vertically(190 * SCALE);
        let mut upper = panel(&above, "clock, of nominal", &x, &y, None)?;
        banded(&mut upper, &curve, LINE)?;
        for (label, quantity) in marks {
            let estimate = &quantity.estimate;
            let label = format!("{label} {}", time(estimate.median));
            mark(&mut upper, estimate.median, estimate.ci95, &label)?;
        }
        let x_title = format!("time {since}");
        let mut lower = panel(&below, "repetitions with a stall", &x, &stalls, Some(&x_title))?;
        bars(&mut lower, points.iter().map(|point| (point.at_ns, point.stall_share)))
    })?;
    let row = |point: &&CurvePoint| {
        let mut row = vec![time(point.at_ns)];
        row.extend(three(&point.clock_ratio.scaled(100.0), 2));
        row.push(grouped(point.stall_share * 100.0, 1));
        row
    };
    Ok(Some(Figure {
        caption: format!("The clock {since}, with its 95 % interval, and where the core stalls."),
        plot,
        header: titles(&["time", "clock, %", "low", "high", "stalls, %"]),
        rows: points.iter().map(row).collect(),
    }))
}

/// The unit of a quantity.
#[derive(Clone, Copy)]
pub(crate) enum Scale {
    /// Nanoseconds.
    Time,
    /// Whole numbers.
    Count,
}

impl Scale {
    /// The unit for values around `median`.
    fn unit(self, median: f64) -> TimeUnit {
        match self {
            Self::Time => TimeUnit::of(median),
            Self::Count => TimeUnit { ns: 1.0, sign: "" },
        }
    }

    /// The format for values of an axis.
    fn tick(self) -> fn(f64) -> String {
        match self {
            Self::Time => round_time,
            Self::Count => |value| count(value),
        }
    }

    fn text(self, value: f64) -> String {
        match self {
            Self::Time => time(value),
            Self::Count => count(value),
        }
    }
}

/// The number of occurrences of each value, with the median and its interval.
pub(crate) fn histogram(
    name: &str,
    quantity: &Quantity,
    scale: Scale,
) -> Result<Figure, DrawError> {
    let unit = scale.unit(quantity.estimate.median);
    let values: Vec<f64> = quantity.samples.values().iter().map(|value| value / unit.ns).collect();
    let bins = Bins::of(&values);
    let tallest = bins.counts.iter().max().copied().unwrap_or(0);
    let sign = unit.sign;
    let x = Axis::linear(bins.low, bins.end(), grouped);
    let y = Axis::linear(0.0, with_headroom(0.0, tallest as f64), |value, _| grouped(value, 0));
    let estimate = quantity.estimate.scaled(1.0 / unit.ns);
    let label = format!("Histogram of {name} over {} repetitions", values.len());
    let plot = draw(230, &label, |area| {
        let x_title = if sign.is_empty() { name.to_owned() } else { format!("{name}, {sign}") };
        let mut panel = panel(area, "repetitions", &x, &y, Some(&x_title))?;
        let bars = bins.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        panel.draw_series(bars.map(|(index, count)| {
            let edges = (bins.edge(index), bins.edge(index + 1));
            let gap = (edges.1 - edges.0) * 0.08;
            let ends = [(edges.0 + gap, 0.0), (edges.1 - gap, *count as f64)];
            Rectangle::new(ends, LINE.mix(0.75).filled())
        }))?;
        let note = format!("median {}", scale.text(quantity.estimate.median));
        mark(&mut panel, estimate.median, estimate.ci95, &note)
    })?;
    let outside = values.len() - bins.counts.iter().sum::<usize>();
    let mut caption =
        format!("Distribution of {name} over {}.", counted(values.len(), "repetition"));
    if outside > 0 {
        caption.push_str(&format!(
            " {} far from the others and not shown; all values lie between {} and {}.",
            if outside == 1 {
                "One value is".to_owned()
            } else {
                format!("{} values are", length(outside))
            },
            scale.text(values.first().map_or(0.0, |value| value * unit.ns)),
            scale.text(values.last().map_or(0.0, |value| value * unit.ns))
        ));
    }
    let row = |(index, count): (usize, &usize)| {
        let decimals = unit.decimals(bins.width);
        vec![
            grouped(bins.edge(index), decimals),
            grouped(bins.edge(index + 1), decimals),
            length(*count),
        ]
    };
    let titled = |word: &str| {
        if sign.is_empty() { word.to_owned() } else { format!("{word}, {sign}") }
    };
    Ok(Figure {
        caption,
        plot,
        header: vec![titled("from"), titled("to"), "repetitions".to_owned()],
        rows: bins.counts.iter().enumerate().map(row).collect(),
    })
}

/// The cost of recurring bursts at each gap; `None` without gaps.
pub(crate) fn recurrence(recurrence: &Recurrence) -> Result<Option<Figure>, DrawError> {
    let gaps = &recurrence.gaps;
    let (Some(first), Some(last)) = (gaps.first(), gaps.last()) else { return Ok(None) };
    let x = Axis::logarithmic(first.gap_us * 1e3, last.gap_us * 1e3, round_time);
    let (low, high) = robust_extent(gaps.iter().map(|gap| &gap.slowdown_pct));
    let (low, high) = (low.min(0.0), with_headroom(low.min(0.0), high.max(0.8)));
    let slowdown =
        Axis::linear(low, high, |value, decimals| format!("{} %", grouped(value, decimals)));
    let share = percent_axis(0.0, 1.0);
    let longest = robust_extent(gaps.iter().map(|gap| &gap.burst_ns)).1;
    let burst = Axis::linear(0.0, longest * 1.1, |value, _| round_time(value));
    let curve = |of: fn(&Gap) -> Estimate| -> Vec<(f64, Estimate)> {
        gaps.iter().map(|gap| (gap.gap_us * 1e3, of(gap))).collect()
    };
    let kept: Vec<(f64, f64)> =
        gaps.iter().filter_map(|gap| Some((gap.gap_us * 1e3, gap.kept_share?))).collect();
    let change = recurrence.regime_change_us.map(|change| change.scaled(1e3));
    let kept_too = if kept.is_empty() { "" } else { ", share of bursts at full speed" };
    let label = format!(
        "Slow-down of the code between bursts{kept_too}, share of gaps with a stall and duration \
         of a burst against the gap between bursts"
    );
    let kept_height = if kept.is_empty() { 0 } else { SHARE_HEIGHT };
    let plot = draw(165 + kept_height + SHARE_HEIGHT + 165, &label, |area| {
        let (top, rest) = area.split_vertically(165 * SCALE);
        let (second, rest) = rest.split_vertically(kept_height * SCALE);
        let (third, bottom) = rest.split_vertically(SHARE_HEIGHT * SCALE);
        let mut upper = panel(&top, "code between bursts slower by", &x, &slowdown, None)?;
        banded(&mut upper, &curve(|gap| gap.slowdown_pct), LINE)?;
        let mut panels = Vec::new();
        if !kept.is_empty() {
            let mut panel = panel(&second, "bursts at full speed", &x, &share, None)?;
            dotted(&mut panel, &kept)?;
            panels.push(panel);
        }
        let mut stalled = panel(&third, "gaps with a stall", &x, &share, None)?;
        bars(&mut stalled, gaps.iter().map(|gap| (gap.gap_us * 1e3, gap.stall_share)))?;
        let mut lower = panel(&bottom, "a burst takes", &x, &burst, Some("gap between bursts"))?;
        banded(&mut lower, &curve(|gap| gap.burst_ns), LINE)?;
        panels.extend([stalled, lower]);
        if let Some(change) = change {
            let note = format!("changes at {}", time(change.median));
            mark(&mut upper, change.median, change.ci95, &note)?;
            for panel in &mut panels {
                mark(panel, change.median, change.ci95, "")?;
            }
        }
        Ok(())
    })?;
    let row = |gap: &Gap| {
        let mut row = vec![time(gap.gap_us * 1e3)];
        row.extend(three(&gap.slowdown_pct, 2));
        row.push(gap.kept_share.map_or_else(|| "–".to_owned(), percent));
        row.push(percent(gap.stall_share));
        row.push(time(gap.burst_ns.median));
        row.push(percent(gap.clock_ratio));
        row
    };
    let titles =
        titles(&["gap", "slower, %", "low", "high", "kept", "stalls", "burst", "clock at its end"]);
    Ok(Some(Figure {
        caption: recurrence_caption(recurrence, !kept.is_empty(), low..high),
        plot,
        header: titles,
        rows: gaps.iter().map(row).collect(),
    }))
}

/// What the plot shows, and which part of the slowdown is beyond its axis.
fn recurrence_caption(recurrence: &Recurrence, kept: bool, axis: Range<f64>) -> String {
    let mut caption =
        "What bursts cost the code between them, by how far they are apart, with its 95 % interval."
            .to_owned();
    if kept {
        caption.push_str(" A burst is at full speed where the license was kept over the gap.");
    }
    if recurrence.regime_change_us.is_some() {
        caption.push_str(" The line marks where the behaviour changes, the shade how far that wandered meanwhile.");
    }
    let intervals = || recurrence.gaps.iter().map(|gap| gap.slowdown_pct.ci95);
    let beyond = intervals().filter(|(low, high)| *low < axis.start || axis.end < *high).count();
    if beyond > 0 {
        let low = intervals().map(|interval| interval.0).fold(f64::INFINITY, f64::min);
        let high = intervals().map(|interval| interval.1).fold(f64::NEG_INFINITY, f64::max);
        caption.push_str(&format!(
            " The slow-down is cut off at the ends of its axis at {}: with all intervals it would \
             reach from {} to {}.",
            counted(beyond, "gap"),
            percent(low / 100.0),
            percent(high / 100.0)
        ));
    }
    caption
}

/// The share of bursts with an effect, by their length; `None` below two lengths.
pub(crate) fn response(instructions: &Instructions) -> Result<Option<Figure>, DrawError> {
    let response = &instructions.response;
    let [first, .., last] = response.as_slice() else { return Ok(None) };
    let x = Axis::logarithmic(f64::from(first.0.max(1)), f64::from(last.0), count);
    let y = percent_axis(0.0, with_headroom(0.0, 1.0));
    let points: Vec<(f64, f64)> =
        response.iter().map(|(number, share, _)| (f64::from(*number), *share)).collect();
    let label = "Share of bursts that have an effect against the number of instructions in a burst";
    let plot = draw(230, label, |area| {
        let x_title = "instructions in the burst";
        let mut panel = panel(area, "bursts with an effect", &x, &y, Some(x_title))?;
        dotted(&mut panel, &points)?;
        if let Some(median) = instructions.median {
            let note = format!("half from {}", count(median.median));
            mark(&mut panel, median.median, median.ci95, &note)?;
        }
        Ok(())
    })?;
    let row = |(number, share, bursts): &(u32, f64, usize)| {
        vec![count(*number), percent(*share), length(*bursts)]
    };
    Ok(Some(Figure {
        caption: "Which share of the bursts has an effect, by the number of instructions in them."
            .to_owned(),
        plot,
        header: titles(&["instructions", "with an effect", "bursts"]),
        rows: response.iter().map(row).collect(),
    }))
}

/// Throughput of the kernel over time or over executed instructions; `None` without points.
pub(crate) fn throughput(points: &[(f64, f64)], scale: Scale) -> Result<Option<Figure>, DrawError> {
    let points: Vec<(f64, f64)> = points.iter().copied().filter(|point| point.0 > 0.0).collect();
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Ok(None) };
    let x = Axis::logarithmic(first.0, last.0, scale.tick());
    let highest = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let y = Axis::linear(0.0, highest * 1.1, grouped);
    let (x_title, since) = match scale {
        Scale::Time => ("time since the first instruction", "time"),
        Scale::Count => ("instructions executed", "instructions"),
    };
    let label = format!("Instructions of the kernel per cycle against {x_title}");
    let plot = draw(230, &label, |area| {
        let mut panel = panel(area, "kernel instructions per cycle", &x, &y, Some(x_title))?;
        let line = points.iter().map(|(at, per_cycle)| (*at, *per_cycle));
        panel.draw_series([PathElement::new(
            line.collect::<Vec<_>>(),
            LINE.stroke_width(2 * SCALE),
        )])?;
        Ok(())
    })?;
    Ok(Some(Figure {
        caption: "Throughput of the code itself, from its first instruction on.".to_owned(),
        plot,
        header: titles(&[since, "per cycle"]),
        rows: points.iter().map(|(at, rate)| vec![scale.text(*at), grouped(*rate, 3)]).collect(),
    }))
}

/// The cost of one isolated burst, by its length; `None` below three lengths.
pub(crate) fn sweep(costs: &[(u32, Estimate)]) -> Result<Option<Figure>, DrawError> {
    let [first, _, .., last] = costs else { return Ok(None) };
    let x = Axis::logarithmic(f64::from(first.0.max(1)), f64::from(last.0), count);
    let (low, high) = extent(costs.iter().map(|(_, cost)| cost));
    let y = Axis::linear(low.min(0.0), high, |value, _| round_time(value));
    let points: Vec<(f64, Estimate)> =
        costs.iter().map(|(number, cost)| (f64::from(*number), *cost)).collect();
    let label = "Cost of one isolated burst to the code after it against its instructions";
    let plot = draw(230, label, |area| {
        let x_title = "instructions in the burst";
        let mut panel = panel(area, "cost after the burst", &x, &y, Some(x_title))?;
        banded(&mut panel, &points, LINE)?;
        let dots =
            points.iter().map(|(x, cost)| Circle::new((*x, cost.median), 4 * SCALE, LINE.filled()));
        panel.draw_series(dots)?;
        Ok(())
    })?;
    let row = |(number, cost): &(u32, Estimate)| {
        vec![count(*number), time(cost.median), time(cost.ci95.0), time(cost.ci95.1)]
    };
    Ok(Some(Figure {
        caption: "What one isolated burst costs the code after it, by its length.".to_owned(),
        plot,
        header: titles(&["instructions", "cost", "low", "high"]),
        rows: costs.iter().map(row).collect(),
    }))
}
