//! Kinds of calls: the functions that take much of the time in calls, and the others by class.

use std::collections::{BTreeMap, BTreeSet};

use dimmer_observe::{Event, FunctionPlace, ThreadTrace};
use dimmer_processor::class::InstructionClass;

use super::NOTABLE;
use crate::observe::{Run, at, entered_by, runnable};

/// The share of the time in calls from which a function is a kind of its own.
const OWN_KIND: f64 = 0.02;

/// Kinds of calls.
#[derive(Debug)]
pub(super) struct Kinds {
    /// Each kind's name and class.
    pub(super) all: Vec<(String, String)>,
    of: BTreeMap<FunctionPlace, usize>,
}

impl Kinds {
    pub(super) fn new(run: &Run<'_>) -> Self {
        let mut in_calls: BTreeMap<&FunctionPlace, f64> = BTreeMap::new();
        for trace in &run.observed.traces {
            for event in &trace.events {
                if let Event::Call { function, lasted_ns, stands_for } = event
                    && let Some(place) = trace.functions.get(*function)
                {
                    *in_calls.entry(place).or_default() += lasted_ns * stands_for;
                }
            }
        }
        let mut within: BTreeMap<&FunctionPlace, BTreeSet<&FunctionPlace>> = BTreeMap::new();
        for trace in &run.observed.traces {
            let place = |number: usize| trace.functions.get(number);
            for (outer, inner) in &trace.within {
                if let (Some(outer), Some(inner)) = (place(*outer), place(*inner)) {
                    within.entry(outer).or_default().insert(inner);
                }
            }
        }
        let all_ns: f64 = in_calls.values().sum();
        let mut functions: Vec<(&FunctionPlace, f64)> = in_calls.into_iter().collect();
        functions.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut kinds = Self { all: Vec::new(), of: BTreeMap::new() };
        for (place, ns) in functions {
            let inner = within.get(place).into_iter().flatten();
            let classes = inner.chain([&place]).map(|place| class(run, place));
            let class = classes.max().unwrap_or(InstructionClass::Scalar).name().to_owned();
            let name = if ns < OWN_KIND * all_ns {
                format!("other {class}")
            } else {
                let name = name(run, place);
                let library = place.file.file_name().unwrap_or_default().to_string_lossy();
                name.map_or_else(
                    || format!("{library}:{:#x}", place.address),
                    |name| dimmer_scan::title(Some(name), place.address),
                )
            };
            let kind = (name, class);
            let number = kinds.all.iter().position(|one| *one == kind).unwrap_or_else(|| {
                kinds.all.push(kind);
                kinds.all.len() - 1
            });
            kinds.of.insert(place.clone(), number);
        }
        // Names stand for code in a scenario, so each must be there once.
        let names: Vec<String> = kinds.all.iter().map(|(name, _)| name.clone()).collect();
        for (number, (name, class)) in kinds.all.iter_mut().enumerate() {
            if names[..number].contains(name) {
                *name = format!("{name}, {class}");
            }
        }
        kinds
    }

    /// The kind of a thread's function.
    pub(super) fn of(&self, trace: &ThreadTrace, function: usize) -> usize {
        let place = trace.functions.get(function);
        place.and_then(|place| self.of.get(place)).copied().unwrap_or_default()
    }

    /// The kinds that make up much of the thread's calls.
    pub(super) fn notable(&self, trace: &ThreadTrace) -> BTreeSet<usize> {
        let mut calls: BTreeMap<usize, f64> = BTreeMap::new();
        for event in &trace.events {
            if let Event::Call { function, stands_for, .. } = event {
                *calls.entry(self.of(trace, *function)).or_default() += stands_for;
            }
        }
        let all: f64 = calls.values().sum();
        let notable = calls.into_iter().filter(|(_, calls)| *calls >= NOTABLE * all);
        notable.map(|(kind, _)| kind).collect()
    }
}

/// The name of a function, if it is known.
fn name<'a>(run: &Run<'a>, place: &FunctionPlace) -> Option<&'a str> {
    let known = &run.known.get(place.file.as_ref())?.functions;
    match at(known, place.address) {
        Some(function) => function.name.as_deref(),
        None => entered_by(known, place.address)?.1.name.as_deref(),
    }
}

/// The most demanding class in a function, or in the one that it was hooked for, that runs here.
fn class(run: &Run<'_>, place: &FunctionPlace) -> InstructionClass {
    let known = run.known.get(place.file.as_ref()).map_or(&[][..], |known| &known.functions);
    let entered = || entered_by(known, place.address).map(|(entered, _)| entered);
    let found = at(known, place.address).or_else(entered);
    let class = found.and_then(|found| runnable(found, run.machine).parse().ok());
    class.unwrap_or(InstructionClass::Scalar)
}
