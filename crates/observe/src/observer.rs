//! Follows hooked processes from outside: reads their ledgers, and tells their threads how many
//! calls to time.
//!
//! Processes may write anything into their ledgers, remove them, or make thousands. So nothing here
//! fails: what cannot be read is noted in [`Observed::unreadable`].

mod followed;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dimmer_hook::{Ledger, Names, ticks};
use dimmer_host::root::Root;
use dimmer_processor::class::InstructionClass;
use rustix::process::{Resource, getrlimit};

use crate::place::{NoPlace, Place, places, remove_left_behind};
use crate::seen::{FunctionPlace, MOST_FUNCTIONS, Observed};
use crate::tally::Tally;
use followed::{Followed, Rate, Real};

/// How often [`Observer::look`] has to be called, so that rings of records do not fill up.
pub const INTERVAL: Duration = Duration::from_millis(20);

/// How long calls go on to be moved without a look: an observer that is killed decides nothing any
/// more. A guess: a machine may be so busy that it is not run for many intervals.
const HOLDS: Duration = Duration::from_secs(1);

/// Memory that the ledgers of a run take before no more is reserved for them (bytes): those of some
/// 30,000 short processes in which nothing is hooked, or 12,000 threads, at once.
const MOST_MEMORY: u64 = 256 << 20;

/// Files that this process may have open besides ledgers.
const OTHER_FILES: u64 = 128;

/// Follows the processes that have its environment.
#[derive(Debug)]
pub struct Observer {
    place: Place,
    begun: (Instant, u64),
    ledgers: BTreeMap<PathBuf, Followed>,
    /// What was seen of processes whose ledgers were given back.
    ended: Observed,
    /// How many processes have no ledger, by reason.
    without: BTreeMap<String, usize>,
    /// The functions whose calls are to be moved.
    moved: BTreeSet<FunctionPlace>,
    /// How many hardware threads they go to.
    employed: usize,
    /// Functions of threads that there is room for.
    room: usize,
    /// Whether ledgers may not grow.
    is_limited: bool,
}

impl Observer {
    /// Makes a place for ledgers, and removes those that killed runs have left.
    ///
    /// # Errors
    /// If there is no place in memory that can be written to. The program can run all the same,
    /// unobserved.
    pub fn new() -> Result<Self, NoPlace> {
        let places = places();
        remove_left_behind(&Root::live(), &places);
        Ok(Self {
            place: Place::new(&places)?,
            begun: (Instant::now(), ticks()),
            ledgers: BTreeMap::new(),
            ended: Observed::default(),
            without: BTreeMap::new(),
            moved: BTreeSet::new(),
            employed: 0,
            room: MOST_FUNCTIONS,
            is_limited: false,
        })
    }

    /// What a program's environment must hold, besides the library to preload, so that its
    /// functions with instructions of these classes are hooked. What they find out about files is
    /// kept in `plans`, if that is given: a directory for these classes alone.
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

    /// The directory of this run, which is removed with it; by later runs if this one is killed.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.place.path()
    }

    /// Reads what is new in the ledgers; takes some microseconds for each thread. A ledger that no
    /// process has any more is given back: only the sums of it stay.
    pub fn look(&mut self) {
        self.follow_new();
        let rate = self.rate();
        let until = ticks().saturating_add(rate.ticks_in(HOLDS));
        let (mut over, mut real) = (Vec::new(), Real::default());
        for (path, followed) in &mut self.ledgers {
            followed.order(self.employed, until, &self.moved, &mut real);
            let seen = followed.look(rate, &mut self.room);
            let is_abandoned = seen == Some(false) && followed.is_abandoned();
            if seen.is_none() || is_abandoned {
                over.push(path.clone());
            }
        }
        for path in over {
            let Some(mut followed) = self.ledgers.remove(&path) else { continue };
            // What came between the look and the end.
            followed.look(rate, &mut self.room);
            followed.fold(&mut self.ended, rate, &mut self.room, &mut real);
            let _ = std::fs::remove_file(&path);
        }
        self.limit();
    }

    /// What all threads did so far with each function, as of the last look.
    #[must_use]
    pub fn so_far(&self) -> BTreeMap<FunctionPlace, Tally> {
        let (mut all, mut real) = (self.ended.functions(), Real::default());
        for followed in self.ledgers.values() {
            followed.add_to(&mut all, &mut real);
        }
        all
    }

    /// The processes that have called a hooked function and have not ended, each with its ledger:
    /// by the numbers that they have written there, which are those of their own PID namespace, or
    /// none of theirs at all.
    pub fn processes(&self) -> impl Iterator<Item = (u32, &Path)> {
        let of = |followed: &Followed| followed.processes();
        self.ledgers.iter().flat_map(move |(path, followed)| {
            of(followed).into_iter().map(move |process| (process, path.as_path()))
        })
    }

    /// Has calls that move go to so many of the hardware threads of `DIMMER_CORES` from now on, the
    /// first of them; none at the begin.
    pub fn employ(&mut self, threads: usize) {
        self.employed = threads;
        self.order();
    }

    /// Has calls of this function moved from now on, or no longer, in processes that run and in
    /// those that start later, if they were started with [`dimmer_hook::MOVE`].
    pub fn decide(&mut self, place: FunctionPlace, is_moved: bool) {
        if is_moved {
            self.moved.insert(place);
        } else {
            self.moved.remove(&place);
        }
        self.ledgers.values_mut().for_each(Followed::decide_again);
        self.order();
    }

    fn order(&mut self) {
        let until = ticks().saturating_add(self.rate().ticks_in(HOLDS));
        let mut real = Real::default();
        for followed in self.ledgers.values_mut() {
            followed.order(self.employed, until, &self.moved, &mut real);
        }
    }

    /// Reads the last of it, and tells what was seen. To be called when the processes have ended,
    /// or are no longer of interest.
    #[must_use]
    pub fn finish(mut self) -> Observed {
        self.look();
        let mut before = usize::MAX;
        // All that could not be open at once.
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
        self.ended
    }

    /// What is in the directory; a program may have removed it.
    fn names(&self) -> Option<Names> {
        Ledger::names_in(self.place.path()).ok()
    }

    /// Opens ledgers that were made since the last time, and counts processes without.
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
            // One that is just being made has no head yet.
            if !self.ledgers.contains_key(&path)
                && let Some(followed) = Ledger::open(&path).ok().and_then(Followed::new)
            {
                self.ledgers.insert(path, followed);
            }
        }
    }

    /// Has processes reserve no more memory while that of all is too much.
    fn limit(&mut self) {
        let memory = self.ledgers.values().map(Followed::memory).fold(0, u64::saturating_add);
        let is_limited = memory >= MOST_MEMORY;
        if is_limited != self.is_limited && Ledger::limit_run(self.place.path(), is_limited).is_ok()
        {
            self.is_limited = is_limited;
        }
    }

    /// The time-stamp counter's step, by the time since this observer began; at its first look,
    /// some microseconds are too little for more than two digits.
    fn rate(&self) -> Rate {
        Rate { passed: self.begun.0.elapsed(), ticks: ticks().saturating_sub(self.begun.1).max(1) }
    }
}
