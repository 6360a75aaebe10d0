//! Made-up probes.

use std::path::Path;

use super::*;
use crate::document::DocumentError;
use crate::measure::Cost;

/// What a made-up probe found: the values of its quantities, with half of their intervals.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) burst: (f64, f64),
    pub(crate) ratio: (f64, f64),
    pub(crate) has_effect: bool,
    pub(crate) brand: &'static str,
    pub(crate) kernel: &'static str,
}

impl Default for Made {
    fn default() -> Self {
        Self {
            burst: (1000.0, 50.0),
            ratio: (0.9, 0.001),
            has_effect: true,
            brand: "One",
            kernel: "6.1",
        }
    }
}

fn quantity((median, half): (f64, f64)) -> serde_json::Value {
    serde_json::json!({ "median": median, "ci95": [median - half, median + half] })
}

fn text(made: Made) -> String {
    let effect = if made.has_effect { "yes" } else { "no" };
    let result = |mode: &str, key: &str, value| {
        serde_json::json!({
            "mode": mode, "kernel": "k", "threads": 1, "burst_instructions": 800,
            "effect": made.has_effect, key: value,
        })
    };
    serde_json::json!({
        "schema": "dimmer/probe/2",
        "verdict": { "effect": effect },
        "machine": {
            "brand": made.brand, "microarchitecture": "m", "microcode": "0x1",
            "hypervisor": null, "kernel": made.kernel, "cpus": 2, "time": "2026-11-27T00:00:00Z",
        },
        "results": [
            result("episode", "mean_extra_ns", quantity(made.burst)),
            result("downclock", "clock_ratio", quantity(made.ratio)),
        ],
        "interrupted": false,
    })
    .to_string()
}

pub(crate) fn probe(file: &str, made: Made) -> Document {
    Document::parse(Path::new(file), &text(made)).unwrap()
}

#[test]
fn costs_are_read_so_that_more_is_worse() {
    let found = probe("a", Made::default());
    let [burst, stretch] = &found.measures[..] else { panic!("{found:?}") };
    assert_eq!(
        (burst.key.cost, burst.median, burst.interval),
        (Cost::Burst, 1000.0, [950.0, 1050.0])
    );
    assert_eq!(burst.key.burst, Some(800));
    assert!((stretch.median - 10.0).abs() < 1e-9, "{stretch:?}");
    assert!(stretch.interval[0] < stretch.median && stretch.median < stretch.interval[1]);
}

/// Of recurring bursts, the worst gap counts; of modes without a cost, nothing does.
#[test]
fn all_modes_have_their_costs() {
    let of = |result: serde_json::Value| Measure::of(&result);
    let gaps =
        [3.0, 7.0, 1.0].map(|pct| serde_json::json!({ "slowdown_pct": quantity((pct, 0.5)) }));
    let found = of(serde_json::json!({ "mode": "recurrence", "kernel": "k", "gaps": gaps }));
    assert_eq!((found.len(), found[0].median), (1, 7.0));
    let found = of(serde_json::json!({ "mode": "throttle", "kernel": "k", "throttled_ns": null }));
    assert_eq!((found.len(), found[0].median), (1, 0.0));
    let mean_extra_ns = quantity((2e5, 10.0));
    let found =
        of(serde_json::json!({ "mode": "upclock", "kernel": "k", "mean_extra_ns": mean_extra_ns }));
    assert_eq!((found[0].key.cost, found[0].median), (Cost::Release, 2e5), "no isolated burst");
    let level = serde_json::json!({
        "mode": "levels", "kernel": "k", "threads": 1, "active": 4, "clock_ratio": quantity((0.8, 0.1)),
    });
    let found = of(level);
    assert_eq!((found[0].key.threads, found[0].key.cost), (4, Cost::Level));
    assert_eq!(of(serde_json::json!({ "mode": "instructions" })), []);
    assert_eq!(of(serde_json::json!({ "mode": "recurrence", "gaps": [] })), []);
    assert_eq!(of(serde_json::json!("no object")), []);
}

#[test]
fn other_files_are_refused_with_their_names() {
    let parse = |text: &str| Document::parse(Path::new("f.json"), text).unwrap_err();
    assert_eq!(
        parse("{").to_string(),
        "f.json: not the JSON of `dimmer probe`: line 1, column 1: the text ends too early"
    );
    let other = parse(r#"{"schema": "dimmer/scan/1"}"#);
    assert!(matches!(other, DocumentError::Schema { .. }));
    assert!(other.to_string().contains("f.json: its `schema` is `dimmer/scan/1`, expected"));
    assert!(matches!(parse(r#"{"schema": "dimmer/probe/2"}"#), DocumentError::Json { .. }));
    let missing = Document::read(Path::new("/none/f.json")).unwrap_err();
    assert!(missing.to_string().contains("/none/f.json"), "{missing}");
}

#[test]
fn machines_of_a_kind_are_one_row_and_those_that_differ_come_first() {
    let usual = Made::default();
    let newer = Made { kernel: "6.2", ..usual };
    let odd = Made { burst: (3000.0, 50.0), ..newer };
    let other = Made { brand: "Another", ..usual };
    let made = [other, usual, usual, newer, odd, other];
    let probes: Vec<Document> = made.iter().map(|made| probe("p", *made)).collect();
    let merged = Merged::new(&probes);
    let rows = merged.kinds.iter().map(|kind| {
        let kernel = kind.kernel.clone().unwrap();
        (kind.processor.as_str(), kernel, kind.probes, kind.outliers, kind.costs["burst"])
    });
    let expected = [
        ("One", "6.2".to_owned(), 2, 1, [1000.0, 2000.0, 3000.0]),
        ("Another", "6.1".to_owned(), 2, 0, [1000.0; 3]),
        ("One", "6.1".to_owned(), 2, 0, [1000.0; 3]),
    ];
    assert_eq!(rows.collect::<Vec<_>>(), expected);
    let [outlier] = &merged.outliers[..] else { panic!("{merged:?}") };
    assert_eq!((outlier.probe, outlier.typical, outlier.of), (4, 1000.0, 4));
}

#[test]
fn a_probe_that_measured_nothing_finds_no_lack_of_an_effect() {
    let nothing = serde_json::json!({
        "schema": "dimmer/probe/2",
        "verdict": { "effect": "not-measured" },
        "machine": { "brand": "One", "microarchitecture": "m", "cpus": 2, "time": "" },
        "results": [],
        "interrupted": true,
    });
    let nothing = Document::parse(Path::new("p"), &nothing.to_string()).unwrap();
    let merged = Merged::new(&[nothing.clone(), nothing]);
    let [kind] = &merged.kinds[..] else { panic!("{merged:?}") };
    assert_eq!((kind.probes, kind.with_effect, kind.open, kind.not_measured), (2, 0, 0, 2));
}

/// Two machines cannot say which of them is odd; where most have no effect, one that has none is
/// usual.
#[test]
fn few_machines_or_none_with_an_effect_have_no_outliers() {
    let odd = Made { burst: (3000.0, 50.0), ..Made::default() };
    let merged = Merged::new(&[probe("a", Made::default()), probe("b", odd)]);
    assert_eq!(merged.outliers, []);
    let none = |ns: f64| {
        let made =
            Made { burst: (ns, 1.0), ratio: (1.0, 0.001), has_effect: false, ..Made::default() };
        probe("p", made)
    };
    assert_eq!(Merged::new(&[none(1.0), none(9.0), none(90.0), none(2.0)]).outliers, []);
    assert_eq!(Merged::new(&[]), Merged::default());
}
