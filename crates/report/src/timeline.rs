//! What programs did over time, in Perfetto's trace format. `tracks` writes it, also for
//! simulations (`crate::sim`).
//!
//! The top track shows whether all calls are in the trace. Below it, each function whose calls may
//! move has a track with the times in which they were moved, and each thread one with its calls.

mod perfetto;
pub(crate) mod tracks;

use std::collections::BTreeMap;

use dimmer_observe::{FunctionPlace, Observed, ThreadTrace};
use dimmer_processor::units::whole;
use dimmer_sim::Moment;

use tracks::{Track, Tracks};

/// The timeline of a run.
#[derive(Debug)]
pub struct Timeline {
    /// The file's content.
    pub bytes: Vec<u8>,
    /// How many calls are in it, in words.
    pub summary: String,
}

impl Timeline {
    /// The timeline of what was observed; `name` is the name of a function.
    #[must_use]
    pub fn new(
        title: &str,
        observed: &Observed,
        name: impl Fn(&FunctionPlace) -> Option<String>,
    ) -> Self {
        let named =
            |place: &FunctionPlace| name(place).unwrap_or_else(|| format!("{:#x}", place.address));
        let mut tracks = Tracks::new();
        let whole_run = tracks.describe(None, title);
        let end = moment(observed.lasted.as_nanos() as f64);
        let counts = Counts::of(observed);
        tracks.slice(whole_run, (Moment::START, end), counts.in_words());
        decisions(&mut tracks, whole_run, observed, end, &named);
        let mut processes: BTreeMap<u32, Vec<&ThreadTrace>> = BTreeMap::new();
        for trace in &observed.traces {
            processes.entry(trace.process).or_default().push(trace);
        }
        for (process, mut threads) in processes {
            let group = tracks.describe(Some(whole_run), &format!("process {process}"));
            threads.sort_by_key(|thread| thread.thread);
            for thread in threads {
                calls(&mut tracks, group, thread, &named);
            }
        }
        Self { bytes: tracks.into_bytes(), summary: counts.in_words() }
    }
}

/// How many calls there were, and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// All.
    all: u64,
    /// Those in the trace.
    traced: u64,
}

impl Counts {
    fn of(observed: &Observed) -> Self {
        let sum = |sum: u64, number: u64| sum.saturating_add(number);
        let all = observed.functions().values().map(|tally| tally.calls).fold(0, sum);
        let traced: usize = observed.traces.iter().map(|trace| trace.timed.len()).sum();
        // Counts of a process that damages its own ledger may be anything.
        let traced = traced as u64;
        Self { all: all.max(traced), traced }
    }

    fn in_words(self) -> String {
        let Self { all, traced } = self;
        // Digits without spaces: people search traces for them.
        let calls = if all == 1 { "call" } else { "calls" };
        match all - traced {
            0 => format!("all {all} {calls}"),
            left_out => format!(
                "{all} {calls}, {left_out} of them left out: within others, overwritten before they \
                 were read, or too many"
            ),
        }
    }
}

/// The functions whose calls were moved for a time, and the CPUs to which they were.
fn decisions(
    tracks: &mut Tracks,
    whole_run: Track,
    observed: &Observed,
    end: Moment,
    name: &impl Fn(&FunctionPlace) -> String,
) {
    if observed.moves.is_empty() {
        return;
    }
    let group = tracks.describe(Some(whole_run), "decisions");
    let used = tracks.describe_counter(group, "CPUs in use for moved calls", "CPUs");
    for (at_ns, cpus) in &observed.used_cpus {
        tracks.count(used, moment(*at_ns), *cpus as f64);
    }
    // A function with several entries has as many decisions, all at one time.
    let mut functions: BTreeMap<String, Vec<(Moment, Option<String>)>> = BTreeMap::new();
    for decision in &observed.moves {
        let state = decision.is_moved.then(|| "moved".to_owned());
        functions.entry(name(&decision.place)).or_default().push((moment(decision.at_ns), state));
    }
    for (function, mut states) in functions {
        states.dedup_by(|next, before| next.1 == before.1);
        let track = tracks.describe(Some(group), &function);
        tracks.slices(track, states, end);
    }
}

/// The calls of a thread.
fn calls(
    tracks: &mut Tracks,
    group: Track,
    thread: &ThreadTrace,
    name: &impl Fn(&FunctionPlace) -> String,
) {
    let names: Vec<String> = thread.functions.iter().map(name).collect();
    let title = if thread.name.is_empty() { "thread" } else { &thread.name };
    let track = tracks.describe(Some(group), &format!("{title} {}", thread.thread));
    let mut free = Moment::START;
    for call in &thread.timed {
        // What a program writes into its own ledger may be in no order.
        let begin = moment(call.begin_ns).max(free);
        let end = moment(call.end_ns).max(begin);
        let function = names.get(call.function).map_or("", String::as_str);
        let moved = if call.is_moved { " (moved)" } else { "" };
        tracks.slice(track, (begin, end), format!("{function}{moved}"));
        free = end;
    }
}

fn moment(ns: f64) -> Moment {
    Moment::from_ps(whole(ns * 1e3))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use dimmer_observe::{Decided, Tally, ThreadSeen, TimedSpan};
    use prost::Message as _;

    use super::perfetto::{Kind, Trace};
    use super::*;

    fn place(address: u64) -> FunctionPlace {
        FunctionPlace { file: Path::new("/lib/one.so").into(), address }
    }

    /// Names of tracks, and the events on them.
    fn read(bytes: &[u8]) -> Vec<(String, u64, Kind, String)> {
        let trace = Trace::decode(bytes).unwrap();
        let descriptors = trace.packet.iter().filter_map(|packet| packet.track_descriptor.as_ref());
        let names: BTreeMap<u64, String> =
            descriptors.map(|track| (track.uuid(), track.name().to_owned())).collect();
        let events = trace.packet.iter().filter_map(|packet| {
            let event = packet.track_event.as_ref()?;
            let track = names[&event.track_uuid()].clone();
            Some((track, packet.timestamp?, event.r#type(), event.name().to_owned()))
        });
        events.collect()
    }

    #[test]
    fn calls_and_decisions_have_tracks() {
        let span = |function, begin_ns, end_ns, is_moved| TimedSpan {
            function,
            begin_ns,
            end_ns,
            is_moved,
        };
        let trace = ThreadTrace {
            process: 7,
            thread: 8,
            name: "worker".to_owned(),
            functions: vec![place(1), place(2)],
            // The last one overlaps, as no thread's calls do.
            timed: vec![
                span(0, 100.0, 200.0, false),
                span(1, 250.0, 300.0, true),
                span(0, 290.0, 295.0, false),
            ],
            ..ThreadTrace::default()
        };
        let tally = Tally { calls: 5, ..Tally::default() };
        let functions = BTreeMap::from([(place(1), tally)]);
        let decided = |at_ns, address, is_moved| Decided { at_ns, place: place(address), is_moved };
        let mut observed = Observed::default();
        observed.lasted = Duration::from_nanos(1000);
        observed.threads = vec![ThreadSeen { functions, ..ThreadSeen::default() }];
        observed.traces = vec![trace];
        observed.moves = vec![
            decided(220.0, 2, true),
            decided(220.0, 3, true),
            decided(400.0, 2, false),
            decided(400.0, 3, false),
        ];
        observed.used_cpus = vec![(210.0, 1)];
        let name = |place: &FunctionPlace| (place.address != 1).then(|| "encode".to_owned());
        let Timeline { bytes, summary } = Timeline::new("program", &observed, name);
        assert!(summary.starts_with("5 calls, 2 of them left out"), "{summary}");
        let of = |track: &str| {
            let events = read(&bytes).into_iter().filter(|(name, ..)| name == track);
            events.map(|(_, at, kind, name)| (at, kind, name)).collect::<Vec<_>>()
        };
        let begin = |at, name: &str| (at, Kind::SliceBegin, name.to_owned());
        let end = |at| (at, Kind::SliceEnd, String::new());
        assert_eq!(of("program"), [begin(0, &summary), end(1000)]);
        assert_eq!(of("encode"), [begin(220, "moved"), end(400)]);
        assert_eq!(of("CPUs in use for moved calls").len(), 1);
        assert_eq!(
            of("worker 8"),
            [
                begin(100, "0x1"),
                end(200),
                begin(250, "encode (moved)"),
                end(300),
                begin(300, "0x1"),
                end(300)
            ]
        );
    }

    #[test]
    fn a_run_in_which_nothing_was_seen_has_a_timeline() {
        let Timeline { bytes, summary } = Timeline::new("program", &Observed::default(), |_| None);
        assert_eq!((read(&bytes).len(), summary.as_str()), (2, "all 0 calls"));
    }
}
