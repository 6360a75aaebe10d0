//! A lock whose owner executes the sections of all threads that wait (flat combining).

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use lock_api::RawMutex as _;

use crate::raw::RawMutex;
use crate::waiting::{Wait, Waiting};

/// How often the owner of the lock takes the list before it leaves the lock to another thread: its
/// own section is done after the first time. A guess.
const TIMES: u32 = 8;

/// The section waits to be executed.
const ASKED: u32 = 0;
/// It was executed, and its result is stored.
const DONE: u32 = 1;

/// Data whose sections are executed by the thread that has the lock, also those of others.
///
/// Each thread puts its section into a list. One of them takes the lock, and executes all sections
/// of the list in the order in which they came, some times, unless the list is empty before. The
/// data stay in its cache meanwhile. Unlike [`crate::Delegated`], it needs no core of its own, but
/// a thread may be held up by the sections of others. Threads that wait spin, and yield their CPU
/// from time to time.
///
/// # Source
/// Hendler, Incze, Shavit and Tzafrir, "Flat Combining and the Synchronization-Parallelism
/// Tradeoff" (2010); here with a list that is taken as a whole instead of one that stays.
#[derive(Debug)]
pub struct Combining<T> {
    lock: RawMutex,
    /// The latest section that was asked for.
    asked: AtomicPtr<Request<T>>,
    data: UnsafeCell<T>,
}

// SAFETY: the owner of the lock alone uses the data, and each section is `Send`.
unsafe impl<T: Send> Sync for Combining<T> {}

/// A section that was asked for, on its thread's stack.
struct Request<T> {
    word: AtomicU32,
    /// The section asked for before.
    before: *mut Request<T>,
    /// Executes the section. It does not unwind.
    run: unsafe fn(*mut Request<T>, &mut T),
}

/// With the section itself and its result.
#[repr(C)]
struct Work<T, F, R> {
    request: Request<T>,
    section: Option<F>,
    result: Option<Result<R, Box<dyn Any + Send>>>,
}

impl<T: Send> Combining<T> {
    /// A lock with these data.
    #[must_use]
    pub const fn new(data: T) -> Self {
        Self {
            lock: RawMutex::INIT,
            asked: AtomicPtr::new(null_mut()),
            data: UnsafeCell::new(data),
        }
    }

    /// Runs a section on the data, here or on the thread that has the lock, and returns its result.
    /// A panic of the section continues here, and the data stay usable.
    ///
    /// A section must not run another one on the same data: it would wait for itself.
    pub fn run<R: Send, F: FnOnce(&mut T) -> R + Send>(&self, section: F) -> R {
        let request =
            Request { word: AtomicU32::new(ASKED), before: null_mut(), run: execute::<T, F, R> };
        let work = UnsafeCell::new(Work { request, section: Some(section), result: None });
        let own = work.get().cast::<Request<T>>();
        // SAFETY: `work` is on this stack until it is done, and the request is its first field.
        unsafe { self.ask(own) };
        // SAFETY: within `work`; other threads only write the word, atomically.
        let word = unsafe { &(*own).word };
        let mut wait = Wait::on_own_line(Waiting::Spin);
        // Ordering: Acquire pairs with the store in `execute_all`: the result is visible.
        while word.load(Ordering::Acquire) == ASKED {
            // Reading first leaves the lock's line to its owner.
            if !self.lock.is_locked() && self.lock.try_lock() {
                // SAFETY: this thread has the lock.
                unsafe { self.execute_all() };
                // SAFETY: likewise.
                unsafe { self.lock.unlock() };
            } else {
                wait.pause(word, ASKED);
            }
        }
        match work.into_inner().result {
            Some(Ok(value)) => value,
            Some(Err(panic)) => resume_unwind(panic),
            None => unreachable!("a section that is done has a result"),
        }
    }

    /// Puts a request into the list.
    ///
    /// # Safety
    /// The request lives until its word is [`DONE`].
    unsafe fn ask(&self, own: *mut Request<T>) {
        let mut before = self.asked.load(Ordering::Relaxed);
        loop {
            // SAFETY: not in the list yet, so it is this thread's.
            unsafe { (*own).before = before };
            // Ordering: Release pairs with the swap in `execute_all`.
            let put =
                self.asked.compare_exchange(before, own, Ordering::Release, Ordering::Relaxed);
            match put {
                Ok(_) => return,
                Err(now) => before = now,
            }
        }
    }

    /// Executes all sections of the list, the oldest first, and again if others have come.
    ///
    /// # Safety
    /// The caller has the lock.
    unsafe fn execute_all(&self) {
        // SAFETY: the data belong to the owner of the lock.
        let data = unsafe { &mut *self.data.get() };
        for _ in 0..TIMES {
            // Ordering: Acquire pairs with the Release in `ask`: the sections are visible.
            let mut last = self.asked.swap(null_mut(), Ordering::Acquire);
            if last.is_null() {
                return;
            }
            let mut first = null_mut();
            while !last.is_null() {
                // SAFETY: in the list, so its thread waits, and it belongs to the list's owner.
                let before = unsafe { std::mem::replace(&mut (*last).before, first) };
                first = std::mem::replace(&mut last, before);
            }
            while !first.is_null() {
                // SAFETY: as above.
                let Request { before: next, run, .. } = unsafe { &*first };
                let (next, run) = (*next, *run);
                // SAFETY: `run` belongs to this request.
                unsafe { run(first, data) };
                // SAFETY: as above; the request may be gone after this.
                let word = unsafe { &(*first).word };
                // Ordering: Release pairs with the load in `run`.
                word.store(DONE, Ordering::Release);
                first = next;
            }
        }
    }

    /// The data.
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}

/// Executes a section, and stores its result or its panic.
///
/// # Safety
/// The request is the first field of a `Work<T, F, R>`, which belongs to the caller.
unsafe fn execute<T, F: FnOnce(&mut T) -> R, R>(request: *mut Request<T>, data: &mut T) {
    let work = request.cast::<Work<T, F, R>>();
    // SAFETY: the caller guarantees the type, and that only it uses the section.
    let section = unsafe { (*work).section.take() };
    let result = section.map(|section| catch_unwind(AssertUnwindSafe(|| section(data))));
    // SAFETY: likewise.
    unsafe { (*work).result = result };
}
