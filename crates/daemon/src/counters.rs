//! The cycles that a client's process spends at each licence level, where the processor counts them and the kernel lets this user.
//!
//! Packed-arithmetic events, which newer processors have instead, count floating point alone: that a program has none says nothing of
//! its integers, so they are no evidence here.

use std::io;

use dimmer_host::events::{self, Counts};
use dimmer_host::microarchitecture::Microarchitecture;
use dimmer_host::perf::{self, Countable, ProcessCounters};
use dimmer_host::root::Root;
use dimmer_host::unavailable::Unavailable;
use dimmer_policy::server::evidence::{Evidence, LEVELS};

/// Counters are read no more often (ns): each is a system call a thread.
const PERIOD_NS: u64 = 1_000_000_000;

/// What to count of each client: all cycles first, then those at levels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    countables: Vec<Countable>,
    /// Of those after the first: its place in [`Evidence::LicenceCycles`].
    levels: Vec<usize>,
}

impl Counted {
    /// The events of this processor; `None` if it has no such.
    #[must_use]
    pub fn of(microarchitecture: Microarchitecture) -> Option<Self> {
        let (mut countables, mut levels) = (vec![Countable::Cycles], Vec::new());
        for event in events::documented(microarchitecture).unwrap_or_default() {
            let Counts::LicenceCycles(level) = event.counts else { continue };
            let Some(above) = (level.index() as usize).checked_sub(1) else { continue };
            countables.push(Countable::Event(*event));
            levels.push(above.min(LEVELS - 1));
        }
        (!levels.is_empty()).then_some(Self { countables, levels })
    }

    /// Opens counters for a process, running, with so many files at most.
    ///
    /// # Errors
    /// As [`ProcessCounters::open`].
    pub fn open(
        &self,
        root: &Root,
        process: i32,
        most_files: usize,
    ) -> Result<Counters, Unavailable> {
        let counters = ProcessCounters::open(root, process, &self.countables, most_files)?;
        let files = counters.files();
        Ok(Counters::new(Box::new(counters), files, self.levels.clone()))
    }

    /// Likewise for a client's process. One that has gone may have left its number to another user's.
    ///
    /// # Errors
    /// As [`Self::open`], and if the process is not this user's.
    pub fn open_for(
        &self,
        root: &Root,
        (process, user): (i32, u32),
        most_files: usize,
    ) -> Result<Counters, Unavailable> {
        if perf::owner(process).is_ok_and(|owner| owner != user) {
            let why = format!("process {process} is not of user {user}, or has more rights");
            return Err(Unavailable::new("performance counters of a client", why, "none"));
        }
        self.open(root, process, most_files)
    }
}

/// Where counts come from: [`ProcessCounters`], but in tests.
trait Source: std::fmt::Debug {
    /// What was counted so far.
    fn read(&mut self) -> io::Result<Vec<u64>>;
}

impl Source for ProcessCounters {
    fn read(&mut self) -> io::Result<Vec<u64>> {
        Self::read(self)
    }
}

/// The counters of one client.
#[derive(Debug)]
pub struct Counters {
    source: Box<dyn Source>,
    /// How many files they keep open.
    pub files: usize,
    levels: Vec<usize>,
    /// What they said when they were read last.
    last: Vec<u64>,
    /// For how long they were not read (ns).
    unread_ns: u64,
    evidence: Evidence,
}

impl Counters {
    fn new(source: Box<dyn Source>, files: usize, levels: Vec<usize>) -> Self {
        let last = vec![0; levels.len() + 1];
        Self { source, files, levels, last, unread_ns: 0, evidence: Evidence::None }
    }

    /// What they tell of the last second or so; `span_ns` has passed since they were asked last. None if they cannot be read.
    pub fn look(&mut self, span_ns: u64) -> Evidence {
        self.unread_ns = self.unread_ns.saturating_add(span_ns);
        if self.unread_ns >= PERIOD_NS {
            self.unread_ns = 0;
            self.evidence = self.source.read().map_or(Evidence::None, |counts| self.since(counts));
        }
        self.evidence
    }

    /// What was counted since the last time.
    fn since(&mut self, counts: Vec<u64>) -> Evidence {
        let mut news = counts.iter().zip(&self.last).map(|(now, last)| now.saturating_sub(*last));
        let all = news.next().unwrap_or(0);
        let mut at = [0_u64; LEVELS];
        for (level, cycles) in self.levels.iter().zip(news) {
            at[*level] = at[*level].saturating_add(cycles);
        }
        self.last = counts;
        Evidence::LicenceCycles { all, at }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Counts that were made up; refused once there are no more.
    #[derive(Debug)]
    struct MadeUp(VecDeque<Vec<u64>>);

    impl Source for MadeUp {
        fn read(&mut self) -> io::Result<Vec<u64>> {
            self.0.pop_front().ok_or_else(|| io::ErrorKind::NotFound.into())
        }
    }

    /// Counters that say this, one after the other: all cycles, and those at L1 and L2.
    pub(crate) fn made_up(counts: &[[u64; 3]]) -> Counters {
        let counts = counts.iter().map(|counts| counts.to_vec());
        Counters::new(Box::new(MadeUp(counts.collect())), 3, vec![0, 1])
    }

    #[test]
    fn a_processor_has_licence_events_or_none() {
        let counted = Counted::of(Microarchitecture::SkylakeServer).unwrap();
        assert_eq!(counted.levels, [0, 1]);
        assert_eq!(counted.countables[0], Countable::Cycles);
        assert_eq!(Counted::of(Microarchitecture::AlderLake).unwrap().levels, [0, 1, 2]);
        for without in [Microarchitecture::Zen5, Microarchitecture::GraniteRapids] {
            assert_eq!(Counted::of(without), None);
        }
    }

    #[test]
    fn cycles_of_each_second_are_told() {
        let mut counters = made_up(&[[1000, 100, 10], [3000, 1100, 10], [2000, 0, 0]]);
        let cycles = |all, l1, l2| Evidence::LicenceCycles { all, at: [l1, l2, 0, 0] };
        assert_eq!(counters.look(PERIOD_NS - 1), Evidence::None, "too early");
        assert_eq!(counters.look(1), cycles(1000, 100, 10));
        assert_eq!(counters.look(PERIOD_NS / 2), cycles(1000, 100, 10), "as before, meanwhile");
        assert_eq!(counters.look(PERIOD_NS / 2), cycles(2000, 1000, 0));
        assert_eq!(counters.look(PERIOD_NS), cycles(0, 0, 0), "counters that went back");
        assert_eq!(counters.look(u64::MAX), Evidence::None, "nobody there any more");
    }

    #[test]
    fn who_has_no_such_counters_gets_none() {
        let counted = Counted::of(Microarchitecture::SkylakeServer).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        // Here, or there is a processor that has them.
        if let Err(why) = counted.open(&Root::live(), own, usize::MAX) {
            assert!(why.to_string().contains("perf_event_open"), "{why}");
        }
        let of = |process, user, most_files| {
            counted.open_for(&Root::live(), (process, user), most_files).unwrap_err().to_string()
        };
        let owner = perf::owner(own).unwrap();
        assert!(of(own, owner, 2).contains("are left"), "{}", of(own, owner, 2));
        assert!(of(own, owner + 1, usize::MAX).contains("not of user"));
        // The first is that of a client in a namespace that this one does not see.
        for gone in [0, i32::MAX] {
            assert!(of(gone, owner, usize::MAX).contains(&format!("process {gone}:")));
        }
    }
}
