//! How output looks: ASCII and plain digits without a terminal, at most as wide as a terminal
//! otherwise, and colors as `--color` has them.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::{command, dimmer, stderr, stdout};

const SCENARIO: &str = "scenarios/multiphase-worst-case.toml";
const GRAPH: &str = "crates/policy/src/phases/tests/mysql.txt";
const ZEN_1: &str = "machines/epyc-zen1-vm-linux-6.18-2026-11-24/probe-quick.json";
const ZEN_5: &str = "machines/epyc-zen5-vm-linux-6.18-2026-11-27/probe-quick.json";

/// Commands that need no privilege and no program. `ps` is not among them: names of processes may
/// have any characters.
const COMMANDS: [&[&str]; 16] = [
    &["doctor"],
    &["doctor", "--all"],
    &["probe", "--list"],
    &["merge", ZEN_1, ZEN_5],
    &["scan", "/proc/self/exe"],
    &["phases", GRAPH],
    &["restore"],
    &["sim", "run", SCENARIO],
    &["sim", "compare", SCENARIO, "--repeat", "1"],
    &["sim", "phases", "--model", "i9-7940x", "0", "0", "20000", "2000", "0", "666"],
    &["sim", "predict-lock", "--model", "fx-8120", "--section", "100us", "--wait", "1ms"],
    &["sim", "validate", "--paper", "000"],
    &["sim", "validate", "--paper", "004"],
    &["sim", "model", "list"],
    &["sim", "model", "show", "i9-7940x"],
    &["--help"],
];

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn output_without_a_terminal_is_ascii() {
    for arguments in COMMANDS {
        let output = dimmer(&root(), arguments);
        let text = stdout(&output);
        assert!(!text.is_empty(), "{arguments:?}: {}", stderr(&output));
        let other = text.lines().find(|line| !line.is_ascii() || line.contains('\x1b'));
        assert_eq!(other, None, "{arguments:?}");
    }
}

/// What `dimmer` prints on a terminal with these columns, without escape sequences for colors.
fn on_terminal(columns: u32, arguments: &[&str]) -> Option<String> {
    let words: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
    let dimmer = env!("CARGO_BIN_EXE_dimmer");
    let shell = format!("stty cols {columns} rows 50; '{dimmer}' {} 2>/dev/null", words.join(" "));
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &shell, "/dev/null"])
        .current_dir(root())
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::null())
        .output();
    let text = stdout(&output.ok()?);
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    let plain =
        |part: &str| part.split_once('m').map_or(String::new(), |(_, rest)| rest.to_owned());
    Some(parts.fold(first, |text, part| text + &plain(part)))
}

#[test]
fn output_is_not_wider_than_the_terminal() {
    if on_terminal(80, &["restore"]).is_none() {
        println!("SKIPPED: script (of util-linux) cannot be started");
        return;
    }
    for columns in [80, 160] {
        for arguments in COMMANDS {
            let text = on_terminal(columns, arguments).unwrap();
            assert!(!text.trim().is_empty(), "{arguments:?}");
            // What has no blank cannot be broken.
            let is_wide =
                |line: &&str| line.chars().count() > columns as usize && line.trim().contains(' ');
            assert_eq!(text.lines().find(is_wide), None, "{arguments:?} at {columns} columns");
        }
    }
}

#[test]
fn colors_are_those_that_are_asked_for() {
    let colored = |options: &[&str], variable: &str| {
        let arguments = [options, &["phases", GRAPH]].concat();
        let output = command(&root(), &arguments).env("NO_COLOR", variable).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output).contains('\x1b')
    };
    assert!(!colored(&[], ""));
    assert!(!colored(&["--color", "never"], ""));
    assert!(colored(&["--color", "always"], ""));
    assert!(colored(&["--color=always"], "1"));
    let output = dimmer(&root(), &["--color", "red", "doctor"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("[possible values: auto, always, never]"));
}
