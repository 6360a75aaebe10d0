//! `dimmer study`: a small one, its documents, its cache, and input that it refuses.

use std::fs;
use std::path::Path;

use crate::{dimmer, heeding, stderr, stdout};

/// A server with marked calls of wide code, for a few milliseconds.
const TINY: &str = r#"
schema = "dimmer/scenario/1"
name = "A tiny server"
source = "made up for a test"
model = "i9-7940x"
cores = 3
end_us = 5_000
hand_over_us = 1.0
[[code]]
name = "scalar"
class = "scalar"
per_cycle = 1.5
[[code]]
name = "cipher"
class = "heavy-512"
per_cycle = 1.0
[[distribution]]
name = "page"
quantiles = [[0, 20], [1, 120]]
[[thread]]
name = "worker"
count = 2
times = 0
requests = "closed"
steps = [
    { run = "scalar", us = "page" },
    { enter = "seal" },
    { run = "cipher", instructions = 3_000 },
    { leave = "seal" },
]
"#;

fn study(directory: &Path, more: &[&str]) -> String {
    fs::write(directory.join("tiny.toml"), TINY).unwrap();
    let usual =
        ["study", "tiny.toml", "--model", "i9-7940x", "--model", "zen-5", "--cache", "kept"];
    let output = dimmer(directory, &[&usual, more].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

#[test]
fn a_small_study_is_the_same_from_its_cache_and_on_one_thread() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let first = study(directory, &["--json"]);
    let document: serde_json::Value = serde_json::from_str(&first).unwrap();
    assert_eq!(document["schema"], "dimmer/study/1");
    assert_eq!(document["partial"], false);
    let cases = document["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 2);
    let names = |case: usize, list: &str| -> Vec<&str> {
        let list = cases[case][list].as_array().unwrap();
        list.iter().map(|one| one["mechanism"].as_str().unwrap()).collect()
    };
    for name in ["none", "narrow", "delegate", "trials", "predictive", "oracle"] {
        assert!(names(0, "ranking").contains(&name), "{name}: {first}");
    }
    // A Zen 5 has no license levels, so there is nothing to govern.
    assert!(names(1, "others").contains(&"oracle"), "{first}");
    for ranked in cases.iter().flat_map(|case| case["ranking"].as_array().unwrap()) {
        assert!(ranked["reason"].as_str().unwrap().len() > 10, "{ranked}");
        assert!(ranked["p99_us"].as_f64().unwrap() > 10.0, "{ranked}");
    }
    assert_eq!(fs::read_dir(directory.join("kept")).unwrap().count(), 2);
    assert_eq!(first, study(directory, &["--json"]));
    fs::remove_dir_all(directory.join("kept")).unwrap();
    assert_eq!(first, study(directory, &["--json", "--jobs", "1"]));
}

#[test]
fn a_study_has_a_text_a_page_and_its_sensitivity() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let chosen = ["--mechanisms", "delegate,narrow,boost", "--seeds", "2", "--report", "page.html"];
    let text = study(directory, &[&chosen[..], &["--sensitivity", "--verbose"]].concat());
    for part in ["tiny.toml on i9-7940x", "hold time: ", "boost: does not apply: ", "gain"] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    let page = fs::read_to_string(directory.join("page.html")).unwrap();
    assert!(page.contains("id=\"model-i9-7940x\"") && page.contains("tiny.toml"), "{page}");
    assert!(!page.contains("<script") && !page.contains("http"), "{page}");
}

#[test]
fn without_a_home_directory_nothing_is_kept_and_nothing_fails() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("tiny.toml"), TINY).unwrap();
    let arguments = ["study", "tiny.toml", "--model", "zen-5", "--seeds", "1", "--json"];
    let mut command = heeding("--default-signal", directory.path(), &arguments);
    let output = command.env_remove("HOME").env_remove("XDG_CACHE_HOME").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn what_cannot_be_used_is_refused_with_what_is_accepted() {
    let check = |arguments: &[&str], status: i32, says: &[&str]| {
        let directory = tempfile::tempdir().unwrap();
        let output = dimmer(directory.path(), &[&["study"], arguments].concat());
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{message}");
        assert!(says.iter().all(|part| message.contains(part)), "{message}");
        assert!(output.stdout.is_empty());
    };
    check(&["no-such"], 2, &["no scenario or file `no-such`", "nginx-avx512", "x265"]);
    check(&["x264", "--model", "no-such"], 2, &["no model or file `no-such`", "i9-7940x"]);
    check(&["x264", "--mechanisms", "magic"], 2, &["'magic'", "delegate", "oracle"]);
    check(&["x264", "--seeds", "0"], 2, &["'0'", "--seeds", "1 to 1000"]);
    check(&["x264", "--jobs", "0"], 2, &["'0'", "--jobs", "1 to 1024"]);
    check(&["x264", "--auto=19"], 2, &["19", "--auto", "20 to 100000"]);
    check(&["x264", "--auto=a"], 2, &["'a'", "--auto"]);
    check(&["x264", "--cache", "/proc/no/such"], 1, &["/proc/no/such"]);
    check(&["x264", "--json=/proc/no/such"], 1, &["/proc/no/such"]);
}

#[test]
fn auto_is_judged_beside_each_mechanism_alone() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["study", "bursts-before-short-gaps", "--model", "i9-7940x", "--auto"];
    let output = stdout(&dimmer(directory.path(), &[&arguments[..], &["--json"]].concat()));
    let document: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!(document["schema"], "dimmer/study-auto/1");
    let case = &document["cases"][0];
    assert_eq!(case["auto"]["is_never_worse"], true, "{output}");
    assert_eq!(case["auto"]["is_as_good_as_the_best"], true, "{output}");
    assert!(case["alone"][0]["gain"].as_f64().unwrap() > 0.05, "{output}");
    let text = stdout(&dimmer(directory.path(), &arguments));
    assert!(text.contains("Of 1 pair: within 1 % of the best mechanism alone 1"), "{text}");
}

/// A thread that only sleeps is no program that anything could gain for.
#[test]
fn programs_without_work_do_not_count() {
    const SLEEPS: &str = "[[thread]]\nname = \"sleeper\"\ntimes = 0\nsteps = [{ sleep_us = 50 }]\n";
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (head, worker) = TINY.split_once("[[thread]]").unwrap();
    fs::write(directory.join("both.toml"), format!("{TINY}{SLEEPS}")).unwrap();
    fs::write(directory.join("none.toml"), format!("{head}{SLEEPS}")).unwrap();
    assert!(worker.contains("worker"));
    let study = |name: &str, more: &[&str]| {
        let usual = ["study", name, "--model", "i9-7940x", "--cache", "kept", "--seeds", "1"];
        let output = dimmer(directory, &[&usual, more].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let both: serde_json::Value = serde_json::from_str(&study("both.toml", &["--json"])).unwrap();
    let ranking = both["cases"][0]["ranking"].as_array().unwrap();
    assert!(!ranking.is_empty());
    assert!(ranking.iter().all(|ranked| ranked["gain"]["mean"].is_number()), "{both}");
    let none = study("none.toml", &["--verbose"]);
    assert!(none.contains("no program does any work under it"), "{none}");
}
