//! Paper 004, "Saving Power Without Sacrificing Performance on Asymmetric Multicore Processors", on
//! the Ryzen 5 1600X: its microbenchmark (§5.3, appendix A) and its database (§5.2).
//!
//! What is put in: cycles an instruction of the pure functions on both cores (§5.3.1), how much
//! they execute (the parts alone, R004-43 and R004-44), and the power of these parts, of the cores
//! by RAPL, and of a core in MWAIT (R004-49). Rows that show these again say so.

use dimmer_processor::model::Assumed;
use dimmer_sim::SimError;

use crate::asymmetric::{self, Found, Memory, Part, Setup, mwait_watts, run};
use crate::inputs::Inputs;
use crate::migration_points::{self, beside, interpolated, lowered};
use crate::row::{Draft, words};
use crate::{Class, Experiment, Left, Row};

/// The results that are not recreated.
pub(crate) const LEFT: &[Left] = &[
    Left {
        id: "R004-02",
        what: "formula of the value of a mark",
        why: "no result of a machine; a test of the policy has it, with the paper's digits",
    },
    Left {
        id: "R004-03",
        what: "profile of MySQL (listing 5.2)",
        why: "the same; here it is put in",
    },
    Left {
        id: "R004-04",
        what: "instructions of MySQL's shortest edges",
        why: "put in: the scenario consists of them, less what the measuring library counts of itself",
    },
    Left {
        id: "R004-12",
        what: "the supply voltage falls only if the whole chip is idle",
        why: "the form of the model: it could not come out otherwise",
    },
    Left { id: "R004-18", what: "lines of code for MySQL's marks", why: "no result of a machine" },
    Left {
        id: "R004-19",
        what: "voltages of the P-states",
        why: "values of the model, of which nothing is computed that could come out otherwise",
    },
];

/// The experiments of the paper that are recreated.
pub(crate) const EXPERIMENTS: &[Experiment] = &[
    Experiment { name: "the asymmetric set-up (table 5.1)", rows: clocks },
    Experiment { name: "MySQL (§5.2.4)", rows: mysql },
    Experiment { name: "cycles per instruction (§5.3.1)", rows: cycles },
    Experiment { name: "what a migration costs (§5.3.3)", rows: costs },
    Experiment { name: "power of a core in MWAIT (§5.3.4)", rows: waiting },
    Experiment { name: "fixed clocks (§5.3.5, appendix A)", rows: migration_points::points },
    Experiment { name: "migration beside them (§5.3.5)", rows: verdicts },
];

/// What the experiments assume where the model lacks values.
pub(crate) fn assumed(inputs: &Inputs<'_>) -> Result<Vec<Assumed>, SimError> {
    let mut all = Vec::new();
    for scenario in asymmetric::scenarios()? {
        all.extend(scenario.assumed(&inputs.model, &[dimmer_sim::Governor::Hardware])?);
    }
    all.sort();
    all.dedup();
    Ok(all)
}

/// The effective clock of a core (GHz), by what the CPU-bound function takes on it.
fn ghz(setup: &Setup, inputs: &Inputs<'_>) -> Result<f64, SimError> {
    let memory = Memory::Chase;
    let [instructions, _] = memory.instructions();
    let found = run(memory, &Setup { part: Part::Cpu, ..setup.clone() }, inputs)?;
    Ok(0.3566 * instructions * asymmetric::ROUNDS / found.seconds * 1e-9)
}

pub(crate) fn clocks(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let mhz = |setup: &Setup| Ok::<f64, SimError>(1000.0 * ghz(setup, inputs)?);
    Ok(vec![
        Draft::new("R004-01", Class::SeenAgain, "Table 5.1", "effective clocks", "MHz")
            .value("fast", 3600.0, mhz(&Setup::on(0))?)
            .value("slow", 1440.0, mhz(&Setup::on(1))?)
            .value("other CCX", 833.0, mhz(&Setup::on(3))?)
            .row("the largest divisor of a fast core's clock is computed from the second"),
        Draft::new("R004-01b", Class::Predicted, "published data", "effective clocks that the logs show, of cores beside a faster one", "MHz")
            .value("1725 beside 3600", 1440.0, mhz(&beside(1725))?)
            .value("833 beside 3125", 1249.0, mhz(&lowered(3125))?)
            .value("833 beside 2650", 1015.0, mhz(&lowered(2650))?)
            .value("833 beside 2200", 942.0, mhz(&lowered(2200))?)
            .value("833 beside 1725", 799.0, mhz(&lowered(1725))?)
            .row("that cores divide the clock of the fastest by steps of 1/4 is recollected of Zen 2, where it explains three mixed settings. 1725 MHz would be 1600, but runs at 1440: between 2 \
                and 2.5, this processor seems to have no divisor. Left out: what the logs read of 3125, 2650 and 2200 MHz beside 3600. They read all clocks for a second before a run, with cores \
                all but idle, and cores set to 3600 MHz show 2988 to 3526 there"),
    ])
}

pub(crate) fn mysql(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    // §5.3.3: some 27 commands a transaction.
    const COMMANDS: f64 = 27.0;
    let [fast, slow] = [asymmetric::mysql(0, inputs)?, asymmetric::mysql(1, inputs)?];
    let (moved, moved_watts) = asymmetric::mysql_migrating(inputs)?;
    let served = |outcome: &dimmer_sim::scenario::Outcome| {
        let served = outcome.threads.iter().filter_map(|thread| thread.latencies);
        served.map(|latencies| latencies.requests).sum::<u64>() as f64
    };
    let seconds = |outcome: &dimmer_sim::scenario::Outcome| outcome.end.since_start().ns() * 1e-9;
    let transactions =
        |outcome: &dimmer_sim::scenario::Outcome| served(outcome) / COMMANDS / seconds(outcome);
    let migrations = moved.threads.iter().map(|thread| thread.migrations).sum::<u64>() as f64;
    let a_second = migrations / seconds(&moved);
    Ok(vec![
        Draft::new("R004-05", Class::Predicted, "Table 5.2", "transactions a second of MySQL under TPC-C", "1/s")
            .value("migration", 131.0, transactions(&moved))
            .value("1.4 GHz", 135.0, transactions(&slow))
            .row("197 at 3.6 GHz is put in: what the published flow, less what measuring adds to it, does not explain of it is waiting. LIKWID counts no kernel code unless told to (recollected), \
                so some of that is work of the kernel, which takes longer at a slower clock. And a migration moves no data here: what a core finds in cold caches was not measured (§5.4 supposes \
                it is significant)"),
        Draft::new("R004-05b", Class::Predicted, "Table 5.2", "power meanwhile", "W")
            .value("3.6 GHz", 5.6, asymmetric::watts(&fast))
            .value("migration", 4.7, moved_watts)
            .value("1.4 GHz", 3.9, asymmetric::watts(&slow))
            .row("by the power of the microbenchmark's code, without what the kernel does (R004-05). While MySQL waits in a system call, only the core that it is not on is in MWAIT (§3.3); by that \
                the package stays awake"),
        Draft::new("R004-10", Class::Mixed, "§5.3.3", "migrations a second of MySQL, and the part of its time that they take", "")
            .value("thousand a second, at 131 transactions", 14.148, 1e-3 * migrations / served(&moved) * COMMANDS * 131.0)
            .value("part, at 1.75 µs", 0.025, a_second / transactions(&moved) * 131.0 * 1.75e-6)
            .row("migrations a command follow from the flow and the threshold; transactions and 1.75 µs are the paper's"),
    ])
}

/// How the functions of a mixed microbenchmark take turns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    /// Whether a core computes while it waits for memory.
    pub(crate) overlap: bool,
}

/// Cycles an instruction of both functions of a mixed microbenchmark, over those on the slow core.
fn ratios(memory: Memory, share: f32, inputs: &Inputs<'_>) -> Result<[f64; 2], SimError> {
    let seconds = |core, part| -> Result<f64, SimError> {
        Ok(run(memory, &Setup::alone(core, part), inputs)?.seconds)
    };
    // What memory takes is what does not change with the clock.
    let [fast, slow] = [seconds(0, Part::Memory)?, seconds(1, Part::Memory)?];
    let waits = fast - (slow - fast) * 1440.0 / (3600.0 - 1440.0);
    let mixed = |core, [of_cpu, of_memory]: [f64; 2]| -> Result<f64, SimError> {
        let in_turn = seconds(core, Part::Mixed(of_cpu, of_memory))?;
        let computes = of_cpu * seconds(core, Part::Cpu)?;
        let both = if inputs.turns.overlap { computes.min(of_memory * waits) } else { 0.0 };
        Ok(in_turn - both)
    };
    let ratio = |parts| -> Result<f64, SimError> {
        Ok(3600.0 * mixed(0, parts)? / (1440.0 * mixed(1, parts)?))
    };
    if share == 1.0 {
        return Ok([ratio([1.0, 0.0])?, ratio([0.0, 1.0])?]);
    }
    Ok([ratio(memory.mixed(1.0 - share))?, ratio(memory.mixed(share))?])
}

pub(crate) fn cycles(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let pure = |memory| ratios(memory, 1.0, inputs);
    let [[cpu, chase], [_, indirect]] = [pure(Memory::Chase)?, pure(Memory::Indirect)?];
    let mixed = |memory, share| ratios(memory, share, inputs);
    let [chase_80, chase_60] = [mixed(Memory::Chase, 0.8)?, mixed(Memory::Chase, 0.6)?];
    let [indirect_80, indirect_60] = [mixed(Memory::Indirect, 0.8)?, mixed(Memory::Indirect, 0.6)?];
    const WHAT: &str =
        "cycles an instruction on the fast core over the slow one, mixed at 80 % and 60 %";
    Ok(vec![
        Draft::new("R004-06", Class::SeenAgain, "Fig. 5.4, published data", "cycles an instruction on the fast core over the slow one, pure functions", "")
            .value("CPU", 1.0, cpu)
            .value("chase", 2.02, chase)
            .value("indirect", 1.20, indirect)
            .row("cycles on both cores are put in (of a run of 2018-02-26; the figure's is of 2018-02-22): what fits them is cycles and nanoseconds"),
        Draft::new("R004-06b", Class::Predicted, "Fig. 5.4, published data", WHAT, "")
            .value("chase: CPU 80", 1.16, chase_80[0])
            .value("CPU 60", 1.36, chase_60[0])
            .value("memory 80", 1.88, chase_80[1])
            .value("memory 60", 1.57, chase_60[1])
            .value("indirect: CPU 80", 1.05, indirect_80[0])
            .value("CPU 60", 1.10, indirect_60[0])
            .value("memory 80", 1.33, indirect_80[1])
            .value("memory 60", 1.14, indirect_60[1])
            .row("the pure functions' cycles and nanoseconds, one after the other, in as many steps as the benchmark's division of whole numbers leaves: of indirect access at 60 %, 73 333 and \
                146 666, not 60 000 and 160 000. The prototype takes turns after each access, so the processor overlaps an access with the computing after it: of indirect access at 80 %, 0.69 \
                cycles an instruction where the sum is 0.97. That all computing overlaps is farther off (below)"),
    ])
}

pub(crate) fn costs(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let price = |kind: &str| inputs.model.price(kind).map_or(f64::NAN, |ns| ns.value);
    let [within, between] =
        ["thread in user mode", "thread in user mode between clusters"].map(price);
    let moved = run(Memory::Chase, &Setup::MIGRATION, inputs)?;
    let [cpu, memory] = [(0, Part::Cpu), (1, Part::Memory)];
    let alone = |(core, part)| run(Memory::Chase, &Setup::alone(core, part), inputs);
    let apart = alone(cpu)?.seconds + alone(memory)?.seconds;
    Ok(vec![
        Draft::new("R004-07", Class::SeenAgain, "§5.3.3", "a migration within a CCX", "µs")
            .value("published data", 0.557, within / 1000.0)
            .row("a parameter of the model; the text says 1.75"),
        Draft::new("R004-08", Class::SeenAgain, "§5.3.3", "a migration to the other CCX, over one within", "")
            .value("published data", 2.7, between / within)
            .row("two parameters of the model; the text says 2, and 3 if all cores are fast (published data: 1.9), which the model does not distinguish"),
        Draft::new("R004-09", Class::Mixed, "§5.3.3", "migrations of the microbenchmark, and what they take", "")
            .value("thousand", 10.0, moved.migrations / 1000.0)
            .value("ms", 17.5, 1e3 * (moved.seconds - apart))
            .row("the paper counts one a round; its code migrates there and back. The time is that of the author's logs, 0.557 µs each"),
    ])
}

pub(crate) fn waiting(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let [p0, p1, p2] = ["P0", "P1", "P2"].map(|pstate| mwait_watts([pstate; 6], inputs));
    let (p0, p1, p2) = (p0?, p1?, p2?);
    let asymmetric = mwait_watts(Setup::TABLE_5_1, inputs)?;
    let apart = |memory| -> Result<Found, SimError> {
        let cpu = run(memory, &Setup::alone(0, Part::Cpu), inputs)?;
        let memory = run(memory, &Setup::alone(1, Part::Memory), inputs)?;
        let seconds = cpu.seconds + memory.seconds;
        let watts = (cpu.watts * cpu.seconds + memory.watts * memory.seconds) / seconds;
        Ok(Found { seconds, watts, migrations: 0.0 })
    };
    let more = |memory| -> Result<(f64, f64), SimError> {
        let (moved, apart) = (run(memory, &Setup::MIGRATION, inputs)?, apart(memory)?);
        Ok((moved.watts - apart.watts, moved.seconds - apart.seconds))
    };
    let [indirect, chase] = [more(Memory::Indirect)?, more(Memory::Chase)?];
    const AWAKE: &str = "what is awake with an executing core and a core in MWAIT, as fitted to migration: if all others are idle, more is switched off (the paper supposes so, §5.3.4)";
    Ok(vec![
        Draft::new("R004-11", Class::Predicted, "§5.3.4", "a core in MWAIT, over an idle machine, with the P-states of table 5.1", "W")
            .value("", 4.0, asymmetric)
            .row(AWAKE),
        Draft::new("R004-13", Class::SeenAgain, "§5.3.4", "migration over its parts alone", "W")
            .value("indirect", 2.0, indirect.0)
            .value("chase", 2.0, chase.0)
            .row("the power of a core in MWAIT is fitted to the published data of R004-49, which say less than the text"),
        Draft::new("R004-17", Class::Predicted, "§5.4", "a core in MWAIT: least and most", "W")
            .value("least", 2.0, f64::min(p2, f64::min(indirect.0, chase.0)))
            .value("most", 4.0, f64::max(p0, p1))
            .row("the least and the most of R004-48 and R004-49"),
        Draft::new("R004-48", Class::Predicted, "Fig. 5.7a, published data", "a core in MWAIT, over an idle machine, with all cores at a P-state", "W")
            .value("P0", 4.5, p0)
            .value("P1", 3.2, p1)
            .value("P2", 2.3, p2)
            .row(AWAKE),
        Draft::new("R004-49", Class::SeenAgain, "as Fig. 5.8, published data of 2018-02-25", "migration over its parts alone", "W")
            .value("indirect", 1.5, indirect.0)
            .value("chase", 1.2, chase.0)
            .row("the power of a core in MWAIT is fitted to their mean"),
        Draft::new("R004-49b", Class::Predicted, "as Fig. 5.8, published data of 2018-02-25", "the same, time", "s")
            .value("indirect", 0.2, indirect.1)
            .row("20 000 migrations, and no cold caches. The runs' own spread is as large. Chase's 0.07 s say nothing about migrations: times are those of whole processes, which fill and shuffle \
                100 MiB first, some 0.3 s; both parts do, so their sum has it twice"),
    ])
}

/// What migration takes over a fixed clock at which the microbenchmark takes as long, in words.
fn verdict(
    memory: Memory,
    is_asymmetric: bool,
    inputs: &Inputs<'_>,
) -> Result<&'static str, SimError> {
    let moved = run(memory, &Setup::MIGRATION, inputs)?;
    let watts =
        interpolated(moved.seconds, &migration_points::curve(memory, is_asymmetric, inputs)?);
    Ok(if moved.watts < watts { "better" } else { "worse" })
}

pub(crate) fn verdicts(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let of = |is_asymmetric| -> Result<String, SimError> {
        let [indirect, chase] = Memory::BOTH.map(|memory| verdict(memory, is_asymmetric, inputs));
        Ok(format!("chase {}, indirect {}", chase?, indirect?))
    };
    let bend = |is_asymmetric| -> Result<&'static str, SimError> {
        let curve = migration_points::curve(Memory::Chase, is_asymmetric, inputs)?;
        let (Some(slow), Some(fast)) = (curve.last(), curve.first()) else { return Ok("") };
        let Some(middle) = curve.get(curve.len() / 2) else { return Ok("") };
        let part = (middle.ghz - slow.ghz) / (fast.ghz - slow.ghz);
        let chord = slow.watts + part * (fast.watts - slow.watts);
        Ok(if (middle.watts / chord - 1.0).abs() < 0.03 { "linear" } else { "bent" })
    };
    Ok(vec![
        words(
            "R004-14",
            Class::SeenAgain,
            "Fig. 5.9, text",
            "power by the clock with a fast core beside",
            "linear",
            bend(true)?,
            "the form of the model: the fast core's voltage",
        ),
        words(
            "R004-15",
            Class::SeenAgain,
            "Fig. 5.9, text",
            "power by the clock if no core is faster",
            "bent",
            bend(false)?,
            "the form of the model: the voltages of the P-states. The paper calls it cubic",
        ),
        words(
            "R004-16",
            Class::Predicted,
            "§5.3.5",
            "migration over a fixed clock of equal time, with a fast core beside",
            "chase better, indirect worse",
            of(true)?.as_str(),
            "both are close in the paper: 'slightly'. Power of the fixed clocks is predicted, that of migration is not",
        ),
        words(
            "R004-16b",
            Class::Predicted,
            "§5.3.5",
            "the same, if no core is faster",
            "chase worse, indirect worse",
            of(false)?.as_str(),
            "a fixed clock lowers the voltage of the whole package. The benchmark runs on the core whose clock is set, as the text has it and the figure's run did (2018-02-21)",
        ),
    ])
}
