//! Starts the user's program: finds its file, whether a library can be preloaded into it, which
//! libraries it loads, and how it ended. The callers define what the preloaded library does.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::Instant;

use anyhow::Context;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::libraries::Search;
use dimmer_host::machine::Machine;
use dimmer_host::program;
use dimmer_host::relay::Relay;
use dimmer_host::root::Root;
use dimmer_observe::INTERVAL;
use dimmer_scan::{Needed, Refused, Start};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::bad_input;

/// The library to preload. It lies beside the command, or where libraries of installed programs
/// lie.
const LIBRARY: &str = "libdimmer_preload.so";

/// The variable that lists libraries for the loader to load first, see ld.so(8).
pub(crate) const PRELOAD: &str = "LD_PRELOAD";

/// Directories that may contain the library, relative to the command's own directory.
const PLACES: [&str; 3] = ["", "deps", "../lib/dimmer"];

/// Maximum number of scripts that may be interpreters of each other (Linux, fs/exec.c).
const MOST_SCRIPTS: usize = 5;

/// The kernel cannot execute the program.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CannotExecute(String);

/// A program that the user named.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// The file to execute.
    pub(crate) file: PathBuf,
    /// The file that the kernel makes a process of: that file, or the interpreter if it is a
    /// script.
    pub(crate) executed: PathBuf,
    /// How the kernel starts that file.
    start: Start,
}

impl Program {
    /// Finds the program that a command names.
    pub(crate) fn find(command: &[OsString]) -> anyhow::Result<Self> {
        let Some(name) = command.first() else {
            return Err(bad_input("no program to run"));
        };
        let file = program::find(name, std::env::var_os("PATH").as_deref())?;
        let mut executed = file.clone();
        for _ in 0..=MOST_SCRIPTS {
            let shown = executed.display().to_string();
            let opened = program::open(&executed)
                .map_err(|error| CannotExecute(format!("cannot read {shown}: {error}")))?;
            match dimmer_scan::start(|offset, into| program::read_at(&opened, offset, into)) {
                Start::Script(interpreter) => {
                    executed = PathBuf::from(OsStr::from_bytes(interpreter.bytes()));
                }
                Start::Unknown => {
                    return Err(
                        CannotExecute(format!("{shown}: not an ELF file, nor a script")).into()
                    );
                }
                start => return Ok(Self { file, executed, start }),
            }
        }
        Err(CannotExecute(format!(
            "{} is a script whose interpreter is a script, and so on: the kernel gives up there",
            file.display()
        ))
        .into())
    }

    /// Starts the program with the signal settings that this process was started with.
    pub(crate) fn spawn(&self, command: &mut Command, relay: &Relay) -> anyhow::Result<Child> {
        let refused = |error| CannotExecute(format!("cannot run {}: {error}", self.file.display()));
        relay.prepare(command);
        Ok(command.spawn().map_err(refused)?)
    }

    /// Whether a library can be preloaded into the program; if not, the reason.
    pub(crate) fn takes_library(&self) -> Result<(), String> {
        let shown = self.executed.display();
        if program::changes_rights(&self.executed) {
            return Err(format!(
                "{shown} runs with the rights of another user (setuid or setgid): the loader takes no \
                 library to preload then"
            ));
        }
        match self.start {
            Start::Static => Err(format!(
                "{shown} is linked statically: there is no loader to preload a library"
            )),
            Start::Refused(Refused::Machine) => Err(format!(
                "{shown} is a program of 32 bits, or for another kind of processor: Dimmer's library is for x86-64"
            )),
            Start::Refused(Refused::Loader(loader)) => Err(format!(
                "{shown} has the loader {}: Dimmer's library is for programs of glibc, whose loader for x86-64 is \
                 ld-linux-x86-64.so.2",
                String::from_utf8_lossy(loader.bytes())
            )),
            Start::Refused(Refused::Sanitizer(sanitizer)) => Err(format!(
                "{shown} was built with {sanitizer}, whose runtime has to be the first library and takes what \
                 others do for faults of the program"
            )),
            _ => Ok(()),
        }
    }

    /// The files whose code the program runs from the start: first the executed file, then the
    /// libraries that it and they need. Leaves out files that cannot be read or found: the loader
    /// will report them.
    pub(crate) fn loaded(&self) -> Vec<Loaded> {
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
pub(crate) struct Loaded {
    pub(crate) file: PathBuf,
    pub(crate) needed: Needed,
}

/// The words of a command, for messages.
pub(crate) fn shown(command: &[OsString]) -> Vec<String> {
    command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Finds the library to preload.
pub(crate) fn library() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let directory = own.parent().unwrap_or(Path::new("/"));
    let mut places = PLACES.iter().map(|place| directory.join(place).join(LIBRARY));
    places.find(|place| place.is_file()).with_context(|| {
        format!(
            "{LIBRARY} is not beside {}, nor in ../lib/dimmer; `make build` makes both",
            own.display()
        )
    })
}

/// The value of [`PRELOAD`] that makes the loader take `library` first, and then what is in
/// `existing`, the value so far.
pub(crate) fn preload(library: &Path, existing: Option<OsString>) -> OsString {
    let Some(existing) = existing.filter(|existing| !existing.is_empty()) else {
        return library.as_os_str().to_owned();
    };
    let mut others = existing.as_encoded_bytes().split(|byte| matches!(byte, b':' | b' '));
    if others.any(|other| other == library.as_os_str().as_encoded_bytes()) {
        return existing;
    }
    let mut all = library.as_os_str().to_owned();
    all.push(":");
    all.push(existing);
    all
}

/// Waits until the program ends, or sends it SIGTERM at the deadline. Meanwhile calls `look` every
/// [`INTERVAL`]. Passes signals for this command on to the program.
pub(crate) fn follow(
    child: &mut Child,
    deadline: Option<Instant>,
    relay: &Relay,
    mut look: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<ExitStatus> {
    let mut is_told = false;
    let process = Pid::from_raw(i32::try_from(child.id()).unwrap_or_default());
    let end = end_of(child.id());
    relay.started(child.id());
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for the program")? {
            return Ok(status);
        }
        relay.pass_on();
        look()?;
        if !is_told && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            is_told = true;
            if let Some(process) = process {
                // The program may have ended just now.
                let _ = kill_process(process, Signal::TERM);
            }
        }
        wait(end.as_ref());
    }
}

/// A handle that becomes readable when the process ends; `None` on kernels before 5.3.
pub(crate) fn end_of(process: u32) -> Option<OwnedFd> {
    let process = Pid::from_raw(i32::try_from(process).ok()?)?;
    pidfd_open(process, PidfdFlags::empty()).ok()
}

/// Waits for [`INTERVAL`], or until the process ends; returns whether it has ended.
pub(crate) fn wait(end: Option<&OwnedFd>) -> bool {
    let Some(end) = end else {
        std::thread::sleep(INTERVAL);
        return false;
    };
    let longest = Timespec::try_from(INTERVAL).ok();
    // A signal also ends the wait; the caller then checks for it.
    poll(&mut [PollFd::new(end, PollFlags::IN)], longest.as_ref()).is_ok_and(|ended| ended > 0)
}

/// The program's own exit status, as a shell reports it: 128 plus the signal's number if a signal
/// ended it.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_is_preloaded_once_and_first() {
        let check = |existing: &str, expected: &str| {
            let all = preload(Path::new("/l/own.so"), Some(existing.into()));
            assert_eq!(all.to_str().unwrap(), expected);
        };
        check("", "/l/own.so");
        check("other.so", "/l/own.so:other.so");
        check("/l/own.so", "/l/own.so");
        check("other.so /l/own.so", "other.so /l/own.so");
        assert_eq!(preload(Path::new("/l/own.so"), None), "/l/own.so");
    }
}
