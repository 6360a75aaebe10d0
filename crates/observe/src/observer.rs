//! Follows hooked processes from outside: reads their ledgers, and tells their threads how many calls to
//! time.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dimmer_hook::{Ledger, OWN_FILE, Object, SiteEntry, ticks};
use dimmer_processor::class::InstructionClass;
use tempfile::TempDir;

use crate::tally::{Clocks, Tally, ThreadTally};

/// How often [`Observer::look`] has to be called, so that rings of records do not fill up.
pub const INTERVAL: Duration = Duration::from_millis(20);

/// How long calls go on to be moved without a look: an observer that is killed decides nothing any more. A guess: a machine may be so busy that it is not
/// run for many intervals.
const HOLDS: Duration = Duration::from_secs(1);

/// Where directories that live in memory are.
const SHARED_MEMORY: &str = "/dev/shm";

/// What was seen of the processes.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// For how long.
    pub lasted: Duration,
    /// Processes that made a ledger.
    pub processes: usize,
    /// Files that were looked through for functions, and what went wrong with them.
    pub files: BTreeMap<PathBuf, String>,
    /// Entries that are hooked, whether or not anybody came there: their addresses in each file.
    pub hooked: BTreeMap<PathBuf, BTreeSet<u64>>,
    /// What each thread did, in the order of their first hooked calls.
    pub threads: Vec<ThreadSeen>,
    /// Threads whose calls were not seen, because there were too many.
    pub threads_left_out: usize,
    /// Ledgers that could not be read, and why.
    pub unreadable: Vec<String>,
}

/// An entry of a function of a file: its begin, or a place inside that other functions lead to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FunctionPlace {
    /// The file.
    pub file: PathBuf,
    /// The address in it.
    pub address: u64,
}

/// What a thread did.
#[derive(Clone, Debug)]
pub struct ThreadSeen {
    /// Its process.
    pub process: u32,
    /// Its number.
    pub thread: u32,
    /// Each function that it called.
    pub functions: BTreeMap<FunctionPlace, Tally>,
    /// The clock before and after some of its calls.
    pub clocks: Clocks,
    /// What the hooks took of its time, by what they take of a call in this process.
    pub hooks: Duration,
    /// How many of its calls were moved to another core.
    pub moved: u64,
}

impl Observed {
    /// Makes the entries of one function one: `begin` tells of an entry, by file and address, where its
    /// function begins.
    pub fn gather(&mut self, begin: impl Fn(&Path, u64) -> u64) {
        for (file, entries) in &mut self.hooked {
            *entries = entries.iter().map(|entry| begin(file, *entry)).collect();
        }
        for thread in &mut self.threads {
            let mut gathered: BTreeMap<FunctionPlace, Tally> = BTreeMap::new();
            for (entry, tally) in std::mem::take(&mut thread.functions) {
                let address = begin(&entry.file, entry.address);
                gathered.entry(FunctionPlace { address, ..entry }).or_default().merge(&tally);
            }
            thread.functions = gathered;
        }
    }

    /// What all threads did with each function.
    #[must_use]
    pub fn functions(&self) -> BTreeMap<FunctionPlace, Tally> {
        let mut all: BTreeMap<FunctionPlace, Tally> = BTreeMap::new();
        for (place, tally) in self.threads.iter().flat_map(|thread| &thread.functions) {
            all.entry(place.clone()).or_default().merge(tally);
        }
        all
    }
}

/// Follows the processes that have its environment.
#[derive(Debug)]
pub struct Observer {
    directory: TempDir,
    begun: (Instant, u64),
    ledgers: BTreeMap<PathBuf, Result<Followed, String>>,
    /// The functions whose calls are to be moved.
    moved: BTreeSet<FunctionPlace>,
    /// How many hardware threads they go to.
    employed: usize,
}

/// A ledger, and what was read there.
#[derive(Debug)]
struct Followed {
    ledger: Ledger,
    threads: Vec<FollowedThread>,
    /// For how many of its functions it is decided whether their calls are moved.
    decided: usize,
}

#[derive(Debug)]
struct FollowedThread {
    tally: ThreadTally,
    /// How often it called each function, by number.
    counts: Vec<Count>,
    /// When its calls were counted last, and how many there were.
    counted: (Instant, u64),
}

/// Calls by a counter of 32 bits that is looked at before it has come round.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    calls: u64,
    seen: u32,
}

impl Count {
    /// All calls so far, the counter showing this now.
    fn look(&mut self, shown: u32) -> u64 {
        self.calls = self.calls.saturating_add(u64::from(shown.wrapping_sub(self.seen)));
        self.seen = shown;
        self.calls
    }
}

impl Observer {
    /// Makes a place for ledgers.
    ///
    /// # Errors
    /// If there can be no directory for temporary files.
    pub fn new() -> io::Result<Self> {
        let in_memory = tempfile::Builder::new().prefix("dimmer-").tempdir_in(SHARED_MEMORY);
        let directory = match in_memory {
            Ok(directory) => directory,
            Err(_) => tempfile::Builder::new().prefix("dimmer-").tempdir()?,
        };
        Ok(Self {
            directory,
            begun: (Instant::now(), ticks()),
            ledgers: BTreeMap::new(),
            moved: BTreeSet::new(),
            employed: 0,
        })
    }

    /// What a program's environment must hold, besides the library to preload, so that its functions with
    /// instructions of these classes are hooked. What they find out about files is kept in `plans`, if that is
    /// given: a directory for these classes alone.
    #[must_use]
    pub fn environment(
        &self,
        classes: &[InstructionClass],
        plans: Option<&Path>,
    ) -> Vec<(&'static str, OsString)> {
        let classes: Vec<&str> = classes.iter().map(|class| class.name()).collect();
        vec![
            (dimmer_hook::DIRECTORY, self.directory.path().as_os_str().to_owned()),
            (dimmer_hook::CLASSES, OsString::from(classes.join(","))),
            (dimmer_hook::PLANS, plans.unwrap_or(self.directory.path()).as_os_str().to_owned()),
        ]
    }

    /// Reads what is new in the ledgers; takes some microseconds for each thread.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn look(&mut self) -> io::Result<()> {
        let ns_per_tick = self.ns_per_tick();
        for path in self.new_ledgers()? {
            // One that is just being made has no head yet.
            if let Ok(ledger) = Ledger::open(&path) {
                ledger.employ(self.employed);
                let followed = Followed { ledger, threads: Vec::new(), decided: 0 };
                self.ledgers.insert(path, Ok(followed));
            }
        }
        let until = ticks().saturating_add(self.ticks_in(HOLDS));
        for followed in self.ledgers.values_mut().flatten() {
            followed.ledger.hold_until(until);
            followed.look(ns_per_tick);
            followed.decide(&self.moved);
        }
        Ok(())
    }

    /// What all threads did so far with each function, as of the last look.
    #[must_use]
    pub fn so_far(&self) -> BTreeMap<FunctionPlace, Tally> {
        let mut all: BTreeMap<FunctionPlace, Tally> = BTreeMap::new();
        for followed in self.ledgers.values().flatten() {
            let places = followed.places();
            for (site, tally) in followed.threads.iter().flat_map(|thread| &thread.tally.functions)
            {
                if let Some(Some(place)) = places.get(*site) {
                    all.entry(place.clone()).or_default().merge(tally);
                }
            }
        }
        all
    }

    /// The processes that have called a hooked function, also those that have ended, each with its ledger: by the numbers that they have written
    /// there, which are those of their own PID namespace, or none of theirs at all.
    pub fn processes(&self) -> impl Iterator<Item = (u32, &Path)> {
        let of = |followed: &Followed| -> BTreeSet<u32> {
            followed.ledger.threads().map(|thread| thread.process()).collect()
        };
        self.ledgers.values().flatten().flat_map(move |followed| {
            of(followed).into_iter().map(|process| (process, followed.ledger.path()))
        })
    }

    /// Has calls that move go to so many of the hardware threads of `DIMMER_CORES` from now on, the first of them; none at the begin.
    pub fn employ(&mut self, threads: usize) {
        self.employed = threads;
        for followed in self.ledgers.values_mut().flatten() {
            followed.ledger.employ(threads);
        }
    }

    /// Has calls of this function moved from now on, or no longer, in processes that run and in those that start later, if they were
    /// started with [`dimmer_hook::MOVE`].
    pub fn decide(&mut self, place: FunctionPlace, is_moved: bool) {
        if is_moved {
            self.moved.insert(place);
        } else {
            self.moved.remove(&place);
        }
        for followed in self.ledgers.values_mut().flatten() {
            followed.decided = 0;
            followed.decide(&self.moved);
        }
    }

    /// Reads the last of it, and tells what was seen. To be called when the processes have ended, or
    /// are no longer of interest.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn finish(mut self) -> io::Result<Observed> {
        self.look()?;
        for path in self.new_ledgers()? {
            if let Err(error) = Ledger::open(&path) {
                self.ledgers.insert(path, Err(error.to_string()));
            }
        }
        let ns_per_tick = self.ns_per_tick();
        let mut observed = Observed { lasted: self.begun.0.elapsed(), ..Observed::default() };
        for followed in self.ledgers.into_values() {
            match followed {
                Ok(followed) => followed.into_observed(&mut observed, ns_per_tick),
                Err(error) => observed.unreadable.push(error),
            }
        }
        Ok(observed)
    }

    /// Ledgers that were not opened yet.
    fn new_ledgers(&self) -> io::Result<Vec<PathBuf>> {
        let mut all = Ledger::all_in(self.directory.path())?;
        all.retain(|path| !self.ledgers.contains_key(path));
        Ok(all)
    }

    /// How many ticks of the time-stamp counter there are in a time, as [`Self::ns_per_tick`] tells.
    fn ticks_in(&self, span: Duration) -> u64 {
        let (ns, ticks) = (self.begun.0.elapsed().as_nanos(), ticks().saturating_sub(self.begun.1));
        u64::try_from(u128::from(ticks) * span.as_nanos() / ns.max(1)).unwrap_or(u64::MAX)
    }

    /// The time-stamp counter's step, by the time since this observer began; at its first look, some
    /// microseconds are too little for more than two digits.
    fn ns_per_tick(&self) -> f64 {
        let ticks = ticks().saturating_sub(self.begun.1).max(1);
        self.begun.0.elapsed().as_nanos() as f64 / ticks as f64
    }
}

impl Followed {
    /// The hooked files, by number, behind all links: the loader calls one file by several names.
    fn objects(&self) -> Vec<Object> {
        let real = |object: Object| Object {
            path: object.path.canonicalize().unwrap_or_else(|_| object.path.clone()),
            ..object
        };
        self.ledger.objects().into_iter().map(real).collect()
    }

    /// Which function each site is, by its number; `None` for this library's own.
    fn places(&self) -> Vec<Option<FunctionPlace>> {
        let objects = self.objects();
        let place = |site: SiteEntry| {
            let object = objects.get(site.object).filter(is_foreign)?;
            Some(FunctionPlace { file: object.path.clone(), address: site.address })
        };
        self.ledger.sites().into_iter().map(place).collect()
    }

    /// Writes down for functions that are new here whether their calls are moved.
    fn decide(&mut self, moved: &BTreeSet<FunctionPlace>) {
        if self.decided == self.ledger.sites().len() {
            return;
        }
        let places = self.places();
        for (site, place) in places.iter().enumerate().skip(self.decided) {
            self.ledger.decide(site, place.as_ref().is_some_and(|place| moved.contains(place)));
        }
        self.decided = places.len();
    }

    fn look(&mut self, ns_per_tick: f64) {
        let sites = self.ledger.sites().len();
        let overhead = self.ledger.overhead();
        let now = Instant::now();
        for (index, thread) in self.ledger.threads().enumerate() {
            if index == self.threads.len() {
                let counted = (now, 0);
                let tally = ThreadTally::default();
                self.threads.push(FollowedThread { tally, counts: Vec::new(), counted });
            }
            let own = &mut self.threads[index];
            thread.drain(|call| {
                if call.site < sites && call.ended_in < sites {
                    own.tally.add(call, overhead, ns_per_tick);
                }
            });
            own.counts.resize(sites, Count::default());
            for (site, count) in own.counts.iter_mut().enumerate() {
                own.tally.count(site, count.look(thread.calls(site)));
            }
            let calls = own.tally.calls();
            let (then, before) = own.counted;
            let passed = now.duration_since(then).as_secs_f64();
            if passed >= INTERVAL.as_secs_f64() / 2.0 {
                let rate = calls.saturating_sub(before) as f64 / passed;
                thread.set_period(dimmer_hook::period(rate));
                own.counted = (now, calls);
            }
        }
    }

    fn into_observed(self, observed: &mut Observed, ns_per_tick: f64) {
        let objects = self.objects();
        let overhead = self.ledger.overhead();
        let (sites, places) = (self.ledger.sites(), self.places());
        observed.processes += 1;
        for object in objects.iter().filter(is_foreign) {
            observed.files.entry(object.path.clone()).or_insert_with(|| object.problem.clone());
        }
        for (number, object) in objects.iter().enumerate().filter(|(_, object)| is_foreign(object))
        {
            let of_it = sites.iter().filter(|site| site.object == number);
            let known = observed.hooked.entry(object.path.clone()).or_default();
            known.extend(of_it.map(|site| site.address));
        }
        for (thread, seen) in self.ledger.threads().zip(self.threads) {
            let mut functions: BTreeMap<FunctionPlace, Tally> = BTreeMap::new();
            for (site, tally) in seen.tally.functions {
                // A file that was loaded several times has sites each time.
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
            let hooks_ns = overhead.of(calls, timed) * ns_per_tick;
            observed.threads.push(ThreadSeen {
                process: thread.process(),
                thread: thread.tid(),
                functions,
                clocks: seen.tally.clocks,
                hooks: Duration::try_from_secs_f64(hooks_ns * 1e-9).unwrap_or_default(),
                moved: thread.moved(),
            });
        }
        observed.threads_left_out += self.ledger.threads_left_out();
    }
}

/// Whether it is a file of the program's.
fn is_foreign(object: &&Object) -> bool {
    object.path.as_os_str() != OWN_FILE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_may_come_round() {
        let mut count = Count::default();
        assert_eq!(count.look(u32::MAX), u64::from(u32::MAX));
        assert_eq!(count.look(4), u64::from(u32::MAX) + 5);
    }
}
