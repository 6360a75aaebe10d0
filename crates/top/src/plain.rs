//! The state as text: for `--once`, and if there is no terminal.

use std::collections::BTreeMap;

use dimmer_processor::units::{CpuId, KiloHertz};
use dimmer_report::number::{counted, percent, time};
use dimmer_report::table::{Cell, Colour, Table};
use dimmer_report::{Screen, lines};
use dimmer_watch::state::State;

use super::rows::Row;
use super::words;

/// Minimum columns for a decision: the longest one then takes two lines.
const DECISION: u16 = 14;

/// Number of regions shown for each program: the first ones in the order.
pub(super) const MOST_REGIONS: usize = 16;

/// A state as text, with rates since `before`.
///
/// * `socket`: the server's socket.
/// * `clocks`: the clocks of those CPUs for which the machine reports them.
/// * `rows`: the rows of the state in the order of the text, which shows the first 16 of each
///   program.
pub fn render(
    state: &State,
    before: Option<&State>,
    socket: &str,
    clocks: &[(CpuId, KiloHertz)],
    rows: &[Row],
    screen: Screen,
) -> String {
    let told = [
        ("policy", Some(words::policy(&state.policy))),
        ("mechanism", words::mechanisms(&state.policy)),
        ("better is", Some(words::better(&state.policy))),
        ("cores", Some(words::cores(&state.cores))),
        ("clocks", words::clocks(&state.cores, clocks)),
        ("prices", Some(words::prices(&state.policy))),
        ("thresholds", words::thresholds(&state.policy)),
        ("specialise", words::specialise(state, before)),
        ("requests", words::requests(state)),
        ("note", words::strangers(state)),
    ];
    let indent = " ".repeat(words::NAME);
    let options = lines(screen.width.into()).subsequent_indent(&indent);
    let mut head = words::server(state, socket) + "\n";
    for (name, told) in told {
        let line = told.map(|told| format!("{name:<width$}{told}", width = words::NAME));
        head.extend(line.map(|line| textwrap::fill(&line, &options) + "\n"));
    }
    let table = if rows.is_empty() {
        "No program with marked regions is there.\n".to_owned()
    } else {
        let (shown, others) = shorten(rows);
        let line = |(program, number): &(String, usize)| {
            format!("{program} has {} more.\n", counted(*number, "region"))
        };
        table(&shown, screen) + &others.iter().map(line).collect::<String>()
    };
    screen.shown(&format!("{head}\n{table}"))
}

/// The rows to show, and how many other rows each program has.
fn shorten(rows: &[Row]) -> (Vec<&Row>, Vec<(String, usize)>) {
    let mut numbers: BTreeMap<u64, (&Row, usize)> = BTreeMap::new();
    let mut shown = Vec::new();
    for row in rows {
        let (_, number) = numbers.entry(row.key.0).or_insert((row, 0));
        *number += 1;
        if *number <= MOST_REGIONS {
            shown.push(row);
        }
    }
    let more = |(row, number): &(&Row, usize)| {
        let others = number.saturating_sub(MOST_REGIONS);
        (others > 0).then(|| (program(row), others))
    };
    (shown, numbers.values().filter_map(more).collect())
}

/// A program's name and process id, which distinguish it from others.
fn program(row: &Row) -> String {
    format!("{} {}", row.program, row.pid)
}

/// One line for each region; columns that no region fills are left out.
fn table(rows: &[&Row], screen: Screen) -> String {
    const TITLES: [&str; 10] = [
        "program",
        "region",
        "calls/s",
        "CPU",
        "one stayed\ntakes",
        "one moved\ntakes",
        "clock\nafter",
        "calls\nmoved",
        "metric/s",
        "decision",
    ];
    let cells: Vec<[Option<String>; TITLES.len()]> = rows.iter().copied().map(cells).collect();
    let filled: Vec<usize> =
        (0..TITLES.len()).filter(|column| cells.iter().any(|row| row[*column].is_some())).collect();
    let mut table = Table::new(filled.iter().map(|column| Cell::lines(TITLES[*column].lines())));
    for (row, cells) in rows.iter().zip(&cells) {
        let is_moved = row.region.as_ref().is_some_and(|region| region.is_moved);
        let cell = |column: &usize| {
            let cell = cells[*column].as_deref().unwrap_or_default();
            match TITLES[*column] {
                "program" | "region" => Cell::from(cell),
                "decision" if is_moved => Cell::from(cell).coloured(Colour::Cyan),
                "decision" => Cell::from(cell),
                _ => Cell::right(cell),
            }
        };
        table.row(filled.iter().map(cell));
    }
    // The text of a decision is wrapped last.
    table.set_least_width(filled.len().saturating_sub(1), DECISION);
    table.render(screen)
}

fn cells(row: &Row) -> [Option<String>; 10] {
    let program = Some(program(row));
    let metric = row.metric.map(words::short);
    let Some(region) = &row.region else {
        let none = Some("none yet".to_owned());
        return [program, none, None, None, None, None, None, None, metric, None];
    };
    [
        program,
        Some(format!("{}:{}", region.name, region.line)),
        Some(words::short(region.calls_per_s)),
        Some(percent(region.share)),
        region.stayed_ns.map(time),
        region.moved_ns.map(time),
        region.clock.map(percent),
        region.moved_ratio.map(percent),
        metric,
        Some(words::decision(region)),
    ]
}
