//! What keys do and what columns mean.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Stylize as _;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Widget as _};

const KEYS: [(&str, &str); 5] = [
    ("q", "ends this"),
    ("↑ ↓", "select a region; page up, page down, home and end go farther"),
    ("s", "sorts by CPU, calls/s, moved, program, decision"),
    ("p", "stops the screen, and lets it go on"),
    ("?", "this help"),
];

const COLUMNS: [(&str, &str); 9] = [
    ("program", "its name and process"),
    ("region", "the name it was marked with, and its line"),
    ("calls/s", "since the last look"),
    ("of a CPU", "the part of one CPU's time in it, in the server's last look"),
    (
        "takes",
        "how long a call takes that stayed where it was, and one that was moved to a dedicated core and back",
    ),
    ("clock after", "the core's clock right after a call, as a part of the highest"),
    ("metric/s", "what the program gets done by its own account"),
    ("decision", "moved to a dedicated core or not, and why; the selected one at length below"),
    (
        "moved",
        "the part of its calls that was moved, since the last look and over time, the newest on the right",
    ),
];

/// Columns for a name.
const NAME: usize = 13;

/// Drawn over everything else, in the middle.
pub(super) fn draw(area: Rect, buffer: &mut Buffer) {
    let width = area.width.min(84);
    let room = usize::from(width).saturating_sub(NAME + 3).max(10);
    let mut lines = Vec::new();
    for (name, meaning) in KEYS.iter().chain(&[("", "")]).chain(&COLUMNS) {
        let mut name = *name;
        for part in textwrap::wrap(meaning, room) {
            let name = format!(" {:<NAME$}", std::mem::take(&mut name));
            lines.push(Line::from(vec![Span::raw(name).bold(), Span::raw(part.into_owned())]));
        }
    }
    let height = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_add(2);
    let height = height.min(area.height);
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    Clear.render(place, buffer);
    Paragraph::new(lines).block(Block::bordered().title(" help ")).render(place, buffer);
}
