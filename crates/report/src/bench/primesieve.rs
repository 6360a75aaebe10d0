//! `dimmer bench primesieve`: bursts of wide SIMD code in scalar work, in place and moved to
//! another core. `docs/bench-json.md` describes the keys.

use dimmer_bench::primesieve::{self as bench, Found, Mechanism};
use dimmer_processor::units::CpuId;
use serde::Serialize;

use super::signed;
use crate::estimate::Measured;
use crate::number::{SPACE, grouped};
use crate::screen::Screen;
use crate::table::{Cell, Table};

/// The document `dimmer/bench-primesieve/1`.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    partial: bool,
    home_cpu: u32,
    away_cpu: u32,
    rounds: u32,
    skipped: Vec<Skipped>,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Skipped {
    kernel: &'static str,
    why: String,
}

/// The result of one cell with one mechanism.
#[derive(Debug, Serialize)]
struct Row {
    kernel: &'static str,
    burst: u32,
    gap_us: f64,
    mechanism: &'static str,
    scalar_ns: Measured,
    direct_ns: Measured,
    instead_ns: Measured,
    moved_ns: Measured,
    /// `None` if the bursts do not certainly cost something.
    removed_pct: Option<f64>,
    moved_over_direct_pct: Measured,
}

fn rows(kernel: &'static str, cell: &bench::Cell, found: &Found) -> Vec<Row> {
    // If no cost is visible, nothing of it can be removed.
    let is_costly = found.direct_ns.ci95.0 > found.scalar_ns.ci95.1;
    let row = |(mechanism, moved, removed, over): &(Mechanism, _, f64, _)| Row {
        kernel,
        burst: cell.burst,
        gap_us: found.scalar_ns.median / 1000.0,
        mechanism: match mechanism {
            Mechanism::Delegate => "delegate",
            Mechanism::Migrate => "migrate",
        },
        scalar_ns: Measured::new(found.scalar_ns),
        direct_ns: Measured::new(found.direct_ns),
        instead_ns: Measured::new(found.instead_ns),
        moved_ns: Measured::new(*moved),
        removed_pct: is_costly.then_some(*removed),
        moved_over_direct_pct: Measured::new(*over),
    };
    found.moved.iter().map(row).collect()
}

impl Row {
    /// Whether moving is certainly faster, and the bursts certainly cost something.
    fn pays(&self) -> bool {
        self.moved_over_direct_pct.ci95.1 < 0.0 && self.removed_pct.is_some()
    }
}

impl Report {
    /// A report without results of bursts on `home`, moved to `away`.
    pub fn new(home: CpuId, away: CpuId, rounds: u32) -> Self {
        Self {
            schema: "dimmer/bench-primesieve/1",
            partial: false,
            home_cpu: home.index(),
            away_cpu: away.index(),
            rounds,
            skipped: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Adds a kernel that cannot run here.
    pub fn skip(&mut self, kernel: &'static str, why: String) {
        self.skipped.push(Skipped { kernel, why });
    }

    /// Adds what was found in a cell of a kernel.
    pub fn add(&mut self, kernel: &'static str, cell: &bench::Cell, found: &Found) {
        self.rows.extend(rows(kernel, cell, found));
    }

    /// Notes that an interrupt ended it before all cells were measured.
    pub fn set_partial(&mut self) {
        self.partial = true;
    }

    /// The results as text.
    pub fn text(&self, screen: Screen) -> String {
        let mut text = format!(
            "Bursts in a sieve on CPU {}, moved to CPU {}; {} rounds. Microseconds an iteration.\n",
            self.home_cpu, self.away_cpu, self.rounds
        );
        for of_kernel in self.rows.chunk_by(|a, b| a.kernel == b.kernel) {
            text += &format!("\n{}\n", of_kernel[0].kernel);
            let heads = ["burst", "scalar", "direct", "instead", "", "moved"].map(Cell::right);
            let mut table = Table::new(
                heads.into_iter().chain(["moved over direct".into(), Cell::right("removed")]),
            );
            for row in of_kernel {
                table.row(row.cells());
            }
            text += &table.render(screen);
            for mechanism in ["delegate", "migrate"] {
                let own = || of_kernel.iter().filter(|row| row.mechanism == mechanism);
                let paying: Vec<String> =
                    own().filter(|row| row.pays()).map(|row| grouped(row.gap_us, 0)).collect();
                text += &if paying.is_empty() {
                    format!("{mechanism}: moving pays at none of these gaps here.\n")
                } else {
                    format!("{mechanism}: moving pays at gaps of {} µs here.\n", paying.join(", "))
                };
            }
        }
        text += "\n";
        for Skipped { kernel, why } in &self.skipped {
            text += &format!("Skipped {kernel}: {why}.\n");
        }
        if self.partial {
            text += "PARTIAL: interrupted before all gaps were measured.\n";
        }
        text += "scalar: the sieve alone. instead: scalar code that computes as much. removed: of direct less scalar.\n";
        screen.shown(&text)
    }
}

impl Row {
    fn cells(&self) -> [Cell; 8] {
        let us = |measured: Measured| Cell::right(grouped(measured.median / 1000.0, 2));
        let over = self.moved_over_direct_pct;
        let over = format!(
            "{}{SPACE}% [{}, {}]",
            signed(over.median),
            grouped(over.ci95.0, 1),
            grouped(over.ci95.1, 1)
        );
        let removed = self.removed_pct.map(|removed| format!("{}{SPACE}%", grouped(removed, 0)));
        [
            Cell::right(grouped(f64::from(self.burst), 0)),
            us(self.scalar_ns),
            us(self.direct_ns),
            us(self.instead_ns),
            Cell::right(self.mechanism),
            us(self.moved_ns),
            over.into(),
            Cell::right(removed.unwrap_or_else(|| "-".to_owned())),
        ]
    }
}
