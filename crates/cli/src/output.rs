//! Where output goes: the terminal's width, and files that are known to be writable before
//! anything is measured; and how commands end that an interrupt leaves with a part of it.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use dimmer_host::interrupt::Interrupt;
use serde::Serialize;

/// Columns of a page that is no terminal.
const PAGE: u16 = 100;

/// Columns to write to standard output.
pub(crate) fn width() -> usize {
    let (_, columns) = console_size().unwrap_or((0, PAGE));
    usize::from(columns.clamp(60, 140))
}

/// How a command ends that has written what it has: after an interrupt, that is told and the status
/// is the signal's.
pub(crate) fn end(interrupt: &Interrupt) -> ExitCode {
    match interrupt.exit_status() {
        Some(status) => {
            eprintln!("interrupted: what is complete has been written");
            ExitCode::from(status)
        }
        None => ExitCode::SUCCESS,
    }
}

/// A text that may hold names from programs and files, without what terminals obey.
pub(crate) fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

/// Whether colour may be used on standard output.
pub(crate) fn colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stdout().is_terminal() && !refused
}

fn console_size() -> Option<(u16, u16)> {
    console::Term::stdout().size_checked()
}

/// A file that can be written, found out by opening it.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    file: Option<File>,
}

impl Output {
    /// Opens `path` for writing without touching what is in it; `-` is standard output.
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

    /// Replaces what the file holds.
    pub(crate) fn write(mut self, bytes: &(impl AsRef<[u8]> + ?Sized)) -> anyhow::Result<()> {
        self.empty()?;
        self.add(bytes)
    }

    /// Takes away what the file holds. Devices and pipes hold nothing.
    pub(crate) fn empty(&mut self) -> anyhow::Result<()> {
        let emptied = self.file.as_ref().map_or(Ok(()), |file| {
            if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) }
        });
        emptied.with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Writes this behind what the file holds; [`ClosedPipe`] if nobody reads it.
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

/// Shows the text, unless the JSON goes to standard output, and writes the JSON.
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

/// Whoever read the output has gone.
#[derive(Debug)]
pub(crate) struct ClosedPipe;

impl std::fmt::Display for ClosedPipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("whoever read the output has gone")
    }
}

impl std::error::Error for ClosedPipe {}

/// A directory that files can be made in.
pub(crate) fn directory(path: &Path) -> anyhow::Result<()> {
    let made = std::fs::create_dir_all(path);
    made.with_context(|| format!("cannot make directory {}", path.display()))?;
    let probe = tempfile_in(path);
    probe.with_context(|| format!("cannot write into directory {}", path.display()))
}

fn tempfile_in(path: &Path) -> std::io::Result<()> {
    let probe = path.join(format!(".dimmer-{}", std::process::id()));
    File::create(&probe)?;
    std::fs::remove_file(probe)
}

/// Exit status when whoever read the output has gone: as if the signal that usually tells so had
/// ended the program.
pub(crate) const CLOSED_PIPE: u8 = 128 + 13;

/// Whether a panic is that standard output or standard error could not be written to, as in `dimmer
/// scan FILE | head`.
pub(crate) fn is_closed_pipe(panic: &(dyn std::any::Any + Send)) -> bool {
    panic.downcast_ref::<String>().is_some_and(|said| says_closed_pipe(said))
}

fn says_closed_pipe(said: &str) -> bool {
    said.contains("failed printing to std") && said.contains("Broken pipe")
}

/// Lets such a panic say nothing: it is no fault of the program, and unwinds it in good order.
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
