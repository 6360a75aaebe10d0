//! On which processors migration between a fast and a slow core takes less power than a fixed clock
//! at which the program takes as long: the question that paper 004 leaves (§5.4, §6).
//!
//! A program alternates between CPU-bound code and pointer chasing. The fixed clock is a part of
//! the highest one, so that migration has clocks above it to make up for the slow core. Between
//! which clocks it migrates is chosen for least power. Processors are the paper's, and variants of
//! it in which one thing after the other is better, one with made-up small cores, and one whose
//! cores Linux describes.

use std::path::Path;

use dimmer_processor::model::{Cluster, Domain, Model, ModelError, PState, Sourced, builtin};
use dimmer_processor::supply::SupplyPower;
use dimmer_processor::units::nearest;
use dimmer_sim::scenario::{Outcome, Scenario};
use dimmer_sim::{Governor, Guided, Moving, SimError};

use crate::asymmetric::{redefined, watts};
use crate::causes::{set, set_price};
use crate::{Follower, Paper, ValidateError};

/// The parts of its time on the fast core for which the program executes memory-bound code.
pub const SHARES: [f64; 4] = [0.25, 0.5, 0.75, 0.9];

/// Mean times of a phase on the fast core (µs).
pub const PHASES_US: [f64; 5] = [10.0, 30.0, 100.0, 1000.0, 10_000.0];

/// The fixed clock, of the highest one.
const FIXED: f64 = 0.7;

/// The clocks of the slow core that are tried, but one: evenly spaced.
const STEPS: u64 = 8;

/// Rounds of the program: all are alike but the first.
const ROUNDS: u32 = 20;

/// The data that a migration fetches, line by line: an L1 cache of Zen's.
const CACHED_KIB: u32 = 32;

/// A processor under all programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// The processor.
    pub processor: &'static str,
    /// What it is, in Markdown.
    pub meaning: &'static str,
    /// For each of [`SHARES`], and of [`PHASES_US`], how much less power migration takes than the
    /// fixed clock (%); `None`: migration cannot be as fast.
    pub saved: Vec<Vec<Option<f64>>>,
}

/// A processor, and how it is used.
struct Processor {
    name: &'static str,
    meaning: &'static str,
    model: Model,
    /// The slow core, its P-state, and whether the core that is not used is in MWAIT.
    slow: usize,
    slow_pstate: &'static str,
    /// Clocks and voltages of the slow core (MHz, mV), if it has other voltages than the fast one.
    points: &'static [(u64, u64)],
    waits: bool,
}

/// Number of processors.
pub const PROCESSORS: usize = 6;

/// The processors.
fn processors() -> Result<[Processor; PROCESSORS], ModelError> {
    let zen = Paper::Migration.model()?;
    let mut own_voltage = zen.clone();
    set(&mut own_voltage.supply.domain, Domain::Core);
    let mut free = own_voltage.clone();
    free.clock.divisor_step = None;
    let of = |name, meaning, model: &Model, waits| Processor {
        name,
        meaning,
        model: model.clone(),
        slow: 1,
        slow_pstate: "P2",
        points: &[],
        waits,
    };
    Ok([
        of(
            "Ryzen 5 1600X",
            "the paper's: one rail, and cores of a CCX that divide the clock of the fastest; the core that is not used is in MWAIT",
            &zen,
            true,
        ),
        of(
            "own voltages",
            "the same with a voltage for each core, as documented; what cores share has that of the fastest core that executes or waits",
            &own_voltage,
            true,
        ),
        of(
            "own voltages, free clocks",
            "the same, and any clock of the slow core beside a fast one",
            &free,
            true,
        ),
        of(
            "own voltages, free clocks, waiting off",
            "the same, and a core that waits takes no power, wakes up in no time, and lets the voltage of what cores share fall: a bound",
            &free,
            false,
        ),
        Processor {
            slow_pstate: "P1",
            ..of(
                "small core, made up",
                "as the one before, and the slow core is a small one, up to 2500 MHz: 0.787 of the work in a cycle (as Linux has it for Alder Lake) for 0.4 of the power (made up)",
                &with_small_core(free.clone()),
                false,
            )
        },
        Processor {
            slow: 4,
            slow_pstate: "A53",
            points: &A53,
            ..of(
                "Hi3660",
                "four Cortex-A73 up to 2362 MHz and four Cortex-A53 up to 1844 MHz, each cluster with its own voltage: clocks, voltages, capacities and power by Linux's device tree. The power of what cores share, and of waiting, is not known: 0. Guessed, as on the Ryzen: the part of a core's power while memory delays it, and the prices of migration and of cache lines",
                &hi3660(&zen)?,
                false,
            )
        },
    ])
}

/// The paper's processor whose second and third cores are small.
fn with_small_core(mut model: Model) -> Model {
    let Some(first) = model.clusters.first_mut() else { return model };
    let small = Cluster {
        name: "small".to_owned(),
        cores: made_up(2),
        capacity_ratio: Some(made_up(0.787)),
        power_ratio: Some(made_up(0.4)),
        ..first.clone()
    };
    first.cores.value = 1;
    model.clusters.insert(1, small);
    // They share the L3 cache.
    let price = |kind: &str| model.price(kind).map_or(0.0, |ns| ns.value);
    let [line, thread] = ["cache-line within a cluster", "thread in user mode"].map(price);
    set_price(&mut model, "cache-line within a package", line);
    set_price(&mut model, "thread in user mode between clusters", thread);
    model
}

/// Operating points of the Hi3660's A73 cluster, and of its A53 cluster (MHz, mV), and the dynamic
/// power of both kinds of cores (mW at 1 GHz and 1 V): Linux
/// `arch/arm64/boot/dts/hisilicon/hi3660.dtsi`.
const A73: [(&str, u64, u64); 5] = [
    ("P0", 2362, 1100),
    ("P1", 2112, 1000),
    ("P2", 1805, 900),
    ("P3", 1421, 800),
    ("P4", 903, 700),
];
const A53: [(u64, u64); 5] = [(533, 700), (999, 800), (1402, 900), (1709, 1000), (1844, 1100)];
const A73_POWER: f64 = 550.0;
const A53_POWER: f64 = 110.0;

/// The model of the Hi3660 with voltages, power and prices of moving.
fn hi3660(zen: &Model) -> Result<Model, ModelError> {
    let mut model = Model::parse(Path::new("hi3660"), builtin("hi3660").unwrap_or_default())?;
    let state = |(name, mhz, mv): (&str, u64, u64)| PState {
        name: name.to_owned(),
        mhz: made_up(mhz),
        mv: Some(made_up(mv)),
        needs_idle: None,
    };
    model.pstates = A73.map(state).into();
    let slow =
        PState { name: "A53".to_owned(), mhz: made_up(A53[4].0), mv: None, needs_idle: None };
    model.pstates.insert(4, slow);
    model.supply = zen.supply.clone();
    set(&mut model.supply.domain, Domain::Core);
    set(&mut model.supply.awake_mw, 0);
    set(&mut model.supply.waiting_mw, 0);
    set(&mut model.supply.core_mw, nearest(A73_POWER));
    model.moves.clone_from(&zen.moves);
    Ok(model)
}

/// A value that stands for no source: what it is stands beside its use.
fn made_up<T>(value: T) -> Sourced<T> {
    Sourced { value, source: "crates/validate/src/wins.rs".to_owned(), guess: true, ci95: None }
}

/// Runs the program on all processors. Takes a second.
///
/// * `follower`: if it stops the work, only the complete processors are returned.
///
/// # Errors
/// If a model lacks what the program needs.
pub fn compare(follower: &dyn Follower) -> Result<Vec<Compared>, ValidateError> {
    let mut compared = Vec::new();
    for processor in processors()? {
        if follower.stops() {
            break;
        }
        follower.begins(processor.name);
        let named = |error| ValidateError::Sim { experiment: processor.name, error };
        let of_share = |share: f64| PHASES_US.map(|us| processor.saved(share, us));
        let mut saved = Vec::new();
        for share in SHARES {
            let row: Result<Vec<Option<f64>>, SimError> = of_share(share).into_iter().collect();
            saved.push(row.map_err(named)?);
        }
        compared.push(Compared { processor: processor.name, meaning: processor.meaning, saved });
    }
    Ok(compared)
}

/// Where a run takes place, with the clocks of the cores (MHz).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    /// On both cores, with migration.
    Both { fast: u64, slow: u64 },
    /// On the fast core.
    Fast(u64),
    /// On the slow core.
    Slow,
}

impl Processor {
    /// How much less power migration takes than a fixed clock (%), between the clocks at which it
    /// takes as long and least power; `None`: at none it is as fast.
    fn saved(&self, share: f64, phase_us: f64) -> Result<Option<f64>, SimError> {
        let run = |on| self.run(share, phase_us, on);
        let seconds = |outcome: &Outcome| outcome.end.since_start().as_f64();
        let highest = self.model.pstates.first().map_or(0, |state| state.mhz.value);
        let clock = nearest(FIXED * highest as f64);
        let alone = run(On::Fast(clock))?;
        let most = seconds(&alone);
        let mut fixed = watts(&alone);
        let small = run(On::Slow)?;
        if seconds(&small) <= most {
            // It would be idle for the rest.
            fixed = fixed.min(watts(&small) * seconds(&small) / most);
        }
        let mut best: Option<f64> = None;
        for slow in self.slow_clocks(clock) {
            let both = |fast| run(On::Both { fast, slow });
            if seconds(&both(highest)?) > most {
                continue;
            }
            // The slowest clock of the fast core at which it is as fast.
            let (mut below, mut fast) = (clock.min(highest - 1), highest);
            while fast - below > 1 {
                let middle = below.midpoint(fast);
                let is_slower = seconds(&both(middle)?) > most;
                if is_slower { below = middle } else { fast = middle }
            }
            let found = watts(&both(fast)?);
            best = Some(best.map_or(found, |best| best.min(found)));
        }
        Ok(best.map(|best| 100.0 * (1.0 - best / fixed)))
    }

    /// The clocks of the slow core that are tried.
    fn slow_clocks(&self, fixed: u64) -> Vec<u64> {
        if !self.points.is_empty() {
            return self.points.iter().map(|(mhz, _)| *mhz).collect();
        }
        let state = self.model.pstates.iter().find(|state| state.name == self.slow_pstate);
        let highest = state.map_or(0, |state| state.mhz.value);
        let least = self.model.clock.min_mhz.as_ref().map_or(0, |mhz| mhz.value);
        let most = if self.has_small_core() { highest } else { fixed };
        (0..=STEPS).map(|step| least + (most - least) * step / STEPS).collect()
    }

    fn has_small_core(&self) -> bool {
        self.model.clusters.iter().any(|cluster| cluster.capacity_ratio.is_some())
    }

    fn run(&self, share: f64, phase_us: f64, on: On) -> Result<Outcome, SimError> {
        let model = match on {
            On::Fast(mhz) => redefined(&self.model, ("P0", mhz)),
            On::Both { fast, slow } => {
                let model = redefined(&self.model, ("P0", fast));
                self.at_slow(redefined(&model, (self.slow_pstate, slow)), slow)
            }
            On::Slow => {
                let highest = self.points.last().map_or(0, |(mhz, _)| *mhz);
                self.at_slow(self.model.clone(), highest)
            }
        };
        let scenario = self.scenario(share, phase_us, on)?;
        let migrates = matches!(on, On::Both { .. });
        let moving = if migrates { Moving::Phases(Guided::Profile) } else { Moving::None };
        let settings = scenario.settings(&model, Governor::Hardware, moving, 1)?;
        Ok(scenario.run_on(&model, settings, (), &|_| false)?.0)
    }

    /// The model with the power of the slow cores at the voltage that they need for this clock.
    fn at_slow(&self, mut model: Model, mhz: u64) -> Model {
        let mv = self.points.iter().find(|(point, _)| *point == mhz).map(|(_, mv)| *mv as f64);
        let power = SupplyPower::new(&model).and_then(Result::ok);
        if let (Some(mv), Some(power), Some(small)) = (mv, power, model.clusters.get_mut(1)) {
            let volts = power.volts(mhz as f64 / 1000.0);
            let ratio = A53_POWER / A73_POWER * (mv / 1000.0 / volts).powi(2);
            small.power_ratio = Some(made_up(ratio));
        }
        model
    }

    /// The program. Its code is that of `scenarios/phases-chase.toml`.
    fn scenario(&self, share: f64, phase_us: f64, on: On) -> Result<Scenario, SimError> {
        const CPU: f64 = 2.8043;
        const MEMORY: (f64, f64) = (0.055_895, 26.625);
        let Self { slow, slow_pstate, waits, model, .. } = self;
        let cores = model.shape.cores.as_ref().map_or(1, |cores| cores.value);
        let ghz = model.pstates.first().map_or(1.0, |state| state.mhz.value as f64 / 1000.0);
        let instructions = [(1.0 - share) * CPU * ghz, share / (1.0 / (MEMORY.0 * ghz) + MEMORY.1)];
        let [cpu, memory] = instructions.map(|rate| (2000.0 * phase_us * rate).max(1.0).round());
        let pstates: Vec<String> = (0..cores)
            .map(|core| if core == 0 && on != On::Slow { "P0" } else { slow_pstate })
            .map(|name| format!("\"{name}\""))
            .collect();
        let migrates = matches!(on, On::Both { .. });
        let mwait = if migrates && *waits { format!("0, {slow}") } else { String::new() };
        let cpu_number = if on == On::Slow { *slow } else { 0 };
        let text = format!(
            "schema = \"dimmer/scenario/1\"
name = \"phases\"
source = \"crates/validate/src/wins.rs\"
model = \"given\"
cores = {cores}
core_pstates = [{}]
mwait_cores = [{mwait}]
[phases]
fast_cpu = 0
slow_cpu = {slow}
threshold = 0.5
profile = [[\"cpu\", 0.0], [\"memory\", 1.0]]
[[code]]
name = \"cpu\"
class = \"scalar\"
per_cycle = {CPU}
[[code]]
name = \"memory\"
class = \"scalar\"
per_cycle = {}
memory_ns = {}
[[thread]]
name = \"program\"
cpu = {cpu_number}
cached_kib = {CACHED_KIB}
times = {ROUNDS}
steps = [
    {{ mark = \"cpu\" }}, {{ run = \"cpu\", instructions = {cpu} }},
    {{ mark = \"memory\" }}, {{ run = \"memory\", instructions = {memory} }},
]
",
            pstates.join(", "),
            MEMORY.0,
            MEMORY.1,
        );
        Ok(Scenario::parse(Path::new("phases.toml"), &text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_improvement_of_the_processor_lets_migration_save_more() {
        let compared = compare(&|| false).unwrap();
        assert_eq!(compared.len(), PROCESSORS);
        for pair in compared[..4].windows(2) {
            let both = pair[0].saved.iter().flatten().zip(pair[1].saved.iter().flatten());
            for (before, after) in both.filter_map(|(before, after)| (*before).zip(*after)) {
                assert!(after >= before - 0.5, "{}: {before} {after}", pair[1].processor);
            }
        }
    }

    #[test]
    fn short_phases_do_not_pay() {
        for of in compare(&|| false).unwrap() {
            for row in of.saved {
                let known: Vec<f64> = row.into_iter().flatten().collect();
                assert!(known.is_sorted_by(|short, long| *short <= long + 0.5), "{known:?}");
            }
        }
    }
}
