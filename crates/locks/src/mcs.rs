//! A fair mutex: a queue of the threads that wait (MCS).
//!
//! Each thread waits for a line of its own, which its predecessor in the queue writes. Paper 002,
//! section 4.2, decorates this lock.

use std::cell::Cell;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crossbeam_utils::CachePadded;
use lock_api::{GuardSend, Mutex};

use crate::raw::RawMutex;
use crate::waiting::{Wait, Waiting, WaitingLock, sleep, wake};

/// The thread waits.
const WAITS: u32 = 0;
/// The thread waits, asleep.
const SLEEPS: u32 = 1;
/// The thread has the lock.
const READY: u32 = 2;

/// A thread's place in a queue. It lives as long as the process: a thread that ends leaves its
/// nodes to others ([`Nodes`]). So a predecessor that is late in waking a thread never touches
/// memory that is gone; it wakes a thread that looks again and sleeps on.
#[derive(Debug)]
struct Node {
    word: AtomicU32,
    /// The next thread of the queue.
    next: AtomicPtr<CachePadded<Node>>,
    /// The next node of the list of free ones. Only the owner of the list uses it.
    free: Cell<*const CachePadded<Node>>,
}

type NodePointer = *mut CachePadded<Node>;

/// A fair mutex, of two words: threads get it in the order in which they asked for it.
///
/// # Cost
/// Two atomic operations without a wait, and two accesses to thread-local storage. A thread's first
/// acquisition allocates a node of 128 bytes, and so does each further lock that it holds at the
/// same time; nodes are used again and never freed.
///
/// # Source
/// Mellor-Crummey and Scott, "Algorithms for Scalable Synchronization on Shared-Memory
/// Multiprocessors" (1991); the owner's node lies in the lock, so a guard holds nothing.
#[derive(Debug)]
pub struct RawMcs {
    /// The last thread of the queue; null if the lock is free.
    tail: AtomicPtr<CachePadded<Node>>,
    /// The node of the owner; only the owner uses it.
    owner: AtomicPtr<CachePadded<Node>>,
}

impl RawMcs {
    /// Waits until the predecessor writes the node's word.
    fn wait(node: &Node, waiting: Waiting) {
        let mut wait = Wait::on_own_line(waiting);
        loop {
            // Ordering: Acquire pairs with the swap in `unlock`: earlier sections are visible.
            let now = node.word.load(Ordering::Acquire);
            if now == READY {
                return;
            }
            if now == WAITS && wait.pause(&node.word, WAITS) {
                continue;
            }
            // Relaxed: hands over nothing, and the load above follows.
            let _ = node.word.compare_exchange(WAITS, SLEEPS, Ordering::Relaxed, Ordering::Relaxed);
            sleep(&node.word, SLEEPS);
        }
    }

    /// The thread after this one; null if there is none, in which case the lock is free now.
    fn leave(&self, own: NodePointer, node: &Node) -> NodePointer {
        // Ordering: Acquire pairs with the store of the successor: its node is complete.
        let mut next = node.next.load(Ordering::Acquire);
        if next.is_null() {
            // Ordering: Release pairs with the swap of the next thread that takes the lock.
            let free =
                self.tail.compare_exchange(own, null_mut(), Ordering::Release, Ordering::Relaxed);
            if free.is_ok() {
                return next;
            }
            // A thread has put itself into the queue, and is about to store its node here.
            let mut wait = Wait::on_own_line(Waiting::Spin);
            while next.is_null() {
                wait.pause(&node.word, READY);
                // Ordering: as above.
                next = node.next.load(Ordering::Acquire);
            }
        }
        next
    }
}

// SAFETY: the thread whose node is at the head of the queue has the lock; a node becomes the head
// in an empty queue, or when its predecessor leaves.
unsafe impl lock_api::RawMutex for RawMcs {
    const INIT: Self = Self { tail: AtomicPtr::new(null_mut()), owner: AtomicPtr::new(null_mut()) };

    type GuardMarker = GuardSend;

    #[inline]
    fn lock(&self) {
        self.lock_by(Waiting::SpinThenBlock);
    }

    #[inline]
    fn try_lock(&self) -> bool {
        if self.is_locked() {
            return false;
        }
        let (own, _) = take();
        // Ordering: Acquire pairs with the Release in `leave`; Release, for the node.
        let is_taken =
            self.tail.compare_exchange(null_mut(), own, Ordering::AcqRel, Ordering::Relaxed);
        if is_taken.is_err() {
            give(own);
            return false;
        }
        self.owner.store(own, Ordering::Relaxed);
        true
    }

    #[inline]
    unsafe fn unlock(&self) {
        let own = self.owner.load(Ordering::Relaxed);
        // SAFETY: the caller has the lock, so this is the node with which it was acquired, and
        // nodes live as long as the process.
        let node: &Node = unsafe { &*own };
        let next = self.leave(own, node);
        if !next.is_null() {
            // SAFETY: as above.
            let next: &Node = unsafe { &*next };
            // Ordering: Release pairs with the load in `wait`.
            if next.word.swap(READY, Ordering::Release) == SLEEPS {
                wake(&next.word, 1);
            }
        }
        give(own);
    }

    #[inline]
    fn is_locked(&self) -> bool {
        !self.tail.load(Ordering::Relaxed).is_null()
    }
}

impl WaitingLock for RawMcs {
    #[inline]
    fn lock_by(&self, waiting: Waiting) {
        let (own, node) = take();
        // Ordering: Acquire pairs with the Release in `leave`; Release, for the node.
        let before = self.tail.swap(own, Ordering::AcqRel);
        if !before.is_null() {
            // SAFETY: nodes live as long as the process. That one is in the queue until its thread
            // has seen the store.
            let before: &Node = unsafe { &*before };
            // Ordering: Release pairs with the loads in `leave`.
            before.next.store(own, Ordering::Release);
            Self::wait(node, waiting);
        }
        self.owner.store(own, Ordering::Relaxed);
    }
}

/// A thread's free nodes.
struct Nodes(Cell<*const CachePadded<Node>>);

thread_local! {
    static FREE: Nodes = const { Nodes(Cell::new(null())) };
}

/// Nodes of threads that have ended.
static LEFT: Mutex<RawMutex, Vec<&'static CachePadded<Node>>> = Mutex::new(Vec::new());

// SAFETY: `free` belongs to the owner of the list that the node is in, and nodes in `LEFT` are in
// none; the rest is atomic.
unsafe impl Sync for Node {}

/// A node, ready to be put into a queue.
#[inline]
fn take() -> (NodePointer, &'static Node) {
    let own = FREE.try_with(|free| {
        let first = free.0.get();
        // SAFETY: nodes live as long as the process.
        let node = unsafe { first.as_ref() };
        node.inspect(|node| free.0.set(node.free.get()))
    });
    let node = own.ok().flatten().unwrap_or_else(another);
    // Relaxed: the node is put into a queue by a Release.
    node.word.store(WAITS, Ordering::Relaxed);
    node.next.store(null_mut(), Ordering::Relaxed);
    (std::ptr::from_ref(node).cast_mut(), node)
}

/// A node that an ended thread has left, or a new one.
#[cold]
fn another() -> &'static CachePadded<Node> {
    let left = LEFT.lock().pop();
    left.unwrap_or_else(|| {
        Box::leak(Box::new(CachePadded::new(Node {
            word: AtomicU32::new(WAITS),
            next: AtomicPtr::new(null_mut()),
            free: Cell::new(null()),
        })))
    })
}

/// Puts a node that is in no queue into the thread's list.
#[inline]
fn give(node: NodePointer) {
    // SAFETY: nodes live as long as the process.
    let node: &'static CachePadded<Node> = unsafe { &*node };
    let given = FREE.try_with(|free| {
        node.free.set(free.0.get());
        free.0.set(node);
    });
    if given.is_err() {
        // The thread's storage is gone already.
        leave_to_others(node);
    }
}

fn leave_to_others(node: &'static CachePadded<Node>) {
    LEFT.lock().push(node);
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // SAFETY: nodes live as long as the process.
        while let Some(node) = unsafe { self.0.get().as_ref() } {
            self.0.set(node.free.get());
            leave_to_others(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use lock_api::RawMutex as _;

    use super::*;

    /// Each thread starts once the one before it is in the queue.
    #[test]
    fn threads_get_the_lock_in_the_order_in_which_they_asked() {
        for waiting in [Waiting::Spin, Waiting::Monitor, Waiting::Block, Waiting::SpinThenBlock] {
            let (lock, order) = (RawMcs::INIT, Mutex::<RawMutex, _>::new(Vec::new()));
            let (lock, order) = (&lock, &order);
            lock.lock();
            std::thread::scope(|scope| {
                let start = |number| {
                    let last = lock.tail.load(Ordering::Relaxed);
                    let thread = scope.spawn(move || {
                        lock.lock_by(waiting);
                        order.lock().push(number);
                        // SAFETY: this thread has the lock.
                        unsafe { lock.unlock() };
                    });
                    while lock.tail.load(Ordering::Relaxed) == last {
                        std::thread::yield_now();
                    }
                    thread
                };
                let threads = [0, 1, 2, 3, 4, 5].map(start);
                // SAFETY: this thread has the lock.
                unsafe { lock.unlock() };
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            });
            assert_eq!(*order.lock(), [0, 1, 2, 3, 4, 5], "{waiting:?}");
        }
    }

    #[test]
    fn nodes_are_used_again() {
        let both = [RawMcs::INIT, RawMcs::INIT];
        let acquire = || {
            both.each_ref().map(|lock| {
                assert!(lock.try_lock());
                assert!(!lock.try_lock());
                lock.owner.load(Ordering::Relaxed)
            })
        };
        // SAFETY: this thread has the locks.
        let release = || both.each_ref().map(|lock| unsafe { lock.unlock() });
        let mut first = acquire();
        release();
        let mut second = acquire();
        release();
        first.sort_unstable();
        second.sort_unstable();
        assert_eq!(first, second);
        assert_ne!(first[0], first[1]);
    }
}
