//! The server's knowledge of the machine: which cores may be dedicated, and what calls and
//! hand-overs cost.

use std::path::{Path, PathBuf};

use dimmer_host::cpuid::Cpuid;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_host::{affinity, models, topology};
use dimmer_policy::cost::{self, CallCost};
use dimmer_policy::dedicated;
use dimmer_policy::server::settings::Prices;
use dimmer_probe::handoff;
use dimmer_processor::model::{Missing, Model};
use dimmer_processor::units::{CpuId, LicenseLevel};

use crate::counters::Counted;
use dimmer_watch::settings::Settings;

/// Cores that may be dedicated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spare {
    /// Their hardware threads, in the order in which they are dedicated.
    pub cpus: Vec<CpuId>,
    /// For each core, the number of these hardware threads up to the core's last one.
    ends: Vec<usize>,
}

/// What was found out about the machine, once, at the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The number of cores that clients may use.
    pub cores: usize,
    /// The hardware threads that clients may use.
    pub all: Vec<CpuId>,
    /// The hardware threads that may be dedicated.
    pub spare: Spare,
    /// Why no core may be dedicated.
    pub no_core: Option<String>,
    /// The clock of L1, L2, ... relative to that of L0.
    pub clocks: Vec<f64>,
    /// The cost of calls and hand-overs.
    pub prices: Option<Prices>,
    /// The file of the processor model.
    pub model: Option<PathBuf>,
    /// Why costs are not known.
    pub no_prices: Option<String>,
    /// The events counted for each client.
    pub counted: Option<Counted>,
    /// Why nothing is counted.
    pub no_counters: Option<String>,
}

impl Found {
    /// Examines the machine. Takes up to 0.2 s, to measure hand-overs.
    #[must_use]
    pub fn new(root: &Root, settings: &Settings) -> Self {
        let all = affinity::allowed().unwrap_or_default();
        let mut found = Self { all, ..Self::default() };
        match cores(root, settings) {
            Ok((cores, spare)) => (found.cores, found.spare) = (cores, spare),
            Err(why) => found.no_core = Some(why),
        }
        match model(root, settings) {
            Ok((path, model)) => {
                found.model = Some(path);
                match costs(&model) {
                    Ok((clocks, calls)) => {
                        found.clocks = clocks;
                        let trip = handoff::round_trip(root).ok().flatten();
                        found.prices = trip.map(|trip| Prices { hand_over_ns: trip.median, calls });
                        if found.prices.is_none() {
                            found.no_prices = Some("there is no second CPU to hand work to".into());
                        }
                    }
                    Err(missing) => found.no_prices = Some(missing.to_string()),
                }
            }
            Err(why) => found.no_prices = Some(why),
        }
        match counted(root, settings) {
            Ok(counted) => found.counted = Some(counted),
            Err(why) => found.no_counters = Some(why),
        }
        found
    }

    /// The number of cores that may be dedicated.
    #[must_use]
    pub const fn most(&self) -> usize {
        self.spare.ends.len()
    }

    /// The number of hardware threads of the first `cores` cores.
    #[must_use]
    pub fn threads(&self, cores: usize) -> usize {
        let last = cores.min(self.most()).checked_sub(1);
        last.map_or(0, |last| self.spare.ends[last])
    }
}

/// The number of cores, and those that may be dedicated.
fn cores(root: &Root, settings: &Settings) -> Result<(usize, Spare), String> {
    let topology = topology::read(root).map_err(|error| error.to_string())?;
    let allowed = affinity::allowed().map_err(|error| error.to_string())?;
    let mut all: Vec<_> = topology
        .cpus
        .iter()
        .filter(|cpu| cpu.online && allowed.contains(&cpu.id))
        .map(|cpu| cpu.core)
        .collect();
    all.sort_unstable();
    all.dedup();
    let named = settings.named_cores();
    let from = named.as_deref().unwrap_or(&allowed);
    if let Some(stranger) = from.iter().find(|cpu| !allowed.contains(cpu)) {
        let allowed = dimmer_host::root::format_cpu_list(&allowed);
        return Err(format!("cpu {stranger} is not among those allowed: {allowed}"));
    }
    let mut spare = Spare::default();
    for wanted in 1..=settings.most_cores() {
        let picked = if named.is_some() {
            // All named hardware threads may be dedicated as long as another one is left.
            let kept = allowed.iter().find(|cpu| !from.contains(cpu)).copied();
            let from: Vec<CpuId> = from.iter().copied().chain(kept).collect();
            dedicated::pick(&topology, &from, kept.as_slice(), wanted)
        } else {
            dedicated::pick(&topology, from, &[], wanted)
        };
        match picked {
            Ok(cpus) => {
                spare.ends.push(cpus.len());
                spare.cpus = cpus;
            }
            Err(error) if wanted == 1 => return Err(error.to_string()),
            Err(_) => break,
        }
    }
    if spare.ends.is_empty() {
        return Err("`cores.most` is 0".to_owned());
    }
    Ok((all.len(), spare))
}

/// The model that the configuration names, or the one that a probe of this machine stored.
fn model(root: &Root, settings: &Settings) -> Result<(PathBuf, Model), String> {
    if let Some(named) = named_model(settings)? {
        return Ok(named);
    }
    let machine = Machine::read(root, &Cpuid::instruction());
    models::measured(root, &machine).map_or_else(
        || Err("nothing is known of this processor's levels; `dimmer probe` measures them".into()),
        |path| read_model(&path),
    )
}

/// The processor model that the configuration names, if any, and its file.
///
/// # Errors
/// What is wrong with the model.
pub fn named_model(settings: &Settings) -> Result<Option<(PathBuf, Model)>, String> {
    settings.model().map(read_model).transpose()
}

fn read_model(path: &Path) -> Result<(PathBuf, Model), String> {
    let model = models::read(path).map_err(|error| {
        let source = std::error::Error::source(&error);
        source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
    })?;
    Ok((path.to_owned(), model))
}

/// The events that can be counted for clients; tested on this process.
fn counted(root: &Root, settings: &Settings) -> Result<Counted, String> {
    if !settings.counts() {
        return Err("`server.counters` is false".to_owned());
    }
    let microarchitecture = Cpuid::instruction().identity().microarchitecture;
    let counted = Counted::of(microarchitecture).ok_or_else(|| {
        format!(
            "no event of this processor ({microarchitecture}) counts cycles at license levels, or packed arithmetic"
        )
    })?;
    let own = i32::try_from(std::process::id()).map_err(|error| error.to_string())?;
    let opened = counted.of_process(own).and_then(|mut own| own.open_next(root));
    opened.map_err(|error| error.to_string())?;
    Ok(counted)
}

/// The clocks of L1, L2, ..., and the cost of calls at each.
fn costs(model: &Model) -> Result<(Vec<f64>, Vec<CallCost>), Missing> {
    let calls = cost::of_levels(model)?;
    let levels = (1..).take(calls.len()).map(LicenseLevel::new);
    let clock = |level| Ok(model.clock_ratio(level, "what calls cost")?.min(1.0));
    Ok((levels.map(clock).collect::<Result<_, _>>()?, calls))
}
