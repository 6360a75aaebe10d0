//! Tests of scenarios, written of made-up traces and read back by the simulator.

use std::path::{Path, PathBuf};

use dimmer_host::cpuid::Cpuid;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_observe::{Clocks, Event, FunctionPlace, ThreadSeen};
use dimmer_processor::model::{Model, builtin};
use dimmer_processor::units::CpuId;
use dimmer_sim::Governor;
use dimmer_sim::scenario::Scenario;
use expect_test::{Expect, expect};

use super::*;
use crate::observe::{Known, KnownFile};
use crate::scan::{LeadingFunction, WideFunction};

const FILE: &str = "/lib/libwide.so.1";

/// Two functions: `wide` at 0x100, which `leader` at 0x300 jumps into, and `narrow` at 0x200.
fn known() -> Known {
    let function = |address: u64, name: &str, class: &str| -> WideFunction {
        serde_json::from_value(serde_json::json!({
            "address": address, "size": 0x100, "name": name, "name_source": "symbol", "origin": "symbol",
            "class": class, "level": null, "instructions": {class: 7}, "wide_instructions": 7,
            "zmm_instructions": 0, "evex_instructions": 0, "vzeroupper": false, "may_return_dirty": false,
            "loops": [], "hook_bytes": 5, "unhookable": null, "unhookable_why": null, "entries": [],
            "leaders": [],
        }))
        .unwrap()
    };
    let leader = LeadingFunction {
        address: 0x300,
        name: Some("leader".to_owned()),
        hook_bytes: Some(5),
        unhookable: None,
        unhookable_why: None,
    };
    let wide = WideFunction { leaders: vec![leader], ..function(0x100, "wide", "heavy-256") };
    let functions = vec![wide, function(0x200, "narrow", "light-128")];
    Known::from([(PathBuf::from(FILE), KnownFile { functions, counts: None })])
}

fn made(function: usize, lasted_ns: f64) -> Event {
    Event::Call { function, lasted_ns, stands_for: 1.0 }
}

fn gap(code_ns: f64, wait_ns: f64) -> Event {
    Event::Gap { code_ns, wait_ns }
}

fn trace(name: &str, events: Vec<Event>) -> ThreadTrace {
    let place = |address| FunctionPlace { file: Path::new(FILE).into(), address };
    ThreadTrace {
        name: name.to_owned(),
        cpus: vec![CpuId::new(0), CpuId::new(3)],
        functions: vec![place(0x100), place(0x200), place(0x300)],
        events,
        lasted: Duration::from_secs(2),
        waited: Duration::from_millis(500),
        queued: Duration::from_millis(20),
        ..ThreadTrace::default()
    }
}

/// What `then` makes of these traces. A chain of multiplications took 480 ns: the clock was 2 GHz.
fn with<T>(
    traces: Vec<ThreadTrace>,
    request: Option<&str>,
    then: impl FnOnce(&Written<'_>) -> T,
) -> Result<T, ScenarioError> {
    let table = "0x00000000 0x00: eax=0x00000001 ebx=0x0 ecx=0x0 edx=0x0\n";
    let mut machine = Machine::read(&Root::new("/nowhere"), &Cpuid::parse(table).unwrap());
    machine.identity.brand = "Some Processor".to_owned();
    machine.kernel_release = Some("6.18".to_owned());
    let clocks = Clocks { after: vec![480.0; 3], before: Vec::new() };
    let mut observed = Observed::default();
    observed.lasted = Duration::from_secs(2);
    observed.processes = 1;
    observed.threads = vec![ThreadSeen { clocks, ..ThreadSeen::default() }];
    observed.traces = traces;
    let command = ["/usr/bin/program".to_owned(), "a \"file\"".to_owned()];
    let run = Run {
        command: &command,
        is_counted: false,
        choice: None,
        status: None,
        hand_off: &[],
        is_governable: false,
        on_cpu: Duration::from_millis(1500),
        switches: 0,
        own_cpu: Duration::ZERO,
        observed: &observed,
        known: &known(),
        classes: &[],
        machine: &machine,
        functions: &[],
        model: None,
    };
    let traced = Traced {
        run: &run,
        in_kernel: Duration::from_millis(150),
        date: "2026-11-25",
        model: "i9-7940x",
        cores: 14,
        request,
    };
    Written::new(traced).map(|written| then(&written))
}

fn written(traces: Vec<ThreadTrace>, request: Option<&str>) -> Result<String, ScenarioError> {
    let check = Some(Check { recorded: 0.25, scenario: 0.241 });
    with(traces, request, |written| written.text(check))
}

#[track_caller]
fn check(traces: Vec<ThreadTrace>, request: Option<&str>, expected: Expect) {
    let text = written(traces, request).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let read = Scenario::parse(Path::new("written"), &text);
    assert!(read.is_ok(), "{read:?}\n{text}");
    expected.assert_eq(&text);
}

#[test]
fn a_thread_with_two_functions_that_waits() {
    let round = |n: u32| {
        let long = if n.is_multiple_of(2) { gap(80_000.0, 0.0) } else { gap(20_000.0, 300_000.0) };
        [
            made(0, 1000.0),
            gap(500.0, 0.0),
            made(1, f64::from(2000 + n)),
            gap(700.0, 0.0),
            made(0, 1000.0),
            long,
        ]
    };
    let events = (0..200).flat_map(round).collect();
    check(
        vec![trace("worker-1", events)],
        None,
        expect![[r##"
            # Measured by `dimmer observe --scenario`: the calls of hooked functions of `/usr/bin/program 'a
            # "file"'`, the code between them, and waits.
            #
            # Measured, in this run:
            # * durations of calls, gaps between them, calls of a burst, shares: all calls of 1 thread in 1
            #   process were timed, less what timing adds. A gap of 50.0 µs or a wait ends a burst;
            # * waits: the time that the kernel counted a thread off CPUs, in looks 2 ms apart. Which gap of a
            #   look it belongs to is an estimate: the longest ones, as many as the kernel counted waits.
            # Guesses:
            # * `per_cycle = 1`: `instructions` are cycles at 2.00 GHz, the median clock next to calls, measured
            #   by chains of multiplications. Cycles that wait for memory do not scale with the clock; they are
            #   not separated (`memory_ns`);
            # * `class` and `share`: all instructions of a call count as of the most demanding class that this
            #   processor runs in the function, or in hooked ones that it calls. A processor with wider vectors
            #   may take other functions;
            # * draws depend on the one before of their distribution alone (`correlation`): phases of the
            #   program are mixed.
            #
            # The program took 1.5 s of CPU time in 2.0 s, 10.0 % of it in the kernel, which counts as scalar
            # code.
            # Check, simulated on i9-7940x: above level L0, cores spend 25.0 % of their busy time with the
            # recorded steps themselves, 24.1 % with this scenario.

            schema = "dimmer/scenario/1"
            name = "program"
            source = "dimmer observe of program, 2.0 s, Some Processor, Linux 6.18, 2026-11-25"
            model = "i9-7940x"
            cores = 2
            end_us = 2_000_000

            [[code]]
            name = "scalar"
            class = "scalar"
            per_cycle = 1.0

            [[code]]
            name = "narrow"
            class = "light-128"
            per_cycle = 1.0

            [[code]]
            name = "wide"
            class = "heavy-256"
            per_cycle = 1.0

            # Mean 2 099 ns, of 200 values. In instructions.
            [[distribution]]
            name = "worker-1: narrow"
            quantiles = [
                [0, 4_000], [1, 4_400],
            ]
            correlation = 0.99

            # Mean 600 ns, of 400 values. In instructions.
            [[distribution]]
            name = "worker-1: within a burst"
            quantiles = [
                [0, 1_010], [0.5, 1_010], [0.55, 1_410], [1, 1_410],
            ]
            correlation = -0.99

            # 1 thread: 7.4 % of the time on CPUs in calls; 25.0 % of the time waiting, 1.0 % with the CPU taken
            # by others.
            [[thread]]
            name = "worker-1"
            times = 0
            steps = [
                { repeat = 3, steps = [
                    { choose = [
                        { share = 0.333, steps = [
                            { enter = "narrow" },
                            { run = "narrow", instructions = "worker-1: narrow" },
                            { leave = "narrow" },
                        ] },
                        { share = 0.667, steps = [
                            { enter = "wide" },
                            { run = "wide", instructions = 2_000 },
                            { leave = "wide" },
                        ] },
                    ] },
                    { run = "scalar", instructions = "worker-1: within a burst" },
                ] },
                { choose = [
                    { share = 0.503, steps = [{ run = "scalar", instructions = 159_000 }] },
                    { share = 0.497, steps = [
                        { run = "scalar", instructions = 38_800 },
                        { sleep_us = 300 },
                    ] },
                ] },
            ]
        "##]],
    );
}

#[test]
fn threads_that_do_alike_are_one_and_calls_without_an_end_a_number() {
    let calls = |_| [made(0, 50.0), gap(30.0, 0.0)];
    let thread = |number: u32| trace(&format!("pool {number}"), (0..100).flat_map(calls).collect());
    check(
        vec![thread(1), thread(2), thread(3)],
        None,
        expect![[r##"
            # Measured by `dimmer observe --scenario`: the calls of hooked functions of `/usr/bin/program 'a
            # "file"'`, the code between them, and waits.
            #
            # Measured, in this run:
            # * durations of calls, gaps between them, calls of a burst, shares: all calls of 3 threads in 1
            #   process were timed, less what timing adds. A gap of 50.0 µs or a wait ends a burst;
            # * waits: the time that the kernel counted a thread off CPUs, in looks 2 ms apart. Which gap of a
            #   look it belongs to is an estimate: the longest ones, as many as the kernel counted waits.
            # Guesses:
            # * `per_cycle = 1`: `instructions` are cycles at 2.00 GHz, the median clock next to calls, measured
            #   by chains of multiplications. Cycles that wait for memory do not scale with the clock; they are
            #   not separated (`memory_ns`);
            # * `class` and `share`: all instructions of a call count as of the most demanding class that this
            #   processor runs in the function, or in hooked ones that it calls. A processor with wider vectors
            #   may take other functions;
            # * draws depend on the one before of their distribution alone (`correlation`): phases of the
            #   program are mixed.
            #
            # The program took 1.5 s of CPU time in 2.0 s, 10.0 % of it in the kernel, which counts as scalar
            # code.
            # Check, simulated on i9-7940x: above level L0, cores spend 25.0 % of their busy time with the
            # recorded steps themselves, 24.1 % with this scenario.

            schema = "dimmer/scenario/1"
            name = "program"
            source = "dimmer observe of program, 2.0 s, Some Processor, Linux 6.18, 2026-11-25"
            model = "i9-7940x"
            cores = 2
            end_us = 7_810

            [[code]]
            name = "scalar"
            class = "scalar"
            per_cycle = 1.0

            [[code]]
            name = "wide"
            class = "heavy-256"
            per_cycle = 1.0

            # 3 threads: 62.7 % of the time on CPUs in calls; 25.0 % of the time waiting, 1.0 % with the CPU
            # taken by others.
            [[thread]]
            name = "pool"
            count = 3
            times = 0
            steps = [
                { repeat = 300, steps = [
                    { enter = "wide" },
                    { run = "wide", instructions = 100 },
                    { leave = "wide" },
                    { run = "scalar", instructions = 60 },
                ] },
            ]
        "##]],
    );
}

#[test]
fn functions_that_enter_others_have_their_class() {
    let calls = |_| [made(2, 50.0), gap(30.0, 0.0)];
    let text = written(vec![trace("worker", (0..100).flat_map(calls).collect())], None).unwrap();
    assert!(text.contains("name = \"leader\"\nclass = \"heavy-256\""), "{text}");
}

#[test]
fn requests_run_from_entry_to_entry() {
    let request = |n: u32| {
        let wait = if n.is_multiple_of(4) { 1e6 } else { 0.0 };
        let half = [gap(2000.0, wait), made(0, 400.0), gap(60_000.0, 0.0), made(0, 400.0)];
        [&[Event::Request][..], &half, &[gap(900.0, 0.0)]].concat()
    };
    let events = (0..100).flat_map(request).collect();
    check(
        vec![trace("server", events)],
        Some("handle"),
        expect![[r##"
        # Measured by `dimmer observe --scenario`: the calls of hooked functions of `/usr/bin/program 'a
        # "file"'`, the code between them, and waits.
        #
        # Measured, in this run:
        # * durations of calls, gaps between them, calls of a burst, shares: all calls of 1 thread in 1
        #   process were timed, less what timing adds. A gap of 50.0 µs or a wait ends a burst;
        # * waits: the time that the kernel counted a thread off CPUs, in looks 2 ms apart. Which gap of a
        #   look it belongs to is an estimate: the longest ones, as many as the kernel counted waits.
        # Guesses:
        # * `per_cycle = 1`: `instructions` are cycles at 2.00 GHz, the median clock next to calls, measured
        #   by chains of multiplications. Cycles that wait for memory do not scale with the clock; they are
        #   not separated (`memory_ns`);
        # * `class` and `share`: all instructions of a call count as of the most demanding class that this
        #   processor runs in the function, or in hooked ones that it calls. A processor with wider vectors
        #   may take other functions;
        # * draws depend on the one before of their distribution alone (`correlation`): phases of the
        #   program are mixed.
        #
        # The program took 1.5 s of CPU time in 2.0 s, 10.0 % of it in the kernel, which counts as scalar
        # code.
        # Check, simulated on i9-7940x: above level L0, cores spend 25.0 % of their busy time with the
        # recorded steps themselves, 24.1 % with this scenario.

        schema = "dimmer/scenario/1"
        name = "program"
        source = "dimmer observe of program, 2.0 s, Some Processor, Linux 6.18, 2026-11-25"
        model = "i9-7940x"
        cores = 2
        end_us = 2_000_000

        [[code]]
        name = "scalar"
        class = "scalar"
        per_cycle = 1.0

        [[code]]
        name = "wide"
        class = "heavy-256"
        per_cycle = 1.0

        # Mean 30.4 µs, of 198 values. In instructions.
        [[distribution]]
        name = "server: after a burst"
        quantiles = [
            [0, 1_720], [0.45, 1_720], [0.5, 114_000], [1, 114_000],
        ]
        correlation = -0.99

        # 1 thread: 1.3 % of the time on CPUs in calls; 25.0 % of the time waiting, 1.0 % with the CPU taken
        # by others. A request runs from one entry of `handle` to the next on its thread: 99 requests.
        [[thread]]
        name = "server"
        times = 0
        requests = "random"
        every_us = 316
        steps = [
            { run = "scalar", instructions = 4_000 },
            { repeat = 2, steps = [
                { enter = "wide" },
                { run = "wide", instructions = 800 },
                { leave = "wide" },
                { run = "scalar", instructions = "server: after a burst" },
            ] },
        ]
    "##]],
    );
}

#[test]
fn what_cannot_be_written_is_refused_with_the_reason() {
    let refused = |traces, request| written(traces, request).unwrap_err().to_string();
    assert_eq!(
        refused(Vec::new(), None),
        "no scenario can be written: no hooked function was called, so the program runs scalar code \
         alone as far as it was seen; --classes or --function hooks other functions"
    );
    let few = || vec![trace("one", vec![made(0, 1.0), gap(1.0, 0.0), made(0, 1.0)])];
    assert_eq!(
        refused(few(), None),
        "no scenario can be written: 2 calls in 1 thread, expected at least 10 gaps between calls that \
         follow each other"
    );
    assert_eq!(
        refused(few(), Some("handle")),
        "no scenario can be written: `handle` was entered too rarely to separate requests: 0 requests \
         from start to end were seen, expected at least 10"
    );
}

#[test]
fn recorded_steps_are_a_scenario() {
    let mut many = vec![made(0, 1000.0), gap(500.0, 3000.0), made(1, 100.0)];
    (0..20).for_each(|_| many.extend([gap(50.0, 0.0), made(1, 100.0)]));
    let recorded = with(vec![trace("one", many)], None, |written| written.recorded()).unwrap();
    for part in ["{ run = \"wide\", instructions = 2000.0 }", "{ sleep_us = 3.000 }", "cores = 2"] {
        assert!(recorded.contains(part), "{recorded}");
    }
    let read = Scenario::parse(Path::new("recorded"), &recorded);
    assert!(read.is_ok(), "{read:?}");
}

/// The share of the time in which cores execute code above the lowest level, on the i9-7940x.
fn above(text: &str) -> f64 {
    let model = Model::parse(Path::new("i9-7940x"), builtin("i9-7940x").unwrap()).unwrap();
    let scenario = Scenario::parse(Path::new("made"), text).unwrap();
    let (outcome, ()) = scenario.run(&model, Governor::Hardware, 1, (), &|_| false).unwrap();
    let levels = outcome.cores.iter().flat_map(|core| core.level.iter().enumerate());
    let (mut all, mut above) = (0.0, 0.0);
    for (level, time) in levels {
        all += time.ns();
        above += if level > 0 { time.ns() } else { 0.0 };
    }
    above / all
}

#[test]
fn a_scenario_keeps_levels_as_long_as_the_steps_of_which_it_was_made() {
    // Gaps of 30 us to 10 ms around the time for which a level is held, long ones after long ones,
    // and waits.
    let mut state = 5_u64;
    let mut draw = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / f64::from(1_u32 << 31)
    };
    let mut slow = 0.5;
    let mut events = Vec::new();
    for _ in 0..8000 {
        slow = 0.7 * slow + 0.3 * draw();
        let code = 30_000.0 * 300_f64.powf((slow + 0.3 * draw() - 0.2).clamp(0.0, 1.0));
        let wait = if draw() < 0.2 { 100_000.0 } else { 0.0 };
        events.extend([made(0, 500.0 + 4000.0 * draw()), gap(code, wait)]);
    }
    let traces = vec![trace("worker", events)];
    let (recorded, scenario) =
        with(traces, None, |written| (above(&written.recorded()), above(&written.text(None))))
            .unwrap();
    assert!((0.2..0.8).contains(&recorded), "{recorded}");
    assert!((recorded - scenario).abs() < 0.03, "{recorded} {scenario}");
}
