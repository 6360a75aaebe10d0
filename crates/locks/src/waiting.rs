//! How a thread waits for a word that another thread changes.

use std::sync::atomic::{AtomicU32, Ordering};

use dimmer_policy::boost::Act;
use dimmer_runtime::monitor;
use rustix::thread::futex;

/// Looks at a word that is written for this thread alone, before it sleeps or offers its CPU to
/// others. A guess: with some 40 cycles between two looks, 2000 take as long as it takes to sleep
/// and to be woken, so a wait takes at most twice as long as by the better choice.
const OWN_LINE: u32 = 2000;

/// Looks at a word that the owner of the lock writes, too: each takes the line from the owner. So
/// there are few, and the time between two grows by half of itself: however long the sections are,
/// a thread sees that the lock is free after one and a half times the wait at most. A long first
/// pause, or time that doubles, leaves a lock free while threads wait for it; looks of a fixed
/// period come too often for long sections, or too late for short ones. All of them take some
/// 10 us, as long as it takes to sleep and to be woken.
const SHARED_LINE: u32 = 14;
/// Pauses before the first of these looks: the least that grows by half.
const FIRST_PAUSES: u32 = 2;

/// How a thread waits for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It spins until it has the lock. It yields its CPU to other threads from time to time.
    Spin,
    /// By the processor's monitor-wait; without one, as [`Waiting::SpinThenBlock`].
    Monitor,
    /// It sleeps in the kernel at once.
    Block,
    /// It spins for some microseconds, and sleeps then.
    SpinThenBlock,
}

impl Waiting {
    /// The way to wait among a strategy's acts; `SpinThenBlock` if there is none.
    #[must_use]
    pub fn of(acts: &[Act]) -> Self {
        let way = |act: &Act| match act {
            Act::Spin => Some(Self::Spin),
            Act::Monitor => Some(Self::Monitor),
            Act::Block => Some(Self::Block),
            _ => None,
        };
        acts.iter().find_map(way).unwrap_or(Self::SpinThenBlock)
    }
}

/// A lock that lets its caller choose how it waits.
pub trait WaitingLock: lock_api::RawMutex {
    /// Acquires the lock, and waits in this way until it has it.
    fn lock_by(&self, waiting: Waiting);
}

/// A wait in progress.
#[derive(Debug)]
pub(crate) struct Wait {
    waiting: Waiting,
    turns: u32,
    /// Pauses before the next look.
    pauses: u32,
    is_shared: bool,
}

impl Wait {
    /// For a word that is written for this thread alone.
    pub(crate) fn on_own_line(waiting: Waiting) -> Self {
        let can = waiting != Waiting::Monitor || monitor::is_available();
        let waiting = if can { waiting } else { Waiting::SpinThenBlock };
        Self { waiting, turns: 0, pauses: 1, is_shared: false }
    }

    /// For a word that all threads write that use the lock.
    pub(crate) fn on_shared_line(waiting: Waiting) -> Self {
        Self { pauses: FIRST_PAUSES, is_shared: true, ..Self::on_own_line(waiting) }
    }

    /// Whether the thread never sleeps in this wait.
    pub(crate) fn is_awake(&self) -> bool {
        matches!(self.waiting, Waiting::Spin | Waiting::Monitor)
    }

    /// Waits a little for the word to be another value than `value`. Returns false if the thread
    /// should sleep instead.
    pub(crate) fn pause(&mut self, word: &AtomicU32, value: u32) -> bool {
        let turns = if self.is_shared { SHARED_LINE } else { OWN_LINE };
        let pauses = self.pauses;
        let is_over = self.turns == turns;
        if is_over {
            self.turns = 0;
            self.pauses = if self.is_shared { FIRST_PAUSES } else { 1 };
        } else {
            self.turns += 1;
            // One pause stays one.
            self.pauses += pauses / 2;
        }
        match self.waiting {
            Waiting::Block => return false,
            Waiting::SpinThenBlock if is_over => return false,
            Waiting::Spin | Waiting::Monitor if is_over => std::thread::yield_now(),
            Waiting::Monitor => drop(monitor::wait(word, value)),
            Waiting::Spin | Waiting::SpinThenBlock => {
                (0..pauses).for_each(|_| std::hint::spin_loop());
            }
        }
        true
    }
}

/// The threads that are within a function of an object that may be freed as soon as they have no
/// more to wait for: the thread that frees it waits for them.
#[derive(Debug, Default)]
pub struct Within {
    /// Threads, and [`ENDS`].
    threads: AtomicU32,
}

/// A thread waits until all threads have left.
const ENDS: u32 = 1 << 31;

impl Within {
    /// No thread.
    #[must_use]
    pub const fn new() -> Self {
        Self { threads: AtomicU32::new(0) }
    }

    /// Notes that this thread is within. It does so before others may know that it waits.
    pub fn enter(&self) {
        // Relaxed: the thread that frees the object knows of this one by what this one does next.
        self.threads.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that this thread uses the object no more.
    pub fn leave(&self) {
        // Ordering: Release pairs with the loads in `until_left`: the uses come before the end.
        if self.threads.fetch_sub(1, Ordering::Release) == ENDS + 1 {
            // The object may be gone: only its address matters, and others there wake for nothing.
            wake(&self.threads, 1);
        }
    }

    /// Waits until all threads have left. None may enter any more.
    pub fn until_left(&self) {
        // Ordering: Acquire pairs with the subtraction in `leave`, here and below.
        let mut threads = self.threads.fetch_or(ENDS, Ordering::Acquire) | ENDS;
        while threads != ENDS {
            sleep(&self.threads, threads);
            threads = self.threads.load(Ordering::Acquire);
        }
    }
}

/// Sleeps while the word is `value`. May return before it changes.
pub(crate) fn sleep(word: &AtomicU32, value: u32) {
    // The result does not matter: callers look at the word again.
    let _ = futex::wait(word, futex::Flags::PRIVATE, value, None);
}

/// Wakes up to this number of threads that sleep on the word.
pub(crate) fn wake(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, count);
}

/// All threads, for [`wake`].
pub(crate) const ALL: u32 = i32::MAX.cast_unsigned();
