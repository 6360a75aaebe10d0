//! `dimmer bench dev daemon`: the policy daemon under load. `docs/bench-json.md` describes the
//! keys.

use dimmer_bench::daemon::{Load, Taken};
use dimmer_probe::stats::Samples;
use serde::Serialize;

use crate::estimate::Measured;
use crate::number::{grouped, percent};
use crate::screen::Screen;

/// The document `dimmer/bench-daemon/1`.
#[derive(Debug, Serialize)]
pub struct Report {
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
    /// `loops`: what was measured of the policy loop of each name, under `load`.
    pub fn new(load: &Load, loops: Vec<(&'static str, Taken)>) -> Self {
        let loops = loops.into_iter().map(|(name, taken)| LoopJson::new(name, taken));
        Self {
            schema: "dimmer/bench-daemon/1",
            clients: load.clients,
            sites: load.clients * load.sites,
            seconds: load.seconds,
            loops: loops.collect(),
        }
    }

    /// The results as text.
    pub fn text(&self, screen: Screen) -> String {
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
                    "              a decision is visible {} µs [{}, {}] after it was made, {} µs in the worst of 100\n",
                    grouped(visible.median, 1),
                    grouped(visible.ci95.0, 1),
                    grouped(visible.ci95.1, 1),
                    grouped(p99, 1)
                );
            }
        }
        screen.shown(&text)
    }
}
