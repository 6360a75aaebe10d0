//! One quantity of several things: a bar for each, with its interval.

use super::axis::Axis;
use super::charts::Figure;
use super::{DrawError, ROW, bar, draw, panel};

/// A thing and its quantity.
pub(crate) struct Value {
    pub(crate) name: String,
    pub(crate) median: f64,
    pub(crate) interval: Option<[f64; 2]>,
    /// The quantity in words, with its interval.
    pub(crate) told: String,
}

/// A bar for each value from zero on, with a line over its interval. `head` stands above the plot,
/// `title` says all of it. `of` what kind the things are.
pub(crate) fn values(
    (head, title): (&str, &str),
    of: &str,
    unit: impl Fn(f64, usize) -> String + Copy + 'static,
    values: &[Value],
) -> Result<Figure, DrawError> {
    let ends = |value: &Value| {
        let [low, high] = value.interval.unwrap_or([value.median; 2]);
        [value.median, low, high]
    };
    let all = values.iter().flat_map(ends).filter(|value| value.is_finite());
    let (low, high) =
        all.fold((0.0, 0.0), |(low, high): (f64, f64), end| (low.min(end), high.max(end)));
    // Room at both ends, and an axis even if all are zero.
    let room = 0.08 * (high - low).max(f64::MIN_POSITIVE);
    let x = Axis::linear(low - room, high + room, unit);
    let rows = values.len() as f64;
    let y = Axis::linear(0.0, rows, |_, _| String::new());
    let height = 80 + ROW * u32::try_from(values.len()).unwrap_or(1);
    let plot = draw(height, title, |area| {
        let mut panel = panel(area, head, &x, &y, Some(""))?;
        for (row, value) in values.iter().enumerate() {
            let [median, low_end, high_end] = ends(value);
            let label = format!("{}  {}", value.name, value.told);
            let base = rows - row as f64;
            bar(&mut panel, base, median, (low_end, high_end), (label, low - room / 2.0))?;
        }
        Ok(())
    })?;
    let row = |value: &Value| vec![value.name.clone(), value.told.clone()];
    Ok(Figure {
        caption: format!("{title}; the line is the 95 % interval of the median."),
        plot,
        header: [of, "median and interval"].map(str::to_owned).to_vec(),
        rows: values.iter().map(row).collect(),
    })
}
