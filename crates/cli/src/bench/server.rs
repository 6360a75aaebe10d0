//! `dimmer bench server`: two programs under the policy server, compared with no moving and with
//! moving always.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use dimmer_bench::neighbours::{self, Rates, Way};
use dimmer_bench::pairs;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_policy::dedicated;
use dimmer_probe::kernel::{self, Kernel};
use serde::Serialize;

use super::daemon::beside;
use super::hook::Measured;
use super::signed;
use crate::args::{BenchServer, Neighbour};
use crate::output;
use crate::report::number::{grouped, percent};

/// Kernels of the bursts; the first one that the processor can run is taken, so the widest.
const KERNELS: [&str; 2] = ["vfmadd231pd-512-unrolled", "vfmadd231pd-256-unrolled"];

/// The results; `docs/bench-json.md` describes every key.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    kernel: &'static str,
    cpu: u32,
    rounds: usize,
    seconds: u32,
    ways: Vec<WayJson>,
}

#[derive(Debug, Serialize)]
struct WayJson {
    name: &'static str,
    /// Iterations per second.
    wide: Option<Measured>,
    scalar: Option<Measured>,
    /// Gain of both programs together over bursts that stay (geometric mean, percent).
    gain_pct: Option<Measured>,
    moved_share: Option<Measured>,
}

pub(crate) fn run(root: &Root, arguments: &BenchServer) -> anyhow::Result<ExitCode> {
    if let Some(kind) = arguments.program {
        return run_program(root, kind, arguments.duration);
    }
    let json = arguments.json.open()?;
    let interrupt = Interrupt::install().context("cannot take signals")?;
    let dimmerd = beside("dimmerd")?;
    let machine = Machine::read(root, &Cpuid::instruction());
    let picked = dedicated::pick(&machine.topology, &machine.allowed, &[], 1);
    let cpu = picked.ok().and_then(|cpus| cpus.first().copied());
    let cpu = cpu.context("moving work takes two CPUs, and this process may run on one")?;
    let (name, _) = burst(&machine)?;
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let mut program: Vec<OsString> = vec![own.into_os_string()];
    program.extend(["bench", "server", "--program"].map(OsString::from));
    let rounds = usize::try_from(arguments.rounds)?;
    let bar = super::progress((rounds * Way::ALL.len()) as u64);
    let measured = neighbours::measure(
        (&program, &dimmerd),
        cpu,
        (rounds, arguments.duration),
        &interrupt,
        || bar.inc(1),
    );
    bar.finish_and_clear();
    let rounds = match measured {
        Ok(rounds) => rounds,
        Err(error) => {
            return super::end(error.into(), &interrupt, "nothing was measured to its end");
        }
    };
    let report = Report {
        schema: "dimmer/bench-server/1",
        kernel: name,
        cpu: cpu.index(),
        rounds: rounds.len(),
        seconds: arguments.duration,
        ways: Way::ALL
            .into_iter()
            .enumerate()
            .map(|(index, way)| WayJson::new(way, index, &rounds))
            .collect(),
    };
    output::show(json, &report, &report.text())?;
    Ok(ExitCode::SUCCESS)
}

/// Runs as one of the two programs.
fn run_program(root: &Root, kind: Neighbour, seconds: u32) -> anyhow::Result<ExitCode> {
    let machine = Machine::read(root, &Cpuid::instruction());
    let kernel = match kind {
        Neighbour::Wide => Some(Arc::new(burst(&machine)?.1)),
        Neighbour::Scalar => None,
    };
    let numbers = neighbours::run_program(kernel.as_ref(), Duration::from_secs(seconds.into()))?;
    println!("{}", numbers.map(|number| number.to_string()).join(" "));
    Ok(ExitCode::SUCCESS)
}

/// The widest bursts that this processor can run.
fn burst(machine: &Machine) -> anyhow::Result<(&'static str, Kernel)> {
    for name in KERNELS {
        let kernel = kernel::find(name)?;
        let has = |name: &str| machine.features.iter().any(|feature| feature.name() == name);
        if kernel.needs.iter().all(|feature| has(feature.name())) {
            return Ok((name, kernel));
        }
    }
    anyhow::bail!("the processor has no fused multiply-add of 256 bits or more (AVX2, FMA)")
}

impl WayJson {
    fn new(way: Way, index: usize, rounds: &[[Rates; 4]]) -> Self {
        let measured = |of: &dyn Fn(&Rates) -> f64| {
            let samples: dimmer_probe::stats::Samples =
                rounds.iter().map(|round| of(&round[index])).collect();
            samples.estimate().map(Measured::new)
        };
        let both = |rates: &Rates| (rates.wide * rates.scalar).sqrt();
        let gain = rounds.iter().map(|round| (both(&round[0]), both(&round[index])));
        Self {
            name: match way {
                Way::Stay => "stay",
                Way::Always => "always moved",
                Way::Server => "server",
                Way::Trying => "server without prices",
            },
            wide: measured(&|rates| rates.wide),
            scalar: measured(&|rates| rates.scalar),
            gain_pct: (index > 0).then(|| pairs::change_pct(gain).map(Measured::new)).flatten(),
            moved_share: measured(&|rates| rates.moved),
        }
    }
}

impl Report {
    fn text(&self) -> String {
        let mut text = format!(
            "Two programs, one with bursts of {} in scalar work; CPU {} may be dedicated. {} rounds, {} s a turn,\n\
             of which the second half counts. Iterations a second:\n\n{:<24}{:>10}{:>10}{:>10}  {}\n",
            self.kernel,
            self.cpu,
            self.rounds,
            self.seconds,
            "",
            "wide",
            "scalar",
            "moved",
            "both against stay"
        );
        let number = |measured: Option<Measured>| {
            measured.map_or_else(|| "-".to_owned(), |measured| grouped(measured.median, 0))
        };
        for way in &self.ways {
            let moved =
                way.moved_share.map_or_else(|| "-".to_owned(), |share| percent(share.median));
            let gain = way.gain_pct.map_or_else(String::new, |gain| {
                let [low, high] = [gain.ci95.0, gain.ci95.1].map(signed);
                format!("{} % [{low}, {high}]", signed(gain.median))
            });
            let (wide, scalar) = (number(way.wide), number(way.scalar));
            text += &format!("{:<24}{wide:>10}{scalar:>10}{moved:>10}  {gain}\n", way.name);
        }
        text + &super::ratio_of_rounds(self.rounds)
    }
}
