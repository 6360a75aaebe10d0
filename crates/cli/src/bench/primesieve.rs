//! `dimmer bench primesieve`: bursts of wide SIMD code in scalar work, in place and moved to
//! another core.

use std::process::ExitCode;
use std::sync::Arc;

use dimmer_bench::primesieve::{Bench, Cell};
use dimmer_host::cpuid::Cpuid;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_host::tile;
use dimmer_probe::kernel;
use dimmer_report::bench::PrimesieveReport;

use crate::args::BenchMoves;
use crate::{output, progress};

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

pub(super) fn run(
    root: &Root,
    arguments: &BenchMoves,
    interrupt: &Interrupt,
) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let machine = Machine::read(root, &Cpuid::of(root)?);
    let has = |name: &str| {
        machine.features.iter().any(|feature| feature.name() == name)
            && (!name.starts_with("amx") || tile::permit().is_ok())
    };
    let bench = Bench::new(root)?;
    let (home, away) = bench.cpus();
    let mut report = PrimesieveReport::new(home, away, arguments.rounds);
    let mut cells = Vec::new();
    for (name, instead, lanes) in KERNELS {
        let kernel = kernel::find(name)?;
        let missing: Vec<&str> =
            kernel.needs.iter().map(|f| f.name()).filter(|name| !has(name)).collect();
        if !missing.is_empty() {
            let why =
                format!("the processor or the system does not provide {}", missing.join(", "));
            report.skip(name, why);
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
    let bar = progress::bar(cells.len() as u64);
    for (name, cell) in &cells {
        if interrupt.is_set() {
            report.set_partial();
            break;
        }
        bar.set_message(format!("{name}, {} instructions", cell.burst));
        let found = bench.run(cell, usize::try_from(arguments.rounds)?)?;
        report.add(name, cell, &found);
        bar.inc(1);
    }
    bar.finish_and_clear();
    output::show(json, &report, &report.text(output::screen()))?;
    Ok(interrupt.exit_status().map_or(ExitCode::SUCCESS, ExitCode::from))
}
