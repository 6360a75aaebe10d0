//! `dimmer run --dedicate`: nobody else's threads run on the dedicated cores as long as the program
//! does.
//!
//! Only if asked for: it takes a part of the machine from programs that have nothing to do with
//! this one. The program's workers let themselves in, each of its processes' own.

use std::process::Command;

use anyhow::Context;
use dimmer_host::cpusets::{Balancing, Dedicated};
use dimmer_host::journal::Journal;
use dimmer_host::root::{Root, format_cpu_list};
use dimmer_processor::units::CpuId;

use crate::report::number::counted;
use crate::{bad_input, restore};

/// A journal for the change. What killed runs have left dedicated is given back.
pub(super) fn open_journal(root: &Root) -> anyhow::Result<Journal> {
    let (journal, leftovers) = Journal::open(root).context("cannot open the journal")?;
    eprint!("{}", restore::words(&leftovers));
    Ok(journal)
}

/// Cores that are dedicated; given back by [`Self::end`], or when it is dropped.
#[derive(Debug)]
pub(super) struct Dedication(Dedicated);

impl Dedication {
    /// Dedicates cores, and tells the program how its workers get there.
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

    /// Gives them back.
    pub(super) fn end(self) -> anyhow::Result<()> {
        let report = self.0.undo().context("cannot give the dedicated cores back")?;
        if !report.is_complete() || !report.left.is_empty() {
            eprint!("{}", restore::words(&report));
        }
        Ok(())
    }
}
