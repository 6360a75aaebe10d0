//! `dimmer bench daemon`: the policy server under load.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use dimmer_bench::daemon::{self, Load, Taken};
use dimmer_host::interrupt::Interrupt;
use dimmer_host::root::Root;
use dimmer_probe::stats::Samples;
use serde::Serialize;

use super::hook::Measured;
use crate::args::BenchDaemon;
use crate::output;
use crate::report::number::{grouped, percent};

/// Each loop and its configuration.
const LOOPS: [(&str, &str); 2] = [
    ("trials", "[policy]\nloop = \"trials\""),
    ("thresholds", "[policy]\nloop = \"thresholds\"\nunit = \"site\""),
];

/// The results; `docs/bench-json.md` describes every key.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    clients: usize,
    sites: usize,
    seconds: usize,
    loops: Vec<LoopJson>,
}

#[derive(Debug, Serialize)]
struct LoopJson {
    name: &'static str,
    records_per_s: f64,
    cpu_share: Option<Measured>,
    resident_mib: f64,
    /// Time from the policy's decision until a client sees it.
    visible_us: Option<Measured>,
    visible_us_p99: Option<f64>,
}

pub(crate) fn run(root: &Root, arguments: &BenchDaemon) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let interrupt = Interrupt::install().context("cannot take signals")?;
    let dimmerd = beside("dimmerd")?;
    let bar = super::progress(u64::from(arguments.duration) * LOOPS.len() as u64);
    let load = Load {
        clients: usize::try_from(arguments.clients)?,
        sites: usize::try_from(arguments.sites)?,
        records: arguments.records,
        seconds: usize::try_from(arguments.duration)?,
        newcomers: 0,
    };
    let mut loops = Vec::new();
    for (name, policy) in LOOPS {
        // The trials loop decides when it is a site's turn, the thresholds loop at once. So only
        // with thresholds can be seen how soon a decision arrives.
        let newcomers = if name == "thresholds" { 100 } else { 0 };
        let load = Load { newcomers, ..load };
        let taken = daemon::measure(root, &dimmerd, policy, &load, &interrupt, || bar.inc(1));
        match taken {
            Ok(taken) => loops.push(LoopJson::new(name, taken)),
            Err(error) => {
                bar.finish_and_clear();
                return super::end(error.into(), &interrupt, "nothing was measured to its end");
            }
        }
    }
    bar.finish_and_clear();
    let report = Report {
        schema: "dimmer/bench-daemon/1",
        clients: load.clients,
        sites: load.clients * load.sites,
        seconds: load.seconds,
        loops,
    };
    output::show(json, &report, &report.text())?;
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

impl LoopJson {
    fn new(name: &'static str, taken: Taken) -> Self {
        let visible: Samples = taken.visible_us.iter().copied().collect();
        Self {
            name,
            records_per_s: taken.records,
            cpu_share: taken.cpu.into_iter().collect::<Samples>().estimate().map(Measured::new),
            resident_mib: taken.resident_mib,
            visible_us: visible.estimate().map(Measured::new),
            visible_us_p99: visible.quantile(0.99),
        }
    }
}

impl Report {
    fn text(&self) -> String {
        let mut text = format!(
            "dimmerd with {} clients and {} sites, over {} s:\n",
            grouped(self.clients as f64, 0),
            grouped(self.sites as f64, 0),
            self.seconds
        );
        for found in &self.loops {
            let cpu = found.cpu_share.map_or_else(String::new, |share| {
                let [low, high] = [share.ci95.0, share.ci95.1].map(percent);
                format!("{} of a core [{low}, {high}], ", percent(share.median))
            });
            text += &format!(
                "  {:<11} {cpu}{} MiB, {} records a second\n",
                found.name,
                grouped(found.resident_mib, 1),
                grouped(found.records_per_s, 0)
            );
            if let (Some(visible), Some(p99)) = (found.visible_us, found.visible_us_p99) {
                text += &format!(
                    "              a decision is visible {} us [{}, {}] after it was made, {} us in the worst of 100\n",
                    grouped(visible.median, 1),
                    grouped(visible.ci95.0, 1),
                    grouped(visible.ci95.1, 1),
                    grouped(p99, 1)
                );
            }
        }
        text
    }
}
