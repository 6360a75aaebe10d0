//! The scenario that `dimmer observe --scenario` writes: what the program's threads did, as
//! distributions of calls, gaps and waits. `docs/scenario.md` is the format.

mod kinds;
mod recorded;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dimmer_hook::CHAIN_CYCLES;
use dimmer_observe::{Observed, Pattern, ThreadTrace};

use super::Run;
use kinds::Kinds;

/// The clock that is assumed if it was not measured (GHz).
const ASSUMED_GHZ: f64 = 3.0;

/// Gaps between calls of threads that do alike below which their pattern is not known.
const FEW_GAPS: usize = 10;

/// The share of its calls from which a function counts as one of those that a thread calls.
const NOTABLE: f64 = 0.05;

/// The share of the program's CPU time from which threads without calls are in the scenario.
const NOTABLE_OTHERS: f64 = 0.05;

/// What to write a scenario of.
#[derive(Clone, Copy, Debug)]
pub struct Traced<'a> {
    /// The run, whose observer traced all threads.
    pub run: &'a Run<'a>,
    /// The part of its CPU time that the kernel used.
    pub in_kernel: Duration,
    /// The day of the run.
    pub date: &'a str,
    /// The name of the model that the scenario is for.
    pub model: &'a str,
    /// The cores of that model.
    pub cores: usize,
    /// The function whose calls start requests.
    pub request: Option<&'a str>,
}

/// Why no scenario can be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// No hooked function was called.
    #[error(
        "no scenario can be written: no hooked function was called, so the program runs scalar code alone as far as it was seen; \
         --classes or --function hooks other functions"
    )]
    NoCalls,
    /// There were too few calls.
    #[error("no scenario can be written: {calls} calls in {}, expected at least {FEW_GAPS} gaps between calls that follow each other", crate::number::counted(*threads, "thread"))]
    FewCalls {
        /// Calls that were traced.
        calls: usize,
        /// Threads that made them.
        threads: usize,
    },
    /// The function that starts requests was not called often enough.
    #[error(
        "no scenario can be written: `{name}` was entered too rarely to separate requests: {requests} requests from start to end were seen, expected at least {FEW_GAPS}"
    )]
    FewRequests {
        /// The function.
        name: String,
        /// Requests that were seen from their start to their end.
        requests: usize,
    },
}

/// Shares of the time in which cores execute code, above the lowest level, in two simulations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Check {
    /// With the steps that were recorded.
    pub recorded: f64,
    /// With the scenario.
    pub scenario: f64,
}

/// A scenario, ready to be written.
#[derive(Debug)]
pub struct Written<'a> {
    traced: Traced<'a>,
    kinds: Kinds,
    groups: Vec<Group<'a>>,
    /// Threads that are left out because they made few calls, and their calls.
    left_out: (usize, usize),
    /// The clock (GHz), and whether it was measured.
    clock: (f64, bool),
}

/// Threads that do alike.
#[derive(Debug)]
struct Group<'a> {
    name: String,
    /// Indices of the threads' traces.
    threads: Vec<&'a ThreadTrace>,
    pattern: Pattern,
    /// How many there were at a time.
    count: usize,
}

impl<'a> Written<'a> {
    /// Finds the patterns.
    ///
    /// # Errors
    /// [`ScenarioError`].
    pub fn new(traced: Traced<'a>) -> Result<Self, ScenarioError> {
        let observed = traced.run.observed;
        let calls: usize = observed.traces.iter().map(ThreadTrace::calls).sum();
        if calls == 0 {
            return Err(ScenarioError::NoCalls);
        }
        let kinds = Kinds::new(traced.run);
        let mut alike: BTreeMap<(String, BTreeSet<usize>), Vec<&ThreadTrace>> = BTreeMap::new();
        for trace in &observed.traces {
            let key = (name(trace, &observed.traces), kinds.notable(trace));
            alike.entry(key).or_default().push(trace);
        }
        let has_requests = traced.request.is_some();
        let (mut groups, mut left_out, mut requests) = (Vec::new(), (0, 0), 0);
        for ((name, _), threads) in alike {
            let events = threads.iter().map(|trace| trace.events.as_slice());
            let kind = |thread: usize, function| {
                threads.get(thread).map_or(0, |trace| kinds.of(trace, function))
            };
            let pattern = Pattern::of(events, kinds.all.len(), kind, has_requests);
            requests += pattern.requests.every.len();
            let gaps = pattern.within.len() + pattern.between.len() + pattern.beside_wait.len();
            if gaps < FEW_GAPS || has_requests && pattern.requests.every.len() < FEW_GAPS {
                left_out.0 += threads.len();
                left_out.1 += threads.iter().map(|trace| trace.calls()).sum::<usize>();
                continue;
            }
            let count = at_a_time(&threads, observed);
            groups.push(Group { name, threads, pattern, count });
        }
        match traced.request {
            _ if !groups.is_empty() => {}
            Some(name) => {
                return Err(ScenarioError::FewRequests { name: name.to_owned(), requests });
            }
            None => {
                return Err(ScenarioError::FewCalls { calls, threads: observed.traces.len() });
            }
        }
        distinguish(&mut groups);
        Ok(Self { traced, kinds, groups, left_out, clock: clock(observed) })
    }

    /// The scenario, with the result of a check in a comment.
    pub fn text(&self, check: Option<Check>) -> String {
        text::render(self, check)
    }

    /// The steps that were recorded, as a scenario: of each thread as many as fit.
    pub fn recorded(&self) -> String {
        recorded::render(self)
    }

    /// The CPUs that the threads could use, as far as the model has cores for them.
    fn cores(&self) -> usize {
        let threads = self.groups.iter().flat_map(|group| &group.threads);
        let cpus: BTreeSet<_> = threads.flat_map(|trace| &trace.cpus).collect();
        cpus.len().clamp(1, self.traced.cores.max(1))
    }

    /// The time that this many nanoseconds of code take, in instructions at one per cycle.
    fn instructions(&self, ns: f64) -> f64 {
        (ns * self.clock.0).max(1.0)
    }

    /// CPUs that threads without traced calls kept busy on average; 0 if it was little.
    fn others(&self) -> f64 {
        let on_cpu = self.traced.run.on_cpu.as_secs_f64();
        let traced = self.groups.iter().flat_map(|group| &group.threads);
        let traced = traced.map(|trace| {
            trace.lasted.saturating_sub(trace.waited).saturating_sub(trace.queued).as_secs_f64()
        });
        let others = on_cpu - traced.sum::<f64>();
        let lasted = self.traced.run.observed.lasted.as_secs_f64();
        if others > on_cpu * NOTABLE_OTHERS && lasted > 0.0 { others / lasted } else { 0.0 }
    }
}

/// A name without the number at its end.
fn stem(name: &str) -> &str {
    let is_number = |one: char| one.is_ascii_digit() || matches!(one, '-' | '_' | '#' | '/' | ' ');
    name.trim_end_matches(is_number)
}

/// The thread's name, without the number at its end if `all` have one that differs only in that.
fn name(trace: &ThreadTrace, all: &[ThreadTrace]) -> String {
    let (own, stem_of) = (trace.name.as_str(), stem(&trace.name));
    let is_alike = |other: &ThreadTrace| other.name != own && stem(&other.name) == stem_of;
    let name = if all.iter().any(is_alike) { stem_of } else { own };
    if name.is_empty() { "thread".to_owned() } else { name.to_owned() }
}

/// How many of these threads there were at a time, on average.
fn at_a_time(threads: &[&ThreadTrace], observed: &Observed) -> usize {
    let lasted: f64 = threads.iter().map(|trace| trace.lasted.as_secs_f64()).sum();
    let mean = lasted / observed.lasted.as_secs_f64();
    (1..=threads.len()).find(|count| *count as f64 + 0.5 > mean).unwrap_or(threads.len()).max(1)
}

/// Numbers groups with the same name.
fn distinguish(groups: &mut [Group<'_>]) {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for group in groups {
        let number = seen.entry(group.name.clone()).or_insert(0);
        *number += 1;
        if *number > 1 {
            group.name = format!("{}, kind {number}", group.name);
        }
    }
}

/// The clock next to calls (GHz), and whether it was measured.
fn clock(observed: &Observed) -> (f64, bool) {
    let clocks = observed.threads.iter().map(|thread| &thread.clocks);
    let mut chains: Vec<f64> = clocks
        .flat_map(|clocks| {
            clocks.after.iter().copied().chain(clocks.before.iter().map(|(_, chain)| *chain))
        })
        .filter(|chain| *chain > 0.0)
        .collect();
    chains.sort_by(f64::total_cmp);
    match chains.get(chains.len() / 2) {
        Some(chain) => (f64::from(CHAIN_CYCLES) / chain, true),
        None => (ASSUMED_GHZ, false),
    }
}

#[cfg(test)]
mod tests;
