//! System calls by which the program gives up what this library uses, time stamps or system calls,
//! or by which a thread drops rights of its own only.
//!
//! If a call that gives something up fails, hooks go on as before; only what moved calls does not
//! start again.

use std::ffi::{c_int, c_long};

use dimmer_runtime::calls::KeepErrno;
use dimmer_runtime::giving_up::{GivenUp, GivingUp, lower_half};

use crate::home::come_home_before;
use crate::marks;
use crate::next::Next;

pub(crate) static PRCTL: Next = Next::new(c"prctl");
pub(crate) static SYSCALL: Next = Next::new(c"syscall");

/// System calls by which a thread drops rights of its own only. Among them are calls that the C
/// library's functions make for all threads.
const CONFINING_CALLS: [c_long; 13] = [
    libc::SYS_landlock_restrict_self,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_capset,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
];

/// Options of prctl(2) that do the same.
const CONFINING_OPTIONS: [c_int; 3] =
    [libc::PR_CAPBSET_DROP, libc::PR_SET_SECUREBITS, libc::PR_CAP_AMBIENT];

/// Whether a thread drops rights by this call, which gives this up.
pub(crate) fn is_confining(number: c_long, first: c_int, giving_up: Option<GivingUp>) -> bool {
    CONFINING_CALLS.contains(&number)
        || number == libc::SYS_prctl && CONFINING_OPTIONS.contains(&first)
        || giving_up.is_some_and(|call| call.what == GivenUp::SystemCalls)
}

/// Makes a system call that gives something up.
fn make(
    number: c_long,
    [first, second, third]: [c_long; 3],
    call: impl FnOnce() -> c_long,
) -> c_long {
    let giving_up = GivingUp::of(number, lower_half(first), lower_half(second), third != 0);
    let Some(giving_up) = giving_up else { return call() };
    // The crate of hooks does not depend on the one that decides.
    let what = match giving_up.what {
        GivenUp::TimeStamps => dimmer_hook::GivenUp::TimeStamps,
        GivenUp::SystemCalls => dimmer_hook::GivenUp::SystemCalls,
    };
    let errno = KeepErrno::new();
    let measured = if giving_up.what == GivenUp::SystemCalls { marks::stop() } else { None };
    drop(errno);
    let result = dimmer_hook::giving_up(what, call, |result| giving_up.has_succeeded(*result));
    if let Some(measured) = measured.filter(|_| !giving_up.has_succeeded(result)) {
        measured.go_on();
    }
    result
}

/// prctl(2), for a call that gives something up.
pub(crate) extern "C" fn prctl_giving_up(
    option: c_int,
    second: c_long,
    third: c_long,
    fourth: c_long,
    fifth: c_long,
) -> c_int {
    type Function = unsafe extern "C" fn(c_int, c_long, c_long, c_long, c_long) -> c_int;
    // SAFETY: the C library's function, or one that takes no arguments and fails.
    let function: Function = unsafe { std::mem::transmute(come_home_before(&PRCTL)) };
    // SAFETY: the program's arguments.
    let call = || unsafe { function(option, second, third, fourth, fifth) }.into();
    lower_half(make(libc::SYS_prctl, [option.into(), second, third], call))
}

/// syscall(2), for a call that gives something up.
pub(crate) extern "C" fn syscall_giving_up(
    number: c_long,
    first: c_long,
    second: c_long,
    third: c_long,
    fourth: c_long,
    fifth: c_long,
    sixth: c_long,
) -> c_long {
    type Function =
        unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;
    // SAFETY: the C library's function, or one that takes no arguments and fails.
    let function: Function = unsafe { std::mem::transmute(come_home_before(&SYSCALL)) };
    // SAFETY: the program's arguments.
    let call = || unsafe { function(number, first, second, third, fourth, fifth, sixth) };
    make(number, [first, second, third], call)
}
