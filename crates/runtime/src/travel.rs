//! Threads that go on somewhere else: their stack and their thread-local storage move, while their kernel
//! thread waits at home.
//!
//! A thread departs by switching from its own stack to a small one, the *harbour*, on which its kernel thread
//! puts the thread's stack pointer into a worker's lane and waits. So the stack is handed over only when nobody stands on
//! it any more. The worker switches to it, with the thread's thread-local storage (the FS base): `errno`, `malloc`'s
//! cache, `pthread_self` and thread-locals are the thread's own, there as at home. Going home is the same the
//! other way round.
//!
//! What the kernel knows of a thread stays at home: its number, its signal mask (all signals are blocked at home
//! meanwhile, and wait), its area of restartable sequences (so `sched_getcpu` tells the home's CPU), robust and
//! priority-inheriting mutexes, which must not be held or taken meanwhile.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;

use crate::cores::Cores;
use crate::lane::{Lane, Travel};
use crate::signals::{self, Mask};
use crate::slot;
use crate::stack::Stack;
use crate::switch::{self, switch};
use crate::word::{Patience, Word};
use crate::worker::{Line, Shared};

/// The thread is on its way or somewhere else.
const AWAY: u32 = 0;
/// The thread has come back; its stack pointer lies beside the word.
const BACK: u32 = 1;

/// The kernel lets programs change the FS base (`AT_HWCAP2`).
const HWCAP2_FSGSBASE: u64 = 1 << 1;

/// Asks which shadow-stack features are on (`arch_prctl(2)`).
const ARCH_SHSTK_STATUS: libc::c_long = 0x5005;

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
    /// On a worker, or away already, or more threads than there are lanes.
    #[error("this thread runs on a dedicated core already, or too many threads use them")]
    NoLane,
    /// All workers have ended, or the process is a child of the one that started them.
    #[error("no dedicated core has a worker")]
    NoWorker,
    /// No memory for the harbour.
    #[error("cannot map a stack")]
    System(#[from] io::Error),
}

/// What a thread needs to travel. Its lines are written by one side each, so that they do not move more often
/// than the thread.
#[derive(Debug)]
pub(crate) struct Traveller {
    home: Line<Home>,
    /// Written at home.
    here: Line<Side>,
    /// Written on workers.
    there: Line<Side>,
    slot: usize,
    thread_pointer: u64,
    patience: Patience,
    harbour: Cell<u64>,
    stack: Stack,
}

/// Where the thread comes back to.
#[derive(Debug, Default)]
struct Home {
    word: Word,
    stack_pointer: Cell<u64>,
}

/// A thread that leaves one side.
#[derive(Debug)]
struct Side {
    stack_pointer: Cell<u64>,
    /// Null: home.
    bound_for: Cell<*const Shared>,
}

impl Default for Side {
    fn default() -> Self {
        Self { stack_pointer: Cell::new(0), bound_for: Cell::new(std::ptr::null()) }
    }
}

thread_local! {
    static OWN: Cell<Option<Box<Traveller>>> = const { Cell::new(None) };
}

/// Whether this machine and process let threads travel.
fn check() -> Result<(), CannotTravel> {
    // SAFETY: reads what the kernel told the process at its start.
    if unsafe { libc::getauxval(libc::AT_HWCAP2) } & HWCAP2_FSGSBASE == 0 {
        return Err(CannotTravel::ThreadPointer);
    }
    let mut features: u64 = 0;
    // SAFETY: the kernel writes 64 bits, or refuses.
    let told = unsafe {
        libc::syscall(libc::SYS_arch_prctl, ARCH_SHSTK_STATUS, &raw mut features)
    };
    if told == 0 && features != 0 {
        return Err(CannotTravel::ShadowStack);
    }
    Ok(())
}

impl Traveller {
    fn new(slot: usize, patience: Patience) -> Result<Box<Self>, CannotTravel> {
        check()?;
        let stack = Stack::map()?;
        // SAFETY: `check` has found that it may be read.
        let thread_pointer = unsafe { switch::thread_pointer() };
        let traveller = Box::new(Self {
            home: Line::default(),
            here: Line::default(),
            there: Line::default(),
            slot,
            thread_pointer,
            patience,
            harbour: Cell::new(0),
            stack,
        });
        let end = traveller.stack.end();
        // SAFETY: the stack is new, and pages are aligned.
        let harbour = unsafe { switch::prepare(end, wait_at_home, (&raw const *traveller).cast()) };
        traveller.harbour.set(harbour);
        Ok(traveller)
    }

    fn travel(&self, stack_pointer: u64) -> Travel {
        Travel { traveller: self, stack_pointer, thread_pointer: self.thread_pointer }
    }

    /// Hands the thread to a worker.
    ///
    /// # Safety
    /// The thread's stack ends at `stack_pointer`, and nobody stands on it.
    unsafe fn hand_to(&self, worker: &Shared, stack_pointer: u64) {
        // SAFETY: the lane is the thread's, which runs nowhere.
        unsafe { worker.lane(self.slot).ask_travel(self.travel(stack_pointer)) };
        worker.ring();
    }
}

/// What the kernel thread does in the harbour, while its thread is away. It shares its thread-local storage with
/// the thread, so it must not use it.
unsafe extern "C" fn wait_at_home(traveller: *const ()) -> ! {
    // SAFETY: `Traveller::new` has given itself, which outlives its stack.
    let traveller = unsafe { &*traveller.cast::<Traveller>() };
    let home = &traveller.home.0;
    loop {
        let leaving = &traveller.here.0;
        // SAFETY: `Journey::go` has put a worker there, which lives as long as the journey.
        let worker = unsafe { &*leaving.bound_for.get() };
        // SAFETY: its thread has just left that stack.
        unsafe { traveller.hand_to(worker, leaving.stack_pointer.get()) };
        while home.word.wait_while(AWAY, traveller.patience).is_none() {}
        home.word.put(AWAY);
        // SAFETY: where the thread has left the worker.
        unsafe { switch(traveller.harbour.as_ptr(), home.stack_pointer.get()) };
    }
}

/// Goes on with the thread in a lane, until it leaves.
///
/// # Safety
/// The lane holds one, and the caller is the lane's worker.
pub(crate) unsafe fn carry(worker: &Shared, lane: &Lane) {
    // SAFETY: as the caller says.
    let travel = unsafe { lane.take_travel() };
    // SAFETY: a thread's own, which outlives its journeys.
    let traveller = unsafe { &*travel.traveller };
    // SAFETY: threads travel only where it may be read.
    let own = unsafe { switch::thread_pointer() };
    // SAFETY: until it is put back, only the thread's code runs here.
    unsafe { switch::set_thread_pointer(travel.thread_pointer) };
    // SAFETY: the thread's stack, handed over once.
    unsafe { switch(worker.own.0.stack_pointer.as_ptr(), travel.stack_pointer) };
    // SAFETY: the worker's own.
    unsafe { switch::set_thread_pointer(own) };
    let leaving = &traveller.there.0;
    let stack_pointer = leaving.stack_pointer.get();
    // SAFETY: null, or a worker that lives as long as the journey.
    match unsafe { leaving.bound_for.get().as_ref() } {
        // SAFETY: the thread has just left its stack.
        Some(next) => unsafe { traveller.hand_to(next, stack_pointer) },
        None => {
            traveller.home.0.stack_pointer.set(stack_pointer);
            traveller.home.0.word.post(BACK);
        }
    }
}

/// A stretch of the calling thread's life in which it may go to dedicated cores and back. Signals wait meanwhile. Dropping
/// it brings the thread home.
///
/// While a thread is away it must not hold a priority-inheriting or robust mutex, end itself, or count on its number or CPU as
/// the kernel sees them.
#[derive(Debug)]
pub struct Journey<'a> {
    cores: &'a Cores,
    /// `None` only while it is dropped.
    traveller: Option<Box<Traveller>>,
    /// Null: at home.
    at: Cell<*const Shared>,
    mask: Mask,
    // What it holds is the thread's own.
    not_send: PhantomData<*const ()>,
}

impl<'a> Journey<'a> {
    pub(crate) fn begin(cores: &'a Cores, patience: Patience) -> Result<Self, CannotTravel> {
        let slot = slot::own().ok_or(CannotTravel::NoLane)?;
        let traveller = match OWN.try_with(Cell::take).ok().flatten() {
            Some(traveller) => traveller,
            None => Traveller::new(slot, patience)?,
        };
        let mask = signals::block();
        let at = Cell::new(std::ptr::null());
        Ok(Self { cores, traveller: Some(traveller), at, mask, not_send: PhantomData })
    }

    /// Goes on at the dedicated core of that place in the list; where its worker has ended, stays.
    pub fn go(&self, core: usize) {
        if let Some(worker) = self.cores.worker(core) {
            self.leave_for(worker);
        }
    }

    /// The thread's lane on every worker.
    pub(crate) fn lane(&self) -> usize {
        self.traveller.as_deref().map_or(0, |traveller| traveller.slot)
    }

    /// Goes on at home.
    pub fn home(&self) {
        self.leave_for(std::ptr::null());
    }

    /// Whether the thread is at home.
    #[must_use]
    pub fn is_at_home(&self) -> bool {
        self.at.get().is_null()
    }

    fn leave_for(&self, next: *const Shared) {
        let at = self.at.get();
        let Some(traveller) = self.traveller.as_deref() else { return };
        if std::ptr::eq(at, next) {
            return;
        }
        if self.cores.is_inherited() {
            // In a child of fork(2) this is the only thread: there is no home any more, nor a worker.
            self.at.set(std::ptr::null());
            return;
        }
        slot::is_away(!next.is_null());
        self.at.set(next);
        // SAFETY: null, or a worker of the cores that the journey borrows.
        let (side, other_stack) = match unsafe { at.as_ref() } {
            None => (&traveller.here.0, traveller.harbour.get()),
            Some(worker) => (&traveller.there.0, worker.own.0.stack_pointer.get()),
        };
        side.bound_for.set(next);
        // SAFETY: the stack that whoever carries this thread has left for it.
        unsafe { switch(side.stack_pointer.as_ptr(), other_stack) };
    }
}

impl Drop for Journey<'_> {
    fn drop(&mut self) {
        let was_away = !self.is_at_home();
        self.home();
        if was_away && self.cores.is_inherited() {
            // This kernel thread is a worker's: it goes on as the child's only thread, where the parent's may run.
            self.cores.release_affinity();
            slot::is_away(false);
        }
        let traveller = self.traveller.take();
        let _ = OWN.try_with(|own| own.set(traveller));
        signals::restore(&self.mask);
    }
}
