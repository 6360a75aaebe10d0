//! Mutexes and rwlocks.
//!
//! An acquisition is contended if the function that does not wait fails with `EBUSY`. Whatever that
//! fails with, the function that was called follows, and its result is the caller's: the two differ
//! for a mutex that the thread has locked itself. Where the function that was called refuses its
//! arguments even for a free lock, it is called alone; so it is for robust mutexes, which glibc's
//! `pthread_mutex_trylock` leaves locked if it fails with `ENOTRECOVERABLE` (seen in 2.36). That an
//! acquisition had to wait is not seen then.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use dimmer_contention::ledger::Kind;
use dimmer_contention::stop::{has_stopped, ticks};
use dimmer_contention::{held, own};

use crate::arch::with_caller;
use crate::next::{self, Deadline, Object};

with_caller! {
    pthread_mutex_lock("rsi") mutex_lock;
    pthread_mutex_trylock("rsi") mutex_trylock;
    pthread_mutex_timedlock("rdx") mutex_timedlock;
    pthread_mutex_clocklock("rcx") mutex_clocklock;
    pthread_rwlock_rdlock("rsi") rdlock;
    pthread_rwlock_tryrdlock("rsi") tryrdlock;
    pthread_rwlock_timedrdlock("rdx") timedrdlock;
    pthread_rwlock_clockrdlock("rcx") clockrdlock;
    pthread_rwlock_wrlock("rsi") wrlock;
    pthread_rwlock_trywrlock("rsi") trywrlock;
    pthread_rwlock_timedwrlock("rdx") timedwrlock;
    pthread_rwlock_clockwrlock("rcx") clockwrlock;
}

/// A function that takes a lock without waiting.
type Try = unsafe fn(Object) -> c_int;

/// Takes `lock` by `wait`, and counts it. `without_waiting` is tried first, if it is given.
///
/// # Safety
///
/// As for these functions.
unsafe fn take(
    (lock, caller, kind): (Object, usize, Kind),
    without_waiting: Option<Try>,
    wait: impl FnOnce() -> c_int,
) -> c_int {
    let site = own::site(caller, kind);
    let mut waited = None;
    // SAFETY: by contract.
    let mut result = without_waiting.map_or(libc::EBUSY, |take| unsafe { take(lock) });
    let is_first = is_taken(result);
    if !is_first {
        let was_busy = without_waiting.is_some() && result == libc::EBUSY;
        let waiting = site.filter(|_| was_busy);
        waiting.iter().for_each(|site| held::waits(site));
        let since = ticks();
        result = wait();
        waited = was_busy.then(|| ticks().saturating_sub(since));
        waiting.iter().filter(|_| !is_taken(result)).for_each(|site| held::has_given_up(site));
    }
    if let Some(site) = site.filter(|_| is_taken(result) && !has_stopped()) {
        site.acquired(waited);
        // glibc leaves a mutex that had to be waited for marked as if others waited, too.
        held::begin(lock.addr(), site, ticks(), is_first);
    }
    result
}

/// Takes `lock` by `take`, which does not wait, and counts it.
///
/// # Safety
///
/// As for this function.
unsafe fn take_at_once((lock, caller, kind): (Object, usize, Kind), take: Try) -> c_int {
    let site = own::site(caller, kind);
    // SAFETY: by contract.
    let result = unsafe { take(lock) };
    if let Some(site) = site.filter(|_| is_taken(result)) {
        site.acquired(None);
        held::begin(lock.addr(), site, ticks(), true);
    }
    result
}

/// Whether a function with this result has taken the lock. If its owner has died, it has.
const fn is_taken(result: c_int) -> bool {
    matches!(result, 0 | libc::EOWNERDEAD)
}

/// Counts that the calling thread has released `lock`, by a function that returned `result`, and
/// whether another one waited for it.
fn released(lock: Object, at: u64, was_wanted: bool, result: c_int) -> c_int {
    if result == 0 {
        held::end(lock.addr(), at, was_wanted);
    }
    result
}

/// Whether a mutex that the calling thread holds is marked as one that threads wait for. It is so,
/// too, if the calling thread had to wait for it, or for a condition with it.
///
/// # Safety
///
/// `mutex` is a mutex.
unsafe fn is_wanted(mutex: Object) -> bool {
    // Source: glibc, `nptl/lowlevellock.h`: 2 in `__lock` while threads may wait; of mutexes whose
    // owner the kernel knows, FUTEX_WAITERS (futex(2)).
    const MAY_WAIT: u32 = 2;
    const WAITERS: u32 = 1 << 31;
    // SAFETY: the first word of a mutex, which other threads change as an atomic one.
    let word = unsafe { AtomicU32::from_ptr(mutex.cast()) }.load(Ordering::Relaxed);
    word == MAY_WAIT || word & WAITERS != 0
}

/// Whether no function refuses such a deadline.
///
/// # Safety
///
/// `until` is null, or a deadline.
unsafe fn is_plain(clock: c_int, until: Deadline) -> bool {
    // SAFETY: by contract.
    let is_valid =
        unsafe { until.as_ref() }.is_some_and(|until| (0..1_000_000_000).contains(&until.tv_nsec));
    is_valid && matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_MONOTONIC)
}

/// Flags in the kind of a mutex: its owner may die while it holds it; its owner has the priority of
/// those that wait, for which some versions of the C library refuse the monotonic clock. Source:
/// glibc, `nptl/pthreadP.h`: `PTHREAD_MUTEX_ROBUST_NORMAL_NP`, `PTHREAD_MUTEX_PRIO_INHERIT_NP`.
const ROBUST: i32 = 16;
const INHERITS: i32 = 32;

/// The function to try first on a mutex; `None` if it has one of these flags.
///
/// # Safety
///
/// `mutex` is a mutex.
unsafe fn first_unless(mutex: Object, flags: i32) -> Option<Try> {
    // Source: glibc, `sysdeps/x86/nptl/bits/struct_mutex.h`.
    const KIND: usize = 16;
    // SAFETY: by contract.
    let kind = unsafe { mutex.byte_add(KIND) };
    // SAFETY: part of the mutex; these flags do not change.
    let kind = unsafe { kind.cast::<i32>().read() };
    (kind & flags == 0).then_some(next::mutex_trylock as Try)
}

unsafe extern "C-unwind" fn mutex_lock(mutex: Object, caller: usize) -> c_int {
    // SAFETY: the caller's arguments.
    let wait = || unsafe { next::mutex_lock(mutex) };
    // SAFETY: likewise.
    let first = unsafe { first_unless(mutex, ROBUST) };
    // SAFETY: likewise.
    unsafe { take((mutex, caller, Kind::Mutex), first, wait) }
}

unsafe extern "C-unwind" fn mutex_trylock(mutex: Object, caller: usize) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { take_at_once((mutex, caller, Kind::Mutex), next::mutex_trylock as Try) }
}

unsafe extern "C-unwind" fn mutex_timedlock(
    mutex: Object,
    until: Deadline,
    caller: usize,
) -> c_int {
    // SAFETY: the caller's arguments.
    let is_plain = unsafe { is_plain(libc::CLOCK_REALTIME, until) };
    // SAFETY: likewise.
    let wait = || unsafe { next::mutex_timedlock(mutex, until) };
    // SAFETY: likewise.
    let first = unsafe { first_unless(mutex, ROBUST) }.filter(|_| is_plain);
    // SAFETY: likewise.
    unsafe { take((mutex, caller, Kind::Mutex), first, wait) }
}

unsafe extern "C-unwind" fn mutex_clocklock(
    mutex: Object,
    clock: c_int,
    until: Deadline,
    caller: usize,
) -> c_int {
    // SAFETY: the caller's arguments.
    let is_plain = unsafe { is_plain(clock, until) };
    // SAFETY: likewise.
    let wait = || unsafe { next::mutex_clocklock(mutex, clock, until) };
    // SAFETY: likewise.
    let first = unsafe { first_unless(mutex, ROBUST | INHERITS) }.filter(|_| is_plain);
    // SAFETY: likewise.
    unsafe { take((mutex, caller, Kind::Mutex), first, wait) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_mutex_unlock(mutex: Object) -> c_int {
    let now = ticks();
    // SAFETY: the caller's arguments.
    let was_wanted = unsafe { is_wanted(mutex) };
    held::ends(mutex.addr());
    // SAFETY: likewise.
    released(mutex, now, was_wanted, unsafe { next::mutex_unlock(mutex) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_rwlock_unlock(lock: Object) -> c_int {
    let now = ticks();
    held::ends(lock.addr());
    // SAFETY: the caller's arguments.
    released(lock, now, false, unsafe { next::rwlock_unlock(lock) })
}

/// The functions of rwlocks for one kind of access.
macro_rules! rwlock {
    ($kind:expr, $wait:ident $without_waiting:ident $timed:ident $clock:ident) => {
        unsafe extern "C-unwind" fn $wait(lock: Object, caller: usize) -> c_int {
            // SAFETY: the caller's arguments.
            let wait = || unsafe { next::$wait(lock) };
            let first = next::may_try_rwlocks().then_some(next::$without_waiting as Try);
            // SAFETY: likewise.
            unsafe { take((lock, caller, $kind), first, wait) }
        }

        unsafe extern "C-unwind" fn $without_waiting(lock: Object, caller: usize) -> c_int {
            // SAFETY: the caller's arguments.
            unsafe { take_at_once((lock, caller, $kind), next::$without_waiting as Try) }
        }

        unsafe extern "C-unwind" fn $timed(lock: Object, until: Deadline, caller: usize) -> c_int {
            // SAFETY: the caller's arguments.
            let is_plain = unsafe { is_plain(libc::CLOCK_REALTIME, until) };
            // SAFETY: likewise.
            let wait = || unsafe { next::$timed(lock, until) };
            let first = is_plain && next::may_try_rwlocks();
            let first = first.then_some(next::$without_waiting as Try);
            // SAFETY: likewise.
            unsafe { take((lock, caller, $kind), first, wait) }
        }

        unsafe extern "C-unwind" fn $clock(
            lock: Object,
            clock: c_int,
            until: Deadline,
            caller: usize,
        ) -> c_int {
            // SAFETY: the caller's arguments.
            let is_plain = unsafe { is_plain(clock, until) };
            // SAFETY: likewise.
            let wait = || unsafe { next::$clock(lock, clock, until) };
            let first = is_plain && next::may_try_rwlocks();
            let first = first.then_some(next::$without_waiting as Try);
            // SAFETY: likewise.
            unsafe { take((lock, caller, $kind), first, wait) }
        }
    };
}

rwlock!(Kind::Read, rdlock tryrdlock timedrdlock clockrdlock);
rwlock!(Kind::Write, wrlock trywrlock timedwrlock clockwrlock);
