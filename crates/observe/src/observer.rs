//! Follows hooked processes from outside: reads their ledgers, and tells their threads how many calls to
//! time.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dimmer_hook::{Ledger, ticks};
use dimmer_processor::class::InstructionClass;
use tempfile::TempDir;

use crate::tally::{Tally, ThreadTally};

/// Pairs of calls that are timed in a second of a thread's life. A timed call takes some 60 ns more, so
/// these take a quarter of a percent.
const PAIRS_PER_SECOND: f64 = 20_000.0;

/// How often [`Observer::look`] has to be called, so that rings of records do not fill up.
pub const INTERVAL: Duration = Duration::from_millis(20);

/// Where directories that live in memory are.
const SHARED_MEMORY: &str = "/dev/shm";

/// The variable by which the loader is told of libraries to load first, see ld.so(8).
const PRELOAD: &str = "LD_PRELOAD";

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
    /// Calls that were not timed in their turn.
    pub dropped: u64,
}

impl Observed {
    /// What all threads did with each function. A function may have several entries: `begin` tells of one of
    /// them, by file and address, where its function begins.
    #[must_use]
    pub fn functions(
        &self,
        begin: impl Fn(&Path, u64) -> u64,
    ) -> BTreeMap<FunctionPlace, FunctionSeen> {
        let mut all: BTreeMap<FunctionPlace, FunctionSeen> = BTreeMap::new();
        for thread in &self.threads {
            let mut own = BTreeSet::new();
            for (entry, tally) in &thread.functions {
                let address = begin(&entry.file, entry.address);
                let place = FunctionPlace { file: entry.file.clone(), address };
                let seen = all.entry(place.clone()).or_default();
                seen.tally.merge(tally);
                seen.threads += usize::from(own.insert(place));
            }
        }
        all
    }
}

/// What all threads did with a function.
#[derive(Clone, Debug, Default)]
pub struct FunctionSeen {
    /// Its calls, by whichever entry.
    pub tally: Tally,
    /// Threads that called it.
    pub threads: usize,
}

/// Follows the processes that have its environment.
#[derive(Debug)]
pub struct Observer {
    directory: TempDir,
    begun: (Instant, u64),
    ledgers: BTreeMap<PathBuf, Result<Followed, String>>,
}

/// A ledger, and what was read there.
#[derive(Debug)]
struct Followed {
    ledger: Ledger,
    threads: Vec<FollowedThread>,
}

#[derive(Debug)]
struct FollowedThread {
    tally: ThreadTally,
    /// When its calls were counted last, and how many there were.
    counted: (Instant, u64),
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
        Ok(Self { directory, begun: (Instant::now(), ticks()), ledgers: BTreeMap::new() })
    }

    /// What a program's environment must hold so that `library`, the one to preload, hooks its functions
    /// with instructions of these classes.
    #[must_use]
    pub fn environment(
        &self,
        library: &Path,
        classes: &[InstructionClass],
    ) -> Vec<(&'static str, OsString)> {
        let mut preload = library.as_os_str().to_owned();
        if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let classes: Vec<&str> = classes.iter().map(|class| class.name()).collect();
        vec![
            (PRELOAD, preload),
            (dimmer_hook::DIRECTORY, self.directory.path().as_os_str().to_owned()),
            (dimmer_hook::CLASSES, OsString::from(classes.join(","))),
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
                self.ledgers.insert(path, Ok(Followed { ledger, threads: Vec::new() }));
            }
        }
        for followed in self.ledgers.values_mut().flatten() {
            followed.look(ns_per_tick);
        }
        Ok(())
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
        let mut observed = Observed { lasted: self.begun.0.elapsed(), ..Observed::default() };
        for followed in self.ledgers.into_values() {
            match followed {
                Ok(followed) => followed.into_observed(&mut observed),
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

    /// The time-stamp counter's step, by the time since this observer began; at its first look, some
    /// microseconds are too little for more than two digits.
    fn ns_per_tick(&self) -> f64 {
        let ticks = ticks().saturating_sub(self.begun.1).max(1);
        self.begun.0.elapsed().as_nanos() as f64 / ticks as f64
    }
}

impl Followed {
    fn look(&mut self, ns_per_tick: f64) {
        let sites = self.ledger.sites().len();
        let now = Instant::now();
        for (index, thread) in self.ledger.threads().enumerate() {
            if index == self.threads.len() {
                let counted = (now, 0);
                self.threads.push(FollowedThread { tally: ThreadTally::default(), counted });
            }
            let own = &mut self.threads[index];
            thread.drain(|call| {
                if call.site < sites {
                    own.tally.add(call, ns_per_tick);
                }
            });
            (0..sites).for_each(|site| own.tally.count(site, thread.calls(site)));
            let calls = own.tally.calls();
            let (then, before) = own.counted;
            let passed = now.duration_since(then).as_secs_f64();
            if passed >= INTERVAL.as_secs_f64() / 2.0 {
                let rate = calls.saturating_sub(before) as f64 / passed;
                thread.set_period(period(rate));
                own.counted = (now, calls);
            }
        }
    }

    fn into_observed(self, observed: &mut Observed) {
        let objects = self.ledger.objects();
        let sites = self.ledger.sites();
        observed.processes += 1;
        for object in &objects {
            observed.files.entry(object.path.clone()).or_insert_with(|| object.problem.clone());
        }
        let place = |site: usize| {
            let entry = sites.get(site)?;
            let file = objects.get(entry.object)?.path.clone();
            Some(FunctionPlace { file, address: entry.address })
        };
        for (number, object) in objects.iter().enumerate() {
            let of_it = sites.iter().filter(|site| site.object == number);
            let known = observed.hooked.entry(object.path.clone()).or_default();
            known.extend(of_it.map(|site| site.address));
        }
        for (thread, seen) in self.ledger.threads().zip(self.threads) {
            let mut functions: BTreeMap<FunctionPlace, Tally> = BTreeMap::new();
            for (site, tally) in seen.tally.functions {
                // A file that was loaded several times has sites each time.
                if let Some(place) = place(site) {
                    functions.entry(place).or_default().merge(&tally);
                }
            }
            observed.threads.push(ThreadSeen {
                process: thread.process(),
                thread: thread.tid(),
                functions,
                dropped: thread.dropped(),
            });
        }
        observed.threads_left_out += self.ledger.threads_left_out();
    }
}

/// How many calls pass from one timed pair to the next, at so many calls a second.
fn period(rate: f64) -> u32 {
    // Pairs overlap when all calls are timed, so up to twice as many calls as pairs are.
    if rate <= 2.0 * PAIRS_PER_SECOND {
        return 1;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
    let period = (rate / PAIRS_PER_SECOND).min(1e9) as u32;
    period
}
