//! Follows hooked processes from outside: reads their ledgers, and sets how many calls their
//! threads time.
//!
//! Processes may write anything into their ledgers, remove them, or make thousands of them. So
//! nothing here fails: what cannot be read is noted in [`Observed::unreadable`].

mod followed;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dimmer_hook::{Ledger, Names, PAIRS_PER_SECOND, PhaseCounts, ticks};
use dimmer_host::root::Root;
use dimmer_processor::class::InstructionClass;
use rustix::process::{Resource, getrlimit};

use crate::place::{NoPlace, Place, places, remove_left_behind};
use crate::seen::{Decided, FunctionPlace, MOST_FUNCTIONS, Observed};
use crate::tally::Tally;
use crate::trace::TRACE_INTERVAL;
use followed::{Chosen, Followed, Order, Rate, Real, Tracing};

/// Interval at which [`Observer::look`] must be called, so that rings of records do not fill up,
/// while programs are followed closely.
pub const INTERVAL: Duration = Duration::from_millis(20);

/// How many times more rarely programs are looked at, and their calls timed, that are followed
/// loosely: they are still timed 800 times a second and thread. A guess.
const LOOSER: u32 = 5;

/// Time for which a decision to move calls holds after a look. The decisions of a killed observer
/// lapse after it. A guess: on a busy machine the observer may not run for many intervals.
const HOLDS: Duration = Duration::from_secs(1);

/// Memory that the ledgers of a run may take (bytes). Beyond it no more is reserved for them. It is
/// enough for some 30,000 short processes in which nothing is hooked, or for 12,000 threads, at
/// once.
const MOST_MEMORY: u64 = 256 << 20;

/// Decisions that are kept of a run that is traced. Later ones are not in the trace.
const MOST_MOVES: usize = 1 << 16;

/// Files that this process may have open besides ledgers.
const OTHER_FILES: u64 = 128;

/// Follows the processes that run in its environment.
#[derive(Debug)]
pub struct Observer {
    place: Place,
    begun: (Instant, u64),
    ledgers: BTreeMap<PathBuf, Followed>,
    /// What was seen of processes whose ledgers have been removed.
    ended: Observed,
    /// The number of their calls.
    ended_calls: u64,
    /// Number of processes without a ledger, by reason.
    without: BTreeMap<String, usize>,
    /// What was decided about functions.
    chosen: Chosen,
    /// The number of hardware threads to which calls are moved.
    used_cores: usize,
    /// The set of CPUs that is wide now.
    wide_set: Option<usize>,
    /// Number of further functions of threads for which there is room.
    room: usize,
    /// Whether ledgers are currently forbidden to grow.
    is_limited: bool,
    is_loose: bool,
    tracing: Option<Tracing>,
    /// Decisions and used hardware threads, with their times (ticks), while it traces.
    moves: Vec<(u64, FunctionPlace, bool)>,
    used: Vec<(u64, usize)>,
}

impl Observer {
    /// Makes a place for ledgers, and removes those that killed runs have left.
    ///
    /// # Errors
    /// If no place in memory is writable. The program can still run, unobserved.
    pub fn new() -> Result<Self, NoPlace> {
        let places = places();
        remove_left_behind(&Root::live(), &places);
        Ok(Self {
            place: Place::new(&places)?,
            begun: (Instant::now(), ticks()),
            ledgers: BTreeMap::new(),
            ended: Observed::default(),
            ended_calls: 0,
            without: BTreeMap::new(),
            chosen: Chosen::default(),
            used_cores: 0,
            wide_set: None,
            room: MOST_FUNCTIONS,
            is_limited: false,
            is_loose: false,
            tracing: None,
            moves: Vec::new(),
            used: Vec::new(),
        })
    }

    /// Makes the observer trace all threads: their calls are all timed, which takes 25 to 69
    /// ns each. Calls of these functions start requests, and count as nothing else.
    pub fn trace(&mut self, requests: BTreeSet<FunctionPlace>) {
        self.tracing = Some(Tracing::new(requests));
    }

    /// Sets whether programs are followed loosely from now on, or closely, as at the start.
    /// Loosely, looks and timed calls are a fifth as many, so changes are noticed five times as
    /// slowly.
    pub fn follow_loosely(&mut self, is_loose: bool) {
        self.is_loose = is_loose;
    }

    /// The interval at which [`Self::look`] must be called from now on.
    #[must_use]
    pub fn interval(&self) -> Duration {
        match (&self.tracing, self.is_loose) {
            (Some(_), _) => TRACE_INTERVAL,
            (None, true) => INTERVAL * LOOSER,
            (None, false) => INTERVAL,
        }
    }

    fn pairs_per_second(&self) -> f64 {
        let looser = if self.is_loose { LOOSER } else { 1 };
        PAIRS_PER_SECOND / f64::from(looser)
    }

    /// The environment that a program needs, besides the library to preload, so that its functions
    /// with instructions of these classes are hooked. The hooks keep what they find out about files
    /// in the directory `plans`, if given; it must be for these classes alone.
    #[must_use]
    pub fn environment(
        &self,
        classes: &[InstructionClass],
        plans: Option<&Path>,
    ) -> Vec<(&'static str, OsString)> {
        let classes: Vec<&str> = classes.iter().map(|class| class.name()).collect();
        let directory = self.place.path();
        vec![
            (dimmer_hook::DIRECTORY, directory.as_os_str().to_owned()),
            (dimmer_hook::CLASSES, OsString::from(classes.join(","))),
            (dimmer_hook::PLANS, plans.unwrap_or(directory).as_os_str().to_owned()),
        ]
    }

    /// The directory of this run. It is removed with the observer, or by a later run if this one is
    /// killed.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.place.path()
    }

    /// Reads what is new in the ledgers; takes some microseconds for each thread. Removes a ledger
    /// that no process has mapped any more, and keeps only its sums.
    pub fn look(&mut self) {
        self.follow_new();
        let (rate, pairs) = (self.rate(), self.pairs_per_second());
        let (mut over, mut real) = (Vec::new(), Real::default());
        let order = self.current_order();
        for (path, followed) in &mut self.ledgers {
            followed.order(order, &self.chosen, &mut real);
            let seen = followed.look(rate, pairs, &mut self.room, self.tracing.as_mut());
            let is_abandoned = seen == Some(false) && followed.is_abandoned();
            if seen.is_none() || is_abandoned {
                over.push(path.clone());
            }
        }
        for path in over {
            let Some(mut followed) = self.ledgers.remove(&path) else { continue };
            // Reads what was written between the last look and the end.
            followed.look(rate, pairs, &mut self.room, self.tracing.as_mut());
            self.ended_calls = self.ended_calls.saturating_add(followed.calls_now());
            followed.fold(&mut self.ended, rate, &mut self.room, &mut real);
            let _ = std::fs::remove_file(&path);
        }
        self.limit();
    }

    /// Calls of all threads so far, by function, at the time of the last look.
    #[must_use]
    pub fn so_far(&self) -> BTreeMap<FunctionPlace, Tally> {
        let mut all = self.ended.functions();
        self.ledgers.values().for_each(|followed| followed.add_to(&mut all));
        all
    }

    /// The number of calls up to now of the processes of the last look, and of those that have
    /// ended. Takes less time than a look, as it takes in no timed call.
    #[must_use]
    pub fn calls_now(&self) -> u64 {
        let calls = self.ledgers.values().map(Followed::calls_now);
        calls.fold(self.ended_calls, u64::saturating_add)
    }

    /// The number of threads whose calls were not seen, of the processes of the last look.
    #[must_use]
    pub fn threads_left_out(&self) -> usize {
        self.ledgers.values().map(Followed::threads_left_out).fold(0, usize::saturating_add)
    }

    /// The wide phases of the threads of all processes that have not ended.
    #[must_use]
    pub fn phases(&self) -> PhaseCounts {
        let phases = self.ledgers.values().map(Followed::phases);
        phases.fold(PhaseCounts::default(), PhaseCounts::and)
    }

    /// The processes that have called a hooked function and have not ended, each with its ledger.
    /// The process numbers are those that the processes wrote there: numbers in their own PID
    /// namespace, or arbitrary ones.
    pub fn processes(&self) -> impl Iterator<Item = (u32, &Path)> {
        let of = |followed: &Followed| followed.processes();
        self.ledgers.iter().flat_map(move |(path, followed)| {
            of(followed).into_iter().map(move |process| (process, path.as_path()))
        })
    }

    /// Sets the number of hardware threads of `DIMMER_CORES`, counted from the first, to which
    /// calls are moved from now on; 0 at the start.
    pub fn use_cores(&mut self, threads: usize) {
        if self.tracing.is_some() && self.used_cores != threads && self.used.len() < MOST_MOVES {
            self.used.push((ticks(), threads));
        }
        self.used_cores = threads;
        self.order();
    }

    /// Makes the set of this number, of those that the program was started with, wide from now on;
    /// `None`, as at the start: no CPU is.
    pub fn widen(&mut self, set: Option<usize>) {
        if self.wide_set != set {
            self.wide_set = set;
            self.order();
        }
    }

    /// Sets whether calls of these functions are moved from now on. It applies to running processes
    /// and to those that start later, if they were started with [`dimmer_hook::MOVE`].
    pub fn decide(&mut self, changes: impl IntoIterator<Item = (FunctionPlace, bool)>) {
        for (place, is_moved) in changes {
            if self.tracing.is_some() && self.moves.len() < MOST_MOVES {
                self.moves.push((ticks(), place.clone(), is_moved));
            }
            if is_moved {
                self.chosen.moved.insert(place);
            } else {
                self.chosen.moved.remove(&place);
            }
        }
        self.decide_again();
    }

    /// Has the hooks of these functions taken out, in running processes and in those that start
    /// later, if they were started with [`dimmer_hook::MOVE`]. Their later calls are not seen. A
    /// code page goes as a whole: hooks stay in one that has others, and wherever the process
    /// cannot tell that the page is as in its file.
    pub fn unhook(&mut self, places: impl IntoIterator<Item = FunctionPlace>) {
        self.chosen.unhooked.extend(places);
        self.decide_again();
    }

    fn decide_again(&mut self) {
        self.ledgers.values_mut().for_each(Followed::decide_again);
        self.order();
    }

    fn current_order(&self) -> Order {
        let until = ticks().saturating_add(self.rate().ticks_in(HOLDS));
        Order { used_cores: self.used_cores, wide_set: self.wide_set, until }
    }

    fn order(&mut self) {
        let order = self.current_order();
        let mut real = Real::default();
        for followed in self.ledgers.values_mut() {
            followed.order(order, &self.chosen, &mut real);
        }
    }

    /// Reads the rest, and returns what was seen. Call it when the processes have ended or are no
    /// longer of interest.
    #[must_use]
    pub fn finish(mut self) -> Observed {
        self.look();
        let mut before = usize::MAX;
        // Reads the ledgers that could not be open at the same time as the others.
        loop {
            let (rate, mut real) = (self.rate(), Real::default());
            for (path, followed) in std::mem::take(&mut self.ledgers) {
                followed.fold(&mut self.ended, rate, &mut self.room, &mut real);
                let _ = std::fs::remove_file(path);
            }
            let left = self.names().map_or(0, |names| names.ledgers.len());
            if left == 0 || left >= before {
                break;
            }
            before = left;
            self.look();
        }
        for path in self.names().unwrap_or_default().ledgers {
            if let Err(error) = Ledger::open(&path) {
                self.ended.complain(error.to_string());
            }
        }
        for (why, number) in std::mem::take(&mut self.without) {
            let of = if number == 1 { "1 process" } else { &format!("{number} processes") };
            self.ended.complain(format!("Nothing was seen of {of}: {why}."));
        }
        if self.room == 0 {
            let what =
                format!("Not all is told: functions of threads were more than {MOST_FUNCTIONS}.");
            self.ended.complain(what);
        }
        self.ended.lasted = self.begun.0.elapsed();
        let rate = self.rate();
        let at = |ticks: u64| ticks.saturating_sub(rate.begun) as f64 * rate.ns_per_tick();
        let moves = std::mem::take(&mut self.moves).into_iter();
        let decided = |(ticks, place, is_moved)| Decided { at_ns: at(ticks), place, is_moved };
        self.ended.moves = moves.map(decided).collect();
        self.ended.used_cpus = self.used.iter().map(|(ticks, used)| (at(*ticks), *used)).collect();
        self.ended
    }

    /// Names of the files in the directory, which a program may have removed.
    fn names(&self) -> Option<Names> {
        Ledger::names_in(self.place.path()).ok()
    }

    /// Opens ledgers that were made since the last time, and counts processes without a ledger.
    fn follow_new(&mut self) {
        let Some(names) = self.names() else {
            self.ended.complain(format!("{} was removed.", self.place.path().display()));
            return;
        };
        for (path, why) in names.reasons {
            *self.without.entry(why.to_string()).or_default() += 1;
            let _ = std::fs::remove_file(path);
        }
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX);
        for path in names.ledgers {
            if self.ledgers.len() >= most {
                break;
            }
            // A ledger that is just being made has no head yet.
            if !self.ledgers.contains_key(&path)
                && let Some(followed) = Ledger::open(&path).ok().and_then(Followed::new)
            {
                self.ledgers.insert(path, followed);
            }
        }
    }

    /// Forbids processes to reserve more memory while all ledgers together take too much.
    fn limit(&mut self) {
        let memory = self.ledgers.values().map(Followed::memory).fold(0, u64::saturating_add);
        let is_limited = memory >= MOST_MEMORY;
        if is_limited != self.is_limited && Ledger::limit_run(self.place.path(), is_limited).is_ok()
        {
            self.is_limited = is_limited;
        }
    }

    /// Rate of the time-stamp counter, measured since the observer started. At the first look only
    /// some microseconds have passed, so it has only about two correct digits.
    fn rate(&self) -> Rate {
        let begun = self.begun.1;
        let ticks = ticks().saturating_sub(begun).max(1);
        Rate { passed: self.begun.0.elapsed(), ticks, begun }
    }
}
