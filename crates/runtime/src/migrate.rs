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
//! - Its area of restartable sequences, so `sched_getcpu` returns the home's CPU. In a child of
//!   fork(2), which has no home, it returns the child's.
//! - Robust and priority-inheriting mutexes. They must not be held or taken during the migration.
//!   The kernel gives a contended priority-inheriting mutex to the worker. It passes on a robust
//!   mutex when the home ends, although the worker may go on for some microseconds.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use dimmer_host::migration;

use crate::arch::{self, Context, of_thread, switch};
use crate::can_migrate::{CannotMigrate, check};
use crate::cancel::{self, Cancelled};
use crate::carry::NOTHING;
use crate::cores::Cores;
use crate::end::{AT_END, FREES_MIGRATION};
use crate::fork::{IN_CHILD, REPLACES_AREA};
use crate::lane::{IDLE, Lane, MIGRATE};
use crate::sanitizer::{self, Storage};
use crate::shared::{Own, Shared};
use crate::slot::{self, Place};
use crate::stack::Stack;
use crate::thread::Kept;
use crate::wait::Patience;
use crate::{fork, rseq, signals};

/// A thread's own.
struct OfThread {
    /// Its data for migrations; null before its first [`Migration`], and during one.
    state: Cell<*mut MigrationState>,
    /// The head of its list of robust mutexes, once it was looked up. The inner value is `None` if
    /// it has no such list.
    robust: Kept<Option<*const *const ()>>,
}

of_thread! {
    fn of_thread() -> OfThread, "dimmer_runtime_migrate";
}

/// A thread's data for migrations. It lies at the top of the trampoline stack.
struct MigrationState {
    slot: usize,
    thread_pointer: u64,
    /// What its home tells it of cancellations. The home needs the reference, since it has no
    /// thread-local storage of its own.
    cancelled: &'static Cancelled,
    patience: Cell<Patience>,
    /// Where its kernel thread resumes when the thread leaves.
    trampoline: Cell<Context>,
    storage: Storage,
    _stack: Stack,
}

/// The owner of a [`MigrationState`]: dropping this frees the memory.
struct OwnedMigrationState(NonNull<MigrationState>);

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
fn give_back() {
    keep(None);
}

/// For a child that a thread forks while it is away: the child's kernel thread is a copy of the
/// worker's, and carries this thread from now on.
fn replace_area() {
    if slot::place() != Place::Migrated {
        return;
    }
    // SAFETY: null, or the worker that carries this thread; the child has a copy of its data.
    if let Some(worker) = unsafe { cancel::of_thread().bound_for.get().as_ref() } {
        // SAFETY: the thread has migrated, so `check` has found that reading it is allowed.
        rseq::replace(worker.thread_pointer.get(), unsafe { arch::thread_pointer() });
    }
}

/// Stores the calling thread's data for later migrations.
fn keep(state: Option<OwnedMigrationState>) {
    let kept =
        state.map_or(std::ptr::null_mut(), |state| std::mem::ManuallyDrop::new(state).0.as_ptr());
    // If a signal handler has stored one in between, that one is dropped.
    drop(NonNull::new(of_thread().state.replace(kept)).map(OwnedMigrationState));
}

/// Whether the calling thread holds a robust mutex, according to the list that the C library has
/// registered with the kernel. The first call takes a system call.
#[must_use]
pub fn holds_robust_mutex() -> bool {
    let kept = &of_thread().robust;
    let list = kept.get().unwrap_or_else(|| {
        let list = migration::robust_list();
        kept.set(list);
        list
    });
    // SAFETY: the C library keeps the head in the thread's own memory, until the thread ends.
    list.is_some_and(|head| unsafe { head.read_volatile() } != head.cast())
}

impl OwnedMigrationState {
    fn new(slot: usize, patience: Patience) -> Result<Self, CannotMigrate> {
        check()?;
        let stack = Stack::map()?;
        // SAFETY: `check` has found that reading it is allowed.
        let thread_pointer = unsafe { arch::thread_pointer() };
        fork::note_home();
        let (patience, trampoline) = (Cell::new(patience), Cell::default());
        let storage = Storage::new();
        let place: *mut MigrationState = stack.top();
        let cancelled = cancel::of_thread();
        AT_END.set::<FREES_MIGRATION>(give_back);
        IN_CHILD.set::<REPLACES_AREA>(replace_area);
        let migration_state = MigrationState {
            slot,
            thread_pointer,
            cancelled,
            patience,
            trampoline,
            storage,
            _stack: stack,
        };
        // SAFETY: memory that nothing else uses, aligned.
        unsafe { place.write(migration_state) };
        // SAFETY: within a mapping.
        let state = Self(unsafe { NonNull::new_unchecked(place) });
        state.trampoline.set(arch::prepare(place.cast(), wait_at_home, place.cast()));
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
        cancel::pass_on(worker, state.cancelled, state.thread_pointer);
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

/// A stretch of execution in which the calling thread may migrate to dedicated cores and back.
/// Signals are blocked meanwhile, and closures that it would delegate run where it is.
///
/// While a thread is away, it must not take or hold a priority-inheriting or robust mutex (a thread
/// that holds a robust one does not migrate), and must not depend on its thread id or CPU as the
/// kernel reports them.
///
/// It belongs to the thread:
///
/// ```compile_fail,E0277
/// fn is_send<T: Send>() {}
/// is_send::<dimmer_runtime::Migration<'static>>();
/// ```
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

impl Cores {
    /// Runs the body of one call on a dedicated core, with the caller's own stack and thread-local
    /// storage, and comes back. The closure need not be [`Send`], since it runs on the same thread.
    /// If the thread cannot migrate, the closure runs here.
    ///
    /// ```
    /// use std::cell::Cell;
    ///
    /// use dimmer_runtime::{Cores, CpuId, Root};
    ///
    /// thread_local! {
    ///     static TURNS: Cell<u32> = const { Cell::new(0) };
    /// }
    /// let Ok(cores) = Cores::start(&Root::live(), &[CpuId::new(1)]) else { return };
    /// let here = std::thread::current().id();
    /// // The same thread, with its own storage, on another core.
    /// cores.migrate(|| {
    ///     TURNS.set(TURNS.get() + 1);
    ///     assert_eq!(std::thread::current().id(), here);
    /// });
    /// assert_eq!(TURNS.get(), 1);
    /// ```
    ///
    /// Costs two system calls, for signals, besides two hand-offs.
    pub fn migrate<T>(&self, work: impl FnOnce() -> T) -> T {
        let Ok(mut migration) = self.begin_migration() else { return work() };
        let core = migration.usual();
        let _away = migration.go(core);
        work()
    }

    /// Starts a stretch of execution in which the calling thread may migrate to the dedicated cores
    /// and back.
    ///
    /// # Errors
    /// [`CannotMigrate`].
    pub fn begin_migration(&self) -> Result<Migration<'_>, CannotMigrate> {
        if self.is_inherited() {
            return Err(CannotMigrate::NoWorker);
        }
        Migration::begin(self, self.patience())
    }
}

impl<'a> Migration<'a> {
    fn begin(cores: &'a Cores, patience: Patience) -> Result<Self, CannotMigrate> {
        let slot = slot::own().ok_or(CannotMigrate::NoLane)?;
        if holds_robust_mutex() {
            return Err(CannotMigrate::RobustMutex);
        }
        let kept = of_thread().state.replace(std::ptr::null_mut());
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
        let thread = lane.thread();
        let on_worker = OnWorker { lane, worker: &raw const *worker.own };
        self.migrated.set(Some(on_worker));
        slot::set_place(Place::Migrated);
        cancel::of_thread().bound_for.set(on_worker.worker);
        let bound_for = [(&raw const *worker).cast(), std::ptr::null()];
        // SAFETY: the lane is idle: no `Migration` starts while a closure is in it.
        unsafe { (*thread).thread_pointer = state.thread_pointer };
        sanitizer::leave(&raw const **state);
        // SAFETY: the trampoline stack's context was saved when that stack was last left.
        let [lane, worker] =
            unsafe { switch(lane.context(), state.trampoline.as_ptr(), bound_for) };
        if lane.is_null() {
            // Without a message, the worker has ended or is held up, and the thread is still here.
            sanitizer::arrive(thread);
            arrive();
            self.migrated.set(None);
            return None;
        }
        Some(OnWorker { lane: lane.cast(), worker: worker.cast() })
    }

    /// Brings the thread home, if it is away: for callers that have leaked the result of
    /// [`Self::go`], to return home from another function.
    #[inline(always)]
    pub fn go_home(&self) {
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
    cancel::of_thread().bound_for.set(std::ptr::null());
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
