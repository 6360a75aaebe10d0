//! The thread that is pinned to a dedicated core and runs the work in its lanes.

use std::cell::Cell;
use std::ffi::CString;
use std::io::Write as _;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, compiler_fence};
use std::sync::mpsc;

use dimmer_host::affinity::{self, AffinityError, Pinned};
use dimmer_host::cpusets;
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;

use crate::cores::StartError;
use crate::doorbell::Doorbell;
use crate::lane::{DELEGATE, DELEGATE_LEAF, Lane, MIGRATE, WITHDRAWN};
use crate::slot::{self, Place, SLOTS};
use crate::spawn::{Spawned, spawn};
use crate::switch::{self, Context};
use crate::word::Patience;
use crate::{call_migration, fork, migrate, signals};

/// Prefix of the names of workers' threads; the number of their CPU follows.
pub const WORKERS: &str = "dimmer-";

/// The worker's position while it does no work.
const NOWHERE: usize = usize::MAX;

/// Number of polls of all lanes between two readings of the clock.
const TURNS: u32 = 64;

/// Data that the worker shares with the threads that hand work to it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) cpu: CpuId,
    /// By slot.
    pub(crate) lanes: Box<[Lane]>,
    /// All lanes that were ever used are below this slot.
    used: AtomicUsize,
    doorbell: Line<Doorbell>,
    must_end: AtomicBool,
    has_ended: AtomicBool,
    /// A thread has waited in vain while other work was in progress. Until that work has ended, no
    /// thread requests more.
    is_held_up: AtomicBool,
    /// The lane whose work is in progress.
    at: Line<AtomicUsize>,
    pub(crate) own: Line<Own>,
}

/// Data that only the worker itself changes, and threads while they run on it.
pub(crate) struct Own {
    /// The kernel's id of its thread, which other threads read as well; 0 before it has started.
    thread: AtomicU32,
    /// Where it resumes when the thread that it carries leaves.
    pub(crate) context: Cell<Context>,
    /// Address of its thread-local storage.
    thread_pointer: Cell<u64>,
    /// Its stack pointer when it began to look for work.
    stack: Cell<usize>,
    /// The thread-local storage in use: its own, or that of the thread that it carried last.
    in_force: Cell<u64>,
    /// Whether faults of its own end the process, regardless of the program's handlers.
    blocks_faults: Cell<bool>,
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
        self.thread.load(Ordering::Acquire)
    }

    /// Switches to a thread's storage. The worker's own is restored when the worker needs it, and
    /// not at once: a thread that comes again finds its own, and each change takes some 15 ns.
    ///
    /// # Safety
    /// The caller is the worker, and [`migrate::check`] has found that the change is allowed. Until
    /// [`Self::settle`], the worker uses no thread-local storage.
    #[inline(always)]
    pub(crate) unsafe fn put_in_force(&self, thread_pointer: u64) {
        if self.in_force.get() != thread_pointer {
            self.in_force.set(thread_pointer);
            // SAFETY: the caller guarantees that the change is allowed, and uses no thread-local
            // storage.
            unsafe { switch::set_thread_pointer(thread_pointer) };
        }
    }

    /// Switches back to the worker's own thread-local storage. The worker calls it before it uses
    /// any.
    #[inline]
    fn settle(&self) {
        // SAFETY: the worker's own storage. Where changes are not allowed, it was never replaced.
        unsafe { self.put_in_force(self.thread_pointer.get()) };
    }

    /// Blocks the worker's faults, so that they end the process by their signals, or unblocks them,
    /// so that they call the program's handlers. Only the worker calls it. Takes a system call if
    /// that changes.
    #[inline]
    fn block_faults(&self, blocks: bool) {
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
        unsafe { switch::set_thread_pointer(storage) };
        self.in_force.set(storage);
    }
}

impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Own").finish_non_exhaustive()
    }
}

/// A value in its own cache line, and in the one that processors fetch with it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Line<T>(pub(crate) T);

/// A worker that runs.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    thread: Option<Spawned>,
}

impl Worker {
    /// Starts a worker on a CPU, and returns when it runs there. If the CPU belongs to a cpuset,
    /// `entrance` lets the worker in.
    ///
    /// # Errors
    /// If it cannot be pinned there.
    pub(crate) fn start(
        root: &Root,
        cpu: CpuId,
        entrance: Option<&str>,
        patience: Patience,
    ) -> Result<Self, StartError> {
        let shared = Arc::new(Shared {
            cpu,
            lanes: std::iter::repeat_with(Lane::default).take(SLOTS).collect(),
            used: AtomicUsize::new(0),
            doorbell: Line::default(),
            must_end: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            is_held_up: AtomicBool::new(false),
            at: Line(AtomicUsize::new(NOWHERE)),
            own: Line(Own {
                thread: AtomicU32::new(0),
                context: Cell::default(),
                thread_pointer: Cell::new(0),
                stack: Cell::new(0),
                in_force: Cell::new(0),
                blocks_faults: Cell::new(false),
                forks: fork::forks(),
            }),
        });
        let (tell, told) = mpsc::channel();
        let mine = Arc::clone(&shared);
        let (root, entrance) = (root.clone(), entrance.map(str::to_owned));
        // Threads inherit the mask: signals are for the program's own threads.
        let mask = signals::exchange();
        let name = CString::new(format!("{WORKERS}{cpu}")).unwrap_or_default();
        let spawned = spawn(move || {
            // If this fails, the thread has the program's name.
            let _ = rustix::thread::set_name(&name);
            let pinned = stand(&root, cpu, entrance.as_deref());
            mine.begin();
            // For children that its work forks.
            signals::remember(mask);
            let (_pinned, outcome) = match pinned {
                Ok(pinned) => (Some(pinned), Ok(())),
                Err(error) => (None, Err(error)),
            };
            let is_pinned = outcome.is_ok();
            let _ = tell.send(outcome);
            if is_pinned {
                mine.work(patience);
            }
        });
        signals::set(&mask);
        let thread = spawned.map_err(AffinityError::System)?;
        let has_ended = |_| {
            let ended = std::io::Error::other("the worker did not start");
            Err(AffinityError::System(ended).into())
        };
        match told.recv().unwrap_or_else(has_ended) {
            Ok(()) => Ok(Self { shared, thread: Some(thread) }),
            Err(error) => {
                thread.join();
                Err(error)
            }
        }
    }
}

/// Pins the calling thread to a CPU.
fn stand(root: &Root, cpu: CpuId, entrance: Option<&str>) -> Result<Pinned, StartError> {
    if let Some(entrance) = entrance {
        cpusets::enter(root, entrance)?;
    }
    Ok(affinity::pin(root, cpu)?)
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.must_end.store(true, Ordering::SeqCst);
        self.shared.doorbell.0.wake();
        let Some(thread) = self.thread.take() else { return };
        if fork::forks() != self.shared.own.0.forks {
            // In a child that thread never existed: its handle may refer to another thread by now.
            std::mem::forget(thread);
        } else if self.shared.is_alive() {
            thread.join();
        }
    }
}

impl Shared {
    /// The lane of a slot.
    pub(crate) fn lane(&self, slot: usize) -> &Lane {
        if self.used.load(Ordering::Relaxed) <= slot {
            self.used.fetch_max(slot + 1, Ordering::SeqCst);
        }
        &self.lanes[slot]
    }

    /// Whether the worker sleeps until a thread rings.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_asleep(&self) -> bool {
        self.doorbell.0.is_asleep()
    }

    /// Wakes the worker if it sleeps. Call it after filling a lane.
    #[inline]
    pub(crate) fn ring(&self) {
        self.doorbell.0.ring();
    }

    /// The kernel's id of the worker's thread.
    pub(crate) fn thread(&self) -> Option<u32> {
        Some(self.own.0.thread()).filter(|thread| *thread != 0)
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
        // The worker stores its position, and reads the word again: either it has seen the change,
        // or its position is visible here.
        if !signals::fence_all() || self.is_at(slot) || word.value() != WITHDRAWN {
            word.change(WITHDRAWN, asked);
            return false;
        }
        self.is_held_up.store(true, Ordering::SeqCst);
        if !self.is_elsewhere(slot) {
            self.is_held_up.store(false, Ordering::Relaxed);
        }
        true
    }

    /// Whether another lane's work is in progress.
    fn is_elsewhere(&self, slot: usize) -> bool {
        let at = self.at.0.load(Ordering::SeqCst);
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
        self.at.0.load(Ordering::Acquire) == slot
    }

    /// Stores what other threads need about the worker's thread. Runs on that thread.
    fn begin(&self) {
        slot::set_place(Place::Worker);
        // The C library unblocks its cancellation signal in new threads.
        signals::block_as_migrated();
        if migrate::check().is_ok() {
            // SAFETY: the check has found that reading it is allowed.
            let own = unsafe { switch::thread_pointer() };
            self.own.0.thread_pointer.set(own);
            self.own.0.in_force.set(own);
        }
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        self.own.0.thread.store(u32::try_from(thread).unwrap_or(0), Ordering::Release);
    }

    /// Runs the work in the lanes until the worker must end.
    fn work(&self, patience: Patience) {
        let place = 0_u8;
        self.own.0.stack.set((&raw const place).addr());
        loop {
            // Here, and not in each poll: even reading it there made a hand-off a quarter longer.
            if self.is_held_up.load(Ordering::Relaxed) {
                self.is_held_up.store(false, Ordering::Relaxed);
            }
            let mut begin = None;
            let mut turns = TURNS;
            let is_idle = loop {
                if (0..turns).any(|_| self.look()) {
                    break false;
                }
                self.own.0.settle();
                let since: &mut std::time::Instant =
                    begin.get_or_insert_with(std::time::Instant::now);
                if since.elapsed() >= patience.0 {
                    break true;
                }
                turns = if self.monitor_wait() { 1 } else { TURNS };
            };
            if self.must_end.load(Ordering::SeqCst) {
                // Work that no thread waits for, since its owner has leaked it (`forget`).
                self.look();
                self.own.0.settle();
                return;
            }
            if is_idle {
                let has_work = || self.must_end.load(Ordering::SeqCst) || self.look();
                self.doorbell.0.sleep(has_work, call_migration::let_back);
            }
        }
    }

    /// Waits for a change of the only lane, see
    /// [`Word::monitor_wait`](crate::word::Word::monitor_wait). A processor cannot watch several
    /// lanes.
    fn monitor_wait(&self) -> bool {
        let is_idle = |word| !is_asked(word);
        self.used.load(Ordering::Relaxed) == 1 && self.lanes[0].word.monitor_wait(is_idle)
    }

    /// Polls each lane once, and runs the work there. Returns whether there was any.
    #[inline]
    fn look(&self) -> bool {
        let mut has_found = false;
        for (slot, lane) in self.lanes[..self.used.load(Ordering::Relaxed)].iter().enumerate() {
            let asked = lane.word.value();
            if !is_asked(asked) {
                continue;
            }
            has_found = true;
            // Ordering: the store comes before the load that follows; `give_back` makes the
            // processor enforce that.
            self.at.0.store(slot, Ordering::Release);
            compiler_fence(Ordering::SeqCst);
            if lane.word.value() != asked {
                self.at.0.store(NOWHERE, Ordering::Release);
                continue;
            }
            self.own.0.block_faults(asked == DELEGATE_LEAF);
            if asked != MIGRATE {
                self.own.0.settle();
                // SAFETY: the word requests a call, and this is the lane's worker.
                unsafe { lane.answer_call() };
                if fork::forks() != self.own.0.forks {
                    end_child();
                }
            } else {
                // SAFETY: the word requests a migration, and this is the lane's worker.
                unsafe { migrate::carry(self, lane) };
            }
            self.at.0.store(NOWHERE, Ordering::Release);
        }
        if !has_found {
            std::hint::spin_loop();
        }
        has_found
    }
}

/// Whether a lane's word requests work.
#[inline]
const fn is_asked(word: u32) -> bool {
    matches!(word, DELEGATE | MIGRATE | DELEGATE_LEAF)
}

/// Ends a process that was forked by a closure on a worker, when the closure returns: its caller
/// exists only in the parent.
fn end_child() {
    let _ = writeln!(
        std::io::stderr(),
        "dimmer: a closure that was offloaded has forked; its child ends where the closure does"
    );
    // SAFETY: ends the process without the exit handlers of its parent.
    unsafe { libc::_exit(1) };
}
