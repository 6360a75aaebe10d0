//! The limit of open files (RLIMIT_NOFILE, `ulimit -n`), for counters, of which each is a file.

use std::io;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that this process may have open besides the counters.
const OTHERS: u64 = 256;

/// What to do about a limit that is too low.
pub(crate) const REMEDY: &str =
    "raise the hard limit of open files (`ulimit -Hn`; of a service, LimitNOFILE)";

/// The limit before it was raised.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Raises this process's limit so that it may have this number of counters open besides other
/// files, as far as that is allowed. A program that [`crate::relay::Relay`] starts has the limit
/// that this process had before.
pub fn make_room(counters: usize) {
    let limit = getrlimit(Resource::Nofile);
    if let Some(raised) = raised(limit, counters) {
        BEFORE.get_or_init(|| limit);
        // If it fails, opening one file too many reports an error.
        let _ = setrlimit(Resource::Nofile, raised);
    }
}

/// The limit with which this number of counters can be open, or as many as are allowed; `None` if
/// it need not be raised.
fn raised(limit: Rlimit, counters: usize) -> Option<Rlimit> {
    let files = u64::try_from(counters).unwrap_or(u64::MAX).saturating_add(OTHERS);
    let wanted = limit.maximum.map_or(files, |most| files.min(most));
    let is_low = limit.current.is_some_and(|current| current < wanted);
    is_low.then_some(Rlimit { current: Some(wanted), maximum: limit.maximum })
}

/// The limit to which that of a program is set back, if this process's was raised.
pub(crate) fn before() -> Option<Rlimit> {
    BEFORE.get().copied()
}

/// Sets the calling process's limit. Makes only a system call.
pub(crate) fn set(limit: Rlimit) -> io::Result<()> {
    Ok(setrlimit(Resource::Nofile, limit)?)
}

/// Whether a file could not be opened because the limit is too low.
pub(crate) fn is_reached(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMFILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_as_far_as_needed_and_allowed() {
        let check = |current, maximum, counters, expected: Option<u64>| {
            let raised = raised(Rlimit { current, maximum }, counters);
            let expected = expected.map(|current| Rlimit { current: Some(current), maximum });
            assert_eq!(raised, expected, "{current:?} {maximum:?} {counters}");
        };
        check(Some(1024), Some(4096), 10, None);
        check(Some(1024), Some(4096), 1024, Some(1280));
        check(Some(1024), Some(4096), 10_000, Some(4096));
        check(Some(1024), None, 10_000, Some(10_256));
        check(Some(1024), Some(1024), 10_000, None);
        check(None, None, usize::MAX, None);
    }
}
