//! `--delegate`: a worker on a dedicated core runs calls of leaf functions while their thread
//! waits.

use super::{Definition, How, moving};

/// Calls are delegated.
pub(super) const DEFINITION: Definition = Definition {
    name: "delegate",
    summary: "calls of leaf functions run on a dedicated core while their thread waits",
    moves: Some(HOW),
    prepare: moving::prepare,
};

pub(super) const HOW: How = How { delegates: true, ..How::NONE };
