//! What is taken from papers' figures, and on which rows it is checked. `docs/sim-json.md`
//! describes the keys.

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
        "\n\
         Taken from the paper, because it does not publish them: numbers of the experiments, each from one\n\
         row, which is *seen again* by that, and checked on others. Which row, was decided before any value\n\
         was known, by the order of the paper or by what measures the number most directly. The interval is\n\
         what the rounding of the paper's figure leaves open. `cargo run -p dimmer-validate --example take`\n\
         searches the values.\n\
         \n\
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
