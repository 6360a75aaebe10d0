//! This crate's data of each thread.
//!
//! The data lies in memory that each thread has from its start, at an address that is computed
//! without a call. The first use of an ordinary thread-local may allocate: in a library that was
//! loaded later (`__tls_get_addr`), and for one with a destructor. The allocator may be the
//! program's own, or may be what a signal handler has interrupted. Nothing here has a destructor,
//! therefore; [`crate::end`] cleans up when a thread ends. A thread starts with all bytes zero.
//!
//! The data migrates with the thread, as all thread-local storage does.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use rustix::thread::CpuSet;

use crate::call_migration::RegionMigration;
use crate::migrate::{Migration, MigrationState};
use crate::sample::Sampler;
use crate::slot::Place;
use crate::worker::Own;
use crate::{delegate, signals};

/// The data of one thread.
#[repr(C, align(16))]
pub(crate) struct Thread {
    pub(crate) sampler: Sampler,
    pub(crate) place: Cell<Place>,
    /// Whether it is in the middle of this crate's code: see [`Inside`].
    is_inside: Cell<bool>,
    /// Whether it is taking a slot.
    pub(crate) is_taking: Cell<bool>,
    /// Its slot plus 1; 0 without a slot.
    pub(crate) slot: Cell<u32>,
    /// The slot plus 1 of a thread that has ended while it was still away or busy.
    pub(crate) left: Cell<u32>,
    /// The kernel's id of its own kernel thread, if it ever migrated; otherwise 0.
    pub(crate) home: Cell<u32>,
    /// The CPU affinity of its home, during a fork.
    pub(crate) allowed: Kept<CpuSet>,
    /// Its data for migrations; null before its first [`Migration`], and during one.
    pub(crate) migration_state: Cell<*mut MigrationState>,
    /// The [`Migration`] of a thread that is away for a region or a migrated call.
    pub(crate) call_migration: Kept<Migration<'static>>,
    /// The worker that it was sent to, while it is away; otherwise null.
    pub(crate) bound_for: Cell<*const Own>,
    /// Whether it has received its cancellation on a worker; its home reads this.
    pub(crate) is_cancelled: AtomicBool,
    /// State of its last migration for a region.
    pub(crate) region_migration: Cell<RegionMigration>,
    /// The head of its list of robust mutexes, once it was looked up. The inner value is `None` if
    /// it has no such list.
    pub(crate) robust: Kept<Option<*const *const ()>>,
    /// The signal mask from before it blocked everything. The thread, or its child, restores it.
    pub(crate) before: Kept<signals::Mask>,
    /// The signal mask and the signal stack at home, when it came home early.
    pub(crate) at_home: Kept<(signals::Mask, libc::stack_t)>,
    /// The work that it has delegated and not taken back, and the worker.
    pub(crate) out: Kept<delegate::Out>,
}

/// A value, or none. All zero: none.
#[repr(C)]
pub(crate) struct Kept<T> {
    is_there: Cell<bool>,
    value: Cell<MaybeUninit<T>>,
}

impl<T> Kept<T> {
    /// Stores a value. A signal handler finds the previous value, none, or this one.
    pub(crate) fn set(&self, value: T) {
        self.is_there.set(false);
        compiler_fence(Ordering::SeqCst);
        self.value.set(MaybeUninit::new(value));
        compiler_fence(Ordering::SeqCst);
        self.is_there.set(true);
    }

    pub(crate) fn take(&self) -> Option<T> {
        if !self.is_there.replace(false) {
            return None;
        }
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the value was set, and is now marked as gone.
        Some(unsafe { self.value.replace(MaybeUninit::uninit()).assume_init() })
    }

    pub(crate) fn is_there(&self) -> bool {
        self.is_there.get()
    }
}

impl<T: Copy> Kept<T> {
    pub(crate) fn get(&self) -> Option<T> {
        // SAFETY: the value was set.
        self.is_there().then(|| unsafe { self.value.get().assume_init() })
    }
}

#[cfg(not(miri))]
std::arch::global_asm!(
    ".section .tbss.dimmer_runtime_thread,\"awT\",@nobits",
    ".p2align 4",
    ".hidden dimmer_runtime_thread",
    ".globl dimmer_runtime_thread",
    ".type dimmer_runtime_thread,@object",
    ".size dimmer_runtime_thread, {bytes}",
    "dimmer_runtime_thread:",
    ".zero {bytes}",
    ".text",
    bytes = const size_of::<Thread>(),
);

/// The calling thread's data. Async-signal-safe.
#[cfg(not(miri))]
#[inline(always)]
pub(crate) fn own() -> &'static Thread {
    let place: *const Thread;
    // The compiler must not keep the address across a migration, since other storage may be in use
    // then. Therefore the assembly is not declared `pure`.
    // SAFETY: the loader has filled in this entry of the table, and the first word of thread-local
    // storage holds the storage's address.
    unsafe {
        std::arch::asm!(
            "mov {place}, qword ptr [rip + dimmer_runtime_thread@GOTTPOFF]",
            "add {place}, qword ptr fs:[0]",
            place = out(reg) place,
            options(nostack, readonly)
        );
    }
    // SAFETY: it has the size that was reserved above, and is zero at first, which is valid. It
    // lives as long as the thread, and no other thread has a reference to it, since the type is not
    // `Send`.
    unsafe { &*place }
}

/// Miri cannot execute assembly.
#[cfg(miri)]
pub(crate) fn own() -> &'static Thread {
    thread_local! {
        // SAFETY: a thread's data starts with all bytes zero.
        static OWN: Thread = const { unsafe { MaybeUninit::zeroed().assume_init() } };
    }
    // SAFETY: it has no destructor, so it lives as long as the thread.
    OWN.with(|own| unsafe { &*std::ptr::from_ref(own) })
}

/// The calling thread is in the middle of this crate's code until this is dropped. Code that
/// interrupts it on the same thread (a signal handler, or the program's own allocator) is not
/// moved.
#[derive(Debug)]
pub(crate) struct Inside(());

impl Inside {
    /// `None` if the thread is inside already.
    #[inline]
    pub(crate) fn begin() -> Option<Self> {
        let was_inside = own().is_inside.replace(true);
        compiler_fence(Ordering::SeqCst);
        (!was_inside).then_some(Self(()))
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        own().is_inside.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_begins_with_nothing_and_keeps_its_own() {
        let look = || {
            let own = own();
            (own.slot.get(), own.place.get() == Place::Home, own.before.is_there(), own.home.get())
        };
        own().home.set(7);
        let another = std::thread::spawn(look).join().unwrap();
        assert_eq!(another, (0, true, false, 0));
        assert_eq!(own().home.take(), 7);
        assert!(own().migration_state.get().is_null() && !own().call_migration.is_there());
    }

    #[test]
    fn who_is_inside_does_not_come_in_again() {
        let inside = Inside::begin().unwrap();
        assert!(Inside::begin().is_none());
        // Another thread is not.
        std::thread::spawn(|| assert!(Inside::begin().is_some())).join().unwrap();
        drop(inside);
        assert!(Inside::begin().is_some());
    }
}
