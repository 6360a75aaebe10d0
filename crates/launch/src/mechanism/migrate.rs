//! `--migrate`: calls run on a dedicated core, with their thread.

use super::{Definition, How, moving};

/// Calls migrate.
pub(super) const DEFINITION: Definition = Definition {
    name: "migrate",
    summary: "calls run on a dedicated core, with their thread",
    moves: Some(HOW),
    prepare: moving::prepare,
};

pub(super) const HOW: How = How { migrates: true, ..How::NONE };
