//! Carries out the clocks that a program's threads request at its locks, while the program runs.
//!
//! A thread of this process does that: the program needs no rights for its requests, waits for
//! nothing, and whatever becomes of it, what is in force is known here. All requests end with the
//! program's threads, with this process, and with `dimmer restore` if it is killed.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use dimmer_contention::board::{self, Found, Requests};
use dimmer_contention::requests;
use dimmer_host::affinity;
use dimmer_host::journal::{JournalError, Report};
use dimmer_host::process;
use dimmer_host::root::Root;
use dimmer_pace::{Decision, Request, prepare_direct, request_for};
use dimmer_policy::boost::Speed;
use dimmer_policy::boost::site::AtSite;
use dimmer_processor::units::{CpuId, Nanos, nearest};
use dimmer_protocol::{ticks, ticks_per_ns};

/// How often it looks for threads that ended without a word, or have moved to another core.
const INTERVAL: Duration = Duration::from_millis(20);

/// How much longer than a look the time to the next one is at least: looks at many threads take a
/// twentieth of a CPU at most.
const REST: u32 = 19;

/// How many of the latest times count; odd, for the median.
const TIMES: usize = 1023;

/// Requests that are timed before the program starts; an even number.
const TRIALS: usize = 32;

/// The longest time to wait for such a request.
const LONGEST_TRIAL: Duration = Duration::from_millis(100);

/// What became of the requests of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Carried {
    /// The back end of `dimmer_pace`.
    pub back_end: &'static str,
    /// How many requests were carried out.
    pub requests: u64,
    /// How many the machine did not take.
    pub refused: u64,
    /// Requests of threads for which there was no room.
    pub unplaced: u64,
    /// How long a request took its thread: the median of the latest.
    pub took: Nanos,
    /// How long it was from a request until it was carried out: likewise.
    pub delay: Nanos,
    /// How long the slow clock was in force, summed up over the threads.
    pub slow: Nanos,
    /// The same for the fast clock.
    pub fast: Nanos,
}

/// The thread that carries them out.
#[derive(Debug)]
pub(crate) struct Requester {
    requests: Arc<Requests>,
    must_end: Arc<AtomicBool>,
    thread: JoinHandle<Carried>,
    /// How long a request took its thread before the program started, and how long it was until it
    /// was carried out.
    pub(crate) trial: Option<[Nanos; 2]>,
}

impl Requester {
    /// Starts it. New sites of the program have this strategy.
    ///
    /// # Errors
    /// Why the machine takes no requests.
    pub(crate) fn start(root: &Root, strategy: AtSite) -> Result<Self, String> {
        prepare_direct(root).map_err(|missing| missing.why)?;
        let requests = Requests::new(strategy).map_err(|error| format!("memory: {error}"))?;
        let requests = Arc::new(requests);
        let must_end = Arc::new(AtomicBool::new(false));
        let has_tried = Arc::new(AtomicBool::new(false));
        let (of_thread, end) = (Arc::clone(&requests), Arc::clone(&must_end));
        let desk = Desk::new(of_thread, Arc::clone(&has_tried), asked);
        let thread = Builder::new().spawn(move || desk.work(&end));
        let thread = thread.map_err(|error| format!("a thread: {error}"))?;
        let longest = nearest(LONGEST_TRIAL.as_secs_f64() * 1e9 * ticks_per_ns());
        let trial = trial(&requests, longest);
        has_tried.store(true, Ordering::Relaxed);
        Ok(Self { requests, must_end, thread, trial })
    }

    /// The path for the program's environment.
    pub(crate) fn path(&self) -> String {
        self.requests.path()
    }

    /// Ends all requests, and gives back the machine's clocks. Returns what could not be.
    pub(crate) fn finish(self) -> (Carried, Result<Report, JournalError>) {
        self.must_end.store(true, Ordering::Relaxed);
        self.requests.ring();
        let carried = self.thread.join().unwrap_or_default();
        (carried, dimmer_pace::end())
    }
}

/// Times requests of this process's own: the medians of how long they take the thread, and until
/// they are in force. `None` if one was not carried out within `longest` (ticks).
///
/// They are those of a thread that ends with them: none stays, whether or not it was carried out.
fn trial(of: &Requests, longest: u64) -> Option<[Nanos; 2]> {
    let timed = || {
        requests::begin(OsStr::new(&of.path()));
        let (mut took, mut delay) = (Times::default(), Times::default());
        for number in 0..TRIALS {
            let wanted = number.is_multiple_of(2).then_some(Speed::Turbo);
            let [own, all] = requests::timed(wanted, longest)?;
            took.add(own);
            delay.add(all);
        }
        Some([took.median(), delay.median()])
    };
    std::thread::scope(|scope| Builder::new().spawn_scoped(scope, timed).ok()?.join().ok()?)
}

/// The latest times (ticks).
#[derive(Debug, Default)]
struct Times {
    all: Vec<u64>,
    count: usize,
}

impl Times {
    fn add(&mut self, time: u64) {
        if self.all.len() < TIMES {
            self.all.push(time);
        } else {
            self.all[self.count % TIMES] = time;
        }
        self.count += 1;
    }

    /// The median; zero without any.
    fn median(&self) -> Nanos {
        let mut all = self.all.clone();
        all.sort_unstable();
        nanos(all.get(all.len() / 2).copied().unwrap_or_default())
    }
}

fn nanos(ticks: u64) -> Nanos {
    Nanos::rounded(ticks as f64 / ticks_per_ns())
}

/// What is known of a slot's owner.
#[derive(Debug)]
struct InForce {
    /// The request that was seen last, whether or not it was carried out.
    found: Found,
    speed: Option<Speed>,
    /// Since when (ticks).
    since: u64,
    /// When its thread started, as it was when the first request was seen.
    started_at: u64,
}

/// Makes a thread's request, in place of an earlier one, or ends it.
type Ask = fn(&Found, Option<Speed>) -> Decision;

/// The requests, as they are carried out.
#[derive(Debug)]
struct Desk {
    requests: Arc<Requests>,
    /// Whether this process has ended its own requests: from then on, the program has written those
    /// that seem to be.
    has_tried: Arc<AtomicBool>,
    ask: Ask,
    slots: BTreeMap<usize, InForce>,
    took: Times,
    delay: Times,
    sum: Carried,
}

impl Desk {
    fn new(requests: Arc<Requests>, has_tried: Arc<AtomicBool>, ask: Ask) -> Self {
        let sum = Carried { back_end: dimmer_pace::back_end().unwrap_or(""), ..Carried::default() };
        Self {
            requests,
            has_tried,
            ask,
            slots: BTreeMap::new(),
            took: Times::default(),
            delay: Times::default(),
            sum,
        }
    }

    fn work(mut self, must_end: &AtomicBool) -> Carried {
        let mut next_look = Instant::now() + INTERVAL;
        loop {
            let bell = self.requests.bell();
            if must_end.load(Ordering::Relaxed) {
                break;
            }
            self.carry_out(must_end);
            let now = Instant::now();
            if now >= next_look {
                self.look_for_ended();
                self.follow();
                next_look = Instant::now() + INTERVAL.max(now.elapsed() * REST);
            }
            self.requests.wait(bell, next_look.saturating_duration_since(Instant::now()));
        }
        while let Some(slot) = self.slots.keys().next().copied() {
            self.end(slot);
        }
        self.sum.unplaced = self.requests.unplaced();
        (self.sum.took, self.sum.delay) = (self.took.median(), self.delay.median());
        self.sum
    }

    /// Carries out what is new, until `must_end`.
    fn carry_out(&mut self, must_end: &AtomicBool) {
        let all: Vec<Found> = self.requests.all().collect();
        let is_there = |slot: &usize, in_force: &InForce| {
            let at = all.binary_search_by_key(slot, |found| found.slot);
            at.is_ok_and(|at| is_of_same(&all[at], &in_force.found))
        };
        let gone = self.slots.iter().filter(|(slot, one)| !is_there(slot, one));
        let gone: Vec<usize> = gone.map(|(slot, _)| *slot).collect();
        gone.iter().for_each(|slot| self.end(*slot));
        for found in all {
            if must_end.load(Ordering::Relaxed) {
                return;
            }
            match self.slots.get(&found.slot).map(|one| (one.found.request, one.started_at)) {
                Some((request, _)) if request == found.request => {}
                Some((_, started_at)) => self.carry_out_one(found, started_at),
                None => match self.started_at(&found) {
                    Some(started_at) => self.carry_out_one(found, started_at),
                    None => self.requests.free(&found),
                },
            }
        }
    }

    /// When the thread started that has made a request; `None` if it is none of the program's.
    fn started_at(&self, found: &Found) -> Option<u64> {
        if !is_of_program(found) && self.has_tried.load(Ordering::Relaxed) {
            return None;
        }
        let started_at = board::started_at(found.process, found.thread)?;
        let is_mapped = self.requests.is_mapped_by(found.process, found.thread);
        // The number may be another thread's meanwhile.
        let is_same = board::started_at(found.process, found.thread) == Some(started_at);
        (is_mapped && is_same).then_some(started_at)
    }

    fn carry_out_one(&mut self, found: Found, started_at: u64) {
        let before = self.slots.remove(&found.slot);
        let is_same = before
            .as_ref()
            .is_some_and(|before| before.speed == found.speed && before.found.cpu == found.cpu);
        let decision = if is_same { Decision::Requested } else { self.asked(&found) };
        let is_requested = decision == Decision::Requested;
        if is_requested {
            self.requests.carried_out(&found);
        }
        if let Some(before) = before {
            self.count(&before);
        }
        // A thread that has ended before its turn has nothing refused: its request ends with it.
        let is_there = || board::started_at(found.process, found.thread) == Some(started_at);
        if is_of_program(&found) && (is_requested || is_there()) {
            let sum = if is_requested { &mut self.sum.requests } else { &mut self.sum.refused };
            *sum += 1;
            self.delay.add(ticks().saturating_sub(found.asked_at));
            if found.took > 0 {
                self.took.add(found.took);
            }
        }
        let speed = found.speed.filter(|_| is_requested);
        self.slots.insert(found.slot, InForce { found, speed, since: ticks(), started_at });
    }

    /// Asks for what was found. If that is refused, nothing is in force.
    fn asked(&self, found: &Found) -> Decision {
        // A program chooses the number, and may not be allowed there.
        let is_allowed = || {
            affinity::allowed_to(found.thread)
                .is_ok_and(|allowed| allowed.contains(&CpuId::new(found.cpu)))
        };
        let is_asked = found.speed.is_none() || is_allowed();
        let decision =
            if is_asked { (self.ask)(found, found.speed) } else { Decision::Unavailable };
        if decision != Decision::Requested && found.speed.is_some() {
            (self.ask)(found, None);
        }
        decision
    }

    /// Adds the time of what was in force until now.
    fn count(&mut self, before: &InForce) {
        if !is_of_program(&before.found) {
            return;
        }
        let sum = match before.speed {
            Some(Speed::Slow) => &mut self.sum.slow,
            Some(_) => &mut self.sum.fast,
            None => return,
        };
        let lasted = nanos(ticks().saturating_sub(before.since));
        *sum = Nanos::from_ns(sum.ns().saturating_add(lasted.ns()));
    }

    /// Ends what is in force for a slot.
    fn end(&mut self, slot: usize) {
        if let Some(in_force) = self.slots.remove(&slot)
            && in_force.speed.is_some()
        {
            self.count(&in_force);
            (self.ask)(&in_force.found, None);
        }
    }

    /// Ends the requests of threads that have ended, or execute another program, without a word,
    /// and frees the slots of those that have ended.
    fn look_for_ended(&mut self) {
        // The threads of a process have the same mappings, so these are read once.
        let mut is_mapped = BTreeMap::new();
        let mut is_gone = |one: &InForce| {
            let Found { process, thread, .. } = one.found;
            let is_there = board::started_at(process, thread) == Some(one.started_at);
            let mut has_board = || {
                let read = || self.requests.is_mapped_by(process, thread);
                *is_mapped.entry(process).or_insert_with(read)
            };
            !is_there || one.speed.is_some() && !has_board()
        };
        let gone = self.slots.iter().filter(|(_, one)| is_gone(one));
        let gone: Vec<(usize, Found)> = gone.map(|(slot, one)| (*slot, one.found)).collect();
        for (slot, found) in gone {
            self.end(slot);
            self.requests.free(&found);
        }
    }

    /// Moves the requests of threads that have moved: those for cores, which the kernel leaves.
    fn follow(&mut self) {
        if self.sum.back_end == "uclamp" {
            return;
        }
        let moved = |(slot, one): (&usize, &InForce)| {
            let Found { process, thread, cpu, .. } = one.found;
            one.speed?;
            let now = process::cpu(&Root::live(), (process, thread))?;
            // Of a thread that sleeps, it is the last one, where it may not be any more.
            let may_be_there = || affinity::allowed_to(thread).is_ok_and(|all| all.contains(&now));
            (now.index() != cpu && may_be_there()).then_some((*slot, now.index()))
        };
        let moved: Vec<(usize, u32)> = self.slots.iter().filter_map(moved).collect();
        for (slot, cpu) in moved {
            let Some(mut one) = self.slots.remove(&slot) else { continue };
            one.found.cpu = cpu;
            // The first one may fail for the core that it leaves; that is left then.
            let is_taken = (0..2).any(|_| self.asked(&one.found) == Decision::Requested);
            if !is_taken {
                self.count(&one);
                one.speed = None;
            }
            self.slots.insert(slot, one);
        }
    }
}

/// Whether it is no trial of this process.
fn is_of_program(found: &Found) -> bool {
    found.process != std::process::id()
}

fn is_of_same(one: &Found, other: &Found) -> bool {
    (one.process, one.thread) == (other.process, other.thread)
}

fn asked(found: &Found, speed: Option<Speed>) -> Decision {
    request_for(found.thread, CpuId::new(found.cpu), speed.map(Request::from))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    static ASKED: Mutex<Vec<Option<Speed>>> = Mutex::new(Vec::new());

    /// Refuses fast clocks.
    fn refused(_: &Found, speed: Option<Speed>) -> Decision {
        ASKED.lock().unwrap().push(speed);
        if speed == Some(Speed::Turbo) { Decision::Unavailable } else { Decision::Requested }
    }

    /// The only test of this process that has a board: there is one for all of a process's life.
    #[test]
    fn what_is_refused_is_withdrawn_and_a_trial_that_times_out_leaves_no_request() {
        let requests = Arc::new(Requests::new(AtSite::One).unwrap());
        assert_eq!(trial(&requests, 0), None);
        assert_eq!(requests.all().count(), 0);
        let mut desk = Desk::new(Arc::clone(&requests), Arc::default(), refused);
        let asked = || std::mem::take(&mut *ASKED.lock().unwrap());
        std::thread::scope(|scope| {
            let thread = || {
                let own = affinity::allowed().unwrap()[0];
                let _pinned = affinity::pin(&Root::live(), own).unwrap();
                for speed in [Some(Speed::Slow), Some(Speed::Turbo), None] {
                    let _ = requests::timed(speed, 0);
                    desk.carry_out(&AtomicBool::new(false));
                }
                assert_eq!(asked(), [Some(Speed::Slow), Some(Speed::Turbo), None]);
                let _ = requests::timed(Some(Speed::Slow), 0);
                desk.carry_out(&AtomicBool::new(false));
                desk.look_for_ended();
                desk.follow();
                assert_eq!(asked(), [Some(Speed::Slow)], "it is still there");
                // As if it had made the request elsewhere.
                desk.slots.values_mut().for_each(|one| one.found.cpu = u32::MAX);
                desk.follow();
                desk.follow();
                assert_eq!(asked(), [Some(Speed::Slow)], "it is moved once");
                assert!(desk.slots.values().all(|one| one.found.cpu == own.index()));
                // A thread of this number that started at another time.
                desk.slots.values_mut().for_each(|one| one.started_at += 1);
                desk.look_for_ended();
                assert_eq!((asked(), requests.all().count()), (vec![None], 0));
                assert_eq!(requests::timed(Some(Speed::Slow), 0), None, "it has no slot now");
            };
            scope.spawn(thread).join().unwrap();
        });
        desk.carry_out(&AtomicBool::new(false));
        assert!(asked().is_empty() && desk.slots.is_empty());
    }
}
