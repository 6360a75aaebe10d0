//! A thread of the machine, and its totals.

use dimmer_processor::units::LicenseLevel;
use hdrhistogram::Histogram;

use super::moves::Data;
use super::phases::Migrations;
use super::regions::Calls;
use super::{Machine, Observer};
use crate::core::{Done, Running};
use crate::program::Program;
use crate::queue::Target;
use crate::series::Series;
use crate::{Moment, Picos, Random, SimError, index};

/// What a thread has done, by the counters of its segments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThreadTotals {
    /// The thread's name.
    pub name: String,
    /// Instructions, by counter.
    pub instructions: Vec<f64>,
    /// Time on a core, including standing still and interrupts (ps), by counter.
    pub time: Vec<Picos>,
    /// Cycles of its core while it was on it, standstills not counted, by the core's level.
    pub cycles: Vec<f64>,
    /// When it finished (ps).
    pub finished: Option<Moment>,
    /// Calls of marked regions, if anything decides about them; `moved` counts those of them
    /// that ran on dedicated cores.
    pub calls: u64,
    /// Calls that ran on dedicated cores.
    pub moved: u64,
    /// How often it migrated at a mark.
    pub migrations: u64,
    /// How often it was trapped because its core is no wide one, if cores are specialised.
    pub traps: u64,
    /// Latencies of requests (ns), if there were any; to three digits, up to an hour. Longer ones
    /// count as an hour.
    pub latencies: Option<Box<Histogram<u64>>>,
}

impl ThreadTotals {
    /// The longest latency that is recorded as such (ns).
    const LONGEST_NS: u64 = 3_600_000_000_000;

    /// The thread's code has done this, at this level of its core.
    pub(super) fn ran(&mut self, running: &Running, done: &Done, level: LicenseLevel) {
        let counter = running.segment.counter;
        if self.instructions.len() <= counter {
            self.instructions.resize(counter + 1, 0.0);
            self.time.resize(counter + 1, Picos::ZERO);
        }
        self.instructions[counter] += done.instructions;
        self.time[counter] += done.span;
        let level = index(level.index());
        if self.cycles.len() <= level {
            self.cycles.resize(level + 1, 0.0);
        }
        self.cycles[level] += done.cycles;
    }

    pub(super) fn served(&mut self, latency: Picos) {
        let new = || Histogram::new_with_max(Self::LONGEST_NS, 3).ok().map(Box::new);
        if self.latencies.is_none() {
            self.latencies = new();
        }
        if let Some(latencies) = &mut self.latencies {
            latencies.saturating_record(latency.nanos().ns());
        }
    }
}

/// A thread: what it does, and what it waits for.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) program: Box<dyn Program>,
    pub(super) chance: Random,
    /// What it executes after its current segment, as far as that is drawn from its program.
    pub(super) series: Series,
    pub(super) pinned: Option<usize>,
    /// Its data in caches.
    pub(super) data: Data,
    /// The rest of its segment while it waits for a CPU.
    pub(super) interrupted: Option<Running>,
    pub(super) waits_for: Option<usize>,
    /// Whether it executes while it waits for a lock.
    pub(super) spins: bool,
    /// The core on which it waits by MWAIT for a lock, until it runs again.
    pub(super) mwaits_on: Option<usize>,
    /// When it wakes up, or has woken up, until it runs.
    pub(super) wakes: Option<Moment>,
    /// Its time on CPUs.
    pub(super) ran: Picos,
    /// Whether it has executed wide code, if that matters.
    pub(super) is_tagged: bool,
    /// Its marked regions.
    pub(super) calls: Calls,
    /// Its migrations at marks.
    pub(super) migrations: Migrations,
    pub(super) totals: ThreadTotals,
}

impl Thread {
    /// A thread that starts now.
    pub(super) fn new(
        program: Box<dyn Program>,
        chance: Random,
        pinned: Option<usize>,
        totals: ThreadTotals,
        now: Moment,
    ) -> Self {
        Self {
            program,
            chance,
            series: Series::default(),
            pinned,
            data: Data::default(),
            interrupted: None,
            waits_for: None,
            spins: false,
            mwaits_on: None,
            wakes: Some(now),
            ran: Picos::ZERO,
            is_tagged: false,
            calls: Calls::default(),
            migrations: Migrations::default(),
            totals,
        }
    }
}

impl<O: Observer> Machine<O> {
    /// Adds a thread that starts now, pinned to this CPU or free to run on any. CPUs are numbered
    /// core by core. Returns the thread's number.
    pub fn spawn(&mut self, name: &str, program: Box<dyn Program>, pinned: Option<usize>) -> usize {
        let chance = self.chance.fork();
        let totals = ThreadTotals { name: name.to_owned(), ..ThreadTotals::default() };
        let thread = self.threads.len();
        self.threads.push(Thread::new(program, chance, pinned, totals, self.now));
        self.belongs(thread, thread as u64);
        self.queue.set(Target::Thread(thread), Some(self.now));
        thread
    }

    /// Checks that all threads have finished, or wait for locks. Call it when no event is left.
    ///
    /// # Errors
    /// [`SimError::NoEnd`]: a thread goes on, so its next event is after the longest time.
    pub(crate) fn all_have_ended(&self) -> Result<(), SimError> {
        let goes_on =
            |thread: &&Thread| thread.totals.finished.is_none() && thread.waits_for.is_none();
        let thread = self.threads.iter().find(goes_on).map(|thread| thread.totals.name.clone());
        thread.map_or(Ok(()), |thread| Err(SimError::NoEnd { at_us: self.now_us(), thread }))
    }

    /// A thread that was just added starts at this moment, not at once.
    pub fn starts(&mut self, thread: usize, at: Moment) {
        if let Some(this) = self.threads.get_mut(thread) {
            this.wakes = Some(at);
            self.queue.set(Target::Thread(thread), Some(at));
        }
    }

    /// Sets the size of the data in its core's caches that the thread's own code reads repeatedly
    /// (KiB). Another core that takes the thread over must fetch them first.
    pub fn caches(&mut self, thread: usize, kib: u64) {
        if let Some(thread) = self.threads.get_mut(thread) {
            thread.data = Data::new(kib);
        }
    }

    /// Sets the size of the data that the code of a region reads and writes (KiB), whatever thread
    /// enters it. By default its code needs the data of the thread's own code.
    pub fn touches(&mut self, site: usize, kib: u64) {
        if self.region_kib.len() <= site {
            self.region_kib.resize(site + 1, None);
        }
        self.region_kib[site] = Some(kib);
    }
}
