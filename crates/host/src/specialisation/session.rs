//! Specialises CPUs until a signal, with the journal's record of it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::loader::{self, NAME};
use super::sets::Sets;
use super::{NARROW, check_module, check_scheduler, check_unused};
use crate::interrupt::Interrupt;
use crate::journal::{Journal, JournalError};
use crate::root::{Root, format_cpu_list};
use crate::unavailable::Unavailable;

/// How soon an end is noticed, of the scheduler or by a signal.
const LOOK: Duration = Duration::from_millis(50);

/// What moves threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// The scheduler, which this program loads.
    Scheduler(PathBuf),
    /// The module alone, by their affinity.
    Affinity,
}

/// Why CPUs are not specialised, or not any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The CPUs could not be made narrow.
    #[error("cannot make CPUs narrow")]
    Journal(#[from] JournalError),
    /// The loader cannot be executed.
    #[error("cannot start {}", program.display())]
    Start {
        /// The loader.
        program: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system does not say whether the loader runs.
    #[error("cannot wait for {NAME}")]
    Wait(#[source] io::Error),
    /// The loader has ended without a signal to this process. It has said why.
    #[error("{NAME} ended ({0}): all CPUs are wide")]
    Ended(ExitStatus),
}

/// Checks what is needed for a session. Changes nothing.
///
/// # Errors
/// [`Unavailable`].
pub fn check(root: &Root, is_by_affinity: bool) -> Result<By, Unavailable> {
    check_module(root)?;
    let by = if is_by_affinity { By::Affinity } else { By::Scheduler(check_scheduler(root)?) };
    check_unused(root)?;
    Ok(by)
}

/// Makes the CPUs of `sets` narrow until a signal, or until the scheduler ends by itself, which is
/// an error. Calls `told` with the narrow CPUs once they are. Undoing the journal afterwards makes
/// all CPUs wide.
///
/// # Errors
/// [`SessionError`].
pub fn run(
    journal: &mut Journal,
    sets: &Sets,
    by: &By,
    interrupt: &Interrupt,
    told: &mut dyn FnMut(&str),
) -> Result<(), SessionError> {
    match by {
        By::Scheduler(program) => by_scheduler(journal, sets, program, interrupt, told),
        By::Affinity => {
            let narrow = format_cpu_list(&sets.narrow);
            journal.change(NARROW, &narrow)?;
            told(&narrow);
            while !interrupt.is_set() {
                std::thread::sleep(LOOK);
            }
            Ok(())
        }
    }
}

fn by_scheduler(
    journal: &mut Journal,
    sets: &Sets,
    program: &Path,
    interrupt: &Interrupt,
    told: &mut dyn FnMut(&str),
) -> Result<(), SessionError> {
    journal.change_by_other(NARROW)?;
    let started = loader::start(program, sets);
    let mut loader =
        started.map_err(|source| SessionError::Start { program: program.to_owned(), source })?;
    let (mut is_told, mut is_ending) = (false, false);
    loop {
        if let Some(status) = loader.try_wait().map_err(SessionError::Wait)? {
            return if is_ending { Ok(()) } else { Err(SessionError::Ended(status)) };
        }
        if interrupt.is_set() && !is_ending {
            is_ending = true;
            // It may have ended just now.
            let _ = kill_process(Pid::from_child(&loader), Signal::TERM);
        }
        let now = journal.root().text(NARROW).unwrap_or_default();
        if !is_told && !now.is_empty() {
            is_told = true;
            told(&now);
        }
        std::thread::sleep(LOOK);
    }
}
