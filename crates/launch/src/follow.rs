//! Follows a program that was started: passes signals on, looks at it at intervals, ends it at a
//! deadline.

use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use dimmer_host::relay::Relay;
use dimmer_observe::INTERVAL;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::LaunchError;

/// The longest wait: a program that stops is seen as stopped that much later, and one that ends as
/// ended on kernels before 5.3.
const LONGEST: Duration = Duration::from_millis(100);

/// A look that is late by so much more than was to be waited: this process stood still, and with it
/// most likely the program (a control group that was frozen, a virtual machine that was moved). A
/// guess: a busy machine delays looks by less.
const STOOD_STILL: Duration = Duration::from_secs(1);

/// Waits until the program ends, or sends it SIGTERM at the deadline. Meanwhile calls `look`, which
/// returns the time until the next look; it gets for how long both have stood still since the last
/// one, if they have. Passes signals for this process on to the program.
///
/// # Errors
/// [`LaunchError::Wait`].
pub(crate) fn follow(
    child: &mut Child,
    deadline: Option<Instant>,
    relay: &Relay,
    mut look: impl FnMut(Option<Duration>) -> Duration,
) -> Result<ExitStatus, LaunchError> {
    let mut is_told = false;
    let process = Pid::from_raw(i32::try_from(child.id()).unwrap_or_default());
    let end = end_of(child.id());
    let mut stood_still = Duration::ZERO;
    loop {
        let asked = Instant::now();
        if let Some(status) = relay.end(child).map_err(LaunchError::Wait)? {
            return Ok(status);
        }
        // That waits only where the program was stopped (Ctrl-Z).
        stood_still += asked.elapsed();
        let mut interval = look(Some(stood_still).filter(|time| *time > LONGEST));
        if !is_told && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            is_told = true;
            if let Some(process) = process {
                // The program may have ended just now.
                let _ = kill_process(process, Signal::TERM);
            }
        }
        if let Some(deadline) = deadline.filter(|_| !is_told) {
            interval = interval.min(deadline.saturating_duration_since(Instant::now()));
        }
        let waits = Instant::now();
        wait_for(end.as_ref(), interval);
        let late = waits.elapsed().saturating_sub(interval.min(LONGEST));
        stood_still = if late > STOOD_STILL { late } else { Duration::ZERO };
    }
}

/// A handle that becomes readable when the process ends; `None` on kernels before 5.3.
pub(crate) fn end_of(process: u32) -> Option<OwnedFd> {
    let process = Pid::from_raw(i32::try_from(process).ok()?)?;
    pidfd_open(process, PidfdFlags::empty()).ok()
}

/// Waits for [`INTERVAL`], or until the process ends; returns whether it has ended.
pub(crate) fn wait(end: Option<&OwnedFd>) -> bool {
    wait_for(end, INTERVAL)
}

/// Waits for `interval`, but no longer than [`LONGEST`], or until the process ends; returns whether
/// it has ended. Without a handle that is never known.
pub(crate) fn wait_for(end: Option<&OwnedFd>, interval: Duration) -> bool {
    let interval = interval.min(LONGEST);
    let Some(end) = end else {
        std::thread::sleep(interval);
        return false;
    };
    let longest = Timespec::try_from(interval).ok();
    poll(&mut [PollFd::new(end, PollFlags::IN)], longest.as_ref()).is_ok_and(|ended| ended > 0)
}
