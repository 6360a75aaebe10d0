//! Figures 4 and 5 of paper 002, and what hardware as it wishes for would bring, as text, Markdown,
//! JSON (`docs/sim-json.md`) and a section of the page.

use std::fmt::Write as _;

use dimmer_validate::turbo::{Crossing, Curve, Drawn, FIGURES, Figures, Point, WHAT_IFS, WhatIf};
use maud::{Markup, html};
use serde::Serialize;

use crate::number::{grouped, signed};
use crate::page::{Drawing as _, PageError, figure};
use crate::plot::{self, Figure, Named, Place};
use crate::screen::Screen;
use crate::table::Table;

#[derive(Debug, Serialize)]
pub(super) struct FigureDocument {
    title: &'static str,
    curves: Vec<CurveDocument>,
    crossings: Vec<CrossingDocument>,
}

#[derive(Debug, Serialize)]
struct CurveDocument {
    strategy: &'static str,
    points: Vec<PointDocument>,
}

#[derive(Debug, Serialize)]
struct PointDocument {
    cycles: f64,
    effective_ghz: f64,
    nj_per_cycle: Option<f64>,
}

#[derive(Debug, Serialize)]
struct CrossingDocument {
    what: &'static str,
    paper_kcycles: f64,
    ours_kcycles: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct WhatIfDocument {
    what: &'static str,
    observation: u8,
    formula_us: f64,
    lock_kcycles: Option<f64>,
    lock_by_turns_kcycles: Option<f64>,
    faster_pct: f64,
    resize_pct: f64,
}

impl FigureDocument {
    pub(super) fn new(Drawn { title, curves, crossings }: &Drawn) -> Self {
        let point = |Point { cycles, ghz, nj }: &Point| PointDocument {
            cycles: *cycles,
            effective_ghz: *ghz,
            nj_per_cycle: *nj,
        };
        let curve = |Curve { strategy, points }: &Curve| CurveDocument {
            strategy,
            points: points.iter().map(point).collect(),
        };
        let crossing = |Crossing { what, paper, ours }: &Crossing| CrossingDocument {
            what,
            paper_kcycles: *paper,
            ours_kcycles: finite(*ours),
        };
        Self {
            title,
            curves: curves.iter().map(curve).collect(),
            crossings: crossings.iter().map(crossing).collect(),
        }
    }
}

impl WhatIfDocument {
    pub(super) fn new(what_if: &WhatIf) -> Self {
        let WhatIf { what, observation, formula_us, faster_pct, resize_pct, .. } = *what_if;
        let lock_kcycles = finite(what_if.lock_kcycles);
        let lock_by_turns_kcycles = finite(what_if.lock_by_turns_kcycles);
        Self {
            what,
            observation,
            formula_us,
            lock_kcycles,
            lock_by_turns_kcycles,
            faster_pct,
            resize_pct,
        }
    }
}

/// Whether something is missing because an interrupt ended the work.
pub(super) fn is_partial(Figures { drawn, what_ifs }: &Figures) -> bool {
    drawn.len() < FIGURES || what_ifs.len() < WHAT_IFS
}

/// A crossing that exists.
fn finite(kcycles: f64) -> Option<f64> {
    Some(kcycles).filter(|kcycles| kcycles.is_finite())
}

const ABOUT: &str = "What observations 1, 2, 4 and 5 of paper 002 would bring on the FX-8120: from \
     which section on the owner's boost (`ownr`) gains, by the formula of §4.4 and, with eight \
     threads at a lock, by the simulator, where threads take it in the order of their cores, or \
     modules take turns, of which the paper says neither; how much faster sections of 100 000 \
     cycles are, in the order of cores, than those of one thread at the base; and how the time of \
     memcached's first resize changes, 100 items at a time, if the resizer asks for P0 in each bulk";

const HEADINGS: [&str; 7] = [
    "hardware",
    "observation",
    "formula",
    "lock",
    "lock by turns",
    "sections of 100 000 cycles",
    "resize",
];

/// The rows of all what-ifs, cell by cell.
fn rows(what_ifs: &[WhatIf]) -> impl Iterator<Item = [String; 7]> {
    let from = |kcycles: f64| match kcycles {
        0.0 => "any section".to_owned(),
        from if from.is_finite() => format!("{} kcycles", grouped(from, 1)),
        _ => "none".to_owned(),
    };
    what_ifs.iter().map(move |one| {
        let observation = match one.observation {
            0 => String::new(),
            number => number.to_string(),
        };
        [
            one.what.to_owned(),
            observation,
            format!("{} µs", grouped(one.formula_us, 1)),
            from(one.lock_kcycles),
            from(one.lock_by_turns_kcycles),
            format!("{} %", signed(one.faster_pct, 1)),
            format!("{} %", signed(one.resize_pct, 1)),
        ]
    })
}

/// The what-ifs as text.
pub fn text(figures: &Figures, screen: Screen) -> String {
    let partial = if is_partial(figures) { "PARTIAL: interrupted\n" } else { "" };
    let mut table = Table::new(HEADINGS);
    for row in rows(&figures.what_ifs) {
        table.row(row);
    }
    format!("\nwhat other hardware would bring\n\n{}\n{partial}", table.render(screen))
}

/// The what-ifs as Markdown, as in `docs/VALIDATION.md`.
pub(super) fn markdown(figures: &Figures) -> String {
    let about = textwrap::fill(&format!("{ABOUT}."), 100);
    let mut text = format!("\n## What hardware as paper 002 wishes for would bring\n\n{about}\n\n");
    let _ = writeln!(text, "| {} |\n|---|---|---|---|---|---|---|", HEADINGS.join(" | "));
    for row in rows(&figures.what_ifs) {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text
}

/// The figures and the what-ifs as a section of the page.
pub(super) fn section(figures: &Figures) -> Result<Markup, PageError> {
    let mut drawn = Vec::new();
    for one in &figures.drawn {
        drawn.extend(speed(one).of(one.title)?);
        drawn.extend(energy(one).of(one.title)?);
    }
    Ok(html! {
        section {
            h2 { "Ways to wait for a lock, and requests at it" }
            p { "All threads of the processor want one lock all the time. The effective clock is what sections progress at: their cycles over all of the time." }
            div.figures { @for one in &drawn { (figure(one)) } }
        }
        section {
            h2 { "What other hardware would bring" }
            p { (crate::page::prose(ABOUT)) "." }
            div.scroll {
                table.wins {
                    thead { tr { @for heading in HEADINGS { th { (heading) } } } }
                    tbody {
                        @for row in rows(&figures.what_ifs) {
                            tr {
                                @for (column, cell) in row.iter().enumerate() {
                                    @if column == 0 { td.name { (cell) } } @else { td { (cell) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    })
}

/// Curves of a value of points that have it.
fn curves(drawn: &Drawn, of: impl Fn(&Point) -> Option<f64>) -> Vec<Named> {
    let curve = |curve: &Curve| Named {
        name: curve.strategy.to_owned(),
        points: curve.points.iter().filter_map(|point| Some((point.cycles, of(point)?))).collect(),
    };
    drawn.curves.iter().map(curve).collect()
}

/// The effective clocks of a figure's strategies, and their crossings.
fn speed(drawn: &Drawn) -> Result<Option<Figure>, plot::DrawError> {
    let place = |Crossing { what, paper, ours }: &Crossing| Place {
        what: (*what).to_owned(),
        reported: 1e3 * paper,
        ours: finite(*ours).filter(|ours| *ours > 0.0).map(|ours| 1e3 * ours),
    };
    let places: Vec<Place> = drawn.crossings.iter().map(place).collect();
    let axes = ("cycles of a section", "effective clock, GHz", "GHz");
    plot::curves(drawn.title, axes, &curves(drawn, |point| Some(point.ghz)), &places)
}

/// The energy of a figure's strategies; none if the power of one is not known.
fn energy(drawn: &Drawn) -> Result<Option<Figure>, plot::DrawError> {
    let is_known = |curve: &Curve| curve.points.iter().all(|point| point.nj.is_some());
    if !drawn.curves.iter().all(is_known) {
        return Ok(None);
    }
    let title = format!("{}: energy of a cycle of a section", drawn.title);
    let axes = ("cycles of a section", "energy, nJ a cycle", "nJ");
    plot::curves(&title, axes, &curves(drawn, |point| point.nj), &[])
}
