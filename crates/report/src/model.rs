//! A processor model as text.

use std::fmt::Write as _;

use dimmer_processor::model::{Model, Sourced, Upper};
use dimmer_processor::units::LicenseLevel;

/// The model as text: levels, rules, constants, each with its source.
pub fn summary(model: &Model) -> String {
    let mut out = String::new();
    let identity = &model.identity;
    // Writing to a string cannot fail, here and below.
    let _ =
        writeln!(out, "{} ({}, {})", identity.name, identity.vendor, identity.microarchitecture);
    if let Some(note) = &identity.note {
        let _ = writeln!(out, "{note}");
    }
    let mut lines = Lines(out);
    let shape = &model.shape;
    lines.head("Topology");
    lines.value("packages", shape.packages.as_ref(), "");
    lines.value("cores of a package", shape.cores.as_ref(), "");
    lines.value("threads of a core", shape.threads_per_core.as_ref(), "");
    lines.value("second-level cache", shape.l2_kib.as_ref(), " KiB");
    lines.value("third-level cache", shape.l3_kib.as_ref(), " KiB");
    for cluster in &model.clusters {
        lines.value(&format!("cores of cluster {}", cluster.name), Some(&cluster.cores), "");
        lines.value(
            &format!("clock of cluster {}", cluster.name),
            cluster.max_mhz.as_ref(),
            " MHz",
        );
    }
    let clock = &model.clock;
    lines.head("Clock");
    lines.value("clock shared by a", clock.domain.as_ref(), "");
    lines.value("time-stamp counter", clock.tsc_mhz.as_ref(), " MHz");
    lines.value("lowest", clock.min_mhz.as_ref(), " MHz");
    lines.value("guaranteed", clock.base_mhz.as_ref(), " MHz");
    lines.value("highest", clock.max_mhz.as_ref(), " MHz");
    lines.value("rated power", clock.tdp_mw.as_ref(), " mW");
    lines.value("raised by software every", clock.raise_period_ns.as_ref(), " ns");
    lines.head("License levels");
    for level in &model.levels {
        for bin in &level.bins {
            let cores = format!("{} up to {} cores", level.name, bin.cores);
            lines.value(&cores, Some(&bin.mhz), " MHz");
        }
        lines.value(&format!("{} clock ratio", level.name), level.clock_ratio.as_ref(), "");
        lines.value(&format!("{} issue ratio", level.name), level.issue_ratio.as_ref(), "");
        lines.value(&format!("{} reduced", level.name), level.reduced_mhz.as_ref(), " MHz");
    }
    for rule in &model.rules {
        let dirty = if rule.upper == Upper::Dirty { " with dirty upper halves" } else { "" };
        let level = level_name(model, &rule.level);
        lines.value(&format!("{}{dirty} asks for", rule.class), Some(&level), "");
        lines.value("  after", rule.instructions.as_ref(), " instructions");
        lines.value("  at a density above", rule.density_per_cycle.as_ref(), " a cycle");
        lines.value("  granted after", rule.grant_ns.as_ref(), " ns");
    }
    let (request, release) = (&model.request, &model.release);
    lines.head("Changes of level");
    lines.value("throttled to", request.throttle_factor.as_ref(), " of the throughput");
    let chained = request.chained_throttle_factor.as_ref();
    lines.value("throttled to, if instructions wait for each other", chained, " of the throughput");
    lines.value("throttled for", request.throttled_ns.as_ref(), " ns");
    lines.value("stall at the change", request.stall_ns.as_ref(), " ns");
    lines.value("wishes served every", request.slot_ns.as_ref(), " ns");
    lines.value("held for", release.hold_ns.as_ref(), " ns");
    lines.value("held longer in a share of", release.extended_share.as_ref(), "");
    let beside = release.extended_share_beside.as_ref();
    lines.value("  beside a core at a level", beside, "");
    lines.value("then at most for", release.extended_ns.as_ref(), " ns");
    lines.value("stall at the release", release.stall_ns.as_ref(), " ns");
    lines.value("kept while gaps are below", release.recurrence_ns.as_ref(), " ns");
    lines.value("  after recurring for", release.recurrence_after_ns.as_ref(), " ns");
    lines.value("  slowing code by a share of", release.recurrence_slowdown.as_ref(), "");
    lines.value("an isolated burst costs", release.episode_ns.as_ref(), " ns on average");
    for long in &model.long_recurrences {
        lines.value("bursts are long from", Some(&long.burst_ns), " ns on");
        lines.value("  at this level or above", Some(&level_name(model, &long.level)), "");
        lines.value("  slow code while gaps are below", Some(&long.gap_ns), " ns");
        lines.value("  by a share of", Some(&long.slowdown), "");
    }
    lines.head("Operating points");
    for state in &model.pstates {
        lines.value(&state.name, Some(&state.mhz), " MHz");
        lines.value(&format!("{} voltage", state.name), state.mv.as_ref(), " mV");
    }
    for power in &model.power {
        let what = format!("{} at {}", power.load, power.pstate);
        lines.value(&what, Some(&power.package_mw), " mW");
    }
    for one in &model.transitions {
        let what = format!("{} to {}", one.from, one.to);
        lines.value(&format!("{what}, request"), one.request_ns.as_ref(), " ns");
        lines.value(&format!("{what}, in all"), one.total_ns.as_ref(), " ns");
    }
    lines.head("Idle states and moving");
    for state in &model.cstates {
        lines.value(&format!("{} exit", state.name), Some(&state.exit_ns), " ns");
        lines.value(&format!("{} pays from", state.name), state.residency_ns.as_ref(), " ns");
    }
    for one in &model.moves {
        lines.value(&one.kind, Some(&one.ns), " ns");
    }
    lines.0
}

/// The name of a level, with the source of the value.
fn level_name<'a>(model: &'a Model, level: &Sourced<LicenseLevel>) -> Sourced<&'a str> {
    let index = usize::try_from(level.value.index()).unwrap_or(usize::MAX);
    Sourced {
        value: model.levels.get(index).map_or("", |level| &level.name),
        source: level.source.clone(),
        guess: level.guess,
        ci95: None,
    }
}

/// Lines of a summary: name, value with interval, source.
struct Lines(String);

impl Lines {
    fn head(&mut self, head: &str) {
        let _ = writeln!(self.0, "\n{head}");
    }

    fn value<T: std::fmt::Display>(&mut self, what: &str, value: Option<&Sourced<T>>, unit: &str) {
        let Some(sourced) = value else { return };
        let mut text = format!("{}{unit}", sourced.value);
        if let Some((low, high)) = &sourced.ci95 {
            let _ = write!(text, " [{low}, {high}]");
        }
        let guess = if sourced.guess { "guess: " } else { "" };
        let _ = writeln!(self.0, "  {what:<34} {text:<28} {guess}{}", sourced.source);
    }
}
