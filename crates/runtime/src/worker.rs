//! The thread that stands on a dedicated core and takes over what is in its lanes.

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
use crate::lane::{CALL, LENT, Lane, TRAVEL, WITHDRAWN};
use crate::slot::{self, Place, SLOTS};
use crate::spawn::{Spawned, spawn};
use crate::switch::{self, Context};
use crate::word::Patience;
use crate::{fork, signals, travel, trip};

/// What the names of workers' threads begin with; after it comes the hardware thread that they
/// stand on.
pub const WORKERS: &str = "dimmer-";

/// Where the worker is while it does no work.
const NOWHERE: usize = usize::MAX;

/// Looks at all lanes between two looks at the time.
const TURNS: u32 = 64;

/// What the worker shares with those who hand work to it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) cpu: CpuId,
    /// By slot.
    pub(crate) lanes: Box<[Lane]>,
    /// Lanes that were ever used: those below this slot.
    used: AtomicUsize,
    doorbell: Line<Doorbell>,
    must_end: AtomicBool,
    has_ended: AtomicBool,
    /// Somebody waited in vain while other work was under way; until that has ended, nobody asks
    /// for more.
    is_held_up: AtomicBool,
    /// Which lane's work is under way.
    at: Line<AtomicUsize>,
    pub(crate) own: Line<Own>,
}

/// What only the worker itself, and threads while they run on it, change.
pub(crate) struct Own {
    /// The kernel's number of its thread, which others read as well; 0 before it has begun.
    thread: AtomicU32,
    /// Where it goes on when the thread that it carries leaves.
    pub(crate) context: Cell<Context>,
    /// Its thread-local storage.
    thread_pointer: Cell<u64>,
    /// Where its stack was when it began to look for work.
    stack: Cell<usize>,
    /// Whose thread-local storage is in force: its own, or that of the thread that it carried last.
    in_force: Cell<u64>,
    /// Whether faults of its own end the process, whatever the program does about them.
    blocks_faults: Cell<bool>,
    /// How often the process had been forked when the worker started.
    pub(crate) forks: u32,
}

// SAFETY: see the type.
unsafe impl Sync for Own {}

impl Own {
    /// Where it lies in this, for who reads another's: the kernel's number of its thread (32 bits),
    /// and its place on the stack.
    pub(crate) const THREAD: usize = offset_of!(Self, thread);
    pub(crate) const STACK: usize = offset_of!(Self, stack);
    /// No deeper than this is the worker's stack, from there on, while another thread's storage is
    /// in force.
    pub(crate) const DEEPEST: usize = 64 << 10;

    /// The kernel's number of the worker's thread.
    pub(crate) fn thread(&self) -> u32 {
        self.thread.load(Ordering::Acquire)
    }

    /// Puts a thread's storage in force. The worker's own is put back when it needs it, and not at
    /// once: a thread that comes again finds its own, and each change takes some 15 ns.
    ///
    /// # Safety
    /// The caller is the worker, and [`travel::check`] has found that it may be changed. Until
    /// [`Self::settle`], the worker uses no thread-local storage.
    #[inline(always)]
    pub(crate) unsafe fn put_in_force(&self, thread_pointer: u64) {
        if self.in_force.get() != thread_pointer {
            self.in_force.set(thread_pointer);
            // SAFETY: as the caller says.
            unsafe { switch::set_thread_pointer(thread_pointer) };
        }
    }

    /// Puts the worker's own thread-local storage in force; to be called by the worker, before it
    /// uses any.
    #[inline]
    fn settle(&self) {
        // SAFETY: the worker's own; where it cannot be changed it never was.
        unsafe { self.put_in_force(self.thread_pointer.get()) };
    }

    /// Has the worker's faults end the process by their signals, or has the program's handlers
    /// called for them; to be called by the worker. A system call if that is new.
    #[inline]
    fn block_faults(&self, blocks: bool) {
        if self.blocks_faults.get() != blocks {
            self.blocks_faults.set(blocks);
            if blocks { signals::block_with_faults() } else { signals::block_as_away() }
        }
    }

    /// The worker's own storage, for [`Self::settle_at`].
    #[cfg(dimmer_tsan)]
    pub(crate) fn storage(&self) -> u64 {
        self.thread_pointer.get()
    }

    /// As [`Self::settle`], without using the storage that is in force even for that: see
    /// [`crate::sanitizer`].
    #[cfg(dimmer_tsan)]
    #[inline(always)]
    pub(crate) fn settle_at(&self, storage: u64) {
        // SAFETY: as above.
        unsafe { switch::set_thread_pointer(storage) };
        self.in_force.set(storage);
    }
}

impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Own").finish_non_exhaustive()
    }
}

/// A cache line for itself, and the one that processors fetch with it.
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
    /// Starts a worker on a hardware thread, and returns when it stands there. Where that is a
    /// cpuset's, `entrance` lets it in.
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
            // Without it, it has the program's name.
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

/// Puts the calling thread onto a hardware thread.
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
            // In a child that thread never was: its handle may be another's by now.
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

    /// Whether the worker sleeps until somebody rings.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_asleep(&self) -> bool {
        self.doorbell.0.is_asleep()
    }

    /// Wakes the worker if it sleeps. To be called after something was put into a lane.
    #[inline]
    pub(crate) fn ring(&self) {
        self.doorbell.0.ring();
    }

    /// The kernel's number of the worker's thread.
    pub(crate) fn thread(&self) -> Option<u32> {
        Some(self.own.0.thread()).filter(|thread| *thread != 0)
    }

    /// Whether somebody has found the worker's thread gone, or held up by what it does.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed) || self.is_held_up.load(Ordering::Relaxed)
    }

    /// Takes back what was asked in a lane, if it was not begun while other work is under way for
    /// long: that may wait for who asks. If so, the lane is the caller's, with the word
    /// [`WITHDRAWN`].
    pub(crate) fn give_back(&self, slot: usize, asked: u32) -> bool {
        let word = &self.lane(slot).word;
        if !self.is_elsewhere(slot) || !word.change(asked, WITHDRAWN) {
            return false;
        }
        // The worker says where it is, and looks at the word again: either it has seen the change,
        // or it is seen here.
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

    /// Whether another lane's work is under way.
    fn is_elsewhere(&self, slot: usize) -> bool {
        let at = self.at.0.load(Ordering::SeqCst);
        at != slot && at != NOWHERE
    }

    /// Whether the worker's thread is still there; a system call.
    pub(crate) fn is_alive(&self) -> bool {
        let is_there = self.thread().is_none_or(signals::is_there);
        if !is_there {
            self.has_ended.store(true, Ordering::Relaxed);
        }
        is_there
    }

    /// Whether the work in a lane was begun.
    pub(crate) fn is_at(&self, slot: usize) -> bool {
        self.at.0.load(Ordering::Acquire) == slot
    }

    /// Notes what others must know of the worker's thread, on it.
    fn begin(&self) {
        slot::set_place(Place::Worker);
        // The C library lets through to new threads what cancels them.
        signals::block_as_away();
        if travel::check().is_ok() {
            // SAFETY: it may be read.
            let own = unsafe { switch::thread_pointer() };
            self.own.0.thread_pointer.set(own);
            self.own.0.in_force.set(own);
        }
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        self.own.0.thread.store(u32::try_from(thread).unwrap_or(0), Ordering::Release);
    }

    /// Does what is in the lanes until it must end.
    fn work(&self, patience: Patience) {
        let place = 0_u8;
        self.own.0.stack.set((&raw const place).addr());
        loop {
            // Here, and not at each look: even reading it there made a hand-over a quarter longer.
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
                // Work that nobody waits for, as its owner has forgotten it.
                self.look();
                self.own.0.settle();
                return;
            }
            if is_idle {
                let has_work = || self.must_end.load(Ordering::SeqCst) || self.look();
                self.doorbell.0.sleep(has_work, trip::let_back);
            }
        }
    }

    /// Waits for the only lane to change, as
    /// [`Word::monitor_wait`](crate::word::Word::monitor_wait) does. Where there are more, a
    /// processor cannot watch them all.
    fn monitor_wait(&self) -> bool {
        let is_idle = |word| !is_asked(word);
        self.used.load(Ordering::Relaxed) == 1 && self.lanes[0].word.monitor_wait(is_idle)
    }

    /// Looks at each lane once, and does what is there; whether there was anything.
    #[inline]
    fn look(&self) -> bool {
        let mut has_found = false;
        for (slot, lane) in self.lanes[..self.used.load(Ordering::Relaxed)].iter().enumerate() {
            let asked = lane.word.value();
            if !is_asked(asked) {
                continue;
            }
            has_found = true;
            // Ordering: the store comes before the load that follows; `give_back` has the processor
            // see to that.
            self.at.0.store(slot, Ordering::Release);
            compiler_fence(Ordering::SeqCst);
            if lane.word.value() != asked {
                self.at.0.store(NOWHERE, Ordering::Release);
                continue;
            }
            self.own.0.block_faults(asked == LENT);
            if asked != TRAVEL {
                self.own.0.settle();
                // SAFETY: the word says so, and this is the worker.
                unsafe { lane.answer_call() };
                if fork::forks() != self.own.0.forks {
                    end_child();
                }
            } else {
                // SAFETY: as above.
                unsafe { travel::carry(self, lane) };
            }
            self.at.0.store(NOWHERE, Ordering::Release);
        }
        if !has_found {
            std::hint::spin_loop();
        }
        has_found
    }
}

/// Whether a lane's word asks for work.
#[inline]
const fn is_asked(word: u32) -> bool {
    matches!(word, CALL | TRAVEL | LENT)
}

/// Ends a process that was forked by a closure on a worker, where that returns: its caller is in
/// the parent alone.
fn end_child() {
    let _ = writeln!(
        std::io::stderr(),
        "dimmer: a closure that was offloaded has forked; its child ends where the closure does"
    );
    // SAFETY: ends the process without what its parent does at its own end.
    unsafe { libc::_exit(1) };
}
