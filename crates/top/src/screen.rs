//! Draws the screen. For any size of the terminal and any state of the server, it draws as much as
//! fits.

mod columns;
mod help;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Sparkline, Widget as _};

use super::history::Series;
use super::rows::Row;
use super::view::View;
use super::words;
use dimmer_report::number::{SPACE, counted, grouped, length, percent};

/// Rows kept for the regions before the charts get room, including their titles.
const LEAST_TABLE: u16 = 8;

/// Columns for a chart's name, and for its numbers.
const CHART_NAME: u16 = 28;
const CHART_NUMBERS: u16 = 30;

/// For less important text.
fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

/// For moved calls.
fn moved() -> Style {
    Style::new().fg(Color::Cyan)
}

/// For what needs attention.
fn alarm() -> Style {
    Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)
}

/// Draws a view over the whole frame.
pub fn draw(view: &mut View, frame: &mut Frame<'_>) {
    let area = frame.area();
    render(view, area, frame.buffer_mut());
}

/// From the top: the server and its settings, charts, regions, details of the selected region,
/// keys. Leaves out what does not fit, the charts first.
pub(super) fn render(view: &mut View, area: Rect, buffer: &mut Buffer) {
    let head = head(view);
    let charts = charts(view, area.width);
    let mut left = area.height;
    let mut take = |wanted: usize, keep: u16, is_whole: bool| {
        let wanted = u16::try_from(wanted).unwrap_or(u16::MAX);
        let room = left.saturating_sub(keep);
        let taken = if is_whole && room < wanted { 0 } else { wanted.min(room) };
        left -= taken;
        taken
    };
    let head_height = take(1, 0, false) + take(head.len() - 1, LEAST_TABLE, false);
    let keys_height = take(1, 3, true);
    let details_height = take(3, LEAST_TABLE, true);
    let high = take(charts.len() * 3, LEAST_TABLE, true);
    let charts_height = if high > 0 { high } else { take(charts.len() + 1, LEAST_TABLE, true) };
    let mut top = area.y;
    let mut part = |height: u16| {
        let part = Rect { y: top, height, ..area };
        top += height;
        part
    };
    draw_lines(&head, part(head_height), buffer);
    draw_charts(view, &charts, part(charts_height), buffer);
    draw_table(view, part(left), buffer);
    if let Some(row) = view.rows.get(view.selected()).filter(|_| details_height > 0) {
        draw_details(row, part(details_height), buffer);
    } else {
        part(details_height);
    }
    draw_lines(&[keys(view)], part(keys_height), buffer);
    if view.shows_help {
        help::draw(area, buffer);
    }
}

/// Draws lines from the top of an area, as many as fit.
fn draw_lines(lines: &[Line<'_>], area: Rect, buffer: &mut Buffer) {
    for (line, row) in lines.iter().zip(area.rows()) {
        cut(line, area.width).render(row, buffer);
    }
}

/// A line of at most `width` columns: a longer one ends in an ellipsis.
fn cut<'a>(line: &Line<'a>, width: u16) -> Line<'a> {
    let mut left = usize::from(width);
    if line.width() <= left {
        return line.clone();
    }
    let mut spans = Vec::new();
    for span in &line.spans {
        if span.width() < left {
            left -= span.width();
            spans.push(span.clone());
            continue;
        }
        let begin = console::truncate_str(&span.content, left.saturating_sub(1), "");
        spans.push(Span::styled(format!("{begin}…"), span.style));
        break;
    }
    Line { spans, ..line.clone() }
}

/// A line across the screen with text in it.
fn ruler<'a>(left: String, right: String) -> Block<'a> {
    let title = |text: String| Line::from(format!(" {text} ")).bold();
    let block = Block::new().borders(Borders::TOP).border_style(dim()).title(title(left));
    if right.is_empty() { block } else { block.title(title(right).right_aligned()) }
}

/// Replaces non-breaking spaces, which a terminal may not support.
fn spaced(text: &str) -> String {
    text.replace(SPACE, " ")
}

fn head(view: &View) -> Vec<Line<'static>> {
    let state = &view.state;
    let server = spaced(&words::server(state, &view.socket));
    let mut lines =
        vec![Line::from(vec![" dimmer top ".bold().reversed(), Span::raw(" "), server.into()])];
    if let Some(why) = &view.gone {
        let why = super::rows::clean(why);
        lines.push(Line::styled(
            format!(" What is shown is old: {why}. It is looked for again."),
            alarm(),
        ));
    } else if view.tells_again() {
        lines.push(Line::styled(
            " The server ended and has come again; it knows nothing of before.",
            alarm(),
        ));
    }
    let mut line = |name: &str, told: String| {
        let name = Span::styled(format!(" {name:<width$}", width = words::NAME), dim());
        lines.push(Line::from(vec![name, spaced(&told).into()]));
    };
    line("policy", words::policy(&state.policy));
    if let Some(told) = words::mechanisms(&state.policy) {
        line("mechanism", told);
    }
    line("better is", words::better(&state.policy));
    let cores = words::cores(&state.cores);
    let clocks = words::clocks(&state.cores, &view.clocks);
    line("cores", clocks.map_or(cores.clone(), |clocks| format!("{cores}; clocks {clocks}")));
    line("prices", words::prices(&state.policy));
    if let Some(told) = words::thresholds(&state.policy) {
        line("thresholds", told);
    }
    if let Some(told) = view.specialise.clone() {
        line("specialise", told);
    }
    if let Some(told) = words::requests(state) {
        line("requests", told);
    }
    if let Some(told) = words::strangers(state) {
        line("note", told);
    }
    lines
}

/// A series as one line of bars.
struct Chart<'a> {
    name: String,
    series: &'a Series,
    /// The value of the highest bar; `None`: the largest value shown.
    most: Option<f64>,
    style: Style,
    told: fn(f64) -> String,
}

impl Chart<'_> {
    /// The last value, and the range of the last `count` values.
    fn numbers(&self, count: usize) -> String {
        let last = self.series.last(count).next_back().flatten();
        let last = last.map_or("unknown".to_owned(), self.told);
        match self.series.range(count) {
            Some((least, most)) if least < most => {
                format!("{last}  ({} to {})", (self.told)(least), (self.told)(most))
            }
            _ => last,
        }
    }
}

fn charts(view: &View, width: u16) -> Vec<Chart<'_>> {
    let history = &view.history;
    let mut charts = Vec::new();
    if width <= CHART_NAME + 8 {
        return charts;
    }
    let may = view.state.cores.may.len().max(1) as f64;
    let chart = |name: &str, series, most, style, told| {
        let name = name.to_owned();
        Chart { name, series, most, style, told }
    };
    let dedicated = format!("dedicated cpus, of {may}");
    let whole = |number| grouped(number, 0);
    let blue = Style::new().fg(Color::Blue);
    charts.push(chart(&dedicated, &history.dedicated, Some(may), blue, whole));
    charts.push(chart("calls moved", &history.moved, Some(1.0), moved(), percent));
    let selected = view.rows.get(view.selected());
    if let Some(row) = selected
        && let Some(series) = history.performance.get(&row.key.0)
    {
        let what = if row.metric.is_some() { "metric/s" } else { "calls/s" };
        let name = format!("{what} of {} {}", row.program, row.pid);
        charts.push(chart(&name, series, None, Style::new().fg(Color::Green), words::short));
    }
    if view.state.policy.thresholds.is_some() {
        charts.push(chart(
            "threshold of L1",
            &history.threshold,
            None,
            Style::new().fg(Color::Magenta),
            words::share,
        ));
    }
    charts
}

fn draw_charts(view: &View, charts: &[Chart<'_>], area: Rect, buffer: &mut Buffer) {
    let lines = area.height.saturating_sub(1);
    let count = u16::try_from(charts.len()).unwrap_or(u16::MAX);
    if lines == 0 || count == 0 {
        return;
    }
    let numbers = if area.width >= CHART_NAME + 2 * CHART_NUMBERS { CHART_NUMBERS } else { 0 };
    let bars = area.width.saturating_sub(CHART_NAME + numbers);
    let span = words::span(f64::from(bars) * view.interval_s);
    ruler(format!("the last {span}"), String::new()).render(area, buffer);
    // Two lines with one between them, or one.
    let (height, pitch) = if lines + 1 >= 3 * count { (2, 3) } else { (1, 1) };
    for (chart, index) in charts.iter().zip(0..) {
        let row = Rect { y: area.y + 1 + index * pitch, height, ..area };
        // Names and numbers are at the foot of the bars.
        let last = Rect { y: row.y + height - 1, height: 1, ..row };
        let name = console::truncate_str(&chart.name, usize::from(CHART_NAME) - 2, "…");
        Span::styled(format!(" {name}"), dim()).render(last, buffer);
        let place = Rect { x: row.x + CHART_NAME, width: bars, ..row };
        bar_line(chart, bars).render(place, buffer);
        if numbers > 0 {
            let place = Rect { x: last.x + CHART_NAME + bars, width: numbers, ..last };
            Line::from(format!(" {}", spaced(&chart.numbers(bars.into())))).render(place, buffer);
        }
    }
}

/// The bars of a chart, the newest on the right.
fn bar_line<'a>(chart: &Chart<'_>, width: u16) -> Sparkline<'a> {
    /// Steps of a bar: more than two lines of a terminal can show.
    const STEPS: f64 = 1000.0;
    let width = usize::from(width);
    let most = chart.most.or(chart.series.range(width).map(|(_, most)| most));
    let most = most.filter(|most| *most > 0.0).unwrap_or(1.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to STEPS")]
    let step = |value: f64| (value / most * STEPS).round().clamp(0.0, STEPS) as u64;
    let known = chart.series.last(width).map(|value| value.map(step));
    let mut steps: Vec<Option<u64>> = known.collect();
    let unknown = width - steps.len().min(width);
    steps.splice(0..0, std::iter::repeat_n(None, unknown));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a constant")]
    let most = STEPS as u64;
    Sparkline::default().data(steps).max(most).style(chart.style)
}

fn draw_table(view: &mut View, area: Rect, buffer: &mut Buffer) {
    let programs: std::collections::BTreeSet<u64> = view.rows.iter().map(|row| row.key.0).collect();
    let regions = view.rows.iter().filter(|row| row.region.is_some()).count();
    let title = format!(
        "{}, {}, by {}",
        counted(programs.len(), "program"),
        counted(regions, "region"),
        view.sort.name()
    );
    // The ruler and the two lines of column titles are above.
    let rows = usize::from(area.height.saturating_sub(3));
    let selected = view.selected();
    let columns = columns::fitting(&view.rows, area.width);
    let page = view.page(rows);
    let right = if page.is_empty() {
        String::new()
    } else {
        format!("{} to {}", length(page.start + 1), length(page.end))
    };
    ruler(spaced(&title), spaced(&right)).render(area, buffer);
    for (line, place) in columns::titles(&columns).iter().zip(area.rows().skip(1)) {
        line.render(place, buffer);
    }
    if view.rows.is_empty() && rows > 0 {
        let place = area.rows().nth(3).unwrap_or_default();
        Line::from(" No program with marked regions is there.").render(place, buffer);
    }
    for (index, place) in page.zip(area.rows().skip(3)) {
        let row = &view.rows[index];
        let history = view.history.regions.get(&row.key);
        columns::line(&columns, row, history, index == selected).render(place, buffer);
    }
}

fn draw_details(row: &Row, area: Rect, buffer: &mut Buffer) {
    ruler("selected".to_owned(), String::new()).render(area, buffer);
    let lines = words::details(row).map(|line| Line::from(format!(" {}", spaced(&line))));
    for (line, place) in lines.iter().zip(area.rows().skip(1)) {
        cut(line, area.width).render(place, buffer);
    }
}

fn keys(view: &View) -> Line<'static> {
    let mut spans = Vec::new();
    if view.is_paused {
        spans.push(Span::styled(" PAUSED ", alarm().add_modifier(Modifier::REVERSED)));
    }
    let pause = if view.is_paused { "go on" } else { "pause" };
    for (key, what) in [("q", "quit"), ("↑↓", "select"), ("s", "sort"), ("p", pause), ("?", "help")]
    {
        spans.extend([
            Span::raw(format!(" {key} ")).bold(),
            Span::styled(format!("{what} "), dim()),
        ]);
    }
    Line::from(spans)
}
