//! A condition of `dimmer-locks` for C.

use std::ffi::c_int;

use dimmer_locks::{Condvar, Within};

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

/// What lies in a [`Cond`].
struct Own {
    condition: Condvar,
    /// Threads that wait, or have been woken and still use the condition.
    within: Within,
}

impl Own {
    /// Waits between `release` and `acquire`. Uses nothing of the condition any more when it calls
    /// `acquire`.
    fn wait(&self, release: impl FnOnce(), acquire: impl FnOnce()) {
        // The next thread that has the mutex knows of it.
        self.within.enter();
        self.condition.wait_between(release, || {
            self.within.leave();
            acquire();
        });
    }
}

impl Content for Own {
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
    unsafe { Made::put(cond, || Some(Own { condition: Condvar::new(), within: Within::new() })) }
}

/// Ends a condition. Its memory may hold another one then. Threads that were woken may still be in
/// dimmer_cond_wait(): this waits until they use the condition no more, which takes no mutex.
///
/// Returns 0; EINVAL if there is none.
///
/// # Safety
/// `cond` is NULL or refers to a `dimmer_cond`, and no thread waits for it that was not woken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_cond_destroy(cond: *mut Cond) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe {
        Made::<Own>::end(cond, |own| {
            own.within.until_left();
            false
        })
    }
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
    let Some(own) = (unsafe { Made::<Own>::get(cond) }) else { return libc::EINVAL };
    // SAFETY: the caller guarantees it.
    let Some(mutex) = (unsafe { content(mutex) }) else { return libc::EINVAL };
    if !mutex.is_mine() {
        return libc::EPERM;
    }
    own.wait(|| mutex.release(), || mutex.acquire());
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
    let Some(own) = (unsafe { Made::<Own>::get(cond) }) else { return libc::EINVAL };
    own.condition.notify_one();
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
    let Some(own) = (unsafe { Made::<Own>::get(cond) }) else { return libc::EINVAL };
    own.condition.notify_all();
    0
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    fn until(is_so: &AtomicBool) {
        while !is_so.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// A thread that has released its mutex and does not sleep yet is woken, too.
    #[test]
    fn a_condition_may_end_as_soon_as_all_are_woken() {
        let mut memory = Cond { own: [0; 4] };
        let cond = &raw mut memory;
        // SAFETY: the memory is this test's, here and below.
        assert_eq!(unsafe { dimmer_cond_init(cond) }, 0);
        // SAFETY: it was made.
        let own = unsafe { Made::<Own>::get(cond) }.unwrap();
        let (is_released, is_woken) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let release = || {
                    is_released.store(true, Ordering::Release);
                    until(&is_woken);
                    std::thread::sleep(Duration::from_millis(20));
                };
                own.wait(release, || ());
            });
            until(&is_released);
            // SAFETY: it was made.
            assert_eq!(unsafe { dimmer_cond_broadcast(cond) }, 0);
            is_woken.store(true, Ordering::Release);
            // SAFETY: the only thread that waits is woken.
            assert_eq!(unsafe { dimmer_cond_destroy(cond) }, 0);
            // SAFETY: the memory holds no condition.
            assert_eq!(unsafe { dimmer_cond_init(cond) }, 0);
        });
    }
}
