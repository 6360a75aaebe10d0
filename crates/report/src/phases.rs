//! The results of `dimmer sim phases`: how much of each phase was completed, as text and as CSV.

use dimmer_probe::phases::{Found, Seen};
use dimmer_probe::stats::Samples;

use crate::screen::Screen;
use crate::table::{Cell, Table};

/// A phase that was run.
#[derive(Clone, Debug)]
pub struct Phase {
    /// What it executes.
    pub name: String,
    /// How long (µs).
    pub us: u64,
}

/// A row for each phase; `of` returns its iterations, run by run.
pub fn table(phases: &[Phase], of: impl Fn(usize) -> Samples, screen: Screen) -> String {
    let mut table = Table::new(["Phase", "µs", "iterations", "95 % interval", "p99"]);
    for (index, phase) in phases.iter().enumerate() {
        let iterations = of(index);
        let whole = |number: Option<f64>| number.map_or("–".to_owned(), |n| format!("{n:.0}"));
        let interval = iterations.estimate().map(|found| found.ci95);
        let cells = [
            phase.us.to_string(),
            whole(iterations.quantile(0.5)),
            interval.map_or("–".to_owned(), |(low, high)| format!("[{low:.0}, {high:.0}]")),
            whole(iterations.quantile(0.99)),
        ];
        let numbers = cells.map(Cell::right);
        table.row(std::iter::once(Cell::from(phase.name.as_str())).chain(numbers));
    }
    table.render(screen)
}

/// Runs on a model as CSV: a line for each phase of each run with its iterations.
///
/// # Errors
/// A row cannot be written, which happens in memory and has no cause to fail.
pub fn simulated(phases: &[Phase], runs: &[Vec<f64>]) -> csv::Result<Vec<u8>> {
    let rows = runs.iter().map(|run| run.iter().map(|done| [iterations(*done)]).collect());
    series(phases, ["iterations"], rows)
}

/// Runs on this machine as CSV, with the time that other programs had the CPU.
///
/// # Errors
/// A row cannot be written, which happens in memory and has no cause to fail.
pub fn measured(phases: &[Phase], found: &Found) -> csv::Result<Vec<u8>> {
    let of = |seen: &Seen| [iterations(seen.iterations), format!("{:.1}", seen.lost_ns / 1000.0)];
    let rows = found.runs.iter().map(|run| run.iter().map(of).collect());
    series(phases, ["iterations", "lost_us"], rows)
}

/// A line for each phase of each run, with the results under these headings.
fn series<const N: usize>(
    phases: &[Phase],
    headings: [&str; N],
    runs: impl Iterator<Item = Vec<[String; N]>>,
) -> csv::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(["run", "phase", "code", "us"].iter().chain(&headings))?;
    for (run, found) in runs.enumerate() {
        for (index, (phase, found)) in phases.iter().zip(found).enumerate() {
            let (run, index) = ((run + 1).to_string(), (index + 1).to_string());
            let first = [run, index, phase.name.clone(), phase.us.to_string()];
            writer.write_record(first.iter().chain(&found))?;
        }
    }
    Ok(writer.into_inner().map_err(|error| error.into_error())?)
}

/// The number of iterations as CSV has it.
fn iterations(done: f64) -> String {
    format!("{done:.1}")
}

/// The quality of the measurement.
pub fn notes(phases: &[Phase], found: &Found) -> String {
    let runs = found.runs.len();
    let mut text = String::new();
    let mut longest = 0.0_f64;
    for (index, phase) in phases.iter().enumerate() {
        let ns = phase.us as f64 * 1000.0;
        let of = |what: fn(&Seen) -> f64| {
            found.runs.iter().map(|run| what(&run[index])).collect::<Samples>()
        };
        let lasted = of(|seen| if seen.is_disturbed { f64::NAN } else { seen.lasted_ns });
        longest = longest.max(lasted.quantile(0.5).map_or(0.0, |lasted| lasted / ns - 1.0));
        let disturbed = found.disturbed(index);
        if disturbed > 0 {
            let most_us = of(|seen| seen.lost_ns).quantile(1.0).unwrap_or(0.0) / 1000.0;
            text.push_str(&format!(
                "Phase {}, {}: left out {disturbed} of {runs} runs, in which others had the CPU for more than 1 % \
                 of it, {most_us:.0} µs at most{}.\n",
                index + 1,
                phase.name,
                if disturbed == runs { "; more runs (--repeat) may find it undisturbed" } else { "" },
            ));
        }
    }
    if found.preemptions > 0 {
        text.push_str(&format!(
            "The kernel gave the CPU to another thread {} times in {runs} runs.\n",
            found.preemptions
        ));
    }
    text.push_str(&format!(
        "{runs} runs; what was completed in the time asked for, after which a phase goes on for {:.1} % of it, or less, \
         until the next begins.\n",
        100.0 * longest
    ));
    text
}
