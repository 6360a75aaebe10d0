//! How much more or less each of several ways achieves than the way that they are compared with.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::Axis;
use super::charts::Figure;
use super::{DrawError, INK, LINE, MARK, SCALE, draw, panel, text};
use crate::number::grouped;

/// Height of a way's row, in units of the page.
const ROW: u32 = 38;

/// One way: its name, and its result relative to the way that the others are compared with: median,
/// and 95 % interval (1 is equal).
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) ratio: f64,
    pub(crate) ci95: (f64, f64),
}

/// A bar for each way, from zero to its difference in percent.
pub(crate) fn ratios(title: &str, what: &str, ways: &[Way]) -> Result<Figure, DrawError> {
    let percent = |ratio: f64| 100.0 * (ratio - 1.0);
    let ends = ways.iter().flat_map(|way| [way.ratio, way.ci95.0, way.ci95.1]).map(percent);
    let (low, high) =
        ends.fold((0.0, 0.0), |(low, high): (f64, f64), end| (low.min(end), high.max(end)));
    // Room at both ends, and an axis even if all are equal.
    let room = 0.08 * (high - low).max(1.0);
    let x = Axis::linear(low - room, high + room, |value, decimals| {
        format!("{} %", grouped(value, decimals))
    });
    let rows = ways.len() as f64;
    let y = Axis::linear(0.0, rows, |_, _| String::new());
    let height = 52 + ROW * u32::try_from(ways.len()).unwrap_or(1);
    let plot = draw(height, title, |area| {
        let mut panel = panel(area, title, &x, &y, Some(what))?;
        for (row, way) in ways.iter().enumerate() {
            let base = rows - row as f64;
            let (bottom, middle, top) = (base - 0.9, base - 0.7, base - 0.5);
            let bar = [(0.0, bottom), (percent(way.ratio), top)];
            let interval = [(percent(way.ci95.0), middle), (percent(way.ci95.1), middle)];
            panel.draw_series([Rectangle::new(bar, LINE.filled())])?;
            let line = MARK.stroke_width(2 * SCALE);
            panel.draw_series([PathElement::new(interval, line)])?;
            let label = format!("{}  {}", way.name, told(way.ratio));
            let style = text(INK, HPos::Left, VPos::Bottom);
            panel.draw_series([Text::new(label, (low - room / 2.0, top), style)])?;
        }
        Ok(())
    })?;
    let row = |way: &Way| {
        let Way { name, ratio, ci95: (low, high) } = way;
        vec![(*name).to_owned(), told(*ratio), format!("{} to {}", told(*low), told(*high))]
    };
    Ok(Figure {
        caption: format!("{title}: {what}; the line is the 95 % interval of the median."),
        plot,
        header: ["governor", "median", "95 % interval"].map(str::to_owned).to_vec(),
        rows: ways.iter().map(row).collect(),
    })
}

/// A ratio as a difference: `+13.36 %`.
fn told(ratio: f64) -> String {
    format!("{:+.2} %", 100.0 * (ratio - 1.0)).replace('-', "−")
}
