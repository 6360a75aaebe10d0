//! Cleans up when a thread ends. A key of the C library, made once and early, has a destructor that
//! brings the thread home and gives back its resources.
//!
//! The C library keeps the values of the first keys in memory that each thread has from its start.
//! Registering a thread for the cleanup therefore allocates nothing. Destructors of Rust or C++
//! would be registered in memory from the program's allocator.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::from_above::FromAbove;

/// What a thread's end has to undo, in this order: first the thread comes home.
pub(crate) static AT_END: FromAbove<4> = FromAbove::new();
/// Place in [`AT_END`]: a thread that is away for a call or a region comes home.
pub(crate) const COMES_HOME: usize = 0;
/// Place in [`AT_END`]: what is known of its wide phases is forgotten.
pub(crate) const LEAVES_WIDE: usize = 3;
/// Place in [`AT_END`]: its data for migrations is freed.
pub(crate) const FREES_MIGRATION: usize = 1;
/// Place in [`AT_END`]: its slot is given back.
pub(crate) const GIVES_BACK_SLOT: usize = 2;

/// The key plus 1; 0 before [`prepare`], and if no key is available.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Setting a value for this key or a later one allocates. Source: glibc,
/// `PTHREAD_KEY_2NDLEVEL_SIZE` in nptl/descr.h.
const FIRST_THAT_ALLOCATES: libc::pthread_key_t = 32;

/// Makes the key, if there is none yet. The earlier the better, since there are few early keys.
pub(crate) fn prepare() {
    // Ordering: pairs with the exchange below: the key exists that the number names.
    if KEY.load(Ordering::Acquire) != 0 {
        return;
    }
    let mut key = libc::pthread_key_t::MAX;
    // SAFETY: writes to `key` only. The destructor exists as long as the process, since a library
    // with this code is never unloaded.
    let made = unsafe { libc::pthread_key_create(&raw mut key, Some(at_end)) };
    if made != 0 {
        return;
    }
    // Ordering: Release pairs with the loads of `KEY`, after the key was made.
    let is_first = key < FIRST_THAT_ALLOCATES
        && KEY.compare_exchange(0, key + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if !is_first {
        // SAFETY: it was just made, and no thread has a value for it.
        unsafe { libc::pthread_key_delete(key) };
    }
}

/// Registers the calling thread for the cleanup at its end; returns false if that is impossible.
/// Async-signal-safe.
pub(crate) fn watch() -> bool {
    // Ordering: pairs with the exchange in `prepare`.
    let Some(key) = KEY.load(Ordering::Acquire).checked_sub(1) else { return false };
    // Any value except null.
    // SAFETY: the key is never deleted, and the value is never dereferenced.
    unsafe { libc::pthread_setspecific(key, std::ptr::without_provenance(1)) == 0 }
}

/// The cleanup at a thread's end.
extern "C" fn at_end(_: *mut c_void) {
    AT_END.call();
}
