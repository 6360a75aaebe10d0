//! `dimmer bench dev daemon`: the policy daemon under load.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use dimmer_bench::daemon::{self, Load};
use dimmer_host::interrupt::Interrupt;
use dimmer_host::root::Root;
use dimmer_policy::server::loops::LOOPS;
use dimmer_report::bench::DaemonReport;

use crate::args::BenchDaemon;
use crate::{output, progress};

pub(crate) fn run(
    root: &Root,
    arguments: &BenchDaemon,
    interrupt: &Interrupt,
) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let dimmerd = beside("dimmerd")?;
    let seconds = arguments.duration.whole_seconds(1)?;
    let bar = progress::bar(u64::from(seconds) * LOOPS.len() as u64);
    let load = Load {
        clients: usize::try_from(arguments.clients)?,
        sites: usize::try_from(arguments.sites)?,
        records: arguments.records,
        seconds: usize::try_from(seconds)?,
        newcomers: 0,
    };
    let mut loops = Vec::new();
    for name in LOOPS.map(|definition| definition.name) {
        let policy = &format!("[policy]\nloop = \"{name}\"\nunit = \"site\"");
        // Loops with trials decide when it is a site's turn, the thresholds loop at once. So only
        // with thresholds can be seen how soon a decision arrives.
        let newcomers = if name == "thresholds" { 100 } else { 0 };
        let load = Load { newcomers, ..load };
        let taken = daemon::measure(root, &dimmerd, policy, &load, interrupt, || bar.inc(1));
        if taken.is_err() {
            bar.finish_and_clear();
        }
        loops.push((name, taken?));
    }
    bar.finish_and_clear();
    let report = DaemonReport::new(&load, loops);
    output::show(json, &report, &report.text(output::screen()))?;
    Ok(ExitCode::SUCCESS)
}

/// The path of a program that is installed beside this one.
pub(super) fn beside(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let path = own.with_file_name(name);
    anyhow::ensure!(
        path.is_file(),
        "{name} is not beside {}; `make build` makes both",
        own.display()
    );
    Ok(path)
}
