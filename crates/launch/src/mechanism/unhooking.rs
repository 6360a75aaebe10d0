//! Takes the hooks out of a program that cannot help there, while it runs ([`unhooking`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::time::{Duration, Instant};

use dimmer_observe::{FunctionPlace, Observer, Tally};
use dimmer_policy::moving::Verdict;
use dimmer_policy::unhooking::{self, Going, Hook};
use dimmer_processor::units::Nanos;

use super::moving::Moved;

/// Bytes of a page of code.
const PAGE: u64 = 4096;

/// Interval of the decisions: each has the program give back some pages, for some tens of
/// microseconds.
const STEP: Duration = Duration::from_millis(250);

/// Which hooks of a program were taken out, and what was known before.
#[derive(Debug)]
pub(super) struct Unhooking {
    begun: Instant,
    decided: Instant,
    /// Of each function, by its number: its verdict, and since when.
    since: Vec<(Verdict, Instant)>,
    /// Those that are about to go; `None` until calls have been seen.
    going: Option<Going>,
    before: Option<Before>,
}

/// What was seen of all functions while all had their hooks.
#[derive(Debug)]
struct Before {
    /// Of each function, by its number.
    tallies: Vec<Tally>,
    /// For how long.
    lasted: Duration,
}

impl Unhooking {
    pub(super) fn new(functions: usize) -> Self {
        let now = Instant::now();
        Self {
            begun: now,
            decided: now,
            since: vec![(Verdict::Unknown, now); functions],
            going: None,
            before: None,
        }
    }

    /// Decides, if that is due, which hooks go, and has them taken out.
    ///
    /// * `called`: the numbers of the functions that have been called. Hooks of others cost
    ///   nothing, and go with their neighbours.
    pub(super) fn step(
        &mut self,
        functions: &mut [Moved],
        called: &BTreeSet<usize>,
        tallies: &BTreeMap<FunctionPlace, Tally>,
        observer: &mut Observer,
    ) {
        let now = Instant::now();
        let ran_s = (now - self.begun).as_secs_f64();
        let mut hooks = Vec::new();
        for number in called {
            let (moved, since) = (&functions[*number], &mut self.since[*number]);
            let verdict = moved.decision.verdict();
            if since.0 != verdict || moved.is_moved {
                *since = (verdict, now);
            }
            let for_ns = Nanos::from(now - since.1);
            if moved.is_unhooked {
                continue;
            }
            for place in &moved.places {
                let calls = tallies.get(place).map_or(0, |tally| tally.calls);
                let calls_per_s = calls as f64 / ran_s;
                hooks.push(Hook { page: page(place), verdict, for_ns, calls_per_s });
            }
        }
        self.going = Some(unhooking::about_to_go(&hooks));
        let is_due = now - self.decided >= STEP;
        let pages = if is_due { unhooking::pages(&hooks) } else { Vec::new() };
        if pages.is_empty() {
            return;
        }
        self.decided = now;
        let goes = |place: &FunctionPlace| pages.binary_search(&page(place)).is_ok();
        let all = functions.iter().flat_map(|moved| &moved.places);
        let places: BTreeSet<FunctionPlace> = all.filter(|place| goes(place)).cloned().collect();
        self.before.get_or_insert_with(|| Before {
            tallies: functions
                .iter()
                .map(|moved| moved.tally(|place| tallies.get(place)))
                .collect(),
            lasted: now - self.begun,
        });
        for moved in functions {
            moved.is_unhooked |= moved.places.iter().any(|place| places.contains(place));
        }
        observer.unhook(places);
    }

    /// The times of calls of each function, by its number, as `tallies` has them, but those of
    /// functions that lost a hook: as before, and as many a second, for as long as the program has
    /// run. The number of calls stays as counted.
    pub(super) fn completed(&self, functions: &[Moved], tallies: &[Tally]) -> Vec<Tally> {
        let Some(before) = &self.before else { return tallies.to_vec() };
        let factor = self.begun.elapsed().div_duration_f64(before.lasted).max(1.0);
        let complete = |((moved, now), then): ((&Moved, &Tally), &Tally)| {
            if !moved.is_unhooked {
                return now.clone();
            }
            Tally {
                lasted: then.lasted.scaled(factor),
                gap_after: then.gap_after.scaled(factor),
                ..now.clone()
            }
        };
        functions.iter().zip(tallies).zip(&before.tallies).map(complete).collect()
    }

    /// Whether a hook was taken out.
    pub(super) const fn is_begun(&self) -> bool {
        self.before.is_some()
    }

    /// Whether the number of calls is a measure of the program's work, as no hooks are about to go
    /// that count many of them.
    pub(super) fn is_counting(&self) -> bool {
        self.going.is_some_and(|going| !going.are_many())
    }

    /// The part of a CPU's time that is taken by hooks that are about to go.
    pub(super) fn takes(&self) -> f64 {
        self.going.map_or(0.0, |going| going.takes())
    }
}

/// The page of code of an entry: the page's address in the file, which is sooner compared, and the
/// file.
fn page(place: &FunctionPlace) -> (u64, &OsStr) {
    (place.address & !(PAGE - 1), place.file.as_os_str())
}
