//! Checks across the values of a model, which find impossible processors.

use std::ops::Range;

use super::read::Reader;
use super::{Clock, Domain, Level, Model, Power, Sourced};

impl Reader<'_> {
    /// Checks that the lowest, base and highest clocks are in this order.
    pub(super) fn check_clock(&mut self, clock: &Clock, at: &Range<usize>) {
        let of = |value: &Option<Sourced<u64>>| value.as_ref().map(|sourced| sourced.value);
        let order = [
            ("min_mhz", of(&clock.min_mhz)),
            ("base_mhz", of(&clock.base_mhz)),
            ("max_mhz", of(&clock.max_mhz)),
        ];
        let known: Vec<(&str, u64)> =
            order.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        for pair in known.windows(2) {
            let ((low, low_mhz), (high, high_mhz)) = (pair[0], pair[1]);
            if low_mhz > high_mhz {
                let message = format!("`{low}` ({low_mhz}) is above `{high}` ({high_mhz})");
                self.problem(at, message);
            }
        }
    }

    /// Checks that a clock shared by a cluster comes with clusters.
    pub(super) fn check_domain(&mut self, model: &Model, at: &Range<usize>) {
        let domain = model.clock.domain.as_ref().map(|domain| domain.value);
        if domain == Some(Domain::Cluster) && model.clusters.is_empty() {
            self.problem(at, "`domain` is \"cluster\", but there is no `[[cluster]]`");
        }
    }

    /// Checks that no more cores are active than exist.
    pub(super) fn check_cores(&mut self, model: &Model) {
        let Some(cores) = model.shape.cores.as_ref().map(|cores| cores.value) else { return };
        let places = self.level_places.clone();
        for (level, at) in model.levels.iter().zip(&places) {
            if let Some(bin) = level.bins.iter().find(|bin| bin.cores > cores) {
                let message = format!(
                    "level `{}`: {} active cores, but `topology.cores` is {cores}",
                    level.name, bin.cores
                );
                self.problem(at, message);
            }
        }
    }

    /// Checks that bins fall with active cores and with the level, and ratios fall with the level.
    pub(super) fn check_levels(&mut self, levels: &[Level]) {
        let places = self.level_places.clone();
        for (level, at) in levels.iter().zip(&places) {
            for pair in level.bins.windows(2) {
                if pair[1].mhz.value > pair[0].mhz.value {
                    let message = format!(
                        "level `{}`: {} MHz with {} cores is more than {} MHz with {}",
                        level.name,
                        pair[1].mhz.value,
                        pair[1].cores,
                        pair[0].mhz.value,
                        pair[0].cores
                    );
                    self.problem(at, message);
                }
            }
        }
        for (index, (higher, at)) in levels.iter().zip(&places).enumerate() {
            for lower in &levels[..index] {
                for bin in &higher.bins {
                    // If the lower level's clock is unknown for this many cores, it is at most that
                    // of its fastest bin for fewer cores.
                    let fewer = lower.bins.iter().filter(|other| other.from_cores <= bin.cores);
                    let fastest = fewer.map(|other| other.mhz.value).max();
                    let Some(limit) = lower.mhz(bin.cores).or(fastest) else { continue };
                    if bin.mhz.value > limit {
                        let message = format!(
                            "level `{}` has {} MHz with {} cores, more than `{}` with {limit}: \
                             levels come in order of falling clock",
                            higher.name, bin.mhz.value, bin.cores, lower.name
                        );
                        self.problem(at, message);
                    }
                }
            }
        }
        for (pair, at) in levels.windows(2).zip(places.iter().skip(1)) {
            let (lower, higher) = (&pair[0], &pair[1]);
            let ratio = |level: &Level| level.clock_ratio.as_ref().map_or(1.0, |r| r.value);
            if higher.clock_ratio.is_some() && ratio(higher) > ratio(lower) {
                let message = format!(
                    "level `{}` has a higher `clock_ratio` than `{}`",
                    higher.name, lower.name
                );
                self.problem(at, message);
            }
        }
    }

    /// Checks that some rule requests each level except the first.
    pub(super) fn check_rules(&mut self, model: &Model) {
        let asked = |index: usize| {
            model.rules.iter().any(|rule| usize::try_from(rule.level.value.index()) == Ok(index))
        };
        for (index, level) in model.levels.iter().enumerate().skip(1) {
            if !asked(index) {
                let message = format!(
                    "no `[[rule]]` asks for level `{}`: nothing would reach it",
                    level.name
                );
                let at = self.level_places.get(index).cloned().unwrap_or_default();
                self.problem(&at, message);
            }
        }
    }

    /// Checks that a load fits the package and the earlier loads: no more cores than exist, no slow
    /// core that is faster than the others, no duplicate, and more power if more cores execute.
    pub(super) fn check_power(&mut self, model: &Model, power: &Power, at: &Range<usize>) {
        let Some(busy) = power.busy_cores else { return };
        let slow = power.slow.as_ref().map_or(0, |(cores, _)| *cores);
        if let Some(cores) = model.shape.cores.as_ref().map(|cores| cores.value)
            && busy.saturating_add(slow) > cores
        {
            let message = format!("{busy} + {slow} cores execute, but `topology.cores` is {cores}");
            self.problem(at, message);
        }
        let place = |name: &str| model.pstates.iter().position(|state| state.name == name);
        if let Some((_, pstate)) = &power.slow
            && place(pstate) < place(&power.pstate)
        {
            let message = format!("`slow_pstate` ({pstate}) is faster than {}", power.pstate);
            self.problem(at, message);
        }
        for before in model.power.iter().filter(|before| before.pstate == power.pstate) {
            let Some(others) = before.busy_cores else { continue };
            let [mw, others_mw] = [power, before].map(|power| power.package_mw.value);
            if others == busy && before.slow == power.slow {
                let message = format!("{busy} `busy_cores` at {} stand twice", power.pstate);
                self.problem(at, message);
            } else if before.slow.is_none()
                && power.slow.is_none()
                && (others < busy) != (others_mw < mw)
            {
                let message = format!(
                    "{mw} mW with {busy} `busy_cores` at {}, but {others_mw} mW with {others}",
                    power.pstate
                );
                self.problem(at, message);
            }
        }
    }
}
