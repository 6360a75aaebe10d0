//! Counts calls in processes from outside, by the kernel's uprobes.
//!
//! It can tell how often each thread called each function, nothing more: no durations, and of gaps
//! only their mean.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dimmer_host::process::{self, Thread};
use dimmer_host::root::Root;
use dimmer_host::unavailable::Unavailable;
use dimmer_host::uprobes::ExecutionCounter;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::seen::{FunctionPlace, Observed, ThreadSeen};
use crate::tally::{Clocks, Tally};

/// What a call is told by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePoint {
    /// The function.
    pub function: FunctionPlace,
    /// Where to read its file: through the process's own view of the file system.
    pub file: PathBuf,
    /// Where in the file the instruction is that is executed once a call (bytes).
    pub offset: u64,
}

/// Counters in a process and in all that it starts; without them it goes on as before.
#[derive(Debug)]
pub struct Attached {
    root: Root,
    process: u32,
    begun: Instant,
    points: Vec<ProbePoint>,
    threads: BTreeMap<Thread, Counted>,
    /// What threads called that have ended, those that called anything.
    ended: Vec<(Thread, Calls)>,
    /// Threads that could not be counted.
    left_out: BTreeSet<Thread>,
}

/// The counters in a thread, as many as points.
#[derive(Debug)]
struct Counted {
    counters: Vec<ExecutionCounter>,
    begun: Instant,
    /// When it was last seen alive.
    seen: Instant,
}

/// What a thread called, by point.
#[derive(Debug)]
struct Calls {
    lasted: Duration,
    counts: Vec<u64>,
}

/// More counters than this are not opened: each is a file and a breakpoint.
pub const MOST_COUNTERS: usize = 4096;

/// Files that a process may have open besides.
const OTHER_FILES: u64 = 256;

impl Attached {
    /// Begins to count in all threads of a process and of what it has started. Lets this process
    /// have as many files open as that needs, if it may.
    ///
    /// # Errors
    /// As [`ExecutionCounter::new`], for the first thread that lives and cannot be counted.
    pub fn new(root: &Root, process: u32, points: Vec<ProbePoint>) -> Result<Self, Unavailable> {
        may_open(MOST_COUNTERS as u64 + OTHER_FILES);
        let mut attached = Self {
            root: root.clone(),
            process,
            begun: Instant::now(),
            points,
            threads: BTreeMap::new(),
            ended: Vec::new(),
            left_out: BTreeSet::new(),
        };
        // Preparing takes milliseconds for each, starting does not.
        for thread in process::family(root, process) {
            match attached.counters(thread.1) {
                Ok(counters) => drop(attached.threads.insert(thread, Counted::new(counters))),
                Err(error) if attached.is_alive(thread) => return Err(error),
                Err(_) => {}
            }
        }
        attached.begun = Instant::now();
        attached.threads.values_mut().for_each(Counted::start);
        Ok(attached)
    }

    /// Looks for threads that were started since, and counts in them from now on. To be called
    /// every [`crate::INTERVAL`]: what a thread calls before is not counted.
    pub fn look(&mut self) {
        // A thread that is alive may be nobody's child any more, and not in the family.
        let known: Vec<Thread> = self.threads.keys().copied().collect();
        for thread in known {
            let is_alive = self.is_alive(thread);
            if is_alive && let Some(counted) = self.threads.get_mut(&thread) {
                counted.seen = Instant::now();
            } else if let Some(counted) = self.threads.remove(&thread) {
                self.ended.push((thread, counted.read()));
            }
        }
        self.ended.retain(|(_, calls)| calls.counts.iter().any(|count| *count > 0));
        for thread in process::family(&self.root, self.process) {
            if self.threads.contains_key(&thread) || self.left_out.contains(&thread) {
                continue;
            }
            let is_full = (self.threads.len() + 1) * self.points.len() > MOST_COUNTERS;
            let counters = if is_full { None } else { self.counters(thread.1).ok() };
            if let Some(counters) = counters {
                let mut counted = Counted::new(counters);
                counted.start();
                self.threads.insert(thread, counted);
            } else if self.is_alive(thread) {
                self.left_out.insert(thread);
            }
        }
    }

    fn is_alive(&self, (process, thread): Thread) -> bool {
        self.root.exists(&format!("/proc/{process}/task/{thread}"))
    }

    /// One for each point, not started.
    fn counters(&self, thread: u32) -> Result<Vec<ExecutionCounter>, Unavailable> {
        let counter = |point: &ProbePoint| {
            ExecutionCounter::new(&self.root, &point.file, point.offset, thread)
        };
        self.points.iter().map(counter).collect()
    }

    /// What a thread called, by function.
    fn functions(&self, calls: &Calls) -> BTreeMap<FunctionPlace, Tally> {
        let mut functions: BTreeMap<FunctionPlace, Tally> = BTreeMap::new();
        for (point, count) in self.points.iter().zip(&calls.counts).filter(|(_, count)| **count > 0)
        {
            functions.entry(point.function.clone()).or_default().calls += count;
        }
        let all: u64 = functions.values().map(|tally| tally.calls).sum();
        let gap_ns = calls.lasted.as_nanos() as f64 / all as f64;
        for tally in functions.values_mut() {
            tally.gap_after.add(gap_ns, tally.calls as f64);
        }
        functions
    }

    /// Ends counting, and tells what was seen. A gap is the time from a thread's call to its next
    /// one, on average, as if calls came at regular intervals and took no time.
    #[must_use]
    pub fn finish(mut self) -> Observed {
        let lasted = self.begun.elapsed();
        let mut all = std::mem::take(&mut self.ended);
        for (thread, mut counted) in std::mem::take(&mut self.threads) {
            if self.is_alive(thread) {
                counted.seen = Instant::now();
            }
            all.push((thread, counted.read()));
        }
        let mut files: BTreeMap<PathBuf, String> = BTreeMap::new();
        let mut hooked: BTreeMap<PathBuf, BTreeSet<u64>> = BTreeMap::new();
        for point in &self.points {
            files.entry(point.function.file.clone()).or_default();
            hooked.entry(point.function.file.clone()).or_default().insert(point.function.address);
        }
        let processes: BTreeSet<u32> = all.iter().map(|((process, _), _)| *process).collect();
        let seen = |((process, thread), calls): (Thread, Calls)| {
            let functions = self.functions(&calls);
            let clocks = Clocks::default();
            ThreadSeen { process, thread, functions, clocks, hooks: Duration::ZERO, moved: 0 }
        };
        let threads = all.into_iter().map(seen).filter(|seen| !seen.functions.is_empty());
        Observed {
            lasted,
            processes: processes.len(),
            files,
            hooked,
            threads: threads.collect(),
            threads_left_out: self.left_out.len(),
            ..Observed::default()
        }
    }
}

impl Counted {
    fn new(counters: Vec<ExecutionCounter>) -> Self {
        Self { counters, begun: Instant::now(), seen: Instant::now() }
    }

    fn start(&mut self) {
        self.begun = Instant::now();
        for counter in &mut self.counters {
            // A counter that was opened can be started.
            let started = counter.start();
            debug_assert!(started.is_ok(), "{started:?}");
        }
    }

    /// Reads all before any is closed, which takes milliseconds. A counter that was opened can be
    /// read.
    fn read(mut self) -> Calls {
        let counts = self.counters.iter_mut().map(|counter| counter.read().unwrap_or_default());
        Calls { lasted: self.seen.duration_since(self.begun), counts: counts.collect() }
    }
}

/// Raises the number of files that this process may have open, as far as that is allowed.
fn may_open(files: u64) {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(files, |most| files.min(most));
    if limit.current.is_some_and(|current| current < wanted) {
        // Where it fails, opening one too many tells.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit });
    }
}
