//! Where output goes: the terminal's width, and files that are checked to be writable before
//! anything is measured. Also how commands end that an interrupt leaves with a partial result.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, IsTerminal, Read as _, Seek as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::Context;
use dimmer_host::interrupt::Interrupt;
use indicatif::ProgressDrawTarget;
use serde::Serialize;

/// Columns of output that does not go to a terminal.
const PAGE: u16 = 100;

/// `--quiet`, `--verbose`, or neither.
static VERBOSITY: AtomicU8 = AtomicU8::new(USUAL);
const QUIET: u8 = 0;
const USUAL: u8 = 1;
const VERBOSE: u8 = 2;

/// Sets how much this process prints. Called once, before anything is printed.
pub(crate) fn set_verbosity(quiet: bool, verbose: bool) {
    let verbosity = match (quiet, verbose) {
        (true, _) => QUIET,
        (false, true) => VERBOSE,
        (false, false) => USUAL,
    };
    // Relaxed: there is one thread.
    VERBOSITY.store(verbosity, Ordering::Relaxed);
}

/// Whether notes and progress are suppressed.
pub(crate) fn is_quiet() -> bool {
    VERBOSITY.load(Ordering::Relaxed) == QUIET
}

/// Whether every table and reason is wanted.
pub(crate) fn is_verbose() -> bool {
    VERBOSITY.load(Ordering::Relaxed) == VERBOSE
}

/// Where progress bars are drawn: on standard error, unless `--quiet` is set.
pub(crate) fn progress_target() -> ProgressDrawTarget {
    if is_quiet() { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() }
}

/// Columns for text on standard output.
pub(crate) fn width() -> usize {
    let (_, columns) = console_size().unwrap_or((0, PAGE));
    usize::from(columns.clamp(60, 140))
}

/// The exit status of a command that has written its results. After an interrupt, prints that and
/// returns the signal's status.
pub(crate) fn end(interrupt: &Interrupt) -> ExitCode {
    match interrupt.exit_status() {
        Some(status) => {
            eprintln!("interrupted: what is complete has been written");
            ExitCode::from(status)
        }
        None => ExitCode::SUCCESS,
    }
}

/// Replaces control characters in a text that may contain names from programs and files, since
/// terminals obey them.
pub(crate) fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

/// Whether color may be used on standard output.
pub(crate) fn colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stdout().is_terminal() && !refused
}

fn console_size() -> Option<(u16, u16)> {
    console::Term::stdout().size_checked()
}

/// A file that can be written, checked by opening it.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    file: Option<File>,
}

impl Output {
    /// Opens `path` for writing without changing its content; `-` is standard output.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = if path == Path::new("-") {
            None
        } else {
            let opened = OpenOptions::new().create(true).append(true).open(path);
            Some(opened.with_context(|| format!("cannot write {}", path.display()))?)
        };
        Ok(Self { path: path.to_owned(), file })
    }

    /// Whether this is standard output.
    pub(crate) fn is_standard(&self) -> bool {
        self.file.is_none()
    }

    /// Replaces the content of the file.
    pub(crate) fn write(mut self, bytes: &(impl AsRef<[u8]> + ?Sized)) -> anyhow::Result<()> {
        self.empty()?;
        self.add(bytes)
    }

    /// Empties the file. Devices and pipes have no content.
    pub(crate) fn empty(&mut self) -> anyhow::Result<()> {
        let emptied = self.file.as_ref().map_or(Ok(()), |file| {
            if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) }
        });
        emptied.with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Appends to the file; [`ClosedPipe`] if the reader is gone.
    pub(crate) fn add(&mut self, bytes: &(impl AsRef<[u8]> + ?Sized)) -> anyhow::Result<()> {
        let written = match &mut self.file {
            None => std::io::stdout().write_all(bytes.as_ref()),
            Some(file) => file.write_all(bytes.as_ref()),
        };
        match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(ClosedPipe.into()),
            written => written.with_context(|| format!("cannot write {}", self.path.display())),
        }
    }
}

/// Standard output, collected for the file of `--output` until [`Redirected::end`]. The file keeps
/// its content until then, also if the command fails or is killed.
#[derive(Debug)]
pub(crate) struct Redirected {
    collected: File,
    to: Output,
}

impl Redirected {
    /// Redirects standard output of this process and of its children.
    ///
    /// # Errors
    /// If there is no place for a temporary file.
    pub(crate) fn begin(to: Output) -> anyhow::Result<Self> {
        let collected = tempfile::tempfile().context("cannot make a temporary file")?;
        rustix::stdio::dup2_stdout(&collected).context("cannot redirect standard output")?;
        Ok(Self { collected, to })
    }

    /// Writes to the file what was printed.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        std::io::stdout().flush()?;
        let mut bytes = Vec::new();
        self.collected.rewind()?;
        self.collected.read_to_end(&mut bytes)?;
        self.to.write(&bytes)
    }
}

/// Writes the report of a command that wraps a program: to the file of `--output`, or as a note to
/// standard error, as standard output is the program's.
pub(crate) fn report(to: Option<Output>, text: &str) -> anyhow::Result<()> {
    match to {
        Some(to) => to.write(text),
        None => {
            eprint!("{}", printable(text));
            Ok(())
        }
    }
}

/// Prints the text, unless the JSON goes to standard output, and writes the JSON.
pub(crate) fn show(
    json: Option<Output>,
    document: &impl Serialize,
    text: &str,
) -> anyhow::Result<()> {
    if json.as_ref().is_none_or(|json| !json.is_standard()) {
        print!("{text}");
    }
    let Some(json) = json else { return Ok(()) };
    json.write(&(serde_json::to_string_pretty(document)? + "\n"))
}

/// The reader of the output is gone.
#[derive(Debug)]
pub(crate) struct ClosedPipe;

impl std::fmt::Display for ClosedPipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("whoever read the output has gone")
    }
}

impl std::error::Error for ClosedPipe {}

/// Makes a directory, and checks that files can be made in it.
pub(crate) fn directory(path: &Path) -> anyhow::Result<()> {
    let made = std::fs::create_dir_all(path);
    made.with_context(|| format!("cannot make directory {}", path.display()))?;
    let probe = tempfile::tempfile_in(path);
    probe.with_context(|| format!("cannot write into directory {}", path.display()))?;
    Ok(())
}

/// Whether a panic was caused by a write to a closed standard output or standard error, as in
/// `dimmer scan FILE | head`.
pub(crate) fn is_closed_pipe(panic: &(dyn std::any::Any + Send)) -> bool {
    panic.downcast_ref::<String>().is_some_and(|said| says_closed_pipe(said))
}

fn says_closed_pipe(said: &str) -> bool {
    said.contains("failed printing to std") && said.contains("Broken pipe")
}

/// Suppresses the message of such a panic: it is not a fault of the program, and it unwinds the
/// program in good order.
pub(crate) fn quiet_closed_pipes() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !says_closed_pipe(&info.to_string()) {
            usual(info);
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_files_and_writes_to_devices() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        for text in ["longer\n", "short\n"] {
            Output::open(&path).unwrap().write(text).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        Output::open(Path::new("/dev/null")).unwrap().write("nothing\n").unwrap();
    }
}
