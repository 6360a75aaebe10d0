//! A lock whose sections a server executes that answers its clients in groups (ffwd).
//!
//! Unlike [`crate::Delegated`], whose worker answers each client in the line that brought the
//! request, the server executes the sections of a whole group of clients, and then writes one line
//! for all of them. It is here to compare the two: `docs/locks.md` has the result.

mod lines;

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use dimmer_runtime::Cores;
use lock_api::RawMutex as _;

use self::lines::{Answer, Closure, GROUP, Group};
use crate::raw::RawMutex;
use crate::waiting::{Wait, Waiting};

/// Groups of clients: threads that use such locks at the same time.
const GROUPS: usize = 4;
/// Threads with lines of their own. Others share the last lines, one at a time.
const CLIENTS: usize = GROUPS * GROUP - 1;

/// The payload of a panic.
type Panic = Box<dyn Any + Send>;

/// Data that a server works on for threads that wait meanwhile. It never sleeps.
///
/// # Source
/// Roghanchi, Eriksson and Basu, "ffwd: delegation is (much) faster than you think" (2017).
pub struct Batched<T> {
    groups: [Group<T>; GROUPS],
    must_end: AtomicBool,
    /// For the lines that threads share which have none.
    shared: RawMutex,
    data: UnsafeCell<T>,
}

// SAFETY: the server alone uses the data; sections and results are `Send`.
unsafe impl<T: Send> Sync for Batched<T> {}

impl<T> std::fmt::Debug for Batched<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batched").finish_non_exhaustive()
    }
}

/// Ends the server.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<T: Send> Batched<T> {
    /// Calls `clients` while a server executes the sections on these data: on the worker of these
    /// cores, which does nothing else meanwhile, or on a thread of its own.
    pub fn with_server<R>(cores: Option<&Cores>, data: T, clients: impl FnOnce(&Self) -> R) -> R {
        let lock = Self {
            groups: std::array::from_fn(|_| Group::new()),
            must_end: AtomicBool::new(false),
            shared: RawMutex::INIT,
            data: UnsafeCell::new(data),
        };
        std::thread::scope(|scope| {
            scope.spawn(|| match cores {
                Some(cores) => cores.delegate(|| lock.serve()),
                None => lock.serve(),
            });
            let _ends = Ends(&lock.must_end);
            clients(&lock)
        })
    }

    /// Runs a section on the data, and returns its result. A panic of the section continues here,
    /// and the data stay usable.
    ///
    /// A section must not run another one on the same data: it would wait for itself.
    ///
    /// # Cost
    /// A cache line's way there, and another one's way back. The section has at most 48 bytes, and
    /// its result at most 8.
    pub fn run<R: Send, F: FnOnce(&mut T) -> R + Send>(&self, section: F) -> R {
        const {
            assert!(size_of::<F>() <= size_of::<Closure>() && align_of::<F>() <= 8);
            assert!(size_of::<R>() <= 8 && align_of::<R>() <= 8);
        }
        let Some(client) = own_client() else {
            self.shared.lock();
            let result = self.ask::<R, F>(CLIENTS, section);
            // SAFETY: this thread has it.
            unsafe { self.shared.unlock() };
            return settle(result);
        };
        settle(self.ask::<R, F>(client, section))
    }

    /// Asks for a section in a client's line, and waits for the answer.
    fn ask<R: Send, F: FnOnce(&mut T) -> R + Send>(
        &self,
        client: usize,
        section: F,
    ) -> Result<R, Panic> {
        let (group, client) = (&self.groups[client / GROUP], client % GROUP);
        let request = &group.requests[client];
        // SAFETY: the request belongs to this thread until it asks.
        unsafe { *request.run.get() = Some(execute::<T, F, R>) };
        // SAFETY: likewise; the closure fits.
        unsafe { request.closure.get().cast::<F>().write(section) };
        group.ask(client);
        let mut wait = Wait::on_own_line(Waiting::Spin);
        let word = AtomicU32::new(0);
        let answer = loop {
            match group.answer(client) {
                Some(answer) => break answer,
                None => wait.pause(&word, 0),
            };
        };
        match answer {
            // SAFETY: the bytes of a result of this type, which fits.
            Answer::Value(value) => Ok(unsafe { value.as_ptr().cast::<R>().read() }),
            Answer::Panic(panic) => {
                let panic = std::ptr::with_exposed_provenance_mut::<Panic>(panic);
                // SAFETY: `execute` has leaked it for this thread.
                Err(*unsafe { Box::from_raw(panic) })
            }
        }
    }

    /// Executes sections until the clients are gone.
    fn serve(&self) {
        // SAFETY: the server alone uses the data.
        let data = unsafe { &mut *self.data.get() };
        let word = AtomicU32::new(0);
        let mut wait = Wait::on_own_line(Waiting::Spin);
        while !self.must_end.load(Ordering::Relaxed) {
            let mut has_found = false;
            for group in &self.groups {
                let before = group.published();
                let mut done = before;
                for (client, request) in group.requests.iter().enumerate() {
                    if !group.is_asked(client, done) {
                        continue;
                    }
                    // SAFETY: the request belongs to the server.
                    let Some(run) = (unsafe { *request.run.get() }) else { continue };
                    // SAFETY: it belongs to this closure.
                    let answer = unsafe { run(request.closure.get(), data) };
                    group.store(client, answer);
                    done ^= 1 << client;
                }
                if done != before {
                    group.publish(done);
                    has_found = true;
                }
            }
            // A client may need this CPU to ask.
            if has_found {
                wait = Wait::on_own_line(Waiting::Spin);
            } else {
                wait.pause(&word, 0);
            }
        }
    }
}

fn settle<R>(result: Result<R, Panic>) -> R {
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Executes a section. Returns its result or its panic.
///
/// # Safety
/// `closure` holds an `F`, which belongs to the caller.
unsafe fn execute<T, F: FnOnce(&mut T) -> R, R>(closure: *mut Closure, data: &mut T) -> Answer {
    // SAFETY: the caller guarantees it.
    let section = unsafe { closure.cast::<F>().read() };
    match catch_unwind(AssertUnwindSafe(|| section(data))) {
        Ok(result) => {
            let mut value = MaybeUninit::<usize>::uninit();
            // SAFETY: `run` has checked that it fits.
            unsafe { value.as_mut_ptr().cast::<R>().write(result) };
            Answer::Value(value)
        }
        Err(panic) => Answer::Panic(Box::into_raw(Box::new(panic)).expose_provenance()),
    }
}

/// The clients' numbers that threads have, one bit each.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// A thread's number.
struct Own(Cell<Option<usize>>);

thread_local! {
    static OWN: Own = const { Own(Cell::new(None)) };
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            // Ordering: Release pairs with the Acquire in `take`: the next thread of this number
            // finds the lines as this one has left them.
            TAKEN.fetch_and(!(1 << client), Ordering::Release);
        }
    }
}

/// The calling thread's number; `None` if too many threads have one.
#[inline]
fn own_client() -> Option<usize> {
    OWN.try_with(|own| own.0.get().or_else(|| take(own))).ok().flatten()
}

#[cold]
fn take(own: &Own) -> Option<usize> {
    let with_one = |taken: u64| {
        let free = (!taken).trailing_zeros();
        ((free as usize) < CLIENTS).then_some(taken | 1 << free)
    };
    // Ordering: Acquire pairs with the Release in `drop`.
    let before = TAKEN.fetch_update(Ordering::Acquire, Ordering::Relaxed, with_one).ok()?;
    own.0.set(Some((!before).trailing_zeros() as usize));
    own.0.get()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_section_runs_once_and_its_panic_comes_back() {
        let sum = Batched::with_server(None, 0_u64, |lock| {
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for _ in 0..2000 {
                            let before = lock.run(|sum| {
                                *sum += 1;
                                *sum - 1
                            });
                            assert!(before < 6000);
                        }
                    });
                }
            });
            let panic = catch_unwind(AssertUnwindSafe(|| lock.run(|_| resume_unwind(Box::new(7)))));
            let panic: Result<(), _> = panic;
            assert_eq!(panic.unwrap_err().downcast_ref(), Some(&7));
            lock.run(|sum| *sum)
        });
        assert_eq!(sum, 6000);
    }

    /// The padding between the two.
    #[test]
    fn results_may_have_bytes_without_a_value() {
        let result = Batched::with_server(None, (), |lock| lock.run(|()| (7_u8, 9_u32)));
        assert_eq!(result, (7, 9));
    }

    /// More threads at a time than there are numbers.
    #[test]
    fn threads_without_lines_of_their_own_share_some() {
        let threads = CLIENTS + 4;
        let all = std::sync::Barrier::new(threads);
        let sum = Batched::with_server(None, 0_u64, |lock| {
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        lock.run(|sum| *sum += 1);
                        all.wait();
                        lock.run(|sum| *sum += 1);
                        all.wait();
                    });
                }
            });
            lock.run(|sum| *sum)
        });
        assert_eq!(sum, 2 * threads as u64);
    }
}
