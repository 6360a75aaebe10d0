//! The results of the turns as text.

use std::fmt::Write as _;

use dimmer_probe::stats::Estimate;

use super::{Report, Way};
use crate::bench::{ratio_of_rounds, signed};
use crate::number::{SPACE, grouped, interval, percent};
use crate::screen::Screen;
use crate::table::Table;

/// From this share of the time on its CPU on, a worker waits for nothing else: the rest is the
/// handshakes at the start, and ticks of 10 ms.
const BUSY: f64 = 0.95;

pub(super) fn render(report: &Report, screen: Screen) -> String {
    let mut text = format!("{}\n", report.processor);
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(text, "{}", report.versions.join("; "));
    let kept =
        if report.is_kept { "connections are kept" } else { "a connection for each request" };
    let _ = writeln!(text, "{}, {kept}.", report.cipher);
    let cores = if report.cpus.same_core { "two threads of one core" } else { "two cores" };
    let _ = writeln!(
        text,
        "Worker on CPU {}, load on CPU {} ({cores}); {} rounds of {} s a way.\n",
        report.cpus.server, report.cpus.load, report.rounds, report.seconds
    );
    let heads = ["way", "CPU time a request", "than plain", "requests/s", "worker busy", "errors"];
    let mut table = Table::new(heads);
    for way in &report.ways {
        table.row(row(report, way));
    }
    text.push_str(&table.render(screen));
    if let Some(points) = &report.forecast.lost_less_given_back_points {
        let points = format!("{} points {}", signed(points.median), interval(points, 1));
        let _ = writeln!(text, "\nForecast less what narrow gave back: {points}.");
    }
    let _ = write!(text, "\n{}", screen.fill(&report.conclusion));
    for way in &report.ways {
        text.push_str(&way.moved.map_or_else(String::new, |moved| moved.text(way.way)));
    }
    let checked: u64 = report.ways.iter().map(|way| way.checked).sum();
    let _ = writeln!(
        text,
        "{} answers were compared with the document: {}.",
        grouped(checked as f64, 0),
        match report.ways.iter().map(|way| way.wrong).sum::<u64>() {
            0 => "all are the same".to_owned(),
            wrong => format!("{wrong} differ"),
        }
    );
    if report.errors > 0 {
        let _ = writeln!(text, "{} requests failed: this result is worth nothing.", report.errors);
    }
    let busy = report.ways.iter().filter_map(|way| way.busy_ratio);
    if busy.map(|busy| busy.median).any(|busy| busy < BUSY) {
        text.push_str(
            "The worker had not all of its CPU: other programs or the load held it up, so requests/s tell \
             of them too.\n",
        );
    }
    text.push_str(&ratio_of_rounds(report.rounds));
    screen.shown(&text)
}

fn row(report: &Report, way: &Way) -> Vec<String> {
    let shown = |estimate: &Option<Estimate>, decimals: usize, unit: &str| match estimate {
        Some(estimate) => {
            let (median, range) =
                (grouped(estimate.median, decimals), interval(estimate, decimals));
            format!("{median}{unit}{SPACE}{range}")
        }
        None => String::new(),
    };
    let difference = report.differences.iter().find(|difference| difference.to == way.way);
    let change = difference.and_then(|difference| difference.cpu_per_request_pct);
    let change = change
        .map(|change| format!("{}{SPACE}%{SPACE}{}", signed(change.median), interval(&change, 1)));
    vec![
        way.way.to_owned(),
        shown(&way.cpu_us_per_request, 1, "\u{a0}µs"),
        change.unwrap_or_default(),
        shown(&way.requests_per_s, 0, ""),
        way.busy_ratio.map(|busy| percent(busy.median)).unwrap_or_default(),
        grouped(way.errors() as f64, 0),
    ]
}
