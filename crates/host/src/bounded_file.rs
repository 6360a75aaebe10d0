//! Reads files that a user names, without trusting them.
//!
//! A path may lead to a FIFO, where a reader waits for a writer, or to a device that never ends.
//! Both are refused here. At most a limited number of bytes of a regular file is held in memory; a
//! longer file is refused.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use rustix::fs::{FileType, Mode, OFlags};

/// A file's device, its number, and when it was made, if the file system knows: another file may
/// get the number of one that was removed.
type Identity = (u64, u64, Option<SystemTime>);

fn identity(file: &Metadata) -> Identity {
    (file.dev(), file.ino(), file.created().ok())
}

/// The files that this process has read.
static READ: Mutex<BTreeSet<Identity>> = Mutex::new(BTreeSet::new());

/// Whether [`read`] has read this file in this process, by whatever path: what is to be written
/// must be another one.
#[must_use]
pub fn has_read(file: &Metadata) -> bool {
    READ.lock().unwrap_or_else(PoisonError::into_inner).contains(&identity(file))
}

/// Why a file was not read. Each message names the file and what is accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BoundedFileError {
    /// The system cannot open or read the file; the source says why.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The file is a directory, a device, a FIFO or a socket.
    #[error("{} is {found}; expected a regular file of at most {limit} bytes", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// Its type, with an article.
        found: &'static str,
        /// The greatest length accepted, in bytes.
        limit: u64,
    },
    /// The file is longer than the limit.
    #[error("{} is longer than {limit} bytes, the most accepted", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// The greatest length accepted, in bytes.
        limit: u64,
    },
    /// The file contains bytes that are not UTF-8, but text is expected.
    #[error("{} is not text: byte {at} is not UTF-8", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// Offset of the first byte that is not UTF-8.
        at: usize,
    },
}

/// Reads a regular file of at most `limit` bytes. Symbolic links are followed.
///
/// # Errors
/// [`BoundedFileError`], except [`BoundedFileError::Text`].
///
/// # Cost
/// Never waits for a writer or a terminal; holds at most `limit` + 1 bytes.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, BoundedFileError> {
    let unreadable = |source| BoundedFileError::Unreadable { path: path.to_owned(), source };
    let too_long = || BoundedFileError::Length { path: path.to_owned(), limit };
    // Without NONBLOCK, opening a FIFO that has no writer would block here.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| {
        // Only a socket exists and cannot be opened for this reason.
        if error == rustix::io::Errno::NXIO {
            return BoundedFileError::Kind { path: path.to_owned(), found: "a socket", limit };
        }
        unreadable(error.into())
    })?;
    let status = rustix::fs::fstat(&file).map_err(|error| unreadable(error.into()))?;
    let kind = FileType::from_raw_mode(status.st_mode);
    if kind != FileType::RegularFile {
        return Err(BoundedFileError::Kind { path: path.to_owned(), found: name(kind), limit });
    }
    // Do not trust the length: files below /proc report none, and other files may grow meanwhile.
    if u64::try_from(status.st_size).is_ok_and(|length| length > limit) {
        return Err(too_long());
    }
    let file = File::from(file);
    if let Ok(about) = file.metadata() {
        READ.lock().unwrap_or_else(PoisonError::into_inner).insert(identity(&about));
    }
    let mut bytes = Vec::new();
    let most = limit.saturating_add(1);
    file.take(most).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > limit {
        return Err(too_long());
    }
    Ok(bytes)
}

/// Reads a regular file of UTF-8 text of at most `limit` bytes, as [`read`] does.
///
/// # Errors
/// [`BoundedFileError`].
pub fn read_to_string(path: &Path, limit: u64) -> Result<String, BoundedFileError> {
    String::from_utf8(read(path, limit)?).map_err(|error| BoundedFileError::Text {
        path: path.to_owned(),
        at: error.utf8_error().valid_up_to(),
    })
}

/// The type of a file that is not regular, with an article.
const fn name(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a directory",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        _ => "no regular file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refuses(path: &Path, limit: u64, expected: &str) {
        let error = read_to_string(path, limit).unwrap_err();
        assert_eq!(error.to_string(), format!("{} {expected}", path.display()));
    }

    #[test]
    fn what_is_as_long_as_accepted_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "four").unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read(&link, 4).unwrap(), b"four");
        assert_eq!(read_to_string(&file, u64::MAX).unwrap(), "four");
        refuses(&file, 3, "is longer than 3 bytes, the most accepted");
    }

    #[test]
    fn a_file_that_does_not_say_its_length_is_read_up_to_the_limit() {
        let maps = Path::new("/proc/self/maps");
        assert!(read(maps, 1 << 24).is_ok_and(|bytes| !bytes.is_empty()));
        refuses(maps, 9, "is longer than 9 bytes, the most accepted");
    }

    #[test]
    fn what_is_no_regular_file_is_named_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        let socket = directory.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let accepted = "expected a regular file of at most 9 bytes";
        for (path, kind) in [
            (fifo.as_path(), "a FIFO"),
            (socket.as_path(), "a socket"),
            (directory.path(), "a directory"),
            (Path::new("/dev/zero"), "a character device"),
        ] {
            refuses(path, 9, &format!("is {kind}; {accepted}"));
        }
    }

    #[test]
    fn what_cannot_be_opened_or_is_no_text_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        let error = read(&file, 9).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot read {}", file.display()));
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.to_string(), "No such file or directory (os error 2)");
        std::fs::write(&file, b"text\xff").unwrap();
        refuses(&file, 9, "is not text: byte 4 is not UTF-8");
    }
}
