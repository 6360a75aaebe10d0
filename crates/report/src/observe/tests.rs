//! Tests of what the observations of made-up calls say about their cost.

use dimmer_host::cpuid::Cpuid;
use dimmer_host::root::Root;
use dimmer_processor::model::{Identity, Level, LongRecurrence, Sourced};
use dimmer_processor::units::LicenseLevel;

use super::*;

const FILE: &str = "/lib/libwide.so.1";

/// A model of two levels, the higher of which takes a tenth off the clock, but nothing off code in
/// short gaps, and 200 ns in a longer one.
fn model() -> Model {
    let mut model = Model::new(Identity {
        name: "made up".to_owned(),
        vendor: String::new(),
        microarchitecture: String::new(),
        note: None,
    });
    let clock_ratio = Some(Sourced::new(0.9, "test"));
    model.levels.push(Level { clock_ratio, ..Level::named("L1") });
    model.release.hold_ns = Some(Sourced::new(1000, "test"));
    model.release.recurrence_slowdown = Some(Sourced::new(0.0, "test"));
    model.release.episode_ns = Some(Sourced::new(200, "test"));
    model
}

/// What the report of `command` is, whose functions ask for these levels, and each have a gap of
/// this length after a call (ns), if it is positive.
fn report(command: &[&str], functions: &[(&str, f64)]) -> Report {
    report_by(&model(), command, functions)
}

/// The same by another model. Each call with a gap after it lasts 10 us.
fn report_by(model: &Model, command: &[&str], functions: &[(&str, f64)]) -> Report {
    report_where(&[], model, command, functions)
}

/// The same where moving a call takes this long after gaps (both ns).
fn report_where(
    moving_takes: &[(f64, f64)],
    model: &Model,
    command: &[&str],
    functions: &[(&str, f64)],
) -> Report {
    let certain = |ns: f64| Estimate { median: ns, ci95: (ns, ns) };
    let hand_off: Vec<_> =
        moving_takes.iter().map(|(gap, takes)| (*gap, certain(*takes))).collect();
    let (mut known, mut tallies) = (Vec::new(), BTreeMap::new());
    for (address, (level, gap_ns)) in (0_u64..).step_by(0x100).zip(functions) {
        let function = serde_json::json!({
            "address": address, "size": 0x100, "name": "wide", "name_source": "symbol",
            "origin": "symbol", "class": "heavy-512", "level": level,
            "instructions": {"heavy-512": 7}, "wide_instructions": 7, "zmm_instructions": 7,
            "evex_instructions": 7, "vzeroupper": false, "may_return_dirty": false, "loops": [],
            "hook_bytes": 5, "unhookable": null, "unhookable_why": null, "entries": [],
            "leaders": [],
        });
        known.push(serde_json::from_value(function).unwrap());
        let mut tally = Tally { calls: 1, ..Tally::default() };
        if *gap_ns > 0.0 {
            tally.gap_after.add(*gap_ns, 1.0);
            tally.lasted.add(10_000.0, 1.0);
        }
        tallies.insert(FunctionPlace { file: Path::new(FILE).into(), address }, tally);
    }
    let known = KnownFile { functions: known, counts: None };
    let known = Known::from([(PathBuf::from(FILE), known)]);
    let mut observed = Observed::default();
    observed.processes = 1;
    observed.threads = vec![ThreadSeen { functions: tallies, ..ThreadSeen::default() }];
    let table = "0x00000000 0x00: eax=0x00000001 ebx=0x0 ecx=0x0 edx=0x0\n";
    let machine = Machine::read(&Root::new("/nowhere"), &Cpuid::parse(table).unwrap());
    let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    Report::new(&Run {
        command: &command,
        is_counted: false,
        choice: None,
        status: None,
        hand_off: &hand_off,
        is_governable: false,
        on_cpu: Duration::from_millis(1),
        switches: 0,
        own_cpu: Duration::ZERO,
        observed: &observed,
        known: &known,
        classes: &[],
        machine: &machine,
        functions: &[],
        model: Some((model, "test.toml")),
    })
}

/// The first sentence on what such functions cost.
#[track_caller]
fn check(functions: &[(&str, f64)], expected: &str) {
    let report = report(&["program"], functions);
    assert_eq!(text::sentences(&report)[0], expected);
    assert!(report.text(Screen::file(200)).contains(expected));
}

#[test]
fn that_no_level_is_asked_for_is_told_of_functions_of_the_first_level_only() {
    let none = "They ask for no level on this machine (test.toml): nothing to gain.";
    check(&[("L0", 0.0)], none);
    check(&[("L0", 50.0), ("L0", 0.0)], none);
    let nothing = "By the model (test.toml), the code around these calls loses nothing measurable: \
                   nothing to gain.";
    check(&[("L1", 50.0)], nothing);
    check(&[("L0", 50.0), ("L1", 50.0)], nothing);
}

#[test]
fn without_a_gap_after_calls_that_ask_for_a_level_their_cost_is_not_known() {
    let unknown =
        "What they cost the code around them is not told: no gap between two calls was seen.";
    check(&[("L1", 0.0)], unknown);
    check(&[("L0", 50.0), ("L1", 0.0)], unknown);
    let report = report(&["program"], &[("L1", 5000.0), ("L1", 0.0)]);
    let lost: Vec<Option<f64>> = report.functions.iter().map(|one| one.lost_share).collect();
    assert_eq!(lost, [Some(200e-6), None]);
    assert!((report.lost.unwrap().share - 200e-6).abs() < 1e-12);
}

#[test]
fn what_recurring_long_calls_cost_is_told() {
    let mut model = model();
    let long = |burst_ns, gap_ns| LongRecurrence {
        level: Sourced::new(LicenseLevel::new(1), "test"),
        burst_ns: Sourced::new(burst_ns, "test"),
        gap_ns: Sourced::new(gap_ns, "test"),
        slowdown: Sourced::new(0.25, "test"),
    };
    model.long_recurrences = vec![long(5_000, 300_000)];
    let report = |model: &Model| report_by(model, &["program"], &[("L1", 200_000.0)]);
    // An episode, and a fifth of 200 us, of 1 ms on CPUs. Times are known to 2 %.
    let told = report(&model);
    let lost = told.lost.unwrap();
    assert!((lost.between_long_share - 0.04).abs() < 1e-3, "{lost:?}");
    assert!((lost.share - lost.between_long_share - 200e-6).abs() < 1e-9, "{lost:?}");
    assert_eq!(lost.recovered_after_ns, 300_000.0);
    let sentence = &text::sentences(&told)[0];
    assert!(sentence.contains("at a lower clock between long calls"), "{sentence}");
    for other in [long(20_000, 300_000), long(5_000, 100_000)] {
        model.long_recurrences = vec![other];
        let told = report(&model);
        assert_eq!(told.lost.unwrap().between_long_share, 0.0);
        assert!(!text::sentences(&told)[0].contains("long calls"));
    }
}

#[test]
fn moving_is_recommended_by_what_it_takes_after_gaps_like_the_programs() {
    let mut model = model();
    model.release.episode_ns = Some(Sourced::new(40_000, "test"));
    // A call costs 40 us, of 1 ms on CPUs; the next one comes after 200 us.
    let ways = |takes: &[(f64, f64)]| {
        let report = report_where(takes, &model, &["program"], &[("L1", 200_000.0)]);
        report.text(Screen::file(200))
    };
    let soon = ways(&[(0.0, 2000.0), (1e6, 2000.0)]);
    let told = "gives back 3.8 % at most, as moving takes 2000 ns a call at such gaps: dimmer run";
    assert!(soon.contains(told), "{soon}");
    let asleep = ways(&[(0.0, 2000.0), (1e5, 80_000.0)]);
    let told = "but moving, 80.0 µs a call at such gaps, takes more than they lose.";
    assert!(asleep.contains(told) && !asleep.contains("--migrate"), "{asleep}");
    assert!(ways(&[]).contains("but what moving takes could not be measured."));
}

#[test]
fn recommended_commands_are_quoted_for_a_shell() {
    let report = report(&["sh", "-c", "echo it's; exit 7", ""], &[("L1", 5000.0)]);
    let text = report.text(Screen::file(200));
    let expected = r#"dimmer run --narrow -- sh -c 'echo it'\''s; exit 7' ''"#;
    assert!(text.contains(expected), "{text}");
}
