//! Counts calls in processes from outside, by the kernel's uprobes.
//!
//! It can tell how often each thread called each function, nothing more: no durations, and of gaps only
//! their mean.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dimmer_host::process::{self, Thread};
use dimmer_host::root::Root;
use dimmer_host::unavailable::Unavailable;
use dimmer_host::uprobes::ExecutionCounter;

use crate::observer::{FunctionPlace, Observed, ThreadSeen};
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
    /// By process and thread; in each as many counters as points.
    threads: BTreeMap<Thread, Vec<ExecutionCounter>>,
    /// What threads called that have ended.
    ended: BTreeMap<Thread, Vec<u64>>,
    /// Threads that could not be counted.
    left_out: BTreeSet<Thread>,
}

/// More counters than this are not opened: each is a file and a breakpoint.
pub const MOST_COUNTERS: usize = 4096;

impl Attached {
    /// Begins to count in all threads of a process and of what it has started.
    ///
    /// # Errors
    /// As [`ExecutionCounter::new`], for the first one that cannot be counted.
    pub fn new(root: &Root, process: u32, points: Vec<ProbePoint>) -> Result<Self, Unavailable> {
        let mut attached = Self {
            root: root.clone(),
            process,
            begun: Instant::now(),
            points,
            threads: BTreeMap::new(),
            ended: BTreeMap::new(),
            left_out: BTreeSet::new(),
        };
        // Preparing takes milliseconds for each, starting does not.
        for thread in process::family(root, process) {
            let counters = attached.counters(thread.1)?;
            attached.threads.insert(thread, counters);
        }
        attached.begun = Instant::now();
        attached.threads.values_mut().flatten().for_each(start);
        Ok(attached)
    }

    /// Looks for threads that were started since, and counts in them from now on. To be called every
    /// [`crate::INTERVAL`]: what a thread calls before is not counted.
    pub fn look(&mut self) {
        let living = process::family(&self.root, self.process);
        let ended: Vec<Thread> =
            self.threads.keys().filter(|thread| !living.contains(thread)).copied().collect();
        for thread in ended {
            if let Some(counters) = self.threads.remove(&thread) {
                self.ended.insert(thread, read(counters));
            }
        }
        for thread in living {
            let is_known = self.threads.contains_key(&thread) || self.left_out.contains(&thread);
            if is_known {
                continue;
            }
            let is_full = (self.threads.len() + 1) * self.points.len() > MOST_COUNTERS;
            match self.counters(thread.1) {
                Ok(mut counters) if !is_full => {
                    counters.iter_mut().for_each(start);
                    self.threads.insert(thread, counters);
                }
                // It may have ended just now.
                _ => {
                    let (process, number) = thread;
                    if self.root.exists(&format!("/proc/{process}/task/{number}")) {
                        self.left_out.insert(thread);
                    }
                }
            }
        }
    }

    /// One for each point, not started.
    fn counters(&self, thread: u32) -> Result<Vec<ExecutionCounter>, Unavailable> {
        let counter = |point: &ProbePoint| {
            ExecutionCounter::new(&self.root, &point.file, point.offset, thread)
        };
        self.points.iter().map(counter).collect()
    }

    /// Ends counting, and tells what was seen. A gap is the time from a thread's call to its next one, on
    /// average, as if calls came at regular intervals and took no time.
    #[must_use]
    pub fn finish(mut self) -> Observed {
        let lasted = self.begun.elapsed();
        let mut counts = std::mem::take(&mut self.ended);
        let living = std::mem::take(&mut self.threads);
        counts.extend(living.into_iter().map(|(thread, counters)| (thread, read(counters))));
        let mut files: BTreeMap<PathBuf, String> = BTreeMap::new();
        let mut hooked: BTreeMap<PathBuf, BTreeSet<u64>> = BTreeMap::new();
        for point in &self.points {
            files.entry(point.function.file.clone()).or_default();
            hooked.entry(point.function.file.clone()).or_default().insert(point.function.address);
        }
        let processes: BTreeSet<u32> = counts.keys().map(|(process, _)| *process).collect();
        let mut threads: BTreeMap<Thread, BTreeMap<FunctionPlace, Tally>> = BTreeMap::new();
        for (thread, counts) in counts {
            for (point, calls) in self.points.iter().zip(counts).filter(|(_, calls)| *calls > 0) {
                let functions = threads.entry(thread).or_default();
                functions.entry(point.function.clone()).or_default().calls += calls;
            }
        }
        for functions in threads.values_mut() {
            let all: u64 = functions.values().map(|tally| tally.calls).sum();
            let gap_ns = lasted.as_nanos() as f64 / all as f64;
            for tally in functions.values_mut() {
                tally.gap_after.add(gap_ns, tally.calls as f64);
            }
        }
        let seen = |((process, thread), functions)| ThreadSeen {
            process,
            thread,
            functions,
            clocks: Clocks::default(),
            hooks: Duration::ZERO,
        };
        Observed {
            lasted,
            processes: processes.len(),
            files,
            hooked,
            threads: threads.into_iter().map(seen).collect(),
            threads_left_out: self.left_out.len(),
            ..Observed::default()
        }
    }
}

fn start(counter: &mut ExecutionCounter) {
    // A counter that was opened can be started.
    let started = counter.start();
    debug_assert!(started.is_ok(), "{started:?}");
}

/// Reads all before any is closed, which takes milliseconds. A counter that was opened can be read.
fn read(mut counters: Vec<ExecutionCounter>) -> Vec<u64> {
    counters.iter_mut().map(|counter| counter.read().unwrap_or_default()).collect()
}
