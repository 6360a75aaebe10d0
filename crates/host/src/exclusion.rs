//! Exclusion: keeps threads off cores that are dedicated to something.
//!
//! [`Exclusion`] is the interface, with a file for each mechanism: [`ByAffinity`] keeps off one
//! thread after the other, and [`ByCpusets`] all threads of the machine that are not admitted.
//! Which cores are dedicated, and when, is decided elsewhere.

mod affinity;
mod cpusets;

use std::fmt;

use dimmer_processor::units::CpuId;

pub use affinity::{ByAffinity, Kept, KeptOff, let_back, written};
pub use cpusets::ByCpusets;

use crate::cpusets::CpusetError;
use crate::journal::{JournalError, Report};

/// A mechanism that keeps threads off CPUs.
pub trait Exclusion: fmt::Debug {
    /// Keeps threads off these CPUs from now on, and off no others: threads may run again on CPUs
    /// that are no longer among them. Without CPUs, everything is as it was at the beginning.
    ///
    /// `threads` are those to be kept off, and all of them, for a mechanism that does so one by
    /// one.
    ///
    /// # Errors
    /// [`ExclusionError`]. Then threads are kept off no CPU.
    fn keep_off(&mut self, cpus: &[CpuId], threads: &[u32]) -> Result<Change, ExclusionError>;

    /// The file by which a thread gets onto these CPUs, as
    /// [`Dedicated::entrance`](crate::cpusets::Dedicated::entrance); `None` if being pinned there
    /// is enough.
    fn entrance(&self) -> Option<String> {
        None
    }
}

/// What has changed.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Whether anything has.
    pub is_changed: bool,
    /// The number of threads that may still run on the CPUs because this process may not move
    /// them.
    pub intruders: usize,
    /// What was undone of earlier changes, if they are journalled.
    pub undone: Option<Report>,
}

/// Why threads are not kept off.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExclusionError {
    /// CPUs cannot be dedicated by cpusets.
    #[error(transparent)]
    Cpusets(#[from] CpusetError),
    /// A change cannot be written down or undone.
    #[error(transparent)]
    Journal(#[from] JournalError),
}
