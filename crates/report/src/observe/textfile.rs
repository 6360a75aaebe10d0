//! What a fleet wants of an observed program, as metrics: how much of its time is in wide
//! functions, and what they cost the code around them.

use std::collections::BTreeMap;
use std::path::Path;

use super::Report;
use crate::textfile::Textfile;

/// The observations as metrics; `time` is the start of the run (RFC 3339).
pub(super) fn render(report: &Report, time: &str) -> String {
    let mut file = Textfile::default();
    let program = report.command.first().map(|command| {
        let name = Path::new(command).file_name();
        name.map_or_else(|| command.clone(), |name| name.to_string_lossy().into_owned())
    });
    let program = [("program", program.unwrap_or_default())];
    let mut one = |name: &str, help: &str, value: Option<f64>| {
        file.one(&format!("dimmer_observe_{name}"), help, &program, value);
    };
    let started = crate::machine::unix_seconds(time);
    one("timestamp_seconds", "When the observed run started, since 1970", started);
    one("duration_seconds", "How long the program was observed", Some(report.lasted_s));
    one("cpu_seconds", "CPU time of the program and its children", Some(report.cpu_s));
    let overhead = "The part of that CPU time that observing took within the program";
    one("overhead_ratio", overhead, report.hooks_share);
    let lost = report.lost.map(|lost| lost.share);
    let help = "The part of that CPU time that the code around wide functions loses, by the model";
    one("lost_ratio", help, lost);
    let clock = report.clock.map(|clock| clock.ratio);
    one("clock_ratio", "The clock right after calls over that before calls after a pause", clock);
    let mut calls: BTreeMap<&str, f64> = BTreeMap::new();
    let mut shares: BTreeMap<&str, f64> = BTreeMap::new();
    for function in &report.functions {
        let class = function.class.as_deref().unwrap_or("unknown");
        *calls.entry(class).or_default() += function.calls as f64;
        if let Some(share) = function.time_share {
            *shares.entry(class).or_default() += share;
        }
    }
    let [program] = program;
    let of_classes = |found: BTreeMap<&str, f64>| {
        let labels = |class: &str| vec![program.clone(), ("class", class.to_owned())];
        found.into_iter().map(|(class, value)| (labels(class), value)).collect::<Vec<_>>()
    };
    let calls = of_classes(calls);
    file.gauge("dimmer_observe_calls", "Calls of functions with such code in that time", calls);
    let help = "The part of that CPU time in calls of functions with such code";
    file.gauge("dimmer_observe_time_ratio", help, of_classes(shares));
    file.into_text()
}
