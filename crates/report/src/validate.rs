//! The results of `dimmer sim validate`: a paper's results beside the simulator's, and predictions
//! for this machine beside measurements ([`Here`]). `docs/sim-json.md` describes the documents.

mod here;
mod page;
mod summary;
mod taken;
mod turbo;
mod ways;
mod wins;

use std::fmt::Write as _;

use dimmer_processor::model::Assumed;
use dimmer_validate::loops::{self, Compared, Loop};
use dimmer_validate::turbo::Figures;
use dimmer_validate::{
    Cause, Class, Left, Paper, Recreated, Row, ways as specialised, wins as migrating,
};
use serde::Serialize;

pub use here::Document as Here;
pub use page::page;
pub use summary::text as summary_text;
pub use turbo::text as what_ifs_text;
pub use ways::text as ways_text;
pub use wins::text as wins_text;

use crate::screen::Screen;
use crate::table::Table;

/// The document `dimmer/validate/1`.
#[derive(Debug, Serialize)]
struct Document {
    schema: &'static str,
    /// Whether an interrupt ended it before the last experiment.
    partial: bool,
    rows: Vec<RowDocument>,
    /// What is supposed to be behind misses, tested.
    causes: Vec<CauseDocument>,
    left: Vec<LeftDocument>,
    assumptions: Vec<AssumptionDocument>,
    /// Numbers that are taken from papers' figures.
    taken: Vec<taken::TakenDocument>,
    /// Only for paper 001.
    loops: Vec<LoopsDocument>,
    /// Only for paper 002.
    figures: Vec<turbo::FigureDocument>,
    /// Only for paper 002.
    what_ifs: Vec<turbo::WhatIfDocument>,
    /// Only for paper 003.
    ways: Vec<ways::WaysDocument>,
    /// Only for paper 004.
    wins: Vec<wins::WinsDocument>,
}

#[derive(Debug, Serialize)]
struct LoopsDocument {
    load: &'static str,
    best: &'static str,
    loops: Vec<LoopDocument>,
}

#[derive(Debug, Serialize)]
struct LoopDocument {
    #[serde(rename = "loop")]
    name: &'static str,
    done_ratio: f64,
    off_share: f64,
    found_s: Option<f64>,
    changes: usize,
}

#[derive(Debug, Serialize)]
struct RowDocument {
    id: &'static str,
    class: &'static str,
    place: &'static str,
    what: &'static str,
    paper: String,
    ours: String,
    tolerance: String,
    hit: bool,
    reason: &'static str,
}

#[derive(Debug, Serialize)]
struct CauseDocument {
    id: &'static str,
    change: &'static str,
    ours: String,
    hit: bool,
}

#[derive(Debug, Serialize)]
struct LeftDocument {
    id: &'static str,
    what: &'static str,
    why: &'static str,
}

#[derive(Debug, Serialize)]
struct AssumptionDocument {
    paper: &'static str,
    key: String,
    value: String,
}

/// What compares ways beside the rows of a paper, each for one of them.
#[derive(Clone, Copy, Debug)]
pub struct Beside<'a> {
    /// Feedback loops.
    pub loops: &'a [Compared],
    /// Curves of paper 002, and other hardware; empty without it.
    pub turbo: &'a Figures,
    /// Ways out for wide code.
    pub ways: &'a [specialised::Compared],
    /// Where migration wins.
    pub wins: &'a [migrating::Compared],
}

/// The document `dimmer/validate/1`.
pub fn document(
    recreated: Vec<Recreated>,
    Beside { loops, turbo, ways, wins }: Beside<'_>,
) -> impl Serialize + use<> {
    let has_loops = recreated.iter().any(|recreated| recreated.paper == Paper::Library);
    let has_turbo = recreated.iter().any(|recreated| recreated.paper == Paper::Turbo);
    let has_ways = recreated.iter().any(|recreated| recreated.paper == Paper::Specialisation);
    let has_wins = recreated.iter().any(|recreated| recreated.paper == Paper::Migration);
    let partial = recreated.iter().any(Recreated::is_partial)
        || has_loops && loops.len() < loops::WORKLOADS
        || has_turbo && turbo::is_partial(turbo)
        || has_ways && ways.len() < specialised::WORKLOADS
        || has_wins && wins.len() < migrating::PROCESSORS;
    let papers = recreated.iter().map(|recreated| recreated.paper);
    let left =
        papers.flat_map(Paper::left).map(|Left { id, what, why }| LeftDocument { id, what, why });
    let left = left.collect();
    let loops = loops.iter().map(|one| LoopsDocument {
        load: one.load,
        best: one.best,
        loops: one.loops.iter().map(LoopDocument::new).collect(),
    });
    let loops = loops.collect();
    let causes = recreated.iter().flat_map(|recreated| &recreated.causes);
    let causes = causes.map(|Cause { change, row }| CauseDocument {
        id: row.id,
        change,
        ours: row.ours.clone(),
        hit: row.hit,
    });
    let causes = causes.collect();
    let taken = taken::documents(&recreated);
    let assumptions = recreated.iter().flat_map(|recreated| {
        let paper = recreated.paper.name();
        let assumed = recreated.assumed.iter().cloned();
        assumed.map(move |Assumed { key, value }| AssumptionDocument { paper, key, value })
    });
    let assumptions = assumptions.collect();
    let rows = recreated.into_iter().flat_map(|recreated| recreated.rows).map(|row| {
        let Row { id, class, place, what, paper, ours, tolerance, hit, reason, .. } = row;
        let class = class.name();
        RowDocument { id, class, place, what, paper, ours, tolerance, hit, reason }
    });
    let rows = rows.collect();
    let figures = turbo.drawn.iter().map(turbo::FigureDocument::new).collect();
    let what_ifs = turbo.what_ifs.iter().map(turbo::WhatIfDocument::new).collect();
    let ways = ways.iter().map(ways::WaysDocument::new).collect();
    let wins = wins.iter().map(wins::WinsDocument::new).collect();
    let schema = "dimmer/validate/1";
    Document {
        schema,
        partial,
        rows,
        causes,
        left,
        assumptions,
        taken,
        loops,
        figures,
        what_ifs,
        ways,
        wins,
    }
}

impl LoopDocument {
    fn new((name, of): &(&'static str, Loop)) -> Self {
        let Loop { done, off, found_s, changes } = *of;
        Self { name, done_ratio: done, off_share: off, found_s, changes }
    }
}

/// Headings of the columns about the loops.
const LOOPS: [&str; 6] = [
    "workload",
    "best",
    "loop",
    "done, of the best",
    "calls off it, first on it",
    "changes of side",
];

/// The rows of all loops on each workload, cell by cell.
fn loops_rows(loops: &[Compared]) -> impl Iterator<Item = [String; 6]> {
    let row = |one: &Compared, name: &str, of: &Loop| {
        let found = of.found_s.map_or("never".to_owned(), |at| format!("{at:.2} s"));
        [
            one.load.to_owned(),
            one.best.to_owned(),
            name.to_owned(),
            format!("{:.1} %", 100.0 * of.done),
            format!("{:.1} %, {found}", 100.0 * of.off),
            of.changes.to_string(),
        ]
    };
    loops.iter().flat_map(move |one| one.loops.iter().map(move |(name, of)| row(one, name, of)))
}

/// The feedback loops as text.
pub fn loops_text(loops: &[Compared], screen: Screen) -> String {
    let partial = if loops.len() < loops::WORKLOADS {
        format!("PARTIAL: interrupted after {} of {} workloads\n", loops.len(), loops::WORKLOADS)
    } else {
        String::new()
    };
    let mut table = Table::new(LOOPS);
    for row in loops_rows(loops) {
        table.row(row);
    }
    format!("\nfeedback loops\n\n{}\n{partial}", table.render(screen))
}

const ASSUMED: &str = "Assumed, because the model does not say it:";

/// How many rows of each class are hits, and how far the experiments got if an interrupt ended
/// them.
fn verdict(recreated: &Recreated) -> String {
    let Recreated { done, experiments, .. } = recreated;
    let of_class = |class: Class| {
        let (rows, hits) = recreated.count(class);
        format!("{} {hits} of {rows}", class.name())
    };
    let hits = Class::ALL.map(of_class).join(", ");
    let hits = format!("Rows within their tolerance: {hits}");
    if recreated.is_partial() {
        format!("PARTIAL: interrupted after {done} of {experiments} experiments. {hits}")
    } else {
        hits
    }
}

/// A paper's rows as text.
pub fn text(recreated: &Recreated, screen: Screen) -> String {
    let Recreated { paper, rows, .. } = recreated;
    let mut table = Table::new(["Row", "class", "", "what", "paper", "ours", "tolerance"]);
    for row in rows {
        let verdict = if row.hit { "hit" } else { "MISS" };
        let class = row.class.name();
        table.row([row.id, class, verdict, row.what, &row.paper, &row.ours, &row.tolerance]);
    }
    let mut text = format!("{}\n\n{}\n", paper.name(), table.render(screen));
    for row in rows.iter().filter(|row| !row.hit) {
        let _ = writeln!(text, "{}: {}.", row.id, row.reason);
    }
    if !recreated.causes.is_empty() {
        let mut table = Table::new(["Row", "with this changed", "", "ours", "paper"]);
        for Cause { change, row } in &recreated.causes {
            let verdict = if row.hit { "hit" } else { "MISS" };
            table.row([row.id, change, verdict, &row.ours, &row.paper]);
        }
        let _ = writeln!(text, "\n{}", table.render(screen));
    }
    if !recreated.assumed.is_empty() {
        let _ = writeln!(text, "\n{ASSUMED}");
        for Assumed { key, value } in &recreated.assumed {
            let _ = writeln!(text, "  {key}: {value}");
        }
    }
    let _ = writeln!(text, "\n{}", verdict(recreated));
    text
}

/// The rows as Markdown, as in `docs/VALIDATION.md`.
pub fn markdown(
    recreated: &[Recreated],
    Beside { loops, turbo, ways, wins }: Beside<'_>,
) -> String {
    let mut text = String::from(
        "# Validation\n\nWhat papers report, and what the simulator gives for the same experiments. This \
         page is written by\n`dimmer sim validate --markdown docs/VALIDATION.md`, and a test compares it. \
         The simulator knows the\nprocessor's model ([model.md](model.md)), the cost of governors in \
         software, and the experiment. The\npapers: [PAPERS.md](PAPERS.md).\n\nThe class of a \
         row says what a hit is worth. *Predicted*: it could have come out otherwise, and the\n\
         parameters behind it come from elsewhere. *Mixed*: a part of its values is predicted. \
         *Seen again*:\na parameter of the model, a constant of an algorithm, or a number \
         that was taken from this row comes\nout as it was put in; that shows only that the \
         simulator does what it was told.\n",
    );
    for recreated in recreated {
        let Recreated { paper, rows, .. } = recreated;
        let _ = writeln!(text, "\n## {}\n\n{}.\n", paper.name(), verdict(recreated));
        text.push_str("| row | class | where | what | paper | ours | tolerance | | why |\n|---|---|---|---|---|---|---|---|---|\n");
        for row in rows {
            let Row { id, class, place, what, paper, ours, tolerance, hit, reason, .. } = row;
            let class = class.name();
            let verdict = if *hit { "hit" } else { "**miss**" };
            let _ = writeln!(
                text,
                "| {id} | {class} | {place} | {what} | {paper} | {ours} | {tolerance} | {verdict} | {reason} |"
            );
        }
        text.push_str(&taken::markdown(recreated));
        if !recreated.causes.is_empty() {
            text.push_str("\nWhat is supposed to be behind misses, tested by changing one thing, or several where it says so:\n\n| row | with this changed | ours | paper | |\n|---|---|---|---|---|\n");
        }
        for Cause { change, row } in &recreated.causes {
            let Row { id, paper, ours, hit, .. } = row;
            let verdict = if *hit { "hit" } else { "**miss**" };
            let _ = writeln!(text, "| {id} | {change} | {ours} | {paper} | {verdict} |");
        }
        if !recreated.assumed.is_empty() {
            let _ = writeln!(text, "\n{ASSUMED}\n\n| key | value |\n|---|---|");
        }
        for Assumed { key, value } in &recreated.assumed {
            let _ = writeln!(text, "| `{key}` | {value} |");
        }
        text.push_str("\nNot recreated:\n\n| row | what | why |\n|---|---|---|\n");
        for Left { id, what, why } in paper.left() {
            let _ = writeln!(text, "| {id} | {what} | {why} |");
        }
    }
    if !loops.is_empty() {
        text.push_str(
            "\n## Paper 001's feedback loop beside Dimmer's\n\nThe paper's loop (`thresholds`), with the \
             exciter every 20 s and windows of 800 ms, and\nDimmer's (`trials`), which tries a \
             program's region with and without, on the workloads of\n`scenarios/`. *Done* is what \
             programs get done (a geometric mean over them), compared with the\nbest of moving \
             nothing (`none`), everything (`always`), and of two programs one. *Calls off it* are\n\
             those on the other side (a mean over programs); *first on it* is when most clients were \
             on its side\nfirst. The best may change meanwhile.\n\n",
        );
        let _ = writeln!(text, "| {} |\n|---|---|---|---|---|---|", LOOPS.join(" | "));
        for row in loops_rows(loops) {
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
    }
    if !turbo.what_ifs.is_empty() {
        text.push_str(&turbo::markdown(turbo));
    }
    if !ways.is_empty() {
        text.push_str(&ways::markdown(ways));
    }
    if !wins.is_empty() {
        text.push_str(&wins::markdown(wins));
    }
    text
}
