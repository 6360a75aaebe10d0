//! One run of a command, in its own directory, with a time limit.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// What to run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run<'a> {
    pub(super) command: &'a [String],
    /// A file in the directory that is compared like standard output.
    pub(super) output: Option<&'a str>,
    pub(super) seconds: u64,
}

/// The result of a run.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) output: Option<Vec<u8>>,
    /// Exit status as text; 128 plus the number for a signal.
    pub(super) end: String,
    /// Whether it was killed at the time limit.
    pub(super) is_late: bool,
    pub(super) seconds: f64,
}

impl Done {
    /// Whether everything is the same, except the time and standard error.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.end == other.end && self.stdout == other.stdout && self.output == other.output
    }
}

impl Run<'_> {
    /// Runs the command in an empty directory.
    ///
    /// # Errors
    /// If it cannot be started, or its output cannot be read.
    pub(super) fn make(&self, directory: &Path) -> Result<Done> {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory)?;
        let logs = directory.with_extension("logs");
        fs::create_dir_all(&logs)?;
        let (stdout, stderr) = (logs.join("stdout"), logs.join("stderr"));
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).current_dir(directory).stdin(Stdio::null());
        command.stdout(File::create(&stdout)?).stderr(File::create(&stderr)?);
        // A process group of its own, which is killed as a whole.
        command.process_group(0).env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
        let begun = Instant::now();
        let mut child = command.spawn().with_context(|| self.command[0].clone())?;
        let limit = Duration::from_secs(self.seconds);
        let mut pause = Duration::from_micros(200);
        let ended = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if begun.elapsed() > limit {
                break None;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        };
        let seconds = begun.elapsed().as_secs_f64();
        // Also kills the processes that it left behind.
        let group = format!("-{}", child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let status = child.wait()?;
        let output = self.output.map(|name| fs::read(directory.join(name)).unwrap_or_default());
        let done = Done {
            stdout: fs::read(&stdout)?,
            stderr: fs::read(&stderr)?,
            output,
            end: in_words(ended.unwrap_or(status)),
            is_late: ended.is_none(),
            seconds,
        };
        let _ = fs::remove_dir_all(&logs);
        Ok(done)
    }
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        // In the same form as shells, and Dimmer, report a signal.
        (Some(code), _) => code.to_string(),
        (None, signal) => (128 + signal.unwrap_or_default()).to_string(),
    }
}

/// The path of a program.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.exists());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.exists())
}

/// A command line quoted for a shell.
pub(super) fn quoted(words: &[String]) -> String {
    let mut line = String::new();
    for word in words {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=./:,@+%".contains(&byte);
        let separator = if line.is_empty() { "" } else { " " };
        let word = if !word.is_empty() && word.bytes().all(is_plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        };
        // Writing to a string cannot fail.
        let _ = write!(line, "{separator}{word}");
    }
    line
}
