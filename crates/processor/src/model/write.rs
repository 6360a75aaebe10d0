//! Writes a model as TOML that [`Model::parse`] reads back unchanged.

use std::fmt::Write as _;

use super::{Domain, Level, Model, Path, Rule, Sourced, Upper};
use crate::text::quoted;
use crate::units::LicenseLevel;

impl Model {
    /// The model as a file, with the values that it has, in the order of `docs/model.md`.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut out =
            Writer(String::from("# A processor model; docs/model.md describes the format.\n\n"));
        out.text("schema", super::keys::SCHEMA);
        out.text("name", &self.identity.name);
        out.text("vendor", &self.identity.vendor);
        out.text("microarchitecture", &self.identity.microarchitecture);
        if let Some(note) = &self.identity.note {
            out.text("note", note);
        }
        let shape = &self.shape;
        out.section("[topology]", |out| {
            out.sourced("packages", shape.packages.as_ref());
            out.sourced("cores", shape.cores.as_ref());
            out.sourced("threads_per_core", shape.threads_per_core.as_ref());
            out.sourced("l2_kib", shape.l2_kib.as_ref());
            out.sourced("l3_kib", shape.l3_kib.as_ref());
        });
        for cluster in &self.clusters {
            out.section("[[cluster]]", |out| {
                out.text("name", &cluster.name);
                out.sourced("cores", Some(&cluster.cores));
                out.sourced("max_mhz", cluster.max_mhz.as_ref());
                out.sourced("capacity_ratio", cluster.capacity_ratio.as_ref());
                out.sourced("power_ratio", cluster.power_ratio.as_ref());
            });
        }
        let clock = &self.clock;
        out.section("[clock]", |out| {
            out.sourced_as("domain", clock.domain.as_ref(), |domain: &Domain| quoted(domain));
            out.sourced("tsc_mhz", clock.tsc_mhz.as_ref());
            out.sourced("min_mhz", clock.min_mhz.as_ref());
            out.sourced("base_mhz", clock.base_mhz.as_ref());
            out.sourced("max_mhz", clock.max_mhz.as_ref());
            out.sourced("tdp_mw", clock.tdp_mw.as_ref());
            out.sourced("raise_period_ns", clock.raise_period_ns.as_ref());
            out.sourced("divisor_step", clock.divisor_step.as_ref());
            out.sourced("divisor_most", clock.divisor_most.as_ref());
        });
        for level in &self.levels {
            out.section("[[level]]", |out| out.level(level));
        }
        for rule in &self.rules {
            out.section("[[rule]]", |out| out.rule(rule, &self.levels));
        }
        self.write_changes(&mut out);
        self.write_points(&mut out);
        out.0
    }

    fn write_changes(&self, out: &mut Writer) {
        let request = &self.request;
        out.section("[request]", |out| {
            out.sourced("throttle_factor", request.throttle_factor.as_ref());
            out.sourced("chained_throttle_factor", request.chained_throttle_factor.as_ref());
            out.sourced("throttled_ns", request.throttled_ns.as_ref());
            out.sourced("voltage_ns", request.voltage_ns.as_ref());
            out.sourced("stall_ns", request.stall_ns.as_ref());
            out.sourced("slot_ns", request.slot_ns.as_ref());
            out.sourced("missed_share", request.missed_share.as_ref());
            out.sourced_as("path", request.path.as_ref(), |path| match path {
                Path::InTurn => quoted(&"in-turn"),
                Path::Directly => quoted(&"directly"),
            });
        });
        let release = &self.release;
        out.section("[release]", |out| {
            out.sourced("hold_ns", release.hold_ns.as_ref());
            out.sourced("extended_share", release.extended_share.as_ref());
            out.sourced("extended_share_beside", release.extended_share_beside.as_ref());
            out.sourced("extended_ns", release.extended_ns.as_ref());
            out.sourced_as("extended_level", release.extended_level.as_ref(), |level| {
                name_of(*level, &self.levels)
            });
            out.sourced_as("extended_class", release.extended_class.as_ref(), |class| {
                quoted(&class.name())
            });
            out.sourced("stall_ns", release.stall_ns.as_ref());
            out.sourced("recurrence_ns", release.recurrence_ns.as_ref());
            out.sourced("recurrence_after_ns", release.recurrence_after_ns.as_ref());
            out.sourced("recurrence_slowdown", release.recurrence_slowdown.as_ref());
            out.sourced("episode_ns", release.episode_ns.as_ref());
        });
        for long in &self.long_recurrences {
            out.section("[[long_recurrence]]", |out| {
                out.sourced_as("level", Some(&long.level), |level| name_of(*level, &self.levels));
                out.sourced("burst_ns", Some(&long.burst_ns));
                out.sourced("gap_ns", Some(&long.gap_ns));
                out.sourced("slowdown", Some(&long.slowdown));
            });
        }
    }

    fn write_points(&self, out: &mut Writer) {
        for state in &self.pstates {
            out.section("[[pstate]]", |out| {
                out.text("name", &state.name);
                out.sourced("mhz", Some(&state.mhz));
                out.sourced("mv", state.mv.as_ref());
                out.sourced("needs_idle", state.needs_idle.as_ref());
            });
        }
        let supply = &self.supply;
        out.section("[supply]", |out| {
            out.sourced_as("domain", supply.domain.as_ref(), |domain: &Domain| quoted(domain));
            out.sourced("awake_mw", supply.awake_mw.as_ref());
            out.sourced("core_mw", supply.core_mw.as_ref());
            out.sourced("stalled_ratio", supply.stalled_ratio.as_ref());
            out.sourced("waiting_mw", supply.waiting_mw.as_ref());
        });
        for power in &self.power {
            out.section("[[power]]", |out| {
                out.text("load", &power.load);
                out.text("pstate", &power.pstate);
                out.plain("busy_cores", power.busy_cores);
                out.plain("slow_cores", power.slow.as_ref().map(|(cores, _)| *cores));
                if let Some((_, pstate)) = &power.slow {
                    out.text("slow_pstate", pstate);
                }
                out.sourced("package_mw", Some(&power.package_mw));
            });
        }
        for transition in &self.transitions {
            out.section("[[transition]]", |out| {
                out.text("from", &transition.from);
                out.text("to", &transition.to);
                out.sourced("request_ns", transition.request_ns.as_ref());
                out.sourced("total_ns", transition.total_ns.as_ref());
            });
        }
        for state in &self.cstates {
            out.section("[[cstate]]", |out| {
                out.text("name", &state.name);
                out.sourced("exit_ns", Some(&state.exit_ns));
                out.sourced("residency_ns", state.residency_ns.as_ref());
            });
        }
        for one in &self.moves {
            out.section("[[move]]", |out| {
                out.text("kind", &one.kind);
                out.sourced("ns", Some(&one.ns));
            });
        }
    }
}

/// TOML under construction. Writing to a string cannot fail.
struct Writer(String);

impl Writer {
    /// Writes a table; omits it if it is empty.
    fn section(&mut self, header: &str, write: impl FnOnce(&mut Self)) {
        let before = self.0.len();
        let _ = writeln!(self.0, "\n{header}");
        let begin = self.0.len();
        write(self);
        if self.0.len() == begin {
            self.0.truncate(before);
        }
    }

    fn text(&mut self, key: &str, text: &str) {
        let _ = writeln!(self.0, "{key} = {}", quoted(&text));
    }

    fn plain(&mut self, key: &str, number: Option<u32>) {
        if let Some(number) = number {
            let _ = writeln!(self.0, "{key} = {number}");
        }
    }

    fn sourced<T: std::fmt::Debug>(&mut self, key: &str, value: Option<&Sourced<T>>) {
        // `Debug` keeps the decimal point of a float, so 1.0 stays a float.
        self.sourced_as(key, value, |value| format!("{value:?}"));
    }

    fn sourced_as<T>(
        &mut self,
        key: &str,
        sourced: Option<&Sourced<T>>,
        show: impl Fn(&T) -> String,
    ) {
        let Some(sourced) = sourced else { return };
        let mut text = format!("value = {}", show(&sourced.value));
        if let Some((low, high)) = &sourced.ci95 {
            let _ = write!(text, ", ci95 = [{}, {}]", show(low), show(high));
        }
        if sourced.guess {
            text.push_str(", guess = true");
        }
        let _ = writeln!(self.0, "{key} = {{ {text}, source = {} }}", quoted(&sourced.source));
    }

    fn level(&mut self, level: &Level) {
        self.text("name", &level.name);
        self.sourced("clock_ratio", level.clock_ratio.as_ref());
        self.sourced("issue_ratio", level.issue_ratio.as_ref());
        self.sourced("reduced_mhz", level.reduced_mhz.as_ref());
        for bin in &level.bins {
            self.section("[[level.bins]]", |out| {
                let _ = writeln!(out.0, "from_cores = {}\ncores = {}", bin.from_cores, bin.cores);
                out.sourced("mhz", Some(&bin.mhz));
            });
        }
    }

    fn rule(&mut self, rule: &Rule, levels: &[Level]) {
        self.text("class", rule.class.name());
        if rule.upper == Upper::Dirty {
            self.text("upper", "dirty");
        }
        self.sourced_as("level", Some(&rule.level), |level| name_of(*level, levels));
        self.sourced("instructions", rule.instructions.as_ref());
        self.sourced("instructions_log_sd", rule.instructions_log_sd.as_ref());
        self.sourced("density_per_cycle", rule.density_per_cycle.as_ref());
        self.sourced("grant_ns", rule.grant_ns.as_ref());
        self.sourced("grant_log_sd", rule.grant_log_sd.as_ref());
    }
}

/// A level's name as TOML writes it.
fn name_of(level: LicenseLevel, levels: &[Level]) -> String {
    let index = usize::try_from(level.index()).ok();
    let level = index.and_then(|index| levels.get(index));
    quoted(&level.map_or("", |level| &level.name))
}
