//! `dimmer probe --once`: when there is nothing to measure.

use std::path::Path;
use std::process::Output;

use dimmer_host::cache;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use serde_json::{Value, json};

use crate::{command, stderr, stdout};

fn machine() -> Machine {
    Machine::read(&Root::live(), &Cpuid::instruction())
}

/// A probe of this kind of machine, as far as it is read.
fn document(machine: &Machine) -> Value {
    json!({
        "schema": "dimmer/probe/2",
        "verdict": { "effect": "no" },
        "machine": {
            "brand": machine.identity.brand,
            "microarchitecture": "",
            "microcode": machine.microcode,
            "hypervisor": machine.hypervisor,
            "cpus": 1,
            "time": "",
        },
        "results": [],
        "interrupted": false,
    })
}

/// Runs a probe that fails where it would measure: there is no such CPU.
fn probe(directory: &Path, arguments: &[&str]) -> Output {
    let all = [&["probe", "--once", "--cpu", "1000000"], arguments].concat();
    command(directory, &all).env("XDG_STATE_HOME", directory).output().unwrap()
}

#[track_caller]
fn measures(directory: &Path, arguments: &[&str]) {
    let output = probe(directory, arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stdout(&output));
    assert!(stderr(&output).contains("cpu"), "{arguments:?}: {}", stderr(&output));
}

#[track_caller]
fn leaves(directory: &Path, arguments: &[&str]) {
    let output = probe(directory, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    assert!(stdout(&output).starts_with("known: "), "{arguments:?}: {}", stdout(&output));
}

#[test]
fn with_a_model_only_files_that_are_not_there_are_measured() {
    let directory = tempfile::tempdir().unwrap();
    let (state, machine) = (directory.path().join("dimmer"), machine());
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    std::fs::create_dir(&state).unwrap();
    std::fs::write(state.join(cache::model_name(&machine, true)), "").unwrap();
    leaves(directory.path(), &[]);
    let files = [
        ("--csv=series", "series/one.csv"),
        ("--report=page.html", "page.html"),
        ("--textfile=node.prom", "node.prom"),
        ("--emit-model=model.toml", "model.toml"),
    ];
    std::fs::create_dir(directory.path().join("series")).unwrap();
    for (option, file) in files {
        measures(directory.path(), &[option]);
        write(file, "");
        if file != "series/one.csv" {
            measures(directory.path(), &[option]);
            write(file, "text");
        }
        leaves(directory.path(), &[option]);
    }
    measures(directory.path(), &["--json"]);
    measures(directory.path(), &["--json=/dev/stdout"]);
    leaves(directory.path(), &files.map(|(option, _)| option));
    let all = ["--json=probe.json", "--report=page.html"];
    measures(directory.path(), &all);
    let whole = document(&machine);
    for text in ["", "{", &whole.to_string()[..40]] {
        write("probe.json", text);
        measures(directory.path(), &all);
    }
    for (key, value) in [("/interrupted", json!(true)), ("/machine/microcode", json!("another"))] {
        let mut other = whole.clone();
        *other.pointer_mut(key).unwrap() = value;
        write("probe.json", &other.to_string());
        measures(directory.path(), &all);
    }
    write("probe.json", &whole.to_string());
    leaves(directory.path(), &all);
}
