//! Paper 004's set-ups: its microbenchmark and its database on a processor with a fast core and
//! slow ones (§5.1, table 5.3).

use std::path::Path;

use dimmer_processor::model::{Model, PState};
use dimmer_processor::units::nearest;
use dimmer_sim::scenario::{Outcome, Scenario};
use dimmer_sim::{Governor, Guided, Moving, SimError};

use crate::causes::set;
use crate::inputs::Inputs;

/// The files of `scenarios/` from which workloads are made.
const FILES: [(&str, &str); 3] = [
    ("phases-chase.toml", include_str!("../../../scenarios/phases-chase.toml")),
    ("phases-indirect.toml", include_str!("../../../scenarios/phases-indirect.toml")),
    ("phases-mysql.toml", include_str!("../../../scenarios/phases-mysql.toml")),
];

/// Rounds of the microbenchmark in the paper, and here: all are alike.
pub(crate) const ROUNDS: f64 = 10_000.0;
const ROUNDS_HERE: u32 = 20;

/// The memory-bound function of the microbenchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Indirect,
    Chase,
}

impl Memory {
    /// Both, in the order of the rows.
    pub(crate) const BOTH: [Self; 2] = [Self::Indirect, Self::Chase];

    const fn file(self) -> &'static str {
        match self {
            Self::Indirect => "phases-indirect.toml",
            Self::Chase => "phases-chase.toml",
        }
    }

    /// Instructions of a call of the CPU-bound function and of this one.
    pub(crate) fn instructions(self) -> [f64; 2] {
        let text = text(self.file());
        ["cpu", "memory"].map(|code| number(text, &format!("run = \"{code}\", instructions = ")))
    }

    /// The parts of both functions' steps in a call of a mixed function, for this part of memory,
    /// as the benchmark divides them (`do_mixed` in test/micro.c): whole numbers, taken in turns.
    pub(crate) fn mixed(self, of_memory: f32) -> [f64; 2] {
        // PATTERN_LENGTH and POINTER_CHASE_STEPS, and CPU_ITERATIONS of test/micro.h.
        let all = [400_000.0, if self == Self::Chase { 7_000.0 } else { 100_000.0 }];
        let [cpu, memory] = [all[0] * (1.0 - of_memory), all[1] * of_memory];
        let [cpu, memory] = [cpu, memory].map(|steps: f32| f64::from(steps.trunc()));
        let in_turn = [cpu, memory].map(|steps| (steps / f64::min(cpu, memory)).trunc());
        let turns = ((cpu + memory) / (in_turn[0] + in_turn[1])).ceil();
        [0, 1].map(|of| turns * in_turn[of] / f64::from(all[of]))
    }
}

/// What a round of the microbenchmark executes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Part {
    /// Both functions.
    Both,
    /// One of them.
    Cpu,
    Memory,
    /// This part of the CPU-bound function, and of the memory-bound one.
    Mixed(f64, f64),
}

/// A processor's settings, and where the microbenchmark runs on it.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// The P-state of each core.
    pub(crate) pstates: [&'static str; 6],
    /// A P-state with another clock (MHz) than the model's.
    pub(crate) redefined: Option<(&'static str, u64)>,
    /// The core that it runs on, or starts on.
    pub(crate) core: usize,
    /// The core to which it migrates for the memory-bound function.
    pub(crate) slow: Option<usize>,
    /// Cores in MWAIT.
    pub(crate) mwait: &'static [usize],
    pub(crate) part: Part,
}

impl Setup {
    /// Table 5.1: the first core is fast.
    pub(crate) const TABLE_5_1: [&'static str; 6] = ["P0", "P2", "P2", "P2", "P2", "P2"];

    /// On one core, another one of its CCX in MWAIT (§5.3.5).
    pub(crate) const fn on(core: usize) -> Self {
        Self {
            pstates: Self::TABLE_5_1,
            redefined: None,
            core,
            slow: None,
            mwait: &[2],
            part: Part::Both,
        }
    }

    /// With migration within a CCX.
    pub(crate) const MIGRATION: Self = Self { slow: Some(1), mwait: &[0, 1], ..Self::on(0) };

    /// One part on one core, none in MWAIT (§5.3.4).
    pub(crate) const fn alone(core: usize, part: Part) -> Self {
        Self { mwait: &[], part, ..Self::on(core) }
    }

    /// How much slower than at 3600 MHz, the fastest P-state's clock as the model has it, the L3
    /// cache is of the core that it runs on: it has the clock of the fastest core of the CCX
    /// (§4.3), of which each has three.
    fn l3_slowdown(&self, model: &Model) -> f64 {
        let first = self.slow.unwrap_or(self.core) / 3 * 3;
        let mhz = |name: &str| {
            let state = model.pstates.iter().find(|state| state.name == name);
            state.map_or(f64::NAN, |state| state.mhz.value as f64)
        };
        let cores = self.pstates.iter().skip(first).take(3);
        3600.0 / cores.map(|name| mhz(name)).fold(0.0, f64::max)
    }
}

/// What a run gives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// The time of all rounds (s).
    pub(crate) seconds: f64,
    /// Mean power beyond that of the idle machine (W).
    pub(crate) watts: f64,
    /// Migrations in all rounds.
    pub(crate) migrations: f64,
}

/// The model with another clock of a P-state, at the voltage between those that it has.
pub(crate) fn redefined(model: &Model, (name, mhz): (&str, u64)) -> Model {
    let mut model = model.clone();
    let supply = dimmer_processor::supply::SupplyPower::new(&model).and_then(Result::ok);
    if let Some(state) = model.pstates.iter_mut().find(|state| state.name == name) {
        state.mhz.value = mhz;
        if let (Some(mv), Some(supply)) = (&mut state.mv, supply) {
            mv.value = nearest(1000.0 * supply.volts(mhz as f64 / 1000.0));
        }
    }
    model
}

/// The voltage with P0 set to a clock (mV): between that of 3125 MHz and those of P0 and P2.
fn lowered_mv(model: &Model, mhz: u64, at_3125: f64) -> u64 {
    let known = |state: Option<&PState>| {
        let mv = state.and_then(|state| state.mv.as_ref()).map_or(f64::NAN, |mv| mv.value as f64);
        (state.map_or(f64::NAN, |state| state.mhz.value as f64), mv)
    };
    let [first, last] = [known(model.pstates.first()), known(model.pstates.last())];
    let (mhz, middle) = (mhz as f64, (3125.0, at_3125));
    let (low, high) = if mhz < middle.0 { (last, middle) } else { (middle, first) };
    nearest(low.1 + (high.1 - low.1) * (mhz - low.0) / (high.0 - low.0))
}

/// Runs the microbenchmark.
pub(crate) fn run(memory: Memory, setup: &Setup, inputs: &Inputs<'_>) -> Result<Found, SimError> {
    let model = match setup.redefined {
        Some(state @ ("P0", mhz)) => {
            let mut model = redefined(&inputs.model, state);
            set(&mut model.pstates[0].mv, lowered_mv(&inputs.model, mhz, inputs.lowered_mv));
            model
        }
        Some(state) => redefined(&inputs.model, state),
        None => inputs.model.clone(),
    };
    let outcome =
        simulate(&scenario(memory, setup, inputs, &model)?, &model, setup.slow.is_some())?;
    let seconds = outcome.end.since_start().ns() * 1e-9;
    let scale = ROUNDS / f64::from(ROUNDS_HERE);
    let migrations: u64 = outcome.threads.iter().map(|thread| thread.migrations).sum();
    Ok(Found {
        seconds: seconds * scale,
        watts: watts(&outcome),
        // The first mark finds the thread where it wants to be.
        migrations: if migrations > 0 { (migrations + 1) as f64 * scale - 1.0 } else { 0.0 },
    })
}

/// Power of an otherwise idle machine with these P-states, whose first core is in MWAIT (W).
pub(crate) fn mwait_watts(
    pstates: [&'static str; 6],
    inputs: &Inputs<'_>,
) -> Result<f64, SimError> {
    let own = format!(
        "core_pstates = [{}]\nmwait_cores = [0]\n[[thread]]\nname = \"microbenchmark\"\ncpu = 1\n\
         steps = [{{ mark = \"cpu\" }}, {{ mark = \"memory\" }}, {{ sleep_us = 1000 }}]\n",
        quoted(&pstates)
    );
    let scenario = including("phases-chase.toml", &own, 1.0)?;
    Ok(watts(&simulate(&scenario, &inputs.model, false)?))
}

/// The database on one core.
pub(crate) fn mysql(core: usize, inputs: &Inputs<'_>) -> Result<Outcome, SimError> {
    database(core, "", false, inputs)
}

/// The database with migration, and its power (W).
///
/// Of the prototype's two threads, the one without work is in MWAIT (§3.3). So a core is in MWAIT
/// while the database runs or sleeps on the other one, but not while it sleeps on the core itself.
/// It only sleeps on the fast core. A scenario's cores are in MWAIT all the time in which they do
/// not execute, so the power of that one's MWAIT is the difference between a run with both cores in
/// MWAIT and a run with the slow one; the part of it that falls into sleep is subtracted.
pub(crate) fn mysql_migrating(inputs: &Inputs<'_>) -> Result<(Outcome, f64), SimError> {
    let both = database(0, "0, 1", true, inputs)?;
    let slow = database(0, "1", true, inputs)?;
    let idle_ns = both.cores.first().map_or(f64::NAN, |fast| fast.idle.ns());
    let requests = both.threads.iter().filter_map(|thread| thread.latencies);
    let requests: u64 = requests.map(|latencies| latencies.requests).sum();
    let asleep_ns = 1000.0 * wait_us() * (1.0 - inputs.kernel_share) * requests as f64;
    let power = watts(&both) - (watts(&both) - watts(&slow)) * asleep_ns / idle_ns;
    Ok((both, power))
}

/// For how long the database waits for each command (µs).
fn wait_us() -> f64 {
    number(text("phases-mysql.toml"), "sleep_us = ")
}

fn database(
    core: usize,
    mwait: &str,
    migrates: bool,
    inputs: &Inputs<'_>,
) -> Result<Outcome, SimError> {
    let caches = format!("\ncpu = {core}\ncached_kib = {}\n", inputs.cached_kib);
    let kernel_us = wait_us() * inputs.kernel_share;
    let wait = match kernel_us {
        0.0 => format!("{{ sleep_us = {} }}", wait_us()),
        // At 3600 MHz.
        _ => format!(
            "{{ sleep_us = {} }}, {{ run = \"kernel\", instructions = {:.0} }}",
            wait_us() - kernel_us,
            3600.0 * kernel_us
        ),
    };
    let kernel =
        "[[code]]\nname = \"kernel\"\nclass = \"scalar\"\nper_cycle = 1.0\n\n# A command.\n";
    let text = text("phases-mysql.toml")
        .replace(&format!("{{ sleep_us = {:.2} }}", wait_us()), &wait)
        .replace("# A command.\n", kernel)
        .replace("mwait_cores = [0, 1]", &format!("mwait_cores = [{mwait}]"))
        .replace("\ncpu = 0\n", &caches);
    let scenario = Scenario::parse(Path::new("phases-mysql.toml"), &text)?;
    simulate(&scenario, &inputs.model, migrates)
}

/// The scenarios of the paper, for what they assume.
pub(crate) fn scenarios() -> Result<Vec<Scenario>, SimError> {
    let mysql = Scenario::parse(Path::new("phases-mysql.toml"), text("phases-mysql.toml"))?;
    Ok(vec![mysql])
}

/// Mean power of a run (W).
pub(crate) fn watts(outcome: &Outcome) -> f64 {
    let Ok(energy) = &outcome.energy else { return f64::NAN };
    let joules: f64 = energy.packages.iter().map(|package| package.joules).sum();
    joules / (outcome.end.since_start().ns() * 1e-9)
}

fn simulate(scenario: &Scenario, model: &Model, migrates: bool) -> Result<Outcome, SimError> {
    let moving = if migrates { Moving::Phases(Guided::Profile) } else { Moving::None };
    let settings = scenario.settings(model, Governor::Hardware, moving, 1)?;
    Ok(scenario.run_on(model, settings, (), &|_| false)?.0)
}

fn scenario(
    memory: Memory,
    setup: &Setup,
    inputs: &Inputs<'_>,
    model: &Model,
) -> Result<Scenario, SimError> {
    let [cpu, of_memory] = memory.instructions();
    let (cpu, of_memory) = match setup.part {
        Part::Both => (cpu, of_memory),
        Part::Cpu => (cpu, 0.0),
        Part::Memory => (0.0, of_memory),
        Part::Mixed(of_cpu, share) => (of_cpu * cpu, share * of_memory),
    };
    let run = |code: &str, number: f64| match number {
        1.0.. => format!("{{ run = \"{code}\", instructions = {number:.0} }},"),
        _ => String::new(),
    };
    let mwait: Vec<String> = setup.mwait.iter().map(usize::to_string).collect();
    let own = format!(
        "core_pstates = [{}]\nmwait_cores = [{}]\n[[thread]]\nname = \"microbenchmark\"\n\
         cpu = {}\ntimes = {ROUNDS_HERE}\nsteps = [\n{{ mark = \"cpu\" }}, {}\n\
         {{ mark = \"memory\" }}, {}\n]\n",
        quoted(&setup.pstates),
        mwait.join(", "),
        setup.core,
        run("cpu", cpu),
        run("memory", of_memory),
    );
    let file = memory.file();
    let slower = 1.0 + inputs.memory_by_l3 * (setup.l3_slowdown(model) - 1.0);
    let Some(slow) = setup.slow else { return including(file, &own, slower) };
    // The file's table stands in for the included one.
    let phases = text(file).split_once("[phases]").map_or("", |(_, after)| after);
    let phases = phases.split_once("\n\n").map_or(phases, |(table, _)| table);
    let phases = phases.replace("slow_cpu = 1", &format!("slow_cpu = {slow}"));
    let (keys, tables) = own.split_once("[[thread]]").unwrap_or((&own, ""));
    including(file, &format!("{keys}[phases]{phases}\n[[thread]]{tables}"), slower)
}

/// A scenario that includes this file, with memory slower by a factor.
fn including(file: &str, own: &str, slower: f64) -> Result<Scenario, SimError> {
    let own = format!("include = [\"{file}\"]\n{own}");
    let line = |line: &str| {
        let ns = line.strip_prefix("memory_ns = ").and_then(|ns| ns.parse::<f64>().ok());
        ns.map_or_else(|| line.to_owned(), |ns| format!("memory_ns = {}", ns * slower))
    };
    let read = |path: &Path| {
        let found = FILES.iter().find(|(name, _)| Path::new(name) == path);
        let (_, text) = found.ok_or_else(|| "no such scenario".to_owned())?;
        Ok(text.lines().map(line).collect::<Vec<_>>().join("\n"))
    };
    let own = format!("schema = \"dimmer/scenario/1\"\n{own}");
    Ok(Scenario::parse_with(Path::new("microbenchmark.toml"), &own, &read)?)
}

/// The number that follows a text; not a number if there is none.
fn number(text: &str, after: &str) -> f64 {
    let number = text.split_once(after).map(|(_, number)| number);
    let number = number.and_then(|number| number.split_once(' ')).map(|(number, _)| number);
    number.and_then(|number| number.replace('_', "").parse().ok()).unwrap_or(f64::NAN)
}

fn text(file: &str) -> &'static str {
    FILES.iter().find(|(name, _)| *name == file).map_or("", |(_, text)| text)
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The logs of the benchmark print the sum of what its 10 000 calls return; for indirect access
    /// mixed at 60 % that is 733 330 000: one for each access.
    #[test]
    fn mixed_functions_divide_steps_as_the_benchmark_does() {
        let counts = |memory: Memory, share: f32, steps: f64| {
            let [cpu, of_memory] = memory.mixed(share);
            [cpu * 400_000.0, of_memory * steps].map(f64::round)
        };
        assert_eq!(counts(Memory::Indirect, 0.6, 100_000.0), [146_666.0, 73_333.0]);
        assert_eq!(counts(Memory::Indirect, 0.8, 100_000.0), [80_000.0, 80_000.0]);
        assert_eq!(counts(Memory::Indirect, 1.0 - 0.8, 100_000.0), [320_000.0, 20_000.0]);
        assert_eq!(counts(Memory::Chase, 0.8, 7_000.0), [79_898.0, 5_707.0]);
    }
}
