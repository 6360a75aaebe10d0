//! The cache: interrupted studies, damaged files, several studies at once.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use dimmer_processor::model::builtin;

use super::*;
use crate::Mechanism;
use crate::matrix::{Case, Cell, Follower, Named, Plan};
use crate::run::Run;

/// Two mechanisms that apply to a short random workload.
fn plan(seeds: u64) -> Plan {
    let text = r#"
schema = "dimmer/scenario/1"
name = "short"
source = "made up"
model = "i9-7940x"
cores = 2
end_us = 3_000
[[code]]
name = "scalar"
class = "scalar"
per_cycle = 1.0
[[code]]
name = "wide"
class = "heavy-512"
per_cycle = 1.0
[[distribution]]
name = "gap"
quantiles = [[0, 50], [1, 150]]
[[thread]]
name = "worker"
times = 0
steps = [{ run = "scalar", us = "gap" }, { run = "wide", instructions = 20_000 }]
"#;
    let scenario = Scenario::parse(Path::new("short.toml"), text).unwrap();
    let model = Model::parse(Path::new("model"), builtin("i9-7940x").unwrap()).unwrap();
    Plan {
        scenarios: vec![Named { name: "short".to_owned(), value: scenario }],
        models: vec![Named { name: "i9-7940x".to_owned(), value: model }],
        mechanisms: vec![Mechanism::Narrow, Mechanism::Predictive],
        seeds,
        jobs: 2,
    }
}

fn whole(plan: &Plan, cache: &Cache) -> Case {
    let follower = Follower { stops: &|| false, advances: &|_, _| () };
    plan.carry_out(cache, &follower).unwrap().remove(0)
}

/// The only file of a cache.
fn file(directory: &Path) -> PathBuf {
    let mut files = fs::read_dir(directory).unwrap();
    let first = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none());
    first
}

#[test]
fn results_do_not_depend_on_threads_or_on_what_is_kept() {
    let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let cache = Cache::new(Some(directory.path()));
    let first = whole(&plan(3), &cache);
    let one_thread = Plan { jobs: 1, ..plan(3) };
    assert_eq!(first.cells, whole(&plan(3), &cache).cells);
    assert_eq!(first.cells, whole(&one_thread, &Cache::new(Some(other.path()))).cells);
    assert!(matches!(&first.cells[0].1, Cell::Ran(runs) if runs.runs.len() == 3));
}

/// A study that ends in the middle, as by a signal, leaves what it has done to the next one.
#[test]
fn a_study_goes_on_where_the_last_one_was() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::new(Some(directory.path()));
    let plan = Plan { jobs: 1, ..plan(3) };
    let complete = AtomicUsize::new(0);
    let advances = |cells, _| complete.store(cells, Ordering::SeqCst);
    let stops = || complete.load(Ordering::SeqCst) >= 1;
    let follower = Follower { stops: &stops, advances: &advances };
    let case = plan.carry_out(&cache, &follower).unwrap().remove(0);
    let not_run = case.cells.iter().filter(|(_, cell)| *cell == Cell::NotRun).count();
    assert_eq!(not_run, 2);
    let kept = lines(&file(directory.path()));
    assert_eq!(kept.len(), 3);
    // What is kept is read: a line with another result shows.
    let path = file(directory.path());
    let marked = kept.into_iter().map(|((label, seed), line)| {
        let mut run = parsed::<Run>(&line).unwrap().run;
        run.traps = 77;
        let json = serde_json::to_string(&Line { label, seed, run }).unwrap();
        format!("{:016x} {json}\n", digest([json.as_bytes()]))
    });
    fs::write(&path, format!("{FORMAT}\n{}", marked.collect::<String>())).unwrap();
    let case = whole(&plan, &cache);
    let traps = |cell: &Cell| match cell {
        Cell::Ran(runs) => runs.runs.iter().map(|run| run.traps).collect(),
        _ => Vec::new(),
    };
    let marked = case.cells.iter().filter(|(_, cell)| traps(cell) == [77, 77, 77]).count();
    let computed = case.cells.iter().filter(|(_, cell)| traps(cell) == [0, 0, 0]).count();
    assert_eq!((marked, computed), (1, 2));
    assert_eq!(lines(&path).len(), 9);
}

#[test]
fn what_is_damaged_is_computed_again() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::new(Some(directory.path()));
    let expected = whole(&plan(2), &cache);
    let path = file(directory.path());
    let text = fs::read(&path).unwrap();
    let damaged: [fn(&mut Vec<u8>); 5] = [
        // Cut, as when the disk was full.
        |bytes| bytes.truncate(bytes.len() / 2),
        // A digit that is another one.
        |bytes| {
            let at = bytes.iter().rposition(|byte| *byte == b'1').unwrap();
            bytes[at] = b'2';
        },
        |bytes| bytes.clear(),
        |bytes| *bytes = b"dimmer/study-cache/0\n".to_vec(),
        |bytes| bytes.iter_mut().for_each(|byte| *byte ^= 0xff),
    ];
    for damage in damaged {
        let mut bytes = text.clone();
        damage(&mut bytes);
        fs::write(&path, &bytes).unwrap();
        assert!(lines(&path).len() < 6);
        assert_eq!(whole(&plan(2), &cache).cells, expected.cells);
        assert_eq!(lines(&path).len(), 6);
        // What was there stays.
        assert!(fs::read(&path).unwrap().starts_with(&bytes));
    }
}

/// A line of 20 MiB that is none, between whole ones.
#[test]
fn a_long_file_is_read_and_only_added_to() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::new(Some(directory.path()));
    whole(&plan(1), &cache);
    let path = file(directory.path());
    let mut bytes = fs::read(&path).unwrap();
    bytes.resize(bytes.len() + (20 << 20), b'x');
    fs::write(&path, &bytes).unwrap();
    assert_eq!(lines(&path).len(), 3);
    whole(&plan(2), &cache);
    assert_eq!(lines(&path).len(), 6);
    let text = fs::read(&path).unwrap();
    assert!(text.starts_with(&bytes));
    // The heading, three lines, the long one, and three new ones.
    assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), 8);
}

#[test]
fn two_studies_at_once_do_no_harm() {
    let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let expected = whole(&plan(4), &Cache::new(Some(other.path()))).cells;
    std::thread::scope(|scope| {
        let study = || whole(&plan(4), &Cache::new(Some(directory.path()))).cells;
        let studies: Vec<_> = (0..4).map(|_| scope.spawn(study)).collect();
        for study in studies {
            assert_eq!(study.join().unwrap(), expected);
        }
    });
    let path = file(directory.path());
    assert!(
        fs::read_to_string(&path)
            .unwrap()
            .lines()
            .skip(1)
            .all(|line| parsed::<Run>(line).is_some())
    );
}

#[test]
fn another_scenario_model_or_program_has_a_file_of_its_own() {
    let Plan { scenarios, models, .. } = plan(1);
    let (scenario, model) = (&scenarios[0].value, &models[0].value);
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::new(Some(directory.path()));
    let path = |cache: &Cache, scenario: &Scenario, model: &Model| {
        cache.open(scenario, model).path.unwrap()
    };
    let usual = path(&cache, scenario, model);
    assert_eq!(usual, path(&cache, scenario, model));
    let later = scenario.clone().until(dimmer_sim::Moment::from_ps(7));
    assert_ne!(usual, path(&cache, &later, model));
    let mut other = model.clone();
    other.release.hold_ns = None;
    assert_ne!(usual, path(&cache, scenario, &other));
    let program = Cache { program: "another".to_owned(), ..cache };
    assert_ne!(usual, path(&program, scenario, model));
}

/// Nothing is kept, and nothing fails.
#[test]
fn a_directory_that_cannot_be_written_is_no_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let cell = whole(&plan(1), &Cache::new(Some(&file))).cells.remove(0).1;
    assert!(matches!(cell, Cell::Ran(_)));
}
