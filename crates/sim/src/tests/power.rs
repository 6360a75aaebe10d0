//! Tests of the energy of cores and packages.

use super::*;

/// A made-up processor of four cores with two P-states, both with loads. Waiting takes 40 W at
/// 3 GHz and 10 W at 1 GHz.
const MADE_UP: &str = r#"
schema = "dimmer/model/1"
name = "Made up"
vendor = "V"
microarchitecture = "M"
[topology]
cores = { value = 4, source = "s" }
[clock]
max_mhz = { value = 3000, source = "s" }
[[level]]
name = "L0"
[[pstate]]
name = "P0"
mhz = { value = 3000, source = "s" }
[[pstate]]
name = "P1"
mhz = { value = 1000, source = "s" }
[[power]]
load = "waiting"
pstate = "P0"
busy_cores = 0
package_mw = { value = 40_000, source = "s" }
[[power]]
load = "all"
pstate = "P0"
busy_cores = 4
package_mw = { value = 80_000, source = "s" }
[[power]]
load = "waiting"
pstate = "P1"
busy_cores = 0
package_mw = { value = 10_000, source = "s" }
[[power]]
load = "all"
pstate = "P1"
busy_cores = 4
package_mw = { value = 12_000, source = "s" }
"#;

fn made_up(text: &str) -> Model {
    Model::parse(std::path::Path::new("made-up"), text).unwrap()
}

#[track_caller]
fn close(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-9, "{found}, expected {expected}");
}

/// Two of four cores execute, one for a millisecond, the other for half of it, in two milliseconds.
#[test]
fn energy_is_power_times_time() {
    let settings = Settings { cores: 4, ..Settings::default() };
    let mut machine = Machine::new(&made_up(MADE_UP), settings, ()).unwrap();
    for (core, span) in [(0, MS), (2, MS / 2)] {
        let code = Step::Run(scalar(Extent::Time(span)));
        machine.spawn("a", Box::new(Script::once([code])), Some(core));
    }
    machine.run(at(2 * MS)).unwrap();
    let energy = machine.energy().unwrap();
    close(energy.packages[0].waiting_joules, 40.0 * 2e-3);
    close(energy.packages[0].joules, 40.0 * 2e-3 + 10.0 * 1.5e-3);
    close(energy.cores[0].joules, 10.0 * 1e-3);
    close(energy.cores[2].joules, 10.0 * 0.5e-3);
    assert_eq!((energy.cores[1].joules, energy.cores[2].pstates[0].time), (0.0, MS / 2));
    assert_eq!(energy.cores[2].pstates[1], AtPState::default());
}

#[test]
fn each_package_counts_its_own() {
    let text =
        MADE_UP.replace("[topology]", "[topology]\npackages = { value = 2, source = \"s\" }");
    let settings = Settings { cores: 8, ..Settings::default() };
    let mut machine = Machine::new(&made_up(&text), settings, ()).unwrap();
    let code = Step::Run(scalar(Extent::Time(MS)));
    machine.spawn("a", Box::new(Script::once([code])), Some(5));
    machine.run(at(MS)).unwrap();
    let joules: Vec<f64> =
        machine.energy().unwrap().packages.iter().map(|package| package.joules).collect();
    close(joules[0], 0.04);
    close(joules[1], 0.05);
}

#[test]
fn energy_that_the_model_does_not_tell_is_none() {
    let error = machine(Settings::default()).energy().unwrap_err().to_string();
    assert!(error.contains("does not say `power`"), "{error}");
    let text = builtin("i7-4770").unwrap();
    let model = Model::parse(std::path::Path::new("i7-4770"), text).unwrap();
    let mut machine = Machine::new(&model, Settings::default(), ()).unwrap();
    machine.run(at(MS)).unwrap();
    // Paper 002 table 3: waiting takes 25 W at P39.
    close(machine.energy().unwrap().packages[0].joules, 0.025);
    let code = Step::Run(scalar(Extent::Time(MS)));
    machine.spawn("a", Box::new(Script::once([code])), None);
    machine.run(at(2 * MS)).unwrap();
    assert_eq!(
        machine.energy().unwrap_err().to_string(),
        "no `[[power]]` of the model of Intel Core i7-4770 has 1 `busy_cores` at 3.90 GHz or more, which the energy needs"
    );
}
