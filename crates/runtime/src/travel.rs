//! Threads that go on somewhere else: their stack and their thread-local storage move, while their
//! kernel thread waits at home.
//!
//! A thread departs by leaving in a worker's lane where it goes on, and switching from its own
//! stack to a small one, the *trampoline stack*, on which its kernel thread hands over the lane and
//! waits. So the stack is handed over only when nobody stands on it any more. The worker switches
//! to it, with the thread's thread-local storage (the FS base): `errno`, `malloc`'s cache,
//! `pthread_self` and thread-locals are the thread's own, there as at home. Going home is the same
//! the other way round.
//!
//! What the kernel knows of a thread stays at home: its number, its signal mask (all signals are
//! blocked at home meanwhile, and wait), its area of restartable sequences (so `sched_getcpu` tells
//! the home's CPU), robust and priority-inheriting mutexes, which must not be held or taken
//! meanwhile: the kernel gives a priority-inheriting one that is waited for to the worker, and
//! passes on a robust one when the home ends, although the worker may go on for some microseconds.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use dimmer_host::travel;

use crate::cores::Cores;
use crate::lane::{IDLE, Lane, TRAVEL};
use crate::sanitizer::{self, Storage};
use crate::signals;
use crate::slot::{self, Place};
use crate::stack::Stack;
use crate::switch::{self, Context, Message, switch};
use crate::thread::{self, Thread};
use crate::word::Patience;
use crate::worker::{Own, Shared};
use crate::{cancel, fork};

/// Why a thread has to stay where it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CannotTravel {
    /// The FS base, which holds thread-local storage, can be changed by the kernel alone.
    #[error("this kernel or processor does not let programs change the FS base (fsgsbase)")]
    ThreadPointer,
    /// Return addresses are kept by the processor too, and would not move.
    #[error("shadow stacks are on in this process")]
    ShadowStack,
    /// Valgrind runs the process.
    #[error("Valgrind runs this process, and knows no threads that travel")]
    Valgrind,
    /// The thread holds a robust mutex, which the kernel would pass on when the thread's home ends.
    #[error("this thread holds a robust mutex")]
    RobustMutex,
    /// On a worker, or away already, or more threads than there are lanes.
    #[error("this thread runs on a dedicated core already, or too many threads use them")]
    NoLane,
    /// All workers have ended, or the process is a child of the one that started them.
    #[error("no dedicated core has a worker")]
    NoWorker,
    /// No memory for the trampoline stack.
    #[error("cannot map a stack")]
    System(#[from] io::Error),
}

/// What a thread needs to travel. It lies at the top of the trampoline stack.
pub(crate) struct Travelling {
    slot: usize,
    pub(crate) thread_pointer: u64,
    /// What is kept of the thread, for its home, which has no thread-local storage of its own.
    pub(crate) thread: &'static Thread,
    patience: Cell<Patience>,
    /// Where its kernel thread goes on when it leaves.
    trampoline: Cell<Context>,
    storage: Storage,
    _stack: Stack,
}

/// The same, of who has it: dropping this gives the memory back.
pub(crate) struct Traveller(NonNull<Travelling>);

impl std::fmt::Debug for Traveller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Traveller").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl Deref for Traveller {
    type Target = Travelling;

    #[inline(always)]
    fn deref(&self) -> &Travelling {
        // SAFETY: `Traveller::new` has put it there, and it is there until this is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Traveller {
    fn drop(&mut self) {
        // With what is read goes the memory that it was read from.
        // SAFETY: nobody uses it any more: its thread is at home, and the trampoline stack empty.
        drop(unsafe { self.0.read() });
    }
}

/// The calling thread ends: what it has travelled with is needed no more.
pub(crate) fn give_back() {
    keep(None);
}

/// Keeps what the calling thread will travel with again.
fn keep(traveller: Option<Traveller>) {
    let kept = traveller.map_or(std::ptr::null_mut(), |traveller| {
        std::mem::ManuallyDrop::new(traveller).0.as_ptr()
    });
    // One that a handler has kept in between goes.
    drop(NonNull::new(thread::own().travelling.replace(kept)).map(Traveller));
}

/// Whether the calling thread holds a robust mutex, as the C library tells the kernel. The first
/// time it takes a system call.
#[must_use]
pub fn holds_robust_mutex() -> bool {
    let kept = &thread::own().robust;
    let list = kept.get().unwrap_or_else(|| {
        let list = travel::robust_list();
        kept.set(list);
        list
    });
    // SAFETY: the C library keeps the head in the thread's own memory, as long as the thread lives.
    list.is_some_and(|head| unsafe { head.read_volatile() } != head.cast())
}

/// Whether this machine and process let threads travel.
///
/// # Errors
/// Why they do not.
pub fn check() -> Result<(), CannotTravel> {
    if travel::is_under_valgrind() {
        return Err(CannotTravel::Valgrind);
    }
    if !travel::can_change_thread_pointer() {
        return Err(CannotTravel::ThreadPointer);
    }
    if travel::has_shadow_stack() {
        return Err(CannotTravel::ShadowStack);
    }
    Ok(())
}

impl Traveller {
    fn new(slot: usize, patience: Patience) -> Result<Self, CannotTravel> {
        check()?;
        let stack = Stack::map()?;
        // SAFETY: `check` has found that it may be read.
        let thread_pointer = unsafe { switch::thread_pointer() };
        fork::note_home();
        let (patience, trampoline) = (Cell::new(patience), Cell::default());
        let storage = Storage::new();
        let place: *mut Travelling = stack.top();
        let thread = thread::own();
        let travelling = Travelling {
            slot,
            thread_pointer,
            thread,
            patience,
            trampoline,
            storage,
            _stack: stack,
        };
        // SAFETY: room of its own, aligned.
        unsafe { place.write(travelling) };
        // SAFETY: within a mapping.
        let traveller = Self(unsafe { NonNull::new_unchecked(place) });
        traveller.trampoline.set(switch::prepare(place.cast(), wait_at_home, place.cast()));
        Ok(traveller)
    }
}

/// What the kernel thread does on the trampoline stack, while its thread is away: hands it to a
/// worker, waits for it, and goes on with it. It shares its thread-local storage with the thread,
/// so it must not use it.
unsafe extern "C" fn wait_at_home(bound_for: *const (), traveller: *const ()) -> ! {
    // SAFETY: `Traveller::new` has given itself, which outlives its stack.
    let traveller = unsafe { &*traveller.cast::<Travelling>() };
    let mut bound_for = bound_for.cast::<Shared>();
    loop {
        traveller.storage.moor(traveller);
        // SAFETY: `Journey::go` has sent it, and borrows the cores.
        let worker = unsafe { &*bound_for };
        let lane = worker.lane(traveller.slot);
        lane.word.set(TRAVEL);
        worker.ring();
        while !has_come_back(worker, lane, traveller) {}
        if lane.word.value() != IDLE {
            // Nobody has carried it.
            lane.word.put(IDLE);
        }
        sanitizer::leave(lane.travel());
        traveller.storage.cast_off(traveller.thread_pointer);
        // SAFETY: filled when the thread left its worker, or when it left here.
        let message = unsafe { switch(traveller.trampoline.as_ptr(), lane.context(), NOTHING) };
        bound_for = message[0].cast();
    }
}

/// Waits for the thread for a while; whether its lane says where it goes on.
#[inline]
fn has_come_back(worker: &Shared, lane: &Lane, traveller: &Travelling) -> bool {
    if lane.word.wait_while(TRAVEL, traveller.patience.get()).is_some() {
        return true;
    }
    if worker.is_alive() {
        cancel::pass_on(worker, traveller);
        return worker.give_back(traveller.slot, TRAVEL);
    }
    if lane.word.value() != TRAVEL {
        return false;
    }
    if worker.is_at(traveller.slot) {
        // What has ended was the thread.
        end_thread();
    }
    // Nobody has begun to carry it.
    true
}

/// Ends the calling kernel thread, whose thread has ended elsewhere.
fn end_thread() {
    // SAFETY: nothing stands on it any more.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

/// A message without content.
const NOTHING: Message = [std::ptr::null(); 2];

/// Goes on with the thread in a lane, until it leaves.
///
/// # Safety
/// The lane's word is [`TRAVEL`], and the caller is the lane's worker.
#[inline]
pub(crate) unsafe fn carry(worker: &Shared, lane: &Lane) {
    let travel = lane.travel();
    // SAFETY: as the caller says.
    let thread_pointer = unsafe { (*travel).thread_pointer };
    let own = &worker.own.0;
    #[cfg(dimmer_tsan)]
    let storage = own.storage();
    // SAFETY: the thread's code runs here now; the worker's own, until it settles, uses none.
    unsafe { own.put_in_force(thread_pointer) };
    let message = [(&raw const *lane).cast(), (&raw const *own).cast()];
    // SAFETY: the thread was handed over once, and nobody stands on its stack.
    unsafe { switch(own.context.as_ptr(), lane.context(), message) };
    #[cfg(dimmer_tsan)]
    own.settle_at(storage);
    lane.word.post(IDLE);
}

/// A stretch of the calling thread's life in which it may go to dedicated cores and back. Signals
/// wait meanwhile, and closures that it would hand over run where it is.
///
/// While a thread is away it must not take or hold a priority-inheriting or robust mutex (who holds
/// a robust one stays), or count on its number or CPU as the kernel sees them.
#[derive(Debug)]
pub struct Journey<'a> {
    cores: &'a Cores,
    /// `None` only while it is dropped.
    traveller: Option<Traveller>,
    /// Where the thread is, if it is not at home. Written at home only: the worker's core fetches
    /// nothing for it.
    away: Cell<Option<Landed>>,
    // What it holds is the thread's own.
    not_send: PhantomData<*const ()>,
}

/// The calling thread is on a dedicated core. Dropping it brings the thread home.
#[derive(Debug)]
#[must_use = "the thread goes home at once"]
pub struct Away<'a> {
    landed: Landed,
    /// The journey's.
    away: &'a Cell<Option<Landed>>,
}

/// Where a thread has landed. It was handed over with the thread, so that going home moves no line
/// but the lane's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landed {
    lane: *const Lane,
    worker: *const Own,
}

impl<'a> Journey<'a> {
    pub(crate) fn begin(cores: &'a Cores, patience: Patience) -> Result<Self, CannotTravel> {
        let slot = slot::own().ok_or(CannotTravel::NoLane)?;
        if holds_robust_mutex() {
            return Err(CannotTravel::RobustMutex);
        }
        let kept = thread::own().travelling.replace(std::ptr::null_mut());
        let traveller = match NonNull::new(kept).map(Traveller) {
            Some(traveller) => {
                traveller.patience.set(patience);
                traveller
            }
            None => Traveller::new(slot, patience)?,
        };
        signals::block();
        slot::set_place(Place::Busy);
        let (traveller, away) = (Some(traveller), Cell::new(None));
        Ok(Self { cores, traveller, away, not_send: PhantomData })
    }

    /// Goes on at the dedicated core of that place in the list, until what is returned is dropped.
    /// `None`: the thread stays, as there is no such core, or its worker has ended or is held up.
    /// Where what an earlier call has returned was forgotten, the thread goes home first.
    #[inline(always)]
    pub fn go(&mut self, core: usize) -> Option<Away<'_>> {
        self.go_home();
        let landed = self.land(core)?;
        Some(Away { landed, away: &self.away })
    }

    /// As [`Self::go`], for who vouches that the thread is at home, and goes home before the
    /// journey ends.
    #[inline(always)]
    pub(crate) fn land(&self, core: usize) -> Option<Landed> {
        let worker = self.cores.worker(core)?;
        let traveller = self.traveller.as_ref()?;
        let lane = worker.lane(traveller.slot);
        if self.cores.is_inherited() || lane.word.value() != IDLE {
            return None;
        }
        let travel = lane.travel();
        let landed = Landed { lane, worker: &raw const worker.own.0 };
        self.away.set(Some(landed));
        slot::set_place(Place::Away);
        thread::own().bound_for.set(landed.worker);
        let bound_for = [(&raw const *worker).cast(), std::ptr::null()];
        // SAFETY: the lane is idle: while a closure is in it no journey begins.
        unsafe { (*travel).thread_pointer = traveller.thread_pointer };
        sanitizer::leave(&raw const **traveller);
        // SAFETY: the trampoline stack's context was kept when it was last left.
        let [lane, worker] =
            unsafe { switch(lane.context(), traveller.trampoline.as_ptr(), bound_for) };
        if lane.is_null() {
            // Without a message, the worker has ended or is held up, and the thread is still here.
            sanitizer::arrive(travel);
            arrive();
            self.away.set(None);
            return None;
        }
        Some(Landed { lane: lane.cast(), worker: worker.cast() })
    }

    /// Brings the thread home, if it is away.
    pub(crate) fn go_home(&self) {
        if let Some(landed) = self.away.get() {
            landed.go_home();
            self.away.set(None);
        }
    }

    /// The core, by its place in the list, that this thread's work goes to: threads are spread over
    /// the cores.
    #[must_use]
    pub fn usual(&self) -> usize {
        self.traveller.as_ref().map_or(0, |traveller| self.cores.usual(traveller.slot))
    }
}

impl Drop for Away<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.landed.go_home();
        self.away.set(None);
    }
}

impl Landed {
    /// The kernel's number of the worker's thread.
    pub(crate) fn kernel_thread(self) -> u32 {
        // SAFETY: the worker's own, and this thread runs on it.
        unsafe { &*self.worker }.thread()
    }

    /// Goes on at home.
    #[inline(always)]
    pub(crate) fn go_home(self) {
        // SAFETY: the worker's own, and this thread runs on it.
        let worker = unsafe { &*self.worker };
        if fork::forks() != worker.forks {
            // This kernel thread was a worker's, and is the only one of a child of fork(2): there
            // is no home any more.
            arrive();
            return;
        }
        // SAFETY: the lane was handed over with the thread, and lives as long as the cores.
        let lane = unsafe { &*self.lane };
        // SAFETY: the worker that carries the thread left its context there.
        unsafe { switch(lane.context(), worker.context.as_ptr(), NOTHING) };
        sanitizer::arrive(lane.travel());
        arrive();
    }
}

/// Notes that the calling thread is at home.
#[inline(always)]
fn arrive() {
    thread::own().bound_for.set(std::ptr::null());
    slot::set_place(Place::Busy);
}

impl Drop for Journey<'_> {
    fn drop(&mut self) {
        self.go_home();
        let traveller = self.traveller.take();
        // In a child, what waited on the trampoline stack has stayed with the parent.
        let traveller = traveller.filter(|_| !self.cores.is_inherited());
        keep(traveller);
        slot::set_place(Place::Home);
        signals::restore();
    }
}
