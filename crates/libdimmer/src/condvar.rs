//! A condition of `dimmer-locks` for C.

use std::ffi::c_int;

use dimmer_locks::Condvar;

use crate::made::{Content, Made};
use crate::mutex::{Mutex, content};

/// A condition that threads wait for under a `dimmer_mutex`. What it contains is not for use.
///
/// dimmer_cond_init() makes it; it must not be copied or moved then. Any thread may use it, but not
/// in a signal handler.
#[derive(Debug)]
#[repr(C)]
pub struct Cond {
    /// Not for use.
    pub own: [u64; 4],
}

impl Content for Condvar {
    const MARK: u32 = 0x6469_6d63;
}

/// Makes a condition that no thread waits for.
///
/// Returns 0; EINVAL if `cond` is NULL.
///
/// # Safety
/// `cond` is NULL or refers to memory of a `dimmer_cond` that holds none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_cond_init(cond: *mut Cond) -> c_int {
    // SAFETY: the caller guarantees the memory.
    unsafe { Made::put(cond, || Some(Condvar::new())) }
}

/// Ends a condition. Its memory may hold another one then.
///
/// Returns 0; EINVAL if there is none.
///
/// # Safety
/// `cond` is NULL or refers to a `dimmer_cond`, and no thread waits for it that was not woken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_cond_destroy(cond: *mut Cond) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { Made::<Condvar>::end(cond, |_| false) }
}

/// Releases the mutex, sleeps until another thread wakes this one, and acquires the mutex again.
/// The mutex executes the acts of its strategy at both (docs/locks.md).
///
/// It may return without being woken, so callers check their condition in a loop. All threads that
/// wait for a condition have the same mutex.
///
/// Returns 0, and the calling thread has the mutex; EPERM if it did not have it: then nothing was
/// changed; EINVAL if there is no condition or no mutex.
///
/// # Safety
/// `cond` is NULL or refers to a `dimmer_cond`, and `mutex` is NULL or refers to a `dimmer_mutex`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_cond_wait(cond: *mut Cond, mutex: *mut Mutex) -> c_int {
    // SAFETY: the caller guarantees it.
    let Some(own) = (unsafe { Made::<Condvar>::get(cond) }) else { return libc::EINVAL };
    // SAFETY: the caller guarantees it.
    let Some(mutex) = (unsafe { content(mutex) }) else { return libc::EINVAL };
    if !mutex.is_mine() {
        return libc::EPERM;
    }
    own.wait_between(|| mutex.release(), || mutex.acquire());
    0
}

/// Wakes one of the threads that wait, if there is one. Costs a system call.
///
/// Returns 0; EINVAL if there is no condition.
///
/// # Safety
/// `cond` is NULL or refers to a `dimmer_cond`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_cond_signal(cond: *mut Cond) -> c_int {
    // SAFETY: the caller guarantees it.
    let Some(own) = (unsafe { Made::<Condvar>::get(cond) }) else { return libc::EINVAL };
    own.notify_one();
    0
}

/// Wakes all threads that wait. Costs a system call.
///
/// Returns 0; EINVAL if there is no condition.
///
/// # Safety
/// `cond` is NULL or refers to a `dimmer_cond`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_cond_broadcast(cond: *mut Cond) -> c_int {
    // SAFETY: the caller guarantees it.
    let Some(own) = (unsafe { Made::<Condvar>::get(cond) }) else { return libc::EINVAL };
    own.notify_all();
    0
}
