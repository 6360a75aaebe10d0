//! `dimmer bench dev hooked-moves`: the time to run a hooked call of a leaf function on another
//! core, beside moving the call with its thread. `docs/bench-json.md` describes the keys.

use dimmer_host::root::format_cpu_list;
use dimmer_probe::stats::Samples;
use dimmer_processor::units::CpuId;
use serde::Serialize;

use super::line;
use crate::estimate::Measured;

/// The document `dimmer/bench-hooked-moves/1`.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    cpus: String,
    calls: usize,
    /// A call of an empty function, handed to a worker while its thread waits.
    delegated_ns: Option<Measured>,
    /// The same call, moved with its thread.
    migrated_ns: Option<Measured>,
}

impl Report {
    /// `cpus`: where the calls moved to; `calls`: how many of each kind; then how long a call took
    /// (ns) that was delegated, and one that migrated.
    pub fn new(cpus: &[CpuId], calls: usize, delegated: &Samples, migrated: &Samples) -> Self {
        let measured = |samples: &Samples| samples.estimate().map(Measured::new);
        Self {
            schema: "dimmer/bench-hooked-moves/1",
            cpus: format_cpu_list(cpus),
            calls,
            delegated_ns: measured(delegated),
            migrated_ns: measured(migrated),
        }
    }

    /// The results as text.
    pub fn text(&self) -> String {
        [
            line("a hooked call, delegated: its registers go", self.delegated_ns, 0),
            line("a hooked call, migrated: its thread goes", self.migrated_ns, 0),
        ]
        .concat()
    }
}
