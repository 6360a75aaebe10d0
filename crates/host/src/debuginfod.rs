//! Debug files from servers of the debuginfod protocol, by elfutils' `debuginfod-find`, which keeps
//! them in its own cache.
//!
//! Nothing is asked unless the user has set `DEBUGINFOD_URLS`, as for GDB and `perf`.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::program;

/// The variable with the servers' addresses; read by `debuginfod-find` itself.
const URLS: &str = "DEBUGINFOD_URLS";

/// How long a file may take. A guess: a few hundred MB on a usual line.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often an end is looked for.
const LOOK: Duration = Duration::from_millis(2);

/// Whether a file has taken longer: then this process asks for no other.
static TOOK_TOO_LONG: AtomicBool = AtomicBool::new(false);

/// The user's servers.
#[derive(Clone, Debug)]
pub struct Debuginfod {
    program: PathBuf,
    patience: Duration,
    took_too_long: &'static AtomicBool,
}

impl Debuginfod {
    /// The servers that the environment names; `None` without any, or without `debuginfod-find` in
    /// `PATH`.
    #[must_use]
    pub fn of_environment() -> Option<Self> {
        std::env::var_os(URLS).filter(|urls| !urls.as_encoded_bytes().trim_ascii().is_empty())?;
        let path = std::env::var_os("PATH");
        let program = program::find("debuginfod-find".as_ref(), path.as_deref()).ok()?;
        Some(Self { program, patience: PATIENCE, took_too_long: &TOOK_TOO_LONG })
    }

    /// The debug file of the program or library with this build id; `None` if no server has it, or
    /// none answers in time. The reader must check whether the file matches.
    ///
    /// # Cost
    /// A program is started; at most 60 s once, as nothing is asked after a file that took longer.
    #[must_use]
    pub fn find(&self, build_id: &[u8]) -> Option<PathBuf> {
        // Ids of any other length are no linker's, and would be taken for paths or be refused.
        if !(8..=64).contains(&build_id.len()) || self.took_too_long.load(Ordering::Relaxed) {
            return None;
        }
        let id: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut command = Command::new(&self.program);
        command.args(["debuginfo", &id]).env_remove("DEBUGINFOD_PROGRESS");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        let end = Instant::now() + self.patience;
        let status = loop {
            match child.try_wait() {
                Ok(None) if Instant::now() < end => std::thread::sleep(LOOK),
                Ok(Some(status)) => break status,
                _ => {
                    self.took_too_long.store(true, Ordering::Relaxed);
                    // It has ended, or is ended here; either way it is waited for.
                    let _ = child.kill();
                    let _ = child.wait();
                    return None;
                }
            }
        };
        // One line with the path of the file: it fits a pipe. A process that the program may have
        // left behind could keep the pipe open, so nothing waits for its end.
        let mut line = [0; 4096];
        let length = child.stdout.take()?.read(&mut line).ok().filter(|_| status.success())?;
        let path = std::str::from_utf8(&line[..length]).ok()?.strip_suffix('\n')?;
        Some(PathBuf::from(path)).filter(|path| path.is_absolute())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const ID: [u8; 8] = [0xab, 0xcd, 0xef, 1, 2, 3, 4, 5];

    /// Servers that a program of this text asks. Another process writes it: a file that is open for
    /// writing cannot be executed, and a process that another test starts may have it open.
    fn servers(directory: &Path, text: &str, patience: Duration) -> Debuginfod {
        let program = directory.join("debuginfod-find");
        let script = format!("cat >\"$0\" <<'END'\n#!/bin/sh\n{text}\nEND\nchmod +x \"$0\"");
        let made = Command::new("sh").args(["-c", &script]).arg(&program).status().unwrap();
        assert!(made.success());
        let took_too_long = Box::leak(Box::new(AtomicBool::new(false)));
        Debuginfod { program, patience, took_too_long }
    }

    #[test]
    fn what_the_program_prints_is_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let found = |text| servers(directory.path(), text, Duration::from_secs(600)).find(&ID);
        let echo = "[ \"$*\" = 'debuginfo abcdef0102030405' ] && echo /cache/debuginfo";
        assert_eq!(found(echo).as_deref(), Some(Path::new("/cache/debuginfo")));
        let fails = ["echo /cache/debuginfo; exit 1", "kill $$"];
        for none in fails.into_iter().chain(["echo debuginfo", "printf /x", ":", "echo '/\\377'"]) {
            assert_eq!(found(none), None, "{none}");
        }
        assert_eq!(found("head -c 10000 /dev/zero; echo /x"), None);
    }

    #[test]
    fn nothing_is_asked_after_an_answer_that_took_too_long() {
        let directory = tempfile::tempdir().unwrap();
        let servers = servers(directory.path(), "sleep 600", PATIENCE);
        let hurried = Debuginfod { patience: Duration::ZERO, ..servers.clone() };
        assert_eq!(hurried.find(&ID), None);
        assert_eq!(servers.find(&ID), None);
    }

    #[test]
    fn ids_of_no_linker_are_not_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let servers = servers(directory.path(), "echo /x", PATIENCE);
        assert_eq!([servers.find(&[]), servers.find(&[0; 65])], [None, None]);
        assert_eq!(servers.find(&[0; 64]), Some(PathBuf::from("/x")));
    }
}
