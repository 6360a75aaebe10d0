//! What was seen of a run's processes. Its size is bounded, whatever processes write into their
//! ledgers and however many processes there are.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dimmer_hook::PhaseCounts;

use crate::tally::{Clocks, Tally};
use crate::trace::ThreadTrace;

/// Maximum number of threads kept apart. All others are summed up in one entry.
const MOST_THREADS: usize = 1024;

/// Maximum number of functions of threads kept apart, and of functions of a sum: more than any
/// program was seen to have.
pub(crate) const MOST_FUNCTIONS: usize = 1 << 16;

/// Maximum numbers of files, and of complaints, that are kept.
const MOST_FILES: usize = 1 << 13;
const MOST_COMPLAINTS: usize = 64;

/// What was seen of the processes.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Duration of the observation.
    pub lasted: Duration,
    /// Processes that made a ledger.
    pub processes: usize,
    /// Files that were searched for functions, each with the problem it had, if any.
    pub files: BTreeMap<PathBuf, String>,
    /// Addresses of the hooked entries in each file, called or not.
    pub hooked: BTreeMap<PathBuf, BTreeSet<u64>>,
    /// Calls of each thread; the threads that ended first come first.
    pub threads: Vec<ThreadSeen>,
    /// If there were too many threads to keep them apart: the number of threads that the last entry
    /// of [`Self::threads`] sums up. Its process and thread numbers are 0.
    pub threads_summed: usize,
    /// Threads whose calls were not seen, because there were too many.
    pub threads_left_out: usize,
    /// What was not seen, and why: ledgers that could not be made or read.
    pub unreadable: Vec<String>,
    /// Traces of threads, if the observer traced them.
    pub traces: Vec<ThreadTrace>,
    /// Decisions to move calls or to let them stay, in order, if the observer traced threads.
    pub moves: Vec<Decided>,
    /// The number of hardware threads to which calls were moved from each time on (ns since the
    /// start), if the observer traced threads.
    pub used_cpus: Vec<(f64, usize)>,
    /// Number of functions in [`Self::threads`], counted for each thread.
    pub(crate) kept: usize,
}

/// An entry of a function in a file: the function's start, or a place inside it to which other
/// functions lead.
#[derive(Clone, Debug)]
pub struct FunctionPlace {
    /// The address in the file.
    pub address: u64,
    /// The file, which is the same for thousands of them.
    pub file: Arc<Path>,
}

/// By address first, which tells most of them apart, and by the path's bytes: sooner compared than
/// its components.
impl Ord for FunctionPlace {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_address = self.address.cmp(&other.address);
        by_address.then_with(|| self.file.as_os_str().cmp(other.file.as_os_str()))
    }
}

impl PartialOrd for FunctionPlace {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for FunctionPlace {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for FunctionPlace {}

/// A decision about the calls of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// When, since the observer's start (ns).
    pub at_ns: f64,
    /// The function.
    pub place: FunctionPlace,
    /// Whether its calls are moved from then on.
    pub is_moved: bool,
}

/// Calls of a thread.
#[derive(Clone, Debug, Default)]
pub struct ThreadSeen {
    /// Number of its process.
    pub process: u32,
    /// Number of the thread.
    pub thread: u32,
    /// Each function that it called.
    pub functions: BTreeMap<FunctionPlace, Tally>,
    /// Clock samples before and after some of its calls.
    pub clocks: Clocks,
    /// Time that the hooks took from the thread, computed from what they take of a call in this
    /// process.
    pub hooks: Duration,
    /// Number of its calls that were moved to another core.
    pub moved: u64,
    /// Its wide phases.
    pub phases: PhaseCounts,
}

impl Observed {
    /// The result for a program of which nothing can be seen.
    #[must_use]
    pub fn nothing(lasted: Duration, why: String) -> Self {
        Self { lasted, unreadable: vec![why], ..Self::default() }
    }

    /// Number of threads that called hooked functions.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        self.threads.len() + self.threads_summed.saturating_sub(1)
    }

    /// Notes that something was not seen.
    pub(crate) fn complain(&mut self, what: String) {
        if self.unreadable.len() < MOST_COMPLAINTS && !self.unreadable.contains(&what) {
            self.unreadable.push(what);
        }
    }

    /// Adds a file, and the addresses of the hooked entries in it.
    pub(crate) fn add_file(
        &mut self,
        path: &Path,
        problem: &str,
        hooked: impl Iterator<Item = u64>,
    ) {
        if self.files.len() >= MOST_FILES && !self.files.contains_key(path) {
            return;
        }
        self.files.entry(path.to_path_buf()).or_insert_with(|| problem.to_owned());
        let known = self.hooked.entry(path.to_path_buf()).or_default();
        let room = MOST_FUNCTIONS.saturating_sub(known.len());
        known.extend(hooked.take(room));
    }

    /// Adds a thread's trace, unless nothing was traced.
    pub(crate) fn add_trace(&mut self, trace: ThreadTrace) {
        if !trace.events.is_empty() {
            self.traces.push(trace);
        }
    }

    /// Adds a thread's calls.
    pub(crate) fn add_thread(&mut self, seen: ThreadSeen) {
        let kept = self.kept + seen.functions.len();
        if self.threads_summed == 0 && self.threads.len() < MOST_THREADS && kept <= MOST_FUNCTIONS {
            self.kept = kept;
            self.threads.push(seen);
            return;
        }
        if self.threads_summed == 0 {
            self.threads.push(ThreadSeen::default());
        }
        self.threads_summed += 1;
        let Some(sum) = self.threads.last_mut() else { return };
        for (place, tally) in seen.functions {
            if sum.functions.len() < MOST_FUNCTIONS || sum.functions.contains_key(&place) {
                sum.functions.entry(place).or_default().merge(&tally);
            }
        }
        if !sum.clocks.are_many() {
            sum.clocks.merge(&seen.clocks);
        }
        sum.hooks = sum.hooks.saturating_add(seen.hooks);
        sum.moved = sum.moved.saturating_add(seen.moved);
        sum.phases = sum.phases.and(seen.phases);
    }

    /// Merges the entries of each function: `begin` maps an entry, given by file and address, to
    /// the start of its function.
    pub fn gather(&mut self, begin: impl Fn(&Path, u64) -> u64) {
        for (file, entries) in &mut self.hooked {
            *entries = entries.iter().map(|entry| begin(file, *entry)).collect();
        }
        for decided in &mut self.moves {
            decided.place.address = begin(&decided.place.file, decided.place.address);
        }
        self.traces.iter_mut().for_each(|trace| trace.gather(&begin));
        for thread in &mut self.threads {
            let mut gathered: BTreeMap<FunctionPlace, Tally> = BTreeMap::new();
            for (entry, tally) in std::mem::take(&mut thread.functions) {
                let address = begin(&entry.file, entry.address);
                gathered.entry(FunctionPlace { address, ..entry }).or_default().merge(&tally);
            }
            thread.functions = gathered;
        }
    }

    /// Calls of all threads, by function.
    #[must_use]
    pub fn functions(&self) -> BTreeMap<FunctionPlace, Tally> {
        let mut all: BTreeMap<FunctionPlace, Tally> = BTreeMap::new();
        for (place, tally) in self.threads.iter().flat_map(|thread| &thread.functions) {
            all.entry(place.clone()).or_default().merge(tally);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(number: u32, functions: std::ops::Range<u64>) -> ThreadSeen {
        let file = Arc::from(Path::new("/lib/one.so"));
        let place = |address| FunctionPlace { file: Arc::clone(&file), address };
        let tally = Tally { calls: 2, ..Tally::default() };
        let functions = functions.map(|address| (place(address), tally.clone())).collect();
        ThreadSeen { process: 1, thread: number, functions, moved: 1, ..ThreadSeen::default() }
    }

    #[test]
    fn threads_beyond_those_kept_apart_are_summed_up() {
        let mut observed = Observed::default();
        for number in 0..3000 {
            observed.add_thread(thread(number, 0..3));
        }
        assert_eq!((observed.threads.len(), observed.thread_count()), (MOST_THREADS + 1, 3000));
        let functions = observed.functions();
        assert_eq!(functions.values().map(|tally| tally.calls).collect::<Vec<_>>(), [6000; 3]);
        let last = observed.threads.last().unwrap();
        assert_eq!((last.process, last.thread), (0, 0));
        assert_eq!(last.moved, 3000 - MOST_THREADS as u64);
    }

    #[test]
    fn functions_and_complaints_are_bounded() {
        let mut observed = Observed::default();
        for number in 0..10 {
            let first = u64::from(number) * 30_000;
            observed.add_thread(thread(number, first..first + 30_000));
            observed.complain(format!("nothing of {number} was seen"));
            observed.complain("nothing was seen".to_owned());
        }
        assert!(observed.functions().len() <= 2 * MOST_FUNCTIONS);
        assert_eq!(observed.unreadable.len(), 11);
        (0..1000).for_each(|number| observed.complain(number.to_string()));
        assert_eq!(observed.unreadable.len(), MOST_COMPLAINTS);
    }
}
