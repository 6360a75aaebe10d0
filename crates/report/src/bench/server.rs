//! `dimmer bench server`: two programs under the policy server, compared with no moving and with
//! moving always. `docs/bench-json.md` describes the keys.

use dimmer_bench::neighbours::{Rates, Way};
use dimmer_bench::pairs;
use dimmer_processor::units::CpuId;
use serde::Serialize;

use super::{ratio_of_rounds, signed};
use crate::estimate::Measured;
use crate::number::{SPACE, grouped, percent};
use crate::screen::Screen;
use crate::table::{Cell, Table};

/// The document `dimmer/bench-server/1`.
#[derive(Debug, Serialize)]
pub struct Report {
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
    /// `rounds`: the rates of both programs for each way, in the order of [`Way::ALL`]; `kernel`:
    /// that of the bursts; `cpu`: the one that may be dedicated; `seconds`: of each run.
    pub fn new(rounds: &[[Rates; 4]], kernel: &'static str, cpu: CpuId, seconds: u32) -> Self {
        let ways = Way::ALL.into_iter().enumerate();
        Self {
            schema: "dimmer/bench-server/1",
            kernel,
            cpu: cpu.index(),
            rounds: rounds.len(),
            seconds,
            ways: ways.map(|(index, way)| WayJson::new(way, index, rounds)).collect(),
        }
    }

    /// The results as text.
    pub fn text(&self, screen: Screen) -> String {
        let mut text = format!(
            "Two programs, one with bursts of {} in scalar work; CPU {} may be dedicated. {} rounds, {} s a turn,\n\
             of which the second half counts. Iterations a second:\n\n",
            self.kernel, self.cpu, self.rounds, self.seconds,
        );
        let heads = ["wide", "scalar", "moved"].map(Cell::right);
        let heads = [Cell::from("")].into_iter().chain(heads);
        let mut table = Table::new(heads.chain(["both against stay".into()]));
        let number = |measured: Option<Measured>| {
            measured.map_or_else(|| "-".to_owned(), |measured| grouped(measured.median, 0))
        };
        for way in &self.ways {
            let moved =
                way.moved_share.map_or_else(|| "-".to_owned(), |share| percent(share.median));
            let gain = way.gain_pct.map_or_else(String::new, |gain| {
                let [low, high] = [gain.ci95.0, gain.ci95.1].map(signed);
                format!("{}{SPACE}% [{low}, {high}]", signed(gain.median))
            });
            let numbers = [number(way.wide), number(way.scalar), moved].map(Cell::right);
            let name = [Cell::from(way.name)].into_iter();
            table.row(name.chain(numbers).chain([gain.into()]));
        }
        text += &table.render(screen);
        text + &screen.shown(&ratio_of_rounds(self.rounds))
    }
}
