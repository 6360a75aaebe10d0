//! Tables of text that fit a screen.

use comfy_table::{
    Attribute, CellAlignment, Color, ColumnConstraint, ContentArrangement, Width, presets,
};

use crate::screen::Screen;

/// Spaces between columns.
pub(crate) const GAP: u16 = 2;

/// The color of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// For what needs attention.
    Yellow,
    /// For what is in order.
    Green,
    /// For what is active.
    Cyan,
}

/// A cell of a [`Table`], on the left of its column: a text of one line, or of several if it is
/// made of lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    text: String,
    is_right: bool,
    is_dim: bool,
    colour: Option<Colour>,
}

impl Cell {
    /// A number, on the right of its column.
    pub fn right(text: impl Into<String>) -> Self {
        Self::from(text.into()).aligned_right()
    }

    /// A text of several lines.
    pub fn lines<S: AsRef<str>>(lines: impl IntoIterator<Item = S>) -> Self {
        let lines: Vec<String> =
            lines.into_iter().map(|line| Self::from(line.as_ref()).text).collect();
        Self { text: lines.join("\n"), ..Self::from("") }
    }

    /// The cell on the right of its column.
    pub(crate) fn aligned_right(self) -> Self {
        Self { is_right: true, ..self }
    }

    /// The cell in this color, if the screen has colors.
    #[must_use]
    pub fn coloured(self, colour: Colour) -> Self {
        Self { colour: Some(colour), ..self }
    }

    pub(crate) fn dim(self) -> Self {
        Self { is_dim: true, ..self }
    }

    fn drawn(&self, screen: Screen) -> comfy_table::Cell {
        let mut cell = comfy_table::Cell::new(screen.digits(&self.text));
        if self.is_right {
            cell = cell.set_alignment(CellAlignment::Right);
        }
        if self.is_dim {
            cell = cell.add_attribute(Attribute::Dim);
        }
        match self.colour {
            Some(Colour::Yellow) => cell.fg(Color::Yellow),
            Some(Colour::Green) => cell.fg(Color::Green),
            Some(Colour::Cyan) => cell.fg(Color::Cyan),
            None => cell,
        }
    }
}

impl From<String> for Cell {
    /// A line end or a tab, as a name from a file may have, is replaced: it would end the row.
    fn from(text: String) -> Self {
        let text = text.replace(['\n', '\r', '\t'], "\u{fffd}");
        Self { text, is_right: false, is_dim: false, colour: None }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

/// Rows of cells in columns without rules.
#[derive(Clone, Debug, Default)]
pub struct Table {
    header: Vec<Cell>,
    rows: Vec<Vec<Cell>>,
    least: Vec<(usize, u16)>,
}

impl Table {
    /// An empty table with these headings; none, if there are none.
    pub fn new<C: Into<Cell>>(header: impl IntoIterator<Item = C>) -> Self {
        let header = header.into_iter().map(Into::into).collect();
        Self { header, ..Self::default() }
    }

    /// Adds a row.
    pub fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Gives a column at least `width` columns of the screen; other columns are wrapped first.
    pub fn set_least_width(&mut self, column: usize, width: u16) {
        self.least.push((column, width));
    }

    /// The table as lines.
    pub fn render(&self, screen: Screen) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        if !self.header.is_empty() {
            table.set_header(self.header.iter().map(|cell| cell.drawn(screen)));
        }
        for row in &self.rows {
            table.add_row(row.iter().map(|cell| cell.drawn(screen)));
        }
        let gaps = table.column_count().saturating_sub(1);
        for (index, column) in table.column_iter_mut().enumerate() {
            let gap = if index < gaps { GAP } else { 0 };
            column.set_padding((0, gap));
            if let Some((_, width)) = self.least.iter().find(|(column, _)| *column == index) {
                let width = Width::Fixed(width.saturating_add(gap));
                column.set_constraint(ColumnConstraint::LowerBoundary(width));
            }
        }
        table.set_width(screen.width);
        if screen.is_coloured {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
        screen.shown(&lines.collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_line_end_stays_in_its_row() {
        let mut table = Table::new(["name", "number"]);
        table.row([Cell::from("a\nb\tc"), Cell::right("1")]);
        table.row([Cell::lines(["one", "t\nwo"]), Cell::lines(["1", "2"]).aligned_right()]);
        let expected =
            "name   number\na\u{fffd}b\u{fffd}c       1\none         1\nt\u{fffd}wo        2\n";
        assert_eq!(table.render(Screen::file(80)), expected);
    }
}
