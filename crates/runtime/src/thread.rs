//! What this crate keeps of each thread.
//!
//! It is memory that each thread has from its begin, in a place that is known without a call: the
//! first use of an ordinary thread-local may allocate, in a library that was loaded later
//! (`__tls_get_addr`) and for one that is dropped at the thread's end, and whatever allocates may
//! be what a signal's handler has interrupted, or the program's own. So nothing here is dropped;
//! [`crate::end`] sees to a thread's end. All zero is how a thread begins.
//!
//! It travels with the thread, as all thread-local storage does.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use rustix::thread::CpuSet;

use crate::sample::Sampler;
use crate::slot::Place;
use crate::travel::{Journey, Travelling};
use crate::trip::Visit;
use crate::worker::Own;
use crate::{lend, signals};

/// A thread's.
#[repr(C, align(16))]
pub(crate) struct Thread {
    pub(crate) sampler: Sampler,
    pub(crate) place: Cell<Place>,
    /// Whether it is in the middle of something of this crate's: see [`Inside`].
    is_inside: Cell<bool>,
    /// Whether it is taking a slot.
    pub(crate) is_taking: Cell<bool>,
    /// Its slot and 1 more, if it has one.
    pub(crate) slot: Cell<u32>,
    /// Likewise, of a thread that has ended but for its journey.
    pub(crate) left: Cell<u32>,
    /// The kernel's number of its own kernel thread, if it ever travelled; else 0.
    pub(crate) home: Cell<u32>,
    /// Where that may run, while a fork is under way.
    pub(crate) allowed: Kept<CpuSet>,
    /// What it travels with; null before its first journey, and on one.
    pub(crate) travelling: Cell<*mut Travelling>,
    /// The journey of a thread that is away for a region or a moved call.
    pub(crate) trip: Kept<Journey<'static>>,
    /// The worker that it was sent to, while it is away; else null.
    pub(crate) bound_for: Cell<*const Own>,
    /// Whether it has learnt on a worker that it is cancelled, which its home reads.
    pub(crate) is_cancelled: AtomicBool,
    /// Of its last trip for a region.
    pub(crate) visit: Cell<Visit>,
    /// The head of the list of the robust mutexes that it holds, as soon as that was asked; `None`
    /// in it if it has no such list.
    pub(crate) robust: Kept<Option<*const *const ()>>,
    /// What was blocked before it blocked everything, for it or for its child to have again.
    pub(crate) before: Kept<signals::Mask>,
    /// What was blocked at home, and the stack for handlers there, when it came there early.
    pub(crate) at_home: Kept<(signals::Mask, libc::stack_t)>,
    /// What it has lent and not taken back, and to whom.
    pub(crate) out: Kept<lend::Out>,
}

/// Something, or nothing. All zero: nothing.
#[repr(C)]
pub(crate) struct Kept<T> {
    is_there: Cell<bool>,
    value: Cell<MaybeUninit<T>>,
}

impl<T> Kept<T> {
    /// Keeps it. A signal's handler finds the one before, none, or this one.
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
        // SAFETY: what is there was set, and is so no longer.
        Some(unsafe { self.value.replace(MaybeUninit::uninit()).assume_init() })
    }

    pub(crate) fn is_there(&self) -> bool {
        self.is_there.get()
    }
}

impl<T: Copy> Kept<T> {
    pub(crate) fn get(&self) -> Option<T> {
        // SAFETY: what is there was set.
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

/// The calling thread's. Async-signal-safe.
#[cfg(not(miri))]
#[inline(always)]
pub(crate) fn own() -> &'static Thread {
    let place: *const Thread;
    // The compiler must not keep it across a journey's hand-over, where other storage may be in
    // force: so it is not said to be pure. SAFETY: the loader has filled in this entry of the
    // table, and the first word of thread-local storage is where that is.
    unsafe {
        std::arch::asm!(
            "mov {place}, qword ptr [rip + dimmer_runtime_thread@GOTTPOFF]",
            "add {place}, qword ptr fs:[0]",
            place = out(reg) place,
            options(nostack, readonly)
        );
    }
    // SAFETY: as large as it was made above, and zero at first, which is valid. It is gone with the
    // thread; nobody else has a reference to it, as that is not `Send`.
    unsafe { &*place }
}

/// Miri knows no assembly.
#[cfg(miri)]
pub(crate) fn own() -> &'static Thread {
    thread_local! {
        // SAFETY: all zero is how a thread begins.
        static OWN: Thread = const { unsafe { MaybeUninit::zeroed().assume_init() } };
    }
    // SAFETY: it has no destructor, so it is there as long as the thread.
    OWN.with(|own| unsafe { &*std::ptr::from_ref(own) })
}

/// The calling thread is in the middle of something of this crate's, until this is dropped. What
/// comes in between on the same thread, a signal's handler or the program's own allocator, stays
/// where it is.
#[derive(Debug)]
pub(crate) struct Inside(());

impl Inside {
    /// `None` if it is already.
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
        assert!(own().travelling.get().is_null() && !own().trip.is_there());
    }

    #[test]
    fn who_is_inside_does_not_come_in_again() {
        let inside = Inside::begin().unwrap();
        assert!(Inside::begin().is_none());
        // Another thread does.
        std::thread::spawn(|| assert!(Inside::begin().is_some())).join().unwrap();
        drop(inside);
        assert!(Inside::begin().is_some());
    }
}
