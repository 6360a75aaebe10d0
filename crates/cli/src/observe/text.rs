//! What was observed, for people.

use std::fmt::Write as _;
use std::path::Path;

use super::document::{Distribution, Function, Report};
use crate::report::number::{counted, grouped, length, percent, time};
use crate::report::table::{plain_table, styled};

/// How many functions are shown.
const MOST: usize = 20;

pub(crate) fn render(report: &Report, width: u16) -> String {
    let mut text = format!(
        "\nObserved for {} s, {} s of it on CPUs, in {} with {}.\n",
        grouped(report.lasted_s, 1),
        grouped(report.cpu_s, 1),
        processes(report.processes),
        counted(report.threads, "thread"),
    );
    if report.processes == 0 {
        text.push_str("The loader did not load the library with the hooks: nothing was seen.\n");
        return text;
    }
    let hooked: usize = report.files.iter().map(|file| file.hooked).sum();
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        text,
        "Hooked: {} with {} instructions.",
        counted(hooked, "function"),
        report.hooked_classes.join(", ")
    );
    for file in &report.files {
        if let Some(problem) = &file.problem {
            let _ = writeln!(text, "{}: {problem}", file.path);
        } else if file.hooked < file.wide_functions {
            let rest = file.wide_functions - file.hooked;
            let verb = if rest == 1 { "is" } else { "are" };
            let rest = counted(rest, "function");
            let _ = writeln!(
                text,
                "{}: {rest} like that {verb} not hooked; `dimmer scan` says why.",
                file.path
            );
        }
    }
    for problem in &report.unreadable {
        let _ = writeln!(text, "{problem}");
    }
    if report.threads_left_out > 0 {
        let _ = writeln!(text, "Some threads were not seen: there were too many.");
    }
    if report.functions.is_empty() {
        text.push_str("None of them was called.\n");
        return text;
    }
    let has_levels = report.model.is_some();
    let mut table = plain_table();
    let header =
        ["function", "in", "class", "level", "calls/s", "a call takes", "until the next", "time"];
    let columns = |cells: Vec<String>| -> Vec<String> {
        let cells = cells.into_iter().enumerate();
        cells.filter(|(index, _)| has_levels || *index != 3).map(|(_, cell)| cell).collect()
    };
    table.set_header(columns(header.map(str::to_owned).to_vec()));
    for function in report.functions.iter().take(MOST) {
        table.add_row(columns(row(function)));
    }
    text.push('\n');
    text.push_str(&styled(table, width, false));
    if report.functions.len() > MOST {
        let rest = report.functions.len() - MOST;
        let _ = writeln!(text, "and {} that took less; --json FILE has all.", length(rest));
    }
    text
}

fn processes(number: usize) -> String {
    if number == 1 { "1 process".to_owned() } else { format!("{} processes", length(number)) }
}

fn row(function: &Function) -> Vec<String> {
    let median = |times: &Option<Distribution>| {
        let median = times.as_ref().and_then(|times| times.quantiles.get("p50"));
        median.map(|ns| time(*ns)).unwrap_or_default()
    };
    let file = Path::new(&function.file).file_name().unwrap_or_default();
    vec![
        function.title.clone(),
        file.to_string_lossy().into_owned(),
        function.class.clone().unwrap_or_default(),
        function.level.clone().unwrap_or_default(),
        grouped(function.calls_per_s, 0),
        median(&function.lasted_ns),
        median(&function.gap_after_ns),
        function.time_share.map(percent).unwrap_or_default(),
    ]
}
