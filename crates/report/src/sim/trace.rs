//! A timeline for Perfetto. The top track shows whether the trace is complete. Below it, each core
//! has a group with its level, the decisions of a governor in software, its clock, and a track for
//! each thread that runs there. If the model has P-states, the group also shows what rules the
//! frequency domain and what threads request.

use std::collections::BTreeMap;

use dimmer_processor::model::Model;
use dimmer_processor::units::LicenseLevel;
use dimmer_sim::scenario::{Outcome, Scenario};
use dimmer_sim::{Moment, Observer, Ruling, Segment, State};

use crate::timeline::tracks::{Track, Tracks};

/// The observed events of a simulation, in order.
#[derive(Debug, Default)]
pub struct Trace {
    states: Vec<(Moment, usize, State)>,
    decisions: Vec<(Moment, usize, LicenseLevel)>,
    /// Core, thread, and the step that it runs from then on; `None` if it stops.
    runs: Vec<(Moment, usize, usize, Option<usize>)>,
    /// For each core, the clock from each time on (GHz).
    clocks: Vec<Vec<(Moment, f64)>>,
    /// For each core, what rules in its frequency domain from each time on.
    ruling: Vec<Vec<(Moment, Ruling)>>,
    /// Start, end, core and P-state.
    requests: Vec<(Moment, Moment, (usize, usize), usize)>,
}

/// Records what holds for this core from now on, if it has changed. If several values come at the
/// same moment, the last one counts.
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

    fn decides(&mut self, now: Moment, core: usize, level: LicenseLevel) {
        self.decisions.push((now, core, level));
    }

    fn clock(&mut self, now: Moment, core: usize, ghz: f64) {
        note(&mut self.clocks, core, now, ghz);
    }

    fn asks(&mut self, (begin, end): (Moment, Moment), cores: (usize, usize), pstate: usize) {
        self.requests.push((begin, end, cores, pstate));
    }

    fn rules(&mut self, now: Moment, core: usize, ruling: Ruling) {
        note(&mut self.ruling, core, now, ruling);
    }
}

impl Trace {
    /// The trace in Perfetto's format.
    pub fn encode(&self, scenario: &Scenario, model: &Model, outcome: &Outcome) -> Vec<u8> {
        let mut tracks = Tracks::new();
        let whole = tracks.describe(None, &scenario.name);
        let is_whole = if outcome.is_partial { "partial: interrupted" } else { "complete" };
        tracks.slice(whole, (Moment::START, outcome.end), is_whole.to_owned());
        for core in 0..outcome.cores.len() {
            let group = tracks.describe(Some(whole), &format!("core {core}"));
            self.levels(&mut tracks, (group, core), model, outcome.end);
            self.points(&mut tracks, (group, core), model, outcome.end);
            self.threads(&mut tracks, (group, core), outcome);
        }
        tracks.into_bytes()
    }

    /// A core's level, and the decisions of a governor in software for it.
    fn levels(
        &self,
        tracks: &mut Tracks,
        (group, core): (Track, usize),
        model: &Model,
        end: Moment,
    ) {
        let name = |level: LicenseLevel| {
            let index = usize::try_from(level.index()).unwrap_or(usize::MAX);
            model.levels.get(index).map_or("", |level| level.name.as_str())
        };
        let told = |State { level, is_throttled, is_still }: State| match (is_still, is_throttled) {
            (true, _) => format!("{}, standing still", name(level)),
            (false, true) => format!("{}, throttled", name(level)),
            (false, false) => name(level).to_owned(),
        };
        let first = State { level: LicenseLevel::new(0), is_throttled: false, is_still: false };
        let states = self.states.iter().filter(|(_, of, _)| *of == core);
        let states = states.map(|(now, _, state)| (*now, *state));
        let states = std::iter::once((Moment::START, first)).chain(states);
        let track = tracks.describe(Some(group), "license level");
        tracks.slices(track, states.map(|(now, state)| (now, Some(told(state)))), end);
        let mut decisions = self.decisions.iter().filter(|(_, of, _)| *of == core).peekable();
        if decisions.peek().is_some() {
            let track = tracks.describe(Some(group), "governor");
            for (now, _, level) in decisions {
                tracks.instant(track, *now, name(*level));
            }
        }
    }

    /// A core's clock, what rules in its frequency domain, and the requests that it makes.
    fn points(
        &self,
        tracks: &mut Tracks,
        (group, core): (Track, usize),
        model: &Model,
        end: Moment,
    ) {
        let track = tracks.describe_counter(group, "clock", "MHz");
        for (now, ghz) in self.clocks.get(core).into_iter().flatten() {
            tracks.count(track, *now, (1e3 * ghz).round());
        }
        let Some(ruling) = self.ruling.get(core) else { return };
        let name =
            |pstate: usize| model.pstates.get(pstate).map_or("", |state| state.name.as_str());
        let told = |Ruling { pstate, is_changing }: Ruling| {
            let name = pstate.map_or("fastest", name);
            if is_changing { format!("on the way to {name}") } else { name.to_owned() }
        };
        let track = tracks.describe(Some(group), "P-state");
        tracks.slices(track, ruling.iter().map(|(now, ruling)| (*now, Some(told(*ruling)))), end);
        let mut requests = self.requests.iter().filter(|(_, _, (by, _), _)| *by == core).peekable();
        if requests.peek().is_some() {
            let track = tracks.describe(Some(group), "requests for P-states");
            let requests = requests.flat_map(|(begin, until, (by, of), pstate)| {
                let asks = format!("asks for {}", name(*pstate));
                let asks = if by == of { asks } else { format!("{asks} for core {of}") };
                [(*begin, Some(asks)), (*until, None)]
            });
            tracks.slices(track, requests, end);
        }
    }

    /// The steps that threads run on a core.
    fn threads(&self, tracks: &mut Tracks, (group, core): (Track, usize), outcome: &Outcome) {
        let mut threads: BTreeMap<usize, Vec<(Moment, Option<usize>)>> = BTreeMap::new();
        for (now, _, thread, step) in self.runs.iter().filter(|(_, of, ..)| *of == core) {
            threads.entry(*thread).or_default().push((*now, *step));
        }
        for (thread, runs) in threads {
            let name = outcome.threads.get(thread).map_or("", |thread| &thread.name);
            let track = tracks.describe(Some(group), name);
            let told = |step: Option<usize>| step.map(|step| format!("step {}", step + 1));
            tracks.slices(track, runs.iter().map(|(now, step)| (*now, told(*step))), outcome.end);
        }
    }
}
