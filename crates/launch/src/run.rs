//! A program under mechanisms, from its start to its end.

use std::ffi::OsString;
use std::process::{Command, ExitStatus};

use dimmer_host::cpusets::{Balancing, Dedicated};
use dimmer_host::journal::Journal;
use dimmer_host::relay::Relay;
use dimmer_host::root::Root;
use dimmer_narrow::Width;
use dimmer_processor::units::CpuId;

use crate::LaunchError;
use crate::account::Account;
use crate::follow::follow;
use crate::forms::Spent;
use crate::mechanism::{self, Definition, End, Setup};
use crate::named::Wanted;
use crate::note::{Note, Notes};
use crate::program::Program;

/// What to run, and how.
#[derive(Clone, Debug)]
pub struct Request {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Functions whose calls move. Empty: a processor model chooses them.
    pub functions: Vec<Wanted>,
    /// The name or file of that model; `None`: what a probe of this machine has measured.
    pub model: Option<String>,
    /// The CPUs that calls move to; `None`: those of one core.
    pub cpus: Option<Vec<CpuId>>,
    /// Whether other programs are kept off these CPUs.
    pub is_dedicated: bool,
    /// The widest vectors that narrowing leaves.
    pub width: Width,
    /// Names of the switches that may narrow. Empty: all.
    pub only: Vec<String>,
}

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// What became of its calls, if any could move.
    pub account: Option<Account>,
    /// Why the dedicated CPUs were not given back.
    pub not_given_back: Option<LaunchError>,
}

/// Runs a program under these mechanisms.
///
/// # Errors
/// [`LaunchError`]. The program has not run, unless the error is [`LaunchError::Wait`].
pub fn run(
    root: &Root,
    asked: &[&'static Definition],
    request: &Request,
    notes: &mut Notes<'_>,
) -> Result<Ended, LaunchError> {
    let program = Program::find(&request.command)?;
    program.check_preload()?;
    let mut command = Command::new(&program.file);
    command.args(&request.command[1..]);
    // First: gives back cores that a killed run has left dedicated.
    let journal = request.is_dedicated.then(|| open_journal(root, notes)).transpose()?;
    let how = mechanism::how(asked).unwrap_or_default();
    let mut mechanisms = mechanism::prepare(&mut Setup {
        root,
        request,
        asked,
        how,
        program: &program,
        command: &mut command,
        notes: &mut *notes,
    })?;
    let relay = Relay::begin().map_err(LaunchError::Signals)?;
    let cpus = mechanisms.iter().find_map(|mechanism| mechanism.cpus());
    let dedication = cpus
        .zip(journal)
        .map(|(cpus, journal)| dedicate(journal, cpus, &mut command, notes))
        .transpose()?;
    let before = Spent::read();
    let mut child = program.spawn(&mut command, &relay)?;
    let look = || mechanisms.iter_mut().for_each(|mechanism| mechanism.look(notes));
    let status = follow(&mut child, None, &relay, look)?;
    let not_given_back = dedication.and_then(|dedicated| give_back(dedicated, notes).err());
    drop(relay);
    let end = End { status, spent: Spent::read().since(before) };
    let accounts = mechanisms.into_iter().map(|mechanism| mechanism.finish(&end));
    Ok(Ended { status, account: accounts.last(), not_given_back })
}

/// Opens a journal for the change. Gives back what killed runs have left dedicated.
fn open_journal(root: &Root, notes: &mut Notes<'_>) -> Result<Journal, LaunchError> {
    let (journal, leftovers) = Journal::open(root).map_err(LaunchError::Journal)?;
    notes(Note::Restored(leftovers));
    Ok(journal)
}

/// Keeps the threads of all other programs off these CPUs, and sets the variable by which the
/// program's workers get there.
///
/// Only on request: it takes a part of the machine from programs that have nothing to do with this
/// one. Each process of the program lets its own workers in.
fn dedicate(
    journal: Journal,
    cpus: &[CpuId],
    command: &mut Command,
    notes: &mut Notes<'_>,
) -> Result<Dedicated, LaunchError> {
    let root = journal.root().clone();
    let dedicated =
        Dedicated::begin(journal, cpus, Balancing::Isolated).map_err(LaunchError::Dedicate)?;
    command.env(dimmer_runtime::ENTRANCE, root.path(&dedicated.entrance()));
    notes(Note::Dedicated { cpus: cpus.to_vec(), intruders: dedicated.intruders() });
    Ok(dedicated)
}

fn give_back(dedicated: Dedicated, notes: &mut Notes<'_>) -> Result<(), LaunchError> {
    let report = dedicated.undo().map_err(LaunchError::GiveBack)?;
    if !report.is_complete() || !report.left.is_empty() {
        notes(Note::Restored(report));
    }
    Ok(())
}
