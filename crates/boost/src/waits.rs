//! Condition variables and barriers. Each call counts as one that had to wait.

use std::ffi::c_int;

use dimmer_contention::ledger::Kind;
use dimmer_contention::stop::{has_stopped, ticks};
use dimmer_contention::{held, own};

use crate::arch::with_caller;
use crate::next::{self, Deadline, Object};

with_caller! {
    pthread_cond_wait("rdx") cond_wait;
    pthread_cond_timedwait("rcx") cond_timedwait;
    pthread_cond_clockwait("r8") cond_clockwait;
    pthread_barrier_wait("rsi") barrier_wait;
}

/// Waits for a condition by `wait`, and counts it. The calling thread holds `mutex` before and
/// afterwards.
fn wait_with(mutex: Object, caller: usize, wait: impl FnOnce() -> c_int) -> c_int {
    let site = own::site(caller, Kind::Condition);
    let since = ticks();
    let suspended = held::suspend(mutex.addr(), since, site);
    let result = wait();
    let now = ticks();
    match (result, site.filter(|_| !has_stopped())) {
        (0 | libc::ETIMEDOUT | libc::EOWNERDEAD, Some(site)) => {
            site.acquired(Some(now.saturating_sub(since)));
            held::resume(mutex.addr(), site, now);
        }
        // The mutex is not the thread's any more.
        (libc::ENOTRECOVERABLE, site) => {
            held::lose(&suspended);
            site.into_iter().for_each(held::has_given_up);
        }
        // Such a wait has not released it.
        (_, Some(site)) => {
            held::has_given_up(site);
            held::goes_on(suspended);
        }
        (_, None) => {}
    }
    result
}

unsafe extern "C-unwind" fn cond_wait(condition: Object, mutex: Object, caller: usize) -> c_int {
    // SAFETY: the caller's arguments.
    wait_with(mutex, caller, || unsafe { next::cond_wait(condition, mutex) })
}

unsafe extern "C-unwind" fn cond_timedwait(
    condition: Object,
    mutex: Object,
    until: Deadline,
    caller: usize,
) -> c_int {
    // SAFETY: the caller's arguments.
    wait_with(mutex, caller, || unsafe { next::cond_timedwait(condition, mutex, until) })
}

unsafe extern "C-unwind" fn cond_clockwait(
    condition: Object,
    mutex: Object,
    clock: c_int,
    until: Deadline,
    caller: usize,
) -> c_int {
    // SAFETY: the caller's arguments.
    wait_with(mutex, caller, || unsafe { next::cond_clockwait(condition, mutex, clock, until) })
}

unsafe extern "C-unwind" fn barrier_wait(barrier: Object, caller: usize) -> c_int {
    let site = own::site(caller, Kind::Barrier);
    site.iter().for_each(|site| held::waits(site));
    let since = ticks();
    // SAFETY: the caller's arguments.
    let result = unsafe { next::barrier_wait(barrier) };
    site.iter().for_each(|site| held::has_given_up(site));
    let has_passed = matches!(result, 0 | libc::PTHREAD_BARRIER_SERIAL_THREAD);
    if let Some(site) = site.filter(|_| has_passed && !has_stopped()) {
        site.acquired(Some(ticks().saturating_sub(since)));
    }
    result
}
