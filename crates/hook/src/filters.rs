//! Filters of system calls (seccomp) that a process has inherited.
//!
//! A filter that was set within a run may allow just what the program needs, and end it for what
//! this library does at its start. One that was there before the run, as in a container, is no such
//! reason.

use rustix::fs::{Mode, OFlags};

/// The environment variable with the [`filters`] of the process that starts the program.
pub const FILTERS: &str = "DIMMER_HOOK_FILTERS";

/// What the kernel reports of this process's filters: the mode, and since Linux 5.9 their number.
/// `None` if it reports nothing.
///
/// It is read from a file, by system calls that the loader makes as well: a filter that lets a
/// program start allows these. `prctl(PR_GET_SECCOMP)` may be a call that it does not allow.
#[must_use]
pub fn filters() -> Option<String> {
    let file = rustix::fs::open(c"/proc/self/status", OFlags::CLOEXEC, Mode::empty()).ok()?;
    // Without groups, the file has some 1500 bytes.
    let (mut status, mut part) = (Vec::new(), [0; 2048]);
    loop {
        match rustix::io::read(&file, &mut part) {
            Ok(0) => return of_status(&String::from_utf8_lossy(&status)),
            Ok(length) => status.extend_from_slice(&part[..length]),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

fn of_status(status: &str) -> Option<String> {
    let lines = status.lines().filter_map(|line| line.strip_prefix("Seccomp")?.split_once(':'));
    let values: Vec<&str> = lines.map(|(_, value)| value.trim()).collect();
    (!values.is_empty()).then(|| values.join(" "))
}

/// Whether this process has other filters than the one that has started the run: a program of the
/// run has set them. False if that is not known.
#[must_use]
pub fn has_filter_of_run() -> bool {
    let before = std::env::var(FILTERS).ok();
    before.zip(filters()).is_some_and(|(before, now)| before != now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_and_number_of_filters_are_found_where_the_kernel_has_them() {
        let status = "Name:\tsh\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\nCpus:\t1\n";
        assert_eq!(of_status(status).as_deref(), Some("2 3"));
        assert_eq!(of_status("Seccomp:\t0\n").as_deref(), Some("0"));
        assert_eq!(of_status("Name:\tSeccomp\n"), None);
    }

    #[test]
    fn without_the_variable_nothing_is_known() {
        assert!(!has_filter_of_run());
    }
}
