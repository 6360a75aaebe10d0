//! A time line for Perfetto, in the trace event format ("Trace Event Format", Google, 2016): for each core a track with its level and what a
//! governor in software decides, and one for each thread that runs there.

use std::collections::BTreeMap;

use dimmer_processor::model::Model;
use dimmer_processor::units::LicenceLevel;
use dimmer_sim::scenario::Outcome;
use dimmer_sim::{Moment, Observer, Segment, State};
use serde_json::{Value, json};

/// The track of a core's level; those of threads follow.
const LEVEL: usize = 0;

/// What was seen, in order.
#[derive(Debug, Default)]
pub(super) struct Trace {
    states: Vec<(Moment, usize, State)>,
    decisions: Vec<(Moment, usize, LicenceLevel)>,
    /// Core, thread, and the step that it runs from then on; none if it stops.
    runs: Vec<(Moment, usize, usize, Option<usize>)>,
}

impl Observer for Trace {
    fn core(&mut self, now: Moment, core: usize, state: State) {
        self.states.push((now, core, state));
    }

    fn runs(&mut self, now: Moment, core: usize, thread: usize, segment: &Segment) {
        self.runs.push((now, core, thread, Some(segment.counter)));
    }

    fn stops(&mut self, now: Moment, core: usize, thread: usize) {
        self.runs.push((now, core, thread, None));
    }

    fn decides(&mut self, now: Moment, core: usize, level: LicenceLevel) {
        self.decisions.push((now, core, level));
    }
}

impl Trace {
    /// The trace as JSON.
    pub(super) fn json(&self, model: &Model, outcome: &Outcome) -> serde_json::Result<String> {
        let end = outcome.end;
        let name = |level: LicenceLevel| {
            let index = usize::try_from(level.index()).unwrap_or(usize::MAX);
            model.levels.get(index).map_or("", |level| level.name.as_str())
        };
        let told = |State { level, is_throttled, is_still }: State| match (is_still, is_throttled) {
            (true, _) => format!("{}, standing still", name(level)),
            (false, true) => format!("{}, throttled", name(level)),
            (false, false) => name(level).to_owned(),
        };
        let first = State { level: LicenceLevel::new(0), is_throttled: false, is_still: false };
        let mut events: Vec<Value> = Vec::new();
        for core in 0..outcome.cores.len() {
            events.push(named("process_name", (core, LEVEL), &format!("core {core}")));
            events.push(named("thread_name", (core, LEVEL), "licence level"));
            let states = self.states.iter().filter(|(_, of, _)| *of == core);
            let states = std::iter::once((0, Some(told(first))))
                .chain(states.map(|(now, _, state)| (*now, Some(told(*state)))));
            slices(&mut events, (core, LEVEL), &states.collect::<Vec<_>>(), end);
            let mut threads: BTreeMap<usize, Vec<(Moment, Option<String>)>> = BTreeMap::new();
            for (now, _, thread, step) in self.runs.iter().filter(|(_, of, ..)| *of == core) {
                let step = step.map(|step| format!("step {}", step + 1));
                threads.entry(*thread).or_default().push((*now, step));
            }
            for (thread, runs) in threads {
                let track = (core, LEVEL + 1 + thread);
                let name = outcome.threads.get(thread).map_or("", |thread| &thread.name);
                events.push(named("thread_name", track, name));
                slices(&mut events, track, &runs, end);
            }
        }
        for (now, core, level) in &self.decisions {
            let decision = format!("governor: {}", name(*level));
            events.push(json!({"ph": "i", "s": "t", "pid": core, "tid": LEVEL, "ts": us(*now), "name": decision}));
        }
        let partial = outcome.is_partial;
        serde_json::to_string(
            &json!({"displayTimeUnit": "ns", "traceEvents": events, "otherData": {"partial": partial}}),
        )
    }
}

fn named(kind: &str, (core, track): (usize, usize), name: &str) -> Value {
    json!({"ph": "M", "pid": core, "tid": track, "name": kind, "args": {"name": name}})
}

/// Each state from its begin to the next one's, as an event of its own; none is a gap.
fn slices(
    events: &mut Vec<Value>,
    (core, track): (usize, usize),
    states: &[(Moment, Option<String>)],
    end: Moment,
) {
    for (index, (begin, name)) in states.iter().enumerate() {
        let until = states.get(index + 1).map_or(end, |(next, _)| *next);
        if let Some(name) = name.as_ref().filter(|_| until > *begin) {
            let event = json!({"ph": "X", "pid": core, "tid": track, "ts": us(*begin), "dur": us(until - begin), "name": name});
            events.push(event);
        }
    }
}

/// Microseconds.
fn us(moment: Moment) -> f64 {
    moment as f64 / 1e6
}
