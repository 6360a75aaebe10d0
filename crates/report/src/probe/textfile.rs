//! What a fleet wants of a probe, as metrics: whether wide SIMD code costs anything on this host,
//! how much, and when that was measured. One series for each class of instructions, so that their
//! number does not grow with the kernels.

use std::collections::BTreeMap;

use dimmer_probe::mode::Mode;
use dimmer_probe::outcome::{Detail, Findings, Outcome};
use dimmer_processor::class::InstructionClass;

use super::verdict::{self, Effect};
use super::words::partial;
use crate::machine::MachineDescription;
use crate::textfile::Textfile;

/// All answers to the first question, each with a series.
const EFFECTS: [Effect; 4] = [Effect::Yes, Effect::No, Effect::Open, Effect::NotMeasured];

/// The findings as metrics.
pub(super) fn render(findings: &Findings, machine: &MachineDescription) -> String {
    let mut file = Textfile::default();
    let or_empty = |value: &Option<String>| value.clone().unwrap_or_default();
    let about = [
        ("brand", machine.brand.clone()),
        ("microarchitecture", machine.microarchitecture.clone()),
        ("microcode", or_empty(&machine.microcode)),
        ("hypervisor", or_empty(&machine.hypervisor)),
        ("kernel_release", or_empty(&machine.kernel)),
        ("version", machine.version.clone()),
    ];
    file.one("dimmer_probe_info", "The machine that was probed, and by what", &about, 1.0);
    file.one(
        "dimmer_probe_timestamp_seconds",
        "When the probe started, since 1970",
        &[],
        crate::machine::unix_seconds(&machine.time),
    );
    let verdict = verdict::of(findings);
    file.gauge(
        "dimmer_probe_effect",
        "Whether wide SIMD code slows this machine down: 1 for the answer that holds",
        EFFECTS.map(|effect| {
            let is_it = if effect == verdict.effect { 1.0 } else { 0.0 };
            (vec![("answer", effect.name().to_owned())], is_it)
        }),
    );
    file.one(
        "dimmer_probe_slowdown_ratio",
        "The largest slowdown of code between bursts or of the clock that was surely seen; 0: none",
        &[],
        verdict.worst_pct.unwrap_or(0.0) / 100.0,
    );
    let costs = by_class(findings, f64::max, |outcome| cost_ns(outcome).map(|ns| ns * 1e-9));
    file.gauge(
        "dimmer_probe_burst_cost_seconds",
        "What the costliest isolated burst costs the code after it, where a cost was found",
        costs,
    );
    let bounds = by_class(findings, f64::max, |outcome| {
        (outcome.mode == Mode::Episode).then_some(outcome.bound_ns * 1e-9)
    });
    file.gauge(
        "dimmer_probe_burst_cost_bound_seconds",
        "The most that an isolated burst may cost the code after it (95 %), also where none was found",
        bounds,
    );
    let clocks = by_class(findings, f64::min, clock_ratio);
    file.gauge(
        "dimmer_probe_clock_ratio",
        "The lowest clock in a long stretch of such code, as a part of the nominal clock",
        clocks,
    );
    file.gauge(
        "dimmer_probe_active_cpus_clock_ratio",
        "The settled clock with such code on this many CPUs, as a part of that of scalar code there",
        levels(findings),
    );
    file.into_text()
}

/// Labels and value of a series for each class for which an outcome has a value; of several values
/// the one that `worst` chooses.
fn by_class(
    findings: &Findings,
    worst: fn(f64, f64) -> f64,
    value: impl Fn(&Outcome) -> Option<f64>,
) -> Vec<(Vec<(&'static str, String)>, f64)> {
    let mut found: BTreeMap<InstructionClass, f64> = BTreeMap::new();
    for outcome in &findings.outcomes {
        if let Some(value) = value(outcome) {
            found.entry(outcome.class).and_modify(|own| *own = worst(*own, value)).or_insert(value);
        }
    }
    let labels = |class: InstructionClass| vec![("class", class.name().to_owned())];
    found.into_iter().map(|(class, value)| (labels(class), value)).collect()
}

/// What an isolated burst surely costs (ns); the mean over all where only some cost anything.
fn cost_ns(outcome: &Outcome) -> Option<f64> {
    let Detail::Episode(episode) = &outcome.detail else { return None };
    let is_sure = outcome.effect && episode.extra_ns.estimate.ci95.0 > 0.0;
    let mean = episode.mean_extra_ns.filter(|_| partial(episode.effect_share).is_some());
    let cost = mean.unwrap_or(episode.extra_ns.estimate).median;
    (outcome.mode == Mode::Episode && is_sure).then_some(cost)
}

/// The lowest clock of a long stretch: if there is no effect, the settled one.
fn clock_ratio(outcome: &Outcome) -> Option<f64> {
    let Detail::Downclock(downclock) = &outcome.detail else { return None };
    let lowest = if outcome.effect { verdict::lowest(downclock) } else { None };
    Some(lowest.map_or(downclock.clock_ratio.estimate.median, |(ratio, _)| ratio))
}

/// The lowest settled clock for each class and number of CPUs.
fn levels(findings: &Findings) -> Vec<(Vec<(&'static str, String)>, f64)> {
    let mut found: BTreeMap<(InstructionClass, usize), f64> = BTreeMap::new();
    for outcome in &findings.outcomes {
        if let Detail::Levels(levels) = &outcome.detail {
            let ratio = levels.clock_ratio.median;
            let known = found.entry((outcome.class, levels.active)).or_insert(ratio);
            *known = known.min(ratio);
        }
    }
    let labels = |(class, active): (InstructionClass, usize)| {
        vec![("class", class.name().to_owned()), ("cpus", active.to_string())]
    };
    found.into_iter().map(|(key, value)| (labels(key), value)).collect()
}
