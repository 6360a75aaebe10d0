//! Scenarios that run, and files that are not valid scenarios.

use super::*;
use crate::{Moment, Picos, WideCores};

const PS: Picos = Picos::from_ps(1000);

const GOOD: &str = r#"
schema = "dimmer/scenario/1"
name = "n"
source = "s"
model = "i9-7940x"
cores = 2
[[code]]
name = "scalar"
class = "scalar"
per_cycle = 1.0
[[thread]]
name = "t"
cpu = 1
times = 3
steps = [{ run = "scalar", us = 10 }, { sleep_us = 5 }, { lock = 0 }, { unlock = 0 }]
"#;

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(Path::new("s.toml"), text)
}

/// Checks the error message if `from` is replaced by `to`.
#[track_caller]
fn check(from: &str, to: &str, expected: &str) {
    assert!(GOOD.contains(from));
    let error = parse(&GOOD.replace(from, to)).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_scenario_runs() {
    let model = dimmer_processor::model::builtin("i9-7940x").unwrap();
    let model = Model::parse(Path::new("m"), model).unwrap();
    let scenario = parse(GOOD).unwrap();
    let (mut machine, end) = scenario.machine(&model, Governor::Hardware, 1, ()).unwrap();
    assert!(!machine.run(end).unwrap());
    let totals = machine.threads().next().unwrap();
    assert_eq!(totals.finished, Some(Moment::START + 45_000 * PS));
    assert!((totals.instructions[0] - 3.0 * 43_000.0).abs() < 1.0);
    let (outcome, ()) = scenario.run(&model, Governor::Hardware, 1, (), &|_| false).unwrap();
    let phases = &outcome.threads[0].phases;
    assert_eq!((phases.len(), phases[0].code.as_str(), phases[0].time), (1, "scalar", 30_000 * PS));
}

#[test]
fn whatever_is_wrong_is_told_with_its_place() {
    check(
        "cores = 2",
        "core = 2",
        "s.toml: line 6: unknown field `core`, expected one of `schema`",
    );
    check("cores = 2", "cores = -1", "s.toml: line 6: `cores` is -1, expected 1 to 4096");
    check("cores = 2", "cores = 0", "`cores` is 0, expected 1 to 4096");
    check(
        "{ lock = 0 }",
        "{ lock = 70_000 }",
        "thread `t`, step 3: `lock` is 70000, expected 0 to 65535",
    );
    check("dimmer/scenario/1", "dimmer/scenario/2", "expected \"dimmer/scenario/1\"");
    check("class = \"scalar\"", "class = \"wide\"", "code `scalar`: ");
    check(
        "per_cycle = 1.0",
        "per_cycle = 0",
        "`per_cycle` is 0, expected a number from 0.000001 to 64",
    );
    check("us = 10 }", "us = 1e300 }", "expected a number from 0.000001 to 86400000000");
    check("cpu = 1", "cpu = 2", "thread `t`: `cpu` is 2, expected 0 to 1");
    check("cpu = 1", "count = 0", "thread `t`: `count` is 0, expected 1 to 65536");
    check("cpu = 1", "count = 65_537", "thread `t`: `count` is 65537, expected 1 to 65536");
    check(
        "cpu = 1",
        "count = -1",
        "s.toml: line 13: thread `t`: `count` is -1, expected 1 to 65536",
    );
    check("cpu = 1", "cpu = 1\ncount = 2", "`count` is 2 from `cpu` 1 on, but CPUs are 0 to 1");
    let second = "count = 65_536\nsteps = [{ sleep_us = 1 }]\n[[thread]]\nname = \"t\"\ncpu = 1";
    check("cpu = 1", second, "65537 threads or more, expected at most 65536");
    check("cpu = 1", "cached_kib = 1_048_577", "`cached_kib` is 1048577, expected 0 to 1048576");
    check("cpu = 1", "cached_kib = -1", "`cached_kib` is -1, expected 0 to 1048576");
    check("cpu = 1", "cpu = nan", "s.toml: line 13: `cpu`: found");
    check("times = 3", "times = 0", "for ever, but there is no `end_us`");
    check(
        "run = \"scalar\"",
        "run = \"x\"",
        "thread `t`, step 1: no code `x`, expected one of scalar",
    );
    check("us = 10 }", "us = 0 }", "thread `t`, step 1: `us` is 0");
    check(", us = 10 }", " }", "expected either `us` or `instructions`");
    check("{ sleep_us = 5 }", "{ sleep_us = 5, lock = 1 }", "thread `t`, step 2: expected { run");
    check("{ run = \"scalar\", us = 10 }, { sleep_us = 5 }, ", "", "none of them takes any time");
    check("cores = 2", "cores = 2\nthreads_per_core = 2", "`smt_share` is missing");
    check("times = 3", "requests = \"even\"", "together with `every_us`");
    check("times = 3", "requests = \"often\"", "unknown name `often`, expected one of `closed`");
}

#[test]
fn equal_threads_are_numbered_and_each_has_its_cpu() {
    let names = |text: &str| -> Vec<(String, Option<usize>)> {
        let threads = parse(text).unwrap().threads.into_iter();
        threads.map(|thread| (thread.name, thread.cpu)).collect()
    };
    let named = |cpus: &[Option<usize>]| -> Vec<(String, Option<usize>)> {
        cpus.iter().enumerate().map(|(index, cpu)| (format!("t {}", index + 1), *cpu)).collect()
    };
    let two = GOOD.replace("cpu = 1", "count = 2\ncpu = 0");
    assert_eq!(names(&two), named(&[Some(0), Some(1)]));
    assert_eq!(names(&GOOD.replace("cpu = 1", "count = 3")), named(&[None; 3]));
    assert_eq!(names(&GOOD.replace("cpu = 1", "count = 1")), named(&[None]));
    assert_eq!(names(GOOD), [("t".to_owned(), Some(1))]);
    // The same as if the threads were written one by one.
    let model = dimmer_processor::model::builtin("i9-7940x").unwrap();
    let model = Model::parse(Path::new("m"), model).unwrap();
    let i = GOOD.find("[[thread]]").unwrap();
    let one = |number: usize| {
        GOOD[i..]
            .replace("\"t\"", &format!("\"t {number}\"\nprogram = \"t\""))
            .replace("cpu = 1", &format!("cpu = {}", number - 1))
    };
    let outcome = |text: &str| {
        parse(text).unwrap().run(&model, Governor::Hardware, 1, (), &|_| false).unwrap().0
    };
    assert_eq!(outcome(&two), outcome(&format!("{}{}{}", &GOOD[..i], one(1), one(2))));
}

#[test]
fn threads_ask_for_p_states_of_the_model() {
    let text =
        GOOD.replace("i9-7940x", "fx-8120").replace("cores = 2", "cores = 2\npstate = \"P6\"");
    let text = text.replace("steps = [", "steps = [{ pstate = \"P2\" }, ");
    let model = |name| {
        Model::parse(Path::new(name), dimmer_processor::model::builtin(name).unwrap()).unwrap()
    };
    let scenario = parse(&text).unwrap();
    let (outcome, ()) =
        scenario.run(&model("fx-8120"), Governor::Hardware, 1, (), &|_| false).unwrap();
    // P6 to P2 takes 45.8 us, so the first 10 us are slow, and those of the next rounds faster.
    let cycles = outcome.threads[0].phases[0].instructions;
    assert!((1.4 * 29_000.0..3.1 * 27_000.0).contains(&cycles), "{cycles}");
    let error = scenario.run(&model("i7-4770"), Governor::Hardware, 1, (), &|_| false).unwrap_err();
    assert!(error.to_string().contains("no P-state `P6`, expected P39, P34"), "{error}");
    let ways = "thread `t`, step 3: `wait` is `sleep`, expected block, spin or mwait";
    check("{ lock = 0 }", "{ lock = 0, wait = \"sleep\" }", ways);
    check("{ lock = 0 }", "{ sleep_us = 1, wait = \"spin\" }", "expected { run");
    check("{ lock = 0 }", "{ pstate = \"P2\", by = 1 }", "step 3: `by` needs `core`");
    check("{ lock = 0 }", "{ core = 1 }", "expected { run");
    check("{ lock = 0 }", "{ migrate = 1, lock = 1 }", "expected { run");
    check("{ lock = 0 }", "{ migrate = -1 }", "step 3: `migrate` is -1, expected 0 to 32767");
    check("{ lock = 0 }", "{ lock = 0, pstate = \"P2\" }", "{ pstate = NAME }, { system_call");
}

/// CPU 1 is free after 5 ms. Then it takes the movable thread, which waits for CPU 0, with 256 KiB
/// of the caches: 4096 lines of 47.5 ns.
#[test]
fn who_takes_a_thread_over_fetches_what_it_has_in_caches() {
    let model = |name| {
        Model::parse(Path::new(name), dimmer_processor::model::builtin(name).unwrap()).unwrap()
    };
    let head = &GOOD[..GOOD.find("[[thread]]").unwrap()];
    let thread =
        |keys: &str, steps: &str| format!("[[thread]]\nname = \"t\"\n{keys}\nsteps = [{steps}]\n");
    let run = |us: u32| format!("{{ run = \"scalar\", us = {us} }}");
    let delayed = |name, cached: &str| {
        let threads = [
            thread(cached, &run(8000)),
            thread("cpu = 0", &format!("{{ sleep_us = 1000 }}, {}", run(6000))),
            thread("cpu = 1", &run(5000)),
        ];
        let scenario = parse(&format!("{head}{}", threads.concat())).unwrap();
        let run = scenario.run(&model(name), Governor::Hardware, 1, (), &|_| false);
        let cores = run.unwrap().0.cores;
        [cores[0].delayed, cores[1].delayed]
    };
    assert_eq!(delayed("xeon-gold-6130", "cached_kib = 256"), [Picos::ZERO, 194_560 * PS]);
    assert_eq!(delayed("xeon-gold-6130", ""), [Picos::ZERO; 2]);
    assert_eq!(delayed("i9-7940x", "cached_kib = 256"), [Picos::ZERO; 2]);
}

/// A server of 10 us a request: alone, and at 90 % of its capacity, where requests queue up if they
/// arrive at random.
#[test]
fn latencies_are_counted_from_when_requests_come() {
    let model = dimmer_processor::model::builtin("i9-7940x").unwrap();
    let model = Model::parse(Path::new("m"), model).unwrap();
    let latencies = |requests: &str| {
        let one = GOOD.replace("times = 3", &format!("times = 20_000\n{requests}"));
        let i = one.find("steps").unwrap();
        let steps = "steps = [{ run = \"scalar\", us = 10 }]";
        let scenario = parse(&format!("{}{steps}", &one[..i])).unwrap();
        let (outcome, ()) = scenario.run(&model, Governor::Hardware, 1, (), &|_| false).unwrap();
        outcome.threads[0].latencies.unwrap()
    };
    let close = |found: u64, expected: f64| (found as f64 / expected - 1.0).abs() < 0.1;
    for requests in ["requests = \"closed\"", "requests = \"even\"\nevery_us = 11.111"] {
        let found = latencies(requests);
        assert_eq!(found.requests, 20_000);
        assert!(close(found.p50, 10_000.0) && close(found.longest, 10_000.0), "{found:?}");
    }
    let found = latencies("requests = \"random\"\nevery_us = 11.111");
    // A queue with random arrivals and constant service time (Pollaczek and Khinchine): mean 10 us
    // x (1 + 0.9 / (2 x 0.1)).
    assert!((found.mean / 55_000.0 - 1.0).abs() < 0.2 && found.p99 > 150_000, "{found:?}");
}

#[test]
fn regions_are_entered_and_left_in_order() {
    let expected = "expected a `leave` for each `enter`";
    let of = |steps: &str| GOOD.replacen("steps = [", &format!("steps = [{steps}"), 1);
    assert!(
        parse(&of("{ enter = \"a\" }, { enter = \"b\" }, { leave = \"b\" }, { leave = \"a\" }, "))
            .is_ok()
    );
    for wrong in [
        "{ enter = \"a\" }, ",
        "{ leave = \"a\" }, ",
        "{ enter = \"a\" }, { enter = \"b\" }, { leave = \"a\" }, { leave = \"b\" }, ",
    ] {
        check("steps = [", &format!("steps = [{wrong}"), expected);
    }
}

#[test]
fn regions_say_what_their_code_reads_and_writes() {
    let of = |tables: &str| {
        let region = "steps = [{ enter = \"a\" }, { leave = \"a\" }, ";
        let text = GOOD.replacen("steps = [", region, 1);
        text.replacen("[[thread]]", &format!("{tables}[[thread]]"), 1)
    };
    let region =
        |name: &str, kib: &str| format!("[[region]]\nname = \"{name}\"\ndata_kib = {kib}\n");
    assert!(parse(&of(&region("a", "32"))).is_ok());
    for (tables, expected) in [
        (region("b", "32"), "region `b` is entered by no thread"),
        (region("a", "32") + &region("a", "16"), "region `a` stands twice"),
        (region("a", "-1"), "region `a`: `data_kib` is -1, expected 0 to 1048576"),
    ] {
        let error = parse(&of(&tables)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn threads_begin_when_they_are_to() {
    let text = GOOD.replacen("steps = [", "begin_us = 20_000\nsteps = [", 1);
    let model =
        Model::parse(Path::new("i9-7940x"), dimmer_processor::model::builtin("i9-7940x").unwrap());
    let scenario = parse(&text).unwrap();
    let (outcome, ()) =
        scenario.run(&model.unwrap(), Governor::Hardware, 1, (), &|_| false).unwrap();
    assert!(outcome.cores.iter().all(|core| core.idle >= 20_000_000 * PS));
    check("steps = [", "begin_us = -1\nsteps = [", "`begin_us` is -1");
}

/// A scenario with these distributions, code that rises the level, and one thread with these keys
/// and steps.
fn with(tables: &str, keys: &str, steps: &str) -> String {
    format!(
        "{}{tables}\n[[code]]\nname = \"burst\"\nclass = \"heavy-512\"\nper_cycle = 2\n\
         [[thread]]\nname = \"t\"\n{keys}\nsteps = [{steps}]\n",
        &GOOD[..GOOD.find("[[thread]]").unwrap()]
    )
}

fn outcome(text: &str, governor: Governor) -> Outcome {
    let model = dimmer_processor::model::builtin("i9-7940x").unwrap();
    let model = Model::parse(Path::new("m"), model).unwrap();
    parse(text).unwrap().run(&model, governor, 5, (), &|_| false).unwrap().0
}

/// Of each thread, when it finished, and its instructions and time in all.
fn sums(outcome: &Outcome) -> Vec<(Option<Moment>, f64, Picos)> {
    let threads = outcome.threads.iter().map(|thread| {
        let instructions = thread.phases.iter().map(|phase| phase.instructions).sum::<f64>();
        let time = thread.phases.iter().map(|phase| phase.time).sum();
        (thread.finished, instructions.round(), time)
    });
    threads.collect()
}

#[test]
fn a_block_is_the_same_as_its_steps_written_out() {
    let inner = "{ lock = 1 }, { run = \"burst\", us = 30 }, { unlock = 1 }, ";
    let outer =
        |inner: &str| format!("{{ run = \"scalar\", us = 700 }}, {inner}{{ sleep_us = 5 }}, ");
    let block = |count: usize, steps: &str| format!("{{ repeat = {count}, steps = [{steps}] }}, ");
    let last = "{ run = \"scalar\", instructions = 1000 }";
    let written = format!("{}{last}", outer(&inner.repeat(3)).repeat(4));
    let none = block(0, inner);
    let blocks = format!("{none}{}{last}", block(4, &format!("{none}{}", outer(&block(3, inner)))));
    // The predictive one learns each step as written by itself.
    for governor in Governor::ALL.into_iter().filter(|one| *one != Governor::Predictive) {
        let of =
            |steps: &str| outcome(&with("", "times = 7\nrequests = \"closed\"", steps), governor);
        let (written, blocks) = (of(&written), of(&blocks));
        assert_eq!(written.cores, blocks.cores);
        assert_eq!(sums(&written), sums(&blocks));
        assert_eq!(written.threads[0].latencies, blocks.threads[0].latencies);
        let codes: Vec<&str> =
            blocks.threads[0].phases.iter().map(|phase| phase.code.as_str()).collect();
        assert_eq!(codes, ["burst", "burst", "scalar", "burst", "scalar"]);
        assert_eq!(blocks.threads[0].phases[0].time, Picos::ZERO);
    }
}

fn distribution(name: &str, quantiles: &str, correlation: &str) -> String {
    format!(
        "[[distribution]]\nname = \"{name}\"\nquantiles = [{quantiles}]\n\
         correlation = {correlation}\n"
    )
}

#[test]
fn a_distribution_of_one_value_is_the_same_as_the_number() {
    let tables = [
        distribution("3", "[0, 3], [1, 3]", "0.5"),
        distribution("20", "[0, 20], [0.5, 20], [1, 20]", "0"),
        distribution("5e3", "[0, 5e3], [1, 5e3]", "-0.99"),
    ];
    let steps = |quote: &str| {
        let of = |number: &str| format!("{quote}{number}{quote}");
        format!(
            "{{ repeat = {}, steps = [{{ run = \"burst\", us = {} }}, {{ sleep_us = {} }}, \
             {{ run = \"scalar\", instructions = {} }}] }}",
            of("3"),
            of("20"),
            of("3"),
            of("5e3")
        )
    };
    for governor in Governor::ALL {
        // The processor's own chance is another thread's: draws do not change it.
        let of = |quote| outcome(&with(&tables.concat(), "times = 20", &steps(quote)), governor);
        assert_eq!(of("\""), of(""));
    }
}

#[test]
fn draws_of_nothing_are_skipped() {
    let tables = distribution("0", "[0, 0], [1, 0.4]", "0")
        + &distribution("1e-7", "[0, 0], [1, 1e-7]", "0");
    let steps = "{ repeat = \"0\", steps = [{ run = \"burst\", us = 1 }] }, \
                 { run = \"burst\", instructions = \"0\" }, { run = \"burst\", us = \"1e-7\" }, \
                 { sleep_us = \"1e-7\" }, { run = \"scalar\", us = 10 }";
    let outcome = outcome(&with(&tables, "times = 9", steps), Governor::Hardware);
    assert_eq!(outcome.threads[0].finished, Some(Moment::START + 90_000 * PS));
    assert_eq!(outcome.segments, 9);
}

#[test]
fn branches_are_chosen_by_their_shares() {
    let steps = "{ choose = [{ share = 6, steps = [{ run = \"scalar\", us = 1 }] }, \
                 { share = 3, steps = [{ run = \"burst\", us = 1 }, { run = \"scalar\", us = 1 }] }, \
                 { share = 1, steps = [] }] }, { sleep_us = 1 }";
    let outcome = outcome(&with("", "times = 100_000", steps), Governor::Hardware);
    let us = |phase: usize| outcome.threads[0].phases[phase].time.ns() / 1000.0;
    assert!((us(0) / 60_000.0 - 1.0).abs() < 0.02, "{}", us(0));
    assert!((us(1) / 30_000.0 - 1.0).abs() < 0.02, "{}", us(1));
    assert_eq!(us(1), us(2));
}

/// Each thread has its own chance, and the seed decides it. The oracle's copies draw what the
/// thread will draw, and do not change it.
#[test]
fn draws_are_of_the_seed_and_of_the_thread() {
    let tables = distribution("d", "[0, 1], [0.9, 50], [1, 2000]", "0.7");
    let keys = "count = 2\ntimes = 200";
    let steps = "{ run = \"scalar\", us = \"d\" }, { sleep_us = \"d\" }, \
                 { choose = [{ share = 1, steps = [{ run = \"burst\", us = 3 }] }, \
                 { share = 4, steps = [] }] }";
    let text = with(&tables, keys, steps);
    let finished = |text: &str, governor| {
        let threads = outcome(text, governor).threads.into_iter();
        threads.map(|thread| thread.finished).collect::<Vec<_>>()
    };
    let hardware = finished(&text, Governor::Hardware);
    assert_ne!(hardware[0], hardware[1]);
    // All extents are times, so no governor changes when threads finish.
    for governor in Governor::ALL {
        assert_eq!(finished(&text, governor), hardware, "{}", governor.name());
    }
}

#[track_caller]
fn refused(tables: &str, keys: &str, steps: &str, expected: &str) {
    let error = parse(&with(tables, keys, steps)).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn blocks_that_are_wrong_are_refused_with_their_place() {
    let run = "{ run = \"scalar\", us = 1 }";
    let repeat = |count: &str, steps: &str| format!("{{ repeat = {count}, steps = [{steps}] }}");
    let one = |steps: &str, expected: &str| refused("", "", steps, expected);
    for wrong in ["-1", "1.5", "1_000_000_001", "nan", "inf"] {
        one(&repeat(wrong, run), "expected a whole number from 0 to 1000000000, or the name");
    }
    one(&repeat("true", run), "found boolean `true`, expected a number or the name of a");
    one(&repeat("2", ""), "thread `t`, step 1: `repeat` has no steps");
    one(
        &format!("{run}, {}", repeat("2", &format!("{run}, {{ run = \"x\", us = 1 }}"))),
        "thread `t`, step 2, step 2: no code `x`, expected one of burst, scalar",
    );
    one("{ repeat = 2 }", "expected { run = CODE");
    one(&format!("{{ steps = [{run}] }}"), "{ repeat = N, steps = [...] }");
    one(&format!("{{ repeat = 2, steps = [{run}], us = 1 }}"), "expected { run = CODE");
    one(&format!("{{ repeat = 2, steps = [{run}], choose = [] }}"), "expected { run = CODE");
    one("{ choose = [] }", "`choose` has no branches");
    for wrong in ["0", "-1", "nan", "inf", "1e10"] {
        let choice = format!(
            "{{ choose = [{{ share = 1, steps = [] }}, {{ share = {wrong}, steps = [] }}] }}"
        );
        one(&choice, "thread `t`, step 1, branch 2: `share` is ");
    }
    one(
        "{ choose = [{ share = 1, steps = [{ lock = -1 }] }] }",
        "step 1, branch 1, step 1: `lock` is -1",
    );
    one("{ choose = [{ steps = [] }] }", "missing field `share`");
    let mut nested = run.to_owned();
    for _ in 0..8 {
        nested = repeat("2", &nested);
    }
    assert!(parse(&with("", "", &nested)).is_ok());
    one(&repeat("2", &nested), "step 1: blocks are nested deeper, expected at most 8 deep");
    for _ in 0..20_000 {
        nested = repeat("2", &nested);
    }
    parse(&with("", "", &nested)).unwrap_err();
    // Regions are left in the block in which they are entered.
    let expected = "expected a `leave` for each `enter` of the same steps";
    let (enter, leave) = ("{ enter = \"r\" }", "{ leave = \"r\" }");
    one(&format!("{enter}, {}", repeat("2", &format!("{run}, {leave}"))), expected);
    one(&format!("{}, {leave}", repeat("2", enter)), expected);
    one(&format!("{{ choose = [{{ share = 1, steps = [{enter}] }}] }}, {leave}"), expected);
    let within = repeat("2", &format!("{enter}, {}, {leave}", repeat("2", run)));
    assert!(parse(&with("", "", &format!("{enter}, {within}, {leave}"))).is_ok());
}

#[test]
fn threads_that_recur_take_time_for_certain() {
    let tables =
        distribution("zero", "[0, 0], [1, 5]", "0") + &distribution("some", "[0, 1], [1, 5]", "0");
    let expected = "none of them takes any time for certain";
    let steps = |within: &str| {
        [
            format!("{{ repeat = 2, steps = [{within}] }}"),
            format!("{{ repeat = \"some\", steps = [{within}] }}"),
            format!("{{ choose = [{{ share = 1, steps = [{within}] }}] }}"),
        ]
    };
    let run = |us: &str| format!("{{ run = \"scalar\", us = {us} }}");
    for steps in steps(&run("\"some\"")) {
        assert!(parse(&with(&tables, "times = 2", &steps)).is_ok(), "{steps}");
    }
    for steps in steps(&run("\"zero\"")) {
        refused(&tables, "times = 2", &steps, expected);
        assert!(parse(&with(&tables, "times = 1", &steps)).is_ok(), "{steps}");
    }
    for steps in [
        format!("{{ repeat = 0, steps = [{}] }}", run("1")),
        format!("{{ repeat = \"zero\", steps = [{}] }}", run("1")),
        format!(
            "{{ choose = [{{ share = 1, steps = [{}] }}, {{ share = 1, steps = [] }}] }}",
            run("1")
        ),
        "{ run = \"scalar\", instructions = \"zero\" }, { sleep_us = \"zero\" }".to_owned(),
    ] {
        refused(&tables, "times = 2", &steps, expected);
    }
}

#[test]
fn no_file_makes_a_simulation_endless() {
    let nested = |count: &str, within: &str| {
        (0..3).fold(within.to_owned(), |within, _| {
            format!("{{ repeat = {count}, steps = [{within}] }}")
        })
    };
    let expected = "steps, expected at most 1000000000: with less in `times`, `repeat`";
    let second = "{ run = \"scalar\", us = 1_000_000 }";
    refused("", "", &nested("1e9", second), expected);
    refused("", "", &nested("1e9", "{ lock = 1 }, { unlock = 1 }"), expected);
    let most = distribution("most", "[0, 0], [1, 1e9]", "0");
    refused(&most, "", &nested("\"most\"", second), expected);
    refused("", "count = 65_536", &nested("30", second), expected);
    refused(
        "",
        "count = 65_536",
        &[second; 16].join(", "),
        "1048576 steps as written, expected at most 1000000",
    );
    // With an end, time bounds them; but not what takes none.
    let ended = |tables: &str, steps: &str| {
        parse(&with(tables, "", steps).replace("cores = 2", "cores = 2\nend_us = 1e9"))
    };
    assert!(ended("", &nested("1e9", second)).is_ok());
    assert!(ended(&most, &format!("{}, {second}", nested("\"most\"", second))).is_ok());
    assert!(ended(&most, &format!("{{ repeat = 1e9, steps = [{{ repeat = \"most\", steps = [{second}] }}, {second}] }}")).is_ok());
    assert!(ended("", &nested("1e9", "{ lock = 1 }, { unlock = 1 }")).is_err());
    // Few enough, but all at one moment.
    let text = with("", "", "{ repeat = 1e8, steps = [{ choose = [{ share = 1, steps = [] }] }] }");
    let model = dimmer_processor::model::builtin("i9-7940x").unwrap();
    let model = Model::parse(Path::new("m"), model).unwrap();
    let ran = parse(&text).unwrap().run(&model, Governor::Hardware, 1, (), &|_| false);
    assert_eq!(
        ran.unwrap_err().to_string(),
        "thread t goes on at 0 µs of simulated time without doing anything"
    );
}

#[test]
fn distributions_that_are_wrong_are_refused_with_their_place() {
    let run = "{ run = \"scalar\", us = \"d\" }";
    let of = |quantiles: &str, correlation: &str, expected: &str| {
        refused(&distribution("d", quantiles, correlation), "", run, expected);
    };
    of("[0, 1]", "0", "distribution `d`: `quantiles` has 1 pairs, expected 2 to 1000");
    of(&["[0, 1]"; 1001].join(", "), "0", "has 1001 pairs");
    of("[0.1, 1], [1, 1]", "0", "`quantiles` go from 0.1 to 1, expected probabilities from 0 to 1");
    of("[0, 1], [0.9, 1]", "0", "`quantiles` go from 0 to 0.9");
    of("[0, 1], [0.5, 1], [0.5, 2], [1, 3]", "0", "has [0.5, 2] after [0.5, 1], expected a higher");
    of("[0, 1], [nan, 1], [1, 3]", "0", "has [NaN, 1] after [0, 1]");
    of("[0, 1], [0.5, nan], [1, 3]", "0", "has [0.5, NaN] after [0, 1]");
    of(
        "[0, 2], [1, 1]",
        "0",
        "has [1, 1] after [0, 2], expected a higher probability, and a value",
    );
    of("[0, -1], [1, 1]", "0", "has values from -1 to 1, expected numbers from 0 on");
    of("[0, 1], [1, inf]", "0", "has values from 1 to inf");
    of("[0, 1], [1]", "0", "`quantiles` has 1 numbers in a pair, expected [share, value]");
    of("[0, 1], [1, 2, 3]", "0", "`quantiles` has 3 numbers in a pair");
    of("[0, 1], [1, 2]", "1", "distribution `d`: `correlation` is 1, expected -0.99 to 0.99");
    of("[0, 1], [1, 2]", "nan", "`correlation` is NaN, expected -0.99 to 0.99");
    of(
        "[0, 1], [1, 8.65e10]",
        "0",
        "step 1: `us`: distribution `d` has values up to 86500000000, expected at most 86400000000",
    );
    let good = distribution("d", "[0, 1], [1, 1.1e12]", "0");
    let count = "{ run = \"scalar\", instructions = \"d\" }";
    refused(
        &good,
        "",
        count,
        "`instructions`: distribution `d` has values up to 1100000000000, expected at most 1000000000000",
    );
    refused(
        &good,
        "",
        &format!("{{ repeat = \"d\", steps = [{count}] }}"),
        "`repeat`: distribution `d` has values up to",
    );
    refused(
        &good,
        "",
        "{ sleep_us = \"x\" }",
        "`sleep_us`: no distribution `x`, expected a number or one of d",
    );
    refused("", "", "{ sleep_us = \"x\" }", "expected a number: there is no `[[distribution]]`");
    refused(&(good.clone() + &good), "", count, "distribution `d` stands twice");
}

#[test]
fn specialised_cores_need_what_they_are_told_to_need() {
    check(
        "cores = 2",
        "cores = 2\nwide_cores = 2",
        "line 7: `wide_cores` is 2, expected fewer than the 2 `cores`",
    );
    check("cores = 2", "cores = 2\nwide_cores = 0", "`wide_cores` is 0, expected 1 to 4096");
    check("{ sleep_us = 5 }", "{ sleep_us = 5, system_call = \"read\" }", "expected { run = CODE");
    let model = dimmer_processor::model::builtin("i9-7940x").unwrap();
    let model = Model::parse(Path::new("m"), model).unwrap();
    let specialise = Moving::Specialise(Specialising::Paper);
    let of = |keys: &str| {
        let scenario = parse(&GOOD.replace("cores = 2", keys)).unwrap();
        let settings = scenario.settings(&model, Governor::Hardware, specialise, 1);
        settings.map(|settings| settings.specialise.map(|of| of.wide_cores))
    };
    assert_eq!(
        of("cores = 2\nscheduler = \"muqss\"\nwide_cores = 1"),
        Ok(Some(WideCores::Fixed(1)))
    );
    let error = |keys| of(keys).unwrap_err().to_string();
    assert!(error("cores = 2\nwide_cores = 1").contains("needs `scheduler = \"muqss\"`"));
    assert!(error("cores = 2\nscheduler = \"muqss\"").contains("needs `wide_cores`"));
}
