//! Tests of databases: made-up ones in a directory, and the one of the project.

use std::fs;

use serde_json::json;

use super::*;

/// The documents of `dimmer doctor` and `dimmer bench dev hook` on a Zen 5 machine, with this
/// median and interval of a timed call.
pub(crate) fn hook(timed: [f64; 3]) -> Vec<(&'static str, Value)> {
    let quantity = |[median, low, high]: [f64; 3]| json!({ "median": median, "ci95": [low, high] });
    let doctor = json!({
        "schema": "dimmer/doctor/2",
        "machine": {
            "vendor": "AuthenticAMD", "brand": "AMD EPYC", "microarchitecture": "Zen 5",
            "microcode": "0x1", "hypervisor": "KVM", "kernel_release": "6.18.44",
        },
        "commands": [], "capabilities": [],
    });
    let hook = json!({
        "schema": "dimmer/bench-hook/1", "rounds": 31, "calls": 1000,
        "plain_ns": quantity([1.1, 1.0, 1.2]), "call_ns": quantity([0.7, 0.6, 0.8]),
        "counted_ns": quantity([0.9, 0.8, 1.0]), "timed_ns": quantity(timed),
    });
    vec![("doctor", doctor), ("bench-hook", hook)]
}

/// A database of these records and documents.
pub(crate) fn database(records: &[(&str, Vec<(&str, Value)>)]) -> Database {
    let mut database = Database::default();
    for (name, documents) in records {
        let files = documents.iter().map(|(document, value)| {
            (Path::new(name).join(format!("{document}.json")), Ok(value.to_string()))
        });
        database.add(Path::new(name), files);
    }
    assert!(database.problems.is_empty(), "{:?}", database.problems);
    database
}

const NAME: &str = "epyc-zen5-vm-linux-6.18-2026-11-26";

fn written(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    directory
}

#[test]
fn the_projects_own_records_are_read() {
    let database = Database::builtin();
    assert!(database.problems.is_empty(), "{:?}", database.problems);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines");
    let read = Database::read(&root).unwrap();
    assert!(read.problems.is_empty(), "{:?}", read.problems);
    let names = |database: &Database| -> Vec<String> {
        database.records.iter().map(|record| record.name.clone()).collect()
    };
    assert_eq!(names(&database), names(&read));
    for (within, file) in database.records.iter().zip(&read.records) {
        for (within, file) in within.documents.iter().zip(&file.documents) {
            assert_eq!(within.value, file.value, "{}", file.file.display());
        }
    }
}

#[test]
fn what_is_wrong_is_named_and_the_rest_is_read() {
    let doctor = hook([60.0; 3])[0].1.to_string();
    let bench = hook([60.0; 3])[1].1.to_string();
    let check = |files: &[(&str, &str)], expected: &str| {
        let doctor_file = format!("{NAME}/doctor.json");
        let files: Vec<(&str, &str)> =
            [(&*doctor_file, &*doctor)].into_iter().chain(files.iter().copied()).collect();
        let directory = written(&files);
        let database = Database::read(directory.path()).unwrap();
        assert_eq!(database.records.len(), 1);
        let said: Vec<String> = database.problems.iter().map(ToString::to_string).collect();
        let said = said.join("\n").replace(&format!("{}/", directory.path().display()), "");
        assert!(said.contains(expected), "{said}");
        assert_eq!(said.is_empty(), expected.is_empty(), "{said}");
    };
    let file = format!("{NAME}/bench-hook.json");
    check(&[(&file, &bench)], "");
    check(&[("README.md", "x"), ("claims.toml", "x"), (".hidden", "x")], "");
    check(&[(&file, &bench[..40])], "bench-hook.json: line 1, column 40: the text ends too early");
    let text = bench.replace("\"counted_ns\"", "\"counted\"");
    check(&[(&file, &text)], "bench-hook.json: `counted_ns` is missing");
    let text = bench.replace("bench-hook/1", "bench-hook/7");
    check(
        &[(&file, &text)],
        "its `schema` is `dimmer/bench-hook/7`, expected `dimmer/bench-hook/1`",
    );
    check(
        &[(&format!("{NAME}/bench-hok.json"), &bench)],
        "bench-hok.json: expected one of doctor,",
    );
    check(&[("zen5/doctor.json", &doctor)], "zen5: expected a directory named");
    check(
        &[("epyc-zen4-vm-linux-6.18-2026-11-26/bench-hook.json", &bench)],
        "epyc-zen4-vm-linux-6.18-2026-11-26: expected a doctor.json",
    );
}

#[test]
fn a_directory_may_be_a_record_itself() {
    let doctor = hook([60.0; 3])[0].1.to_string();
    let directory = written(&[(&format!("{NAME}/doctor.json"), &doctor)]);
    let database = Database::read(&directory.path().join(NAME)).unwrap();
    assert_eq!(database.records[0].name, NAME);
    assert_eq!(database.records[0].about.machine(), database.records[0].machine);
}

#[test]
fn what_is_no_database_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let said = Database::read(directory.path()).unwrap_err().to_string();
    assert!(said.contains("has no records: expected directories named"), "{said}");
    let said = Database::read(&directory.path().join("none")).unwrap_err().to_string();
    assert!(said.starts_with("cannot read directory"), "{said}");
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    let database = database(&[
        (NAME, hook([60.0; 3])),
        ("epyc-zen5-vm-linux-6.18-2026-11-27", hook([60.0; 3])),
    ]);
    let named = |name: &str| database.named(&[name.to_owned()]);
    assert_eq!(named("epyc-zen5-vm-linux-6.18").unwrap().len(), 2);
    assert_eq!(named(NAME).unwrap().len(), 1);
    let said = named("epyc-zen9").unwrap_err().to_string();
    let expected = "no machine is named `epyc-zen9`: expected one of \
                    epyc-zen5-vm-linux-6.18-2026-11-26, epyc-zen5-vm-linux-6.18-2026-11-27";
    assert_eq!(said, expected);
    let twice = [NAME.to_owned(), "epyc-zen5-vm-linux-6.18".to_owned(), NAME.to_owned()];
    assert_eq!(database.named(&twice).unwrap().len(), 2);
}

#[test]
fn claims_beside_a_record_are_for_it_alone_too() {
    let claims = "[[claim]]\nid = 'own'\nfile = 'f'\nquote = 'q'\ndocuments = ['bench-hook']\n\
                  quantity = 'timed_ns'\nmost = 70\n";
    let [doctor, hook] = [0, 1].map(|index: usize| hook([60.0; 3])[index].1.to_string());
    let (doctor_file, hook_file) =
        (format!("{NAME}/doctor.json"), format!("{NAME}/bench-hook.json"));
    let files = [("claims.toml", claims), (&*doctor_file, &*doctor), (&*hook_file, &*hook)];
    let directory = written(&files);
    for directory in [directory.path().to_owned(), directory.path().join(NAME)] {
        let (database, claims) = Database::open(Some(&directory)).unwrap();
        assert!(database.problems.is_empty(), "{:?}", database.problems);
        let ids: Vec<&str> = claims.iter().map(|claim| claim.id.as_str()).collect();
        assert_eq!((database.records.len(), ids), (1, vec!["own"]));
    }
}
