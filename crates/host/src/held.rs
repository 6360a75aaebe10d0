//! Processes that are started but wait before they execute their program, so that they can be
//! observed from the first instruction on.

use std::io::{self, PipeWriter, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::thread::JoinHandle;

/// A process that has not executed its program yet. Dropping it ends the process without executing.
#[derive(Debug)]
pub struct Held {
    process: u32,
    go: PipeWriter,
    started: JoinHandle<io::Result<Child>>,
}

impl Held {
    /// Starts a process for `command`.
    ///
    /// # Errors
    /// As [`Command::spawn`], for the steps before the program is executed.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let (mut told, tells) = io::pipe()?;
        let (waits, go) = io::pipe()?;
        let go_here = go.as_raw_fd();
        let wait = move || {
            // If the child kept its copy of the other end, it would wait forever after this process
            // ended.
            // SAFETY: the number is that of the child's copy, and the child does not use it again.
            unsafe { libc::close(go_here) };
            (&tells).write_all(&std::process::id().to_ne_bytes())?;
            (&waits).read_exact(&mut [0])
        };
        // SAFETY: between fork and exec, the closure makes only system calls.
        unsafe { command.pre_exec(wait) };
        // `spawn` returns only when the program is executed.
        let started = std::thread::spawn(move || {
            let mut command = command;
            command.spawn()
        });
        let mut process = [0; 4];
        match told.read_exact(&mut process) {
            Ok(()) => Ok(Self { process: u32::from_ne_bytes(process), go, started }),
            Err(error) => match join(started) {
                Ok(_) => Err(error),
                Err(error) => Err(error),
            },
        }
    }

    /// The process id.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Lets the process execute its program.
    ///
    /// # Errors
    /// As [`Command::spawn`].
    pub fn let_go(mut self) -> io::Result<Child> {
        // If the process has ended meanwhile, starting it has failed; the result of `join` has the
        // reason.
        let _ = self.go.write_all(&[0]);
        join(self.started)
    }
}

fn join(started: JoinHandle<io::Result<Child>>) -> io::Result<Child> {
    started.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn nothing_is_executed_before_it_is_let_go() {
        let directory = tempfile::tempdir().unwrap();
        let made = directory.path().join("made");
        let mut touch = Command::new("touch");
        touch.arg(&made);
        let held = Held::start(touch).unwrap();
        assert!(std::path::Path::new(&format!("/proc/{}", held.process())).exists());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!made.exists());
        let process = held.process();
        let mut child = held.let_go().unwrap();
        assert_eq!(child.id(), process);
        assert!(child.wait().unwrap().success() && made.exists());
    }

    #[test]
    fn what_cannot_be_executed_is_an_error() {
        let held = Held::start(Command::new("/nowhere/at/all")).unwrap();
        assert_eq!(held.let_go().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn dropped_it_ends_without_having_begun() {
        let directory = tempfile::tempdir().unwrap();
        let made = directory.path().join("made");
        let mut touch = Command::new("touch");
        touch.arg(&made);
        let held = Held::start(touch).unwrap();
        let Held { go, started, .. } = held;
        drop(go);
        assert!(join(started).is_err() && !made.exists());
    }
}
