//! Scenarios that run, and files that are not valid scenarios.

use super::*;
use crate::{Moment, Picos};

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
    check("cores = 2", "cores = -1", "s.toml: `cores` is -1, expected 1 to 4096");
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
    check("cpu = 1", "count = -1", "s.toml: thread `t`: `count` is -1, expected 1 to 65536");
    check("cpu = 1", "cpu = 1\ncount = 2", "`count` is 2 from `cpu` 1 on, but CPUs are 0 to 1");
    let second = "count = 65_536\nsteps = [{ sleep_us = 1 }]\n[[thread]]\nname = \"t\"\ncpu = 1";
    check("cpu = 1", second, "65537 threads or more, expected at most 65536");
    check("cpu = 1", "cached_kib = 1_048_577", "`cached_kib` is 1048577, expected 0 to 1048576");
    check("cpu = 1", "cached_kib = -1", "`cached_kib` is -1, expected 0 to 1048576");
    check("cpu = 1", "cpu = nan", "s.toml: line 13: `cpu`: invalid type");
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
    check("times = 3", "requests = \"often\"", "unknown variant `often`, expected one of `closed`");
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
    check("{ lock = 0 }", "{ lock = 0, pstate = \"P2\" }", "{ pstate = NAME }, { enter = REGION }");
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
