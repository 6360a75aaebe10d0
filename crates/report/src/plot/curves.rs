//! Curves over a common axis, both axes logarithmic, and under them the places where curves cross.

use super::axis::Axis;
use super::charts::Figure;
use super::*;
use crate::number::{SPACE, count, grouped};

/// A curve: its name, and its points.
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A place on the x-axis where curves cross: what does, the place that was reported, and ours, if
/// there is any.
pub(crate) struct Place {
    pub(crate) what: String,
    pub(crate) reported: f64,
    pub(crate) ours: Option<f64>,
}

/// Height of the curves, in units of the page.
const HEIGHT: u32 = 250;

/// Height of a row of names, in units of the page, and names in a row.
const NAME: u32 = 18;
const COLUMNS: usize = 4;

/// Colors of curves, one after the other; after these, dashed.
const COLORS: [RGBColor; 4] = [LINE, STALL, MARK, INK];

/// Curves from the first to the last `x` of the points. `axes`: titles of both axes, and the unit
/// of the y-axis. `None` without points.
pub(crate) fn curves(
    title: &str,
    axes: (&str, &str, &str),
    curves: &[Named],
    places: &[Place],
) -> Result<Option<Figure>, DrawError> {
    let (x_title, y_title, unit) = axes;
    let all = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    let (low, high) = ends(all().map(|(x, _)| x));
    let (bottom, top) = ends(all().map(|(_, y)| y));
    if low >= high || bottom > top {
        return Ok(None);
    }
    let x = Axis::logarithmic(low, high, count);
    let told = |value: f64| if value < 1.0 { format!("{value}") } else { grouped(value, 0) };
    let y = Axis::logarithmic(bottom / 1.1, top * 1.2, told);
    let names = NAME * u32::try_from(curves.len().div_ceil(COLUMNS)).unwrap_or(1);
    let below = 60 + ROW * u32::try_from(places.len()).unwrap_or(1);
    let height = names + HEIGHT + if places.is_empty() { 0 } else { below };
    let plot = draw(height, title, |area| {
        let (top, rest) = area.split_vertically(names * SCALE);
        let (above, rest) = rest.split_vertically(HEIGHT * SCALE);
        let mut panel = panel(&above, y_title, &x, &y, Some(x_title))?;
        for (index, curve) in curves.iter().enumerate() {
            name(&top, &curve.name, index)?;
            line(&mut panel, &curve.points, index)?;
        }
        if places.is_empty() { Ok(()) } else { crossings(&rest, &x, places) }
    })?;
    let number = |value: Option<f64>| value.map_or("–".to_owned(), |value| grouped(value, 3));
    let mut header = vec![x_title.to_owned()];
    header.extend(curves.iter().map(|curve| format!("{}{SPACE}{unit}", curve.name)));
    let at = |index: usize| {
        let x = curves.first().and_then(|curve| curve.points.get(index)).map(|(x, _)| *x);
        let values =
            curves.iter().map(|curve| number(curve.points.get(index).map(|(_, value)| *value)));
        std::iter::once(x.map_or(String::new(), |x| grouped(x, 0))).chain(values).collect()
    };
    let points = curves.iter().map(|curve| curve.points.len()).max().unwrap_or(0);
    Ok(Some(Figure {
        caption: title.to_owned(),
        plot,
        header,
        rows: (0..points).map(at).collect(),
    }))
}

/// The least and the most of some values.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

/// A curve.
fn line(panel: &mut Panel<'_, '_>, points: &[(f64, f64)], index: usize) -> Result<(), DrawError> {
    let style = COLORS[index % COLORS.len()].stroke_width(2 * SCALE);
    if index < COLORS.len() {
        panel.draw_series([PathElement::new(points, style)])?;
    } else {
        let points = points.iter().copied();
        panel.draw_series(DashedLineSeries::new(points, 6 * SCALE, 4 * SCALE, style))?;
    }
    Ok(())
}

/// A curve's name above all curves, after a piece of its line.
fn name(area: &Area<'_>, name: &str, index: usize) -> Result<(), DrawError> {
    let number = |value: usize| i32::try_from(value).unwrap_or(0);
    let scale = SCALE.cast_signed();
    let column = 92 * scale * number(index % COLUMNS);
    let (x, y) = (56 * scale + column, (9 + NAME.cast_signed() * number(index / COLUMNS)) * scale);
    let style = COLORS[index % COLORS.len()].stroke_width(2 * SCALE);
    let pieces = if index < COLORS.len() { vec![(0, 18)] } else { vec![(0, 6), (10, 16)] };
    for (from, to) in pieces {
        area.draw(&PathElement::new([(x + from * scale, y), (x + to * scale, y)], style))?;
    }
    area.draw_text(name, &text(INK, HPos::Left, VPos::Center), (x + 22 * scale, y))
}

/// A row for each crossing: a line where it was reported, and a dot where ours is.
fn crossings(area: &Area<'_>, x: &Axis, places: &[Place]) -> Result<(), DrawError> {
    let rows = places.len() as f64;
    let y = Axis::linear(0.0, rows, |_, _| String::new());
    let low = x.ends().start;
    let mut panel =
        panel(area, "crossings: the line is the paper's, the dot ours", x, &y, Some(""))?;
    for (row, Place { what, reported, ours }) in places.iter().enumerate() {
        let middle = rows - row as f64 - 0.72;
        let ends = vec![(*reported, middle - 0.2), (*reported, middle + 0.2)];
        panel.draw_series([PathElement::new(ends, MARK.stroke_width(2 * SCALE))])?;
        if let Some(ours) = ours {
            let between = vec![(*reported, middle), (*ours, middle)];
            panel.draw_series([PathElement::new(between, GRID.stroke_width(2 * SCALE))])?;
            panel.draw_series([Circle::new((*ours, middle), 4 * SCALE, LINE.filled())])?;
        }
        let told = ours.map_or("none".to_owned(), |ours| grouped(ours, 0));
        let label = format!("{what}: {} / {told}", grouped(*reported, 0));
        let style = text(INK, HPos::Left, VPos::Bottom);
        panel.draw_series([Text::new(label, (low * 1.05, middle + 0.22), style)])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_have_a_row_for_each_point_and_crossings_a_mark() {
        let curve = |name: &str| Named {
            name: name.to_owned(),
            points: vec![(1e3, 0.5), (1e4, 1.0), (1e5, 2.0)],
        };
        let all: Vec<Named> = ["a", "b", "c", "d", "e"].map(curve).into();
        let place = |ours| Place { what: "a over b".to_owned(), reported: 2e4, ours };
        let axes = ("cycles", "clock, GHz", "GHz");
        let with = |places: &[Place]| curves("title", axes, &all, places).unwrap().unwrap();
        let figure = with(&[]);
        assert_eq!((figure.header.len(), figure.rows.len()), (6, 3));
        let circles = |figure: &Figure| figure.plot.0.matches("<circle").count();
        assert_eq!(circles(&figure), 0);
        assert_eq!(circles(&with(&[place(Some(3e4)), place(None)])), 1);
        assert!(curves("title", axes, &[], &[]).unwrap().is_none());
    }
}
