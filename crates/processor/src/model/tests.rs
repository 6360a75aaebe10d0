//! Models that can be read, and models that cannot.

use std::path::Path as FilePath;

use super::*;

/// A small model, line by line; line 1 is `schema`.
const GOOD: &str = r#"schema = "dimmer/model/1"
name = "Test"
vendor = "GenuineIntel"
microarchitecture = "Made up"

[clock]
domain = { value = "core", source = "s" }
min_mhz = { value = 1200, source = "s" }
base_mhz = { value = 3100, source = "s" }
max_mhz = { value = 4300, source = "s", guess = true }

[[level]]
name = "L0"
[[level.bins]]
cores = 2
mhz = { value = 4300, source = "s" }
[[level.bins]]
cores = 4
mhz = { value = 4000, source = "s" }

[[level]]
name = "L1"
clock_ratio = { value = 0.79, ci95 = [0.78, 0.8], source = "s" }
[[level.bins]]
cores = 4
mhz = { value = 3400, source = "s" }

[[rule]]
class = "heavy-512"
level = { value = "L1", source = "s" }
instructions = { value = 1, source = "s" }

[release]
hold_ns = { value = 670_000, source = "s" }
"#;

fn parse(text: &str) -> Result<Model, ModelError> {
    Model::parse(FilePath::new("m.toml"), text)
}

/// Replaces `what` by `with` in the good model. The error must be exactly `expected`.
#[track_caller]
fn check(what: &str, with: &str, expected: &str) {
    assert!(GOOD.contains(what), "{what}");
    let error = parse(&GOOD.replacen(what, with, 1)).unwrap_err();
    assert_eq!(error.to_string(), expected);
}

#[test]
fn reads_a_good_model() {
    let model = parse(GOOD).unwrap();
    assert_eq!(model.levels[0].mhz(1), Some(4300));
    assert_eq!(model.levels[0].mhz(3), Some(4000));
    assert_eq!(model.levels[0].mhz(5), None);
    assert_eq!(model.level_of(InstructionClass::Heavy512, Upper::Any).index(), 1);
    assert_eq!(model.level_of(InstructionClass::Heavy256, Upper::Any).index(), 0);
    assert!(model.clock.max_mhz.unwrap().guess);
}

#[test]
fn a_missing_value_is_named_to_who_needs_it() {
    let model = parse(GOOD).unwrap();
    let hold = model.release.hold_ns.as_ref();
    assert_eq!(model.require(hold, "release.hold_ns", "the governor"), Ok(&670_000));
    let stall = model.release.stall_ns.as_ref();
    let error = model.require(stall, "release.stall_ns", "the governor").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the model of Test does not say `release.stall_ns`, which the governor needs"
    );
}

#[test]
fn written_models_read_back_unchanged() {
    let model = parse(GOOD).unwrap();
    assert_eq!(parse(&model.to_toml()).unwrap(), model);
    let mut odd = model;
    odd.identity.note = Some("a \"quoted\" \\ note\nof two lines".to_owned());
    assert_eq!(parse(&odd.to_toml()).unwrap(), odd);
}

#[test]
fn a_lower_clock_between_long_bursts_needs_all_its_values() {
    let long = |values: &str| format!("{GOOD}[[long_recurrence]]\n{values}");
    let level = "level = { value = \"L1\", source = \"s\" }\n";
    let rest = "burst_ns = { value = 2000, ci95 = [140, 2000], source = \"s\" }\n\
                gap_ns = { value = 1_400_000, source = \"s\" }\n\
                slowdown = { value = 0.03, source = \"s\" }\n";
    let model = parse(&long(&format!("{level}{rest}"))).unwrap();
    assert_eq!(model.long_recurrences[0].gap_ns.value, 1_400_000);
    assert_eq!(parse(&model.to_toml()).unwrap(), model);
    for (values, expected) in [
        (rest.to_owned(), "m.toml:35: `level` is missing in long_recurrence"),
        (
            format!("{}{rest}", level.replace("L1", "L7")),
            "m.toml:36: `level`: expected one of L0, L1",
        ),
        (
            format!("{level}{}", rest.replace("0.03", "1.03")),
            "m.toml:39: `slowdown`: expected a share from 0 to 1",
        ),
    ] {
        assert_eq!(parse(&long(&values)).unwrap_err().to_string(), expected);
    }
}

#[test]
fn builtin_models_read_and_write_back() {
    for (name, text) in BUILTIN {
        let model = Model::parse(FilePath::new(name), text).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(parse(&model.to_toml()).unwrap(), model, "{name}");
    }
}

#[test]
fn cores_and_clusters_must_fit_what_speaks_of_them() {
    check(
        "domain = { value = \"core\", source = \"s\" }",
        "domain = { value = \"cluster\", source = \"s\" }",
        "m.toml:6: `domain` is \"cluster\", but there is no `[[cluster]]`",
    );
    check(
        "[clock]",
        "[topology]\ncores = { value = 3, source = \"s\" }\n[clock]",
        "m.toml:14: level `L0`: 4 active cores, but `topology.cores` is 3\n\
         m.toml:23: level `L1`: 4 active cores, but `topology.cores` is 3",
    );
}

#[test]
fn a_missing_name_hides_no_other_problem() {
    let error = parse("schema = \"dimmer/model/1\"\nvendor = \"V\"\n").unwrap_err().to_string();
    for part in ["`name`", "`microarchitecture`", "no `[[level]]`"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn unknown_keys_are_refused_with_the_accepted_ones() {
    check(
        "hold_ns = { value = 670_000, source = \"s\" }",
        "bold_ns = { value = 670_000, source = \"s\" }",
        "m.toml:34: unknown key `bold_ns` in `release`, expected one of hold_ns, extended_share, \
         extended_share_beside, extended_ns, extended_level, extended_class, stall_ns, recurrence_ns, recurrence_after_ns, \
         recurrence_slowdown, episode_ns",
    );
}

#[test]
fn wrong_units_are_told_the_right_one() {
    check(
        "hold_ns",
        "hold_us",
        "m.toml:34: unknown key `hold_us` in `release` (the unit is part of the key: `hold_ns`), \
         expected one of hold_ns, extended_share, extended_share_beside, extended_ns, extended_level, extended_class, stall_ns, recurrence_ns, recurrence_after_ns, \
         recurrence_slowdown, episode_ns",
    );
}

#[test]
fn values_without_a_source_are_refused() {
    check(
        "value = 1200, source = \"s\"",
        "value = 1200",
        "m.toml:8: `min_mhz` has no `source`: where does the value come from?",
    );
    check(
        "{ value = 1200, source = \"s\" }",
        "1200",
        "m.toml:8: `min_mhz`: expected { value = ..., source = \"...\" }",
    );
}

#[test]
fn values_that_cannot_be_are_refused() {
    check("670_000", "-5", "m.toml:34: `hold_ns`: expected a whole number from 0 to 3600000000000");
    check(
        "670_000",
        "0.5",
        "m.toml:34: `hold_ns`: expected a whole number from 0 to 3600000000000",
    );
    check("0.79,", "nan,", "m.toml:23: `clock_ratio`: expected a ratio above 0, at most 1");
    check("0.79,", "1.2,", "m.toml:23: `clock_ratio`: expected a ratio above 0, at most 1");
    check(
        "\"heavy-512\"",
        "\"heavy-1024\"",
        "m.toml:29: unknown instruction class `heavy-1024`, expected one of scalar, light-128, \
         heavy-128, light-256, heavy-256, light-512, heavy-512, tile",
    );
    check(
        "value = \"core\"",
        "value = \"chip\"",
        "m.toml:7: `domain`: expected \"core\" or \"cluster\" or \"package\"",
    );
}

#[test]
fn impossible_clocks_are_refused() {
    check("value = 1200", "value = 3200", "m.toml:6: `min_mhz` (3200) is above `base_mhz` (3100)");
    check(
        "cores = 4\nmhz = { value = 4000",
        "cores = 4\nmhz = { value = 4400",
        "m.toml:12: level `L0`: 4400 MHz with 4 cores is more than 4300 MHz with 2",
    );
    check(
        "value = 3400",
        "value = 4100",
        "m.toml:21: level `L1` has 4100 MHz with 4 cores, more than `L0` with 4000: levels come in \
         order of falling clock",
    );
}

#[test]
fn an_idle_state_that_a_pstate_needs_is_one_of_the_model() {
    let states = |idle: &str| {
        let needed = "needs_idle = { value = \"C6\", source = \"s\" }";
        format!(
            "[[pstate]]\nname = \"P0\"\nmhz = {{ value = 2, source = \"s\" }}\n{needed}\n{idle}[release]"
        )
    };
    let cstate = |name: &str| {
        format!("[[cstate]]\nname = \"{name}\"\nexit_ns = {{ value = 1, source = \"s\" }}\n")
    };
    let with = |idle: &str| parse(&GOOD.replacen("[release]", &states(idle), 1));
    let refused = |idle: &str, expected: &str| {
        let error = with(idle).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused("", "`needs_idle`: expected the name of a `[[cstate]]`: of which there is none");
    refused(&cstate("C1"), "`needs_idle`: expected the name of a `[[cstate]]`: C1");
    refused(&cstate("C6"), "`needs_idle`: the last P-state must need none");
    let pstate = |name: &str, needs: &str| {
        let needs = match needs {
            "" => String::new(),
            idle => format!("needs_idle = {{ value = \"{idle}\", source = \"s\" }}\n"),
        };
        format!("[[pstate]]\nname = \"{name}\"\nmhz = {{ value = 1, source = \"s\" }}\n{needs}")
    };
    let both = cstate("C6") + &cstate("C7");
    let leading = "`needs_idle`: expected in the first P-states only, with one name";
    refused(&(pstate("P1", "") + &pstate("P2", "C6") + &pstate("P3", "") + &both), leading);
    refused(&(pstate("P1", "C7") + &pstate("P2", "") + &both), leading);
    let good = with(&(pstate("P1", "C6") + &pstate("P2", "") + &cstate("C6"))).unwrap();
    assert_eq!(good.pstates.iter().filter(|state| state.needs_idle.is_some()).count(), 2);
    assert_eq!(good.pstates[0].needs_idle.as_ref().unwrap().value, "C6");
    assert_eq!(parse(&good.to_toml()).unwrap(), good);
}

#[test]
fn loads_that_cannot_be_are_refused() {
    let loads = |lines: &str| {
        let mw = |mw: u32| format!("package_mw = {{ value = {mw}, source = \"s\" }}");
        let head = "[topology]\ncores = { value = 4, source = \"s\" }\n\
            [[pstate]]\nname = \"P0\"\nmhz = { value = 2, source = \"s\" }\n\
            [[pstate]]\nname = \"P1\"\nmhz = { value = 1, source = \"s\" }\n\
            [[power]]\nload = \"l\"\npstate = \"P1\"\nbusy_cores = 1\n";
        let load = format!("[[power]]\nload = \"l\"\npstate = \"P1\"\n{lines}\n{}", mw(90));
        format!("{head}{}\n{load}\n[release]", mw(100))
    };
    let with = |lines: &str, expected: &str| {
        let error = parse(&GOOD.replacen("[release]", &loads(lines), 1)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    };
    with("busy_cores = -1", "`busy_cores`: expected a whole number from 0 to 65536");
    with("busy_cores = 5", "5 + 0 cores execute, but `topology.cores` is 4");
    with("busy_cores = 1", "1 `busy_cores` at P1 stand twice");
    with("busy_cores = 2", "90 mW with 2 `busy_cores` at P1, but 100 mW with 1");
    with("slow_cores = 1", "`slow_cores` needs `slow_pstate`");
    with("slow_cores = 1\nslow_pstate = \"P1\"", "`slow_cores` needs `busy_cores`");
    with(
        "busy_cores = 1\nslow_cores = 1\nslow_pstate = \"P0\"",
        "`slow_pstate` (P0) is faster than P1",
    );
    let good = parse(&GOOD.replacen("[release]", &loads("busy_cores = 0"), 1)).unwrap();
    assert_eq!(good.power[1].busy_cores, Some(0));
    assert_eq!(parse(&good.to_toml()).unwrap(), good);
}

#[test]
fn empty_clusters_are_refused() {
    check(
        "[release]",
        "[[cluster]]\nname = \"P\"\ncores = { value = 0, source = \"s\" }\n[release]",
        "m.toml:35: `cores`: expected a whole number from 1 to 65536",
    );
}

#[test]
fn levels_that_nothing_asks_for_are_refused() {
    check(
        "value = \"L1\"",
        "value = \"L0\"",
        "m.toml:21: no `[[rule]]` asks for level `L1`: nothing would reach it",
    );
    check("value = \"L1\"", "value = \"L7\"", "m.toml:30: `level`: expected one of L0, L1");
}

#[test]
fn every_problem_is_reported_in_order_of_lines() {
    let text = GOOD.replace("value = 1200", "value = 0").replace("670_000", "\"long\"");
    let lines: Vec<usize> = parse(&text).unwrap_err().problems.iter().map(|p| p.line).collect();
    assert_eq!(lines, [8, 34]);
}

#[test]
fn text_that_is_no_toml_is_refused_with_its_line() {
    let error = parse("schema = \"dimmer/model/1\"\nname = \n").unwrap_err();
    assert_eq!(error.problems[0].line, 2);
    assert!(parse("").is_err());
}

#[test]
fn damaged_models_are_refused_without_a_panic() {
    // Every prefix of the text, and every single byte replaced by a few others.
    for end in (0..GOOD.len()).filter(|end| GOOD.is_char_boundary(*end)) {
        let _ = parse(&GOOD[..end]);
    }
    for index in 0..GOOD.len() {
        for replacement in ["", "0", "-", "\"", "[", "=", "\n", "é"] {
            let mut text = GOOD.to_owned();
            text.replace_range(index..=index, replacement);
            let _ = parse(&text);
        }
    }
}

#[test]
fn the_format_is_documented() {
    let text = include_str!("../../../../docs/model.md");
    for (table, keys) in KEYS {
        for key in *keys {
            assert!(text.contains(&format!("`{key}`")), "docs/model.md lacks `{key}` of {table}");
        }
    }
}
