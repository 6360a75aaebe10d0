//! Where output goes: the terminal's width, and files that are checked to be writable before
//! anything is measured. Also how commands end that an interrupt leaves with a partial result.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read as _, Seek as _, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::Context;
use clap::ColorChoice;
use dimmer_host::bounded_file;
use dimmer_host::interrupt::Interrupt;
use dimmer_report::Screen;
use dimmer_report::timeline::Timeline;
use indicatif::ProgressDrawTarget;
use serde::Serialize;
use tempfile::NamedTempFile;

/// Columns of output that does not go to a terminal.
const PAGE: u16 = 100;

/// `--color`.
static COLOURS: OnceLock<ColorChoice> = OnceLock::new();

/// Sets whether this process prints colors. Called once, before anything is printed.
pub(crate) fn set_colours(choice: ColorChoice) {
    COLOURS.get_or_init(|| choice);
}

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

/// How text is laid out on standard output.
pub(crate) fn screen() -> Screen {
    screen_of(&console::Term::stdout())
}

/// How text is laid out on standard error.
pub(crate) fn error_screen() -> Screen {
    screen_of(&console::Term::stderr())
}

fn screen_of(terminal: &console::Term) -> Screen {
    let (_, columns) = terminal.size_checked().unwrap_or((0, PAGE));
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_for_people = terminal.is_term();
    let is_coloured = match COLOURS.get() {
        Some(ColorChoice::Always) => true,
        Some(ColorChoice::Never) => false,
        _ => is_for_people && !refused,
    };
    Screen { width: columns.clamp(60, 140), is_coloured, is_for_people }
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
/// terminals obey them. Line ends and tabs stay; also what only changes the style (`ESC [ 1 m`), if
/// the text has styles.
pub(crate) fn printable(text: &str, has_styles: bool) -> String {
    let shown = |c: char| if c.is_control() && !"\n\t".contains(c) { '\u{fffd}' } else { c };
    let mut pieces = text.split('\u{1b}');
    let mut printable: String = pieces.next().unwrap_or_default().chars().map(shown).collect();
    for piece in pieces {
        printable.push(if has_styles && is_style(piece) { '\u{1b}' } else { '\u{fffd}' });
        printable.extend(piece.chars().map(shown));
    }
    printable
}

/// Whether a text begins with the end of an escape sequence that changes the style.
fn is_style(text: &str) -> bool {
    let numbers = text.strip_prefix('[').map(|text| text.split_once('m'));
    let is_number = |c: char| c.is_ascii_digit() || c == ';';
    numbers.flatten().is_some_and(|(numbers, _)| numbers.chars().all(is_number))
}

/// A file that can be written, checked by opening it.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    file: Option<File>,
    /// Whether [`Self::open`] has made it, and nothing was written since.
    is_new: bool,
}

impl Output {
    /// Opens `path` for writing without changing its content; `-` is standard output. A file that
    /// did not exist and gets nothing is removed again.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") || path == Path::new("/dev/stdout") {
            return Ok(Self::standard());
        }
        let is_new = std::fs::symlink_metadata(path).is_err();
        let opened = OpenOptions::new().create(true).append(true).open(path);
        let file = opened.with_context(|| format!("cannot write {}", path.display()))?;
        let output = Self { path: path.to_owned(), file: Some(file), is_new };
        let why = match output.identity() {
            Some(own) if is_named_twice(own, std::env::args_os().skip(1)) => {
                "the command line names this file twice"
            }
            Some(own) if is_redirected(own) => "standard input, output or error is this file",
            _ => return Ok(output),
        };
        Err(output.refused(why))
    }

    /// Which file it is; `None` for devices and pipes, which have no content that could be lost.
    fn identity(&self) -> Option<Identity> {
        self.file.as_ref().and_then(|file| identity(&file.metadata().ok()?))
    }

    fn refused(&self, why: &str) -> anyhow::Error {
        let path = self.path.display();
        crate::bad_input(format!("cannot write {path}: {why}, and its content would be lost"))
    }

    /// Standard output.
    fn standard() -> Self {
        Self { path: PathBuf::from("-"), file: None, is_new: false }
    }

    /// Replaces the content of the file by a document.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(crate) fn write_json(self, document: &impl Serialize) -> anyhow::Result<()> {
        self.write(&(serde_json::to_string_pretty(document)? + "\n"))
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
    ///
    /// # Errors
    /// If this process has read the file, or if it cannot be written.
    pub(crate) fn empty(&mut self) -> anyhow::Result<()> {
        let about = self.file.as_ref().and_then(|file| file.metadata().ok());
        if about.is_some_and(|about| about.is_file() && bounded_file::has_read(&about)) {
            return Err(self.refused("it was read as well"));
        }
        let emptied = self.file.as_ref().map_or(Ok(()), |file| {
            if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) }
        });
        emptied.with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Appends to the file; [`ClosedPipe`] if the reader is gone.
    pub(crate) fn add(&mut self, bytes: &(impl AsRef<[u8]> + ?Sized)) -> anyhow::Result<()> {
        self.is_new = false;
        let written = match &mut self.file {
            None => std::io::stdout().write_all(bytes.as_ref()),
            Some(file) => file.write_all(bytes.as_ref()),
        };
        self::written(written, &self.path)
    }
}

/// The result of writing to this file; [`ClosedPipe`] if the reader is gone.
pub(crate) fn written(result: io::Result<()>, path: &Path) -> anyhow::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(ClosedPipe.into()),
        result => result.with_context(|| format!("cannot write {}", path.display())),
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let there = || identity(&std::fs::symlink_metadata(&self.path).ok()?);
        if self.is_new && self.file.is_some() && there() == self.identity() {
            // If this fails, the file stays, without content.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A regular file's device and number.
type Identity = (u64, u64);

fn identity(metadata: &Metadata) -> Option<Identity> {
    metadata.is_file().then(|| (metadata.dev(), metadata.ino()))
}

/// Whether several words of a command line name a file, by any paths.
fn is_named_twice(file: Identity, words: impl Iterator<Item = OsString>) -> bool {
    let is_named = |path: &[u8]| {
        let named = std::fs::metadata(OsStr::from_bytes(path));
        named.is_ok_and(|named| identity(&named) == Some(file))
    };
    let names = |word: &OsString| {
        let word = word.as_bytes();
        // `--json=FILE`, and lists of files.
        let value = word.iter().position(|byte| *byte == b'=').map(|at| &word[at + 1..]);
        is_named(word)
            || value.unwrap_or(word).split(|byte| *byte == b',').any(is_named)
            || value.is_some_and(is_named)
    };
    words.filter(names).nth(1).is_some()
}

/// Whether a standard descriptor leads to a file.
fn is_redirected(file: Identity) -> bool {
    (0..=2).any(|number| {
        let named = std::fs::metadata(format!("/proc/self/fd/{number}"));
        named.is_ok_and(|named| identity(&named) == Some(file))
    })
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
        Some(to) => to.write(&printable(&Screen::file(PAGE).plain(text), false)),
        None => {
            eprint!("{}", error_screen().plain(text));
            Ok(())
        }
    }
}

/// Prints to standard output, as it fits the screen.
///
/// # Errors
/// [`ClosedPipe`] if the reader is gone; also if it cannot be written.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let screen = screen();
    Output::standard().add(&printable(&screen.fitted(text), screen.is_coloured))
}

/// Moves to the first line of the terminal, and clears all lines, if standard output is one.
pub(crate) fn clear_terminal() -> std::io::Result<()> {
    let terminal = console::Term::stdout();
    if terminal.is_term() {
        terminal.move_cursor_to(0, 0)?;
        terminal.clear_to_end_of_screen()?;
    }
    Ok(())
}

/// Writes the JSON, and prints the text unless the JSON goes to standard output.
///
/// # Errors
/// As [`print()`], or if the file cannot be written.
pub(crate) fn show(
    json: Option<Output>,
    document: &impl Serialize,
    text: &str,
) -> anyhow::Result<()> {
    let (to_standard, to_file) = match json {
        Some(json) if json.is_standard() => (Some(json), None),
        json => (None, json),
    };
    // First the file: standard output may be closed or full.
    to_file.map_or(Ok(()), |json| json.write_json(document))?;
    match to_standard {
        Some(json) => json.write_json(document),
        None => print(text),
    }
}

/// The reader of the output is gone.
#[derive(Debug)]
pub(crate) struct ClosedPipe;

impl std::fmt::Display for ClosedPipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the reader of the output is gone")
    }
}

impl std::error::Error for ClosedPipe {}

/// Writes a timeline, and a note with the number of calls in it.
pub(crate) fn timeline(to: Output, timeline: &Timeline) -> anyhow::Result<()> {
    eprintln!("dimmer: the trace has {}", timeline.summary);
    to.write(&timeline.bytes)
}

/// A new file in the directory of another, which is removed unless it is kept.
pub(crate) fn temporary_beside(path: &Path) -> anyhow::Result<NamedTempFile> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let new = NamedTempFile::new_in(directory.unwrap_or(Path::new(".")));
    new.with_context(|| format!("cannot write {}", path.display()))
}

/// Replaces a file as a whole, so that readers see the old or the new text, and lets all users read
/// it.
pub(crate) fn publish(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut new = temporary_beside(path)?;
    new.write_all(text.as_bytes())?;
    new.as_file().set_permissions(Permissions::from_mode(0o644))?;
    new.persist(path).map(drop).with_context(|| format!("cannot write {}", path.display()))
}

/// Makes a directory, and checks that files can be made in it.
pub(crate) fn directory(path: &Path) -> anyhow::Result<()> {
    let made = std::fs::create_dir_all(path);
    made.with_context(|| format!("cannot make directory {}", path.display()))?;
    let probe = tempfile::tempfile_in(path);
    probe.with_context(|| format!("cannot write into directory {}", path.display()))?;
    Ok(())
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

    #[test]
    fn a_file_that_gets_nothing_is_not_made() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        drop(Output::open(&path).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_is_named_twice_is_found_whatever_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let [one, other, link] = ["one", "other", "link"].map(|name| directory.path().join(name));
        let file = identity(&File::create(&one).unwrap().metadata().unwrap()).unwrap();
        File::create(&other).unwrap();
        std::os::unix::fs::symlink(&one, &link).unwrap();
        let [one, other, link] = [one, other, link].map(|path| path.to_str().unwrap().to_owned());
        let is_twice = |words: &[&str]| is_named_twice(file, words.iter().map(OsString::from));
        let json = format!("--json={one}");
        assert!(!is_twice(&["scan", &json, &other, "--json", ""]));
        assert!(is_twice(&["scan", &json, &one]));
        assert!(is_twice(&["scan", &link, &json]));
        assert!(is_twice(&["merge", &format!("--records={other},{one}"), "--csv", &one]));
    }

    #[test]
    fn a_terminal_gets_nothing_that_it_obeys_but_styles() {
        let text = "a\tb\n\u{1b}[1;31mred\u{1b}[0m\u{1b}]0;title\u{7}\u{1b}[2J\u{9b}\u{1b}";
        let shown =
            "a\tb\n\u{1b}[1;31mred\u{1b}[0m\u{fffd}]0;title\u{fffd}\u{fffd}[2J\u{fffd}\u{fffd}";
        assert_eq!(printable(text, true), shown);
        assert_eq!(printable("\u{1b}[8mhidden", false), "\u{fffd}[8mhidden");
    }
}
