//! What is supposed to be behind differences from a paper, tested: an experiment is carried out
//! again with one thing changed, and its rows show whether that makes the difference.

use dimmer_processor::model::{Model, Sourced};
use dimmer_processor::units::Nanos;
use dimmer_sim::{Picos, Scheduling, SimError};
use rayon::prelude::*;

use crate::inputs::Inputs;
use crate::server::Load;
use crate::{
    Paper, Row, ValidateError, migration, migration_points, policy_server, specialised, thesis,
    turbo,
};

/// A row with one thing changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// What is changed.
    pub change: &'static str,
    /// The row as it comes out then.
    pub row: Row,
}

/// A change to what experiments take as given.
struct Change {
    what: &'static str,
    /// The rows that it is supposed to affect.
    ids: &'static [&'static str],
    /// The experiment that they belong to.
    rows: fn(&Inputs<'_>) -> Result<Vec<Row>, SimError>,
    change: fn(&mut Inputs<'_>),
}

/// Carries out the experiments of missed `rows` again, each time with one thing changed that is
/// supposed to be the cause; without those after which the follower stops.
///
/// # Errors
/// If the model lacks what an experiment needs.
pub(crate) fn test(
    paper: Paper,
    rows: &[Row],
    inputs: &Inputs<'_>,
) -> Result<Vec<Cause>, ValidateError> {
    let changes = match paper {
        Paper::Avxfreq => THESIS,
        Paper::Library => LIBRARY,
        Paper::Turbo => TURBO,
        Paper::Specialisation => SPECIALISATION,
        Paper::Migration => MIGRATION,
    };
    let is_missed = |id: &str| rows.iter().any(|row| row.id == id && !row.hit);
    let concerns = |change: &&Change| change.ids.iter().any(|id| is_missed(id));
    let changes: Vec<&Change> = changes.iter().filter(concerns).collect();
    let carry_out = |Change { what, ids, rows, change }: &Change| -> Result<_, ValidateError> {
        inputs.follower.begins(what);
        let mut inputs = inputs.clone();
        inputs.seeds = 1;
        change(&mut inputs);
        let named = |error| ValidateError::Sim { experiment: what, error };
        let mut rows = rows(&inputs).map_err(named)?;
        rows.retain(|row| ids.contains(&row.id) && is_missed(row.id));
        let causes = rows.into_iter().map(|row| Cause { change: what, row });
        Ok(if inputs.follower.stops() { Vec::new() } else { causes.collect() })
    };
    let each = changes.par_iter().with_max_len(1).filter(|_| !inputs.follower.stops());
    let causes: Vec<Vec<Cause>> = each.map(|change| carry_out(change)).collect::<Result<_, _>>()?;
    Ok(causes.into_iter().flatten().collect())
}

/// The supposed causes of paper 000's rows.
const THESIS: &[Change] = &[
    Change {
        what: "the need is a time: at 3.1 GHz as many instructions as take as long as 12 431 at 4.3 GHz",
        ids: &["R000-09"],
        rows: thesis::required,
        change: |inputs| {
            for rule in &mut inputs.model.rules {
                let needed = rule.instructions.as_ref().map_or(0, |needed| needed.value);
                set(&mut rule.instructions, (needed * 3100).div_ceil(4300));
            }
        },
    },
    Change {
        what: "no slots: no request waits for another",
        ids: &["R000-13"],
        rows: thesis::times,
        change: |inputs| inputs.model.request.slot_ns = None,
    },
    Change {
        what: "no request misses the slot of the first",
        ids: &["R000-13"],
        rows: thesis::times,
        change: |inputs| inputs.model.request.missed_share = None,
    },
    Change {
        what: "code ends 1 ns before the core has L1, and so does not ask for L2",
        ids: &["R000-20", "R000-21"],
        rows: thesis::release,
        change: |inputs| inputs.ends_early = Picos::from_ps(1000),
    },
    Change {
        what: "the processor's own levels run at one clock, 4.2 GHz (\"the offsets for both levels are the same\", §5.2)",
        ids: &["R000-34", "R000-42"],
        rows: thesis::governed,
        change: |inputs| {
            for level in inputs.model.levels.iter_mut().skip(1) {
                set(&mut level.reduced_mhz, 4200);
            }
        },
    },
    Change {
        what: "clocks that software raises are raised at once",
        ids: &["R000-42", "R000-43"],
        rows: thesis::multi_phase,
        change: |inputs| inputs.model.clock.raise_period_ns = None,
    },
    Change {
        what: "they wait for up to 2/3 ms, as long as the processor holds its levels",
        ids: &["R000-42", "R000-43"],
        rows: thesis::multi_phase,
        change: |inputs| set(&mut inputs.model.clock.raise_period_ns, 666_667),
    },
    Change {
        what: "a look at the counter costs nothing",
        ids: &["R000-42"],
        rows: thesis::multi_phase,
        change: |inputs| inputs.costs.look_ns = 0.0,
    },
    Change {
        what: "phases end on time",
        ids: &["R000-42", "R000-43"],
        rows: thesis::multi_phase,
        change: |inputs| inputs.late_sd_us = 0.0,
    },
    Change {
        what: "no change of the clock stops the core",
        ids: &["R000-42"],
        rows: thesis::multi_phase,
        change: |inputs| without_standstills(&mut inputs.model),
    },
];

/// The supposed causes of paper 002's rows.
const TURBO: &[Change] = &[
    Change {
        what: "modules take turns: each takes the lock by one core, then each by the other one",
        ids: &["R002-07"],
        rows: turbo::locks,
        change: |inputs| inputs.locks.modules_take_turns = true,
    },
    Change {
        what: "several at once: the same, and the way from P6 to P0 takes as long as in table 4",
        ids: &["R002-07"],
        rows: turbo::locks,
        change: |inputs| {
            inputs.locks.modules_take_turns = true;
            inputs.rise_ns = 56_747;
        },
    },
    Change {
        what: "the lock takes 240 ns to its next owner, half a round trip between modules (table 9)",
        ids: LOCKS,
        rows: turbo::locks,
        change: |inputs| inputs.locks.hand_over_ns = 240,
    },
    Change {
        what: "sections count in executed cycles, not in those of the time-stamp counter",
        ids: LOCKS,
        rows: turbo::locks,
        change: |inputs| inputs.locks.in_tsc_cycles = false,
    },
    Change {
        what: "the way from P6 to P0 takes as long as in table 4",
        ids: &["R002-07", "R002-08"],
        rows: turbo::locks,
        change: |inputs| inputs.rise_ns = 56_747,
    },
    Change {
        what: "a migration takes as long at any clock",
        ids: &["R002-09"],
        rows: turbo::locks,
        change: |inputs| inputs.locks.migrates_in_code = false,
    },
    Change {
        what: "the owner releases the lock at home",
        ids: &["R002-09"],
        rows: turbo::locks,
        change: |inputs| inputs.locks.releases_at_home = true,
    },
    Change {
        what: "deep idle states take 133 µs to leave, the worst case that Linux assumes for the i7-4770 (intel_idle)",
        ids: &["R002-02b", "R002-03", "R002-05"],
        rows: turbo::waits,
        change: |inputs| {
            for model in std::iter::once(&mut inputs.model).chain(&mut inputs.second) {
                for state in model.cstates.iter_mut().filter(|state| state.name == "C6") {
                    state.exit_ns.value = 133_000;
                }
            }
        },
    },
    Change {
        what: "what follows a bulk is a wait of the same length, in which the request for P2 is made",
        ids: &["R002-52", "R002-56", "R002-60"],
        rows: turbo::resizes,
        change: |inputs| inputs.waits_between_bulks = true,
    },
    Change {
        what: "requests take no time",
        ids: &["R002-34"],
        rows: turbo::interpreter,
        change: without_requests,
    },
    Change {
        what: "rated power allows P0 beside modules at P2",
        ids: &["R002-34"],
        rows: turbo::interpreter,
        change: |inputs| inputs.model.clock.tdp_mw = None,
    },
    Change {
        what: "several at once: both",
        ids: &["R002-34"],
        rows: turbo::interpreter,
        change: |inputs| {
            without_requests(inputs);
            inputs.model.clock.tdp_mw = None;
        },
    },
    Change {
        what: "helpers run at 2.8 GHz beside a boosted master, not at 1.4: they lose to conflicts, not to their clock",
        ids: &["R002-41"],
        rows: turbo::transactions,
        change: |inputs| {
            for state in inputs.model.pstates.iter_mut().filter(|state| state.name == "P6") {
                state.mhz.value = 2800;
            }
        },
    },
    Change {
        what: "three quarters of a round trip's cycles are at the worker's clock",
        ids: &["R002-76", "R002-77"],
        rows: turbo::server,
        change: |inputs| inputs.at_worker = 0.75,
    },
    Change {
        what: "a quarter of them",
        ids: &["R002-76", "R002-77"],
        rows: turbo::server,
        change: |inputs| inputs.at_worker = 0.25,
    },
    Change {
        what: "cores are in the deep idle state only after 400 µs, the shortest stay that pays by Linux on the i7-4770 (intel_idle)",
        ids: &["R002-04", "R002-05"],
        rows: turbo::waits,
        change: |inputs| {
            for state in inputs.model.cstates.iter_mut().filter(|state| state.name == "C6") {
                state.residency_ns = Some(Sourced::new(400_000, "models/i7-4770.toml"));
            }
        },
    },
    Change {
        what: "a module with a core at work takes no more than one that waits by mwait, the least that table 2 leaves",
        ids: &["R002-04", "R002-05"],
        rows: turbo::waits,
        change: |inputs| inputs.locks.is_least_power = true,
    },
];

/// Requests and system calls for them take no time; the clock changes as late as before.
fn without_requests(inputs: &mut Inputs<'_>) {
    inputs.locks.call_ns = 0.0;
    for one in &mut inputs.model.transitions {
        set(&mut one.request_ns, 0);
    }
}

const LOCKS: &[&str] = &["R002-07", "R002-08", "R002-09"];

/// The supposed causes of paper 003's rows.
const SPECIALISATION: &[Change] = &[
    Change {
        what: "a page takes twice as long",
        ids: &["R003-04", "R003-05", "R003-14"],
        rows: specialised::web,
        change: |inputs| inputs.page *= 2.0,
    },
    Change {
        what: "a page takes four times as long",
        ids: &["R003-04", "R003-05", "R003-14"],
        rows: specialised::web,
        change: |inputs| inputs.page *= 4.0,
    },
    Change {
        what: "each page runs 20 000 cycles of heavy 256-bit code beside encryption: the server is often at L1 by itself (§4.3)",
        ids: &["R003-04", "R003-05", "R003-14"],
        rows: specialised::web,
        change: |inputs| inputs.edit = Load::with_library,
    },
    Change {
        what: "each worker has 60 KiB in its core's caches, which move with it, and as many in its encryption (a guess, against R003-11)",
        ids: &["R003-04", "R003-05", "R003-14"],
        rows: specialised::web,
        change: |inputs| inputs.edit = Load::with_cached_data,
    },
    Change {
        what: "multiplications of a record are too few to ask for L2 (§5: \"very short sections\" do not)",
        ids: &["R003-04", "R003-05", "R003-14"],
        rows: specialised::web,
        change: |inputs| inputs.edit = Load::with_short_sections,
    },
    Change {
        what: "all of x265's wide code counts as heavy: it asks for L2",
        ids: &["R003-03"],
        rows: specialised::unmodified,
        change: |inputs| inputs.x265.dense = 1.0,
    },
    Change {
        what: "all of x265's wide code counts as heavy: it asks for L2",
        ids: BESIDE,
        rows: specialised::beside,
        change: |inputs| inputs.x265.dense = 1.0,
    },
    Change {
        what: "x265 always has work",
        ids: BESIDE,
        rows: specialised::beside,
        change: |inputs| inputs.x265.waits = 0.0,
    },
    Change {
        what: "x265 waits for half of the time",
        ids: BESIDE,
        rows: specialised::beside,
        change: |inputs| inputs.x265.waits = 0.5,
    },
    Change {
        what: "x265's threads wait every 10 ms: of two calls of the kernel, one wakes another thread (footnote 2)",
        ids: &["R003-03"],
        rows: specialised::unmodified,
        change: |inputs| inputs.x265.every_ms = 10.0,
    },
    Change {
        what: "x265's threads wait every 10 ms: of two calls of the kernel, one wakes another thread (footnote 2)",
        ids: BESIDE,
        rows: specialised::beside,
        change: |inputs| inputs.x265.every_ms = 10.0,
    },
];

/// The rows of programs beside x265.
const BESIDE: &[&str] = &["R003-06", "R003-08", "R003-10", "R003-14b"];

/// The supposed causes of paper 004's rows.
const MIGRATION: &[Change] = &[
    Change {
        what: "a migration takes 1.75 µs, as the text says",
        ids: &["R004-05", "R004-09"],
        rows: |inputs| Ok([migration::mysql(inputs)?, migration::costs(inputs)?].concat()),
        change: |inputs| set_price(&mut inputs.model, "thread in user mode", 1750.0),
    },
    Change {
        what: "cores divide the clock of the fastest by steps of 1/8, not 1/4",
        ids: &["R004-01b"],
        rows: migration::clocks,
        change: |inputs| set(&mut inputs.model.clock.divisor_step, 0.125),
    },
    Change {
        what: "a core computes while it waits for memory, as far as both last",
        ids: &["R004-06b"],
        rows: migration::cycles,
        change: |inputs| inputs.turns.overlap = true,
    },
    Change {
        what: "a migration takes 10 µs, with what a core finds in cold caches",
        ids: &["R004-49b"],
        rows: migration::waiting,
        change: |inputs| set_price(&mut inputs.model, "thread in user mode", 10_000.0),
    },
    Change {
        what: "a core in MWAIT takes no power of its own",
        ids: &["R004-16"],
        rows: migration::verdicts,
        change: |inputs| set(&mut inputs.model.supply.waiting_mw, 0),
    },
    Change {
        what: "half of the time that the counts do not explain is work of the kernel, in cycles, and not waiting",
        ids: &["R004-05", "R004-05b"],
        rows: migration::mysql,
        change: |inputs| inputs.kernel_share = 0.5,
    },
    Change {
        what: "each migration fetches 32 KiB, an L1 cache, line by line",
        ids: &["R004-05"],
        rows: migration::mysql,
        change: |inputs| inputs.cached_kib = 32,
    },
    Change {
        what: "a core in MWAIT takes no power of its own",
        ids: &["R004-05b", "R004-11", "R004-17", "R004-48"],
        rows: |inputs| Ok([migration::mysql(inputs)?, migration::waiting(inputs)?].concat()),
        change: |inputs| set(&mut inputs.model.supply.waiting_mw, 0),
    },
    Change {
        what: "a core in MWAIT takes no power of its own",
        ids: FIXED_POWER,
        rows: migration_points::points,
        change: |inputs| set(&mut inputs.model.supply.waiting_mw, 0),
    },
    Change {
        what: "the voltages that the board's sensor shows (1188, 860 and 818 mV)",
        ids: &["R004-11", "R004-48"],
        rows: migration::waiting,
        change: |inputs| set_sensor_voltages(&mut inputs.model),
    },
    Change {
        what: "the voltages that the board's sensor shows (1188, 860 and 818 mV)",
        ids: FIXED_POWER,
        rows: migration_points::points,
        change: |inputs| {
            set_sensor_voltages(&mut inputs.model);
            // Between those of P0 and P1.
            inputs.lowered_mv = 860.0 + (1188.0 - 860.0) * 625.0 / 1100.0;
        },
    },
    Change {
        what: "a tenth of memory's time is at the clock of the L3 cache, that of the fastest core of the CCX",
        ids: FIXED_TIME,
        rows: migration_points::points,
        change: |inputs| inputs.memory_by_l3 = 0.1,
    },
];

/// The voltages of paper 004's P-states that the board's sensor shows, in place of those set.
fn set_sensor_voltages(model: &mut Model) {
    for (state, mv) in model.pstates.iter_mut().zip([1188, 860, 818]) {
        set(&mut state.mv, mv);
    }
}

/// The rows of power and of time at fixed clocks.
const FIXED_POWER: &[&str] = &[
    "R004-31b", "R004-32b", "R004-33b", "R004-34b", "R004-35b", "R004-36b", "R004-39b", "R004-40b",
    "R004-41b", "R004-42b", "R004-46b", "R004-47b",
];
const FIXED_TIME: &[&str] = &[
    "R004-38", "R004-39", "R004-40", "R004-41", "R004-42", "R004-46", "R004-47", "R004-50",
    "R004-51", "R004-52", "R004-53",
];

/// Changes the price of a move, if the model has it.
pub(crate) fn set_price(model: &mut Model, kind: &str, ns: f64) {
    for one in model.moves.iter_mut().filter(|one| one.kind == kind) {
        one.ns.value = ns;
    }
}

/// A hand-over to a thread that polls, there and back.
const POLLED_NS: f64 = 2.0 * 47.5;

/// The supposed causes of paper 001's rows.
const LIBRARY: &[Change] = &[
    Change {
        what: "the thread that takes bursts polls its queue (§3.4): a cache line there and one back, as on a server of the same microarchitecture (models/xeon-gold-6130.toml)",
        ids: &["R001-07"],
        rows: policy_server::sieve,
        change: |inputs| inputs.hand_over_ns = Some(POLLED_NS),
    },
    Change {
        what: "a page takes half as long",
        ids: &["R001-11b", "R001-11c", "R001-12", "R001-14"],
        rows: policy_server::nginx,
        change: |inputs| inputs.page *= 0.5,
    },
    Change {
        what: "a page takes half as long",
        ids: &["R001-19"],
        rows: policy_server::cores,
        change: |inputs| inputs.page *= 0.5,
    },
    Change {
        what: "all calls are moved, whatever the loop would decide",
        ids: &["R001-11b", "R001-11c", "R001-12"],
        rows: policy_server::nginx,
        change: |inputs| inputs.moves_all = true,
    },
    Change {
        what: "the dedicated core is an extra one",
        ids: &["R001-11b", "R001-11c", "R001-12"],
        rows: policy_server::nginx,
        change: |inputs| inputs.has_extra_core = true,
    },
    Change {
        what: "the first multiplication of 256 bits asks for L1 (R000-08 does not hold)",
        ids: &["R001-12", "R001-16"],
        rows: policy_server::nginx,
        change: |inputs| {
            for rule in &mut inputs.model.rules {
                set(&mut rule.instructions, 1);
                rule.instructions_log_sd = None;
            }
        },
    },
    Change {
        what: "the server gives the core back as soon as nothing is to be moved",
        ids: &["R001-12", "R001-14", "R001-15", "R001-16"],
        rows: policy_server::nginx,
        change: |inputs| inputs.keeps_core = Some(Nanos::ZERO),
    },
    Change {
        what: "a change of performance counts from 5 % on (the ε of the design in §4.2.3; a guess)",
        ids: &["R001-12", "R001-15", "R001-16"],
        rows: policy_server::nginx,
        change: |inputs| inputs.thresholds.least_trend = 0.05,
    },
    Change {
        what: "Linux's fair scheduler, not MuQSS",
        ids: &["R001-12", "R001-15", "R001-16"],
        rows: policy_server::nginx,
        change: |inputs| inputs.scheduler = Scheduling::Fair,
    },
    Change {
        what: "Linux's fair scheduler, not MuQSS",
        ids: &["R001-17", "R001-18", "R001-18b"],
        rows: policy_server::x264,
        change: |inputs| inputs.scheduler = Scheduling::Fair,
    },
    Change {
        what: "frames of the video take half as long, as long or twice as long",
        ids: &["R001-17"],
        rows: policy_server::x264,
        change: |inputs| inputs.edit = Load::with_uneven_frames,
    },
    Change {
        what: "a page takes half as long",
        ids: &["R001-18"],
        rows: policy_server::x264,
        change: |inputs| inputs.page *= 0.5,
    },
    Change {
        what: "a change of performance counts from 5 % on (the ε of the design in §4.2.3; a guess)",
        ids: &["R001-17", "R001-18"],
        rows: policy_server::x264,
        change: |inputs| inputs.thresholds.least_trend = 0.05,
    },
    Change {
        what: "each request holds a lock for 20 µs that all workers share",
        ids: &["R001-19b"],
        rows: policy_server::cores,
        change: |inputs| inputs.edit = Load::with_a_lock,
    },
    Change {
        what: "a page takes half as long",
        ids: &["R001-20"],
        rows: policy_server::studies,
        change: |inputs| inputs.page *= 0.5,
    },
    Change {
        what: "Linux's fair scheduler, not MuQSS",
        ids: &["R001-20"],
        rows: policy_server::studies,
        change: |inputs| inputs.scheduler = Scheduling::Fair,
    },
    Change {
        what: "a change of performance counts from 5 % on (the ε of the design in §4.2.3; a guess)",
        ids: &["R001-20"],
        rows: policy_server::studies,
        change: |inputs| inputs.thresholds.least_trend = 0.05,
    },
];

/// Changes a value of a model.
pub(crate) fn set<T>(key: &mut Option<Sourced<T>>, value: T) {
    if let Some(sourced) = key {
        sourced.value = value;
    }
}

/// Takes the standstills away.
fn without_standstills(model: &mut Model) {
    set(&mut model.request.stall_ns, 0);
    set(&mut model.release.stall_ns, 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Paper;

    #[test]
    fn the_sieve_is_a_hit_only_if_the_thread_that_takes_bursts_polls() {
        let mut inputs = Inputs::new(Paper::Avxfreq.model().unwrap(), &|| false);
        let row = |inputs: &Inputs<'_>| {
            let rows = policy_server::sieve(inputs).unwrap();
            rows.into_iter().find(|row| row.id == "R001-07").unwrap()
        };
        assert!(!row(&inputs).hit);
        inputs.hand_over_ns = Some(POLLED_NS);
        assert!(row(&inputs).hit);
    }
}
