//! Counters for a client's process: the cycles spent at each license level, or otherwise its packed
//! floating-point arithmetic. Requires a processor that counts these, and a kernel that permits it
//! to this user.

use std::io;

use dimmer_host::events::{self, Counts};
use dimmer_host::microarchitecture::Microarchitecture;
use dimmer_host::perf::{self, Countable, ProcessCounters};
use dimmer_host::root::Root;
use dimmer_host::unavailable::Unavailable;
use dimmer_policy::server::evidence::{Evidence, LEVELS, place_of};

/// Minimum time between two reads of the counters (ns): each read is a system call per thread.
const PERIOD_NS: u64 = 1_000_000_000;

/// What to count of each client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The counter of the total first, then the counters of the levels.
    countables: Vec<Countable>,
    kind: Kind,
    /// For each counter after the first: its index in the evidence.
    levels: Vec<usize>,
}

/// The kind of event that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// [`Evidence::LicenseCycles`].
    Cycles,
    /// [`Evidence::PackedArithmetic`], which newer processors have instead.
    Packed,
}

impl Counted {
    /// The events of this processor; `None` if it has none.
    #[must_use]
    pub fn of(microarchitecture: Microarchitecture) -> Option<Self> {
        let events = events::documented(microarchitecture).unwrap_or_default();
        let of = |kind, all, place: fn(Counts) -> Option<usize>| {
            let events = events.iter().filter_map(|event| Some((*event, place(event.counts)?)));
            let (events, levels): (Vec<_>, Vec<_>) = events.unzip();
            let events = events.into_iter().map(Countable::Event);
            let countables = [all].into_iter().chain(events).collect();
            (!levels.is_empty()).then_some(Self { countables, kind, levels })
        };
        let cycles = of(Kind::Cycles, Countable::Cycles, |counts| match counts {
            Counts::LicenseCycles(level) => place_of(level),
            _ => None,
        });
        // By the rules of levels, 256 bits may ask for L1, and 512 for L2.
        cycles.or_else(|| {
            of(Kind::Packed, Countable::Instructions, |counts| match counts {
                Counts::PackedArithmetic { width: 256 } => Some(0),
                Counts::PackedArithmetic { width: 512 } => Some(1),
                _ => None,
            })
        })
    }

    /// A description of the counted events.
    #[must_use]
    pub const fn what(&self) -> &'static str {
        match self.kind {
            Kind::Cycles => "cycles at license levels",
            Kind::Packed => "packed floating-point arithmetic",
        }
    }

    /// Counters for a process, none of them open yet.
    ///
    /// # Errors
    /// As [`ProcessCounters::new`].
    pub fn of_process(&self, process: i32) -> Result<Counters, Unavailable> {
        let counters = ProcessCounters::new(process, &self.countables)?;
        Ok(Counters::new(Box::new(counters), self.kind, self.levels.clone()))
    }

    /// Like [`Self::of_process`], for a client's process. A process that has ended may have left
    /// its id to a process of another user.
    ///
    /// # Errors
    /// As [`Self::of_process`], and if the process does not belong to this user.
    pub fn of_client(&self, (process, user): (i32, u32)) -> Result<Counters, Unavailable> {
        if perf::owner(process).is_ok_and(|owner| owner != user) {
            let why = format!("process {process} is not of user {user}, or has more rights");
            return Err(Unavailable::new("performance counters of a client", why, "none"));
        }
        self.of_process(process)
    }
}

/// The source of counts: [`ProcessCounters`], except in tests.
trait Source: std::fmt::Debug {
    /// Starts to count one more thread. Returns whether there are others.
    fn open_next(&mut self, root: &Root) -> Result<bool, Unavailable>;

    /// The number of files that it needs, as far as known.
    fn files(&self) -> usize;

    /// The counts so far.
    fn read(&mut self) -> io::Result<Vec<u64>>;
}

impl Source for ProcessCounters {
    fn open_next(&mut self, root: &Root) -> Result<bool, Unavailable> {
        Self::open_next(self, root)
    }

    fn files(&self) -> usize {
        Self::files(self)
    }

    fn read(&mut self) -> io::Result<Vec<u64>> {
        Self::read(self)
    }
}

/// The counters of one client.
#[derive(Debug)]
pub struct Counters {
    source: Box<dyn Source>,
    /// Whether all are open.
    pub is_open: bool,
    kind: Kind,
    levels: Vec<usize>,
    /// The counts when they were read last.
    last: Vec<u64>,
    /// Time since they were read last (ns).
    unread_ns: u64,
    evidence: Evidence,
}

impl Counters {
    fn new(source: Box<dyn Source>, kind: Kind, levels: Vec<usize>) -> Self {
        let last = vec![0; levels.len() + 1];
        Self { source, is_open: false, kind, levels, last, unread_ns: 0, evidence: Evidence::None }
    }

    /// Starts to count one more thread.
    ///
    /// # Errors
    /// As [`ProcessCounters::open_next`].
    pub fn open_next(&mut self, root: &Root) -> Result<(), Unavailable> {
        self.is_open = !self.source.open_next(root)?;
        Ok(())
    }

    /// The number of files that they need when all are open, as far as known.
    #[must_use]
    pub fn files(&self) -> usize {
        self.source.files()
    }

    /// The evidence of the last second or so. `span_ns` is the time since the last call.
    /// [`Evidence::None`] if the counters cannot be read.
    pub fn look(&mut self, span_ns: u64) -> Evidence {
        self.unread_ns = self.unread_ns.saturating_add(span_ns);
        if self.unread_ns >= PERIOD_NS {
            self.unread_ns = 0;
            self.evidence = self.source.read().map_or(Evidence::None, |counts| self.since(counts));
        }
        self.evidence
    }

    /// The evidence from the counts since the last time.
    fn since(&mut self, counts: Vec<u64>) -> Evidence {
        let mut news = counts.iter().zip(&self.last).map(|(now, last)| now.saturating_sub(*last));
        let all = news.next().unwrap_or(0);
        let mut at = [0_u64; LEVELS];
        for (level, part) in self.levels.iter().zip(news) {
            at[*level] = at[*level].saturating_add(part);
        }
        self.last = counts;
        match self.kind {
            Kind::Cycles => Evidence::LicenseCycles { all, at },
            Kind::Packed => Evidence::PackedArithmetic { all, at },
        }
    }
}

#[cfg(test)]
#[expect(clippy::print_stdout, reason = "tests say why they are skipped")]
pub(crate) mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Made-up counts of a process with `threads` threads; reads fail when no counts are left.
    #[derive(Debug)]
    struct MadeUp {
        counts: VecDeque<Vec<u64>>,
        threads: usize,
        opened: usize,
        /// Threads of its children, which are found with its first thread.
        children: usize,
    }

    impl Source for MadeUp {
        fn open_next(&mut self, _: &Root) -> Result<bool, Unavailable> {
            self.opened += 1;
            self.threads += std::mem::take(&mut self.children);
            Ok(self.opened < self.threads)
        }

        fn files(&self) -> usize {
            self.threads * 3
        }

        fn read(&mut self) -> io::Result<Vec<u64>> {
            self.counts.pop_front().ok_or_else(|| io::ErrorKind::NotFound.into())
        }
    }

    /// Counters that return these counts in order: all cycles, and those at L1 and L2.
    pub(crate) fn made_up(counts: &[[u64; 3]]) -> Counters {
        of_kind(Kind::Cycles, counts)
    }

    fn of_kind(kind: Kind, counts: &[[u64; 3]]) -> Counters {
        let counts = counts.iter().map(|counts| counts.to_vec()).collect();
        let source = MadeUp { counts, threads: 1, opened: 0, children: 0 };
        Counters::new(Box::new(source), kind, vec![0, 1])
    }

    /// Unopened counters of `threads` threads, and of `children` threads of children, with three
    /// files each.
    pub(crate) fn unopened(threads: usize, children: usize) -> Counters {
        let source = MadeUp { counts: VecDeque::new(), threads, opened: 0, children };
        Counters::new(Box::new(source), Kind::Cycles, vec![0, 1])
    }

    #[test]
    fn a_processor_has_license_events_or_none() {
        let counted = Counted::of(Microarchitecture::SkylakeServer).unwrap();
        assert_eq!(counted.levels, [0, 1]);
        assert_eq!(counted.countables[0], Countable::Cycles);
        assert_eq!(counted.kind, Kind::Cycles);
        assert_eq!(Counted::of(Microarchitecture::AlderLake).unwrap().levels, [0, 1, 2]);
        let newer = Counted::of(Microarchitecture::GraniteRapids).unwrap();
        assert_eq!((newer.kind, newer.levels), (Kind::Packed, vec![0, 0, 1, 1]));
        assert_eq!(newer.countables[0], Countable::Instructions);
        assert_eq!(Counted::of(Microarchitecture::Zen5).unwrap().levels, [0, 1]);
        for without in [Microarchitecture::Zen3, Microarchitecture::Unknown] {
            assert_eq!(Counted::of(without), None);
        }
    }

    #[test]
    fn cycles_of_each_second_are_told() {
        let mut counters = made_up(&[[1000, 100, 10], [3000, 1100, 10], [2000, 0, 0]]);
        let cycles = |all, l1, l2| Evidence::LicenseCycles { all, at: [l1, l2, 0, 0] };
        assert_eq!(counters.look(PERIOD_NS - 1), Evidence::None, "too early");
        assert_eq!(counters.look(1), cycles(1000, 100, 10));
        assert_eq!(counters.look(PERIOD_NS / 2), cycles(1000, 100, 10), "as before, meanwhile");
        assert_eq!(counters.look(PERIOD_NS / 2), cycles(2000, 1000, 0));
        assert_eq!(counters.look(PERIOD_NS), cycles(0, 0, 0), "counters that went back");
        assert_eq!(counters.look(u64::MAX), Evidence::None, "nobody there any more");
    }

    #[test]
    fn packed_arithmetic_is_told_of_all_instructions() {
        let mut counters = of_kind(Kind::Packed, &[[1000, 0, 200]]);
        let packed = Evidence::PackedArithmetic { all: 1000, at: [0, 200, 0, 0] };
        assert_eq!(counters.look(PERIOD_NS), packed);
    }

    #[test]
    fn who_has_no_such_counters_gets_none() {
        let counted = Counted::of(Microarchitecture::SkylakeServer).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let owner = perf::owner(own).unwrap();
        let of = |process, user| counted.of_client((process, user)).unwrap_err().to_string();
        assert!(of(own, owner + 1).contains("not of user"));
        // 0 is the id of a client in a namespace that this process does not see.
        for gone in [0, i32::MAX] {
            assert!(of(gone, owner).contains(&format!("process {gone}:")));
        }
        let opened =
            counted.of_client((own, owner)).and_then(|mut own| own.open_next(&Root::live()));
        if !perf::tells_children() {
            println!(
                "SKIPPED: the kernel does not tell what a process has started (CONFIG_PROC_CHILDREN)"
            );
        } else if let Err(why) = opened {
            // Succeeds if the processor has the events; otherwise `perf_event_open` fails.
            assert!(why.to_string().contains("perf_event_open"), "{why}");
        }
    }
}
