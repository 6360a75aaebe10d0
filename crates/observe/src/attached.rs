//! Counts calls in a process that runs already, from outside, by the kernel's uprobes.
//!
//! It can tell how often each thread called each function, nothing more: no durations, and of gaps only
//! their mean.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

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

/// Counters in a running process; without them it goes on as before.
#[derive(Debug)]
pub struct Attached {
    process: u32,
    begun: Instant,
    counters: Vec<Counting>,
    files: BTreeMap<PathBuf, String>,
    hooked: BTreeMap<PathBuf, BTreeSet<u64>>,
}

#[derive(Debug)]
struct Counting {
    function: FunctionPlace,
    thread: u32,
    counter: ExecutionCounter,
}

impl Attached {
    /// Begins to count in these threads, and those that they start.
    ///
    /// # Errors
    /// As [`ExecutionCounter::new`], for the first one that cannot be counted.
    pub fn new(
        root: &Root,
        process: u32,
        threads: &[u32],
        points: &[ProbePoint],
    ) -> Result<Self, Unavailable> {
        let mut attached = Self {
            process,
            begun: Instant::now(),
            counters: Vec::with_capacity(points.len() * threads.len()),
            files: BTreeMap::new(),
            hooked: BTreeMap::new(),
        };
        for point in points {
            for thread in threads {
                let counter = ExecutionCounter::new(root, &point.file, point.offset, *thread)?;
                let function = point.function.clone();
                attached.counters.push(Counting { function, thread: *thread, counter });
            }
            attached.files.entry(point.function.file.clone()).or_default();
            let hooked = attached.hooked.entry(point.function.file.clone()).or_default();
            hooked.insert(point.function.address);
        }
        attached.begun = Instant::now();
        for counting in &mut attached.counters {
            // A counter that was opened can be started.
            let started = counting.counter.start();
            debug_assert!(started.is_ok(), "{started:?}");
        }
        Ok(attached)
    }

    /// Ends counting, and tells what was seen. A gap is the time from a thread's call to its next one, on
    /// average, as if calls came at regular intervals and took no time.
    #[must_use]
    pub fn finish(mut self) -> Observed {
        let lasted = self.begun.elapsed();
        let mut threads: BTreeMap<u32, BTreeMap<FunctionPlace, Tally>> = BTreeMap::new();
        // A counter that was opened can be read. All are read before any is closed, which takes milliseconds.
        let counters = self.counters.iter_mut();
        let counts: Vec<u64> =
            counters.map(|counting| counting.counter.read().unwrap_or_default()).collect();
        for (counting, calls) in self.counters.into_iter().zip(counts) {
            if calls > 0 {
                let tally = Tally { calls, ..Tally::default() };
                threads.entry(counting.thread).or_default().insert(counting.function, tally);
            }
        }
        for functions in threads.values_mut() {
            let all: u64 = functions.values().map(|tally| tally.calls).sum();
            let gap_ns = lasted.as_nanos() as f64 / all as f64;
            for tally in functions.values_mut() {
                tally.gap_after.add(gap_ns, tally.calls as f64);
            }
        }
        let seen = |(thread, functions)| ThreadSeen {
            process: self.process,
            thread,
            functions,
            clocks: Clocks::default(),
            hooks: Duration::ZERO,
        };
        Observed {
            lasted,
            processes: 1,
            files: self.files,
            hooked: self.hooked,
            threads: threads.into_iter().map(seen).collect(),
            ..Observed::default()
        }
    }
}
