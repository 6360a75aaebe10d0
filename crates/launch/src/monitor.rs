//! The performance monitor of a run (paper 002, section 3.3): in intervals, what the CPUs did that
//! the program may run on, and what the program itself executed.

use std::time::{Duration, Instant};

use dimmer_host::affinity;
use dimmer_host::monitor::{Counts, Sources, Spent};
use dimmer_host::perf::{Countable, ProcessCounters};
use dimmer_host::root::Root;
use dimmer_processor::units::{CpuId, KiloHertz, Nanos};

/// How long an interval is at first.
const INTERVAL: Duration = Duration::from_millis(200);

/// Maximum number of intervals. Once there are as many, each two become one, and those that follow
/// are twice as long.
const MOST: usize = 512;

/// How often the CPUs are read at least: counts of energy begin again after some minutes.
const READ: Duration = Duration::from_secs(30);

/// How much longer than reading the counts an interval is at least, so that reading those of many
/// CPUs takes a twentieth of a CPU at most.
const REST: u32 = 19;

/// What is counted of the program.
const OF_PROGRAM: [Countable; 3] =
    [Countable::Cycles, Countable::StalledCycles, Countable::CacheMisses];

/// What was seen of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Monitored {
    /// The CPUs that the program might run on when it started.
    pub cpus: Vec<CpuId>,
    /// The intervals, from the program's start on.
    pub intervals: Vec<Interval>,
    /// Why there are no entries of idle states; `None` if there are.
    pub no_idle: Option<String>,
    /// Likewise, the clock of the CPUs.
    pub no_clock: Option<String>,
    /// Likewise, energy.
    pub no_energy: Option<String>,
    /// Likewise, cycles of the program, stalled ones, and misses of the last cache.
    pub not_of_program: [Option<String>; 3],
    /// The base clock, of which [`Spent::clock`] has a multiple.
    pub base: Option<KiloHertz>,
    /// Whether the clock was measured by timing instead ([`Spent::timed_clock`]).
    pub is_timed: bool,
}

impl Monitored {
    /// The clock of the CPUs in an interval, or in several that were summed up: the mean while they
    /// were not idle, or, by timing, at the end. `None` if all were idle, or it is not known.
    #[must_use]
    pub fn clock(&self, interval: &Interval) -> Option<KiloHertz> {
        let mean = self.base.and_then(|base| interval.spent.mean_clock(base));
        mean.or_else(|| interval.spent.timed_clock())
    }
}

/// An interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interval {
    /// How long it lasted.
    pub lasted: Nanos,
    /// What the CPUs did.
    pub spent: Spent,
    /// What the program did, in user mode: cycles, stalled ones, and misses of the last cache;
    /// `None`: not counted.
    pub of_program: [Option<u64>; 3],
}

impl Interval {
    /// Adds another one. What was not counted in both is not counted in the sum.
    pub fn add(&mut self, other: &Self) {
        self.lasted = Nanos::from_ns(self.lasted.ns().saturating_add(other.lasted.ns()));
        self.spent.add(&other.spent);
        for (sum, more) in self.of_program.iter_mut().zip(other.of_program) {
            *sum = sum.zip(more).map(|(sum, more)| sum.saturating_add(more));
        }
    }
}

/// Watches a run.
#[derive(Debug)]
pub(crate) struct Monitor {
    sources: Sources,
    /// Of the program, each by itself: processors lack some.
    counters: [Result<ProcessCounters, String>; 3],
    /// Why the program was not counted in an interval.
    uncounted: [Option<String>; 3],
    /// The counts at the last reading.
    counts: Counts,
    read_at: Instant,
    /// What the CPUs have done until then in the interval that goes on.
    spent: Spent,
    of_program: [Option<u64>; 3],
    since: Instant,
    next: Instant,
    interval: Duration,
    seen: Monitored,
}

impl Monitor {
    /// Starts, for a program that this process is about to start. `is_timed`: the clock of the CPUs
    /// is measured by timing where it cannot be read.
    pub(crate) fn start(root: &Root, is_timed: bool) -> Self {
        let cpus = affinity::allowed_to(std::process::id()).unwrap_or_default();
        let mut sources = Sources::find(root, &cpus);
        if is_timed {
            sources = sources.with_timing();
        }
        let why = |missing: &dimmer_host::unavailable::Unavailable| missing.why.clone();
        let seen = Monitored {
            cpus,
            no_idle: sources.idle.as_ref().err().map(why),
            no_clock: sources.clock.as_ref().err().map(why),
            no_energy: sources.energy.as_ref().err().map(why),
            base: sources.clock.as_ref().ok().copied(),
            is_timed: sources.is_timed(),
            ..Monitored::default()
        };
        let now = Instant::now();
        Self {
            counts: sources.read(),
            sources,
            counters: OF_PROGRAM.map(|_| Err("the program was not started".to_owned())),
            uncounted: Default::default(),
            read_at: now,
            spent: Spent::default(),
            of_program: [Some(0); 3],
            since: now,
            next: now + INTERVAL,
            interval: INTERVAL,
            seen,
        }
    }

    /// The program was started, as this process.
    pub(crate) fn started(&mut self, root: &Root, process: u32) {
        self.counters = OF_PROGRAM.map(|event| {
            let process = i32::try_from(process).unwrap_or_default();
            let mut counters = ProcessCounters::new(process, &[event]).map_err(|no| no.why)?;
            while counters.open_next(root).map_err(|no| no.why)? {}
            Ok(counters)
        });
    }

    /// Ends the interval, if it has lasted long enough.
    pub(crate) fn look(&mut self) {
        let now = Instant::now();
        if now >= self.next {
            self.end_interval();
        } else if now - self.read_at >= READ {
            self.read(now);
        }
    }

    /// Reads what the CPUs have done.
    fn read(&mut self, now: Instant) {
        let counts = self.sources.read();
        self.spent.add(&self.sources.between(&self.counts, &counts));
        (self.counts, self.read_at) = (counts, now);
    }

    fn end_interval(&mut self) {
        let now = Instant::now();
        self.read(now);
        let mut of_program = [None; 3];
        for (at, counters) in self.counters.iter_mut().enumerate() {
            let Ok(counters) = counters else { continue };
            match counters.read() {
                Ok(counts) => of_program[at] = counts.first().copied(),
                Err(error) => self.uncounted[at] = Some(error.to_string()),
            }
        }
        // Estimates may fall.
        let grown = |at: usize| of_program[at]?.checked_sub(self.of_program[at]?);
        self.seen.intervals.push(Interval {
            lasted: (now - self.since).into(),
            spent: std::mem::take(&mut self.spent),
            of_program: [0, 1, 2].map(grown),
        });
        (self.of_program, self.since) = (of_program, now);
        if self.seen.intervals.len() >= MOST {
            self.seen.intervals = halved(&self.seen.intervals);
            self.interval *= 2;
        }
        self.next = now + self.interval.max(now.elapsed() * REST);
    }

    /// What was seen, with the last interval.
    pub(crate) fn finish(mut self) -> Monitored {
        self.end_interval();
        let mut missing = self.counters.map(Result::err);
        for (at, (missing, why)) in missing.iter_mut().zip(self.uncounted).enumerate() {
            if self.seen.intervals.iter().all(|one| one.of_program[at].is_none()) {
                *missing = missing.take().or(why);
            }
        }
        self.seen.not_of_program = missing;
        self.seen
    }
}

/// Each two intervals as one.
fn halved(intervals: &[Interval]) -> Vec<Interval> {
    let pair = |pair: &[Interval]| {
        let mut sum = pair[0].clone();
        pair[1..].iter().for_each(|other| sum.add(other));
        sum
    };
    intervals.chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_within_an_interval_is_part_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        let write = |name: &str, content: &str| {
            let path = root.path(&format!("/sys/class/powercap/intel-rapl:0/{name}"));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        };
        for (name, content) in
            [("name", "package-0"), ("energy_uj", "900"), ("max_energy_range_uj", "1000")]
        {
            write(name, content);
        }
        let mut monitor = Monitor::start(&root, false);
        // More than the whole range in all.
        for energy in ["400", "950", "450"] {
            write("energy_uj", energy);
            monitor.read(Instant::now());
        }
        let seen = monitor.finish();
        assert_eq!(seen.intervals.len(), 1);
        assert_eq!(seen.intervals[0].spent.energy["package-0"], 500 + 550 + 500);
        assert_eq!(seen.not_of_program[0].as_deref(), Some("the program was not started"));
    }

    #[test]
    fn two_intervals_become_one_with_all_that_both_have() {
        let interval = |ns: u64, cycles: Option<u64>| Interval {
            lasted: Nanos::from_ns(ns),
            spent: Spent {
                clock: [2 * ns, ns],
                energy: [("package-0".to_owned(), ns)].into(),
                ..Spent::default()
            },
            of_program: [cycles, None, Some(1)],
        };
        let three = [interval(10, Some(5)), interval(20, Some(7)), interval(40, None)];
        let halved = halved(&three);
        assert_eq!(halved[0], interval_with([30, 12, 2], [60, 30], 30));
        assert_eq!(halved[1], three[2]);
        let mut counted = interval(1, Some(3));
        counted.add(&interval(1, None));
        assert_eq!(counted.of_program, [None, None, Some(2)], "not all of it was counted");
    }

    fn interval_with([ns, cycles, misses]: [u64; 3], clock: [u64; 2], energy: u64) -> Interval {
        Interval {
            lasted: Nanos::from_ns(ns),
            spent: Spent {
                clock,
                energy: [("package-0".to_owned(), energy)].into(),
                ..Spent::default()
            },
            of_program: [Some(cycles), None, Some(misses)],
        }
    }
}
