//! `dimmer bench phases`: what marks and migrations at them cost, and from which length of phases
//! on they gain. `docs/bench-json.md` describes the keys.

use dimmer_bench::phases::{LENGTHS, Phases, Round};
use dimmer_probe::stats::Samples;
use serde::Serialize;

use super::line;
use crate::estimate::Measured;
use crate::number;

/// The document `dimmer/bench-phases/1`.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    fast_cpu: u32,
    slow_cpu: u32,
    rounds: u32,
    measuring_ns: Option<Measured>,
    staying_ns: Option<Measured>,
    line_ns: Option<Measured>,
    migration_ns: Option<Measured>,
    migration_ratio_to_line: Option<Measured>,
    lengths: Vec<LengthJson>,
}

/// Phases of one length.
#[derive(Debug, Serialize)]
struct LengthJson {
    phase_us: f64,
    /// Time with migrations, divided by that without.
    ratio_to_staying: Option<Measured>,
}

impl Report {
    /// `asked`: the number of rounds that were asked for.
    pub fn new(phases: &Phases, asked: u32) -> Self {
        let measured = |of: &dyn Fn(&Round) -> f64| {
            phases.rounds.iter().map(of).collect::<Samples>().estimate().map(Measured::new)
        };
        let lengths = LENGTHS.iter().enumerate().map(|(at, length)| LengthJson {
            phase_us: length.as_secs_f64() * 1e6,
            ratio_to_staying: measured(&|round| round.ratios[at]),
        });
        Self {
            schema: "dimmer/bench-phases/1",
            fast_cpu: phases.fast.index(),
            slow_cpu: phases.slow.index(),
            rounds: asked,
            measuring_ns: measured(&|round| round.measuring_ns),
            staying_ns: measured(&|round| round.staying_ns),
            line_ns: measured(&|round| round.line_ns),
            migration_ns: measured(&|round| round.trip_ns),
            migration_ratio_to_line: measured(&|round| round.trip_ns / round.line_ns),
            lengths: lengths.collect(),
        }
    }

    /// The results as text.
    pub fn text(&self) -> String {
        let mut text = format!(
            "Fast: CPU {}, slow: CPU {}, {} rounds.\n\n",
            self.fast_cpu, self.slow_cpu, self.rounds
        );
        text += &line("a mark that measures calls and time", self.measuring_ns, 1);
        text += &line("a mark at which a thread that may migrate stays", self.staying_ns, 1);
        text += &line("a cache line to the slow CPU and back", self.line_ns, 0);
        text += &line("a thread to the slow CPU and back", self.migration_ns, 0);
        if let Some(Measured { median, ci95: (low, high) }) = self.migration_ratio_to_line {
            text += &format!(
                "{:<52} {median:>7.2}     [{low:.2}, {high:.2}]\n",
                "the same, in round trips of a cache line"
            );
        }
        text += "\nPhases that compute and phases that load in turn, the latter on the slow CPU,\n\
                 against the same without migrations:\n";
        for length in &self.lengths {
            let Some(Measured { median, ci95: (low, high) }) = length.ratio_to_staying else {
                continue;
            };
            let [median, low, high] =
                [median, low, high].map(|ratio| number::signed((ratio - 1.0) * 100.0, 1));
            text += &format!(
                "  of {:>5} µs each  {median:>6} % time  [{low} %, {high} %]\n",
                number::grouped(length.phase_us, 0)
            );
        }
        text
    }
}
