//! Which edges of the code a case took, and how often, from the counters that LLVM's
//! SanitizerCoverage adds.
//!
//! <https://clang.llvm.org/docs/SanitizerCoverage.html>, *Inline 8bit-counters*. Without its flags
//! (see `.cargo/config.toml`) there are no counters, and every case looks like the others.

use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

static FIRST: AtomicPtr<AtomicU8> = AtomicPtr::new(std::ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Takes the counters between `start` and `stop`. Each instrumented module calls it before `main`,
/// every time with the counters of the whole program.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut AtomicU8, stop: *mut AtomicU8) {
    FIRST.store(start, Ordering::Relaxed);
    COUNT.store(stop.addr().saturating_sub(start.addr()), Ordering::Relaxed);
}

fn counters() -> &'static [AtomicU8] {
    let first = FIRST.load(Ordering::Relaxed);
    if first.is_null() {
        return &[];
    }
    // SAFETY: LLVM lays out this many bytes from `first`, and they stay as long as the program
    // runs. Instrumented code counts without atomics, but only on this thread while it is not here.
    unsafe { std::slice::from_raw_parts(first, COUNT.load(Ordering::Relaxed)) }
}

/// The coverage of all cases so far.
#[derive(Debug)]
pub struct Coverage {
    /// For each counter, one bit for each range of counts seen.
    seen: Vec<u8>,
}

impl Coverage {
    /// The coverage before the first case.
    pub fn new() -> Self {
        Self { seen: vec![0; counters().len()] }
    }

    /// Whether there are counters.
    pub fn is_on(&self) -> bool {
        !self.seen.is_empty()
    }

    /// The number of edges taken by any case.
    pub fn edges(&self) -> usize {
        self.seen.iter().filter(|ranges| **ranges != 0).count()
    }

    /// Starts a case.
    pub fn begin(&self) {
        for counter in counters() {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// Ends a case. Returns whether it took an edge that no case took before, or took one more
    /// often.
    pub fn end(&mut self) -> bool {
        let mut new = false;
        for (counter, seen) in counters().iter().zip(&mut self.seen) {
            let range = range(counter.load(Ordering::Relaxed));
            new |= *seen | range != *seen;
            *seen |= range;
        }
        new
    }
}

/// The bit for a count's range. The ranges are libFuzzer's, `CounterToFeature` in
/// `FuzzerTracePC.h`.
fn range(count: u8) -> u8 {
    match count {
        0 => 0,
        1 => 1,
        2 => 1 << 1,
        3 => 1 << 2,
        4..=7 => 1 << 3,
        8..=15 => 1 << 4,
        16..=31 => 1 << 5,
        32..=127 => 1 << 6,
        128.. => 1 << 7,
    }
}
