//! `dimmer run --auto`: the results of a run decide whether the program has narrower code
//! in the next run.

use std::path::Path;

use dimmer_host::cpuid::Cpuid;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;

use crate::migrate::away;
use crate::victims::{self, Victims};
use crate::{command, stderr, stdout};

/// A model in which 512-bit code lowers the clock by a tenth for 10 ms; the values are not
/// measured.
const MODEL: &str = r#"
schema = "dimmer/model/1"
name = "Made up"
vendor = "Nobody"
microarchitecture = "None"

[clock]
max_mhz = { value = 4000, source = "made up", guess = true }

[[level]]
name = "L0"

[[level]]
name = "L1"
clock_ratio = { value = 0.9, source = "made up", guess = true }

[[rule]]
class = "heavy-512"
level = { value = "L1", source = "made up", guess = true }

[release]
hold_ns = { value = 10_000_000, source = "made up", guess = true }
"#;

#[test]
fn a_run_whose_code_costs_much_has_the_next_run_narrower() {
    if !Machine::read(&Root::live(), &Cpuid::instruction()).has_more_than_256_bits() {
        println!("SKIPPED: the processor shows nothing wider than 256 bits");
        return;
    }
    let Some(_cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["narrowed"]) else { return };
    victims::library();
    let home = victims.directory.path();
    std::fs::write(home.join("made-up.toml"), MODEL).unwrap();
    let run = |program: &[&str], mechanism: &str, argument: &str| {
        let words = ["run", mechanism, "--model", "made-up.toml"];
        let json = ["--json=account.json"];
        let mut command = command(home, &[&words[..], &json, program, &[argument]].concat());
        command.env("HOME", home).env("DIMMER_SOCKET", home.join("none"));
        command.env_remove("XDG_CACHE_HOME").env_remove("GLIBC_TUNABLES");
        let output = command.output().unwrap();
        let account = std::fs::read_to_string(home.join("account.json")).unwrap();
        let account: serde_json::Value = serde_json::from_str(&account).unwrap();
        (stdout(&output), stderr(&output), account)
    };
    // The expected gain is a tenth. It is lower if other programs take the CPU during calls, since
    // their time counts as the calls' time; it is higher if they take it for long between calls.
    let own = |program: &[&str]| {
        let (form, told, account) = run(program, "--auto", "one");
        assert_eq!((form.as_str(), &account["is_narrow"]), ("own\n", &false.into()), "{told}");
        let [least, most] = [0, 1].map(|end| account["narrow_gain_ratio"][end].as_f64().unwrap());
        assert!(least < most, "{least} {most} {told}");
        (least + most, told)
    };
    let much =
        |program: &[&str]| (0..5).map(|_| own(program)).find(|(both, _)| *both >= 0.02).unwrap();
    let narrowed = victims.path("narrowed");
    // An interpreter loads libraries that are not known in advance, so it gets the switches of
    // libraries. So this program can be narrowed on any machine.
    let interpreter = victims.path("lua");
    victims::write_executable(Path::new(&interpreter), &std::fs::read(&narrowed).unwrap());
    let program = ["--", interpreter.as_str()];
    let (both, told) = much(&program);
    assert!(
        told.contains("The next run has narrower code, which by the model gives back"),
        "{both} {told}"
    );
    // `migrate` only moves calls; narrower code was not requested.
    let (form, told, account) = run(&program, "--migrate", "one");
    assert_eq!((form.as_str(), &account["is_narrow"]), ("own\n", &false.into()), "{told}");
    // Other arguments may mean other work.
    let (form, told, account) = run(&program, "--auto", "other");
    assert_eq!((form.as_str(), &account["is_narrow"]), ("own\n", &false.into()), "{told}");
    let (form, told, account) = run(&program, "--auto", "one");
    assert_eq!((form.as_str(), &account["is_narrow"]), ("narrow\n", &true.into()), "{told}");
    assert!(told.contains("This run has narrower code"), "{told}");
    assert_eq!(
        (&account["moved"], &account["narrow_gain_ratio"]),
        (&0.into(), &None::<f64>.into())
    );
    assert!(account["calls"].as_u64().unwrap() > 0, "{told}");
    // The C library's switch alone does nothing for this program, even if CPUID can be masked.
    let program = ["--only", "glibc", "--", narrowed.as_str()];
    let (both, told) = much(&program);
    assert!(told.contains("but nothing narrows this program here"), "{both} {told}");
    own(&program);
}
