//! Made-up latencies and transitions, as text and as a document.

use dimmer_probe::latency::Skipped;
use dimmer_probe::transition::Transitions;
use dimmer_processor::units::{KiloHertz, TscFrequency};

use super::*;

fn samples(ns: &[f64]) -> Samples {
    Samples::new(ns.to_vec())
}

fn machine() -> MachineDescription {
    MachineDescription {
        vendor: "AuthenticAMD".to_owned(),
        brand: "AMD FX(tm)-8120".to_owned(),
        microarchitecture: "Bulldozer".to_owned(),
        microcode: None,
        hypervisor: None,
        kernel: None,
        cpus: 8,
        time: "2026-01-01T00:00:00Z".to_owned(),
        version: "0".to_owned(),
        command: "dimmer probe --mode latency,pstate".to_owned(),
    }
}

fn found() -> Latencies {
    let (one, other) = (CpuId::new(0), CpuId::new(2));
    let latency = |what, to, is_steady, left_out, ns: &[f64]| Latency {
        what,
        from: one,
        to,
        ns: samples(ns),
        left_out,
        is_steady,
    };
    let point = |mhz, ns: &[f64]| Point { clock: KiloHertz::from_mhz(mhz), window_ns: samples(ns) };
    let pair = |from, to, is_distinct, ns: &[f64], unseen| Pair {
        from,
        to,
        request_ns: samples(&[471.0]),
        transition_ns: samples(ns),
        unseen,
        is_distinct,
    };
    let transitions = Transitions {
        points: vec![point(1400, &[2000.0, 2010.0]), point(3100, &[900.0])],
        pairs: vec![pair(0, 1, true, &[45_839.0], 2), pair(1, 0, false, &[], 0)],
        interrupted: false,
    };
    let found = Found {
        tsc: TscFrequency::new(KiloHertz::from_mhz(4000)).unwrap(),
        offset_bound_ns: Some(46.0),
        latencies: vec![
            latency(What::Woken, Some((other, Relation::Cores)), false, 3, &[6000.0, 7000.0]),
            latency(What::Call, None, true, 0, &[50.0]),
        ],
        skipped: vec![Skipped { what: "pause", reason: "a reason".to_owned() }],
        interrupted: false,
    };
    Latencies {
        latency: Some(found),
        moves: Some(Err("one CPU".to_owned())),
        pstate: Some(Ok(Measured { cpu: other, by: "register 0x199".to_owned(), transitions })),
    }
}

#[test]
fn the_document_has_what_was_measured_and_what_is_missing() {
    let json = serde_json::to_value(document(&found(), &machine())).unwrap();
    let at = |path: &str| json.pointer(path).unwrap_or_else(|| panic!("no {path}")).clone();
    assert_eq!(at("/schema"), "dimmer/probe-latency/1");
    assert_eq!(at("/latencies/0/what"), "futex-woken-0.1ms");
    assert_eq!(at("/latencies/0/relation"), "cores");
    assert_eq!(at("/latencies/0/latency_ns/median"), 6500.0);
    assert_eq!(at("/latencies/0/left_out"), 3);
    assert!(at("/latencies/1/to_cpu").is_null());
    assert_eq!(at("/transitions/points/1/speed_ratio/median"), 2.22778);
    assert_eq!(at("/transitions/pairs/0/transition_ns/median"), 45839.0);
    assert!(at("/transitions/pairs/1/transition_ns").is_null());
    assert_eq!(at("/skipped/1/what"), "moves by the runtime");
    assert_eq!(at("/interrupted"), false);
}

#[test]
fn the_text_says_what_is_odd_about_a_row() {
    let text = text(&found(), Screen::file(140));
    for part in [
        "not steady, 3 left out",
        "0 to 2",
        "CPUs 0 and 2 are two cores of a package.",
        "Operating points of CPU 2, requested by register 0x199",
        "1400 to 3100",
        "2 not seen",
        "both run at the same speed",
        "Not here: moves by the runtime: one CPU",
    ] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
}

/// Every name has its row in the document's page, and none is there twice.
#[test]
fn every_name_is_described() {
    let page = include_str!("../../../../../docs/probe-latency-json.md");
    for latency in found().latency.unwrap().latencies {
        assert!(page.contains(latency.what.name()), "{}", latency.what.name());
    }
    for (_, name, _) in MOVES {
        assert!(page.contains(name), "{name}");
    }
}

#[test]
fn nothing_measured_is_an_empty_document() {
    let json = serde_json::to_value(document(&Latencies::default(), &machine())).unwrap();
    assert!(json["transitions"].is_null() && json["tsc_ghz"].is_null());
    assert_eq!(json["latencies"], serde_json::json!([]));
    assert_eq!(text(&Latencies::default(), Screen::file(100)), "");
}
