//! Programs that a user names: their files, and whether they run with another user's rights.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::bounded_file::{self, BoundedFileError};

/// Mode bits: set user or group on execution.
const SET_ID: u32 = 0o6000;
/// Mode bits: any of user, group and others may execute the file.
const EXECUTE: u32 = 0o111;

/// Why a name does not lead to a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// No directory of the search path has it.
    #[error("no program `{0}` in the directories of PATH")]
    NotInPath(String),
    /// The file does not exist.
    #[error("no program {}", .0.display())]
    NotThere(PathBuf),
    /// It is a directory, or has no execute permission.
    #[error("{} is not executable", .0.display())]
    NotExecutable(PathBuf),
}

/// The file that `name` means: the path itself if it contains a slash, otherwise the first
/// executable file in the directories of `path`, the value of `PATH`.
///
/// # Errors
/// [`ProgramError`]: no such file, or it is not executable.
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, ProgramError> {
    if name.as_encoded_bytes().contains(&b'/') {
        let file = PathBuf::from(name);
        return if is_executable(&file) {
            Ok(file)
        } else if file.exists() {
            Err(ProgramError::NotExecutable(file))
        } else {
            Err(ProgramError::NotThere(file))
        };
    }
    let directories = std::env::split_paths(path.unwrap_or_default());
    let mut files = directories.map(|directory| directory.join(name));
    let found = files.find(|file| is_executable(file));
    found.ok_or_else(|| ProgramError::NotInPath(name.to_string_lossy().into_owned()))
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.is_file() && found.mode() & EXECUTE != 0)
}

/// Whether a file, executed by this user, would run with the rights of another user or group. The
/// loader then ignores libraries from the environment.
#[must_use]
pub fn changes_rights(file: &Path) -> bool {
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    file.metadata().is_ok_and(|found| {
        let sets = |bit: u32| found.mode() & SET_ID & bit != 0;
        sets(0o4000) && found.uid() != user || sets(0o2000) && found.gid() != group
    })
}

/// Size limit of a program or library (bytes): the largest known ones have some 2 GB.
const LONGEST: u64 = 4 << 30;

/// Reads a whole program or library.
///
/// # Errors
/// [`BoundedFileError`]: not a regular file, not readable, or longer than 4 GiB.
pub fn read(file: &Path) -> Result<Vec<u8>, BoundedFileError> {
    bounded_file::read(file, LONGEST)
}

/// Opens a program for reading. Does not wait, and fails for anything but a regular file.
///
/// # Errors
/// The system's error; kind `InvalidInput` if the file is not regular.
pub fn open(file: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let opened = File::from(rustix::fs::open(file, flags, Mode::empty())?);
    if opened.metadata()?.is_file() {
        Ok(opened)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"))
    }
}

/// Reads the file from `offset` on. Returns the number of bytes read, 0 if reading fails.
#[must_use]
pub fn read_at(file: &File, offset: u64, into: &mut [u8]) -> usize {
    file.read_at(into, offset).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn first_executable_in_the_path_is_meant() {
        let home = tempfile::tempdir().unwrap();
        let file = |name: &str, mode: u32| {
            let path = home.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        file("one/tool", 0o644);
        let second = file("two/tool", 0o755);
        let path =
            std::env::join_paths([home.path().join("one"), home.path().join("two")]).unwrap();
        assert_eq!(find(OsStr::new("tool"), Some(&path)).unwrap(), second);
        let told = find(OsStr::new("tol"), Some(&path)).unwrap_err().to_string();
        assert_eq!(told, "no program `tol` in the directories of PATH");
        let told = find(home.path().join("one/tool").as_os_str(), None).unwrap_err();
        assert!(matches!(told, ProgramError::NotExecutable(_)));
        assert!(!changes_rights(&second));
        let rights = file("two/rights", 0o4755);
        let owner = std::os::unix::fs::chown(&rights, Some(1), None);
        if owner.is_ok() {
            std::fs::set_permissions(&rights, std::fs::Permissions::from_mode(0o4755)).unwrap();
            assert!(changes_rights(&rights));
        }
    }
}
