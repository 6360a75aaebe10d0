//! Marked regions run where the environment says, and the program does the same everywhere.
#![expect(clippy::print_stdout, reason = "tests that cannot run here say so")]

use std::path::PathBuf;
use std::process::{Command, Output};

use dimmer_host::affinity;
use dimmer_runtime::{Decision, Site};

/// Runs the example; its output.
fn run(settings: &[(&str, &str)]) -> Output {
    let own = std::env::current_exe().unwrap();
    let example: PathBuf = own.parent().unwrap().parent().unwrap().join("examples/regions");
    let mut command = Command::new(example);
    command.env_remove("DIMMER_POLICY").env_remove("DIMMER_CORES");
    command.envs(settings.iter().copied()).output().unwrap()
}

/// The standard output of a run that ended well.
fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn calls(text: &str) -> &str {
    text.lines().find(|line| line.starts_with("calls ")).unwrap()
}

#[test]
fn regions_run_where_the_environment_says_and_give_the_same() {
    let allowed = affinity::allowed().unwrap();
    let Some(last) = allowed.last().filter(|_| allowed.len() > 1) else {
        println!("SKIPPED: moving work takes two CPUs, and this process may run on one");
        return;
    };
    let there = last.index().to_string();
    let plain = text(&run(&[]));
    for policy in ["borrow", "offload"] {
        let output = run(&[("DIMMER_POLICY", policy), ("DIMMER_CORES", &there)]);
        let moved = text(&output);
        assert_eq!(output.stderr, b"");
        assert_eq!(calls(&moved), calls(&plain));
        assert!(
            moved.starts_with(&format!("ran on [[{there}, {there}]], the closure on {there}, ")),
            "{moved}"
        );
    }
}

#[test]
fn calls_are_counted_by_samples() {
    let text = text(&run(&[]));
    let line = text.lines().find(|line| line.starts_with("transform: about ")).unwrap();
    let about: u64 = line.split_whitespace().nth(2).unwrap().parse().unwrap();
    // A thousand, two sites: what is sampled stands for up to 511 entries.
    assert!((200..=2200).contains(&about), "{line}");
}

#[test]
fn wrong_settings_are_said_once_and_everything_stays() {
    for (settings, said) in [
        ([("DIMMER_POLICY", "far"), ("DIMMER_CORES", "1")], "none of `stay`, `offload`, `borrow`"),
        ([("DIMMER_POLICY", "borrow"), ("DIMMER_CORES", "")], "names no core"),
        ([("DIMMER_POLICY", "borrow"), ("DIMMER_CORES", "1000")], "allowed are"),
    ] {
        let output = run(&settings);
        let errors = String::from_utf8(output.stderr.clone()).unwrap();
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains(said), "{errors}");
        assert_eq!(calls(&text(&output)), calls(&text(&run(&[]))));
    }
}

#[test]
fn a_site_knows_its_name_and_place_and_takes_decisions() {
    static NAMED: Site = Site::new("named", "a.rs", 3);
    static BARE: Site = Site::new("", "a.rs", 4);
    assert_eq!((NAMED.name(), BARE.name()), ("named".to_owned(), "a.rs:4".to_owned()));
    NAMED.decide(Decision::Stay);
    assert_eq!(NAMED.run(|| 3), 3);
    assert_eq!(NAMED.place(), ("a.rs".into(), 3));
}
