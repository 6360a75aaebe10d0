//! A program under mechanisms, from its start to its end.

use std::ffi::OsString;
use std::process::{Command, ExitStatus};

use dimmer_host::exclusion::{ByCpusets, Exclusion};
use dimmer_host::relay::Relay;
use dimmer_host::root::Root;
use dimmer_narrow::Width;
use dimmer_observe::INTERVAL;
use dimmer_processor::units::CpuId;

use crate::LaunchError;
use crate::account::Summary;
use crate::follow::follow;
use crate::forms::Spent;
use crate::mechanism::{self, Boosting, Definition, End, Setup};
use crate::named::Wanted;
use crate::note::{Note, Notes};
use crate::phases::Guide;
use crate::program::Program;

/// What to run, and how.
#[derive(Clone, Debug)]
pub struct Request {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Functions whose calls move. Empty: a processor model chooses them.
    pub functions: Vec<Wanted>,
    /// By what threads migrate at marks, if they do.
    pub phases: Option<Guide>,
    /// What is done at the program's locks, if anything.
    pub boosting: Boosting,
    /// Whether counters measure some of the sections of its locks.
    pub is_counted: bool,
    /// The sections by functions that are observed with the locks, in the user's words.
    pub sections: Vec<String>,
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
    /// Whether all calls are timed and kept, with the decisions about them.
    pub is_traced: bool,
}

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// What became of its calls or threads, if any could move.
    pub summary: Option<Summary>,
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
    mechanism::check(asked, request)?;
    let program = Program::find(&request.command)?;
    program.check_preload()?;
    let mut command = program.command(&request.command);
    // First: gives back cores that a killed run has left dedicated.
    let mut others = request.is_dedicated.then(|| exclusion(root, notes)).transpose()?;
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
    if let Some((cpus, others)) = cpus.zip(others.as_mut()) {
        keep_off(root, others.as_mut(), cpus, &mut command, notes)?;
    }
    let before = Spent::read();
    let mut child = program.spawn(&command, &relay)?;
    mechanisms.iter_mut().for_each(|mechanism| mechanism.started(child.id()));
    let look = |stood_still| {
        if let Some(time) = stood_still {
            mechanisms.iter_mut().for_each(|mechanism| mechanism.stood_still(time));
        }
        mechanisms.iter_mut().for_each(|mechanism| mechanism.look(notes));
        mechanisms.iter().map(|mechanism| mechanism.next_look()).min().unwrap_or(INTERVAL)
    };
    let status = follow(&mut child, None, &relay, look)?;
    let not_given_back = others.and_then(|mut others| give_back(others.as_mut(), notes).err());
    let is_asked_for = relay.was_asked_to_end();
    drop(relay);
    let end = End { status, is_asked_for, spent: Spent::read().since(before) };
    let summaries = mechanisms.into_iter().map(|mechanism| mechanism.finish(&end, notes));
    Ok(Ended { status, summary: summaries.last(), not_given_back })
}

/// What keeps the threads of other programs off. Gives back what killed runs have left dedicated.
///
/// Only on request: it takes a part of the machine from programs that have nothing to do with this
/// one.
fn exclusion(root: &Root, notes: &mut Notes<'_>) -> Result<Box<dyn Exclusion>, LaunchError> {
    let (by_cpusets, leftovers) = ByCpusets::open(root).map_err(LaunchError::Journal)?;
    notes(Note::Restored(leftovers));
    Ok(Box::new(by_cpusets))
}

/// Keeps the threads of all other programs off these CPUs, and sets the variable by which the
/// program's workers get there: each process of the program lets its own workers in.
fn keep_off(
    root: &Root,
    others: &mut dyn Exclusion,
    cpus: &[CpuId],
    command: &mut Command,
    notes: &mut Notes<'_>,
) -> Result<(), LaunchError> {
    let change = others.keep_off(cpus, &[]).map_err(LaunchError::Dedicate)?;
    if let Some(entrance) = others.entrance() {
        command.env(dimmer_runtime::ENTRANCE, root.path(&entrance));
    }
    notes(Note::Dedicated { cpus: cpus.to_vec(), intruders: change.intruders });
    Ok(())
}

fn give_back(others: &mut dyn Exclusion, notes: &mut Notes<'_>) -> Result<(), LaunchError> {
    let change = others.keep_off(&[], &[]).map_err(LaunchError::GiveBack)?;
    let report = change.undone.filter(|report| !report.is_complete() || !report.left.is_empty());
    if let Some(report) = report {
        notes(Note::Restored(report));
    }
    Ok(())
}
