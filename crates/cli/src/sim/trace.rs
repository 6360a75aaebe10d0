//! A time line for Perfetto, in the trace event format ("Trace Event Format", Google, 2016): for each core a track with its level and what a
//! governor in software decides, one with its clock, where the model has P-states one with what rules and one with what threads ask for, and
//! one for each thread that runs there.

use std::collections::BTreeMap;

use dimmer_processor::model::Model;
use dimmer_processor::units::LicenceLevel;
use dimmer_sim::scenario::Outcome;
use dimmer_sim::{Moment, Observer, Ruling, Segment, State};
use serde_json::{Value, json};

/// The track of a core's level.
const LEVEL: usize = 0;

/// That of the P-state of its frequency domain.
const PSTATE: usize = 1;

/// That of requests for P-states; those of threads follow.
const REQUESTS: usize = 2;

/// What was seen, in order.
#[derive(Debug, Default)]
pub(super) struct Trace {
    states: Vec<(Moment, usize, State)>,
    decisions: Vec<(Moment, usize, LicenceLevel)>,
    /// Core, thread, and the step that it runs from then on; none if it stops.
    runs: Vec<(Moment, usize, usize, Option<usize>)>,
    /// Of each core, the clock from then on (GHz).
    clocks: Vec<Vec<(Moment, f64)>>,
    /// Of each core, what rules in its frequency domain from then on.
    ruling: Vec<Vec<(Moment, Ruling)>>,
    /// Begin, end, core and P-state.
    requests: Vec<(Moment, Moment, usize, usize)>,
}

/// Notes what holds for this core from now on, if it has changed; the last of one moment counts.
fn note<T: PartialEq>(of_cores: &mut Vec<Vec<(Moment, T)>>, core: usize, now: Moment, what: T) {
    if of_cores.len() <= core {
        of_cores.resize_with(core + 1, Vec::new);
    }
    let noted = &mut of_cores[core];
    noted.pop_if(|(when, _)| *when == now);
    if noted.last().is_none_or(|(_, last)| *last != what) {
        noted.push((now, what));
    }
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

    fn clock(&mut self, now: Moment, core: usize, ghz: f64) {
        note(&mut self.clocks, core, now, ghz);
    }

    fn asks(&mut self, begin: Moment, end: Moment, core: usize, pstate: usize) {
        self.requests.push((begin, end, core, pstate));
    }

    fn rules(&mut self, now: Moment, core: usize, ruling: Ruling) {
        note(&mut self.ruling, core, now, ruling);
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
            self.points(&mut events, core, model, end);
            let mut threads: BTreeMap<usize, Vec<(Moment, Option<String>)>> = BTreeMap::new();
            for (now, _, thread, step) in self.runs.iter().filter(|(_, of, ..)| *of == core) {
                let step = step.map(|step| format!("step {}", step + 1));
                threads.entry(*thread).or_default().push((*now, step));
            }
            for (thread, runs) in threads {
                let track = (core, REQUESTS + 1 + thread);
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

impl Trace {
    /// A core's clock, what rules in its frequency domain, and what its threads ask for.
    fn points(&self, events: &mut Vec<Value>, core: usize, model: &Model, end: Moment) {
        for (now, ghz) in self.clocks.get(core).into_iter().flatten() {
            events.push(json!({"ph": "C", "pid": core, "ts": us(*now), "name": "clock", "args": {"MHz": (1e3 * ghz).round()}}));
        }
        let Some(ruling) = self.ruling.get(core) else { return };
        let name =
            |pstate: usize| model.pstates.get(pstate).map_or("", |state| state.name.as_str());
        let told = |Ruling { pstate, is_changing }: Ruling| {
            let name = pstate.map_or("fastest", name);
            if is_changing { format!("on the way to {name}") } else { name.to_owned() }
        };
        events.push(named("thread_name", (core, PSTATE), "P-state"));
        let states = ruling.iter().map(|(now, ruling)| (*now, Some(told(*ruling))));
        slices(events, (core, PSTATE), &states.collect::<Vec<_>>(), end);
        let requests: Vec<_> = self.requests.iter().filter(|(_, _, of, _)| *of == core).collect();
        if !requests.is_empty() {
            events.push(named("thread_name", (core, REQUESTS), "requests for P-states"));
        }
        for (begin, until, _, pstate) in requests {
            let request = [(*begin, Some(format!("asks for {}", name(*pstate)))), (*until, None)];
            slices(events, (core, REQUESTS), &request, end);
        }
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
