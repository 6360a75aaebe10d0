//! `dimmer sim fit`: a fit of recorded runs, its files, its exit statuses, and refused input.

use std::fs;
use std::path::Path;

use crate::{dimmer, stderr, stdout};

const SERVER: &str = r#"
schema = "dimmer/scenario/1"
name = "A server"
source = "made up for a test"
model = "i9-7940x"
cores = 1
end_us = 20_000
[[code]]
name = "scalar"
class = "scalar"
per_cycle = 1.5
[[distribution]]
name = "page"
quantiles = [[0, 20_000], [1, 60_000]]
[[thread]]
name = "worker"
times = 0
requests = "closed"
steps = [{ run = "scalar", instructions = "page" }, { run = "scalar", instructions = 50_000 }]
"#;

const FIT: &str = r#"
schema = "dimmer/fit/1"
scenario = "server.toml"
[[parameter]]
keys = ["scenario:thread.worker.steps.2.instructions"]
low = 1e3
high = 1e6
[[target]]
metric = "requests_per_s"
runs = { file = "runs.json", values = "ways.plain.runs.*.requests_per_s" }
[[target]]
metric = "p50_us"
runs = { file = "runs.csv", column = "ms", where = { way = "plain" }, times = 1000 }
check = true
"#;

/// What a server with 90 000 instructions in each request gives, at 4.3 GHz, with 1 % of scatter:
/// 6.45 instructions a nanosecond.
fn record(directory: &Path) {
    let runs = [70_900.0, 71_700.0, 72_400.0].map(|rate| format!("{{\"requests_per_s\": {rate}}}"));
    let json = format!("{{\"ways\": [{{\"way\": \"plain\", \"runs\": [{}]}}]}}", runs.join(", "));
    fs::write(directory.join("runs.json"), json).unwrap();
    let csv = "way,ms\nplain,0.01385\nplain,0.0140\nnarrow,0.5\nplain,0.0141\n";
    fs::write(directory.join("runs.csv"), csv).unwrap();
    fs::write(directory.join("server.toml"), SERVER).unwrap();
}

fn fit(directory: &Path, text: &str, more: &[&str]) -> std::process::Output {
    fs::write(directory.join("fit.toml"), text).unwrap();
    dimmer(directory, &[&["sim", "fit", "fit.toml"], more].concat())
}

#[test]
fn recorded_runs_are_fitted_and_the_scenario_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    record(directory);
    let files = ["--emit-scenario", "new.toml", "--json=fit.json"];
    let output = fit(directory, FIT, &files);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    let text = stdout(&output);
    assert!(text.starts_with("server.toml on i9-7940x\n"), "{text}");
    let json = fs::read_to_string(directory.join("fit.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["schema"], "dimmer/fit-result/1");
    let parameter = &json["parameters"][0];
    let number = |of: &serde_json::Value| of.as_f64().unwrap();
    let [low, high] = [0, 1].map(|end| number(&parameter["ci95"][end]));
    assert!(low < 50_000.0 && 50_000.0 < high && high < 1.2 * low, "{parameter}");
    assert_eq!(json["targets"][1]["agrees"], true);
    // What was written is a scenario that gives what was measured.
    let output = dimmer(directory, &["sim", "run", "new.toml", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let run: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let served = number(&run["threads"][0]["latencies_us"]["requests"]) / 0.02;
    assert!((served / 71_667.0 - 1.0).abs() < 0.02, "{served}");
}

#[test]
fn what_the_runs_do_not_tell_ends_with_status_3_and_no_number() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    record(directory);
    let text = FIT.replace("thread.worker.steps.2.instructions", "thread.worker.cached_kib");
    let without = text.replace("thread.worker.cached_kib", "end_us").replace("1e6", "1e5");
    let output = fit(directory, &without, &[]);
    assert_eq!(output.status.code(), Some(3), "{}", stdout(&output));
    let shown = stdout(&output);
    assert!(shown.contains("not identified") || shown.contains("at least"), "{shown}");
    let output = fit(directory, &text, &[]);
    assert_eq!(output.status.code(), Some(2));
    let expected =
        "no `cached_kib` in `thread.worker`, expected one of name, requests, steps, times";
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
}

#[test]
fn input_that_cannot_be_used_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    record(directory);
    let refused = |text: &str, more: &[&str], expected: &str| {
        let output = fit(directory, text, more);
        assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    };
    refused(FIT, &["--emit-model", "m.toml"], "--emit-model: no parameter is one of its keys");
    assert!(!directory.join("m.toml").exists());
    refused(&FIT.replace("low = 1e3", "low = nan"), &[], "`low` is NaN");
    refused(&FIT.replace("runs.json", "none.json"), &[], "none.json");
    refused(
        &FIT.replace("server.toml", "none"),
        &[],
        "expected a file or one of batch-beside-x265",
    );
    refused("", &[], "fit.toml: line 1: missing field `schema`");
    let output = dimmer(directory, &["sim", "fit", "none.toml"]);
    assert_eq!(output.status.code(), Some(2));
}
