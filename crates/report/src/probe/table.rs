//! The findings as a table in a terminal: grouped by mode, one line for each kernel, in plain
//! words.

use dimmer_probe::mode::Mode;
use dimmer_probe::outcome::{Findings, Outcome};

use super::readings::{Reading, Role, readings};
use super::{verdict, words};
use crate::number::{counted, grouped, length};
use crate::screen::Screen;
use crate::table::{Cell, Colour, GAP, Table};

/// Minimum widths for names of kernels: small in a narrow window, where names are wrapped first,
/// and enough for all names except mixtures in a wide one.
const NAME_WIDTHS: (usize, usize) = (16, 29);

/// The findings as text, the verdict first, with a line feed at the end.
pub(super) fn render(findings: &Findings, screen: Screen) -> String {
    let mut text = String::new();
    for line in verdict::of(findings).lines() {
        text.push_str(&screen.fill(&line));
    }
    text.push('\n');
    for mode in words::modes(findings) {
        let of_mode: Vec<&Outcome> =
            findings.outcomes.iter().filter(|outcome| outcome.mode == mode).collect();
        let (title, question) = words::title(mode);
        text.push_str(&format!("{title}: {question}\n"));
        text.push_str(&table_of(&of_mode, screen));
        text.push('\n');
    }
    text.push_str(&skipped(findings, screen));
    for note in quality(findings) {
        text.push_str(&screen.fill(&note));
    }
    screen.shown(&text)
}

/// Text of cells: the header, then one row for each kernel, with its name first.
fn cells_of(outcomes: &[&Outcome]) -> Vec<Vec<String>> {
    let brief = |outcome: &&Outcome| -> Vec<Reading> {
        readings(outcome).into_iter().filter(|reading| reading.role != Role::Detail).collect()
    };
    let rows: Vec<Vec<Reading>> = outcomes.iter().map(brief).collect();
    let labels: Vec<&str> =
        rows.first().map(|row| row.iter().map(|r| r.label).collect()).unwrap_or_default();
    // A column that no kernel fills is left out.
    let filled: Vec<usize> = (0..labels.len())
        .filter(|column| rows.iter().any(|row| row[*column].value.is_some()))
        .collect();
    // If there are many columns, only the verdict has room for its interval.
    let roomy = filled.len() <= 4;

    let header = filled.iter().map(|column| labels[*column].to_owned());
    let mut cells = vec![std::iter::once("kernel".to_owned()).chain(header).collect::<Vec<_>>()];
    for (outcome, row) in outcomes.iter().zip(&rows) {
        let texts = filled.iter().map(|&column| {
            let value = row[column].value.clone().unwrap_or_default();
            match &row[column].interval {
                Some(interval) if column == 0 || roomy => format!("{value} {interval}"),
                _ => value,
            }
        });
        cells.push(std::iter::once(outcome.kernel.clone()).chain(texts).collect());
    }
    cells
}

fn table_of(outcomes: &[&Outcome], screen: Screen) -> String {
    let cells = cells_of(outcomes);
    let least = least_widths(&cells, usize::from(screen.width));
    let mut table = Table::new(cells[0].iter().map(|text| Cell::from(text.as_str()).dim()));
    for (outcome, row) in outcomes.iter().zip(&cells[1..]) {
        let colour = if outcome.effect { Colour::Yellow } else { Colour::Green };
        let cell = |(column, text): (usize, &String)| match column {
            0 => Cell::lines(wrapped(text, least[0])),
            1 => Cell::from(text.as_str()).coloured(colour),
            _ => Cell::from(text.as_str()),
        };
        table.row(row.iter().enumerate().map(cell));
    }
    for (index, least) in least.into_iter().enumerate() {
        table.set_least_width(index, u16::try_from(least).unwrap_or(u16::MAX));
    }
    table.render(screen)
}

/// The width that each column needs: columns may be wrapped between words, but no number is cut.
/// The room that the others do not need goes to the names.
fn least_widths(cells: &[Vec<String>], width: usize) -> Vec<usize> {
    let characters = |text: &str| text.chars().count();
    let widest = |column: usize, of: &dyn Fn(&str) -> usize| {
        cells.iter().map(|row| of(&row[column])).max().unwrap_or(0)
    };
    let longest_word = |text: &str| text.split(' ').map(characters).max().unwrap_or(0);
    let columns = 1..cells[0].len();
    let gaps = usize::from(GAP) * columns.len();
    let mut least: Vec<usize> =
        columns.clone().map(|column| widest(column, &longest_word)).collect();
    let name = widest(0, &characters);
    let unwrapped: usize = columns.map(|column| widest(column, &characters)).sum();
    let room = if name + gaps + unwrapped <= width {
        name
    } else {
        let others: usize = least.iter().sum();
        width.saturating_sub(gaps + others).clamp(NAME_WIDTHS.0, NAME_WIDTHS.1).min(name)
    };
    least.insert(0, room);
    least
}

/// A kernel's name in lines of at most `width` characters, broken after its separators.
fn wrapped(name: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for piece in name.split_inclusive(['-', '+', ':']) {
        match lines.last_mut() {
            Some(line) if line.is_empty() || line.chars().count() + piece.len() <= width => {
                line.push_str(piece);
            }
            _ => lines.push(piece.to_owned()),
        }
    }
    lines
}

fn skipped(findings: &Findings, screen: Screen) -> String {
    if findings.skipped.is_empty() {
        return String::new();
    }
    let mut table = Table::default();
    for group in words::skipped(findings) {
        let mode = group.mode.map_or("all modes", Mode::name);
        table.row([group.kernels.replace('`', "").as_str(), mode, group.reason]);
    }
    format!("Skipped\n{}\n", table.render(screen))
}

/// The quality of the measurement, in lines.
fn quality(findings: &Findings) -> Vec<String> {
    let sum = |of: fn(&Outcome) -> usize| findings.outcomes.iter().map(of).sum::<usize>();
    let preemptions: u64 = findings.outcomes.iter().map(|outcome| outcome.preemptions).sum();
    let mut lines = vec![format!(
        "{} in all; {} left out after interrupts, {} stolen; preempted {} times.",
        counted(sum(|outcome| outcome.repetitions), "repetition"),
        counted(sum(|outcome| outcome.disturbed_windows), "window"),
        length(sum(|outcome| outcome.stolen_windows)),
        grouped(preemptions as f64, 0),
    )];
    lines.extend(words::surroundings(findings));
    if findings.interrupted {
        lines.push("Ended before all was done; what is above is complete.".to_owned());
    }
    lines
}
