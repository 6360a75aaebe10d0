//! Takes the hooks out of a program that cannot help there, while it runs ([`unhooking`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use dimmer_host::usage::Usage;
use dimmer_observe::{FunctionPlace, Observer, Tally};
use dimmer_policy::moving::Verdict;
use dimmer_policy::unhooking::{self, Hook};
use dimmer_processor::units::Nanos;

use super::moving::Moved;

/// Bytes of a page of code.
const PAGE: u64 = 4096;

/// Interval of the decisions.
const STEP: Duration = Duration::from_secs(1);

/// Which hooks of a program were taken out, and what was known before.
#[derive(Debug)]
pub(super) struct Unhooking {
    begun: Instant,
    decided: Instant,
    /// Of each function, by its number: its verdict, and since when.
    since: Vec<(Verdict, Instant)>,
    /// Whether the number of calls is a measure of the program's work.
    is_counting: bool,
    before: Option<Before>,
}

/// What was seen of all functions while all had their hooks.
#[derive(Debug)]
pub(super) struct Before {
    /// Of each function, by its number.
    pub(super) tallies: Vec<Tally>,
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
            is_counting: false,
            before: None,
        }
    }

    /// Decides, if that is due, which hooks go, and has them taken out.
    pub(super) fn step(
        &mut self,
        functions: &mut [Moved],
        tallies: &BTreeMap<FunctionPlace, Tally>,
        observer: &mut Observer,
    ) {
        let now = Instant::now();
        let ran_s = (now - self.begun).as_secs_f64();
        let mut hooks = Vec::new();
        for (moved, since) in functions.iter().zip(&mut self.since) {
            let verdict = moved.decision.verdict();
            if since.0 != verdict || moved.is_moved {
                *since = (verdict, now);
            }
            let for_ns =
                Nanos::from_ns(u64::try_from((now - since.1).as_nanos()).unwrap_or(u64::MAX));
            if moved.is_unhooked {
                continue;
            }
            for place in &moved.places {
                let calls = tallies.get(place).map_or(0, |tally| tally.calls);
                let calls_per_s = calls as f64 / ran_s;
                hooks.push(Hook { page: page(place), verdict, for_ns, calls_per_s });
            }
        }
        self.is_counting = !unhooking::are_about_to_go(&hooks);
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

    /// What was seen before hooks were taken out, and what the program used in that time, if it
    /// used as much then as on the average: it ran for `ran`. `None` if all hooks are in place.
    pub(super) fn before(&self, ran: Duration, usage: Usage) -> Option<(&Before, Usage)> {
        let before = self.before.as_ref()?;
        let ran = ran.max(before.lasted).max(Duration::from_nanos(1));
        let part = before.lasted.div_duration_f64(ran);
        let switches = u128::from(usage.switches) * before.lasted.as_nanos() / ran.as_nanos();
        let usage = Usage {
            on_cpu: usage.on_cpu.mul_f64(part),
            in_kernel: usage.in_kernel.mul_f64(part),
            switches: u64::try_from(switches).unwrap_or(u64::MAX),
        };
        Some((before, usage))
    }

    /// Whether the number of calls is a measure of the program's work, as no hooks are about to go
    /// that count many of them.
    pub(super) fn is_counting(&self) -> bool {
        self.is_counting
    }

    /// For how long the program has run.
    pub(super) fn ran(&self) -> Duration {
        self.begun.elapsed()
    }
}

/// The page of code of an entry: the file, and the page's address in it.
fn page(place: &FunctionPlace) -> (&Path, u64) {
    (&place.file, place.address & !(PAGE - 1))
}
