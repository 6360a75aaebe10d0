//! Delegation of work to a dedicated core while its owner waits with signals unblocked. Signal
//! handlers run at home meanwhile.
//!
//! The work is a closure, as in [`Cores::delegate`], but of code that the program must not
//! interrupt. A handler may leave the wait by a jump: it first waits until the work is done
//! ([`leave_delegated`]). A fault must not run a handler of the program on the worker's thread: it
//! ends the process by its signal, as in a program without a handler.
//!
//! A handler that has waited may delegate work of its own through the same lane before it returns.
//! Therefore the owner stores the result from the lane as soon as it is there.

use std::cell::{Cell, UnsafeCell};
use std::io::Write as _;
use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::arch::of_thread;
use crate::cores::Cores;
use crate::fork::{BEFORE, ENDS_DELEGATED};
use crate::job::Small;
use crate::lane::{ClosureBytes, DELEGATE_LEAF, IDLE, Lane, PANICKED, READY};
use crate::shared::Shared;
use crate::slot::{self, HandOver, Place};
use crate::thread::Kept;
use crate::wait::Patience;

of_thread! {
    /// The work that the calling thread has delegated and not taken back, and its worker.
    fn out() -> Kept<(*const Delegated, To)>, "dimmer_runtime_delegate";
}

/// The state of delegated work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In progress, or about to be requested.
    Out,
    /// Done, and its result is stored.
    Done,
    /// No worker has started it, and none will.
    Withdrawn,
}

/// The worker and lane that work is delegated to.
#[derive(Clone, Copy)]
struct To {
    worker: *const Shared,
    slot: usize,
    patience: Patience,
}

/// Delegated work. It lies on its owner's stack.
struct Delegated {
    to: To,
    state: Cell<State>,
    /// The content of the lane: the result of the work, or the work itself if it was withdrawn.
    brought: UnsafeCell<ClosureBytes>,
}

impl Cores {
    /// Runs a closure on a dedicated core, on the worker's own stack, and waits for it with signals
    /// unblocked. Returns the closure if it cannot be moved, and if it or its result does not fit
    /// into a cache line.
    ///
    /// The closure must not call into the program; a panic or a fault in it ends the process. A
    /// signal handler must call [`leave_delegated`] before it leaves this call by a jump.
    ///
    /// # Errors
    /// The closure, if it must run here.
    pub fn delegate_leaf<T: Send, F: FnOnce() -> T + Send>(&self, work: F) -> Result<T, F> {
        let small = Small::new(work)?;
        let Some((worker, slot)) = self.lane() else { return Err(small.into_inner()) };
        let lane = worker.lane(slot);
        let busy = HandOver::begin();
        let delegated = Delegated {
            to: To { worker, slot, patience: self.patience() },
            state: Cell::new(State::Out),
            brought: UnsafeCell::new(MaybeUninit::uninit()),
        };
        // SAFETY: the lane belongs to this thread and is idle. This function waits until it is idle
        // again.
        unsafe { small.put(lane) };
        lane.word.put(READY);
        let delegating = Delegating::begin(&delegated);
        // SAFETY: the lane belongs to this thread, and holds this closure.
        unsafe { Small::<F, T>::ask_for(lane, DELEGATE_LEAF) };
        drop(delegating);
        drop(busy);
        let brought = delegated.brought.get();
        if delegated.state.get() == State::Withdrawn {
            // SAFETY: no worker has started it, so this is the closure.
            return Err(unsafe { brought.cast::<F>().read() });
        }
        // SAFETY: the closure's result; it does not panic.
        Ok(unsafe { brought.cast::<T>().read() })
    }
}

/// The work is delegated until this is dropped, also when the thread is unwound. The drop waits for
/// it.
struct Delegating<'a>(&'a Delegated);

impl<'a> Delegating<'a> {
    fn begin(delegated: &'a Delegated) -> Self {
        BEFORE.set::<ENDS_DELEGATED>(wait_for_delegated);
        out().set((delegated, delegated.to));
        compiler_fence(Ordering::SeqCst);
        Self(delegated)
    }
}

impl Drop for Delegating<'_> {
    fn drop(&mut self) {
        self.0.wait();
        out().take();
    }
}

impl To {
    /// The lane and its worker.
    fn lane(&self) -> (&Shared, &Lane) {
        // SAFETY: the delegating call borrows the cores; in children of fork(2) they live as long
        // as the process.
        let worker = unsafe { &*self.worker };
        (worker, worker.lane(self.slot))
    }

    /// Waits for a limited time. Returns how the work ended, if it did.
    fn wait(&self) -> Option<State> {
        let (worker, lane) = self.lane();
        // A handler may interrupt between the request and the ring, and leave by a jump.
        worker.ring();
        if let Some(word) = lane.word.wait_while(DELEGATE_LEAF, self.patience) {
            return Some(match word {
                // In a handler: nothing may have been requested yet.
                READY => State::Out,
                PANICKED => lost(),
                _ => State::Done,
            });
        }
        if worker.is_alive() {
            return worker.give_back(self.slot, DELEGATE_LEAF).then_some(State::Withdrawn);
        }
        if lane.word.value() != DELEGATE_LEAF {
            return Some(State::Done);
        }
        if worker.is_at(self.slot) {
            lost();
        }
        Some(State::Withdrawn)
    }
}

impl Delegated {
    /// Waits until the work is done, and stores its result. A handler that does the same may
    /// interrupt this.
    fn wait(&self) {
        while self.state.get() == State::Out {
            match self.to.wait() {
                Some(State::Out) => return,
                Some(ended) => self.keep(ended),
                None => {}
            }
        }
    }

    /// Stores the content of the lane, unless a handler has done that in between.
    fn keep(&self, ended: State) {
        let (_, lane) = self.to.lane();
        // SAFETY: the lane belongs to this thread again. A handler's later work may have used it;
        // the result is not needed then.
        let brought = unsafe { lane.closure().read() };
        compiler_fence(Ordering::SeqCst);
        if self.state.get() == State::Out {
            // SAFETY: the owner's own memory, which only handlers on the same thread use as well.
            unsafe { *self.brought.get() = brought };
            compiler_fence(Ordering::SeqCst);
            self.state.set(ended);
            if ended == State::Withdrawn {
                lane.word.put(IDLE);
            }
        }
    }
}

/// Ends the process, since no worker will complete the work.
fn lost() -> ! {
    let _ =
        writeln!(std::io::stderr(), "dimmer: delegated work has panicked, or its worker has ended");
    std::process::abort();
}

/// Waits until the calling thread's delegated work, if any, is done.
fn wait_for_delegated() {
    if let Some((delegated, _)) = out().get() {
        // SAFETY: it lies on this thread's stack, in a frame of a caller.
        unsafe { (*delegated).wait() };
    }
}

/// For a signal handler, before it leaves [`Cores::delegate_leaf`] by a jump: waits until the work
/// is done. Does nothing if no work is delegated.
pub fn leave_delegated() {
    wait_for_delegated();
    come_back();
}

/// For unwinding the thread through [`Cores::delegate_leaf`], for example when it is cancelled.
/// Like [`leave_delegated`], but does not read the frame of [`Cores::delegate_leaf`].
pub fn unwind_delegated() {
    while out().get().is_some_and(|(_, to)| to.wait().is_none()) {}
    come_back();
}

/// Records that no work is delegated any more.
fn come_back() {
    let Some((_, to)) = out().take() else { return };
    let (_, lane) = to.lane();
    if lane.word.value() != IDLE {
        lane.word.put(IDLE);
    }
    slot::set_place(Place::Home);
}

#[cfg(all(test, not(loom)))]
#[expect(clippy::print_stdout, reason = "tests that cannot run here say so")]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use dimmer_host::affinity;
    use dimmer_host::root::Root;

    use super::*;

    /// Like a handler that interrupts right after the request, and jumps out.
    #[test]
    fn what_was_asked_of_a_worker_that_sleeps_is_done_before_a_handler_jumps() {
        let allowed = affinity::allowed().unwrap();
        let [_, .., last] = *allowed else {
            println!("SKIPPED: moving work takes two CPUs, and this process may run on one");
            return;
        };
        let cores = Cores::start_spinning(&Root::live(), &[last], Duration::ZERO).unwrap();
        let (worker, slot) = cores.lane().unwrap();
        while !worker.is_asleep() {
            std::thread::yield_now();
        }
        let done = AtomicU32::new(0);
        let delegated = Delegated {
            to: To { worker, slot, patience: cores.patience() },
            state: Cell::new(State::Out),
            brought: UnsafeCell::new(MaybeUninit::uninit()),
        };
        ask(worker.lane(slot), &delegated, || done.store(1, Ordering::Relaxed));
        leave_delegated();
        assert_eq!(done.load(Ordering::Relaxed), 1);
    }

    /// Requests work like [`Cores::delegate_leaf`], and stops there.
    fn ask<F: FnOnce() + Send>(lane: &Lane, delegated: &Delegated, work: F) {
        let Ok(small) = Small::<F, ()>::new(work) else { unreachable!("it is small") };
        // SAFETY: the lane belongs to this thread, and is idle.
        unsafe { small.put(lane) };
        lane.word.put(READY);
        std::mem::forget(Delegating::begin(delegated));
        // SAFETY: the lane belongs to this thread, and holds this closure.
        unsafe { Small::<F, ()>::ask_for(lane, DELEGATE_LEAF) };
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::time::Duration;

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    use super::*;
    use crate::lane::is_asked;
    use crate::wait::{Doorbell, Word};

    /// The protocol's shared parts: the lane, the doorbell, and what the lane holds.
    #[derive(Default)]
    struct Parts {
        word: Word,
        doorbell: Doorbell,
        closure: UnsafeCell<u32>,
        run: UnsafeCell<u32>,
    }

    /// Fails if a worker takes [`READY`] for a request (the rest of the work is not in the lane
    /// yet), if the request or the answer does not release, or if the owner does not ring after it:
    /// then loom reports two threads at the payload, or a worker that sleeps for good.
    #[test]
    fn loom_delegated_work_is_complete_when_it_is_asked_for_and_when_it_is_done() {
        loom::model(|| {
            let shared = Arc::new(Parts::default());
            let worker = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || {
                while !is_asked(worker.word.value()) {
                    worker.doorbell.sleep(|| is_asked(worker.word.value()), || false);
                }
                // SAFETY: the request hands both over.
                let run = worker.run.with(|run| unsafe { *run });
                // SAFETY: the request hands both over.
                worker.closure.with_mut(|closure| unsafe { *closure += run });
                worker.word.post(IDLE);
            });
            // SAFETY: the lane is idle, and belongs to this thread.
            shared.closure.with_mut(|closure| unsafe { *closure = 1 });
            shared.word.put(READY);
            // SAFETY: the lane is not asked for anything yet.
            shared.run.with_mut(|run| unsafe { *run = 2 });
            shared.word.set(DELEGATE_LEAF);
            shared.doorbell.ring();
            let at_once = Patience(Duration::ZERO);
            while shared.word.wait_while(DELEGATE_LEAF, at_once).is_none() {}
            // SAFETY: the answer hands it back.
            assert_eq!(shared.closure.with(|closure| unsafe { *closure }), 3);
            thread.join().unwrap();
        });
    }
}
