//! `dimmer bench dev hook`: the time of a hooked call, beside the same call without a hook.
//! `docs/bench-json.md` describes the keys.

use dimmer_hook::Round;
use dimmer_probe::stats::Samples;
use serde::Serialize;

use super::line;
use crate::estimate::Measured;

/// The document `dimmer/bench-hook/1`.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    rounds: usize,
    calls: u32,
    /// A call without a hook.
    plain_ns: Option<Measured>,
    /// Extra time of a call hooked as `dimmer observe` does it.
    call_ns: Option<Measured>,
    /// Extra time if no calls are timed.
    counted_ns: Option<Measured>,
    /// Extra time if all calls are timed.
    timed_ns: Option<Measured>,
}

impl Report {
    /// `calls`: the calls of each kind in a round.
    pub fn new(rounds: &[Round], calls: u32) -> Self {
        let measured = |of: fn(&Round) -> f64| {
            let samples: Samples = rounds.iter().map(of).collect();
            samples.estimate().map(Measured::new)
        };
        Self {
            schema: "dimmer/bench-hook/1",
            rounds: rounds.len(),
            calls,
            plain_ns: measured(|round| round.plain_ns),
            call_ns: measured(|round| round.observed_ns - round.plain_ns),
            counted_ns: measured(|round| round.counted_ns - round.plain_ns),
            timed_ns: measured(|round| round.timed_ns - round.plain_ns),
        }
    }

    /// The results as text.
    pub fn text(&self) -> String {
        [
            line("a call without a hook", self.plain_ns, 2),
            line("a hooked call more, as observed", self.call_ns, 2),
            line("a hooked call more, if it is only counted", self.counted_ns, 2),
            line("a hooked call more, if it is timed", self.timed_ns, 2),
        ]
        .concat()
    }
}
