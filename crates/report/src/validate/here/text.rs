//! The comparison for a terminal.

use std::fmt::Write as _;

use super::{Document, GOOD_POINTS};
use crate::number::{SPACE, signed};
use crate::screen::Screen;
use crate::table::{Cell, Table};

pub(super) fn render(document: &Document, screen: Screen) -> String {
    let Document { machine, cpu, model, model_from, .. } = document;
    let mut text = format!(
        "on CPU {cpu} of this machine, {machine}, by the model of {model} ({model_from})\n"
    );
    let partial = if document.partial { "PARTIAL: interrupted. " } else { "" };
    let _ = writeln!(
        text,
        "{partial}How much longer scalar code takes between bursts than between scalar stand-ins; medians over {} rounds.\n",
        document.rounds
    );
    let mut table = Table::new([
        "Bursts of",
        "instructions",
        "every",
        "predicted",
        "measured",
        "95 % interval",
        "error",
    ]);
    let percent = |pct: f64| format!("{}{SPACE}%", signed(pct, 2));
    for point in &document.points {
        let measured = point.measured_pct;
        let cells = [
            point.burst.to_string(),
            format!("{}{SPACE}µs", point.scalar_us),
            percent(point.predicted_pct),
            measured.map_or("–".to_owned(), |found| percent(found.median)),
            measured.map_or("–".to_owned(), |found| {
                let [low, high] = found.ci95;
                format!("[{},{SPACE}{}]", signed(low, 2), signed(high, 2))
            }),
            point.error_points.map_or("–".to_owned(), |error| signed(error, 2)),
        ];
        let numbers = cells.map(Cell::right);
        table.row(std::iter::once(Cell::from(point.kernel.as_str())).chain(numbers));
    }
    let _ = writeln!(text, "{}", table.render(screen));
    text.push_str(&quality(document));
    text.push_str(&verdict(document));
    text
}

/// What was left out of the measurement.
fn quality(document: &Document) -> String {
    let sum = |of: fn(&super::Point) -> usize| document.points.iter().map(of).sum::<usize>();
    let windows = sum(|point| point.windows);
    format!(
        "Left out: {} of {windows} stretches of scalar code that were interrupted or stolen from; {} of {} series during \
         which the clock changed by itself. The kernel gave the CPU to another thread {} times.\n",
        sum(|point| point.windows_left_out),
        sum(|point| point.series_left_out),
        sum(|point| point.series + point.series_left_out),
        document.preemptions,
    )
}

fn verdict(document: &Document) -> String {
    let mut text = String::new();
    let classes = [
        ("has no level that", "asks for", &document.without_level),
        ("says nothing of whether", "asks for a level", &document.without_rule),
    ];
    for (what, asks, classes) in classes.into_iter().filter(|(_, _, classes)| !classes.is_empty()) {
        let classes = classes.join(", ");
        let _ = writeln!(
            text,
            "The model {what} {classes} code {asks}: it is predicted to slow nothing."
        );
    }
    let measured = document.points.iter().filter(|point| point.error_points.is_some()).count();
    let Some(error) = document.median_absolute_error_points else {
        text.push_str("No point was measured undisturbed.\n");
        return text;
    };
    let _ = writeln!(
        text,
        "Median absolute error: {error:.2} percentage points over {measured} of {} points.",
        document.points.len()
    );
    if error > GOOD_POINTS {
        text.push_str(&lacks(document));
    }
    text
}

/// What the model lacks, if it predicts badly.
fn lacks(document: &Document) -> String {
    let names = |is_guess: bool| {
        let lacks = document.lacks.iter().filter(|lack| lack.is_guess == is_guess);
        lacks.map(|lack| lack.key.as_str()).collect::<Vec<_>>().join(", ")
    };
    let mut text = format!("That is more than {GOOD_POINTS} points.\n");
    for (what, names) in [("does not say", names(false)), ("only guesses", names(true))] {
        if !names.is_empty() {
            let _ = writeln!(text, "The model {what}: {names}.");
        }
    }
    if document.lacks.is_empty() {
        text.push_str("The model has a value for everything that the simulator asks for: some are wrong for this machine, as it is now.\n");
    }
    text.push_str(
        "No model says in which share of bursts a processor on a shared host has the effect (`dimmer probe` shows it).\n",
    );
    text
}
