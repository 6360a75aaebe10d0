//! Exit statuses, for all commands.
//!
//! | status | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | failed |
//! | 2 | bad input: nothing was done |
//! | 3 | done, and the answer is no |
//! | 125 | a wrapper itself failed, bad input included |
//! | 126 | a wrapper: the program cannot be executed |
//! | 127 | a wrapper: there is no such program |
//! | 128 + n | signal n ended the command, or the program of a wrapper |
//! | 141 | the reader of the output has gone (SIGPIPE) |
//!
//! Wrappers are `observe`, `run`, `stat` and `pstate tune -- COMMAND`. In all other cases they end
//! with their program's status. 125 to 127 are those of env(1), nohup(1) and timeout(1).

use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};

use dimmer_host::program::ProgramError;
use dimmer_launch::LaunchError;

use crate::BadInput;
use crate::output::ClosedPipe;

/// The command failed.
pub(crate) const FAILED: u8 = 1;
/// The input cannot be used; clap's status as well.
pub(crate) const BAD_INPUT: u8 = 2;
/// The command did what was asked, and the answer is no.
pub(crate) const NO: u8 = 3;
/// A command that wraps a program failed itself.
pub(crate) const WRAPPER_FAILED: u8 = 125;
/// The program cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such program.
pub(crate) const NOT_FOUND: u8 = 127;
/// The reader of the output has gone, as if SIGPIPE had ended the command.
pub(crate) const CLOSED_PIPE: u8 = 128 + 13;

/// The status for an error of a command, which `wraps` a program or not.
pub(crate) fn of(error: &anyhow::Error, wraps: bool) -> u8 {
    if error.is::<ClosedPipe>() {
        return CLOSED_PIPE;
    }
    let launch = error.downcast_ref::<LaunchError>();
    let program = match launch {
        Some(LaunchError::Program(program)) => Some(program),
        _ => error.downcast_ref::<ProgramError>(),
    };
    let cannot_execute = program.is_some() || launch.is_some_and(LaunchError::is_not_executable);
    match program {
        _ if !wraps && (cannot_execute || error.is::<BadInput>()) => BAD_INPUT,
        _ if !wraps => FAILED,
        Some(ProgramError::NotInPath(_) | ProgramError::NotThere(_)) => NOT_FOUND,
        _ if cannot_execute => NOT_EXECUTABLE,
        _ => WRAPPER_FAILED,
    }
}

/// The program's own exit status, as a shell reports it: 128 plus the signal's number if a signal
/// ended it.
pub(crate) fn of_program(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::bad_input;

    #[test]
    fn wrappers_have_statuses_of_their_own() {
        let failed = || anyhow::anyhow!("no memory");
        assert_eq!([of(&failed(), false), of(&failed(), true)], [FAILED, WRAPPER_FAILED]);
        let wrong = || bad_input("--wrong");
        assert_eq!([of(&wrong(), false), of(&wrong(), true)], [BAD_INPUT, WRAPPER_FAILED]);
        let missing = anyhow::Error::from(ProgramError::NotInPath("x".to_owned()));
        assert_eq!(of(&missing, true), NOT_FOUND);
        let missing = LaunchError::Program(ProgramError::NotInPath("x".to_owned())).into();
        assert_eq!([of(&missing, false), of(&missing, true)], [BAD_INPUT, NOT_FOUND]);
        let script = LaunchError::Scripts { file: PathBuf::from("/x") }.into();
        assert_eq!([of(&script, false), of(&script, true)], [BAD_INPUT, NOT_EXECUTABLE]);
        let plain = anyhow::Error::from(ProgramError::NotExecutable(PathBuf::from("/x")));
        assert_eq!(of(&plain.context("cannot run it"), true), NOT_EXECUTABLE);
    }
}
