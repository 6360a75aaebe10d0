//! `dimmer run --auto` without a daemon: trials decide under which mechanism a program is.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use dimmer_host::affinity;

use crate::migrate::{RUNS, away, wait_for};
use crate::victims::{self, Victims};
use crate::{boost, command, dimmer, stderr, stdout};

/// `dimmer run --auto=kept` with these arguments, where no daemon is.
fn auto(victims: &Victims, arguments: &[&str]) -> std::process::Command {
    auto_of(victims, "--auto=kept", arguments)
}

fn auto_of(victims: &Victims, auto: &str, arguments: &[&str]) -> std::process::Command {
    victims::library();
    let home = victims.directory.path();
    let mut command = command(home, &[&["run", auto], arguments].concat());
    command.env("HOME", home).env("DIMMER_SOCKET", home.join("none"));
    command.env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME");
    command
}

#[test]
fn a_program_that_does_more_when_its_calls_move_has_them_moved() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["gains"]) else { return };
    let program = victims.path("gains");
    let file = victims.directory.path().join("account.json");
    // On a busy machine a run may end before enough was seen.
    let gains = |run: usize| {
        let seconds = (3 + run).to_string();
        let arguments = ["--json=account.json", "--cpus", &cpu, "--", &program, &cpu, &seconds];
        let output = auto(&victims, &arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let account = std::fs::read_to_string(&file).unwrap();
        let account: serde_json::Value = serde_json::from_str(&account).unwrap();
        let tried = account["tried"].as_array().unwrap();
        assert_eq!(
            (&tried[0]["mechanism"], &tried[0]["gain"]),
            (&"none".into(), &None::<f64>.into())
        );
        let chosen: Vec<_> = tried.iter().filter(|one| one["is_chosen"] == true).collect();
        assert_eq!(chosen.len(), 1, "{account}");
        let gain = chosen[0]["gain"].as_f64();
        assert_eq!(gain.is_some(), chosen[0]["mechanism"] != "none", "{account}");
        gain.is_some_and(|gain| gain > 0.0) && account["moved"].as_u64() > Some(0)
    };
    assert!((0..RUNS).any(gains));
}

#[test]
fn hooks_that_cannot_help_are_taken_out_while_threads_call_there() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["hot"]) else { return };
    // The program ends as soon as its code is as it was built.
    let arguments = ["--json=account.json", "--cpus", &cpu, "--", &victims.path("hot"), "120"];
    let output = auto_of(&victims, "--auto=hot", &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), "changed: 1, then 0\n", "{}", stderr(&output));
    let account = std::fs::read_to_string(victims.directory.path().join("account.json")).unwrap();
    let account: serde_json::Value = serde_json::from_str(&account).unwrap();
    let hot = &account["functions"][0];
    assert_eq!((&hot["name"], &hot["verdict"]), (&"hot".into(), &"too short".into()), "{account}");
    assert_eq!(hot["is_unhooked"], true, "{account}");
    assert_eq!(account["tried"][1]["ruled_out"], "no calls", "{account}");
    assert!(stderr(&output).contains("counted only until"), "{}", stderr(&output));
}

#[test]
fn a_run_that_is_killed_in_a_trial_leaves_nothing_that_restore_does_not_undo() {
    if away().is_none() {
        return;
    }
    let Some(victims) = Victims::compile(&["orphan"]) else { return };
    let all = affinity::allowed().unwrap();
    let killed_in_trial = |_| {
        let mut run = auto(&victims, &["--", &victims.path("orphan")]);
        let run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut run = run.spawn().unwrap();
        let mut number = String::new();
        BufReader::new(run.stdout.take().unwrap()).read_line(&mut number).unwrap();
        let program: u32 = number.trim().parse().unwrap();
        let allowed = || affinity::allowed_to(program).unwrap_or_default();
        // In a trial the program keeps off the CPU that its calls go to.
        let is_in_trial = wait_for(|| allowed().len() < all.len());
        run.kill().unwrap();
        let was_off = allowed().len() < all.len();
        let restored = dimmer(victims.directory.path(), &["restore"]);
        assert!(wait_for(|| allowed() == all), "{:?} {}", allowed(), stderr(&restored));
        drop(run.stdin.take());
        run.wait().unwrap();
        is_in_trial && was_off
    };
    assert!((0..RUNS).any(killed_in_trial));
}

#[test]
fn locks_are_boosted_in_a_trial_and_the_machine_has_its_clocks_back() {
    let Some(victims) = Victims::compile(&["boosted"]) else { return };
    boost::build_library();
    let (program, machine) = (victims.path("boosted"), boost::Machine::new());
    let home = victims.directory.path();
    let file = machine.file("scaling_min_freq");
    // By this model no call of the program is worth moving.
    let options = ["--auto", "--model", "fx-8120", "--json=account.json", "--"];
    // On a busy machine trials may seem to lose, until the program gives up.
    let is_boosted = |_| {
        let mut run = command(home, &["--root", &machine.root(), "run"]);
        run.args(options).args([&program, &file, "4000000"]);
        run.env("HOME", home).env("DIMMER_SOCKET", home.join("none"));
        let output = run.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let account = std::fs::read_to_string(home.join("account.json")).unwrap();
        let account: serde_json::Value = serde_json::from_str(&account).unwrap();
        let boost = &account["tried"][1];
        assert_eq!(boost["mechanism"], "boost", "{account}");
        machine.check(["1000000", "3600000"]);
        let is_boosted = stdout(&output) == "4000000\n";
        assert!(!is_boosted || boost["times"].as_u64() > Some(0), "{account}");
        is_boosted
    };
    assert!((0..RUNS).any(is_boosted));
}
