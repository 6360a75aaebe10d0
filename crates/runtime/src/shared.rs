//! What a worker shares with the threads that hand work to it.

use std::cell::Cell;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_utils::CachePadded;
use dimmer_processor::units::CpuId;

use crate::arch::{Context, set_thread_pointer};
use crate::lane::{Lane, WITHDRAWN, is_asked};
use crate::primitive::{AtomicBool, AtomicUsize, light_fence};
use crate::signals;
use crate::slot::SLOTS;
use crate::wait::Doorbell;

/// Number of lanes; a model has time for two.
const LANES: usize = if cfg!(all(test, loom)) { 2 } else { SLOTS };

/// The worker's position while it does no work.
const NOWHERE: usize = usize::MAX;

/// Data that the worker shares with the threads that hand work to it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) cpu: CpuId,
    /// By slot.
    pub(crate) lanes: Box<[Lane]>,
    /// All lanes that were ever used are below this slot.
    pub(crate) used: AtomicUsize,
    pub(crate) doorbell: CachePadded<Doorbell>,
    pub(crate) must_end: AtomicBool,
    pub(crate) has_ended: AtomicBool,
    /// A thread has waited in vain while other work was in progress. Until that work has ended, no
    /// thread requests more.
    pub(crate) is_held_up: AtomicBool,
    /// The lane whose work is in progress.
    at: CachePadded<AtomicUsize>,
    pub(crate) own: CachePadded<Own>,
}

/// Data that only the worker itself changes, and threads while they run on it.
pub(crate) struct Own {
    /// The kernel's id of its thread, which other threads read as well; 0 before it has started.
    pub(crate) thread: AtomicU32,
    /// Where it resumes when the thread that it carries leaves.
    pub(crate) context: Cell<Context>,
    /// Address of its thread-local storage.
    pub(crate) thread_pointer: Cell<u64>,
    /// Its stack pointer when it began to look for work.
    pub(crate) stack: Cell<usize>,
    /// The thread-local storage in use: its own, or that of the thread that it carried last.
    pub(crate) in_force: Cell<u64>,
    /// Whether faults of its own end the process, regardless of the program's handlers.
    pub(crate) blocks_faults: Cell<bool>,
    /// The process's number of forks when the worker started.
    pub(crate) forks: u32,
}

// SAFETY: only the worker changes it, and threads while they run on it. Other threads read only
// `thread`, which is atomic, and `forks`, which never changes.
unsafe impl Sync for Own {}

impl Own {
    /// Offsets in this type, for reading another worker's data: the kernel's id of its thread (32
    /// bits), and the position of its stack.
    pub(crate) const THREAD: usize = offset_of!(Self, thread);
    pub(crate) const STACK: usize = offset_of!(Self, stack);
    /// Maximum depth of the worker's stack below that position, while another thread's storage is
    /// in use (bytes).
    pub(crate) const DEEPEST: usize = 64 << 10;

    /// The kernel's id of the worker's thread.
    pub(crate) fn thread(&self) -> u32 {
        // Ordering: pairs with the store in `begin`, when the worker has what other threads need.
        self.thread.load(Ordering::Acquire)
    }

    /// Switches to a thread's storage. The worker's own is restored when the worker needs it, and
    /// not at once: a thread that comes again finds its own, and each change takes some 15 ns.
    ///
    /// # Safety
    /// The caller is the worker, and [`crate::can_migrate::check`] has found that the change is
    /// allowed. Until [`Self::settle`], the worker uses no thread-local storage.
    #[inline(always)]
    pub(crate) unsafe fn put_in_force(&self, thread_pointer: u64) {
        if self.in_force.get() != thread_pointer {
            self.in_force.set(thread_pointer);
            // SAFETY: the caller guarantees that the change is allowed, and uses no thread-local
            // storage.
            unsafe { set_thread_pointer(thread_pointer) };
        }
    }

    /// Switches back to the worker's own thread-local storage. The worker calls it before it uses
    /// any.
    #[inline]
    pub(crate) fn settle(&self) {
        // SAFETY: the worker's own storage. Where changes are not allowed, it was never replaced.
        unsafe { self.put_in_force(self.thread_pointer.get()) };
    }

    /// Blocks the worker's faults, so that they end the process by their signals, or unblocks them,
    /// so that they call the program's handlers. Only the worker calls it. Takes a system call if
    /// that changes.
    #[inline]
    pub(crate) fn block_faults(&self, blocks: bool) {
        if self.blocks_faults.get() != blocks {
            self.blocks_faults.set(blocks);
            if blocks { signals::block_with_faults() } else { signals::block_as_migrated() }
        }
    }

    /// Address of the worker's own storage, for [`Self::settle_at`].
    #[cfg(dimmer_tsan)]
    pub(crate) fn storage(&self) -> u64 {
        self.thread_pointer.get()
    }

    /// Like [`Self::settle`], without using the storage in use even for that: see
    /// [`crate::sanitizer`].
    #[cfg(dimmer_tsan)]
    #[inline(always)]
    pub(crate) fn settle_at(&self, storage: u64) {
        // SAFETY: the worker's own storage, restored after `put_in_force`.
        unsafe { set_thread_pointer(storage) };
        self.in_force.set(storage);
    }
}

impl Own {
    fn new(forks: u32) -> Self {
        Self {
            thread: AtomicU32::new(0),
            context: Cell::default(),
            thread_pointer: Cell::new(0),
            stack: Cell::new(0),
            in_force: Cell::new(0),
            blocks_faults: Cell::new(false),
            forks,
        }
    }
}

impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Own").finish_non_exhaustive()
    }
}

impl Shared {
    /// For a worker on a CPU, in a process that was forked `forks` times.
    pub(crate) fn new(cpu: CpuId, forks: u32) -> Self {
        Self {
            cpu,
            lanes: std::iter::repeat_with(Lane::default).take(LANES).collect(),
            used: AtomicUsize::new(0),
            doorbell: CachePadded::default(),
            must_end: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            is_held_up: AtomicBool::new(false),
            at: CachePadded::new(AtomicUsize::new(NOWHERE)),
            own: CachePadded::new(Own::new(forks)),
        }
    }

    /// The lane of a slot.
    pub(crate) fn lane(&self, slot: usize) -> &Lane {
        if self.used.load(Ordering::Relaxed) <= slot {
            // Ordering: SeqCst, before the request in the lane and the look at the doorbell: a
            // worker that goes to sleep after it polls this lane, too.
            self.used.fetch_max(slot + 1, Ordering::SeqCst);
        }
        &self.lanes[slot]
    }

    /// Whether the worker sleeps until a thread rings.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_asleep(&self) -> bool {
        self.doorbell.is_asleep()
    }

    /// Wakes the worker if it sleeps. Call it after filling a lane.
    #[inline]
    pub(crate) fn ring(&self) {
        self.doorbell.ring();
    }

    /// The kernel's id of the worker's thread.
    pub(crate) fn thread(&self) -> Option<u32> {
        Some(self.own.thread()).filter(|thread| *thread != 0)
    }

    /// Whether a thread has found that the worker's thread has ended, or is held up by its work.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed) || self.is_held_up.load(Ordering::Relaxed)
    }

    /// Takes back a request that was not started, after other work has been in progress for a long
    /// time: that work may wait for the caller. Returns whether it was taken back. The lane then
    /// belongs to the caller, with the word [`WITHDRAWN`].
    pub(crate) fn give_back(&self, slot: usize, asked: u32) -> bool {
        let word = &self.lane(slot).word;
        if !self.is_elsewhere(slot) || !word.change(asked, WITHDRAWN) {
            return false;
        }
        // The worker stores its position, and reads the word again ([`Self::claim`]): either it has
        // seen the change, or its position is visible here.
        if !signals::fence_all() || self.is_at(slot) || word.value() != WITHDRAWN {
            word.change(WITHDRAWN, asked);
            return false;
        }
        // Ordering: SeqCst with the load of `at` that follows, so that a worker which clears the
        // flag is seen at work here.
        self.is_held_up.store(true, Ordering::SeqCst);
        if !self.is_elsewhere(slot) {
            self.is_held_up.store(false, Ordering::Relaxed);
        }
        true
    }

    /// For the worker: begins the work that a lane asks for. Returns false if the owner has taken
    /// the request back.
    #[inline]
    pub(crate) fn claim(&self, slot: usize, lane: &Lane, asked: u32) -> bool {
        // Ordering: the store pairs with the loads of `at`. It also comes before the load that
        // follows: `give_back` makes the processor enforce that.
        self.at.store(slot, Ordering::Release);
        light_fence();
        let is_asked = lane.word.value() == asked;
        if !is_asked {
            self.rest();
        }
        is_asked
    }

    /// For the worker: no work is in progress.
    #[inline]
    pub(crate) fn rest(&self) {
        // Ordering: pairs with the loads of `at` by threads that wait.
        self.at.store(NOWHERE, Ordering::Release);
    }

    /// Whether the work in any lane is in progress. Work that is done no longer counts, even if the
    /// worker has not come to note that yet ([`Self::rest`]): its thread may ask as soon as it is
    /// home.
    pub(crate) fn is_busy(&self) -> bool {
        // Ordering: pairs with the stores in `claim` and `rest`.
        let lane = self.lanes.get(self.at.load(Ordering::Acquire));
        lane.is_some_and(|lane| is_asked(lane.word.value()))
    }

    /// Whether another lane's work is in progress.
    fn is_elsewhere(&self, slot: usize) -> bool {
        // Ordering: SeqCst, for `give_back`, which has stored before it asks.
        let at = self.at.load(Ordering::SeqCst);
        at != slot && at != NOWHERE
    }

    /// Whether the worker's thread still exists. Takes a system call.
    pub(crate) fn is_alive(&self) -> bool {
        let is_there = self.thread().is_none_or(signals::is_there);
        if !is_there {
            self.has_ended.store(true, Ordering::Relaxed);
        }
        is_there
    }

    /// Whether the work in a lane was started.
    pub(crate) fn is_at(&self, slot: usize) -> bool {
        // Ordering: pairs with the stores in `claim` and `rest`.
        self.at.load(Ordering::Acquire) == slot
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::lane::{DELEGATE, IDLE};

    #[test]
    fn a_worker_is_busy_until_the_work_is_done_and_not_until_it_rests() {
        let shared = Shared::new(CpuId::new(0), 0);
        let lane = shared.lane(0);
        assert!(!shared.is_busy());
        lane.word.set(DELEGATE);
        assert!(!shared.is_busy(), "the worker has not begun");
        assert!(shared.claim(0, lane, DELEGATE));
        assert!(shared.is_busy());
        lane.word.post(IDLE);
        assert!(shared.is_at(0), "the worker has not come to rest");
        assert!(!shared.is_busy());
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;

    use super::*;
    use crate::lane::{DELEGATE, IDLE};

    /// Fails if either fence is left out (`light_fence`, `fence_all`), if `claim` does not read the
    /// word again, or if `give_back` does not look where the worker is: then the worker does what
    /// was taken back.
    #[test]
    fn loom_work_is_done_or_taken_back_and_never_both() {
        loom::model(|| {
            let shared = Arc::new(Shared::new(CpuId::new(0), 0));
            // The worker is at the work of the other lane.
            shared.at.store(1, Ordering::SeqCst);
            shared.lane(0).word.set(DELEGATE);
            let worker = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || {
                worker.rest();
                let lane = worker.lane(0);
                let asked = lane.word.value();
                let is_done = is_asked(asked) && worker.claim(0, lane, asked);
                if is_done {
                    lane.word.post(IDLE);
                    worker.rest();
                }
                is_done
            });
            let is_taken_back = shared.give_back(0, DELEGATE);
            let is_done = thread.join().unwrap();
            let expected = match (is_taken_back, is_done) {
                (true, false) => WITHDRAWN,
                (false, true) => IDLE,
                // The worker has passed by, and does it when it comes again.
                (false, false) => DELEGATE,
                (true, true) => unreachable!("the work is done twice"),
            };
            assert_eq!(shared.lane(0).word.value(), expected);
        });
    }
}
