//! Starting the user's program with a library preloaded: which file that is, whether it takes a library,
//! and how it ended. What the library is to do there is the callers' business.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, ExitStatus};
use std::time::Instant;

use anyhow::Context;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::program;
use dimmer_observe::INTERVAL;
use rustix::process::{Pid, Signal, kill_process};

use crate::bad_input;

/// The library to preload; it lies beside the command, or where libraries of installed programs do.
const LIBRARY: &str = "libdimmer_preload.so";

/// The variable by which the loader is told of libraries to load first, see ld.so(8).
pub(crate) const PRELOAD: &str = "LD_PRELOAD";

/// Where, as seen from the command's own directory.
const PLACES: [&str; 3] = ["", "deps", "../lib/dimmer"];

/// How many scripts may be interpreters of each other (Linux, fs/exec.c).
const MOST_SCRIPTS: usize = 5;

/// The file to execute, if a library can be preloaded into it.
pub(crate) fn check(command: &[OsString]) -> anyhow::Result<PathBuf> {
    let Some(name) = command.first() else {
        return Err(bad_input("no program to run"));
    };
    let file = program::find(name, std::env::var_os("PATH").as_deref()).map_err(bad_input)?;
    let mut executed = file.clone();
    let mut scripts = 0;
    loop {
        let shown = executed.display().to_string();
        let bytes = std::fs::read(&executed)
            .map_err(|error| bad_input(format!("cannot read {shown}: {error}")))?;
        if program::changes_rights(&executed) {
            return Err(bad_input(format!(
                "{shown} runs with the rights of another user (setuid or setgid): the loader takes no \
                 library to preload then; run it as that user"
            )));
        }
        if let Some(interpreter) = program::interpreter_of_script(&bytes) {
            scripts += 1;
            if scripts > MOST_SCRIPTS {
                return Err(bad_input(format!(
                    "{} is a script whose interpreter is a script, and so on: the kernel gives up there",
                    file.display()
                )));
            }
            executed = interpreter;
            continue;
        }
        return match dimmer_scan::interpreter(&bytes) {
            Ok(Some(_)) => Ok(file),
            Ok(None) => Err(bad_input(format!(
                "{shown} is linked statically: there is no loader to preload a library"
            ))),
            Err(error) => Err(bad_input(format!("{shown}: {error}"))),
        };
    }
}

/// The library to preload.
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

/// The value of [`PRELOAD`] by which the loader takes `library` first, and then what is in `existing`,
/// its value so far.
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

/// Waits until the program ends, or makes it end at the deadline and when this command is told to end;
/// calls `look` meanwhile, every [`INTERVAL`].
pub(crate) fn follow(
    child: &mut Child,
    deadline: Option<Instant>,
    interrupt: &Interrupt,
    mut look: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<ExitStatus> {
    let mut is_told = false;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for the program")? {
            return Ok(status);
        }
        look()?;
        let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if !is_told && (is_over || interrupt.is_set()) {
            is_told = true;
            if let Some(child) = Pid::from_raw(i32::try_from(child.id()).unwrap_or_default()) {
                // It may have ended just now.
                let _ = kill_process(child, Signal::TERM);
            }
        }
        std::thread::sleep(INTERVAL);
    }
}

/// The program's own exit status, as a shell tells it: 128 and the number of the signal that ended it.
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
