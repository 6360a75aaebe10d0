//! A lock's strategy, chosen by its own use.
//!
//! The lock notes how many acquisitions find it taken, how long these wait, and how long one
//! section in 16 lasts. After each 31 sections, `policy::boost::choose` decides by the medians. All
//! of this happens under the lock; it costs a reading of the clock for each wait and two for each
//! section that is timed.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dimmer_policy::boost::{Offers, Sample, Strategy, choose};
use dimmer_processor::units::{Nanos, Picos};
use dimmer_runtime::{monitor, time_to_wake};

/// One section in this number is timed. A guess: then the clock's readings, of some 25 ns, are a
/// few nanoseconds for each section.
const PERIOD: u32 = 16;
/// The sections by which a decision is made: odd, for the median.
const SECTIONS: usize = 31;
/// `monitor` and `mwait` without a wait in between. Paper 002, table 4; not measured on this
/// machine.
const MONITOR: Nanos = Nanos::from_ns(454);

/// The time to sleep and be woken, where it cannot be measured, as on a single CPU. A guess: two
/// system calls and two changes of threads take some microseconds.
const USUAL_BLOCK: Duration = Duration::from_micros(5);

/// The choice of a strategy for one lock.
#[derive(Debug)]
pub(crate) struct Auto {
    offers: Offers,
    /// The index of the strategy in [`Strategy::ALL`].
    chosen: AtomicUsize,
    /// Whether a strategy with requests was ever chosen: 1 or 0.
    has_requested: AtomicU32,
    /// It belongs to the owner of the lock.
    seen: UnsafeCell<Seen>,
}

// SAFETY: `seen` belongs to the owner of the lock.
unsafe impl Sync for Auto {}

/// What was seen since the last decision.
#[derive(Debug, Default)]
struct Seen {
    acquired: u32,
    contended: u32,
    since: Option<Instant>,
    sections: Times,
    waits: Times,
}

/// The latest times.
#[derive(Debug, Default)]
struct Times {
    all: [Duration; SECTIONS],
    count: usize,
}

impl Times {
    fn add(&mut self, time: Duration) {
        self.all[self.count % SECTIONS] = time;
        self.count += 1;
    }

    /// The median; zero if there is none.
    fn median(&mut self) -> Picos {
        let times = &mut self.all[..self.count.min(SECTIONS)];
        times.sort_unstable();
        let middle = times.get(times.len() / 2).copied().unwrap_or_default();
        let ns = u64::try_from(middle.as_nanos()).unwrap_or(u64::MAX);
        Nanos::from_ns(ns).picos()
    }
}

impl Seen {
    fn sample(&mut self) -> Sample {
        Sample {
            section: self.sections.median(),
            wait: self.waits.median(),
            contended: f64::from(self.contended) / f64::from(self.acquired.max(1)),
            stalled: 0.0,
        }
    }
}

impl Auto {
    pub(crate) fn new(offers: Offers) -> Self {
        Self {
            offers,
            chosen: AtomicUsize::new(0),
            has_requested: AtomicU32::new(0),
            seen: UnsafeCell::default(),
        }
    }

    /// The strategy now; `spin` until the first decision.
    pub(crate) fn strategy(&self) -> Strategy {
        // Relaxed: a thread that waits may see an older one; the owner sees the latest by the lock.
        Strategy::ALL[self.chosen.load(Ordering::Relaxed)]
    }

    /// Whether threads may have requests in force that this strategy does not make.
    pub(crate) fn has_left_requests(&self, strategy: Strategy) -> bool {
        self.has_requested.load(Ordering::Relaxed) == 1 && !strategy.requests()
    }

    /// Notes an acquisition, and since when it has waited.
    ///
    /// # Safety
    /// The caller has the lock.
    pub(crate) unsafe fn acquired(&self, waited_since: Option<Instant>) {
        // SAFETY: it belongs to the owner of the lock.
        let seen = unsafe { &mut *self.seen.get() };
        seen.acquired += 1;
        if let Some(since) = waited_since {
            seen.contended += 1;
            seen.waits.add(since.elapsed());
        }
        if seen.acquired.is_multiple_of(PERIOD) {
            seen.since = Some(Instant::now());
        }
    }

    /// Notes the end of a section, and decides if there were enough.
    ///
    /// # Safety
    /// The caller has the lock.
    pub(crate) unsafe fn releases(&self) {
        // SAFETY: it belongs to the owner of the lock.
        let seen = unsafe { &mut *self.seen.get() };
        let Some(since) = seen.since.take() else { return };
        seen.sections.add(since.elapsed());
        if seen.sections.count == SECTIONS {
            let strategy = choose(&seen.sample(), &self.offers);
            *seen = Seen::default();
            if strategy.requests() {
                self.has_requested.store(1, Ordering::Relaxed);
            }
            let index = Strategy::ALL.iter().position(|one| *one == strategy);
            self.chosen.store(index.unwrap_or_default(), Ordering::Relaxed);
        }
    }
}

/// What this machine offers without any control of clocks: ways to wait. Blocking is measured by
/// the first call of the process (by several, if threads make it at once), between CPUs
/// ([`time_to_wake`]); where that is impossible, a guess counts. The monitor-wait's cost is the
/// paper's.
///
/// A program that knows its processor's model adds the boosts that this gives:
///
/// ```
/// use dimmer_locks::{Decorated, Offers, RawMutex, Unchanged, auto};
/// use dimmer_policy::break_even::Boosts;
/// use dimmer_processor::model::{Model, builtin};
///
/// let text = builtin("fx-8120").expect("a model of this name");
/// let model = Model::parse("fx-8120".as_ref(), text).expect("a model");
/// let own = Boosts::new(&model).ok().map(|boosts| boosts.owner);
/// let offers = Offers { own, ..auto::offers_without_clocks() };
/// let lock = lock_api::Mutex::from_raw(Decorated::<RawMutex, _>::auto(offers, Unchanged), 0);
/// *lock.lock() += 1;
/// ```
#[must_use]
pub fn offers_without_clocks() -> Offers {
    /// Nanoseconds; 0 before the first call.
    static BLOCK: AtomicU64 = AtomicU64::new(0);
    // Relaxed: the number is all there is.
    let mut block = BLOCK.load(Ordering::Relaxed);
    if block == 0 {
        block = Nanos::from(time_to_wake().unwrap_or(USUAL_BLOCK)).ns().max(1);
        BLOCK.store(block, Ordering::Relaxed);
    }
    Offers {
        own: None,
        neighbour: None,
        fast_core: None,
        monitor: monitor::is_available().then(|| MONITOR.picos()),
        block: Nanos::from_ns(block).picos(),
    }
}
