//! `dimmer specialise`: core specialisation in the kernel, from its checks to its end.

use std::process::ExitCode;

use anyhow::Context;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::journal::Journal;
use dimmer_host::root::Root;
use dimmer_host::specialisation::session;
use dimmer_host::specialisation::sets::{Sets, SetsError};

use crate::args::Specialise;
use crate::{bad_input, restore};

pub(crate) fn run(root: &Root, arguments: &Specialise) -> anyhow::Result<ExitCode> {
    let asked = &arguments.wide;
    let sets = Sets::read(root, asked, arguments.affinity).map_err(|error| match error {
        SetsError::Topology(_) => anyhow::Error::from(error),
        error => bad_input(format!("--wide `{asked}`: {error}")),
    })?;
    let (mut journal, leftovers) = Journal::open(root).context("cannot open the journal")?;
    eprint!("{}", dimmer_report::restore::text(&leftovers));
    let by = session::check(root, arguments.affinity)?;
    eprint!("{}", dimmer_report::specialise::note(&sets));
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let ended = session::run(&mut journal, &sets, &by, &interrupt, &mut |narrow| {
        eprint!("{}", dimmer_report::specialise::begin(&sets, narrow));
    });
    let undone = journal.undo().context("cannot make all CPUs wide again")?;
    restore::ended(&undone)?;
    ended?;
    eprintln!("All CPUs are wide again.");
    Ok(ExitCode::SUCCESS)
}
