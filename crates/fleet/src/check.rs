//! Whether a record is what its name says, and has nothing that it may not have.

use crate::database::{Database, Entry, Read, Record};
use crate::names;
use crate::privacy::Privacy;

/// What is wrong with some records of a database, and with all files in it that are none.
#[must_use]
pub fn of_database(database: &Database, records: &[&Record], privacy: &Privacy) -> Vec<String> {
    let of_records = records.iter().flat_map(|record| problems(record, privacy));
    database.problems.iter().map(ToString::to_string).chain(of_records).collect()
}

/// What is wrong with a record: a sentence that names the file.
#[must_use]
pub fn problems(record: &Record, privacy: &Privacy) -> Vec<String> {
    let mut problems = Vec::new();
    for entry in &record.documents {
        let file = entry.file.display();
        for leak in privacy.leaks(&entry.value) {
            problems.push(format!("{file}: has {}: `{}`", leak.what, leak.word));
        }
        if let Some(about) = entry.about()
            && about != record.about
        {
            let (found, others) = (&about, &record.about);
            problems.push(format!(
                "{file}: describes another machine than the record's other documents: \
                 {found:?}, not {others:?}"
            ));
        }
        if let Some(time) = time(entry)
            && !names::is_of_day(time, &record.date)
        {
            problems.push(format!("{file}: is of {time}, the record of {}", record.date));
        }
        if let Read::Evidence(evidence) = &entry.read {
            let is_lost =
                |ran: &&crate::evidence::Ran| ran.is_done && record.document(&ran.name).is_none();
            for ran in evidence.commands.iter().filter(is_lost) {
                problems.push(format!("{file}: `{}` is done, and has no document", ran.name));
            }
        }
    }
    let expected = record.about.machine();
    if names::kind(&record.machine) != expected {
        problems.push(format!(
            "{}: by its documents it is {expected}, or {expected}-host2 and so on",
            record.name
        ));
    }
    problems
}

/// When a document was made, if it says so.
fn time(entry: &Entry) -> Option<&str> {
    match &entry.read {
        Read::Probe(probe) => Some(&probe.machine.time),
        Read::Evidence(evidence) => Some(&evidence.begun),
        Read::Doctor(_) | Read::Figures => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::database::Database;
    use crate::database::tests::{database, hook};

    #[track_caller]
    fn check(name: &str, documents: Vec<(&str, Value)>, expected: &str) {
        let database = database(&[(name, documents)]);
        let found = problems(&database.records[0], &Privacy::new("build-7")).join("\n");
        assert_eq!(found, expected);
    }

    const NAME: &str = "epyc-zen5-vm-linux-6.18-2026-11-26";

    fn probe(kernel: &str, time: &str) -> Value {
        json!({
            "schema": "dimmer/probe/1",
            "machine": {
                "brand": "AMD EPYC", "microarchitecture": "Zen 5", "microcode": "0x1",
                "hypervisor": "KVM", "kernel": kernel, "cpus": 2, "time": time,
            },
            "results": [], "interrupted": false,
        })
    }

    #[test]
    fn a_record_is_what_its_name_says() {
        check(NAME, hook([60.0; 3]), "");
        check("epyc-zen5-vm-linux-6.18-host2-2026-11-26", hook([60.0; 3]), "");
        check(
            "epyc-zen4-vm-linux-6.18-2026-11-26",
            hook([60.0; 3]),
            "epyc-zen4-vm-linux-6.18-2026-11-26: by its documents it is epyc-zen5-vm-linux-6.18, \
             or epyc-zen5-vm-linux-6.18-host2 and so on",
        );
        let mut documents = hook([60.0; 3]);
        documents.push(("probe", probe("6.18.44", "2026-11-26T10:00:00Z")));
        check(NAME, documents.clone(), "");
        documents[2].1 = probe("6.18.44", "2026-11-29T10:00:00Z");
        let late =
            format!("{NAME}/probe.json: is of 2026-11-29T10:00:00Z, the record of 2026-11-26");
        check(NAME, documents.clone(), &late);
        documents[2].1 = probe("6.19.0", "2026-11-26T10:00:00Z");
        let database = database(&[(NAME, documents)]);
        let found = problems(&database.records[0], &Privacy::default());
        assert!(found[0].contains("probe.json: describes another machine"), "{found:?}");
    }

    #[test]
    fn a_record_names_no_host() {
        let mut documents = hook([60.0; 3]);
        documents[1].1["note"] = json!("/home/eve/x on build-7");
        let file = format!("{NAME}/bench-hook.json");
        let expected = format!(
            "{file}: has a path of a user: `/home/eve/x`\n{file}: has the name of this host: `build-7`"
        );
        check(NAME, documents, &expected);
    }

    #[test]
    fn the_projects_own_records_are_right() {
        for record in Database::builtin().records {
            assert_eq!(problems(&record, &Privacy::default()), [""; 0]);
        }
    }
}
