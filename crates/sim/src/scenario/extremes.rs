//! Sets every number of models and scenarios to its extremes: each is refused with the accepted
//! range, or simulated within bounds.

use std::cell::Cell;

use dimmer_policy::server::loops;

use super::*;

/// A model with every number that the format has.
const MODEL: &str = r#"
schema = "dimmer/model/1"
name = "n"
vendor = "v"
microarchitecture = "m"
[topology]
packages = { value = 1, source = "s" }
cores = { value = 4, source = "s" }
threads_per_core = { value = 2, source = "s" }
l2_kib = { value = 1024, source = "s" }
l3_kib = { value = 4096, source = "s" }
[[cluster]]
name = "c"
cores = { value = 4, source = "s" }
max_mhz = { value = 3000, source = "s" }
capacity_ratio = { value = 1.0, source = "s" }
power_ratio = { value = 1.0, source = "s" }
[clock]
domain = { value = "core", source = "s" }
tsc_mhz = { value = 2000, source = "s" }
min_mhz = { value = 1000, source = "s" }
base_mhz = { value = 2000, source = "s" }
max_mhz = { value = 3000, source = "s" }
tdp_mw = { value = 100_000, source = "s" }
raise_period_ns = { value = 500_000, source = "s" }
divisor_step = { value = 0.25, source = "s" }
divisor_most = { value = 2.5, source = "s" }
[[level]]
name = "L0"
bins = [
    { from_cores = 1, cores = 2, mhz = { value = 3000, source = "s" } },
    { cores = 4, mhz = { value = 2500, source = "s" } },
]
issue_ratio = { value = 1.0, source = "s" }
[[level]]
name = "L1"
clock_ratio = { value = 0.8, source = "s" }
reduced_mhz = { value = 1500, source = "s" }
[[rule]]
class = "heavy-512"
level = { value = "L1", source = "s" }
instructions = { value = 10, source = "s" }
instructions_log_sd = { value = 0.5, source = "s" }
density_per_cycle = { value = 0.1, source = "s" }
grant_ns = { value = 10_000, source = "s" }
grant_log_sd = { value = 0.5, source = "s" }
[request]
throttle_factor = { value = 0.25, source = "s" }
chained_throttle_factor = { value = 0.5, source = "s" }
throttled_ns = { value = 20_000, source = "s" }
voltage_ns = { value = 1_000, source = "s" }
stall_ns = { value = 10_000, source = "s" }
slot_ns = { value = 500_000, source = "s" }
missed_share = { value = 0.1, source = "s" }
path = { value = "in-turn", source = "s" }
[release]
hold_ns = { value = 670_000, source = "s" }
extended_share = { value = 0.1, source = "s" }
extended_share_beside = { value = 0.2, source = "s" }
extended_ns = { value = 1_000_000, source = "s" }
stall_ns = { value = 10_000, source = "s" }
recurrence_ns = { value = 500_000, source = "s" }
recurrence_after_ns = { value = 10_000_000, source = "s" }
recurrence_slowdown = { value = 0.1, source = "s" }
episode_ns = { value = 30_000, source = "s" }
[[long_recurrence]]
level = { value = "L1", source = "s" }
burst_ns = { value = 10_000, source = "s" }
gap_ns = { value = 1_000_000, source = "s" }
slowdown = { value = 0.03, source = "s" }
[[pstate]]
name = "P0"
mhz = { value = 3000, source = "s" }
mv = { value = 1100, source = "s" }
[[pstate]]
name = "P1"
mhz = { value = 2000, source = "s" }
[supply]
domain = { value = "core", source = "s" }
awake_mw = { value = 3_000, source = "s" }
core_mw = { value = 1_000, source = "s" }
stalled_ratio = { value = 0.3, source = "s" }
waiting_mw = { value = 1_000, source = "s" }
[[power]]
load = "all"
pstate = "P0"
busy_cores = 4
package_mw = { value = 90_000, source = "s" }
[[power]]
load = "some"
pstate = "P0"
busy_cores = 1
slow_cores = 2
slow_pstate = "P1"
package_mw = { value = 50_000, source = "s" }
[[transition]]
from = "P0"
to = "P1"
request_ns = { value = 1_000, source = "s" }
total_ns = { value = 20_000, source = "s" }
[[transition]]
from = "P1"
to = "P0"
total_ns = { value = 20_000, source = "s" }
[[cstate]]
name = "C1"
exit_ns = { value = 1_000, source = "s" }
residency_ns = { value = 2_000, source = "s" }
[[move]]
kind = "thread by the kernel"
ns = { value = 2000.5, source = "s" }
[[move]]
kind = "thread in user mode"
ns = { value = 500.5, source = "s" }
[[move]]
kind = "cache-line within a package"
ns = { value = 50, source = "s" }
"#;

/// A scenario with every number that the format has; such a model can run it.
const SCENARIO: &str = r#"
schema = "dimmer/scenario/1"
name = "n"
source = "s"
model = "m"
cores = 2
threads_per_core = 2
smt_share = 0.6
idle_states = true
end_us = 40_000
hand_over_us = 1
wide_cores = 1
core_pstates = ["P0", "P1"]
mwait_cores = [0, 1]
[phases]
fast_cpu = 0
slow_cpu = 2
threshold = 0.01
keeps = 0.5
profile = [["burst", 0.1], ["scalar", 0.001]]
[[code]]
name = "scalar"
class = "scalar"
per_cycle = 1.0
share = 1.0
memory_ns = 0.05
activity = 1.5
traffic_nj = 2
[[code]]
name = "burst"
class = "heavy-512"
per_cycle = 2.0
[[distribution]]
name = "some"
quantiles = [[0, 2], [0.5, 2], [1, 40]]
correlation = 0.5
[[region]]
name = "r"
data_kib = 32
[[thread]]
name = "first"
count = 2
cpu = 1
cached_kib = 256
begin_us = 10
times = 20
steps = [
    { lock = 1 },
    { run = "scalar", us = 100 },
    { unlock = 1 },
    { enter = "r" },
    { run = "burst", instructions = 10_000 },
    { leave = "r" },
    { sleep_us = 50 },
    { repeat = 3, steps = [
        { choose = [
            { share = 0.5, steps = [{ run = "burst", us = "some" }] },
            { share = 0.5, steps = [{ run = "burst", instructions = "some" }, { sleep_us = "some" }] },
        ] },
    ] },
    { repeat = "some", steps = [{ sleep_us = 1 }] },
]
[[thread]]
name = "second"
times = 10
requests = "random"
every_us = 1000
steps = [
    { pstate = "P1" },
    { pstate = "P1", core = 1, by = 1 },
    { migrate = 1 },
    { lock = 0, wait = "spin" },
    { unlock = 0 },
    { mark = "burst" },
    { run = "burst", instructions = 10_000 },
    { pstate = "P0" },
    { mark = "scalar" },
    { run = "scalar", us = 100 },
]
"#;

const EXTREMES: [&str; 16] = [
    "-1",
    "0",
    "1",
    "0.5",
    "-0.0",
    "1e-300",
    "100",
    "10_000",
    "1_000_000_000",
    "4_294_967_296",
    "9_223_372_036_854_775_807",
    "18_446_744_073_709_551_616",
    "1e300",
    "nan",
    "inf",
    "-inf",
];

/// Extremes that no number of either file may have.
const NEVER: [&str; 7] = [
    "-1",
    "9_223_372_036_854_775_807",
    "18_446_744_073_709_551_616",
    "1e300",
    "nan",
    "inf",
    "-inf",
];

/// How often a run may ask whether to stop: once in 1024 events. None of the runs here needs a
/// hundredth of that many.
const MOST_ASKED: u32 = 1000;

/// The numbers in a text: their keys, and the byte ranges of the numbers.
fn numbers(text: &str) -> Vec<(&str, std::ops::Range<usize>)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let mut found: Vec<(&str, std::ops::Range<usize>)> = Vec::new();
    let mut key = "";
    for (at, _) in text.match_indices(" = ") {
        let before = &text[..at];
        let start = before.rfind(|c| !is_part(c)).map_or(0, |at| at + 1);
        if &before[start..] != "value" {
            key = &before[start..];
        }
        let value = at + 3;
        let length = text[value..].find(|c| !is_part(c)).unwrap_or(text.len() - value);
        if text[value..].starts_with(|c: char| c.is_ascii_digit()) {
            found.push((key, value..value + length));
        }
    }
    found
}

/// Checks that a scenario or a model is refused, or that the run ends within bounds.
#[track_caller]
fn check(model: &str, scenario: &str, key: &str, extreme: &str) {
    let what = format!("{key} = {extreme}");
    let said = match Model::parse(Path::new("m.toml"), model) {
        Err(error) => error.to_string(),
        Ok(model) => match Scenario::parse(Path::new("s.toml"), scenario) {
            Err(error) => error.to_string(),
            Ok(scenario) => {
                assert!(!NEVER.contains(&extreme), "{what} is accepted");
                return runs(&model, &scenario, &what);
            }
        },
    };
    assert!(said.contains("m.toml:") || said.contains("s.toml: "), "{what}: {said}");
    if NEVER.contains(&extreme) && !said.contains("too large") && !said.contains("not fit") {
        assert!(said.contains(&format!("`{key}`")), "{what}: {said}");
        assert!(said.contains("expected"), "{what}: {said}");
    }
}

#[track_caller]
fn runs(model: &Model, scenario: &Scenario, what: &str) {
    for governor in [Governor::Hardware, Governor::AvxFreq, Governor::Predictive] {
        for mechanism in [
            Moving::None,
            Moving::Loop(loops::USUAL),
            Moving::Phases(Guided::Profile),
            Moving::Phases(Guided::Learning),
        ] {
            let asked = Cell::new(0);
            let stops = |_| {
                asked.set(asked.get() + 1);
                asked.get() > MOST_ASKED
            };
            let settings = scenario.settings(model, governor, mechanism, 1);
            let ran = settings.and_then(|settings| scenario.run_on(model, settings, (), &stops));
            // A model may also lack a value that the scenario needs.
            if let Ok((outcome, ())) = ran {
                assert!(!outcome.is_partial, "{what} with {governor:?}, {mechanism:?} goes on");
            }
        }
    }
}

#[test]
fn every_number_of_a_model_at_its_extremes_is_refused_or_ends() {
    let plain = Model::parse(Path::new("m.toml"), MODEL).expect("a model");
    let scenario = Scenario::parse(Path::new("s.toml"), SCENARIO).expect("a scenario");
    let settings = scenario.settings(&plain, Governor::Hardware, Moving::None, 1).unwrap();
    scenario.run_on(&plain, settings, (), &|_| false).expect("a run");
    for (key, place) in numbers(MODEL) {
        for extreme in EXTREMES {
            let mut model = MODEL.to_owned();
            model.replace_range(place.clone(), extreme);
            check(&model, SCENARIO, key, extreme);
        }
    }
}

#[test]
fn every_number_of_a_scenario_at_its_extremes_is_refused_or_ends() {
    for (key, place) in numbers(SCENARIO) {
        for extreme in EXTREMES {
            let mut scenario = SCENARIO.to_owned();
            scenario.replace_range(place.clone(), extreme);
            check(MODEL, &scenario, key, extreme);
        }
    }
}

/// The keys in the tables and steps of the documentation, whose text is in `document`.
fn documented(document: &str) -> Vec<&str> {
    let rows = document.lines().filter(|line| line.starts_with('|'));
    rows.flat_map(|row| row.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn no_number_of_the_documents_is_left_out() {
    // `others`: all other words in code there, which are no keys, or keys without a number.
    let check = |document: &str, text: &str, others: &[&str]| {
        let known: Vec<&str> = numbers(text).into_iter().map(|(key, _)| key).collect();
        for word in documented(document) {
            let is_key = word
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit());
            if is_key && !others.contains(&word) {
                assert!(known.contains(&word), "`{word}` has no extremes");
            }
        }
        for word in others {
            assert!(!known.contains(word), "`{word}` is a number");
        }
    };
    let words = [
        "schema",
        "name",
        "vendor",
        "microarchitecture",
        "note",
        "topology",
        "clock",
        "request",
        "release",
        "long_recurrence",
        "level",
        "cluster",
        "rule",
        "pstate",
        "power",
        "supply",
        "transition",
        "cstate",
        "move",
        "domain",
        "bins",
        "class",
        "upper",
        "path",
        "extended_level",
        "extended_class",
        "load",
        "slow_pstate",
        "needs_idle",
        "from",
        "to",
        "kind",
        "value",
        "source",
        "guess",
        "ci95",
        "scalar",
        "tile",
        "nop",
    ];
    check(include_str!("../../../../docs/model.md"), MODEL, &words);
    let words = [
        "schema",
        "name",
        "source",
        "model",
        "idle_states",
        "scheduler",
        "fair",
        "muqss",
        "pstate",
        "class",
        "scalar",
        "tile",
        "chained",
        "dirty_upper",
        "program",
        "requests",
        "steps",
        "true",
        "none",
        "auto",
        "thresholds",
        "trials",
        "always",
        "domain",
        "choose",
        "wait",
        "distribution",
        "region",
        "quantiles",
        "include",
        "specialise",
        "system_call",
        "core_pstates",
        "mwait_cores",
        "phases",
        "mark",
        "profile",
        "supply",
    ];
    check(include_str!("../../../../docs/scenario.md"), SCENARIO, &words);
}
