//! Mutexes whose owner the kernel records: the owner inherits priority, has its priority changed,
//! or may die while it holds them (robust).
//!
//! To the kernel, a migrated thread is a worker. A contended priority-inheriting mutex would belong
//! to the worker, and its owner could not unlock it. A robust mutex is passed on when its owner's
//! home thread ends, although the worker may go on for some microseconds. And a priority changes at
//! home. So a thread comes home before it locks or unlocks such a mutex, and stays as long as it
//! holds one. A thread that waits for a condition with such a mutex holds it, and so is at home
//! already. Those functions are left to the C library, in the version that a program asks for.
//!
//! Robust mutexes are in a list that the C library keeps for the kernel, so that list is checked:
//! they may come and go in other functions, which wait for a condition or drop what a dead owner
//! has left. The other kinds are counted.
//!
//! All other mutexes cost a check of their kind and a jump more: locking and unlocking one took 4.8
//! instead of 4.3 ns (medians of seven runs in turn of each, which lay between 3.2 and 4.9; glibc
//! 2.36, a virtual machine on an EPYC). A hook on the functions that make such mutexes would cost
//! nothing, but there are mutexes in shared memory that another process has made.
//!
//! A thread may be cancelled in the middle of these functions if it has asked for that
//! (`PTHREAD_CANCEL_ASYNCHRONOUS`); it is at home then ([`crate::cancel`]). So the code that a
//! thread at home runs through is assembly with unwinding records.

use std::ffi::{c_int, c_void};

use dimmer_hook::cut_migration_short;

use crate::arch::mutex_functions;
use crate::next::Next;
use crate::thread::{self, HELD};

/// Kinds whose owner the kernel records. Source: glibc, `nptl/pthreadP.h`:
/// `PTHREAD_MUTEX_ROBUST_NORMAL_NP`, `PTHREAD_MUTEX_PRIO_INHERIT_NP`,
/// `PTHREAD_MUTEX_PRIO_PROTECT_NP`.
pub(crate) const KNOWN_TO_KERNEL: u8 = ROBUST | 32 | 64;
pub(crate) const ROBUST: u8 = 16;

/// Whether the calling thread holds a mutex whose owner the kernel records.
pub(crate) fn are_held() -> bool {
    thread::get(HELD) > 0 || dimmer_runtime::calls::holds_robust_mutex()
}

/// Must be called in a child of fork(2): the kernel records its parent's thread as the holder.
pub(crate) fn forget() {
    thread::set(HELD, 0);
}

/// Looks up this file's next functions, as [`crate::home::find_next`] does.
pub(crate) fn find_next() {
    for next in [&LOCK, &TRYLOCK, &TIMEDLOCK, &CLOCKLOCK, &UNLOCK] {
        next.get();
    }
}

static LOCK: Next = Next::new(c"pthread_mutex_lock");
static TRYLOCK: Next = Next::new(c"pthread_mutex_trylock");
static TIMEDLOCK: Next = Next::new(c"pthread_mutex_timedlock");
static CLOCKLOCK: Next = Next::new(c"pthread_mutex_clocklock");
static UNLOCK: Next = Next::new(c"pthread_mutex_unlock");

/// Brings the calling thread home. Returns the address where the function goes on.
pub(crate) extern "C" fn before(next: &Next) -> *mut c_void {
    cut_migration_short();
    let next = next.get();
    if next.is_null() { lacks as *mut c_void } else { next }
}

/// Fails, for a C library that is older than the function.
extern "C" fn lacks() -> c_int {
    libc::ENOSYS
}

mutex_functions! {
    pthread_mutex_lock LOCK taken
    pthread_mutex_trylock TRYLOCK taken
    pthread_mutex_timedlock TIMEDLOCK taken
    pthread_mutex_clocklock CLOCKLOCK taken
    pthread_mutex_unlock UNLOCK given_back
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;

    /// Locks and unlocks a mutex of a kind. Returns the count and whether any are held, before, in
    /// between and afterwards.
    fn held(change: impl FnOnce(*mut libc::pthread_mutexattr_t)) -> [(u32, bool); 3] {
        let state = || (thread::get(HELD), are_held());
        let mut kind = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let mut mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        // SAFETY: initialises `kind`.
        assert_eq!(unsafe { libc::pthread_mutexattr_init(kind.as_mut_ptr()) }, 0);
        change(kind.as_mut_ptr());
        // SAFETY: `kind` was just initialised.
        assert_eq!(unsafe { libc::pthread_mutex_init(&raw mut mutex, kind.as_ptr()) }, 0);
        let before = state();
        // SAFETY: the mutex is initialised, and is not moved.
        assert_eq!(unsafe { libc::pthread_mutex_lock(&raw mut mutex) }, 0);
        let between = state();
        // SAFETY: the mutex is initialised, and is not moved.
        assert_eq!(unsafe { libc::pthread_mutex_unlock(&raw mut mutex) }, 0);
        [before, between, state()]
    }

    #[test]
    fn mutexes_that_the_kernel_knows_are_held_until_they_are_given_back() {
        let none = (0, false);
        assert_eq!(held(|_| {}), [none; 3]);
        let inheriting = held(|kind| {
            // SAFETY: `kind` is initialised.
            let result =
                unsafe { libc::pthread_mutexattr_setprotocol(kind, libc::PTHREAD_PRIO_INHERIT) };
            assert_eq!(result, 0);
        });
        assert_eq!(inheriting, [none, (1, true), none]);
        let robust = held(|kind| {
            // SAFETY: `kind` is initialised.
            let result =
                unsafe { libc::pthread_mutexattr_setrobust(kind, libc::PTHREAD_MUTEX_ROBUST) };
            assert_eq!(result, 0);
        });
        assert_eq!(robust, [none, (0, true), none]);
    }

    #[test]
    fn what_was_not_taken_here_is_given_back_without_counting() {
        let mut mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        let mut kind = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        // SAFETY: initialises `kind`.
        assert_eq!(unsafe { libc::pthread_mutexattr_init(kind.as_mut_ptr()) }, 0);
        // SAFETY: `kind` was just initialised.
        let result = unsafe {
            libc::pthread_mutexattr_setprotocol(kind.as_mut_ptr(), libc::PTHREAD_PRIO_INHERIT)
        };
        assert_eq!(result, 0);
        // SAFETY: `kind` is initialised.
        assert_eq!(unsafe { libc::pthread_mutex_init(&raw mut mutex, kind.as_ptr()) }, 0);
        // SAFETY: the mutex is initialised, and is not moved.
        assert_eq!(unsafe { libc::pthread_mutex_lock(&raw mut mutex) }, 0);
        forget();
        // SAFETY: the mutex is initialised, and is not moved.
        assert_eq!(unsafe { libc::pthread_mutex_unlock(&raw mut mutex) }, 0);
        assert!(!are_held());
    }
}
