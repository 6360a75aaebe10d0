//! Steps of scenarios about locks and cores: ways to wait, requests for other cores, migrations.

use std::path::Path;

use dimmer_processor::model::{Model, builtin};
use dimmer_sim::scenario::{Outcome, Scenario};
use dimmer_sim::{Governor, Picos};

/// Runs threads on CPUs 0 and 2 of the FX-8120, of which the first has a lock for 200 µs, with
/// these steps of the second.
fn run(first: &str, second: &str) -> Result<Outcome, String> {
    let thread = |name: &str, cpu: usize, steps: &str| {
        format!("[[thread]]\nname = \"{name}\"\ncpu = {cpu}\ntimes = 1\nsteps = [{steps}]\n")
    };
    let text = format!(
        "schema = \"dimmer/scenario/1\"\nname = \"n\"\nsource = \"s\"\nmodel = \"fx-8120\"\n\
         cores = 8\nidle_states = true\npstate = \"P6\"\nend_us = 1000\n\
         [[code]]\nname = \"code\"\nclass = \"scalar\"\nper_cycle = 1.0\n{}{}",
        thread("first", 0, first),
        thread("second", 2, second),
    );
    let scenario =
        Scenario::parse(Path::new("s.toml"), &text).map_err(|error| error.to_string())?;
    let model = Model::parse(Path::new("m"), builtin("fx-8120").unwrap()).unwrap();
    let outcome = scenario.run(&model, Governor::Hardware, 1, (), &|_| false);
    outcome.map(|(outcome, ())| outcome).map_err(|error| error.to_string())
}

const OWNER: &str = "{ lock = 0 }, { run = \"code\", us = 200 }, { unlock = 0 }";

fn ns(ns: u64) -> Picos {
    Picos::from_ps(1000 * ns)
}

#[test]
fn a_thread_waits_for_a_lock_in_three_ways() {
    let waits = |way: &str| {
        let then = "{ run = \"code\", us = 100 }, { unlock = 0 }";
        let outcome = run(OWNER, &format!("{{ lock = 0, wait = \"{way}\" }}, {then}")).unwrap();
        let core = &outcome.cores[2];
        (core.idle, core.delayed)
    };
    // The core is idle at the end, too.
    assert_eq!(waits("spin"), (ns(700_000), Picos::ZERO));
    assert_eq!(waits("mwait"), (ns(900_000), ns(454)));
    assert_eq!(waits("block"), (ns(900_000), ns(22_021)));
}

#[test]
fn a_request_keeps_the_core_that_makes_it() {
    let stolen = |request: &str| {
        let outcome = run("{ run = \"code\", us = 300 }", request).unwrap();
        [0, 2].map(|core| outcome.cores[core].stolen)
    };
    let code = "{ run = \"code\", us = 300 }";
    assert_eq!(stolen(&format!("{{ pstate = \"P0\" }}, {code}")), [Picos::ZERO, ns(471)]);
    assert_eq!(stolen(&format!("{{ pstate = \"P0\", core = 0 }}, {code}")), [ns(471), Picos::ZERO]);
    let by = format!("{{ pstate = \"P0\", core = 2, by = 0 }}, {code}");
    assert_eq!(stolen(&by), [ns(471), Picos::ZERO]);
}

#[test]
fn a_thread_migrates_to_a_cpu_of_the_machine() {
    let code = "{ run = \"code\", us = 100 }";
    let outcome = run(code, &format!("{code}, {{ migrate = 6 }}, {code}")).unwrap();
    // The core wakes up from C6 as well.
    assert_eq!(outcome.cores[6].delayed, ns(22_021 + 6682));
    assert!(outcome.cores[6].idle < ns(901_000));
    let error = run(code, "{ migrate = 8 }").unwrap_err();
    assert_eq!(error, "thread second migrates to CPU 8, expected 0 to 7");
    let error = run(code, "{ pstate = \"P0\", core = 9 }").unwrap_err();
    assert_eq!(error, "thread second migrates to CPU 9, expected 0 to 7");
}
