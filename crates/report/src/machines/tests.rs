//! Tests of what `dimmer machines` prints of made-up records.

use dimmer_fleet::claims;
use dimmer_fleet::database::Database;

use super::*;
use crate::MachineDescription;

/// A database of two days of a machine and one of another, written to a directory and read.
fn database() -> Database {
    let directory = tempfile::tempdir().unwrap();
    let probe = |micro: &str, date: &str, burst: f64, effect: bool| {
        let quantity = |median: f64| {
            serde_json::json!({
                "median": median, "ci95": [median - 5.0, median + 5.0],
            })
        };
        let machine = serde_json::json!({
            "brand": "AMD EPYC", "microarchitecture": micro, "microcode": "0x1",
            "hypervisor": "KVM", "kernel": "6.18.4", "cpus": 2,
            "time": format!("{date}T10:00:00Z"),
        });
        let verdict = if effect { "yes" } else { "no" };
        serde_json::json!({
            "schema": "dimmer/probe/2", "verdict": { "effect": verdict }, "machine": machine,
            "results": [{
                "mode": "episode", "kernel": "k", "threads": 1, "burst_instructions": 800,
                "effect": effect, "mean_extra_ns": quantity(burst), "bound_ns": 100.5,
            }],
            "interrupted": false,
        })
    };
    for (micro, name, date, burst, effect) in [
        ("Zen 4", "zen4", "2026-11-26", 1000.0, true),
        ("Zen 5", "zen5", "2026-11-26", 3.0, false),
        ("Zen 5", "zen5", "2026-11-27", 20.0, false),
    ] {
        let record = directory.path().join(format!("epyc-{name}-vm-linux-6.18-{date}"));
        std::fs::create_dir(&record).unwrap();
        let text = probe(micro, date, burst, effect).to_string();
        std::fs::write(record.join("probe-quick.json"), text).unwrap();
    }
    let evidence = serde_json::json!({
        "schema": "dimmer/evidence/1", "dimmer_version": "0.1.0",
        "begun": "2026-11-27T10:00:00Z", "ended": "2026-11-27T10:20:00Z",
        "load_begin": [1.5, 1.0, 1.0], "load_end": [2.0, 1.0, 1.0], "cpus": 2,
        "others_cpu_pct": 43.0, "steal_pct": 0.2, "interrupted": false,
        "commands": [
            { "name": "probe-quick", "command": "dimmer probe --quick --json", "seconds": 8.1,
              "is_done": true, "reason": null },
            { "name": "bench-nginx", "command": "dimmer bench nginx --json", "seconds": 0.1,
              "is_done": false, "reason": "nginx is not installed" },
        ],
    });
    let record = directory.path().join("epyc-zen5-vm-linux-6.18-2026-11-27");
    std::fs::write(record.join("evidence.json"), evidence.to_string()).unwrap();
    let database = Database::read(directory.path()).unwrap();
    assert!(database.problems.is_empty(), "{:?}", database.problems);
    database
}

const CLAIMS: &str = "
[[claim]]
id = 'a'
file = 'README.md'
quote = 'a burst costs at most 10 ns'
documents = ['probe-quick']
quantity = 'results[mode=episode].mean_extra_ns'
unit = 'ns'
most = 10
";

fn judged(database: &Database) -> Check {
    let records: Vec<&Record> = database.records.iter().collect();
    let claims = claims::parse(std::path::Path::new("claims.toml"), CLAIMS).unwrap();
    Check::new(&records, &claims, vec!["x.json: has a path of a user: `/home/x`".to_owned()])
}

#[test]
fn machines_are_listed_with_a_line_for_each_day() {
    let database = database();
    let records: Vec<&Record> = database.records.iter().collect();
    let text = List::new(&records).text(Screen::file(100));
    let expected = "\
epyc-zen4-vm-linux-6.18: AMD EPYC, Zen 4; KVM; kernel 6.18.4; microcode 0x1
  2026-11-26  an isolated burst costs 1000 ns  probe-quick

epyc-zen5-vm-linux-6.18: AMD EPYC, Zen 5; KVM; kernel 6.18.4; microcode 0x1
  2026-11-26  no effect above 101 ns                                     probe-quick
  2026-11-27  no effect above 101 ns                                     evidence, probe-quick
              busy meanwhile: other programs took 43 % of the CPUs, the
              hypervisor 0 %; load 1.5 at the start
";
    assert_eq!(text, expected, "{text}");
}

#[test]
fn a_record_is_shown_with_its_figures_and_what_is_lacking() {
    let database = database();
    let records = database.named(&["epyc-zen5-vm-linux-6.18-2026-11-27".to_owned()]).unwrap();
    let text = Show::new(&records).text(Screen::file(100));
    assert!(text.contains("No effect above 101 ns.\n"), "{text}");
    assert!(text.contains("20 ns  [15, 25]\n"), "{text}");
    assert!(text.ends_with("skipped: bench-nginx: nginx is not installed\n"), "{text}");
}

#[test]
fn days_that_differ_are_named_first() {
    let database = database();
    let records: Vec<&Record> = database.records.iter().collect();
    let text = Compared::new(&records).text(Screen::file(100));
    let expected = "\
epyc-zen5-vm-linux-6.18: of 1 figure in several of 2 records, 0 agree (their 95 % intervals have a
value in common) and 1 differs:
  probe-quick  an isolated burst costs the code after it, k, 800  2026-11-26: 3.0 ns [-2.0, 8.0]
               instructions                                       2026-11-27: 20 ns [15, 25]
";
    assert!(text.starts_with(expected), "{text}");
    assert!(text.contains("C: epyc-zen5-vm-linux-6.18-2026-11-27\n"), "{text}");
    let document = serde_json::to_value(Compared::new(&records)).unwrap();
    assert_eq!(document["kinds"][0]["differ"], 1);
    assert_eq!(document["figures"][0]["spreads"][0]["most"], 20.0);
}

#[test]
fn a_check_has_what_is_refuted_first() {
    let check = judged(&database());
    assert!(check.is_refused());
    let text = check.text(false, Screen::file(100));
    assert!(text.starts_with("wrong: x.json: has a path of a user: `/home/x`\n"), "{text}");
    assert!(text.contains("  refuted  1000 ns [995, 1005]  at most 10 ns"), "{text}");
    assert!(text.contains("  confirmed  3.0 ns [-2.0, 8.0]"), "{text}");
    assert!(
        text.ends_with("1 claim by 3 records: 1 confirmed, 2 refuted, 0 cannot say; 1 problem.\n"),
        "{text}"
    );
}

#[test]
fn a_page_has_all_records_and_is_well_formed() {
    let database = database();
    let records: Vec<&Record> = database.records.iter().collect();
    let claims = claims::parse(std::path::Path::new("claims.toml"), CLAIMS).unwrap();
    let machine = MachineDescription {
        vendor: String::new(),
        brand: String::new(),
        microarchitecture: String::new(),
        microcode: None,
        hypervisor: None,
        kernel: None,
        cpus: 1,
        time: "2026-11-27T10:00:00Z".to_owned(),
        version: "0.1.0".to_owned(),
        command: "dimmer machines list".to_owned(),
    };
    let page = page(&records, &claims, &machine).unwrap();
    for record in &records {
        assert!(page.contains(&record.machine) && page.contains(&record.date), "{}", record.name);
    }
    assert!(page.contains("a burst costs at most 10 ns"));
    let mut reader = quick_xml::Reader::from_str(&page);
    reader.config_mut().check_end_names = false;
    while !matches!(reader.read_event().unwrap(), quick_xml::events::Event::Eof) {}
}

#[test]
fn evidence_is_written_as_it_is_read() {
    let database = database();
    let record = database.records.iter().find_map(Record::evidence).unwrap();
    let text = evidence(record).unwrap();
    let read: dimmer_fleet::evidence::Evidence = serde_json::from_str(&text).unwrap();
    assert_eq!(&read, record);
}
