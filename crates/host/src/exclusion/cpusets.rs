//! Exclusion by [`cpusets`](crate::cpusets), of either version: all threads that are not admitted
//! keep off.

use dimmer_processor::units::CpuId;

use super::{Change, Exclusion, ExclusionError};
use crate::cpusets::{Balancing, Dedicated};
use crate::journal::{Journal, JournalError, Report};
use crate::root::Root;

/// Keeps all threads off that are not admitted. Dropping it lets them back.
#[derive(Debug)]
pub struct ByCpusets {
    root: Root,
    /// Open until it is used.
    journal: Option<Journal>,
    dedicated: Option<Dedicated>,
}

impl ByCpusets {
    /// Opens a journal for the changes. That undoes what killed processes have left, as the report
    /// says.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open(root: &Root) -> Result<(Self, Report), JournalError> {
        let (journal, leftovers) = Journal::open(root)?;
        Ok((Self { root: root.clone(), journal: Some(journal), dedicated: None }, leftovers))
    }
}

impl Exclusion for ByCpusets {
    fn keep_off(&mut self, cpus: &[CpuId], _: &[u32]) -> Result<Change, ExclusionError> {
        let mut wanted = cpus.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        if self.dedicated.as_ref().map_or(&[][..], Dedicated::cpus) == wanted {
            let intruders = self.dedicated.as_ref().map_or(0, Dedicated::intruders);
            return Ok(Change { intruders, ..Change::default() });
        }
        let undone = self.dedicated.take().map(Dedicated::undo).transpose()?;
        let mut change = Change { is_changed: true, intruders: 0, undone };
        if !wanted.is_empty() {
            let journal = match self.journal.take() {
                Some(journal) => journal,
                None => Journal::open(&self.root)?.0,
            };
            let dedicated = Dedicated::begin(journal, &wanted, Balancing::Isolated)?;
            change.intruders = dedicated.intruders();
            self.dedicated = Some(dedicated);
        }
        Ok(change)
    }

    fn entrance(&self) -> Option<String> {
        self.dedicated.as_ref().map(Dedicated::entrance)
    }
}
