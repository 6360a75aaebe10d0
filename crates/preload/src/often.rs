//! Marks that are passed too often: they are switched off, so that measuring many functions costs
//! little ([`dimmer_policy::phases::too_often`]).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use dimmer_policy::phases::too_often;
use dimmer_processor::units::Nanos;
use dimmer_runtime::wide::process_time;

/// Marks passed from one check to the next. A guess: they take some milliseconds, and the first
/// ones, when a program starts, should not decide alone.
const WINDOW: u32 = 4096;

/// How often the marks of this process were passed since the last check.
struct Often {
    interval: Nanos,
    passed: Vec<AtomicU32>,
    sum: AtomicU32,
    /// The CPU time of the process at the last check (ns).
    since: AtomicU64,
    /// Whether a thread checks now.
    is_checking: AtomicBool,
}

static OFTEN: OnceLock<Often> = OnceLock::new();

/// Prepares for this number of marks, if the environment asks for that.
pub(crate) fn prepare(marks: usize) {
    let interval = std::env::var(dimmer_hook::INTERVAL).ok().and_then(|ns| ns.parse().ok());
    if let Some(interval) = interval.map(Nanos::from_ns) {
        // One more for the mark by which the cost of passing one is measured.
        let passed = (0..=marks).map(|_| AtomicU32::new(0)).collect();
        let (sum, since) = (AtomicU32::new(0), AtomicU64::new(process_time().ns()));
        let is_checking = AtomicBool::new(false);
        let _ = OFTEN.set(Often { interval, passed, sum, since, is_checking });
    }
}

/// Notes that a mark was passed. After each [`WINDOW`] of them, those passed too often are switched
/// off.
pub(crate) fn note(mark: u32) {
    let Some(often) = OFTEN.get() else { return };
    // Relaxed: numbers that are off by a few do no harm.
    if let Some(passed) = often.passed.get(mark as usize).or(often.passed.last()) {
        passed.fetch_add(1, Ordering::Relaxed);
    }
    if often.sum.fetch_add(1, Ordering::Relaxed).wrapping_add(1).is_multiple_of(WINDOW) {
        often.check();
    }
}

/// The process is a child of fork(2): its CPU time starts at zero.
pub(crate) fn forget() {
    if let Some(often) = OFTEN.get() {
        often.since.store(0, Ordering::Relaxed);
        often.passed.iter().for_each(|passed| passed.store(0, Ordering::Relaxed));
        often.sum.store(0, Ordering::Relaxed);
        often.is_checking.store(false, Ordering::Relaxed);
    }
}

impl Often {
    #[cold]
    fn check(&self) {
        // One thread at a time: counts and time must be of the same window. A handler that leaves
        // this by siglongjmp(3) ends the checks, which does no harm.
        // Ordering: Acquire pairs with the store below: `since` is that of the last check.
        if self.is_checking.swap(true, Ordering::Acquire) {
            return;
        }
        let now = process_time();
        let since = Nanos::from_ns(self.since.swap(now.ns(), Ordering::Relaxed));
        let take = |passed: &AtomicU32| passed.swap(0, Ordering::Relaxed);
        let passed: Vec<u32> = self.passed.iter().map(take).collect();
        // In a child that no handler of forks has seen, time has started again.
        if since < now {
            let off = too_often(&passed, now - since, self.interval);
            let off: Vec<u32> = off.into_iter().filter_map(|mark| mark.try_into().ok()).collect();
            dimmer_hook::switch_off(&off);
        }
        // Ordering: pairs with the swap above.
        self.is_checking.store(false, Ordering::Release);
    }
}
