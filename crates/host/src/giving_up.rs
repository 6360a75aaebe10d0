//! System calls by which a thread gives up time stamps or system calls, as preloaded libraries see
//! them before the kernel does.
//!
//! Many programs only ask what the kernel has, by calls that cannot succeed, such as one for a
//! filter at address 0. Such calls give up nothing.

use std::ffi::{c_int, c_long};

/// What a program gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// Reading time stamps.
    TimeStamps,
    /// Some system calls, by a filter, or most of them and time stamps, by the strict mode of
    /// seccomp.
    SystemCalls,
}

/// A system call that gives something up if it succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivingUp {
    /// What it gives up.
    pub what: GivenUp,
    /// Whether it returns a file: the listener of a filter.
    returns_file: bool,
}

impl GivingUp {
    /// What this system call is, by its first three arguments; `has_third` is whether the third
    /// one, an address, is not null. `None` if the call gives up nothing, or cannot succeed.
    #[must_use]
    pub fn of(number: c_long, first: c_int, second: c_int, has_third: bool) -> Option<Self> {
        let is_filter = has_third;
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
                return Some(Self { what: GivenUp::TimeStamps, returns_file: false });
            }
            _ => false,
        };
        let returns_file = number == libc::SYS_seccomp
            && libc::c_ulong::from(second.cast_unsigned()) & libc::SECCOMP_FILTER_FLAG_NEW_LISTENER
                != 0;
        restricts.then_some(Self { what: GivenUp::SystemCalls, returns_file })
    }

    /// Whether the call has succeeded, by its result.
    #[must_use]
    pub fn has_succeeded(self, result: c_long) -> bool {
        // Of a filter for all threads, a number above 0 is that of a thread that cannot take it.
        result == 0 || result > 0 && self.returns_file
    }
}

/// What the kernel takes of an argument that is no pointer.
#[must_use]
pub fn lower_half(word: c_long) -> c_int {
    let [first, second, third, fourth, ..] = word.to_le_bytes();
    c_int::from_le_bytes([first, second, third, fourth])
}

#[cfg(test)]
mod tests {
    use libc::{PR_GET_SECCOMP, PR_SET_SECCOMP, PR_SET_TSC, SYS_prctl, SYS_seccomp};

    use super::*;

    const FILTER: c_int = libc::SECCOMP_SET_MODE_FILTER.cast_signed();

    #[test]
    fn only_calls_that_can_succeed_give_something_up() {
        const STRICT: c_int = libc::SECCOMP_SET_MODE_STRICT.cast_signed();
        /// SECCOMP_GET_ACTION_AVAIL and SECCOMP_GET_NOTIF_SIZES.
        const QUERIES: [c_int; 2] = [2, 3];
        let (calls, time) = (Some(GivenUp::SystemCalls), Some(GivenUp::TimeStamps));
        for (number, first, second, has_third, expected) in [
            (SYS_seccomp, STRICT, 0, false, calls),
            // By this one, libseccomp looks whether there is the system call.
            (SYS_seccomp, STRICT, 1, false, None),
            (SYS_seccomp, FILTER, 0, true, calls),
            (SYS_seccomp, FILTER, 1, false, None),
            (SYS_seccomp, QUERIES[0], 0, true, None),
            (SYS_seccomp, QUERIES[1], 0, true, None),
            (SYS_prctl, PR_SET_SECCOMP, 1, false, calls),
            (SYS_prctl, PR_SET_SECCOMP, 2, true, calls),
            (SYS_prctl, PR_SET_SECCOMP, 2, false, None),
            (SYS_prctl, PR_SET_SECCOMP, 7, true, None),
            (SYS_prctl, PR_GET_SECCOMP, 2, true, None),
            (SYS_prctl, PR_SET_TSC, libc::PR_TSC_SIGSEGV, false, time),
            (SYS_prctl, PR_SET_TSC, libc::PR_TSC_ENABLE, false, None),
            (libc::SYS_read, 0, 1, true, None),
        ] {
            let found = GivingUp::of(number, first, second, has_third).map(|call| call.what);
            assert_eq!(found, expected, "{number} {first} {second}");
        }
    }

    #[test]
    fn a_filter_with_a_listener_returns_its_file() {
        let listener = c_int::try_from(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER).unwrap();
        for (number, first, second, result, expected) in [
            (SYS_prctl, PR_SET_SECCOMP, 2, 0, true),
            (SYS_prctl, PR_SET_SECCOMP, 2, -1, false),
            (SYS_seccomp, FILTER, 0, 0, true),
            (SYS_seccomp, FILTER, listener, 3, true),
            (SYS_seccomp, FILTER, listener, -1, false),
            // The number of another thread, with another filter.
            (SYS_seccomp, FILTER, 1, 4711, false),
        ] {
            let call = GivingUp::of(number, first, second, true).unwrap();
            assert_eq!(call.has_succeeded(result), expected, "{number} {second} {result}");
        }
    }

    #[test]
    fn only_the_lower_half_of_an_argument_counts() {
        assert_eq!(lower_half(0x7_0000_0002), 2);
        assert_eq!(lower_half(-1), -1);
        assert_eq!(lower_half(0xffff_ffff), -1);
    }
}
