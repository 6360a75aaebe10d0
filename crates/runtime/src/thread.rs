//! Data of each thread, for the modules that keep some.
//!
//! The data lies in memory that each thread has from its start, at an address that is computed
//! without a call ([`of_thread!`]). The first use of an ordinary thread-local may allocate: in a
//! library that was loaded later (`__tls_get_addr`), and for one with a destructor. The allocator
//! may be the program's own, or may be what a signal handler has interrupted. Nothing here has a
//! destructor, therefore; [`crate::end`] cleans up when a thread ends. A thread starts with all
//! bytes zero.
//!
//! The data migrates with the thread, as all thread-local storage does.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::arch::of_thread;

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

of_thread! {
    /// Whether the thread is in the middle of this crate's code: see [`Inside`].
    fn is_inside() -> Cell<bool>, "dimmer_runtime_inside";
}

/// An address in the calling thread's thread-local storage. The storage lies above the stack of a
/// thread that is not the process's first.
pub(crate) fn address() -> usize {
    std::ptr::from_ref(is_inside()).addr()
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
        let was_inside = is_inside().replace(true);
        compiler_fence(Ordering::SeqCst);
        (!was_inside).then_some(Self(()))
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        is_inside().set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    of_thread! {
        fn number() -> Cell<u64>, "dimmer_runtime_test_number";
    }

    of_thread! {
        fn text() -> Kept<&'static str>, "dimmer_runtime_test_text";
    }

    #[test]
    fn each_thread_begins_with_nothing_and_keeps_its_own() {
        let look = || (number().get(), text().get());
        number().set(7);
        text().set("here");
        assert_eq!(std::thread::spawn(look).join().unwrap(), (0, None));
        assert_eq!((number().take(), text().take()), (7, Some("here")));
        assert_eq!(look(), (0, None));
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
