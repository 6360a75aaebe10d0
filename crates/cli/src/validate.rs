//! `dimmer validate`: a paper's results, or what this machine does, beside what the simulator gives.

mod here;

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Context;
use dimmer_host::interrupt::Interrupt;
use dimmer_validate::{Left, Paper, Recreated, Row, ValidateError};
use serde::Serialize;

use crate::output::{self, Output};
use crate::report::table::{plain_table, styled};
use crate::{args, bad_input};

/// The rows; `docs/sim-json.md` describes every key.
#[derive(Debug, Serialize)]
struct Document {
    schema: &'static str,
    /// Whether an interrupt ended it before the last experiment.
    partial: bool,
    rows: Vec<RowDocument>,
    left: Vec<LeftDocument>,
}

#[derive(Debug, Serialize)]
struct RowDocument {
    id: &'static str,
    place: &'static str,
    what: &'static str,
    paper: String,
    ours: String,
    tolerance: String,
    hit: bool,
    reason: &'static str,
}

#[derive(Debug, Serialize)]
struct LeftDocument {
    id: &'static str,
    what: &'static str,
    why: &'static str,
}

pub(crate) fn run(arguments: &args::Validate) -> anyhow::Result<ExitCode> {
    if arguments.here {
        return here::run(arguments);
    }
    let json = arguments.json.as_deref().map(Output::open).transpose()?;
    let markdown = arguments.markdown.as_deref().map(Output::open).transpose()?;
    let papers = match arguments.paper {
        None => Paper::ALL.to_vec(),
        Some(args::Paper::Avxfreq) => vec![Paper::Avxfreq],
        Some(args::Paper::Offloading) => vec![Paper::Offloading],
    };
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let recreated = papers.into_iter().map(|paper| paper.recreate(&|| interrupt.is_set()));
    let recreated: Vec<Recreated> =
        recreated.collect::<Result<_, ValidateError>>().map_err(bad_input)?;
    let to_standard = [&json, &markdown].into_iter().flatten().any(Output::is_standard);
    if !to_standard {
        print!("{}", recreated.iter().map(text).collect::<Vec<_>>().join("\n"));
    }
    if let Some(markdown) = markdown {
        markdown.write(&self::markdown(&recreated))?;
    }
    if let Some(json) = json {
        json.write(&(serde_json::to_string_pretty(&document(recreated))? + "\n"))?;
    }
    Ok(output::end(&interrupt))
}

fn document(recreated: Vec<Recreated>) -> Document {
    let partial = recreated.iter().any(Recreated::is_partial);
    let papers = recreated.iter().map(|recreated| recreated.paper);
    let left =
        papers.flat_map(Paper::left).map(|Left { id, what, why }| LeftDocument { id, what, why });
    let left = left.collect();
    let rows = recreated.into_iter().flat_map(|recreated| recreated.rows).map(|row| {
        let Row { id, place, what, paper, ours, tolerance, hit, reason } = row;
        RowDocument { id, place, what, paper, ours, tolerance, hit, reason }
    });
    Document { schema: "dimmer/validate/1", partial, rows: rows.collect(), left }
}

/// How many rows are hits, and how far it got, if an interrupt ended it.
fn verdict(recreated: &Recreated) -> String {
    let Recreated { rows, done, experiments, .. } = recreated;
    let hits = rows.iter().filter(|row| row.hit).count();
    let percent = 100.0 * hits as f64 / rows.len().max(1) as f64;
    let hits = format!("{hits} of {} rows within their tolerance ({percent:.0} %)", rows.len());
    if recreated.is_partial() {
        format!("PARTIAL: interrupted after {done} of {experiments} experiments; {hits}")
    } else {
        hits
    }
}

fn text(recreated: &Recreated) -> String {
    let Recreated { paper, rows, .. } = recreated;
    let mut table = plain_table();
    table.set_header(["Row", "", "what", "paper", "ours", "tolerance"]);
    for row in rows {
        let verdict = if row.hit { "hit" } else { "MISS" };
        table.add_row([row.id, verdict, row.what, &row.paper, &row.ours, &row.tolerance]);
    }
    let width = u16::try_from(output::width()).unwrap_or(u16::MAX);
    let mut text = format!("{}\n\n{}\n", paper.name(), styled(table, width, output::colour()));
    for row in rows.iter().filter(|row| !row.hit) {
        let _ = writeln!(text, "{}: {}.", row.id, row.reason);
    }
    let _ = writeln!(text, "\n{}", verdict(recreated));
    text
}

fn markdown(recreated: &[Recreated]) -> String {
    let mut text = String::from(
        "# Validation\n\nWhat papers report, and what the simulator gives for the same experiments. Written by \
         `dimmer validate --markdown docs/VALIDATION.md`; a test compares.\nThe simulator knows the processor's model \
         ([model.md](model.md)), what governors in software cost, and the experiment; a row that is a parameter seen again says so.\n",
    );
    for recreated in recreated {
        let Recreated { paper, rows, .. } = recreated;
        let _ = writeln!(text, "\n## {}\n\n{}.\n", paper.name(), verdict(recreated));
        text.push_str("| row | where | what | paper | ours | tolerance | | why |\n|---|---|---|---|---|---|---|---|\n");
        for row in rows {
            let Row { id, place, what, paper, ours, tolerance, hit, reason } = row;
            let verdict = if *hit { "hit" } else { "**miss**" };
            let _ = writeln!(
                text,
                "| {id} | {place} | {what} | {paper} | {ours} | {tolerance} | {verdict} | {reason} |"
            );
        }
        text.push_str("\nNot recreated:\n\n| row | what | why |\n|---|---|---|\n");
        for Left { id, what, why } in paper.left() {
            let _ = writeln!(text, "| {id} | {what} | {why} |");
        }
    }
    text
}
