//! The user's program: its file, whether a library can be preloaded into it, and which libraries it
//! loads.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use dimmer_host::cpuid::Cpuid;
use dimmer_host::libraries::Search;
use dimmer_host::machine::Machine;
use dimmer_host::program;
use dimmer_host::relay::Relay;
use dimmer_host::root::Root;
use dimmer_scan::{Needed, Refused, Start};

use crate::LaunchError;

/// Maximum number of scripts that may be interpreters of each other (Linux, fs/exec.c).
const MOST_SCRIPTS: usize = 5;

/// Runs a text that does not say what runs it, as shells and execvp(3) of glibc have it.
const SHELL: &str = "/bin/sh";

/// Whether the file's start has no byte that only binary files have, as shells look at it.
fn is_text(file: &File) -> bool {
    let mut start = [0; 128];
    let length = program::read_at(file, 0, &mut start);
    !start[..length].contains(&0)
}

/// Why no library can be preloaded into a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoPreload {
    /// It has another user's rights.
    #[error(
        "{} runs with the rights of another user (setuid or setgid): the loader takes no library to \
         preload then",
        .0.display()
    )]
    Rights(PathBuf),
    /// It has no loader.
    #[error("{} is linked statically: there is no loader to preload a library", .0.display())]
    Static(PathBuf),
    /// It is for another kind of processor.
    #[error(
        "{} is a program of 32 bits, or for another kind of processor: Dimmer's library is for \
         x86-64",
        .0.display()
    )]
    Machine(PathBuf),
    /// It has another C library.
    #[error(
        "{} has the loader {loader}: Dimmer's library is for programs of glibc, whose loader for \
         x86-64 is ld-linux-x86-64.so.2",
        file.display()
    )]
    Loader {
        /// The program.
        file: PathBuf,
        /// Its loader.
        loader: String,
    },
    /// A sanitizer's runtime must come first.
    #[error(
        "{} was built with {sanitizer}, whose runtime has to be the first library and takes what \
         others do for faults of the program",
        file.display()
    )]
    Sanitizer {
        /// The program.
        file: PathBuf,
        /// The sanitizer.
        sanitizer: &'static str,
    },
}

/// A program that the user named.
#[derive(Clone, Debug)]
pub struct Program {
    /// The file to execute.
    pub file: PathBuf,
    /// The file that the kernel makes a process of: that file, or the interpreter if it is a
    /// script; the shell if it is a text that names none.
    pub executed: PathBuf,
    /// What it has as its first argument: the word that named it.
    pub(crate) name: OsString,
    /// Whether it is a text that does not say what runs it.
    is_text: bool,
    /// How the kernel starts that file.
    start: Start,
}

impl Program {
    /// Finds the program that a command names.
    ///
    /// # Errors
    /// [`LaunchError`]: there is no such program, or the kernel cannot execute it.
    pub fn find(command: &[OsString]) -> Result<Self, LaunchError> {
        let name = command.first().ok_or(LaunchError::NoCommand)?;
        let file = program::find(name, std::env::var_os("PATH").as_deref())?;
        let (mut executed, mut is_text) = (file.clone(), false);
        for _ in 0..=MOST_SCRIPTS {
            let opened = program::open(&executed)
                .map_err(|why| LaunchError::Unreadable { file: executed.clone(), why })?;
            match dimmer_scan::start(|offset, into| program::read_at(&opened, offset, into)) {
                Start::Script(interpreter) => {
                    executed = PathBuf::from(OsStr::from_bytes(interpreter.bytes()));
                }
                Start::Unknown if executed == file && self::is_text(&opened) => {
                    (executed, is_text) = (SHELL.into(), true);
                }
                Start::Unknown => return Err(LaunchError::Unknown { file: executed }),
                start => {
                    let name = if is_text { SHELL.into() } else { name.clone() };
                    return Ok(Self { file, executed, name, is_text, start });
                }
            }
        }
        Err(LaunchError::Scripts { file })
    }

    /// A command that starts the program with the arguments of `words`, the first of which names
    /// it.
    pub(crate) fn command(&self, words: &[OsString]) -> Command {
        let (file, text) = match self.is_text {
            true => (Path::new(SHELL), Some(&self.file)),
            false => (&*self.file, None),
        };
        let mut command = Command::new(file);
        command.args(text).args(&words[1..]);
        command
    }

    /// Starts the program as this process was started.
    pub(crate) fn spawn(&self, command: &Command, relay: &Relay) -> Result<Child, LaunchError> {
        relay
            .spawn(command, &self.name)
            .map_err(|why| LaunchError::CannotRun { file: self.file.clone(), why })
    }

    /// Checks whether a library can be preloaded into the program.
    ///
    /// # Errors
    /// [`NoPreload`].
    pub fn check_preload(&self) -> Result<(), NoPreload> {
        let file = self.executed.clone();
        if program::changes_rights(&file) {
            return Err(NoPreload::Rights(file));
        }
        match self.start {
            Start::Static => Err(NoPreload::Static(file)),
            Start::Refused(Refused::Machine) => Err(NoPreload::Machine(file)),
            Start::Refused(Refused::Loader(loader)) => Err(NoPreload::Loader {
                file,
                loader: String::from_utf8_lossy(loader.bytes()).into_owned(),
            }),
            Start::Refused(Refused::Sanitizer(sanitizer)) => {
                Err(NoPreload::Sanitizer { file, sanitizer })
            }
            _ => Ok(()),
        }
    }

    /// The files whose code the program runs from the start: first the executed file, then the
    /// libraries that it and they need. Leaves out files that cannot be read or found: the loader
    /// will report them.
    #[must_use]
    pub fn loaded(&self) -> Vec<Loaded> {
        let machine = Machine::read(&Root::live(), &Cpuid::instruction());
        let library_path = std::env::var("LD_LIBRARY_PATH").ok();
        let search = Search::new(&Root::live(), library_path.as_deref(), &machine.features);
        let mut pending = VecDeque::from([self.executed.clone()]);
        let (mut seen, mut loaded) = (BTreeSet::new(), Vec::new());
        // Names that were searched for where the loader searches for all files: most files need the
        // same ones.
        let mut names = BTreeSet::new();
        while let Some(file) = pending.pop_front() {
            let own = file.canonicalize().unwrap_or_else(|_| file.clone());
            if !seen.insert(own.clone()) {
                continue;
            }
            let opened = program::open(&own).ok();
            let Some(needed) = opened.and_then(|opened| dimmer_hook::needed(&opened)) else {
                continue;
            };
            let origin = own.parent().unwrap_or(Path::new("/")).to_string_lossy();
            for name in &needed.libraries {
                if !needed.runpath.is_empty() || names.insert(name.clone()) {
                    pending.extend(search.find(name, &origin, &needed.runpath));
                }
            }
            loaded.push(Loaded { file, needed });
        }
        loaded
    }
}

/// A file whose code a program runs.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The file, as the loader finds it.
    pub file: PathBuf,
    /// What it needs.
    pub needed: Needed,
}

/// The words of a command, for messages.
#[must_use]
pub fn shown(command: &[OsString]) -> Vec<String> {
    command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}
