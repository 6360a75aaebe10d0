//! The doorbell that wakes a worker. A thread that fills a lane rings it if the worker sleeps.

use std::time::Duration;

use super::patience::Patience;
use super::word::Word;

/// The worker polls its lanes.
const AWAKE: u32 = 0;
/// The worker sleeps until a thread rings.
const ASLEEP: u32 = 1;

/// The doorbell. It changes rarely, so threads that ring it read it from their own caches.
#[derive(Debug, Default)]
pub(crate) struct Doorbell(Word);

impl Doorbell {
    /// Wakes the worker if it sleeps. Call it after filling a lane with [`Word::set`].
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

    /// Wakes the worker, whether or not it sleeps.
    pub(crate) fn wake(&self) {
        self.0.post(AWAKE);
    }

    /// Sleeps until a thread rings, unless there is work already. After each nap, `gives_up` may
    /// end that; then this returns false.
    pub(crate) fn sleep(
        &self,
        has_work: impl FnOnce() -> bool,
        gives_up: impl Fn() -> bool,
    ) -> bool {
        // This comes before the look at the lanes: a thread that fills a lane later sees it, and
        // rings.
        self.0.set(ASLEEP);
        let mut stays = true;
        if !has_work() {
            while stays && self.0.wait_while(ASLEEP, Patience(Duration::ZERO)).is_none() {
                stays = !gives_up();
            }
        }
        self.0.set(AWAKE);
        stays
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;

    use super::*;
    use crate::lane::DELEGATE;

    #[test]
    fn loom_a_worker_that_goes_to_sleep_misses_nothing() {
        loom::model(|| {
            let shared = Arc::new((Word::default(), Doorbell::default()));
            let owner = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || {
                owner.0.set(DELEGATE);
                owner.1.ring();
            });
            let (lane, doorbell) = &*shared;
            while lane.value() != DELEGATE {
                doorbell.sleep(|| lane.value() == DELEGATE, || false);
            }
            thread.join().unwrap();
        });
    }
}
