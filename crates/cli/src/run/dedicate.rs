//! `dimmer run --dedicate`: keeps the threads of all other programs off the dedicated cores while
//! the program runs.
//!
//! Only on request: it takes a part of the machine from programs that have nothing to do with this
//! one. Each process of the program lets its own workers in.

use std::process::Command;

use anyhow::Context;
use dimmer_host::cpusets::{Balancing, Dedicated};
use dimmer_host::journal::Journal;
use dimmer_host::root::{Root, format_cpu_list};
use dimmer_processor::units::CpuId;

use crate::bad_input;
use dimmer_report::number::counted;

/// Opens a journal for the change. Gives back what killed runs have left dedicated.
pub(super) fn open_journal(root: &Root) -> anyhow::Result<Journal> {
    let (journal, leftovers) = Journal::open(root).context("cannot open the journal")?;
    eprint!("{}", dimmer_report::restore::text(&leftovers));
    Ok(journal)
}

/// Dedicated cores; given back by [`Self::end`] or when dropped.
#[derive(Debug)]
pub(super) struct Dedication(Dedicated);

impl Dedication {
    /// Dedicates cores, and sets the variable by which the program's workers get there.
    pub(super) fn begin(
        journal: Journal,
        cpus: &[CpuId],
        command: &mut Command,
    ) -> anyhow::Result<Self> {
        let root = journal.root().clone();
        let dedicated = Dedicated::begin(journal, cpus, Balancing::Isolated)
            .map_err(|why| bad_input(format!("--dedicate: {:#}", anyhow::Error::new(why))))?;
        command.env(dimmer_runtime::ENTRANCE, root.path(&dedicated.entrance()));
        let stay = match dedicated.intruders() {
            0 => String::new(),
            number => format!(", but {} that cannot be moved", counted(number, "thread")),
        };
        eprintln!("Dedicated: nobody else runs on cpu {}{stay}.", format_cpu_list(cpus));
        Ok(Self(dedicated))
    }

    /// Gives the cores back.
    pub(super) fn end(self) -> anyhow::Result<()> {
        let report = self.0.undo().context("cannot give the dedicated cores back")?;
        if !report.is_complete() || !report.left.is_empty() {
            eprint!("{}", dimmer_report::restore::text(&report));
        }
        Ok(())
    }
}
