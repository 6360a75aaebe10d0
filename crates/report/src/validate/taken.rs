//! What is taken from papers' figures, and on which rows it is checked: `taken[]` in
//! `docs/sim-json.md`.

use std::fmt::Write as _;

use dimmer_validate::taken::{TAKEN, Taken};
use dimmer_validate::{Paper, Recreated, Row};
use serde::Serialize;

/// A number that is taken from a figure.
#[derive(Debug, Serialize)]
pub(super) struct TakenDocument {
    paper: &'static str,
    what: &'static str,
    unit: &'static str,
    value: f64,
    interval: [f64; 2],
    range: [f64; 2],
    row: &'static str,
    checked: &'static [&'static str],
}

/// Those of a paper.
fn of(paper: Paper) -> impl Iterator<Item = &'static Taken> {
    TAKEN.iter().filter(move |taken| taken.paper == paper)
}

/// Those of these papers.
pub(super) fn documents(recreated: &[Recreated]) -> Vec<TakenDocument> {
    let all = recreated.iter().flat_map(|recreated| of(recreated.paper));
    let document = |taken: &Taken| TakenDocument {
        paper: taken.paper.name(),
        what: taken.what,
        unit: taken.unit,
        value: taken.value,
        interval: taken.interval,
        range: taken.range,
        row: taken.row,
        checked: taken.checked,
    };
    all.map(document).collect()
}

/// The table of a paper, empty if nothing is taken from it.
pub(super) fn markdown(recreated: &Recreated) -> String {
    let mut text = String::new();
    if of(recreated.paper).next().is_none() {
        return text;
    }
    text.push_str(
        "\nNumbers of the experiments that the paper does not publish, each taken from one row, which is *seen\n\
         again* by that, and checked on others. The rows were chosen before any value was known, by the\n\
         paper's order or by what measures the number most directly. The interval is what the rounding of the\n\
         paper's figure leaves open. `cargo run -p dimmer-validate --example take` searches the values.\n\n\
         | number | value | plausible | from row | because | checked on rows |\n|---|---|---|---|---|---|\n",
    );
    for taken in of(recreated.paper) {
        let Taken { what, row, why, plausible, checked, .. } = taken;
        let verdict = |id: &&&str| {
            let row = recreated.rows.iter().find(|row| row.id == **id);
            row.map(|Row { hit, .. }| format!("{id} {}", if *hit { "hit" } else { "miss" }))
        };
        let checked: Vec<String> = checked.iter().filter_map(|id| verdict(&id)).collect();
        let _ = writeln!(
            text,
            "| {what} | {} | {}: {plausible} | {row} | {why} | {} |",
            taken.shown(),
            taken.shown_range(),
            checked.join(", ")
        );
    }
    text
}
