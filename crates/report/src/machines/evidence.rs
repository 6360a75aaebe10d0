//! How a record was made, as `dimmer machines record` writes it; `docs/machines-json.md` describes
//! the document.

use dimmer_fleet::evidence::{Evidence, Ran};
use serde::Serialize;

/// The document `dimmer/evidence/1`.
#[derive(Debug, Serialize)]
struct EvidenceEntry<'a> {
    schema: &'static str,
    dimmer_version: &'a str,
    begun: &'a str,
    ended: &'a str,
    load_begin: [f64; 3],
    load_end: [f64; 3],
    cpus: u64,
    others_cpu_pct: f64,
    steal_pct: f64,
    interrupted: bool,
    commands: Vec<RanEntry<'a>>,
}

#[derive(Debug, Serialize)]
struct RanEntry<'a> {
    name: &'a str,
    command: &'a str,
    seconds: f64,
    is_done: bool,
    reason: Option<&'a str>,
}

/// The document of how a record was made.
///
/// # Errors
/// Never: all keys are texts.
pub fn evidence(evidence: &Evidence) -> Result<String, serde_json::Error> {
    let document = EvidenceEntry {
        schema: "dimmer/evidence/1",
        dimmer_version: &evidence.dimmer_version,
        begun: &evidence.begun,
        ended: &evidence.ended,
        load_begin: evidence.load_begin,
        load_end: evidence.load_end,
        cpus: evidence.cpus,
        others_cpu_pct: evidence.others_cpu_pct,
        steal_pct: evidence.steal_pct,
        interrupted: evidence.interrupted,
        commands: evidence.commands.iter().map(RanEntry::new).collect(),
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

impl<'a> RanEntry<'a> {
    fn new(ran: &'a Ran) -> Self {
        Self {
            name: &ran.name,
            command: &ran.command,
            seconds: ran.seconds,
            is_done: ran.is_done,
            reason: ran.reason.as_deref(),
        }
    }
}
