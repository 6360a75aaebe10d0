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

/// How often a function is called is counted over the last time of one to two of these: what counts
/// is what the program does now. A guess.
const RECENT: Duration = Duration::from_secs(2);

/// Which hooks of a program were taken out, and what was known before.
#[derive(Debug)]
pub(super) struct Unhooking {
    begun: Instant,
    decided: Instant,
    recent: Recent,
    /// Of each function, by its number: its verdict, and since when.
    since: Vec<(Verdict, Instant)>,
    /// Those that are about to go; `None` until calls have been seen.
    going: Option<Going>,
    before: Option<Before>,
}

/// How often functions were called lately.
#[derive(Debug)]
struct Recent {
    earlier: Counts,
    later: Counts,
}

/// Numbers of calls at a time.
#[derive(Debug)]
struct Counts {
    at: Instant,
    /// By the number of the function, and the place of its entry.
    calls: BTreeMap<(usize, usize), u64>,
}

impl Recent {
    fn new(now: Instant) -> Self {
        let none = || Counts { at: now, calls: BTreeMap::new() };
        Self { earlier: none(), later: none() }
    }

    /// Begins a look at a time.
    fn begin(&mut self, now: Instant) {
        if now - self.later.at >= RECENT {
            let now = Counts { at: now, calls: BTreeMap::new() };
            self.earlier = std::mem::replace(&mut self.later, now);
        }
    }

    /// Calls a second lately; `calls` is their number by `now`, the time of the look.
    fn per_s(&mut self, of: (usize, usize), calls: u64, now: Instant) -> f64 {
        if self.later.at == now {
            self.later.calls.insert(of, calls);
        }
        let before = self.earlier.calls.get(&of).copied().unwrap_or(0);
        let seconds = (now - self.earlier.at).as_secs_f64();
        if seconds > 0.0 { calls.saturating_sub(before) as f64 / seconds } else { 0.0 }
    }
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
            recent: Recent::new(now),
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
        self.recent.begin(now);
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
            for (entry, place) in moved.places.iter().enumerate() {
                let calls = tallies.get(place).map_or(0, |tally| tally.calls);
                let calls_per_s = self.recent.per_s((*number, entry), calls, now);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_last_seconds() {
        let begun = Instant::now();
        let (mut recent, mut calls) = (Recent::new(begun), 0);
        let mut rate_at = |tenth: u32, more: u64| {
            calls += more;
            let now = begun + tenth * Duration::from_millis(100);
            recent.begin(now);
            recent.per_s((0, 0), calls, now)
        };
        assert!((1..=600).all(|tenth| (rate_at(tenth, 100) - 1000.0).abs() < 1e-6));
        // A minute's calls do not hide what comes then.
        let rates: Vec<f64> = (601..=640).map(|tenth| rate_at(tenth, 10_000)).collect();
        assert!(rates[9] > 25_000.0 && rates[39] > 99_999.0, "{rates:?}");
        let rates: Vec<f64> = (641..=680).map(|tenth| rate_at(tenth, 0)).collect();
        assert!(rates[39] < 1e-6, "{rates:?}");
    }
}
