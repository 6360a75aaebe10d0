//! What becomes of a thread's belongings when it ends: a key of the C library's, made once and
//! early, whose destructor brings the thread home and gives back what it has.
//!
//! A value for one of the first keys is kept in memory that each thread has from its begin, so
//! saying that a thread has belongings allocates nothing. A destructor of Rust's, or of C++, would
//! be registered in memory from the program's allocator.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{slot, travel, trip};

/// The key and 1 more; 0 before [`prepare`], and where none is to be had.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Keys from this on allocate. Source: glibc, `PTHREAD_KEY_2NDLEVEL_SIZE` in nptl/descr.h.
const FIRST_THAT_ALLOCATES: libc::pthread_key_t = 32;

/// Makes the key, if there is none yet; the earlier the better, as the first ones are few.
pub(crate) fn prepare() {
    if KEY.load(Ordering::Acquire) != 0 {
        return;
    }
    let mut key = libc::pthread_key_t::MAX;
    // SAFETY: writes the one; the destructor is there as long as the process, as a library with it
    // is never unloaded.
    let made = unsafe { libc::pthread_key_create(&raw mut key, Some(at_end)) };
    if made != 0 {
        return;
    }
    let is_first = key < FIRST_THAT_ALLOCATES
        && KEY.compare_exchange(0, key + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if !is_first {
        // SAFETY: it was just made, and no thread has a value.
        unsafe { libc::pthread_key_delete(key) };
    }
}

/// Has the calling thread's belongings given back when it ends; whether that can be done.
/// Async-signal-safe.
pub(crate) fn watch() -> bool {
    let Some(key) = KEY.load(Ordering::Acquire).checked_sub(1) else { return false };
    // Any value but null.
    // SAFETY: the key is there for good, and the value is never followed.
    unsafe { libc::pthread_setspecific(key, std::ptr::without_provenance(1)) == 0 }
}

/// A thread ends.
extern "C" fn at_end(_: *mut c_void) {
    trip::come_home();
    travel::give_back();
    slot::give_back();
}
