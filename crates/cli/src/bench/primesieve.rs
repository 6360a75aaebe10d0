//! `dimmer bench primesieve`: bursts of wide SIMD code in scalar work, in place and moved to
//! another core.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use dimmer_bench::primesieve::{Bench, Cell, Found, Mechanism};
use dimmer_host::cpuid::Cpuid;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_host::tile;
use dimmer_probe::kernel;
use serde::Serialize;

use crate::args::BenchMoves;
use crate::output;
use crate::report::number::grouped;

use super::hook::Measured;
use super::{progress, signed};

/// A kernel, scalar code that computes the same amount, and how many instructions of the scalar
/// code replace one of the kernel. Tiles: 16 x 16 results of 32 products (bfloat16), or of 64
/// (bytes).
const KERNELS: [(&str, &str, u32); 5] = [
    ("vfmadd231pd-512-unrolled", "vfmadd231sd-scalar-unrolled", 8),
    ("vfmadd231pd-256-unrolled", "vfmadd231sd-scalar-unrolled", 4),
    ("vpmadd52luq-512-unrolled", "add-scalar-unrolled", 8),
    ("tdpbf16ps-tile-unrolled", "vfmadd231sd-scalar-unrolled", 8192),
    ("tdpbssd-tile-unrolled", "add-scalar-unrolled", 16_384),
];

/// Instructions of an isolated burst; a tile instruction takes some sixteen cycles.
const BURST: u32 = 800;
const TILE_BURST: u32 = 25;

/// Scalar work between bursts (us).
const GAPS_US: [f64; 8] = [5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];

/// Paper 001 §3.2, instructions and scalar work (us): 2^12 x 16 multiply-adds before each sieve
/// iteration of 1.6 ms (1:100), and 64 times as many (50:50).
const PAPER: [(u32, f64); 2] = [(1 << 16, 1600.0), (1 << 22, 1600.0)];

/// The results; `docs/bench-json.md` describes every key.
#[derive(Debug, Serialize)]
struct Report {
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
    removed_pct: Option<f64>,
    moved_over_direct_pct: Measured,
}

pub(super) fn run(root: &Root, arguments: &BenchMoves) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let interrupt = Interrupt::install().context("cannot prepare for interruption")?;
    let machine = Machine::read(root, &Cpuid::of(root)?);
    let has = |name: &str| {
        machine.features.iter().any(|feature| feature.name() == name)
            && (!name.starts_with("amx") || tile::permit().is_ok())
    };
    let bench = Bench::new(root)?;
    let (home, away) = bench.cpus();
    let mut report = Report {
        schema: "dimmer/bench-primesieve/1",
        partial: false,
        home_cpu: home.index(),
        away_cpu: away.index(),
        rounds: arguments.rounds,
        skipped: Vec::new(),
        rows: Vec::new(),
    };
    let mut cells = Vec::new();
    for (name, instead, lanes) in KERNELS {
        let kernel = kernel::find(name)?;
        let missing: Vec<&str> =
            kernel.needs.iter().map(|f| f.name()).filter(|name| !has(name)).collect();
        if !missing.is_empty() {
            let why =
                format!("the processor or the system does not provide {}", missing.join(", "));
            report.skipped.push(Skipped { kernel: name, why });
            continue;
        }
        let (kernel, instead) = (Arc::new(kernel), Arc::new(kernel::find(instead)?));
        let is_tile = lanes > 8;
        let burst = if is_tile { TILE_BURST } else { BURST };
        let paper = PAPER.into_iter().filter(|_| !is_tile);
        for (burst, gap_us) in GAPS_US.map(|gap_us| (burst, gap_us)).into_iter().chain(paper) {
            let (kernel, instead) = (Arc::clone(&kernel), Arc::clone(&instead));
            cells.push((name, Cell { kernel, instead, burst, lanes, gap_ns: gap_us * 1000.0 }));
        }
    }
    let bar = progress(cells.len() as u64);
    for (name, cell) in &cells {
        if interrupt.is_set() {
            report.partial = true;
            break;
        }
        bar.set_message(format!("{name}, {} instructions", cell.burst));
        let found = bench.run(cell, usize::try_from(arguments.rounds)?)?;
        report.rows.extend(rows(name, cell, &found));
        bar.inc(1);
    }
    bar.finish_and_clear();
    output::show(json, &report, &report.text())?;
    Ok(interrupt.exit_status().map_or(ExitCode::SUCCESS, ExitCode::from))
}

fn rows(kernel: &'static str, cell: &Cell, found: &Found) -> Vec<Row> {
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
        removed_pct: removed.is_finite().then_some(*removed),
        moved_over_direct_pct: Measured::new(*over),
    };
    found.moved.iter().map(row).collect()
}

impl Row {
    /// Whether moving is certainly faster, and the bursts certainly cost something.
    fn pays(&self) -> bool {
        self.moved_over_direct_pct.ci95.1 < 0.0 && self.costs()
    }

    fn costs(&self) -> bool {
        self.direct_ns.ci95.0 > self.scalar_ns.ci95.1
    }
}

impl Report {
    fn text(&self) -> String {
        let mut text = format!(
            "Bursts in a sieve on CPU {}, moved to CPU {}; {} rounds. Microseconds an iteration.\n",
            self.home_cpu, self.away_cpu, self.rounds
        );
        for of_kernel in self.rows.chunk_by(|a, b| a.kernel == b.kernel) {
            text += &format!(
                "\n{}\n{:>8}{:>10}{:>10}{:>10}{:>10}{:>10}  {:<24}{:>8}\n",
                of_kernel[0].kernel,
                "burst",
                "scalar",
                "direct",
                "instead",
                "",
                "moved",
                "moved over direct",
                "removed"
            );
            for row in of_kernel {
                text += &row.text();
            }
            for mechanism in ["delegate", "migrate"] {
                let own = || of_kernel.iter().filter(|row| row.mechanism == mechanism);
                let paying: Vec<String> =
                    own().filter(|row| row.pays()).map(|row| grouped(row.gap_us, 0)).collect();
                text += &if paying.is_empty() {
                    format!("{mechanism}: moving pays at none of these gaps here.\n")
                } else {
                    format!("{mechanism}: moving pays at gaps of {} us here.\n", paying.join(", "))
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
        text + "scalar: the sieve alone. instead: scalar code that computes as much. removed: of direct less scalar.\n"
    }
}

impl Row {
    fn text(&self) -> String {
        let us = |measured: Measured| grouped(measured.median / 1000.0, 2);
        let over = self.moved_over_direct_pct;
        let over = format!(
            "{} % [{}, {}]",
            signed(over.median),
            grouped(over.ci95.0, 1),
            grouped(over.ci95.1, 1)
        );
        // If no cost is visible, nothing of it can be removed.
        let removed = self.removed_pct.filter(|_| self.costs());
        format!(
            "{:>8}{:>10}{:>10}{:>10}{:>10}{:>10}  {over:<24}{:>8}\n",
            grouped(f64::from(self.burst), 0),
            us(self.scalar_ns),
            us(self.direct_ns),
            us(self.instead_ns),
            self.mechanism,
            us(self.moved_ns),
            removed.map_or_else(|| "-".to_owned(), |removed| format!("{} %", grouped(removed, 0))),
        )
    }
}
