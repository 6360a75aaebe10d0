//! Reads whole files: of the right kind, and up to a limit.

use std::io::{self, Read as _};
use std::path::Path;

use anyhow::Context as _;
use dimmer_host::bounded_file::{self, BoundedFileError};

use crate::bad_input;

/// Size limit of a document: models, scenarios, graphs, cached results (bytes). The longest model
/// has some 20 kB.
const LONGEST_TEXT: u64 = 16 << 20;

/// Reads a document that the user named.
pub(crate) fn text(path: &Path) -> anyhow::Result<String> {
    bounded_file::read_to_string(path, LONGEST_TEXT).map_err(|error| match error {
        error @ BoundedFileError::Unreadable { .. } => error.into(),
        error => bad_input(error),
    })
}

/// Reads a document from standard input, of the same length at most.
pub(crate) fn standard() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let read = io::stdin().lock().take(LONGEST_TEXT + 1).read_to_end(&mut bytes);
    read.context("cannot read standard input")?;
    if bytes.len() as u64 > LONGEST_TEXT {
        return Err(bad_input(format!(
            "standard input is longer than {LONGEST_TEXT} bytes, the most accepted"
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        bad_input(format!("standard input is not text: byte {at} is not UTF-8"))
    })
}
