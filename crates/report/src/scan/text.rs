//! A scan as text: for each file its content, then its wide functions, the most demanding first.

use std::cmp::Reverse;
use std::fmt::Write as _;

use super::{FileEntry, Report, WideFunction};
use crate::number::{SPACE, counted, grouped, length};
use crate::screen::Screen;
use crate::table::{Cell, Table};

/// Maximum number of functions shown for a file.
const MOST: usize = 30;

pub(super) fn render(report: &Report, screen: Screen) -> String {
    let mut text = match &report.model {
        Some(model) => format!("Levels as {} has them ({}).\n", model.name, model.source),
        None => "Levels are left out: nothing is known of this machine's. `dimmer probe` measures \
                 them, --model takes another machine's.\n"
            .to_owned(),
    };
    let has_levels = report.model.is_some();
    for file in &report.files {
        text.push_str(&of_file(file, has_levels, screen));
    }
    if !report.failed.is_empty() {
        text.push_str("\nNot scanned\n");
        for failure in &report.failed {
            // Writing to a string cannot fail, here and below.
            let _ = writeln!(text, "{}: {}", failure.path, failure.error);
        }
    }
    screen.shown(&text)
}

fn of_file(file: &FileEntry, has_levels: bool, screen: Screen) -> String {
    let scan = &file.scan;
    let origins = &scan.functions;
    let all = origins.symbol + origins.frame + origins.seed;
    let mut text = format!(
        "\n{}\n{} in {} of code: {} known by a symbol, {} by a frame, {} by what leads there.\n",
        file.path,
        counted(all, "function"),
        size(scan.code_bytes),
        length(origins.symbol),
        length(origins.frame),
        length(origins.seed),
    );
    let mut wide: Vec<&WideFunction> = scan.wide_functions.iter().collect();
    if wide.is_empty() {
        text.push_str("None has instructions of more than 128 bits.\n");
        return text;
    }
    let _ = write!(
        text,
        "{} instructions of more than 128 bits; {} instructions name a 512-bit register",
        counted_have(wide.len()),
        grouped(scan.zmm_instructions as f64, 0),
    );
    text.push_str(&match &scan.level {
        Some(level) => format!("; the most demanding level is {level}.\n"),
        None => ".\n".to_owned(),
    });
    let in_loops = |function: &WideFunction| -> u64 {
        function.loops.iter().map(|hot| hot.wide_instructions).sum()
    };
    let demand = |function: &&WideFunction| {
        let class = function.class.parse::<dimmer_processor::class::InstructionClass>().ok();
        let level = function.level.clone();
        (level, class, in_loops(function), function.wide_instructions, Reverse(function.address))
    };
    wide.sort_by_cached_key(|function| Reverse(demand(function)));
    let header = ["function", "class", "level", "wide", "of", "loops", "notes"];
    let columns = |cells: Vec<Cell>| -> Vec<Cell> {
        let cells = cells.into_iter().enumerate();
        cells.filter(|(index, _)| has_levels || *index != 2).map(|(_, cell)| cell).collect()
    };
    let mut table = Table::new(columns(header.map(Cell::from).to_vec()));
    for function in wide.iter().take(MOST) {
        let total: u64 = function.instructions.values().sum();
        table.row(columns(vec![
            title(function).into(),
            function.class.as_str().into(),
            function.level.as_deref().unwrap_or_default().into(),
            grouped(function.wide_instructions as f64, 0).into(),
            grouped(total as f64, 0).into(),
            length(function.loops.len()).into(),
            notes(function, &scan.wide_functions).into(),
        ]));
    }
    text.push_str(&table.render(screen));
    if wide.len() > MOST {
        let rest = wide.len() - MOST;
        let _ = writeln!(text, "and {} that ask for less; --json=FILE has all.", length(rest));
    }
    text
}

fn counted_have(functions: usize) -> String {
    let verb = if functions == 1 { "has" } else { "have" };
    format!("{} {verb}", counted(functions, "function"))
}

/// The name as the programmer wrote it, or the address.
pub fn title(function: &WideFunction) -> String {
    dimmer_scan::title(function.name.as_deref(), function.address)
}

/// What is special about a function of a file with these wide functions.
fn notes(function: &WideFunction, all: &[WideFunction]) -> String {
    let dirty = function.may_return_dirty.then(|| "may return dirty".to_owned());
    let inside = function.entries.iter().any(|entry| entry.hook_bytes.is_some());
    let hook = function.unhookable.as_ref().map(|kind| match inside {
        false => format!("no hook ({kind})"),
        true => format!("no hook ({kind}) but inside"),
    });
    let others = function.leaders.iter().filter(|leader| leader.hook_bytes.is_some());
    let others: Vec<String> = others
        .filter(|leader| !leader.is_among(all))
        .map(|leader| dimmer_scan::title(leader.name.as_deref(), leader.address))
        .collect();
    let entered = (!others.is_empty()).then(|| format!("entered by {}", others.join(" and ")));
    let unseen = function.is_entered_unseen(all).then(|| "entered where no hook can be".to_owned());
    let all = dirty.into_iter().chain(hook).chain(entered).chain(unseen);
    all.collect::<Vec<_>>().join(", ")
}

/// A size such as `3.1 MB` or `8 kB`.
fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    if bytes < 1e6 {
        format!("{}{SPACE}kB", grouped(bytes / 1e3, 0))
    } else {
        format!("{}{SPACE}MB", grouped(bytes / 1e6, 1))
    }
}
