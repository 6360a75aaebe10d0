//! Libraries within this program, which releases of one file have, and where they are unpacked: in
//! a directory that no other user can write, and again if the file there is not the one within.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use dimmer_host::cache;

use crate::preload;

/// Names and contents.
const WITHIN: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/within.rs"));

/// Bits of a mode that let others write.
const OTHERS_WRITE: u32 = 0o022;

/// The bit of a directory's mode by which others cannot rename or remove what is not theirs.
const STICKY: u32 = 0o1000;

/// The path of a library within this program, unpacked; `None` if there is none within.
///
/// # Errors
/// The system's error if no directory can take it.
pub(crate) fn unpacked(library: &str) -> Option<io::Result<PathBuf>> {
    let (_, content) = WITHIN.iter().find(|(name, _)| *name == library)?;
    Some(unpack(library, content, &places()))
}

/// The directories that may take it, the best first: for root one that all users can read, because
/// programs may give up rights and execute others; the user's cache; the user's own in memory,
/// which ends with the session; one of this user's among those of all users.
fn places() -> Vec<PathBuf> {
    let version = concat!("lib-", env!("CARGO_PKG_VERSION"));
    let user = rustix::process::geteuid().as_raw();
    let of_root = (user == 0).then(|| PathBuf::from("/var/cache/dimmer"));
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| Path::new(path).is_absolute());
    let runtime = runtime.map(|path| Path::new(&path).join("dimmer"));
    let shared = std::env::temp_dir().join(format!("dimmer-{user}"));
    let all = of_root.into_iter().chain(cache::directory()).chain(runtime).chain([shared]);
    all.map(|place| place.join(version)).collect()
}

/// Writes the library into the first place that takes it.
fn unpack(library: &str, content: &[u8], places: &[PathBuf]) -> io::Result<PathBuf> {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for place in places {
        match unpack_into(place, library, content) {
            Ok(path) => return Ok(path),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn unpack_into(place: &Path, library: &str, content: &[u8]) -> io::Result<PathBuf> {
    if !preload::can_be_listed(place) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a space or colon in its path"));
    }
    DirBuilder::new().recursive(true).mode(0o755).create(place)?;
    let found = place.symlink_metadata()?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    for directory in place.canonicalize()?.ancestors() {
        is_safe(&directory.metadata()?)?;
    }
    if rustix::fs::statvfs(place)?.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "mounted noexec"));
    }
    let path = place.join(library);
    if !holds(&path, content) {
        let mut prefix = OsString::from(library);
        prefix.push(".");
        let mut new = tempfile::Builder::new().prefix(&prefix).tempfile_in(place)?;
        new.write_all(content)?;
        // Programs with another user's rights load it too.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        new.as_file().set_permissions(mode)?;
        new.persist(&path)?;
    }
    Ok(path)
}

/// Whether no other user can put or rename a file there.
fn is_safe(directory: &std::fs::Metadata) -> io::Result<()> {
    let owner = directory.uid();
    let is_owned = owner == 0 || owner == rustix::process::geteuid().as_raw();
    let is_kept = directory.mode() & OTHERS_WRITE == 0 || directory.mode() & STICKY != 0;
    if is_owned && is_kept { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Whether a file is a regular one with this content.
fn holds(path: &Path, content: &[u8]) -> bool {
    let is_file = path.symlink_metadata().is_ok_and(|found| {
        found.is_file() && found.len() == content.len() as u64 && is_unshared(&found)
    });
    let mut found = Vec::with_capacity(content.len());
    is_file
        && File::open(path).and_then(|mut file| file.read_to_end(&mut found)).is_ok()
        && found == content
}

/// Whether it belongs to this user, and others cannot write it.
fn is_unshared(file: &std::fs::Metadata) -> bool {
    file.uid() == rustix::process::geteuid().as_raw() && file.mode() & OTHERS_WRITE == 0
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn it_is_written_once_and_again_if_it_differs() {
        let directory = tempfile::tempdir().unwrap();
        let places = [directory.path().join("dimmer/lib")];
        let unpack = || super::unpack("l.so", b"content", &places).unwrap();
        let path = unpack();
        assert_eq!(std::fs::read(&path).unwrap(), b"content");
        let inode = || path.metadata().unwrap().ino();
        let first = inode();
        assert_eq!((unpack(), inode()), (path.clone(), first));
        for other in ["another", "longer content"] {
            std::fs::write(&path, other).unwrap();
            unpack();
            assert_eq!(std::fs::read(&path).unwrap(), b"content");
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        unpack();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o644);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        unpack();
        assert!(path.symlink_metadata().unwrap().is_file());
    }

    #[test]
    fn where_others_may_write_it_goes_elsewhere() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| directory.path().join(name).join("lib");
        std::fs::create_dir_all(place("shared")).unwrap();
        std::fs::set_permissions(place("shared"), Permissions::from_mode(0o777)).unwrap();
        std::fs::create_dir_all(place("linked").parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(directory.path(), place("linked")).unwrap();
        std::fs::write(directory.path().join("file"), "").unwrap();
        let places = ["shared", "linked", "file", "with space", "with:colon", "own"].map(place);
        let path = unpack("l.so", b"content", &places).unwrap();
        assert_eq!(path, place("own").join("l.so"));
        let failed = unpack("l.so", b"content", &places[..1]).unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::PermissionDenied);
    }
}
