//! Records of machines as a page with plots.

use dimmer_fleet::claims::{Claim, Verdict};
use dimmer_fleet::compare::{Group, Row};
use dimmer_fleet::database::Record;
use dimmer_fleet::names;
use maud::{Markup, html};

use super::check::{ClaimEntry, VerdictEntry, entries};
use super::compare::{KindEntry, kinds};
use super::{RecordEntry, told};
use crate::machine::MachineDescription;
use crate::number::{counted, grouped, round_time};
use crate::page::{Drawing as _, PageError, command, figure, page as render, prose};
use crate::plot::{self, DrawError, Figure};

/// What is drawn: the heading, and the documents whose figures stand under it.
const DRAWN: [(&str, &[&str]); 3] = [
    ("What a burst of wide SIMD code costs the code after it", &["probe-quick"]),
    (
        "What hooks, moved calls, marks and regions take",
        &["bench-hook", "bench-hooked-moves", "bench-phases", "bench-region"],
    ),
    ("What wide code, moved calls and the daemon change", &["bench-server", "bench-nginx"]),
];

/// Figures that are drawn for one record, too; others need at least two.
const ALONE: [&str; 2] = ["bench-server", "bench-nginx"];

/// How the names of figures start that are not drawn: bounds, and ratios near one.
const NOT_DRAWN: [&str; 2] = [dimmer_fleet::kinds::BOUND, "settled clock over nominal"];

/// Records as an HTML page.
///
/// # Errors
/// If a plot cannot be drawn.
pub fn page(
    records: &[&Record],
    claims: &[Claim],
    machine: &MachineDescription,
) -> Result<String, PageError> {
    let rows = Row::all(records);
    let shown: Vec<RecordEntry> = records.iter().map(|record| RecordEntry::new(record)).collect();
    let several = kinds(records, &rows, &Group::all(records));
    let claims = entries(records, claims);
    let mut drawn = Vec::new();
    for (title, documents) in DRAWN {
        let figures: Result<Vec<Figure>, DrawError> = rows
            .iter()
            .filter(|row| documents.contains(&row.document) && is_drawn(row))
            .map(|row| draw(records, row))
            .collect();
        drawn.push((title, figures.of("the machines")?));
    }
    let main = html! {
        section {
            h2 { "Machines" }
            (table(&shown))
        }
        @for (title, figures) in drawn.iter().filter(|(_, figures)| !figures.is_empty()) {
            section {
                h2 { (title) }
                div.figures { @for one in figures { (figure(one)) } }
            }
        }
        @if !several.is_empty() {
            section {
                h2 { "Whether days and hosts of one kind agree" }
                @for kind in &several { (agreement(kind)) }
            }
        }
        section {
            h2 { "Sentences of the documentation" }
            p { "A figure confirms or refutes a sentence by its whole interval; otherwise it \
                 cannot say." }
            (claims_table(&shown, &claims))
            @if claims.iter().any(|claim| !is_judged(claim)) {
                p { "No record says anything about:" }
                ul.skipped {
                    @for claim in claims.iter().filter(|claim| !is_judged(claim)) {
                        li { (prose(&claim.quote)) span.label { (claim.file) "; " (claim.condition) } }
                    }
                }
            }
        }
        p.command { (command(&machine.command)) }
    };
    let with_effect = shown.iter().filter(|record| record.effect == "yes").count();
    let title = format!(
        "{}: wide SIMD code slows down {}.",
        counted(records.len(), "record"),
        match with_effect {
            0 => "none of the machines".to_owned(),
            some => format!("the machine in {some} of them"),
        }
    );
    let sentences =
        ["What `dimmer` measured on each machine and day. Days and hosts of one kind are kept \
         apart: whether they agree is itself a result."
            .to_owned()];
    let machines: std::collections::BTreeSet<&str> =
        records.iter().map(|record| names::kind(&record.machine)).collect();
    let about = counted(machines.len(), "kind") + " of machines";
    Ok(render(("Dimmer machines", &about), &title, &sentences, &main, machine).into_string())
}

fn is_drawn(row: &Row) -> bool {
    let values = row.values.iter().flatten().count();
    let is_enough = values > 1 || values > 0 && ALONE.contains(&row.document);
    is_enough && !NOT_DRAWN.iter().any(|start| row.what.starts_with(start))
}

fn draw(records: &[&Record], row: &Row) -> Result<Figure, DrawError> {
    let value = |(record, value): (&&Record, &Option<_>)| {
        let value: dimmer_fleet::place::Quantity = (*value)?;
        let (number, interval) = told(value.into(), row.unit);
        Some(plot::Value {
            name: short(record),
            median: value.median,
            interval: value.interval,
            told: format!("{number} {interval}").trim_end().to_owned(),
        })
    };
    let values: Vec<plot::Value> = records.iter().zip(&row.values).filter_map(value).collect();
    let unit = row.unit;
    let axis = move |value: f64, decimals: usize| match unit {
        "ns" => round_time(value),
        "us" => round_time(value * 1e3),
        unit => format!("{} {unit}", grouped(value, decimals)).trim_end().to_owned(),
    };
    let title = format!("{}: {}", row.document, row.what);
    // What distinguishes figures of one kind stands behind a comma.
    let head = row.what.split_once(", ").map_or(row.what.as_str(), |(_, rest)| rest);
    plot::values((head, &title), "record", axis, &values)
}

/// A record's name as short as a plot needs it: without the kernel.
fn short(record: &Record) -> String {
    let machine = names::kind(&record.machine);
    let label = record.machine.strip_prefix(machine).unwrap_or_default();
    let processor = machine.split_once("-linux-").map_or(machine, |(processor, _)| processor);
    format!("{processor}{label} {}", record.date)
}

/// The records: what each machine is, and what was found.
fn table(records: &[RecordEntry]) -> Markup {
    html! {
        div.scroll tabindex="0" {
            table.machines {
                thead {
                    tr {
                        @for title in ["machine", "day", "processor", "kernel", "microcode", "finding"] {
                            th scope="col" { (title) }
                        }
                    }
                }
                tbody {
                    @for record in records {
                        tr {
                            th scope="row" { (record.machine) }
                            td { (record.date) }
                            td {
                                (record.processor) ", " (record.microarchitecture) ", "
                                (record.hypervisor.as_deref().unwrap_or("no hypervisor"))
                            }
                            td { (record.kernel.as_deref().unwrap_or("not known")) }
                            td { (record.microcode.as_deref().unwrap_or("not known")) }
                            td.finding {
                                (record.finding)
                                @if let Some(note) = record.busy_note() {
                                    span.label { (note) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn agreement(kind: &KindEntry) -> Markup {
    html! {
        p { (prose(&kind.sentence())) }
        @if !kind.differing.is_empty() {
            div.scroll tabindex="0" {
                table {
                    thead {
                        tr { th scope="col" { "document" } th scope="col" { "figure" }
                             th scope="col" { "records" } }
                    }
                    tbody {
                        @for row in &kind.differing {
                            tr {
                                td { (row.document) }
                                td { (row.what) }
                                td {
                                    @for (record, value) in &row.values {
                                        div { (record) ": " (value) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Whether a record says something of a claim.
fn is_judged(claim: &ClaimEntry) -> bool {
    claim.verdicts.iter().any(|one| one.verdict != Verdict::CannotSay.name())
}

fn claims_table(records: &[RecordEntry], claims: &[ClaimEntry]) -> Markup {
    let class = |one: &VerdictEntry| {
        if one.verdict == Verdict::Confirmed.name() {
            "win"
        } else if one.verdict == Verdict::Refuted.name() {
            "heavy-loss"
        } else {
            "absent"
        }
    };
    html! {
        div.scroll tabindex="0" {
            table.verdicts {
                thead {
                    tr {
                        th scope="col" { "sentence" }
                        @for record in records {
                            th scope="col" { (record.machine) br; (record.date) }
                        }
                    }
                }
                tbody {
                    @for claim in claims.iter().filter(|claim| is_judged(claim)) {
                        tr {
                            th scope="row" {
                                (claim.quote)
                                span.label { (claim.file) "; " (prose(&claim.condition)) }
                            }
                            @for one in &claim.verdicts {
                                td class=(class(one)) title=(one.told) {
                                    (one.verdict)
                                    @if class(one) != "absent" { span.interval { (one.told) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
