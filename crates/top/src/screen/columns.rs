//! The columns of the table of regions: which of them fit, and their content.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::super::history::Series;
use super::super::rows::Row;
use super::super::words;
use super::{dim, moved, spaced};
use dimmer_report::number::{percent, time};

/// Bars from the lowest to the highest value.
const BARS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// The width up to which regions' names come before the other columns.
const MOST_FOR_NAMES: usize = 24;

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Program,
    Site,
    Calls,
    Share,
    StayedTakes,
    MovedTakes,
    Clock,
    Metric,
    Decision,
    Moved,
    History,
}

/// A column, and its width on the screen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fitted {
    column: Column,
    width: usize,
}

impl Column {
    /// In the order on the screen.
    const ALL: [Self; 11] = [
        Self::Program,
        Self::Site,
        Self::Calls,
        Self::Share,
        Self::StayedTakes,
        Self::MovedTakes,
        Self::Clock,
        Self::Metric,
        Self::Decision,
        Self::Moved,
        Self::History,
    ];

    /// In the order in which columns get room.
    const BY_USE: [Self; 11] = [
        Self::Site,
        Self::Decision,
        Self::Moved,
        Self::Program,
        Self::Calls,
        Self::Share,
        Self::StayedTakes,
        Self::MovedTakes,
        Self::History,
        Self::Clock,
        Self::Metric,
    ];

    /// The column's title in two lines, and its minimum width.
    const fn layout(self) -> ([&'static str; 2], usize) {
        match self {
            Self::Program => (["", "program"], 14),
            Self::Site => (["", "region"], 12),
            Self::Calls => (["", "calls/s"], 8),
            Self::Share => (["of a", "CPU"], 7),
            Self::StayedTakes => (["one stayed", "takes"], 10),
            Self::MovedTakes => (["one moved", "takes"], 9),
            Self::Clock => (["clock", "after"], 7),
            Self::Metric => (["", "metric/s"], 8),
            Self::Decision => (["", "decision"], 20),
            Self::Moved => (["calls", "moved"], 7),
            Self::History => (["moved,", "over time"], 9),
        }
    }

    /// The maximum width of a column that may use remaining room; 0 for the others.
    const fn most(self) -> usize {
        match self {
            Self::Program => 24,
            Self::Site => 40,
            Self::Decision => 24,
            Self::History => 60,
            _ => 0,
        }
    }

    /// The width that the column must have for these rows: regions' names come before columns that
    /// say less.
    fn least(self, rows: &[Row]) -> usize {
        let (_, least) = self.layout();
        if self != Self::Site {
            return least;
        }
        let names = rows.iter().filter_map(|row| self.text(row));
        let longest = names.map(|name| console::measure_text_width(&spaced(&name))).max();
        longest.unwrap_or(0).clamp(least, MOST_FOR_NAMES)
    }

    const fn is_number(self) -> bool {
        !matches!(self, Self::Program | Self::Site | Self::Decision | Self::History)
    }

    /// The cell of a row; `None` if it is empty.
    fn text(self, row: &Row) -> Option<String> {
        if self == Self::Program {
            return Some(format!("{} {}", row.program, row.pid));
        }
        let metric = row.metric.map(words::short);
        let Some(region) = &row.region else {
            let is_site = self == Self::Site;
            return if self == Self::Metric { metric } else { is_site.then(|| "none yet".into()) };
        };
        match self {
            Self::Program | Self::History => None,
            Self::Site => Some(format!("{}:{}", region.name, region.line)),
            Self::Calls => Some(words::short(region.calls_per_s)),
            Self::Share => Some(percent(region.share)),
            Self::StayedTakes => region.stayed_ns.map(time),
            Self::MovedTakes => region.moved_ns.map(time),
            Self::Clock => region.clock.map(percent),
            Self::Metric => metric,
            Self::Decision => Some(words::decision(region)),
            Self::Moved => region.moved_ratio.map(percent),
        }
    }

    fn style(self, row: &Row) -> Style {
        let Some(region) = row.region.as_ref() else { return dim() };
        match (self, region.reason.as_str(), region.is_moved) {
            (Self::Decision, "tried", _) => Style::new().fg(Color::Yellow),
            (Self::Decision, "no core", _) => Style::new().fg(Color::Red),
            (Self::Decision | Self::Moved | Self::History, _, true) | (Self::History, ..) => {
                moved()
            }
            (Self::Decision, "no evidence" | "untried", _) => dim(),
            _ => Style::new(),
        }
    }
}

/// The columns that fit into `width`, one space apart, the most useful first. Columns that no row
/// fills are left out.
pub(super) fn fitting(rows: &[Row], width: u16) -> Vec<Fitted> {
    let is_filled = |column: Column| match column {
        Column::StayedTakes | Column::MovedTakes | Column::Clock | Column::Metric => {
            rows.iter().any(|row| column.text(row).is_some())
        }
        _ => true,
    };
    let mut left = usize::from(width).saturating_sub(1);
    let mut chosen = Vec::new();
    for column in Column::BY_USE.into_iter().filter(|column| is_filled(*column)) {
        let least = column.least(rows);
        if left > least || chosen.is_empty() {
            left = left.saturating_sub(least + 1);
            chosen.push(column);
        }
    }
    let shown = Column::ALL.into_iter().filter(|column| chosen.contains(column));
    let fitted = |column: Column| {
        let least = column.least(rows);
        let more = column.most().saturating_sub(least).min(left);
        left -= more;
        Fitted { column, width: least + more }
    };
    shown.map(fitted).collect()
}

/// The columns' titles.
pub(super) fn titles(columns: &[Fitted]) -> [Line<'static>; 2] {
    [0, 1].map(|line| {
        let title = |fitted: &Fitted| {
            let (titles, _) = fitted.column.layout();
            Span::styled(fill(titles[line], fitted), dim())
        };
        Line::from(columns.iter().map(title).collect::<Vec<_>>())
    })
}

/// A row; the selected one stands out even without colors.
pub(super) fn line(
    columns: &[Fitted],
    row: &Row,
    history: Option<&Series>,
    is_selected: bool,
) -> Line<'static> {
    let cell = |fitted: &Fitted| {
        let text = if fitted.column == Column::History {
            history.map(|history| bars(history, fitted.width)).unwrap_or_default()
        } else {
            fitted.column.text(row).unwrap_or_default()
        };
        let style = if is_selected && fitted.column != Column::History {
            Style::new().add_modifier(Modifier::REVERSED)
        } else {
            fitted.column.style(row)
        };
        Span::styled(fill(&text, fitted), style)
    };
    Line::from(columns.iter().map(cell).collect::<Vec<_>>())
}

/// A space and the text, cut or padded to the column's width as terminals count it.
fn fill(text: &str, Fitted { column, width }: &Fitted) -> String {
    let alignment = if column.is_number() || *column == Column::History {
        console::Alignment::Right
    } else {
        console::Alignment::Left
    };
    let text = spaced(text);
    format!(" {}", console::pad_str(&text, *width, alignment, Some("…")))
}

/// Ratios as bars, the newest on the right; a space for `None`.
fn bars(history: &Series, width: usize) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 7")]
    let bar = |ratio: f64| BARS[(ratio.clamp(0.0, 1.0) * 7.0).round() as usize];
    history.last(width).map(|ratio| ratio.map_or(" ", bar)).collect()
}
