//! Plots as inline SVG, drawn by `plotters`.
//!
//! Coordinates are drawn at [`SCALE`] times their size on the page, because the backend rounds them
//! to whole units. Colors are fixed names for roles; the style sheet maps them to colors for a
//! light or a dark page, and sets the fonts.

mod axis;
mod bins;
mod charts;
mod curves;
mod pairs;
mod ratios;
mod spread;
mod values;

use maud::{Markup, PreEscaped, html};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use axis::Axis;
pub(crate) use charts::{Figure, Scale, clock, histogram, recurrence, response, sweep, throughput};
pub(crate) use curves::{Named, Place, curves};
pub(crate) use pairs::{Pair, pairs};
pub(crate) use ratios::{Way, ratios};
pub(crate) use spread::spread;
pub(crate) use values::{Value, values};

/// Text and axes.
const INK: RGBColor = RGBColor(0x5A, 0x60, 0x66);
/// Grid lines.
const GRID: RGBColor = RGBColor(0xDD, 0xDF, 0xE1);
/// Measured values.
const LINE: RGBColor = RGBColor(0x2B, 0x5C, 0x8A);
/// Stalls.
const STALL: RGBColor = RGBColor(0xB4, 0x5F, 0x06);
/// Derived numbers: medians, changes of regime.
const MARK: RGBColor = RGBColor(0x8A, 0x2F, 0x4F);

/// Drawn units per unit of the page.
const SCALE: u32 = 3;
/// Width of every plot, in units of the page.
const WIDTH: u32 = 430;
/// Length of the ticks of an x-axis, in drawn units.
const TICK: i32 = 6 * SCALE.cast_signed();
/// Height of the text, in drawn units.
const TEXT: i32 = 14 * SCALE.cast_signed();

/// Failure to draw; not expected, since the backend writes into memory.
pub(crate) type DrawError = DrawingAreaErrorKind<std::io::Error>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Panel<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

/// Draws one plot of this height (in units of the page), with `label` as its description.
fn draw(
    height: u32,
    label: &str,
    paint: impl FnOnce(&Area<'_>) -> Result<(), DrawError>,
) -> Result<Markup, DrawError> {
    let (width, height) = (WIDTH * SCALE, height * SCALE);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        paint(&area)?;
        area.present()?;
    }
    // The outer element is written here, for its role and because it must not have a fixed size.
    let inside = svg.split_once('>').map_or("", |(_, rest)| rest);
    let inside = inside.trim_end().trim_end_matches("</svg>");
    Ok(html! {
        svg.plot viewBox=(format!("0 0 {width} {height}")) role="img" aria-label=(label) {
            title { (label) }
            (PreEscaped(inside))
        }
    })
}

fn text(colour: RGBColor, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    // The backend divides sizes by 1.24.
    let font = ("sans-serif", f64::from(TEXT) * 1.24).into_font();
    font.color(&colour).pos(Pos::new(horizontal, vertical))
}

/// Axes with a title above. Of several panels, only the lowest one labels its x-axis.
fn panel<'a, 'b>(
    area: &'a Area<'b>,
    title: &str,
    x: &Axis,
    y: &Axis,
    x_title: Option<&str>,
) -> Result<Panel<'a, 'b>, DrawError> {
    const LEFT: i32 = 56 * SCALE.cast_signed();
    const RIGHT: i32 = 26 * SCALE.cast_signed();
    let line = TEXT * 3 / 2;
    let (width, height) = area.dim_in_pixel();
    let right = width.cast_signed() - RIGHT;
    area.draw_text(title, &text(INK, HPos::Left, VPos::Top), (LEFT, TEXT / 3))?;
    if let Some(x_title) = x_title {
        let bottom = height.cast_signed() - TEXT / 4;
        area.draw_text(x_title, &text(INK, HPos::Right, VPos::Bottom), (right, bottom))?;
    }
    let labels = if x_title.is_some() { line + TICK } else { 0 };
    let mut panel = ChartBuilder::on(area)
        .margin_top(line + TEXT / 2)
        .margin_right(RIGHT)
        .margin_bottom(if x_title.is_some() { line } else { TEXT * 3 / 4 })
        .x_label_area_size(labels)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(x.clone(), y.clone())?;
    panel
        .configure_mesh()
        .bold_line_style(GRID.stroke_width(SCALE))
        .light_line_style(TRANSPARENT)
        .axis_style(GRID.stroke_width(SCALE))
        .label_style(text(INK, HPos::Center, VPos::Center))
        .set_all_tick_mark_size(SCALE * 3)
        // Leaves room between the lowest label of one axis and the first of the other.
        .set_tick_mark_size(LabelAreaPosition::Bottom, TICK)
        .draw()?;
    Ok(panel)
}

/// Height of a row with a bar, in units of the page.
const ROW: u32 = 42;

/// A bar from zero to a value in the row whose top is at `base`, a line over an interval, and a
/// text that starts at a place.
fn bar(
    panel: &mut Panel<'_, '_>,
    base: f64,
    value: f64,
    (low, high): (f64, f64),
    (label, at): (String, f64),
) -> Result<(), DrawError> {
    let (bottom, middle, top) = (base - 0.9, base - 0.7, base - 0.5);
    panel.draw_series([Rectangle::new([(0.0, bottom), (value, top)], LINE.filled())])?;
    // With ends beyond the bar, so that also a short interval is seen.
    let end = |at: f64| vec![(at, bottom - 0.04), (at, top + 0.04)];
    let lines = [vec![(low, middle), (high, middle)], end(low), end(high)];
    let style = MARK.stroke_width(2 * SCALE);
    panel.draw_series(lines.map(|line| PathElement::new(line, style)))?;
    let style = text(INK, HPos::Left, VPos::Bottom);
    panel.draw_series([Text::new(label, (at, top + 0.08), style)])?;
    Ok(())
}

/// A vertical line over the band of its interval, with a text next to its top; no text if `label`
/// is empty.
fn mark(
    panel: &mut Panel<'_, '_>,
    at: f64,
    interval: (f64, f64),
    label: &str,
) -> Result<(), DrawError> {
    let (left_half, bottom, top) = {
        let axes = panel.as_coord_spec();
        let y = axes.y_spec().ends();
        (axes.x_spec().place(at) < 0.5, y.start, y.end)
    };
    let band = [(interval.0, bottom), (interval.1, top)];
    panel.draw_series([Rectangle::new(band, MARK.mix(0.2).filled())])?;
    let line = vec![(at, bottom), (at, top)];
    panel.draw_series([PathElement::new(line, MARK.stroke_width(SCALE + SCALE / 2))])?;
    if label.is_empty() {
        return Ok(());
    }
    let (side, gap) = if left_half { (HPos::Left, TEXT / 2) } else { (HPos::Right, -TEXT / 2) };
    let note = Text::new(label.to_owned(), (gap, TEXT / 4), text(MARK, side, VPos::Top));
    panel.draw_series([EmptyElement::at((at, top)) + note])?;
    Ok(())
}
