//! The clock of a core, by its license level and the number of active cores.

use dimmer_processor::model::{Assumed, Level, Missing, Model};
use dimmer_processor::units::LicenseLevel;

use crate::index;

/// Clocks of a processor (GHz), by license level and number of active cores.
#[derive(Clone, Debug, PartialEq)]
pub struct Clocks {
    /// `ghz[level][active - 1]`.
    ghz: Vec<Vec<f64>>,
    /// Instructions issued per cycle relative to L0, by level.
    issue: Vec<f64>,
    /// Clocks that the model does not give for some number of cores: the index of the level, and
    /// what is used in their place.
    assumed: Vec<(usize, Assumed)>,
}

impl Clocks {
    /// The clocks of `model` with up to `cores` active cores.
    ///
    /// If the model does not give a clock for a number of cores, the clock of the next larger
    /// number that it gives is used: what is granted to more cores is granted to fewer.
    /// [`Clocks::assumed`] lists these. If the model gives only the ratio of a level to L0, the
    /// clock is that part of L0's.
    ///
    /// # Errors
    /// If the model gives neither a clock of a level for that many cores or more, nor its ratio.
    pub fn new(model: &Model, cores: u32) -> Result<Self, Missing> {
        let needed_for = "the clock of simulated cores";
        let known = |level: &Level, active: u32| {
            let bins = level.bins.iter().filter(|bin| bin.cores >= active);
            bins.map(|bin| bin.mhz.value as f64 / 1000.0).next()
        };
        let first = model.levels.first();
        let any = [
            ("max_mhz", &model.clock.max_mhz),
            ("base_mhz", &model.clock.base_mhz),
            ("tsc_mhz", &model.clock.tsc_mhz),
        ];
        let nominal = any.iter().find_map(|(key, mhz)| Some((*key, mhz.as_ref()?.value)));
        let nominal_ghz = nominal.map(|(_, mhz)| mhz as f64 / 1000.0);
        let mut assumed = Vec::new();
        let mut ghz = Vec::new();
        for (index, level) in model.levels.iter().enumerate() {
            let mut by_cores = Vec::new();
            for active in 1..=cores {
                let ratio = level.clock_ratio.as_ref().map(|ratio| ratio.value);
                let ratio = ratio.or((index == 0).then_some(1.0));
                let unrestricted = || first.and_then(|first| known(first, active)).or(nominal_ghz);
                let clock = known(level, active).or_else(|| Some(ratio? * unrestricted()?));
                by_cores.push(clock.ok_or_else(|| Missing {
                    model: model.identity.name.clone(),
                    key: if index == 0 { "clock.max_mhz" } else { "level.bins" },
                    needed_for,
                })?);
            }
            ghz.push(by_cores);
            assumed.extend(assumed_bins(level, cores).map(|assumed| (index, assumed)));
            if let (0, true, Some((key, mhz))) = (index, level.bins.is_empty(), nominal) {
                let value = format!("{mhz} MHz (clock.{key}) with any number of cores");
                assumed.push((index, Assumed::new(format!("level.bins ({})", level.name), value)));
            }
        }
        let issue = model.levels.iter().map(|level| level.issue_ratio.as_ref());
        let issue = issue.map(|ratio| ratio.map_or(1.0, |ratio| ratio.value)).collect();
        Ok(Self { ghz, issue, assumed })
    }

    /// What is used in the place of clocks that the model does not give, for levels up to
    /// `highest`.
    #[must_use]
    pub fn assumed(&self, highest: LicenseLevel) -> Vec<Assumed> {
        let used = self.assumed.iter().filter(|(level, _)| *level <= index(highest.index()));
        used.map(|(_, assumed)| assumed.clone()).collect()
    }

    /// The same clocks where the firmware reduces the levels as far as it can, so that governors in
    /// software decide (paper 000 §4.1.2): the model's values, scaled in proportion to L0's clock
    /// when more cores are active. Levels without such a value run one step of 100 MHz below L0.
    #[must_use]
    pub fn reduced(&self, model: &Model) -> Self {
        const STEP_GHZ: f64 = 0.1;
        let mut reduced = self.clone();
        if let [first, others @ ..] = reduced.ghz.as_mut_slice() {
            for (level, by_cores) in model.levels.iter().skip(1).zip(others) {
                let alone = level.reduced_mhz.as_ref().map(|mhz| mhz.value as f64 / 1000.0);
                for (l0, clock) in first.iter().zip(by_cores) {
                    *clock = alone.map_or(l0 - STEP_GHZ, |alone| alone * l0 / first[0]);
                }
            }
        }
        reduced.issue.fill(1.0);
        reduced
    }

    /// The clock (GHz) at a level with N active cores. 0 cores count as 1. Numbers beyond the last
    /// known level or core count use the last one.
    #[must_use]
    pub fn ghz(&self, level: LicenseLevel, active: u32) -> f64 {
        let level = index(level.index()).min(self.ghz.len() - 1);
        let by_cores = &self.ghz[level];
        by_cores[index(active.max(1) - 1).min(by_cores.len() - 1)]
    }

    /// Instructions issued per cycle relative to L0.
    #[must_use]
    pub fn issue(&self, level: LicenseLevel) -> f64 {
        self.issue.get(index(level.index())).copied().unwrap_or(1.0)
    }

    /// The number of levels.
    #[must_use]
    pub fn levels(&self) -> usize {
        self.ghz.len()
    }

    /// Whether any level's clock differs between these numbers of active cores.
    pub(crate) fn differ(&self, one: u32, other: u32) -> bool {
        let levels = (0..self.ghz.len()).filter_map(|level| u32::try_from(level).ok());
        levels.map(LicenseLevel::new).any(|level| self.ghz(level, one) != self.ghz(level, other))
    }
}

/// The numbers of active cores, up to `cores`, that no bin of the level covers, and the clock of
/// the next bin, which is used for them.
fn assumed_bins(level: &Level, cores: u32) -> impl Iterator<Item = Assumed> {
    let mut covered = 0;
    level.bins.iter().filter_map(move |bin| {
        let (first, last) = (covered + 1, bin.from_cores.saturating_sub(1).min(cores));
        covered = bin.cores;
        let span = if first == last { first.to_string() } else { format!("{first} to {last}") };
        let key = format!("level.bins ({}, {span} cores)", level.name);
        let value = format!("{} MHz, as with {}", bin.mhz.value, bin.from_cores);
        (first <= last).then(|| Assumed::new(key, value))
    })
}
