//! Work that is lent to a dedicated core while its owner waits with signals let in: handlers run at
//! home meanwhile.
//!
//! It is a closure as any other ([`Cores::offload`]), of code that is not the program's to
//! interrupt: a handler may leave the wait by a jump, and a fault must not run a handler of the
//! program's on the worker's thread. So what jumps waits first until the work is done
//! ([`leave_lent`]), and a fault of the worker's ends the process by its signal, as it does where
//! the program has no handler.
//!
//! A handler that has waited so may lend work of its own through the same lane before it returns.
//! Therefore what the lane brought back is kept with the owner as soon as it is there.

use std::cell::{Cell, UnsafeCell};
use std::io::Write as _;
use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::cores::Cores;
use crate::job::Small;
use crate::lane::{IDLE, LENT, Lane, PANICKED, Payload, READY};
use crate::slot::{self, HandOver, Place};
use crate::thread;
use crate::word::Patience;
use crate::worker::Shared;

/// What the calling thread has lent and not taken back, and to whom.
pub(crate) type Out = (*const Lent, To);

/// How far lent work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Under way, or about to be asked for.
    Out,
    /// Done, and what it gave is kept.
    Done,
    /// Nobody has begun it, nor will.
    Withdrawn,
}

/// Whom work is lent to.
#[derive(Clone, Copy)]
pub(crate) struct To {
    worker: *const Shared,
    slot: usize,
    patience: Patience,
}

/// Work that is lent. It lies on its owner's stack.
pub(crate) struct Lent {
    to: To,
    state: Cell<State>,
    /// What the lane has brought: what the work gave, or the work itself if it was withdrawn.
    brought: UnsafeCell<Payload>,
}

impl Cores {
    /// Runs a closure on a dedicated core, on the worker's own stack, and waits for it, with
    /// signals let in. Where it cannot be moved, and where it or its result does not fit into a
    /// cache line, it is given back.
    ///
    /// The closure must not call into the program; a panic or a fault in it ends the process. A
    /// handler of a signal that leaves this call by a jump has to call [`leave_lent`] before.
    ///
    /// # Errors
    /// The closure, if it has to run here.
    pub fn lend<T: Send, F: FnOnce() -> T + Send>(&self, work: F) -> Result<T, F> {
        let small = Small::new(work)?;
        let Some((worker, slot)) = self.lane() else { return Err(small.into_inner()) };
        let lane = worker.lane(slot);
        let busy = HandOver::begin();
        let lent = Lent {
            to: To { worker, slot, patience: self.patience },
            state: Cell::new(State::Out),
            brought: UnsafeCell::new(MaybeUninit::uninit()),
        };
        // SAFETY: the lane is this thread's, and idle; this function waits for it to be so again.
        unsafe { small.put(lane) };
        lane.word.put(READY);
        let out = Lending::begin(&lent);
        // SAFETY: as above.
        unsafe { Small::<F, T>::ask_for(lane, LENT) };
        drop(out);
        drop(busy);
        let brought = lent.brought.get();
        if lent.state.get() == State::Withdrawn {
            // SAFETY: nobody has begun it.
            return Err(unsafe { brought.cast::<F>().read() });
        }
        // SAFETY: what the closure gave; it does not panic.
        Ok(unsafe { brought.cast::<T>().read() })
    }
}

/// Work is lent until this is dropped, also by who unwinds the thread: then it is done.
struct Lending<'a>(&'a Lent);

impl<'a> Lending<'a> {
    fn begin(lent: &'a Lent) -> Self {
        thread::own().out.set((lent, lent.to));
        compiler_fence(Ordering::SeqCst);
        Self(lent)
    }
}

impl Drop for Lending<'_> {
    fn drop(&mut self) {
        self.0.wait();
        thread::own().out.take();
    }
}

impl To {
    /// The lane and its worker.
    fn lane(&self) -> (&Shared, &Lane) {
        // SAFETY: the cores are borrowed by who lends, and live as long as the process in children
        // of fork(2).
        let worker = unsafe { &*self.worker };
        (worker, worker.lane(self.slot))
    }

    /// Waits for a while; how it ended, if it did.
    fn wait(&self) -> Option<State> {
        let (worker, lane) = self.lane();
        // A handler may come between asking and ringing, and leave by a jump.
        worker.ring();
        if let Some(word) = lane.word.wait_while(LENT, self.patience) {
            return Some(match word {
                // In a handler, nothing may have been asked for yet.
                READY => State::Out,
                PANICKED => lost(),
                _ => State::Done,
            });
        }
        if worker.is_alive() {
            return worker.give_back(self.slot, LENT).then_some(State::Withdrawn);
        }
        if lane.word.value() != LENT {
            return Some(State::Done);
        }
        if worker.is_at(self.slot) {
            lost();
        }
        Some(State::Withdrawn)
    }
}

impl Lent {
    /// Waits until it is done, and keeps what it gave. May be interrupted by a handler that does
    /// the same.
    fn wait(&self) {
        while self.state.get() == State::Out {
            match self.to.wait() {
                Some(State::Out) => return,
                Some(ended) => self.keep(ended),
                None => {}
            }
        }
    }

    /// Keeps what is in the lane, unless a handler has done that in between.
    fn keep(&self, ended: State) {
        let (_, lane) = self.to.lane();
        // SAFETY: the lane is this thread's again, or a handler's later work has used it, which is
        // of no interest then.
        let brought = unsafe { lane.payload().read() };
        compiler_fence(Ordering::SeqCst);
        if self.state.get() == State::Out {
            // SAFETY: the owner's own memory, of which only handlers on the same thread know.
            unsafe { *self.brought.get() = brought };
            compiler_fence(Ordering::SeqCst);
            self.state.set(ended);
            if ended == State::Withdrawn {
                lane.word.put(IDLE);
            }
        }
    }
}

/// Nobody will end the work.
fn lost() -> ! {
    let _ = writeln!(std::io::stderr(), "dimmer: lent work has panicked, or its worker has ended");
    std::process::abort();
}

/// Waits until what the calling thread has lent, if anything, is done.
pub(crate) fn wait_for_lent() {
    if let Some((lent, _)) = thread::own().out.get() {
        // SAFETY: it lies on this thread's stack, below in the chain of calls.
        unsafe { (*lent).wait() };
    }
}

/// To be called by a handler of a signal before it leaves [`Cores::lend`] by a jump: waits until
/// the work is done. Does nothing where nothing is lent.
pub fn leave_lent() {
    wait_for_lent();
    come_back();
}

/// To be called when the thread is unwound through [`Cores::lend`], as when it is cancelled: as
/// [`leave_lent`], without a look at what that keeps on the stack.
pub fn unwind_lent() {
    while thread::own().out.get().is_some_and(|(_, to)| to.wait().is_none()) {}
    come_back();
}

/// Nothing is lent any more.
fn come_back() {
    let Some((_, to)) = thread::own().out.take() else { return };
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

    /// As a handler does that comes when the work was just asked for, and jumps out.
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
        let lent = Lent {
            to: To { worker, slot, patience: cores.patience },
            state: Cell::new(State::Out),
            brought: UnsafeCell::new(MaybeUninit::uninit()),
        };
        ask(worker.lane(slot), &lent, || done.store(1, Ordering::Relaxed));
        leave_lent();
        assert_eq!(done.load(Ordering::Relaxed), 1);
    }

    /// Asks for work as [`Cores::lend`] does, and goes no further.
    fn ask<F: FnOnce() + Send>(lane: &Lane, lent: &Lent, work: F) {
        let Ok(small) = Small::<F, ()>::new(work) else { unreachable!("it is small") };
        // SAFETY: the lane is this thread's, and idle.
        unsafe { small.put(lane) };
        lane.word.put(READY);
        std::mem::forget(Lending::begin(lent));
        // SAFETY: as above.
        unsafe { Small::<F, ()>::ask_for(lane, LENT) };
    }
}
