//! The findings as a table in a terminal: grouped by mode, one line per kernel, in plain words.

use comfy_table::{
    Attribute, Cell, Color, ColumnConstraint, ContentArrangement, Table, Width, presets,
};
use dimmer_probe::mode::Mode;
use dimmer_probe::outcome::{Findings, Outcome};

use super::number::{SPACE, length};
use super::readings::{Reading, Role, readings};
use super::words;

/// How much room names of kernels have at least: little in a narrow window, where they are wrapped
/// first, and as much as all but mixtures need in a wide one.
const NAME_WIDTHS: (usize, usize) = (16, 29);

/// Spaces after each column; `PADDING` is the same for the table.
const GAP: usize = 2;
const PADDING: (u16, u16) = (0, 2);

/// The findings as text of at most `width` columns where words allow, with a line feed at the end.
///
/// * `colour`: whether to write escape sequences; no where the text goes to no terminal or
///   `NO_COLOR` is set. Nothing is said by colour alone.
pub(crate) fn render(findings: &Findings, width: u16, colour: bool) -> String {
    let mut text = String::new();
    for mode in words::modes(findings) {
        let of_mode: Vec<&Outcome> =
            findings.outcomes.iter().filter(|outcome| outcome.mode == mode).collect();
        let (title, question) = words::title(mode);
        text.push_str(&format!("{title}: {question}\n"));
        text.push_str(&table_of(&of_mode, width, colour));
        text.push('\n');
    }
    text.push_str(&skipped(findings, width, colour));
    text.push_str(&quality(findings));
    text.replace(SPACE, " ")
}

fn styled(mut table: Table, width: u16, colour: bool) -> String {
    for column in table.column_iter_mut() {
        column.set_padding(PADDING);
    }
    table.set_width(width);
    if colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table
}

fn table_of(outcomes: &[&Outcome], width: u16, colour: bool) -> String {
    let rows: Vec<(&Outcome, Vec<Reading>)> = outcomes
        .iter()
        .map(|outcome| {
            let brief = readings(outcome).into_iter();
            (*outcome, brief.filter(|reading| reading.role != Role::Detail).collect())
        })
        .collect();
    let labels: Vec<&str> =
        rows.first().map(|(_, row)| row.iter().map(|r| r.label).collect()).unwrap_or_default();
    // A column that no kernel fills says nothing.
    let filled: Vec<bool> = (0..labels.len())
        .map(|column| rows.iter().any(|(_, row)| row[column].value.is_some()))
        .collect();
    let keep = |column: &usize| filled[*column];

    // Where there are many columns, only the verdict has room for its interval.
    let roomy = filled.iter().filter(|filled| **filled).count() <= 4;

    let mut table = plain_table();
    let header = |text: &str| Cell::new(text).add_attribute(Attribute::Dim);
    let shown = (0..labels.len()).filter(keep).map(|column| header(labels[column]));
    table.set_header(std::iter::once(header("kernel")).chain(shown).collect::<Vec<_>>());
    for (outcome, row) in &rows {
        let mut cells = vec![Cell::new(&outcome.kernel)];
        for column in (0..row.len()).filter(keep) {
            let reading = &row[column];
            let mut content = reading.value.clone().unwrap_or_default();
            if let Some(interval) = &reading.interval
                && (column == 0 || roomy)
            {
                content.push(' ');
                content.push_str(interval);
            }
            let cell = Cell::new(content);
            cells.push(match (column, outcome.effect) {
                (0, true) => cell.fg(Color::Yellow),
                (0, false) => cell.fg(Color::Green),
                _ => cell,
            });
        }
        table.add_row(cells);
    }
    // Columns may be wrapped between words, but no number is cut.
    let pieces = |column: usize| {
        let cells = table.column_cells_with_header_iter(column).flatten().map(Cell::content);
        cells
            .flat_map(|text| text.split(' ').map(|piece| piece.chars().count()).collect::<Vec<_>>())
    };
    let widest: Vec<usize> =
        (0..=labels.len()).map(|column| pieces(column).max().unwrap_or(0)).collect();
    // What the others do not need at least goes to the names.
    let others: usize = widest[1..].iter().map(|width| width + GAP).sum();
    let room = usize::from(width).saturating_sub(others + GAP).clamp(NAME_WIDTHS.0, NAME_WIDTHS.1);
    for (index, column) in table.column_iter_mut().enumerate() {
        let least = if index == 0 { widest[0].min(room) } else { widest[index] };
        let least = u16::try_from(least + GAP).unwrap_or(u16::MAX);
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
    }
    styled(table, width, colour)
}

fn skipped(findings: &Findings, width: u16, colour: bool) -> String {
    if findings.skipped.is_empty() {
        return String::new();
    }
    let mut table = plain_table();
    for skipped in &findings.skipped {
        let mode = skipped.mode.map_or("all modes", Mode::name);
        table.add_row([skipped.kernel.as_str(), mode, &skipped.reason]);
    }
    format!("Skipped\n{}\n", styled(table, width, colour))
}

/// One line on how good the measurement was.
fn quality(findings: &Findings) -> String {
    let sum = |of: fn(&Outcome) -> usize| length(findings.outcomes.iter().map(of).sum());
    let preemptions: u64 = findings.outcomes.iter().map(|outcome| outcome.preemptions).sum();
    let mut text = format!(
        "{} repetitions in all; {} windows left out after interrupts, {} stolen, {preemptions} \
         preemptions.\n",
        sum(|outcome| outcome.repetitions),
        sum(|outcome| outcome.disturbed_windows),
        sum(|outcome| outcome.stolen_windows),
    );
    if findings.interrupted {
        text.push_str("Ended before all was done; what is above is complete.\n");
    }
    text
}
