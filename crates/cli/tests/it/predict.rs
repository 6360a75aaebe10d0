//! The simulator's commands: what they print, and what they refuse.

use std::path::{Path, PathBuf};

use crate::{dimmer, stderr, stdout};

/// The project's folder; `None`, with a printed reason, if it is not known.
pub(crate) fn project() -> Option<PathBuf> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR");
    if manifest.is_none() {
        println!("SKIPPED: not run by cargo, so the folder of the scenarios is not known");
    }
    manifest.map(|manifest| Path::new(&manifest).join("../.."))
}

pub(crate) fn json(project: &Path, arguments: &[&str]) -> serde_json::Value {
    let output = dimmer(project, arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

#[test]
fn every_scenario_is_compared_and_predicting_never_loses() {
    let Some(project) = project() else { return };
    let mut scenarios = 0;
    for entry in std::fs::read_dir(project.join("scenarios")).unwrap() {
        let path = entry.unwrap().path();
        // Scenarios with marked regions are about where code runs; they are compared below.
        let text = std::fs::read_to_string(&path).unwrap();
        if text.contains("{ enter = ") || text.contains("include = ") {
            continue;
        }
        let path = path.to_str().unwrap();
        let found = json(&project, &["sim", "compare", path, "--repeat", "5", "--json"]);
        let governors = found["governors"].as_array().unwrap();
        assert_eq!(governors.len(), 5, "{path}");
        let speed = |name: &str| {
            let governor = governors.iter().find(|governor| governor["governor"] == name).unwrap();
            governor["ratio"]["median"].as_f64().unwrap()
        };
        assert!((speed("hardware") - 1.0).abs() < 1e-12);
        for governor in ["predictive", "oracle"] {
            assert!(speed(governor) > 0.99, "{path}, {governor}: {}", speed(governor));
            // For recurring bursts: clearly better.
            let is_periodic = path.contains("/bursts-");
            assert!(
                !is_periodic || speed(governor) > 1.02,
                "{path}, {governor}: {}",
                speed(governor)
            );
        }
        scenarios += 1;
    }
    assert!(scenarios >= 3);
}

#[test]
fn a_page_shows_every_governor_beside_the_processor() {
    let Some(project) = project() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("compared.html");
    let scenario = "scenarios/bursts-in-a-sieve.toml";
    let arguments =
        ["sim", "compare", scenario, "--repeat", "3", "--report", file.to_str().unwrap()];
    assert!(dimmer(&project, &arguments).status.success());
    let page = std::fs::read_to_string(&file).unwrap();
    // One plot for all of the work, and one each for the sieve and the burst in it.
    assert_eq!(page.matches("<svg").count(), 3);
    for governor in ["avxfreq", "user", "oracle", "predictive"] {
        // A note may stand behind the name.
        assert_eq!(page.matches(&format!("<td>{governor}")).count(), 3, "{governor}");
    }
}

#[test]
fn a_scenario_is_a_name_or_a_file() {
    let Some(project) = project() else { return };
    let directory = tempfile::tempdir().unwrap();
    let run = |scenario: &str| dimmer(directory.path(), &["sim", "run", scenario, "--json"]);
    let of_name = run("multiphase-worst-case");
    let file = project.join("scenarios/multiphase-worst-case.toml");
    assert!(of_name.status.success(), "{}", stderr(&of_name));
    assert_eq!(of_name.stdout, run(file.to_str().unwrap()).stdout);
    // It exists, but has no content.
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&link, &link).unwrap();
    for (name, says) in [("no-such", "no scenario or file `no-such`"), ("link", "cannot read link")]
    {
        let message = stderr(&run(name));
        assert!(message.contains(says), "{message}");
    }
}

#[test]
fn scenarios_with_regions_are_compared_under_every_mechanism() {
    let Some(project) = project() else { return };
    let mut scenarios = 0;
    for entry in std::fs::read_dir(project.join("scenarios")).unwrap() {
        let path = entry.unwrap().path();
        // One that includes others has its regions from these.
        let text = std::fs::read_to_string(&path).unwrap();
        let has_regions = text.contains("{ enter = ") || text.contains("include = ");
        if !has_regions || !text.contains("hand_over_us = ") {
            continue;
        }
        let path = path.to_str().unwrap();
        let arguments = ["sim", "compare", path, "--loops", ALL_LOOPS, "--repeat", "1"];
        let found = json(&project, &[&arguments[..], &["--json"]].concat());
        let loops = found["loops"].as_array().unwrap();
        let moved = |name: &str| {
            let one = loops.iter().find(|one| one["loop"] == name).unwrap();
            one["moved"]["median"].as_f64()
        };
        assert_eq!(moved("none"), None, "{path}: nobody counts calls");
        assert!(moved("always").unwrap() > 0.99, "{path}");
        for server in ["thresholds", "trials"] {
            assert!((0.0..1.0).contains(&moved(server).unwrap()), "{path} {server}");
        }
        scenarios += 1;
    }
    assert!(scenarios >= 5);
}

/// Threads move to wide cores, and more gets done than without.
#[test]
fn specialised_cores_are_compared_with_the_other_loops() {
    let Some(project) = project() else { return };
    let scenario = "scenarios/nginx-specialised.toml";
    let arguments = ["sim", "compare", scenario, "--repeat", "1", "--json", "--loops"];
    let loops = "always,specialise,specialise-learning,specialise-told";
    let found = json(&project, &[&arguments[..], &[loops]].concat());
    let of = |name: &str| {
        let loops = found["loops"].as_array().unwrap();
        loops.iter().find(|one| one["loop"] == name).unwrap()
    };
    for other in ["none", "always"] {
        assert!(of(other)["traps"].is_null(), "{other}");
    }
    for specialise in ["specialise", "specialise-learning", "specialise-told"] {
        assert!(of(specialise)["traps"]["median"].as_f64().unwrap() > 100.0, "{specialise}");
        assert!(of(specialise)["ratio"]["median"].as_f64().unwrap() > 1.0, "{specialise}");
    }
    let refused = ["sim", "run", "scenarios/nginx-avx512.toml", "--loop", "specialise"];
    let output = dimmer(&project, &refused);
    assert!(!output.status.success());
    assert!(stderr(&output).contains("needs `scheduler = \"muqss\"`"), "{}", stderr(&output));
}

const ALL_LOOPS: &str = "none,thresholds,trials,always";

#[test]
fn mechanisms_have_a_page_and_one_seed_one_result() {
    let Some(project) = project() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("moved.html");
    let scenario = "scenarios/primesieve-moved.toml";
    let arguments = ["sim", "compare", scenario, "--loops", ALL_LOOPS, "--repeat", "2"];
    let with_page = [&arguments[..], &["--report", file.to_str().unwrap()]].concat();
    let output = dimmer(&project, &with_page);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("thresholds") && stdout(&output).contains("6.00 us"));
    let page = std::fs::read_to_string(&file).unwrap();
    // One program, and the time of a move.
    assert_eq!(page.matches("<svg").count(), 1);
    for mechanism in ["thresholds", "trials", "always"] {
        assert_eq!(page.matches(&format!("<td>{mechanism}</td>")).count(), 2, "{mechanism}");
    }
    assert_eq!(stdout(&dimmer(&project, &arguments)), stdout(&output));
    let simulated = ["sim", "run", scenario, "--loop", "always"];
    assert!(stdout(&dimmer(&project, &simulated)).contains("calls ran on dedicated cores"));
}

#[test]
fn a_hand_over_that_nobody_knows_is_named() {
    let Some(project) = project() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("s.toml");
    let text = std::fs::read_to_string(project.join("scenarios/primesieve-moved.toml")).unwrap();
    let text: Vec<&str> = text.lines().filter(|line| !line.starts_with("hand_over_us")).collect();
    std::fs::write(&file, text.join("\n")).unwrap();
    let arguments = ["sim", "compare", file.to_str().unwrap(), "--loops", "trials"];
    let output = dimmer(&project, &arguments);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("cache-line within a package"), "{}", stderr(&output));
    // A hand-over that the model knows.
    let output = dimmer(
        &project,
        &[&arguments[..], &["--model", "xeon-gold-6130", "--repeat", "1"]].concat(),
    );
    assert!(stdout(&output).contains("takes 0.10 us"), "{}", stdout(&output));
}

/// The made-up model with power added; these values are not measured either.
fn model_with_levels_and_power() -> String {
    let guess = |key: &str, value: &str| {
        format!("{key} = {{ value = {value}, source = \"made up\", guess = true }}\n")
    };
    let state =
        |name: &str, mhz: &str| format!("[[pstate]]\nname = \"{name}\"\n{}", guess("mhz", mhz));
    let power = |state: &str, busy: u32, mw: &str| {
        format!(
            "[[power]]\nload = \"{busy} cores\"\npstate = \"{state}\"\nbusy_cores = {busy}\n{}",
            guess("package_mw", mw)
        )
    };
    [
        &made_up_model(),
        &state("P0", "4000"),
        &state("P1", "2000"),
        &power("P0", 0, "20000"),
        &power("P0", 1, "30000"),
        &power("P1", 0, "10000"),
        &power("P1", 1, "13000"),
    ]
    .map(String::as_str)
    .concat()
}

#[test]
fn a_page_shows_energy_where_it_is_known() {
    let Some(project) = project() else { return };
    let directory = tempfile::tempdir().unwrap();
    let model = directory.path().join("m.toml");
    std::fs::write(&model, model_with_levels_and_power()).unwrap();
    let file = directory.path().join("compared.html");
    let (model, file) = (model.to_str().unwrap(), file.to_str().unwrap());
    let scenario = "scenarios/bursts-before-short-gaps.toml";
    let arguments = ["sim", "compare", scenario, "--repeat", "3", "--report", file];
    let compared = |more: &[&str]| {
        let output = dimmer(&project, &[&arguments, more].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        (stdout(&output), std::fs::read_to_string(file).unwrap())
    };
    let (text, page) = compared(&["--model", model]);
    let row = text.lines().find(|line| line.starts_with("energy for the same work")).unwrap();
    assert!(row.contains(" J") && row.contains(" %"), "{row}");
    // All of the work, its energy, and the burst and the scalar code in it.
    assert_eq!(page.matches("<svg").count(), 4);
    assert_eq!(page.matches("<td>oracle</td>").count(), 4);
    assert!(page.contains("Energy for the same work") && page.contains("Energy of a run under"));
    assert!(!page.contains("No energy"));
    let (_, page) = compared(&[]);
    assert_eq!(page.matches("<svg").count(), 3);
    assert!(page.contains("No energy: the model of Intel Core i9-7940X does not say"));
}

#[test]
fn one_seed_one_result_however_many_processors_work() {
    let Some(project) = project() else { return };
    let scenario = "scenarios/bursts-in-a-sieve.toml";
    for arguments in [
        vec!["sim", "run", scenario, "--json"],
        vec!["sim", "compare", scenario, "--repeat", "4", "--json"],
    ] {
        let mut command = crate::command(&project, &arguments);
        let one = command.env("RAYON_NUM_THREADS", "1").output().unwrap();
        let many = dimmer(&project, &arguments);
        assert!(one.status.success() && stdout(&one).len() > 500);
        assert_eq!(stdout(&one), stdout(&many));
    }
}

#[test]
fn energy_is_told_where_the_model_has_power_and_missing_where_not() {
    let Some(project) = project() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("one.toml");
    let scenario = "schema = \"dimmer/scenario/1\"\nname = \"n\"\nsource = \"s\"\nmodel = \"fx-8120\"\n\
        cores = 2\nend_us = 20_000\n[[code]]\nname = \"c\"\nclass = \"scalar\"\nper_cycle = 1.0\n\
        [[thread]]\nname = \"t\"\ncpu = 1\nsteps = [{ run = \"c\", us = 10_000 }]\n";
    std::fs::write(&file, scenario).unwrap();
    let file = file.to_str().unwrap();
    let found = json(&project, &["sim", "run", file, "--json"]);
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    // Paper 002 Table 2: 120.1 W while one core of the package executes at P0.
    let package = &found["packages"][0];
    let executes = (number(&package["joules"]) - number(&package["waiting_joules"])) / 0.01;
    let waits = number(&package["waiting_joules"]) / 0.02;
    assert!((executes + waits - 120.1).abs() < 1e-6, "{package}");
    let (idle, busy) = (&found["cores"][0]["energy"], &found["cores"][1]["energy"]);
    assert_eq!(number(&idle["joules"]), 0.0);
    assert!((number(&busy["joules"]) / 0.01 - executes).abs() < 1e-6, "{busy}");
    assert_eq!(
        (&busy["pstates"][0]["name"], number(&busy["pstates"][0]["time_us"])),
        (&"P0".into(), 1e4)
    );
    assert!(found["no_energy"].is_null());
    let text = stdout(&dimmer(&project, &["sim", "run", file]));
    assert!(text.contains("Package 0: ") && text.contains("Core 1: 15."), "{text}");
    let compared = json(&project, &["sim", "compare", file, "--repeat", "3", "--json"]);
    assert_eq!(number(&compared["governors"][1]["energy_ratio"]["median"]), 1.0);
    assert!(
        stdout(&dimmer(&project, &["sim", "compare", file])).contains("energy for the same work")
    );

    let lacks = "No energy: the model of Intel Core i9-7940X does not say `power`";
    let found = json(&project, &["sim", "run", file, "--model", "i9-7940x", "--json"]);
    assert!(found["packages"].is_null() && found["cores"][1]["energy"].is_null(), "{found}");
    assert!(found["no_energy"].as_str().unwrap().contains("does not say `power`"));
    for command in ["run", "compare"] {
        let text = stdout(&dimmer(&project, &["sim", command, file, "--model", "i9-7940x"]));
        assert!(text.contains(lacks) && !text.contains("energy for"), "{text}");
    }
}

/// Paper 002 has the power of waiting cores, and the time to wake up from each idle state, but not
/// the power of cores in these states.
#[test]
fn idle_states_of_unknown_power_are_told() {
    let Some(project) = project() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("idle.toml");
    let file = file.to_str().unwrap();
    let write = |idle_states: bool| {
        let scenario = format!(
            "schema = \"dimmer/scenario/1\"\nname = \"n\"\nsource = \"s\"\nmodel = \"i7-4770\"\ncores = 4\n\
             pstate = \"P34\"\nidle_states = {idle_states}\n[[code]]\nname = \"c\"\nclass = \"scalar\"\nper_cycle = 1.0\n\
             [[thread]]\nname = \"t\"\nsteps = [{{ sleep_us = 1000 }}, {{ run = \"c\", us = 1000 }}]\n"
        );
        std::fs::write(file, scenario).unwrap();
    };
    let told = "what they take in the model's idle states (C1, C2, C6) is not known";
    for idle_states in [true, false] {
        write(idle_states);
        for command in ["run", "compare"] {
            let text = stdout(&dimmer(&project, &["sim", command, file]));
            assert_eq!(text.contains(told), idle_states, "{text}");
            let found = json(&project, &["sim", command, file, "--json"]);
            let states = found["unknown_idle_states"].as_array().map_or(0, Vec::len);
            assert_eq!(states, if idle_states { 3 } else { 0 }, "{found}");
            assert!(found["no_energy"].is_null(), "{found}");
        }
    }
}

#[test]
fn phases_are_those_of_the_thesis() {
    let Some(project) = project() else { return };
    let arguments =
        ["sim", "phases", "0", "0", "2000", "200", "0", "666", "--model", "i9-7940x", "--csv", "-"];
    let output = dimmer(&project, &arguments);
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "run,phase,code,us,iterations");
    assert_eq!(lines.len(), 1 + 3 * 30);
    assert!(lines[1].starts_with("1,1,scalar,2000,86"), "{}", lines[1]);
    assert!(lines[2].starts_with("1,2,heavy 512 bit,200,"), "{}", lines[2]);
}

#[test]
fn phases_run_on_this_machine() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["sim", "phases", "200", "100", "300", "--repeat", "3", "--csv", "-"];
    let output = dimmer(directory.path(), &arguments);
    let message = stderr(&output);
    if !output.status.success() {
        let lacks = ["cannot measure by timing", "there are no wide multiply-adds here"];
        assert!(lacks.iter().any(|lack| message.contains(lack)), "{message}");
        println!("SKIPPED: {message}");
        return;
    }
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "run,phase,code,us,iterations,lost_us");
    assert_eq!(lines.len(), 1 + 3 * 3);
    assert!(lines[1].starts_with("1,1,heavy ") && lines[1].contains(" bit,200,"), "{}", lines[1]);
    assert!(lines[9].starts_with("3,3,scalar,300,"), "{}", lines[9]);
    for line in &lines[1..] {
        let numbers: Vec<f64> =
            line.rsplit(',').take(2).map(|number| number.parse().unwrap()).collect();
        assert!(numbers[0] >= 0.0 && numbers[1] > 0.0, "{line}");
    }
}

#[test]
fn the_validation_in_the_documents_is_what_is_found() {
    let Some(project) = project() else { return };
    let written = std::fs::read_to_string(project.join("docs/VALIDATION.md")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("found.md");
    let document =
        json(&project, &["sim", "validate", "--markdown", file.to_str().unwrap(), "--json"]);
    let found = std::fs::read_to_string(&file).unwrap();
    assert_eq!(written, found, "`dimmer sim validate --markdown docs/VALIDATION.md` writes it");
    let count = |key: &str| document[key].as_array().unwrap().len();
    let lines = found.lines().filter(|line| line.starts_with("| R00")).count();
    assert_eq!(lines, count("rows") + count("causes") + count("left"));
}

/// What follows `before` in a text, up to the next character that is no digit.
fn number(text: &str, before: &str) -> Option<usize> {
    let rest = text.split_once(before)?.1;
    rest.split(|char: char| !char.is_ascii_digit()).next()?.parse().ok()
}

#[test]
fn the_readme_counts_what_the_validation_predicts() {
    let Some(project) = project() else { return };
    let text = |name: &str| std::fs::read_to_string(project.join(name)).unwrap();
    let (validation, readme) = (text("docs/VALIDATION.md"), text("README.md"));
    let papers = validation.lines().filter_map(|line| {
        let hits = number(line, "tolerance: predicted ")?;
        Some((hits, number(line, &format!("predicted {hits} of "))?))
    });
    let (hits, all) = papers.fold((0, 0), |(hits, all), (more, of)| (hits + more, all + of));
    let told = number(&readme, "The simulator predicts ");
    assert_eq!((told, number(&readme, &format!("predicts {hits} of "))), (Some(hits), Some(all)));
}

/// A model in which all wide code halves the clock for a millisecond; the values are not measured.
fn made_up_model() -> String {
    let guess = |key: &str, value: &str| {
        format!("{key} = {{ value = {value}, source = \"made up\", guess = true }}\n")
    };
    let classes = ["heavy-128", "light-256", "heavy-256", "light-512", "heavy-512", "tile"];
    let rule = |class: &str| format!("[[rule]]\nclass = \"{class}\"\n{}", guess("level", "\"L1\""));
    [
        "schema = \"dimmer/model/1\"\nname = \"Made up\"\nvendor = \"Nobody\"\nmicroarchitecture = \"None\"\n",
        "[clock]\n", &guess("max_mhz", "4000"),
        "[[level]]\nname = \"L0\"\n[[level]]\nname = \"L1\"\n", &guess("clock_ratio", "0.5"),
        &classes.map(rule).concat(),
        "[request]\n", &guess("throttled_ns", "1000"),
        "[release]\n", &guess("hold_ns", "1000000"),
    ]
    .concat()
}

#[test]
fn a_prediction_is_compared_with_this_machine() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("m.toml"), made_up_model()).unwrap();
    let arguments = ["sim", "validate", "--here", "--model", "m.toml", "--repeat", "1", "--json"];
    let output = dimmer(directory.path(), &arguments);
    let message = stderr(&output);
    if !output.status.success() {
        let lacks = ["cannot measure by timing", "there is no wide code to compare with"];
        assert!(lacks.iter().any(|lack| message.contains(lack)), "{message}");
        println!("SKIPPED: {message}");
        return;
    }
    let found: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(found["schema"], "dimmer/validate-here/1");
    assert_eq!((&found["model_from"], &found["partial"]), (&"m.toml".into(), &false.into()));
    let points = found["points"].as_array().unwrap();
    assert!(!points.is_empty() && points.len().is_multiple_of(21), "{}", points.len());
    for point in points {
        let predicted = point["predicted_pct"].as_f64().unwrap();
        assert!((predicted - 100.0).abs() < 0.1, "{point}");
        let series = ["series", "series_left_out"].map(|key| point[key].as_u64().unwrap());
        assert!(series.iter().sum::<u64>() <= 1, "{point}");
        assert_eq!(point["measured_pct"].is_null(), series[0] == 0, "{point}");
    }
    // None of this slows any machine to a half, but its clock may have jumped in all series.
    let lacks = found["lacks"].as_array().unwrap();
    let lack =
        |key: &str| lacks.iter().find(|lack| lack["key"] == key).map(|lack| &lack["is_guess"]);
    if found["median_absolute_error_points"].is_null() {
        println!("SKIPPED: no series was measured undisturbed");
    } else {
        assert_eq!(lack("release.hold_ns"), Some(&true.into()));
        assert_eq!(lack("release.recurrence_ns"), Some(&false.into()));
    }
}

#[test]
fn bad_input_is_told() {
    let Some(project) = project() else { return };
    let directory = tempfile::tempdir().unwrap();
    let check = |arguments: &[&str], expected: &str| {
        let output = dimmer(&project, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    };
    let scenario = "scenarios/multiphase-worst-case.toml";
    check(&["sim", "run", "no-such.toml"], "no scenario or file `no-such.toml`");
    check(&["sim", "run", scenario, "--model", "none"], "no model or file `none`; models: ");
    check(
        &["sim", "run", scenario, "--model", "i5-1035g4"],
        "does not say `release.hold_ns`, which the license governor of the processor needs",
    );
    check(&["sim", "run", scenario, "--governor", "none"], "[possible values: hardware, avxfreq");
    check(&["sim", "phases", "0", "0", "--model", "i9-7940x"], "there is nothing to run");
    check(
        &["sim", "phases", "9", "--governor", "avxfreq"],
        "the others are simulated: name the processor",
    );
    check(&["sim", "phases", "9", "--cpu", "9999"], "cpu 9999 does not exist, allowed are ");
    check(&["sim", "phases", "9", "--cpu", "0", "--model", "i9-7940x"], "cannot be used with");
    check(&["sim", "phases", "0", "0", "30000000"], "at most 20 s on the machine itself");
    check(&["sim", "validate", "--paper", "005"], "[possible values: 000, 001, 002, 003, 004]");
    check(&["sim", "validate", "--here", "--paper", "000"], "cannot be used with");
    check(&["sim", "validate", "--model", "i9-7940x"], "--here");
    check(&["sim", "validate", "--here", "--cpu", "9999"], "cpu 9999 does not exist, allowed are ");
    check(&["sim", "validate", "--here", "--model", "none"], "no model or file `none`; models: ");
    let file = directory.path().join("s.toml");
    let text = std::fs::read_to_string(project.join(scenario)).unwrap();
    std::fs::write(&file, text.replace("cores = 1", "cores = 15")).unwrap();
    check(
        &["sim", "run", file.to_str().unwrap()],
        "15 cores were asked for, but the model of Intel Core i9-7940X has 14",
    );
}

/// Paper 002, section 4.4: 109 us for the owner's boost, 84 us for one step.
#[test]
fn critical_sections_gain_from_the_length_of_the_model_on() {
    let Some(project) = project() else { return };
    let command = ["sim", "predict-lock", "--model", "fx-8120"];
    let with = |more: &[&'static str]| [&command[..], more].concat();
    let text = |more: &[&'static str]| stdout(&dimmer(&project, &with(more)));
    let long = text(&["--section", "120us", "--wait", "1ms"]);
    assert!(long.contains("The owner's boost pays for a section of 120 us."), "{long}");
    let short = text(&["--section", "100us", "--wait", "1ms"]);
    assert!(short.contains("The owner's boost does not pay: the section of 100 us is"), "{short}");
    assert!(short.contains("One step pays"), "{short}");
    let hurried = text(&["--section", "120us", "--wait", "7us"]);
    assert!(hurried.contains("the request for P6 takes 7021 ns, longer than"), "{hurried}");
    let stalled = text(&["--section", "1s", "--wait", "1s", "--memory-share", "1"]);
    assert!(stalled.contains("One step never pays"), "{stalled}");

    let found = json(&project, &with(&["--section", "90us", "--wait", "1us", "--json"]));
    let [owner, step] = [0, 1].map(|boost| &found["boosts"][boost]);
    assert_eq!((&owner["pays"], &step["pays"]), (&false.into(), &true.into()));
    let us = |boost: &serde_json::Value| boost["shortest_ns"].as_f64().unwrap().round() / 1e3;
    assert_eq!((us(owner), us(step)), (109.159, 83.986));
}

#[test]
fn break_evens_are_refused_with_what_is_missing() {
    let Some(project) = project() else { return };
    let refused = |arguments: &[&'static str], expected: &str| {
        let output = dimmer(&project, &[&["sim", "predict-lock"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    };
    let lock = ["--section", "1us", "--wait", "1us"];
    let on = |model| [&["--model", model], &lock[..]].concat();
    refused(&on("i7-4770"), "lacks `request_ns` of a `[[transition]]` from P8 to P39, `total_ns`");
    refused(&on("i9-7940x"), "the model of Intel Core i9-7940X lacks `[[pstate]]`, which");
    refused(&lock, "--model <MODEL>");
    refused(&[&on("fx-8120")[..], &["--memory-share", "1.1"]].concat(), "a number from 0 to 1");
}
