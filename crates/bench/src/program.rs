//! Runs a program from its start to its end, and measures its times and its output.

use std::ffi::{OsStr, OsString};
use std::hash::Hasher as _;
use std::io::{self, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dimmer_host::interrupt::Interrupt;
use dimmer_host::program;
use dimmer_host::usage::Usage;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use siphasher::sip::SipHasher13;

use crate::error::BenchError;

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The time from its start to its end.
    pub lasted: Duration,
    /// Time on CPUs, including that of its children and of the command before it.
    pub on_cpu: Duration,
    /// What it did, as far as that is visible from outside.
    pub outcome: Outcome,
}

/// How a run ended and what it wrote, so that two can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its exit status, as in a shell: 128 and the number of the signal, if a signal ended it.
    pub status: i32,
    /// A hash of its standard output.
    pub output: u64,
    /// The length of its standard output (bytes).
    pub bytes: u64,
}

/// The interval between two checks for an interrupt by the user.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How much of the end of a run's standard output is kept (bytes).
const KEPT: usize = 4096;

/// Runs `command` behind `prefix`, without input. Its standard error is discarded. If the user
/// interrupts, this function sends it SIGTERM. If this process is killed, the kernel does
/// (`setpriv --pdeathsig`, if that is installed).
///
/// # Errors
/// [`BenchError::System`] if it cannot be started; [`BenchError::Interrupted`] if the user has
/// interrupted, after it has ended.
pub fn run(
    prefix: &[OsString],
    command: &[OsString],
    interrupt: &Interrupt,
) -> Result<Run, BenchError> {
    run_and_read(prefix, command, None, interrupt).map(|(run, _)| run)
}

/// The same, with a variable of its environment set. Also returns the end of its standard output.
pub(crate) fn run_and_read(
    prefix: &[OsString],
    command: &[OsString],
    variable: Option<(&str, &OsStr)>,
    interrupt: &Interrupt,
) -> Result<(Run, Vec<u8>), BenchError> {
    let setpriv = program::find("setpriv".as_ref(), std::env::var_os("PATH").as_deref()).ok();
    let guard = setpriv.map(|setpriv| {
        let options = ["--pdeathsig", "TERM", "--"].map(OsString::from);
        [&[setpriv.into_os_string()], &options[..]].concat()
    });
    let words = [&guard.unwrap_or_default(), prefix, command].concat();
    let Some((first, rest)) = words.split_first() else {
        return Err(BenchError::system("run nothing")(io::ErrorKind::InvalidInput.into()));
    };
    let mut start = Command::new(first);
    start.args(rest).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    start.envs(variable);
    let (begun, before) = (Instant::now(), Usage::of_ended_children());
    let shown = || command.first().unwrap_or(first).to_string_lossy();
    let child = start.spawn().map_err(BenchError::system(format!("run {}", shown())))?;
    let outcome = finish(child, interrupt);
    let (outcome, end) = outcome.map_err(BenchError::system(format!("follow {}", shown())))?;
    let (lasted, on_cpu) = (begun.elapsed(), Usage::of_ended_children().since(before).on_cpu);
    if interrupt.is_set() {
        return Err(BenchError::Interrupted);
    }
    Ok((Run { lasted, on_cpu, outcome }, end))
}

/// Reads its output, and waits for its end. Also returns the end of its output.
fn finish(mut child: Child, interrupt: &Interrupt) -> io::Result<(Outcome, Vec<u8>)> {
    let (mut hasher, mut bytes, mut kept) = (SipHasher13::new(), 0, Vec::new());
    let mut buffer = vec![0; 1 << 16];
    let mut is_told = false;
    if let Some(mut output) = child.stdout.take() {
        loop {
            if interrupt.is_set() && !is_told {
                is_told = true;
                end(&child);
            }
            let is_ready = poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&LOOK));
            if matches!(is_ready, Ok(0) | Err(Errno::INTR)) {
                continue;
            }
            let read = output.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            hasher.write(&buffer[..read]);
            bytes += read as u64;
            kept.extend_from_slice(&buffer[..read]);
            kept.drain(..kept.len().saturating_sub(KEPT));
        }
    }
    let status = child.wait()?;
    let status = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    Ok((Outcome { status, output: hasher.finish(), bytes }, kept))
}

/// Asks a process to end.
fn end(child: &Child) {
    if let Some(process) = Pid::from_raw(i32::try_from(child.id()).unwrap_or_default()) {
        // It may have ended just now.
        let _ = kill_process(process, Signal::TERM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Run {
        let words = ["sh", "-c", script].map(OsString::from);
        run(&words[..1], &words[1..], &Interrupt::install().unwrap()).unwrap()
    }

    #[test]
    fn runs_that_do_the_same_have_the_same_outcome() {
        let (one, other) = (shell("echo a; exit 3"), shell("printf a; echo; exit 3"));
        assert_eq!(one.outcome, other.outcome);
        assert_eq!((one.outcome.bytes, one.outcome.status), (2, 3));
        assert_eq!(shell("kill -TERM $$").outcome.status, 143);
        assert_ne!(one.outcome, shell("echo b; exit 3").outcome);
        assert_ne!(one.outcome, shell("echo a; exit 4").outcome);
        assert!(one.lasted > Duration::ZERO);
    }

    #[test]
    fn what_cannot_be_run_ends_so() {
        let words = [OsString::from("/nowhere/at/all")];
        // `setpriv` reports it as shells do.
        let status = run(&[], &words, &Interrupt::install().unwrap()).map(|run| run.outcome.status);
        assert!(!matches!(status, Ok(0)), "{status:?}");
    }
}
