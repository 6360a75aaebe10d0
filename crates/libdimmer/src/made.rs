//! What the locks for C have in common: whether memory holds one, which thread calls, and which
//! strategy a name means.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use dimmer_locks::Strategy;

use crate::call::contained;

/// What lies in the memory of a lock.
pub(crate) trait Content: Sized {
    /// The mark of memory that holds one: a value that other memory is unlikely to have.
    const MARK: u32;
}

/// A lock in the memory that C has for it.
#[repr(C)]
pub(crate) struct Made<T> {
    mark: AtomicU32,
    content: T,
}

impl<T: Content> Made<T> {
    /// Makes a lock in memory of the type `M`. Returns 0; `EAGAIN` if `make` panics; `EINVAL` if
    /// `make` returns none, or if `memory` is NULL.
    ///
    /// # Safety
    /// `memory` is NULL or refers to memory that holds no lock.
    pub(crate) unsafe fn put<M>(memory: *mut M, make: impl FnOnce() -> Option<T>) -> c_int {
        const {
            assert!(size_of::<Self>() <= size_of::<M>());
            assert!(align_of::<Self>() <= align_of::<M>());
        }
        let Some(content) = contained(make) else { return libc::EAGAIN };
        let Some(content) = content.filter(|_| !memory.is_null()) else { return libc::EINVAL };
        let made = Self { mark: AtomicU32::new(T::MARK), content };
        // SAFETY: the memory is large enough, and the caller's.
        unsafe { memory.cast::<Self>().write(made) };
        0
    }

    /// The lock in this memory, if there is one.
    ///
    /// # Safety
    /// `memory` is NULL, or zero, or a lock was made there, or ended.
    pub(crate) unsafe fn get<'a, M>(memory: *const M) -> Option<&'a T> {
        // SAFETY: the first field, and any bytes are a word.
        let mark = unsafe { memory.cast::<AtomicU32>().as_ref() }?;
        // Relaxed: programs order the use of a lock after its initialisation.
        let is_made = mark.load(Ordering::Relaxed) == T::MARK;
        // SAFETY: it was made.
        is_made.then(|| unsafe { &(*memory.cast::<Self>()).content })
    }

    /// Ends a lock, unless `is_busy`. Returns 0; `EBUSY`, and the lock stays; `EINVAL` if there is
    /// none.
    ///
    /// # Safety
    /// As for [`Self::get`], and no thread is in a call with it.
    pub(crate) unsafe fn end<M>(memory: *mut M, is_busy: impl FnOnce(&T) -> bool) -> c_int {
        // SAFETY: the caller guarantees it.
        let Some(content) = (unsafe { Self::get(memory) }) else { return libc::EINVAL };
        if is_busy(content) {
            return libc::EBUSY;
        }
        // SAFETY: it was made.
        unsafe { (*memory.cast::<Self>()).mark.store(0, Ordering::Relaxed) };
        // SAFETY: likewise, and no other call uses it.
        unsafe { memory.cast::<Self>().drop_in_place() };
        0
    }
}

/// The number of the calling thread, from 1 on. No other thread of the process ever has it, and it
/// stays the same when the thread migrates.
pub(crate) fn thread() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(0) };
    }
    let number = NUMBER.get();
    if number != 0 {
        return number;
    }
    let number = THREADS.fetch_add(1, Ordering::Relaxed) + 1;
    NUMBER.set(number);
    number
}

/// The strategy that a caller has named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The lock chooses.
    Auto,
    /// This one.
    Fixed(Strategy),
}

/// The strategy of this name; `auto` for NULL. `None` if there is none.
///
/// # Safety
/// `name` is NULL or ends with a zero.
pub(crate) unsafe fn wanted(name: *const c_char) -> Option<Wanted> {
    if name.is_null() {
        return Some(Wanted::Auto);
    }
    // SAFETY: the caller guarantees a text.
    match unsafe { CStr::from_ptr(name) }.to_str() {
        Ok("auto") => Some(Wanted::Auto),
        Ok(name) => Strategy::named(name).map(Wanted::Fixed),
        Err(_) => None,
    }
}
