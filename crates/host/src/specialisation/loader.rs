//! The program that loads the scheduler, `dimmer-specialise` (`bpf/specialise.c`): where it is, and
//! how it is started so that it does not outlive this process.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

use super::sets::Sets;
use crate::program;
use crate::root::{Root, format_cpu_list};

/// The name of the program.
pub(super) const NAME: &str = "dimmer-specialise";

/// Finds the program: beside this one, otherwise in the directories of `PATH`. On a made-up
/// machine these directories are below its root, so that no real scheduler is loaded for one.
pub(super) fn find(root: &Root) -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent).map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = beside
        .into_iter()
        .chain(std::env::split_paths(&path))
        .filter_map(|directory| Some(root.path(directory.join(NAME).to_str()?)));
    files.find(|file| program::find(file.as_os_str(), None).is_ok())
}

/// Starts the program, which loads the scheduler and makes CPUs narrow until SIGTERM ends it. The
/// kernel sends it that signal if this process ends first, however it ends. Signals of the terminal
/// do not reach it.
///
/// # Errors
/// The system's error: the program cannot be executed.
pub(super) fn start(program: &Path, sets: &Sets) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.args([OsStr::new("run"), OsStr::new("--wide")]).arg(format_cpu_list(&sets.wide));
    command.stdin(Stdio::null()).process_group(0);
    let parent = getpid();
    let end_with_parent = move || {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        // The parent may have ended before the call.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    // SAFETY: between fork and exec, the closure makes only system calls.
    unsafe { command.pre_exec(end_with_parent) };
    command.spawn()
}
