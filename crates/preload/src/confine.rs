//! System calls by which the program gives up what this library uses, time stamps or system calls,
//! or by which a thread drops rights of its own only.
//!
//! Many programs only ask what the kernel has, by calls that cannot succeed, such as one for a
//! filter at address 0. Such calls change nothing here. If another one fails, hooks go on as
//! before; only what moved calls does not start again.

use std::ffi::{c_int, c_long};

use dimmer_hook::{GivenUp, giving_up};
use dimmer_runtime::calls::KeepErrno;

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
pub(crate) fn is_confining(number: c_long, first: c_int, given_up: Option<GivenUp>) -> bool {
    CONFINING_CALLS.contains(&number)
        || number == libc::SYS_prctl && CONFINING_OPTIONS.contains(&first)
        || given_up == Some(GivenUp::SystemCalls)
}

/// What a system call gives up if it succeeds, by its first three arguments; `None` also if it
/// cannot succeed.
pub(crate) fn given_up(
    number: c_long,
    first: c_int,
    second: c_int,
    third: *const u8,
) -> Option<GivenUp> {
    let is_filter = !third.is_null();
    let restricts = match number {
        libc::SYS_seccomp => match first.cast_unsigned() {
            libc::SECCOMP_SET_MODE_STRICT => second == 0 && !is_filter,
            libc::SECCOMP_SET_MODE_FILTER => is_filter,
            _ => false,
        },
        libc::SYS_prctl if first == libc::PR_SET_SECCOMP => match second.cast_unsigned() {
            libc::SECCOMP_MODE_STRICT => true,
            libc::SECCOMP_MODE_FILTER => is_filter,
            _ => false,
        },
        libc::SYS_prctl if first == libc::PR_SET_TSC && second == libc::PR_TSC_SIGSEGV => {
            return Some(GivenUp::TimeStamps);
        }
        _ => false,
    };
    restricts.then_some(GivenUp::SystemCalls)
}

/// Whether it has done so, by its result.
fn has_succeeded(number: c_long, second: c_int, result: c_long) -> bool {
    // Otherwise a number above 0 is that of a thread to which the filter could not be applied.
    let returns_file = number == libc::SYS_seccomp
        && libc::c_ulong::from(second.cast_unsigned()) & libc::SECCOMP_FILTER_FLAG_NEW_LISTENER
            != 0;
    result == 0 || result > 0 && returns_file
}

/// Makes a system call that gives something up.
fn make(
    number: c_long,
    [first, second, third]: [c_long; 3],
    call: impl FnOnce() -> c_long,
) -> c_long {
    let (first, second) = (lower_half(first), lower_half(second));
    let third = usize::try_from(third.cast_unsigned()).unwrap_or_default();
    let third = std::ptr::with_exposed_provenance(third);
    let Some(what) = given_up(number, first, second, third) else { return call() };
    let errno = KeepErrno::new();
    let measured = if what == GivenUp::SystemCalls { marks::stop() } else { None };
    drop(errno);
    let result = giving_up(what, call, |result| has_succeeded(number, second, *result));
    if let Some(measured) = measured.filter(|_| !has_succeeded(number, second, result)) {
        measured.go_on();
    }
    result
}

/// What the kernel takes of an argument that is no pointer.
fn lower_half(word: c_long) -> c_int {
    let [first, second, third, fourth, ..] = word.to_le_bytes();
    c_int::from_le_bytes([first, second, third, fourth])
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

#[cfg(test)]
mod tests {
    use std::ptr::null;

    use libc::{PR_GET_SECCOMP, PR_SET_SECCOMP, PR_SET_TSC, SYS_prctl, SYS_seccomp};

    use super::*;

    #[test]
    fn only_calls_that_can_succeed_give_something_up() {
        const STRICT: c_int = libc::SECCOMP_SET_MODE_STRICT.cast_signed();
        const FILTER: c_int = libc::SECCOMP_SET_MODE_FILTER.cast_signed();
        /// SECCOMP_GET_ACTION_AVAIL and SECCOMP_GET_NOTIF_SIZES.
        const QUERIES: [c_int; 2] = [2, 3];
        let (calls, time) = (Some(GivenUp::SystemCalls), Some(GivenUp::TimeStamps));
        let filter = c"filter".as_ptr().cast();
        for (number, first, second, third, expected) in [
            (SYS_seccomp, STRICT, 0, null(), calls),
            // By this one, libseccomp looks whether there is the system call.
            (SYS_seccomp, STRICT, 1, null(), None),
            (SYS_seccomp, FILTER, 0, filter, calls),
            (SYS_seccomp, FILTER, 1, null(), None),
            (SYS_seccomp, QUERIES[0], 0, filter, None),
            (SYS_seccomp, QUERIES[1], 0, filter, None),
            (SYS_prctl, PR_SET_SECCOMP, 1, null(), calls),
            (SYS_prctl, PR_SET_SECCOMP, 2, filter, calls),
            (SYS_prctl, PR_SET_SECCOMP, 2, null(), None),
            (SYS_prctl, PR_SET_SECCOMP, 7, filter, None),
            (SYS_prctl, PR_GET_SECCOMP, 2, filter, None),
            (SYS_prctl, PR_SET_TSC, libc::PR_TSC_SIGSEGV, null(), time),
            (SYS_prctl, PR_SET_TSC, libc::PR_TSC_ENABLE, null(), None),
            (libc::SYS_read, 0, 1, filter, None),
        ] {
            let found = given_up(number, first, second, third);
            assert_eq!(found, expected, "{number} {first} {second}");
        }
    }

    #[test]
    fn a_filter_with_a_listener_returns_its_file() {
        let listener = c_int::try_from(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER).unwrap();
        for (number, second, result, expected) in [
            (SYS_prctl, 2, 0, true),
            (SYS_prctl, 2, -1, false),
            (SYS_seccomp, 0, 0, true),
            (SYS_seccomp, listener, 3, true),
            (SYS_seccomp, listener, -1, false),
            // The number of another thread, with another filter.
            (SYS_seccomp, 1, 4711, false),
        ] {
            assert_eq!(has_succeeded(number, second, result), expected, "{number} {result}");
        }
    }
}
