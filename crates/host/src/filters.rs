//! Filters of system calls (seccomp) that a process has inherited.
//!
//! A filter that was set within a run may allow just what the program needs, and end it for what a
//! preloaded library does at its start. One that was there before the run, as in a container, is no
//! such reason.
//!
//! Preloaded libraries read this before other libraries are initialised, so reading allocates
//! nothing and calls no function of the C library.
//!
//! It is this process's own file, so no [`crate::root::Root`] replaces it.
//!
//! Uses `unsafe` because no crate used here closes a file by the system call itself.

use std::ffi::OsStr;
use std::fmt;
use std::os::fd::{AsFd as _, IntoRawFd as _};

use rustix::fs::{Mode, OFlags};

/// The environment variable with the [`Filters`] of the process that starts the program.
pub const FILTERS: &str = "DIMMER_HOOK_FILTERS";

/// What the kernel reports of a process's filters. As text: the mode, and then the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filters {
    /// The mode: 0 without restrictions, 1 strict, 2 with filters.
    mode: u32,
    /// The number of filters; `None` before Linux 5.9.
    count: Option<u32>,
}

impl Filters {
    /// Those of this process; `None` if the kernel reports nothing.
    ///
    /// It is read from a file, by system calls that the loader makes as well: a filter that lets a
    /// program start allows these. `prctl(PR_GET_SECCOMP)` may be a call that it does not allow.
    #[must_use]
    pub fn of_process() -> Option<Self> {
        let file = rustix::fs::open(c"/proc/self/status", OFlags::CLOEXEC, Mode::empty()).ok()?;
        let (mut search, mut part) = (Search::default(), [0; 2048]);
        let is_complete = loop {
            match rustix::io::read(file.as_fd(), &mut part) {
                Ok(0) => break true,
                Ok(length) => search.take(&part[..length]),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => break false,
            }
        };
        // SAFETY: it is open, nothing else owns it, and it is not used again.
        unsafe { rustix::io::close(file.into_raw_fd()) };
        search.found().filter(|_| is_complete)
    }

    /// What [`fmt::Display`] writes; `None` for other texts.
    fn parse(text: &OsStr) -> Option<Self> {
        let mut words = text.to_str()?.split(' ').map(|word| word.parse().ok());
        let mode = words.next()??;
        let count = match words.next() {
            Some(count) => Some(count?),
            None => None,
        };
        words.next().is_none().then_some(Self { mode, count })
    }
}

impl fmt::Display for Filters {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.mode)?;
        self.count.map_or(Ok(()), |count| write!(formatter, " {count}"))
    }
}

/// Whether this process has other filters than the one that has started the run, whose filters
/// `before` has, the value of [`FILTERS`]: a program of the run has set them. False if that is not
/// known.
///
/// # Cost
/// Opens and reads a file; no allocation.
#[must_use]
pub fn has_filter_of_run(before: Option<&OsStr>) -> bool {
    let before = before.and_then(Filters::parse);
    before.zip(Filters::of_process()).is_some_and(|(before, now)| before != now)
}

/// Longest line that matters: a name, and a number of ten digits (bytes).
const LONGEST_LINE: usize = 32;

/// Finds the lines about filters in a file that is read in parts.
#[derive(Default)]
struct Search {
    /// The current line so far, without what is beyond [`LONGEST_LINE`].
    line: [u8; LONGEST_LINE],
    length: usize,
    mode: Option<u32>,
    count: Option<u32>,
}

impl Search {
    fn take(&mut self, part: &[u8]) {
        for byte in part {
            if *byte == b'\n' {
                self.end_line();
            } else if let Some(place) = self.line.get_mut(self.length) {
                *place = *byte;
                self.length += 1;
            }
        }
    }

    fn end_line(&mut self) {
        let line = &self.line[..std::mem::take(&mut self.length)];
        let number =
            |name: &[u8]| std::str::from_utf8(line.strip_prefix(name)?).ok()?.trim().parse().ok();
        self.mode = number(b"Seccomp:").or(self.mode);
        self.count = number(b"Seccomp_filters:").or(self.count);
    }

    fn found(&self) -> Option<Filters> {
        Some(Filters { mode: self.mode?, count: self.count })
    }
}

#[cfg(test)]
#[expect(clippy::print_stdout, reason = "a test that cannot run says so")]
mod tests {
    use super::*;

    /// What is found in a file that is read in parts of this length.
    fn found(status: &str, part: usize) -> Option<String> {
        let mut search = Search::default();
        status.as_bytes().chunks(part).for_each(|part| search.take(part));
        search.found().map(|filters| filters.to_string())
    }

    #[test]
    fn mode_and_number_of_filters_are_found_where_the_kernel_has_them() {
        let groups = "1000 ".repeat(1000);
        let status = format!(
            "Name:\tsh\nGroups:\t{groups}\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t\
             4294967295\nCpus:\t1\n"
        );
        for part in [1, 7, 2048, status.len()] {
            assert_eq!(found(&status, part).as_deref(), Some("2 4294967295"), "{part}");
        }
        assert_eq!(found("Seccomp:\t0\n", 4).as_deref(), Some("0"));
        assert_eq!(found("Name:\tSeccomp\n", 4), None);
        assert_eq!(found("Seccomp:\tstrict\n", 4), None);
    }

    #[test]
    fn what_is_written_is_read_again() {
        for filters in [
            Filters { mode: 0, count: None },
            Filters { mode: 0, count: Some(0) },
            Filters { mode: 2, count: Some(3) },
        ] {
            assert_eq!(Filters::parse(OsStr::new(&filters.to_string())), Some(filters));
        }
        for other in ["", "2 ", "2 three", "2 3 4", "strict"] {
            assert_eq!(Filters::parse(OsStr::new(other)), None, "{other}");
        }
    }

    #[test]
    fn only_filters_that_were_not_there_before_are_the_runs() {
        let Some(now) = Filters::of_process() else {
            println!("SKIPPED: the kernel does not report filters");
            return;
        };
        let more = Filters { count: Some(now.count.unwrap_or(0) + 1), ..now };
        assert!(!has_filter_of_run(Some(OsStr::new(&now.to_string()))));
        assert!(has_filter_of_run(Some(OsStr::new(&more.to_string()))));
        assert!(!has_filter_of_run(Some(OsStr::new("nonsense"))));
        assert!(!has_filter_of_run(None));
    }
}
