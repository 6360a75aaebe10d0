//! One ledger, and what was read from it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dimmer_hook::{Head, Ledger, Look, OWN_FILE, Object, PhaseCounts, SiteEntry, Thread};

use super::INTERVAL;
use crate::seen::{FunctionPlace, Observed, ThreadSeen};
use crate::tally::{Tally, ThreadTally};
use crate::trace::{MOST_TRACED, Recorder};

/// Largest plausible increase of a counter between two looks. A counter with a larger one was
/// restarted.
const MOST_CALLS: u32 = 1 << 31;

/// Maximum lead of another processor's time stamps.
const AHEAD: Duration = Duration::from_secs(1);

/// Rate of the time-stamp counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// Time since the observer started.
    pub(super) passed: Duration,
    /// Ticks in that time.
    pub(super) ticks: u64,
    /// When the observer started (ticks).
    pub(super) begun: u64,
}

impl Rate {
    pub(super) fn ns_per_tick(self) -> f64 {
        self.passed.as_nanos() as f64 / self.ticks as f64
    }

    pub(super) fn ticks_in(self, span: Duration) -> u64 {
        let ns = self.passed.as_nanos().max(1);
        u64::try_from(u128::from(self.ticks) * span.as_nanos() / ns).unwrap_or(u64::MAX)
    }
}

/// What a ledger is to say besides the decisions about functions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    /// Number of hardware threads to which calls are moved.
    pub(super) used_cores: usize,
    /// The set of wide CPUs.
    pub(super) wide_set: Option<usize>,
    /// When it lapses (ticks).
    pub(super) until: u64,
}

/// A ledger, and what was read from it.
#[derive(Debug)]
pub(super) struct Followed {
    ledger: Ledger,
    head: Head,
    /// Threads, by slot number.
    threads: BTreeMap<usize, FollowedThread>,
    /// The function of each site, by its number; `None` for a site of this library itself.
    places: Vec<Option<FunctionPlace>>,
    /// Number of its functions for which it is decided whether their calls are moved.
    decided: usize,
    /// Functions whose calls are moved.
    moved: BTreeSet<usize>,
    /// Functions whose hooks were ordered out.
    unhooked: BTreeSet<usize>,
    /// Number of hardware threads to which they are moved, as last written to the ledger.
    used_cores: Option<usize>,
    /// The set of wide CPUs, as last written to the ledger, which has none at first.
    wide_set: Option<usize>,
    /// Memory that it takes (bytes), with the numbers of functions and slots for which that was
    /// measured.
    memory: (u64, usize, usize),
    /// The numbers of functions whose calls start requests.
    requests: BTreeSet<usize>,
}

/// Real paths of files, with all links resolved, by the names that the loader used: one file has
/// several. Each name is looked up once during the lifetime of this map.
#[derive(Debug, Default)]
pub(super) struct Real(BTreeMap<PathBuf, PathBuf>);

impl Real {
    fn file(&mut self, path: PathBuf) -> PathBuf {
        if let Some(real) = self.0.get(&path) {
            return real.clone();
        }
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        self.0.insert(path, real.clone());
        real
    }
}

/// What was decided about functions.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// Those whose calls are moved.
    pub(super) moved: BTreeSet<FunctionPlace>,
    /// Those whose hooks are taken out.
    pub(super) unhooked: BTreeSet<FunctionPlace>,
}

/// What the observer traces.
#[derive(Debug)]
pub(super) struct Tracing {
    /// Functions whose calls start requests.
    requests: BTreeSet<FunctionPlace>,
    /// Number of further calls and samples that are kept.
    room: usize,
}

impl Tracing {
    pub(super) fn new(requests: BTreeSet<FunctionPlace>) -> Self {
        Self { requests, room: MOST_TRACED }
    }
}

#[derive(Debug, Default)]
struct FollowedThread {
    tally: ThreadTally,
    /// Counters at the last look, by the number of the function.
    shown: Vec<u32>,
    /// When its calls were last counted, and how many there were.
    counted: Option<(Instant, u64)>,
    period: u32,
    process: u32,
    thread: u32,
    moved: u64,
    phases: PhaseCounts,
    recorder: Option<Recorder>,
}

impl Followed {
    /// `None` if the file is no longer a ledger.
    pub(super) fn new(ledger: Ledger) -> Option<Self> {
        Some(Self {
            head: ledger.head()?,
            ledger,
            threads: BTreeMap::new(),
            places: Vec::new(),
            decided: 0,
            moved: BTreeSet::new(),
            unhooked: BTreeSet::new(),
            used_cores: None,
            wide_set: None,
            memory: (0, 0, 0),
            requests: BTreeSet::new(),
        })
    }

    /// Memory that the file takes (bytes).
    pub(super) fn memory(&self) -> u64 {
        self.memory.0
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.ledger.is_abandoned()
    }

    /// Makes the next [`Self::order`] decide again for all functions.
    pub(super) fn decide_again(&mut self) {
        self.decided = 0;
    }

    /// Writes to the ledger which calls are moved and where, if the process can move calls.
    pub(super) fn order(
        &mut self,
        Order { used_cores, wide_set, until }: Order,
        Chosen { moved, unhooked }: &Chosen,
        real: &mut Real,
    ) {
        self.learn_places(real);
        if !self.head.moves() {
            return;
        }
        if self.wide_set != wide_set {
            self.wide_set = wide_set;
            self.ledger.widen(wide_set);
        }
        self.ledger.hold_until(until);
        if self.used_cores != Some(used_cores) {
            self.used_cores = Some(used_cores);
            self.ledger.use_cores(used_cores);
        }
        if self.decided == self.places.len() {
            return;
        }
        let mut to_unhook = Vec::new();
        for (site, place) in self.places.iter().enumerate().skip(self.decided) {
            let is_in = |set: &BTreeSet<FunctionPlace>| {
                place.as_ref().is_some_and(|place| set.contains(place))
            };
            if is_in(unhooked) && self.unhooked.insert(site) {
                to_unhook.push(site);
            }
            let is_moved = is_in(moved);
            if is_moved != self.moved.contains(&site) {
                self.ledger.decide(site, is_moved);
                if is_moved {
                    self.moved.insert(site)
                } else {
                    self.moved.remove(&site)
                };
            }
        }
        if !to_unhook.is_empty() {
            self.ledger.unhook(&to_unhook);
        }
        self.decided = self.places.len();
    }

    /// Reads what is new, and returns whether there was anything; `None` if the file is no longer a
    /// ledger. `room` is the number of further functions of threads for which there is room; of a
    /// thread's calls, `pairs_per_second` pairs are timed from now on, or all if they are traced.
    pub(super) fn look(
        &mut self,
        rate: Rate,
        pairs_per_second: f64,
        room: &mut usize,
        mut tracing: Option<&mut Tracing>,
    ) -> Option<bool> {
        self.head = self.ledger.head()?;
        let (sites, slots) = (self.head.sites(), self.head.slots());
        if self.memory.1 != sites
            && let Some(tracing) = &tracing
        {
            self.requests = self.requests(&tracing.requests);
        }
        if (self.memory.1, self.memory.2) != (sites, slots) {
            self.memory = (self.ledger.memory(), sites, slots);
        }
        let overhead = self.head.overhead();
        let longest = rate.ticks.saturating_add(rate.ticks_in(AHEAD));
        let mut look = Look::default();
        let mut is_changed = false;
        for number in 0..slots {
            let Some(thread) = self.ledger.thread(number) else { continue };
            thread.look(sites, &mut look);
            let own = self.threads.entry(number).or_default();
            (own.process, own.thread, own.moved) = (look.process(), look.tid(), look.moved());
            own.phases = look.phases();
            let before = own.tally.calls();
            is_changed |= own.count(&look, room);
            let requests = &self.requests;
            thread.drain_seen(&look, |call| {
                let is_known = |site| own.tally.functions.contains_key(&site);
                let is_possible = call.end - call.begin <= longest;
                if is_possible && is_known(call.site) && is_known(call.ended_in) {
                    let is_request = requests.contains(&call.site);
                    if !is_request {
                        own.tally.add(call, overhead, rate.ns_per_tick());
                    }
                    if let Some(tracing) = &mut tracing {
                        let recorder = own.recorder.get_or_insert_default();
                        recorder.add(call, is_request, &mut tracing.room);
                    }
                }
                is_changed = true;
            });
            own.tally.settle();
            match &mut tracing {
                Some(tracing) => own.trace(&thread, before, &mut tracing.room),
                None => own.set_period(&thread, pairs_per_second),
            }
        }
        Some(is_changed)
    }

    /// Adds the calls of all threads so far, by function.
    pub(super) fn add_to(&self, all: &mut BTreeMap<FunctionPlace, Tally>) {
        let threads = self.threads.values();
        for (site, tally) in threads.flat_map(|thread| &thread.tally.functions) {
            if let Some(Some(place)) = self.places.get(*site) {
                all.entry(place.clone()).or_default().merge(tally);
            }
        }
    }

    /// The number of calls of all functions up to now, this library's own included.
    pub(super) fn calls_now(&self) -> u64 {
        let mut look = Look::default();
        let of_thread = |(number, own): (&usize, &FollowedThread)| {
            let thread = self.ledger.thread(*number);
            let since = thread.map_or(0, |thread| {
                thread.look(self.head.sites(), &mut look);
                own.calls_since(&look)
            });
            own.tally.calls().saturating_add(since)
        };
        self.threads.iter().map(of_thread).fold(0, u64::saturating_add)
    }

    /// The number of threads whose calls were not seen, at the last look.
    pub(super) fn threads_left_out(&self) -> usize {
        self.head.threads_left_out()
    }

    /// Reads the places of functions that were hooked since the last time.
    fn learn_places(&mut self, real: &mut Real) {
        if self.places.len() != self.head.sites() {
            self.places = self.read_places(&self.objects(real));
        }
    }

    /// The wide phases of all its threads.
    pub(super) fn phases(&self) -> PhaseCounts {
        let phases = self.threads.values().map(|thread| thread.phases);
        phases.fold(PhaseCounts::default(), PhaseCounts::and)
    }

    /// The processes to which its threads belong.
    pub(super) fn processes(&self) -> BTreeSet<u32> {
        self.threads.values().map(|thread| thread.process).collect()
    }

    /// Adds everything that was seen to `observed`, and gives the room that it took back to `room`.
    pub(super) fn fold(
        self,
        observed: &mut Observed,
        rate: Rate,
        room: &mut usize,
        real: &mut Real,
    ) {
        let taken: usize = self.threads.values().map(|thread| thread.tally.functions.len()).sum();
        *room += taken;
        let Some(head) = self.ledger.head() else {
            let path = self.ledger.path().display();
            observed.complain(format!("{path} was damaged, and nothing is told of its process."));
            return;
        };
        let objects = self.objects(real);
        let (sites, places) = (self.ledger.sites(), self.read_places(&objects));
        observed.processes += 1;
        for (number, object) in objects.iter().enumerate().filter(|(_, object)| is_foreign(object))
        {
            let of_it = sites.iter().filter(|site| site.object == number);
            observed.add_file(&object.path, &object.problem, of_it.map(|site| site.address));
        }
        let overhead = head.overhead();
        for seen in self.threads.into_values() {
            if let Some(recorder) = seen.recorder {
                let ids = (seen.process, seen.thread);
                let place = |site| places.get(site).cloned().flatten();
                let trace = recorder.finish(ids, place, overhead, (rate.begun, rate.ns_per_tick()));
                observed.add_trace(trace);
            }
            let mut functions: BTreeMap<FunctionPlace, Tally> = BTreeMap::new();
            let is_request = |site: &usize| self.requests.contains(site);
            for (site, tally) in seen.tally.functions {
                if is_request(&site) {
                    continue;
                }
                // A file that is loaded several times has separate sites each time.
                if let Some(Some(place)) = places.get(site) {
                    functions.entry(place.clone()).or_default().merge(&tally);
                }
            }
            if functions.is_empty() {
                continue;
            }
            let sum = |sum: u64, number: u64| sum.saturating_add(number);
            let calls = functions.values().map(|tally| tally.calls).fold(0, sum);
            let timed = functions.values().map(|tally| tally.lasted.measured()).fold(0, sum);
            let hooks_ns = overhead.of(calls, timed) * rate.ns_per_tick();
            observed.add_thread(ThreadSeen {
                process: seen.process,
                thread: seen.thread,
                functions,
                clocks: seen.tally.clocks,
                hooks: Duration::try_from_secs_f64(hooks_ns * 1e-9).unwrap_or_default(),
                moved: seen.moved,
                phases: seen.phases,
            });
        }
        if head.is_full() {
            let what =
                "Files of some processes were not hooked: there was no room in their ledgers.";
            observed.complain(what.to_owned());
        }
        observed.threads_left_out =
            observed.threads_left_out.saturating_add(head.threads_left_out());
    }

    /// The numbers of these functions.
    fn requests(&self, requests: &BTreeSet<FunctionPlace>) -> BTreeSet<usize> {
        if requests.is_empty() {
            return BTreeSet::new();
        }
        let places = self.read_places(&self.objects(&mut Real::default()));
        let is_one = |place: &Option<FunctionPlace>| {
            place.as_ref().is_some_and(|one| requests.contains(one))
        };
        let numbered = places.iter().enumerate().filter(|(_, place)| is_one(place));
        numbered.map(|(number, _)| number).collect()
    }

    /// The hooked files, by number.
    fn objects(&self, real: &mut Real) -> Vec<Object> {
        let objects = self.ledger.objects().into_iter();
        objects.map(|object| Object { path: real.file(object.path), ..object }).collect()
    }

    /// The function of each site, by its number; `None` for a site of this library itself.
    fn read_places(&self, objects: &[Object]) -> Vec<Option<FunctionPlace>> {
        let file = |object: &Object| is_foreign(&object).then(|| Arc::from(object.path.as_path()));
        let files: Vec<Option<Arc<Path>>> = objects.iter().map(file).collect();
        let place = |site: SiteEntry| {
            let file = files.get(site.object)?.clone()?;
            Some(FunctionPlace { file, address: site.address })
        };
        self.ledger.sites().into_iter().map(place).collect()
    }
}

impl FollowedThread {
    /// Stores the counters, and returns whether a call was counted. Each new function takes one of
    /// `room`.
    fn count(&mut self, look: &Look, room: &mut usize) -> bool {
        let mut is_changed = false;
        for (site, shown) in look.calls().enumerate().filter(|(_, shown)| *shown != 0) {
            if self.shown.len() <= site {
                self.shown.resize(site + 1, 0);
            }
            let more = shown.wrapping_sub(std::mem::replace(&mut self.shown[site], shown));
            if more == 0 || more > MOST_CALLS {
                continue;
            }
            is_changed = true;
            let is_known = self.tally.functions.contains_key(&site);
            if !is_known && *room == 0 {
                continue;
            }
            *room -= usize::from(!is_known);
            self.tally.count(site, more.into());
        }
        is_changed
    }

    /// Calls that [`Self::count`] has not stored yet.
    fn calls_since(&self, look: &Look) -> u64 {
        let shown = self.shown.iter().copied().chain(std::iter::repeat(0));
        let more = look.calls().zip(shown).map(|(now, shown)| now.wrapping_sub(shown));
        more.filter(|more| *more <= MOST_CALLS).map(u64::from).sum()
    }

    /// Has all of the thread's calls timed, and reads what the kernel has counted of it. It had
    /// made `before` calls at the look before.
    fn trace(&mut self, thread: &Thread<'_>, before: u64, room: &mut usize) {
        if self.period != 1 {
            thread.set_period(1);
            self.period = 1;
        }
        let counted = self.tally.calls().saturating_sub(before);
        if let Some(recorder) = &mut self.recorder {
            recorder.look((self.process, self.thread), counted, room);
        }
    }

    /// Sets how many of the thread's calls are timed, according to its rate of calls.
    fn set_period(&mut self, thread: &Thread<'_>, pairs_per_second: f64) {
        let (now, calls) = (Instant::now(), self.tally.calls());
        let (then, before) = *self.counted.get_or_insert((now, 0));
        let passed = now.duration_since(then).as_secs_f64();
        if passed >= INTERVAL.as_secs_f64() / 2.0 {
            let rate = calls.saturating_sub(before) as f64 / passed;
            let period = dimmer_hook::period(rate, pairs_per_second);
            if period != self.period {
                thread.set_period(period);
                self.period = period;
            }
            self.counted = Some((now, calls));
        }
    }
}

/// Whether the file belongs to the program.
fn is_foreign(object: &&Object) -> bool {
    object.path.as_os_str() != OWN_FILE
}
