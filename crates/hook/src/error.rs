//! Why functions of a file are not hooked, or their calls not moved.

use std::io;

use dimmer_scan::ScanError;

use crate::ledger::LedgerError;

/// Reasons why a file's functions could not be hooked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HookError {
    /// The file cannot be read.
    #[error("cannot be read")]
    Read(#[source] io::Error),
    /// The file is not for this kind of processor, or is damaged.
    #[error("cannot be scanned")]
    Scan(#[from] ScanError),
    /// There is no free memory near the code, or the code must not be changed.
    #[error("cannot {what}")]
    Memory {
        /// The action that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The ledger has no room.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// [`crate::Hooks::refuse`] has switched hooking off.
    #[error("is not hooked: {0}")]
    Refused(&'static str),
}

/// Reasons why calls cannot be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CannotMove {
    /// Registers cannot go along.
    #[error("this processor lacks XSAVE, or the system does not use it")]
    NoXsave,
    /// Not all registers can go along.
    #[error(
        "this processor lacks XSAVEC or XGETBV with 1, and has more registers than XSAVE alone takes along"
    )]
    NoXsavec,
    /// The decisions about calls cannot be read.
    #[error("the ledger with the decisions cannot be mapped")]
    NoDecisions,
}
