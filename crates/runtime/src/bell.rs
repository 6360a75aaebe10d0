//! The bell that wakes a worker: whoever fills a lane rings, if the worker sleeps.

use std::time::Duration;

use crate::word::{Patience, Word};

/// The worker looks at its lanes.
const AWAKE: u32 = 0;
/// The worker sleeps until somebody rings.
const ASLEEP: u32 = 1;

/// The bell; changed rarely, so who rings reads it in its own cache.
#[derive(Debug, Default)]
pub(crate) struct Bell(Word);

impl Bell {
    /// Wakes the worker if it sleeps. To be called after something was put into a lane, with
    /// [`Word::set`].
    #[inline]
    pub(crate) fn ring(&self) {
        if self.0.value() == ASLEEP {
            self.wake();
        }
    }

    /// Whether the worker sleeps.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_asleep(&self) -> bool {
        self.0.value() == ASLEEP
    }

    /// Wakes the worker, whatever it does.
    pub(crate) fn wake(&self) {
        self.0.post(AWAKE);
    }

    /// Sleeps until somebody rings, unless there is something to do already; does `meanwhile` after
    /// each nap.
    pub(crate) fn sleep(&self, has_work: impl FnOnce() -> bool, meanwhile: impl Fn()) {
        // Before the lanes are looked at: who fills one later finds the bell so, and rings.
        self.0.set(ASLEEP);
        if !has_work() {
            while self.0.wait_while(ASLEEP, Patience(Duration::ZERO)).is_none() {
                meanwhile();
            }
        }
        self.0.set(AWAKE);
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;

    use super::*;
    use crate::lane::CALL;

    #[test]
    fn loom_a_worker_that_goes_to_sleep_misses_nothing() {
        loom::model(|| {
            let shared = Arc::new((Word::default(), Bell::default()));
            let owner = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || {
                owner.0.set(CALL);
                owner.1.ring();
            });
            let (lane, bell) = &*shared;
            while lane.value() != CALL {
                bell.sleep(|| lane.value() == CALL, || ());
            }
            thread.join().unwrap();
        });
    }
}
