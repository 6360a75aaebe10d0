//! `--trace` of `dimmer sim run`, `observe` and `run`: the tests read the file packet by packet, as
//! Perfetto does, and check its content.

#[path = "../../../report/src/timeline/perfetto.rs"]
mod perfetto;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use prost::Message;

use crate::interrupt::{FOR_EVER, interrupted};
use crate::migrate::{RUNS, away, early_ms};
use crate::observe::observe;
use crate::predict::{json, project};
use crate::victims::{self, Victims};
use crate::{command, dimmer, stderr, stdout};
use perfetto::{Kind, Trace, TrackEvent};

const WORST_CASE: &str = "scenarios/multiphase-worst-case.toml";
const BOOSTED: &str = "scenarios/boosted-section.toml";

/// The content of a track; times in ns.
#[derive(Debug, Default)]
struct Row {
    is_counter: bool,
    slices: Vec<Slice>,
    instants: Vec<String>,
    values: Vec<f64>,
    /// The time of the last event, and the slice that has started but not ended.
    last: u64,
    open: Option<Slice>,
}

#[derive(Clone, Debug, PartialEq)]
struct Slice {
    begin: u64,
    end: u64,
    name: String,
}

/// The tracks of a trace by name, each prefixed with the names of its groups: `scenario/core
/// 0/clock`.
#[track_caller]
fn read(bytes: &[u8]) -> BTreeMap<String, Row> {
    let trace = Trace::decode(bytes).unwrap();
    let mut paths: BTreeMap<u64, String> = BTreeMap::new();
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    let mut rank = 0;
    for (index, packet) in trace.packet.iter().enumerate() {
        assert_eq!(packet.trusted_packet_sequence_id, Some(1));
        let flags = if index == 0 { perfetto::STATE_CLEARED } else { perfetto::NEEDS_STATE };
        assert_eq!(packet.sequence_flags, Some(flags));
        let clock = packet.trace_packet_defaults.map(|defaults| defaults.timestamp_clock_id());
        assert_eq!(clock, (index == 0).then_some(perfetto::SINCE_BOOT));
        match (&packet.track_descriptor, &packet.track_event) {
            (Some(track), None) => {
                let name = track.name().to_owned();
                let path = track
                    .parent_uuid
                    .map_or_else(|| name.clone(), |parent| format!("{}/{name}", paths[&parent]));
                assert!(track.uuid() != 0 && paths.insert(track.uuid(), path.clone()).is_none());
                assert_eq!(track.child_ordering(), perfetto::BY_RANK);
                assert!(track.sibling_order_rank() > rank, "{name}");
                rank = track.sibling_order_rank();
                assert_eq!(track.sibling_merge_behavior(), perfetto::APART);
                let unit = track.counter.as_ref().map(|counter| counter.unit_name());
                let row = Row { is_counter: unit.is_some(), ..Row::default() };
                assert!(unit.is_none_or(|unit| ["MHz", "CPUs"].contains(&unit)));
                assert!(rows.insert(path, row).is_none(), "{name} is there twice");
            }
            // An event of a track that was not described before panics here.
            (None, Some(event)) => {
                let row = rows.get_mut(&paths[&event.track_uuid()]).unwrap();
                row.take(packet.timestamp.unwrap(), event);
            }
            (track, event) => assert!(index == 0 && track.is_none() && event.is_none()),
        }
    }
    assert!(rows.values().all(|row| row.open.is_none()), "a slice has no end");
    rows
}

impl Row {
    #[track_caller]
    fn take(&mut self, at: u64, event: &TrackEvent) {
        assert!(at >= self.last, "{event:?}");
        self.last = at;
        assert_eq!(self.is_counter, event.r#type() == Kind::Counter, "{event:?}");
        let name = event.name().to_owned();
        match event.r#type() {
            Kind::SliceBegin => {
                let before = self.open.replace(Slice { begin: at, end: at, name });
                assert_eq!(before, None, "slices overlap");
            }
            Kind::SliceEnd => {
                let begun = self.open.take().expect("an end without a begin");
                self.slices.push(Slice { end: at, ..begun });
            }
            Kind::Instant => self.instants.push(name),
            Kind::Counter => self.values.push(event.double_counter_value.unwrap()),
            Kind::Unspecified => panic!("{event:?}"),
        }
    }

    fn shown(&self, name: &str) -> f64 {
        let of = self.slices.iter().filter(|slice| slice.name == name);
        of.map(Slice::us).sum()
    }

    fn names(&self) -> Vec<&str> {
        self.slices.iter().map(|slice| slice.name.as_str()).collect()
    }
}

impl Slice {
    fn us(&self) -> f64 {
        (self.end - self.begin) as f64 / 1e3
    }
}

/// The trace that the command writes into a file: its bytes and its tracks.
#[track_caller]
fn trace_of(arguments: &[&str]) -> (Vec<u8>, BTreeMap<String, Row>) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace.pftrace");
    let arguments = [&["sim", "run"], arguments, &["--trace", file.to_str().unwrap()]].concat();
    let output = dimmer(&project().unwrap(), &arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let bytes = std::fs::read(&file).unwrap();
    let rows = read(&bytes);
    (bytes, rows)
}

#[test]
fn a_trace_shows_levels_and_threads() {
    let Some(project) = project() else { return };
    let (_, rows) = trace_of(&[WORST_CASE]);
    let whole = &rows["Multi-phase, worst case"];
    assert_eq!(whole.names(), ["complete"]);
    let levels = &rows["Multi-phase, worst case/core 0/license level"];
    let thread = &rows["Multi-phase, worst case/core 0/phases"];
    for name in ["L0, throttled", "L1", "L2", "L2, standing still"] {
        assert!(levels.names().contains(&name), "{name}: {levels:?}");
    }
    // One track has no gaps, from start to end.
    let mut end = 0;
    for slice in &levels.slices {
        assert_eq!(slice.begin, end, "{slice:?}");
        end = slice.end;
    }
    assert!(end > 2_200_000_000);
    assert_eq!((whole.slices[0].begin, whole.slices[0].end), (0, end));
    // The trace agrees with the totals.
    let totals = json(&project, &["sim", "run", WORST_CASE, "--json"]);
    let core = &totals["cores"][0];
    let throttled = core["throttled_us"].as_f64().unwrap();
    assert!((levels.shown("L0, throttled") - throttled).abs() <= 1e-3);
    let step = totals["threads"][0]["phases"][1]["time_us"].as_f64().unwrap();
    assert!((thread.shown("step 2") - step).abs() <= 1e-3);
}

#[test]
fn a_trace_shows_what_a_governor_in_software_decides() {
    if project().is_none() {
        return;
    }
    let row = "Multi-phase, worst case/core 0/governor";
    let (_, rows) = trace_of(&[WORST_CASE, "--governor", "user"]);
    // The program requests the level of its wide code, and gives it back.
    assert_eq!(rows[row].instants, ["L2", "L0"]);
    let (_, rows) = trace_of(&[WORST_CASE]);
    assert!(!rows.contains_key(row), "{:?}", rows.keys());
}

#[test]
fn a_trace_shows_requests_for_p_states_and_their_ramps() {
    let Some(project) = project() else { return };
    let (_, rows) = trace_of(&[BOOSTED]);
    let scenario = rows.keys().find(|path| !path.contains('/')).unwrap();
    let row = |core: usize, name: &str| rows.get(&format!("{scenario}/core {core}/{name}"));
    // A request of a thread occupies the core for the time that is counted for it.
    let totals = json(&project, &["sim", "run", BOOSTED, "--json"]);
    let requests = &row(0, "requests for P-states").unwrap().slices;
    let kept: f64 = requests.iter().map(Slice::us).sum();
    let counted = totals["cores"][0]["governor_us"].as_f64().unwrap();
    assert!(kept >= counted - 1e-3 * requests.len() as f64, "{kept}");
    // Paper 002 Table 4: P2 to P0 takes 23 664 ns, P0 to P2 6046 ns, of which the request takes
    // 5800 ns; here from the first request to P0 on.
    let ruling = row(0, "P-state").unwrap();
    assert_eq!(ruling.names()[..4], ["on the way to P0", "P0", "on the way to P2", "P2"]);
    let asked = requests.iter().find(|slice| slice.name == "asks for P2").unwrap();
    let falls = ruling.slices.iter().find(|slice| slice.name == "on the way to P2").unwrap();
    assert_eq!(asked.begin, falls.begin);
    assert!((asked.us() - 5.8).abs() <= 1e-3, "{asked:?}");
    assert!((5.8..6.046).contains(&falls.us()), "{falls:?}");
    // Meanwhile the clock ramps in steps of 100 MHz.
    let ramp: Vec<f64> = (31..=40).map(|step| 100.0 * f64::from(step)).collect();
    assert_eq!(row(0, "clock").unwrap().values[..10], ramp);
    // The other core of the module has the same clock, whether it executes or not. A model without
    // P-states has no such tracks.
    assert_eq!(row(1, "P-state").unwrap().slices, ruling.slices);
    assert!(row(1, "requests for P-states").is_none());
    let (_, without) = trace_of(&[WORST_CASE]);
    assert!(!without.keys().any(|path| path.ends_with("/P-state")));
}

#[test]
fn every_core_has_a_group_and_one_seed_gives_the_same_bytes() {
    if project().is_none() {
        return;
    }
    let moved = ["scenarios/primesieve-moved.toml", "--loop", "always"];
    for (arguments, cores) in
        [(&[BOOSTED][..], 8), (&["scenarios/web-server.toml"], 4), (&moved, 2)]
    {
        let (bytes, rows) = trace_of(arguments);
        for row in ["license level", "clock"] {
            let of = rows.keys().filter(|path| path.ends_with(&format!("/{row}")));
            assert_eq!(of.count(), cores, "{arguments:?}, {row}");
        }
        let steps = rows.values().flat_map(|row| &row.slices);
        let steps = steps.filter(|slice| slice.name.starts_with("step "));
        assert!(steps.count() > 10, "{arguments:?}");
        assert!(bytes == trace_of(arguments).0, "{arguments:?}");
    }
    let seeded = |seed| trace_of(&["scenarios/web-server.toml", "--seed", seed]).0;
    assert!(seeded("1") != seeded("2"));
}

#[test]
fn an_interrupted_trace_says_so() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("for-ever.toml"), FOR_EVER).unwrap();
    let arguments = ["sim", "run", "for-ever.toml", "--trace", "trace.pftrace"];
    let output = interrupted(directory.path(), &arguments, 2).unwrap();
    assert_eq!(output.status.code(), Some(128 + 2), "{}", stderr(&output));
    let rows = read(&std::fs::read(directory.path().join("trace.pftrace")).unwrap());
    assert_eq!(rows["For ever"].names(), ["partial: interrupted"]);
}

#[test]
fn a_trace_goes_to_standard_output_alone_or_into_a_file_that_can_be_written() {
    let Some(project) = project() else { return };
    let output = dimmer(&project, &["sim", "run", WORST_CASE, "--trace", "-"]);
    assert_eq!(output.stdout, trace_of(&[WORST_CASE]).0);
    let output = dimmer(&project, &["sim", "run", WORST_CASE, "--trace", "/proc/no/such/place"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "");
    let message = stderr(&output);
    assert!(message.contains("cannot write /proc/no/such/place"), "{message}");
    let output = dimmer(&project, &["sim", "run", WORST_CASE, "--trace", "-", "--json"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""));
    assert!(stderr(&output).contains("not both"), "{}", stderr(&output));
}

/// Needs Perfetto's library for Python; `CONTRIBUTING.md` describes how to get it.
#[test]
fn perfettos_own_parser_reads_traces() {
    let Some(project) = project() else { return };
    let directory = tempfile::tempdir().unwrap();
    let names = ["worst-case", "boosted", "web-server", "garbled"];
    let files = names.map(|name| directory.path().join(name));
    for (scenario, file) in [WORST_CASE, BOOSTED, "scenarios/web-server.toml"].iter().zip(&files) {
        std::fs::write(file, trace_of(&[scenario]).0).unwrap();
    }
    let parse = |files: &[&Path]| {
        let script = project.join("ci/check-trace.py");
        Command::new("python3").arg(script).args(files).output()
    };
    let [first, second, third, garbled] = files.each_ref().map(|file| file.as_path());
    let parsed = match parse(&[first, second, third]) {
        Ok(parsed) => parsed,
        Err(error) => return println!("SKIPPED: cannot run python3: {error}"),
    };
    let said = stdout(&parsed);
    if said.starts_with("SKIPPED: ") {
        return print!("{said}");
    }
    assert!(parsed.status.success(), "{said}{}", stderr(&parsed));
    assert_eq!(said.matches(" tracks, ").count(), 3, "{said}");
    // The parser rejects a trace without its first packet, which has 12 bytes.
    std::fs::write(garbled, &std::fs::read(first).unwrap()[12..]).unwrap();
    let parsed = parse(&[garbled]).unwrap();
    assert!(!parsed.status.success(), "{}", stdout(&parsed));
}

#[test]
fn observed_calls_are_on_the_tracks_of_their_threads() {
    let Some(victims) = Victims::compile(&["calls"]) else { return };
    let (home, program) = (victims.directory.path(), victims.path("calls"));
    let file = home.join("calls.pftrace");
    let to = file.to_str().unwrap();
    // Not within another hooked function: such calls are left out.
    let output = observe(home, &["--function", "work", "--trace", to, "--", &program]);
    let said = stderr(&output);
    let rows = read(&std::fs::read(&file).unwrap());
    let whole = rows[&program].names()[0];
    assert!(said.contains(&format!("the trace has {whole}")), "{said}");
    let of = |name: &str| {
        let slices = rows.values().flat_map(|row| &row.slices);
        slices.filter(|slice| slice.name == name).count()
    };
    // The program calls `work` 2600 times; on a busy machine some records may be lost.
    assert!((1..=2600).contains(&of("work")), "{} {whole}", of("work"));
    assert!(rows.keys().any(|path| path.contains("/process ")), "{:?}", rows.keys());
    let threads = rows.iter().filter(|(path, _)| path.contains("/process "));
    let within = |row: &Row| row.slices.windows(2).all(|two| two[0].end <= two[1].begin);
    assert!(threads.map(|(_, row)| row).all(within));
}

#[test]
fn moved_calls_are_called_so_and_decisions_have_tracks() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["migrated"]) else { return };
    victims::library();
    let (home, program) = (victims.directory.path(), victims.path("migrated"));
    let file = home.join("migrated.pftrace");
    let moved = (0..RUNS).find_map(|run| {
        let mut command = command(home, &["run", "--migrate=integers", "--cpus", &cpu]);
        command.args(["--trace", file.to_str().unwrap(), "--", &program]);
        command.env("HOME", home).env("EARLY_MS", early_ms(run));
        let output = command.output().unwrap();
        assert!(file.exists(), "{}", stderr(&output));
        let rows = read(&std::fs::read(&file).unwrap());
        let is_moved = |row: &Row| row.slices.iter().any(|slice| slice.name.ends_with(" (moved)"));
        rows.values().any(is_moved).then_some(rows)
    });
    let rows = moved.expect("no call was moved");
    let decisions = &rows[&format!("{program}/decisions/integers")];
    assert!(decisions.names().iter().all(|name| *name == "moved"), "{decisions:?}");
    let used = &rows[&format!("{program}/decisions/CPUs in use for moved calls")];
    assert!(used.values.contains(&1.0), "{used:?}");
}

#[test]
fn where_no_calls_move_there_is_no_trace() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["run", "--narrow", "--trace", "x.pftrace", "--", "true"];
    let output = dimmer(directory.path(), &arguments);
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("--trace is for --migrate, --delegate"),
        "{}",
        stderr(&output)
    );
}
