//! Migration of threads: the stack and the thread-local storage go to another kernel thread, while
//! the thread's own kernel thread waits at home.
//!
//! To migrate, a thread stores its resume context in a worker's lane and switches from its own
//! stack to a small one, the *trampoline stack*. On that stack its kernel thread hands over the
//! lane and waits. So a stack is handed over only when no kernel thread runs on it any more. The
//! worker switches to the stack, and to the thread's thread-local storage (the FS base): `errno`,
//! `malloc`'s cache, `pthread_self` and thread-locals are the thread's own there, as at home.
//! Returning home is the same in reverse.
//!
//! The kernel's state of a thread stays at home:
//!
//! - Its thread id.
//! - Its signal mask. All signals are blocked at home meanwhile, and wait.
//! - Its area of restartable sequences, so `sched_getcpu` returns the home's CPU.
//! - Robust and priority-inheriting mutexes. They must not be held or taken during the migration.
//!   The kernel gives a contended priority-inheriting mutex to the worker. It passes on a robust
//!   mutex when the home ends, although the worker may go on for some microseconds.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use dimmer_host::migration;

use crate::cores::Cores;
use crate::lane::{IDLE, Lane, MIGRATE};
use crate::sanitizer::{self, Storage};
use crate::signals;
use crate::slot::{self, Place};
use crate::stack::Stack;
use crate::switch::{self, Context, Message, switch};
use crate::thread::{self, Thread};
use crate::word::Patience;
use crate::worker::{Own, Shared};
use crate::{cancel, fork};

/// Why a thread cannot migrate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CannotMigrate {
    /// Only the kernel can change the FS base, which holds the address of thread-local storage.
    #[error("this kernel or processor does not let programs change the FS base (fsgsbase)")]
    ThreadPointer,
    /// The processor keeps a second copy of the return addresses, which would not migrate.
    #[error("shadow stacks are on in this process")]
    ShadowStack,
    /// Valgrind runs the process.
    #[error("Valgrind runs this process, and knows no threads that travel")]
    Valgrind,
    /// The thread holds a robust mutex, which the kernel would pass on when the thread's home ends.
    #[error("this thread holds a robust mutex")]
    RobustMutex,
    /// The thread is a worker or is away already, or more threads exist than lanes.
    #[error("this thread runs on a dedicated core already, or too many threads use them")]
    NoLane,
    /// All workers have ended, or the process is a child of the one that started them.
    #[error("no dedicated core has a worker")]
    NoWorker,
    /// There is no memory for the trampoline stack.
    #[error("cannot map a stack")]
    System(#[from] io::Error),
}

/// A thread's data for migrations. It lies at the top of the trampoline stack.
pub(crate) struct MigrationState {
    slot: usize,
    pub(crate) thread_pointer: u64,
    /// This crate's data of the thread. Its home needs the reference, since it has no thread-local
    /// storage of its own.
    pub(crate) thread: &'static Thread,
    patience: Cell<Patience>,
    /// Where its kernel thread resumes when the thread leaves.
    trampoline: Cell<Context>,
    storage: Storage,
    _stack: Stack,
}

/// The owner of a [`MigrationState`]: dropping this frees the memory.
pub(crate) struct OwnedMigrationState(NonNull<MigrationState>);

impl std::fmt::Debug for OwnedMigrationState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnedMigrationState").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl Deref for OwnedMigrationState {
    type Target = MigrationState;

    #[inline(always)]
    fn deref(&self) -> &MigrationState {
        // SAFETY: `OwnedMigrationState::new` has stored it, and it stays until this is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for OwnedMigrationState {
    fn drop(&mut self) {
        // Dropping the value that is read unmaps the memory that it was read from.
        // SAFETY: nothing uses it any more: its thread is at home, and the trampoline stack is
        // empty.
        drop(unsafe { self.0.read() });
    }
}

/// Frees the calling thread's data for migrations, at the thread's end.
pub(crate) fn give_back() {
    keep(None);
}

/// Stores the calling thread's data for later migrations.
fn keep(state: Option<OwnedMigrationState>) {
    let kept =
        state.map_or(std::ptr::null_mut(), |state| std::mem::ManuallyDrop::new(state).0.as_ptr());
    // If a signal handler has stored one in between, that one is dropped.
    drop(NonNull::new(thread::own().migration_state.replace(kept)).map(OwnedMigrationState));
}

/// Whether the calling thread holds a robust mutex, according to the list that the C library has
/// registered with the kernel. The first call takes a system call.
#[must_use]
pub fn holds_robust_mutex() -> bool {
    let kept = &thread::own().robust;
    let list = kept.get().unwrap_or_else(|| {
        let list = migration::robust_list();
        kept.set(list);
        list
    });
    // SAFETY: the C library keeps the head in the thread's own memory, until the thread ends.
    list.is_some_and(|head| unsafe { head.read_volatile() } != head.cast())
}

/// Checks whether this machine and process allow threads to migrate.
///
/// # Errors
/// Why they do not.
pub fn check() -> Result<(), CannotMigrate> {
    if migration::is_under_valgrind() {
        return Err(CannotMigrate::Valgrind);
    }
    if !migration::can_change_thread_pointer() {
        return Err(CannotMigrate::ThreadPointer);
    }
    if migration::has_shadow_stack() {
        return Err(CannotMigrate::ShadowStack);
    }
    Ok(())
}

impl OwnedMigrationState {
    fn new(slot: usize, patience: Patience) -> Result<Self, CannotMigrate> {
        check()?;
        let stack = Stack::map()?;
        // SAFETY: `check` has found that reading it is allowed.
        let thread_pointer = unsafe { switch::thread_pointer() };
        fork::note_home();
        let (patience, trampoline) = (Cell::new(patience), Cell::default());
        let storage = Storage::new();
        let place: *mut MigrationState = stack.top();
        let thread = thread::own();
        let migration_state = MigrationState {
            slot,
            thread_pointer,
            thread,
            patience,
            trampoline,
            storage,
            _stack: stack,
        };
        // SAFETY: memory that nothing else uses, aligned.
        unsafe { place.write(migration_state) };
        // SAFETY: within a mapping.
        let state = Self(unsafe { NonNull::new_unchecked(place) });
        state.trampoline.set(switch::prepare(place.cast(), wait_at_home, place.cast()));
        Ok(state)
    }
}

/// The code of the kernel thread on the trampoline stack, while its thread is away: it hands the
/// thread to a worker, waits for it, and resumes it. It must not use thread-local storage, since it
/// shares that with the thread.
unsafe extern "C" fn wait_at_home(bound_for: *const (), state: *const ()) -> ! {
    // SAFETY: `OwnedMigrationState::new` passes the pointer; the data outlives its stack.
    let state = unsafe { &*state.cast::<MigrationState>() };
    let mut bound_for = bound_for.cast::<Shared>();
    loop {
        state.storage.moor(state);
        // SAFETY: `Migration::go` has passed the pointer, and borrows the cores.
        let worker = unsafe { &*bound_for };
        let lane = worker.lane(state.slot);
        lane.word.set(MIGRATE);
        worker.ring();
        while !has_come_back(worker, lane, state) {}
        if lane.word.value() != IDLE {
            // No worker has carried it.
            lane.word.put(IDLE);
        }
        sanitizer::leave(lane.thread());
        state.storage.cast_off(state.thread_pointer);
        // SAFETY: filled when the thread left its worker, or when it left here.
        let message = unsafe { switch(state.trampoline.as_ptr(), lane.context(), NOTHING) };
        bound_for = message[0].cast();
    }
}

/// Waits for the thread for a limited time. Returns whether its lane holds the point where it
/// resumes.
#[inline]
fn has_come_back(worker: &Shared, lane: &Lane, state: &MigrationState) -> bool {
    if lane.word.wait_while(MIGRATE, state.patience.get()).is_some() {
        return true;
    }
    if worker.is_alive() {
        cancel::pass_on(worker, state);
        return worker.give_back(state.slot, MIGRATE);
    }
    if lane.word.value() != MIGRATE {
        return false;
    }
    if worker.is_at(state.slot) {
        // The thread itself has ended.
        end_thread();
    }
    // No worker has started to carry it.
    true
}

/// Ends the calling kernel thread, whose thread has ended elsewhere.
fn end_thread() {
    // SAFETY: this kernel thread runs no thread's code any more.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

/// A message without content.
const NOTHING: Message = [std::ptr::null(); 2];

/// Resumes the thread in a lane, and runs it until it leaves.
///
/// # Safety
/// The lane's word is [`MIGRATE`], and the caller is the lane's worker.
#[inline]
pub(crate) unsafe fn carry(worker: &Shared, lane: &Lane) {
    let travel = lane.thread();
    // SAFETY: the caller guarantees that the lane holds a thread.
    let thread_pointer = unsafe { (*travel).thread_pointer };
    let own = &worker.own.0;
    #[cfg(dimmer_tsan)]
    let storage = own.storage();
    // SAFETY: the thread's code runs here now. The worker's own code uses no thread-local storage
    // until it settles.
    unsafe { own.put_in_force(thread_pointer) };
    let message = [(&raw const *lane).cast(), (&raw const *own).cast()];
    // SAFETY: the thread was handed over once, and no other kernel thread runs on its stack.
    unsafe { switch(own.context.as_ptr(), lane.context(), message) };
    #[cfg(dimmer_tsan)]
    own.settle_at(storage);
    lane.word.post(IDLE);
}

/// A stretch of execution in which the calling thread may migrate to dedicated cores and back.
/// Signals are blocked meanwhile, and closures that it would delegate run where it is.
///
/// While a thread is away, it must not take or hold a priority-inheriting or robust mutex (a thread
/// that holds a robust one does not migrate), and must not depend on its thread id or CPU as the
/// kernel reports them.
#[derive(Debug)]
pub struct Migration<'a> {
    cores: &'a Cores,
    /// `None` only during the drop.
    state: Option<OwnedMigrationState>,
    /// Where the thread is, if it is not at home. Written only at home, so that the worker's core
    /// fetches nothing for it.
    migrated: Cell<Option<OnWorker>>,
    // It holds data of the calling thread.
    not_send: PhantomData<*const ()>,
}

/// The calling thread is on a dedicated core. Dropping this brings the thread home.
#[derive(Debug)]
#[must_use = "the thread goes home at once"]
pub struct Migrated<'a> {
    on_worker: OnWorker,
    /// The field of the [`Migration`].
    migrated: &'a Cell<Option<OnWorker>>,
}

/// Where a thread has landed. The worker's side passes it with the thread, so that returning home
/// transfers no line except the lane's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnWorker {
    lane: *const Lane,
    worker: *const Own,
}

impl<'a> Migration<'a> {
    pub(crate) fn begin(cores: &'a Cores, patience: Patience) -> Result<Self, CannotMigrate> {
        let slot = slot::own().ok_or(CannotMigrate::NoLane)?;
        if holds_robust_mutex() {
            return Err(CannotMigrate::RobustMutex);
        }
        let kept = thread::own().migration_state.replace(std::ptr::null_mut());
        let state = match NonNull::new(kept).map(OwnedMigrationState) {
            Some(state) => {
                state.patience.set(patience);
                state
            }
            None => OwnedMigrationState::new(slot, patience)?,
        };
        signals::block();
        slot::set_place(Place::Busy);
        let (state, migrated) = (Some(state), Cell::new(None));
        Ok(Self { cores, state, migrated, not_send: PhantomData })
    }

    /// Migrates to the dedicated core with index `core` in the list, until the result is dropped.
    /// `None`: the thread stays, since there is no such core, or its worker has ended or is held
    /// up. If the result of an earlier call was leaked (`forget`), the thread goes home first.
    #[inline(always)]
    pub fn go(&mut self, core: usize) -> Option<Migrated<'_>> {
        self.go_home();
        let on_worker = self.go_to(core)?;
        Some(Migrated { on_worker, migrated: &self.migrated })
    }

    /// Migrates like [`Self::go`]. The caller guarantees that the thread is at home, and that it
    /// goes home before the [`Migration`] ends.
    #[inline(always)]
    pub(crate) fn go_to(&self, core: usize) -> Option<OnWorker> {
        let worker = self.cores.worker(core)?;
        let state = self.state.as_ref()?;
        let lane = worker.lane(state.slot);
        if self.cores.is_inherited() || lane.word.value() != IDLE {
            return None;
        }
        let travel = lane.thread();
        let on_worker = OnWorker { lane, worker: &raw const worker.own.0 };
        self.migrated.set(Some(on_worker));
        slot::set_place(Place::Migrated);
        thread::own().bound_for.set(on_worker.worker);
        let bound_for = [(&raw const *worker).cast(), std::ptr::null()];
        // SAFETY: the lane is idle: no `Migration` starts while a closure is in it.
        unsafe { (*travel).thread_pointer = state.thread_pointer };
        sanitizer::leave(&raw const **state);
        // SAFETY: the trampoline stack's context was saved when that stack was last left.
        let [lane, worker] =
            unsafe { switch(lane.context(), state.trampoline.as_ptr(), bound_for) };
        if lane.is_null() {
            // Without a message, the worker has ended or is held up, and the thread is still here.
            sanitizer::arrive(travel);
            arrive();
            self.migrated.set(None);
            return None;
        }
        Some(OnWorker { lane: lane.cast(), worker: worker.cast() })
    }

    /// Brings the thread home, if it is away.
    pub(crate) fn go_home(&self) {
        if let Some(on_worker) = self.migrated.get() {
            on_worker.go_home();
            self.migrated.set(None);
        }
    }

    /// Index in the list of the core that this thread's work goes to: threads are spread over the
    /// cores.
    #[must_use]
    pub fn usual(&self) -> usize {
        self.state.as_ref().map_or(0, |state| self.cores.usual(state.slot))
    }
}

impl Drop for Migrated<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.on_worker.go_home();
        self.migrated.set(None);
    }
}

impl OnWorker {
    /// The kernel's id of the worker's thread.
    pub(crate) fn kernel_thread(self) -> u32 {
        // SAFETY: the worker owns it, and this thread runs on that worker.
        unsafe { &*self.worker }.thread()
    }

    /// Resumes at home.
    #[inline(always)]
    pub(crate) fn go_home(self) {
        // SAFETY: the worker owns it, and this thread runs on that worker.
        let worker = unsafe { &*self.worker };
        if fork::forks() != worker.forks {
            // This kernel thread was a worker's, and is the only one of a child of fork(2): there
            // is no home any more.
            arrive();
            return;
        }
        // SAFETY: the lane was handed over with the thread, and lives as long as the cores.
        let lane = unsafe { &*self.lane };
        // SAFETY: the worker that carries the thread saved its context there.
        unsafe { switch(lane.context(), worker.context.as_ptr(), NOTHING) };
        sanitizer::arrive(lane.thread());
        arrive();
    }
}

/// Records that the calling thread is at home.
#[inline(always)]
fn arrive() {
    thread::own().bound_for.set(std::ptr::null());
    slot::set_place(Place::Busy);
}

impl Drop for Migration<'_> {
    fn drop(&mut self) {
        self.go_home();
        let state = self.state.take();
        // In a child, the kernel thread that waited on the trampoline stack has stayed with the
        // parent.
        let state = state.filter(|_| !self.cores.is_inherited());
        keep(state);
        slot::set_place(Place::Home);
        signals::restore();
    }
}
