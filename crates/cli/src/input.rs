//! Reads whole files: of the right kind, and up to a limit.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;

use anyhow::Context as _;
use dimmer_host::bounded_file::{self, BoundedFileError};

use crate::bad_input;

/// Size limit of a document: models, scenarios, graphs, cached results (bytes). The longest model
/// has some 20 kB.
const LONGEST_TEXT: u64 = 16 << 20;

/// Reads a document that the user named.
pub(crate) fn text(path: &Path) -> anyhow::Result<String> {
    bounded_file::read_to_string(path, LONGEST_TEXT).map_err(unread)
}

/// A file that exists and cannot be read is a failure; everything else is the user's input.
pub(crate) fn unread(error: BoundedFileError) -> anyhow::Error {
    match error {
        BoundedFileError::Unreadable { ref source, .. } if source.kind() != ErrorKind::NotFound => {
            error.into()
        }
        error => bad_input(format!("{:#}", anyhow::Error::from(error))),
    }
}

/// Files, or names of what comes with Dimmer: each once, whatever the path.
pub(crate) fn distinct<T: AsRef<Path> + Clone>(named: &[T]) -> Vec<T> {
    let mut before = BTreeSet::new();
    let is_first = |one: &&T| {
        let path = one.as_ref();
        before.insert(path.canonicalize().unwrap_or_else(|_| path.to_owned()))
    };
    named.iter().filter(is_first).cloned().collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_once_whatever_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let [file, other] = [file.to_str().unwrap(), "x265"].map(str::to_owned);
        let dotted = format!("{}/./file", directory.path().display());
        let named = [other.clone(), file.clone(), dotted, other.clone()];
        assert_eq!(distinct(&named), [other, file]);
    }

    #[test]
    fn a_file_that_does_not_exist_is_bad_input() {
        assert!(text(Path::new("/no/such")).unwrap_err().is::<crate::BadInput>());
    }
}
