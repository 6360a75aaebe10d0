//! Reads whole files: of the right kind, and up to a limit.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use anyhow::Context as _;
use dimmer_host::bounded_file::{self, BoundedFileError};
use dimmer_host::program;

use crate::bad_input;

/// Size limit of a document: models, scenarios, graphs, cached results (bytes). The longest model
/// has some 20 kB.
const LONGEST_TEXT: u64 = 16 << 20;

/// Length limit of a line of a recording (bytes): a step of 1024 programs with 256 regions each has
/// some 50 MB.
const LONGEST_LINE: usize = 64 << 20;

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

/// The lines of a file of any length; the length of each line is limited.
pub(crate) fn lines(path: &Path) -> io::Result<Lines> {
    Ok(Lines { file: BufReader::new(program::open(path)?), line: 0 })
}

/// See [`lines`].
#[derive(Debug)]
pub(crate) struct Lines {
    file: BufReader<File>,
    /// Bytes read of the current line.
    line: usize,
}

impl Read for Lines {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(into)?;
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for Lines {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.line > LONGEST_LINE {
            let said = format!("a line is longer than {LONGEST_LINE} bytes, the most accepted");
            return Err(io::Error::new(io::ErrorKind::InvalidData, said));
        }
        self.file.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        let taken = self.file.buffer().get(..amount).unwrap_or_default();
        self.line = match taken.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => taken.len() - end - 1,
            None => self.line + taken.len(),
        };
        self.file.consume(amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_end_is_an_error_and_many_lines_are_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "short\n".repeat(100_000)).unwrap();
        assert_eq!(lines(file.path()).unwrap().lines().map(Result::unwrap).count(), 100_000);
        // The file is sparse: it takes no room on disk, and none in memory beyond the limit.
        file.as_file().set_len(1 << 40).unwrap();
        let said = lines(file.path()).unwrap().split(b'\n').find_map(Result::err).unwrap();
        assert!(said.to_string().contains("longer than"), "{said}");
    }
}
