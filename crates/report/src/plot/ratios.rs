//! How much more or less each of several ways achieves than the way that they are compared with.

use super::axis::Axis;
use super::charts::Figure;
use super::{DrawError, ROW, bar, draw, panel};
use crate::number::{SPACE, grouped, signed};

/// One way: its name, and its result relative to the way that the others are compared with: median,
/// and 95 % interval (1 is equal).
pub(crate) struct Way {
    pub(crate) name: String,
    pub(crate) ratio: f64,
    pub(crate) ci95: (f64, f64),
}

/// A bar for each way, from zero to its difference in percent. `what` the difference is, and what
/// `kind` the ways are.
pub(crate) fn ratios(
    title: &str,
    (what, kind): (&str, &str),
    ways: &[Way],
) -> Result<Figure, DrawError> {
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
            let interval = (percent(way.ci95.0), percent(way.ci95.1));
            let label = format!("{}  {}", way.name, told(way.ratio));
            bar(&mut panel, base, percent(way.ratio), interval, (label, low - room / 2.0))?;
        }
        Ok(())
    })?;
    let row = |way: &Way| {
        let Way { name, ratio, ci95: (low, high) } = way;
        vec![name.clone(), told(*ratio), format!("{} to {}", told(*low), told(*high))]
    };
    Ok(Figure {
        caption: format!("{title}: {what}; the line is the 95 % interval of the median."),
        plot,
        header: [kind, "median", "95 % interval"].map(str::to_owned).to_vec(),
        rows: ways.iter().map(row).collect(),
    })
}

/// A ratio as a difference: `+13.36 %`; `0.00 %` if it is none.
fn told(ratio: f64) -> String {
    format!("{}{SPACE}%", signed(100.0 * (ratio - 1.0), 2))
}
