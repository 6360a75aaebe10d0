//! The text and the page of a small study.

use std::path::Path;

use dimmer_processor::model::{Model, builtin};
use dimmer_sim::scenario::Scenario;
use dimmer_study::cache::Cache;
use dimmer_study::matrix::{Follower, Named};

use super::*;

/// A server with marked calls, which nothing random decides about.
const TINY: &str = r#"
schema = "dimmer/scenario/1"
name = "A tiny server"
source = "made up for a test"
model = "i9-7940x"
cores = 2
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
[[thread]]
name = "worker"
times = 0
requests = "closed"
steps = [
    { run = "scalar", instructions = 500_000 },
    { enter = "seal" },
    { run = "cipher", instructions = 3_000 },
    { leave = "seal" },
]
"#;

fn document(stops: bool) -> Document {
    let scenario = Scenario::parse(Path::new("tiny.toml"), TINY).unwrap();
    let model = |name: &str| Named {
        name: name.to_owned(),
        value: Model::parse(Path::new(name), builtin(name).unwrap()).unwrap(),
    };
    let plan = Plan {
        scenarios: vec![Named { name: "tiny".to_owned(), value: scenario }],
        models: vec![model("i9-7940x"), model("zen-5"), model("epyc-rome")],
        mechanisms: vec![Mechanism::Delegate, Mechanism::Oracle],
        seeds: 2,
        jobs: 1,
    };
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::new(Some(directory.path()));
    let follower = Follower { stops: &|| stops, advances: &|_, _| () };
    let cases = plan.carry_out(&cache, &follower).unwrap();
    let turns = vec![
        (Parameter::Hold, vec![Turn { factor: 0.5, first: Mechanism::None }]),
        (Parameter::Move, Vec::new()),
    ];
    let found = (!stops).then_some(turns);
    Document::new(&plan, &cases, &[found, Some(Vec::new()), Some(Vec::new())])
}

#[track_caller]
fn check(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing:\n{text}");
    }
}

#[test]
fn a_text_has_ranks_reasons_and_what_does_not_apply() {
    let text = document(false).text(Screen::file(400), true);
    check(
        &text,
        &[
            "tiny on i9-7940x (Intel Core i9-7940X)\n",
            " of the calls moved: ",
            " after the last one (median), 100.0 % of them within the 664 µs for which a level is held: ",
            "hold time: none first at 0.50 times.\n",
            "move cost: no change of the first place within a factor of 8.\n",
            "oracle: does not apply: no code of the scenario asks for a license level on this model.\n",
            "tiny on epyc-rome: does not apply: the model of AMD EPYC (Rome) does not say",
        ],
    );
    let text = document(false).text(Screen::file(100), false);
    check(&text, &["tiny\n", "  i9-7940x  delegate  +", "Less than 1 % is gained on zen-5."]);
}

/// Moved calls take a microsecond each, and one of two cores; a round takes some 80 µs.
#[test]
fn a_reason_is_made_of_what_the_run_counted() {
    let document = document(false);
    let delegate = document.cases[0].ranking.iter().find(|one| one.mechanism == "delegate");
    let reason = delegate.unwrap().reason.replace(SPACE, " ");
    check(&reason, &[" moves a second at 1 000 ns, ", " cores dedicated; "]);
    let moves = reason.split("moved: ").nth(1).unwrap().split(" moves").next().unwrap();
    let moves: f64 = moves.replace(' ', "").parse().unwrap();
    assert!((9_000.0..16_000.0).contains(&moves), "{reason}");
}

#[test]
fn a_page_has_a_map_for_each_model_with_results() {
    let machine = MachineDescription {
        vendor: "AuthenticAMD".to_owned(),
        brand: "AMD EPYC".to_owned(),
        microarchitecture: "Zen 3".to_owned(),
        microcode: None,
        hypervisor: None,
        kernel: None,
        cpus: 2,
        time: "2026-01-01T00:00:00Z".to_owned(),
        version: "0.1.0".to_owned(),
        command: "dimmer study tiny.toml".to_owned(),
    };
    let page = document(false).page(&machine);
    assert!(!page.contains("id=\"model-epyc-rome\""), "{page}");
    check(&page, &["href=\"#model-i9-7940x\"", "id=\"model-zen-5\"", "delegate most often, on 1."]);
}

#[test]
fn a_study_that_was_interrupted_says_so() {
    let document = document(true);
    let text = document.text(Screen::file(100), false);
    check(&text, &["PARTIAL: ", "Not complete on i9-7940x, zen-5"]);
    assert!(!text.contains("is gained on"), "{text}");
    assert!(document.cases.iter().all(|case| case.ranking.is_empty() && case.partial));
}

/// All cells are complete, but not what changes the first place of the last case.
#[test]
fn a_study_whose_sensitivity_was_interrupted_says_so() {
    let plan = Plan {
        scenarios: Vec::new(),
        models: Vec::new(),
        mechanisms: Vec::new(),
        seeds: 1,
        jobs: 1,
    };
    let is_partial = |turns: &[Turns]| Document::new(&plan, &[], turns).partial;
    assert!(!is_partial(&[]));
    assert!(!is_partial(&[Some(Vec::new())]));
    assert!(is_partial(&[Some(Vec::new()), None]));
}
