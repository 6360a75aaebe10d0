//! `dimmer bench server`: two programs under the policy server, compared with no moving and with
//! moving always.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use dimmer_bench::neighbours::{self, Way};
use dimmer_host::cpuid::Cpuid;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_policy::dedicated;
use dimmer_probe::kernel::{self, Kernel};
use dimmer_report::bench::ServerReport;

use super::daemon::beside;
use crate::args::{BenchServer, Neighbour};
use crate::{output, progress};

/// Kernels of the bursts; the first one that the processor can run is taken, so the widest.
const KERNELS: [&str; 2] = ["vfmadd231pd-512-unrolled", "vfmadd231pd-256-unrolled"];

/// The shortest run (s): its second half counts.
const LEAST_S: u32 = 2;

pub(crate) fn run(
    root: &Root,
    arguments: &BenchServer,
    interrupt: &Interrupt,
) -> anyhow::Result<ExitCode> {
    let seconds = arguments.duration.whole_seconds(LEAST_S)?;
    let json = arguments.json.open()?;
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
    let bar = progress::bar((rounds * Way::ALL.len()) as u64);
    let measured =
        neighbours::measure((&program, &dimmerd), cpu, (rounds, seconds), interrupt, || bar.inc(1));
    bar.finish_and_clear();
    let report = ServerReport::new(&measured?, name, cpu, seconds);
    output::show(json, &report, &report.text(output::screen()))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs as one of the two programs.
pub(super) fn run_program(
    root: &Root,
    arguments: &BenchServer,
    kind: Neighbour,
) -> anyhow::Result<ExitCode> {
    let seconds = arguments.duration.whole_seconds(LEAST_S)?;
    let machine = Machine::read(root, &Cpuid::instruction());
    let kernel = match kind {
        Neighbour::Wide => Some(Arc::new(burst(&machine)?.1)),
        Neighbour::Scalar => None,
    };
    let numbers = neighbours::run_program(kernel.as_ref(), Duration::from_secs(seconds.into()))?;
    output::print(&(numbers.map(|number| number.to_string()).join(" ") + "\n"))?;
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
