//! A time line for Perfetto, in the trace event format ("Trace Event Format", Google, 2016): one track a core for its level, one for
//! what runs on it.

use dimmer_processor::model::Model;
use dimmer_processor::units::LicenceLevel;
use dimmer_sim::scenario::Outcome;
use dimmer_sim::{Moment, Observer, Segment};
use serde_json::{Value, json};

/// What was seen, in order.
#[derive(Debug, Default)]
pub(super) struct Trace {
    levels: Vec<(Moment, usize, LicenceLevel, bool, bool)>,
    runs: Vec<(Moment, usize, usize, usize)>,
}

impl Observer for Trace {
    fn core(
        &mut self,
        now: Moment,
        core: usize,
        level: LicenceLevel,
        throttled: bool,
        still: bool,
    ) {
        self.levels.push((now, core, level, throttled, still));
    }

    fn runs(&mut self, now: Moment, core: usize, thread: usize, segment: &Segment) {
        self.runs.push((now, core, thread, segment.counter));
    }
}

impl Trace {
    /// The trace as JSON.
    pub(super) fn json(&self, model: &Model, outcome: &Outcome) -> serde_json::Result<String> {
        let end = outcome.threads.iter().filter_map(|thread| thread.finished).max();
        let seen =
            self.levels.iter().map(|(now, ..)| *now).chain(self.runs.iter().map(|(now, ..)| *now));
        let end = seen.chain(end).max().unwrap_or(0);
        let mut events: Vec<Value> = Vec::new();
        for (core, _) in outcome.cores.iter().enumerate() {
            let named = |kind: &str, track: usize, name: String| json!({"ph": "M", "pid": core, "tid": track, "name": kind, "args": {"name": name}});
            events.push(named("process_name", 0, format!("core {core}")));
            events.push(named("thread_name", 0, "licence level".to_owned()));
            events.push(named("thread_name", 1, "runs".to_owned()));
            let levels = self.levels.iter().filter(|(_, of, ..)| *of == core);
            let states = levels.map(|(now, _, level, throttled, still)| {
                let index = usize::try_from(level.index()).unwrap_or(usize::MAX);
                let name = model.levels.get(index).map_or("", |level| &level.name);
                let state = match (still, throttled) {
                    (true, _) => format!("{name}, standing still"),
                    (false, true) => format!("{name}, throttled"),
                    (false, false) => name.to_owned(),
                };
                (*now, state)
            });
            let first = model.levels.first().map_or("", |level| &level.name).to_owned();
            let states = std::iter::once((0, first)).chain(states).collect();
            slices(&mut events, (core, 0), states, end);
            let runs = self.runs.iter().filter(|(_, of, ..)| *of == core);
            let runs = runs.map(|(now, _, thread, counter)| {
                let thread = outcome.threads.get(*thread);
                let name = thread.map_or("", |thread| &thread.name);
                (*now, format!("{name}, step {}", counter + 1))
            });
            slices(&mut events, (core, 1), runs.collect(), end);
        }
        serde_json::to_string(&json!({"displayTimeUnit": "ns", "traceEvents": events}))
    }
}

/// Each state from its begin to the next one's, as an event of its own.
fn slices(
    events: &mut Vec<Value>,
    (core, track): (usize, usize),
    states: Vec<(Moment, String)>,
    end: Moment,
) {
    let us = |moment: Moment| moment as f64 / 1e6;
    for (index, (begin, name)) in states.iter().enumerate() {
        let until = states.get(index + 1).map_or(end, |(next, _)| *next);
        if until > *begin {
            let event = json!({"ph": "X", "pid": core, "tid": track, "ts": us(*begin), "dur": us(until - begin), "name": name});
            events.push(event);
        }
    }
}
