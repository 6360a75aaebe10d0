//! Counts calls in processes from outside, with the kernel's uprobes.
//!
//! Counts how often each thread calls each function, and nothing else: it measures no durations,
//! and of gaps only the mean.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dimmer_host::open_files;
use dimmer_host::process::{self, Thread};
use dimmer_host::root::Root;
use dimmer_host::unavailable::Unavailable;
use dimmer_host::uprobes::ExecutionCounter;

use crate::seen::{FunctionPlace, Observed, ThreadSeen};
use crate::tally::{Clocks, Tally};

/// The instruction that stands for a call of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePoint {
    /// The function.
    pub function: FunctionPlace,
    /// Path for reading the function's file, through the process's own view of the file system.
    pub file: PathBuf,
    /// Offset in the file of the instruction that each call executes once (bytes).
    pub offset: u64,
}

/// Counters in a process and in all that it starts. When they are closed, the processes continue as
/// before.
#[derive(Debug)]
pub struct Attached {
    root: Root,
    process: u32,
    begun: Instant,
    points: Vec<ProbePoint>,
    threads: BTreeMap<Thread, Counted>,
    /// Calls of the threads that have ended and called at least one function.
    ended: Vec<(Thread, Calls)>,
    /// Threads that could not be counted.
    left_out: BTreeSet<Thread>,
}

/// The counters in a thread, one for each point.
#[derive(Debug)]
struct Counted {
    counters: Vec<ExecutionCounter>,
    begun: Instant,
    /// When the thread was last seen alive.
    seen: Instant,
}

/// Calls of a thread, by point.
#[derive(Debug)]
struct Calls {
    lasted: Duration,
    counts: Vec<u64>,
}

/// Upper limit of open counters: each is a file and a breakpoint.
pub const MOST_COUNTERS: usize = 4096;

impl Attached {
    /// Starts counting in all threads of a process and of the processes that it has started. Raises
    /// this process's limit of open files if counting needs more and that is allowed.
    ///
    /// # Errors
    /// As [`ExecutionCounter::new`], for the first live thread in which calls cannot be counted.
    pub fn new(root: &Root, process: u32, points: Vec<ProbePoint>) -> Result<Self, Unavailable> {
        open_files::make_room(MOST_COUNTERS);
        let mut attached = Self {
            root: root.clone(),
            process,
            begun: Instant::now(),
            points,
            threads: BTreeMap::new(),
            ended: Vec::new(),
            left_out: BTreeSet::new(),
        };
        // Preparing a thread's counters takes milliseconds, starting them does not.
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

    /// Looks for new threads, and counts in them from now on. Call it every [`crate::INTERVAL`]:
    /// calls that a thread makes before the look are not counted.
    pub fn look(&mut self) {
        // A live thread may have lost its parent, and is then no longer in the family.
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

    /// One counter for each point, not started.
    fn counters(&self, thread: u32) -> Result<Vec<ExecutionCounter>, Unavailable> {
        let counter = |point: &ProbePoint| {
            ExecutionCounter::new(&self.root, &point.file, point.offset, thread)
        };
        self.points.iter().map(counter).collect()
    }

    /// Calls of a thread, by function.
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

    /// Stops counting, and returns what was seen. A gap is the mean time from a thread's call to
    /// its next one, as if calls came at regular intervals and took no time.
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
            files.entry(point.function.file.to_path_buf()).or_default();
            hooked
                .entry(point.function.file.to_path_buf())
                .or_default()
                .insert(point.function.address);
        }
        let processes: BTreeSet<u32> = all.iter().map(|((process, _), _)| *process).collect();
        let seen = |((process, thread), calls): (Thread, Calls)| {
            let functions = self.functions(&calls);
            let clocks = Clocks::default();
            ThreadSeen { process, thread, functions, clocks, ..ThreadSeen::default() }
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
            // An open counter can always be started.
            let started = counter.start();
            debug_assert!(started.is_ok(), "{started:?}");
        }
    }

    /// Reads all counters before it closes any, because closing takes milliseconds. An open counter
    /// can always be read.
    fn read(mut self) -> Calls {
        let counts = self.counters.iter_mut().map(|counter| counter.read().unwrap_or_default());
        Calls { lasted: self.seen.duration_since(self.begun), counts: counts.collect() }
    }
}
