//! Values that were reported, each beside one of our own.

use super::axis::Axis;
use super::charts::Figure;
use super::{DrawError, ROW, bar, draw, panel};
use crate::number::grouped;

/// A value that was reported, and ours.
pub(crate) struct Pair {
    /// What stands at the bar.
    pub(crate) name: String,
    /// What was measured, for the table.
    pub(crate) told: String,
    pub(crate) reported: f64,
    pub(crate) ours: f64,
    /// The least and the most of several runs.
    pub(crate) interval: Option<(f64, f64)>,
}

/// A bar for each value that was reported, and a line at ours. `reported` and `ours`: what they
/// are, in words.
pub(crate) fn pairs(
    title: &str,
    (reported, ours): (&str, &str),
    unit: &'static str,
    pairs: &[Pair],
) -> Result<Figure, DrawError> {
    let told = move |value: f64, decimals| format!("{} {unit}", grouped(value, decimals));
    let ends = |pair: &Pair| {
        let (low, high) = pair.interval.unwrap_or((pair.ours, pair.ours));
        [pair.reported, pair.ours, low, high]
    };
    let all = pairs.iter().flat_map(ends).filter(|value| value.is_finite());
    let (low, high) =
        all.fold((0.0, 0.0), |(low, high): (f64, f64), end| (low.min(end), high.max(end)));
    let room = 0.08 * (high - low).max(f64::MIN_POSITIVE);
    let x = Axis::linear(low - room, high + room, told);
    let rows = pairs.len() as f64;
    let y = Axis::linear(0.0, rows, |_, _| String::new());
    let height = 52 + ROW * u32::try_from(pairs.len()).unwrap_or(1);
    let plot = draw(height, title, |area| {
        let mut panel = panel(area, title, &x, &y, Some(""))?;
        for (row, pair) in pairs.iter().enumerate() {
            let base = rows - row as f64;
            let interval = pair.interval.unwrap_or((pair.ours, pair.ours));
            let label =
                format!("{}  {} / {}", pair.name, told(pair.reported, 2), told(pair.ours, 2));
            bar(&mut panel, base, pair.reported, interval, (label, low - room / 2.0))?;
        }
        Ok(())
    })?;
    let row = |pair: &Pair| {
        let interval =
            pair.interval.map(|(low, high)| format!("{} to {}", told(low, 2), told(high, 2)));
        vec![
            pair.name.clone(),
            pair.told.clone(),
            told(pair.reported, 2),
            told(pair.ours, 2),
            interval.unwrap_or_default(),
        ]
    };
    Ok(Figure {
        caption: format!("{title}: the bar is {reported}, the line {ours}."),
        plot,
        header: ["", "what", reported, ours, "least to most"].map(str::to_owned).to_vec(),
        rows: pairs.iter().map(row).collect(),
    })
}
