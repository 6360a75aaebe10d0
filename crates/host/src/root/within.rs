//! Opens files under a root, and none outside of it.
//!
//! A made-up machine's directory may belong to a user other than the one who runs Dimmer. Symbolic
//! links and `..` are therefore resolved as in a chroot (`openat2` with `RESOLVE_IN_ROOT`, Linux
//! 5.6). None leads out of the directory, so when root restores such a machine, no file of the real
//! one changes.
//!
//! No function here waits for the other end of a FIFO, and none makes a terminal the controlling
//! terminal of the process.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, ResolveFlags};

/// Opens `path` below `directory`; the directory `/` is the real machine.
pub(super) fn open(directory: &Path, path: &str, flags: OFlags, mode: Mode) -> io::Result<File> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    if directory == Path::new("/") {
        let path = directory.join(path.trim_start_matches('/'));
        return Ok(File::from(rustix::fs::open(path, flags, mode)?));
    }
    let top = rustix::fs::open(
        directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let path = if path.trim_matches('/').is_empty() { "." } else { path };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Ok(File::from(rustix::fs::openat2(top, path, flags, mode, resolve)?))
}

/// Opens a file or directory as a reference, for queries and as a starting point. It cannot be
/// read.
pub(super) fn look(directory: &Path, path: &str) -> io::Result<File> {
    // The kernel rejects most flags beside this one, and `open` ignores them.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    if directory == Path::new("/") {
        let path = directory.join(path.trim_start_matches('/'));
        return Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?));
    }
    let top = rustix::fs::open(directory, flags | OFlags::DIRECTORY, Mode::empty())?;
    let path = if path.trim_matches('/').is_empty() { "." } else { path };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Ok(File::from(rustix::fs::openat2(top, path, flags, Mode::empty(), resolve)?))
}

/// The directory that contains `path`, and the name of `path` in it.
///
/// # Errors
/// Kind `InvalidInput` if the path does not end in a name; otherwise the kernel's error.
pub(super) fn parent<'a>(directory: &Path, path: &'a str) -> io::Result<(File, &'a str)> {
    let path = path.trim_end_matches('/');
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    if matches!(name, "" | "." | "..") {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok((look(directory, if above.is_empty() { "/" } else { above })?, name))
}

/// Makes the directory `path` and its missing parents, with mode 0755.
pub(super) fn make_directories(directory: &Path, path: &str) -> io::Result<()> {
    let mut end = 0;
    for part in path.split('/') {
        end += part.len();
        if !part.is_empty() {
            match make_directory(directory, path.get(..end).unwrap_or(path)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
        }
        end += 1;
    }
    Ok(())
}

/// Makes the directory `path` with mode 0755.
pub(super) fn make_directory(directory: &Path, path: &str) -> io::Result<()> {
    let (above, name) = parent(directory, path)?;
    Ok(rustix::fs::mkdirat(above, name, Mode::from_raw_mode(0o755))?)
}

/// Removes a file, or an empty directory.
pub(super) fn remove(directory: &Path, path: &str, is_directory: bool) -> io::Result<()> {
    let (above, name) = parent(directory, path)?;
    let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    Ok(rustix::fs::unlinkat(above, name, flags)?)
}

/// Gives the file `path` another name in its directory, which no file there has yet.
pub(super) fn rename(directory: &Path, path: &str, name: &str) -> io::Result<()> {
    let (above, before) = parent(directory, path)?;
    Ok(rustix::fs::renameat_with(&above, before, &above, name, RenameFlags::NOREPLACE)?)
}

/// The names in the directory `path`, in no particular order. Omits names that are not UTF-8.
pub(super) fn list(directory: &Path, path: &str) -> io::Result<Vec<String>> {
    let opened = open(directory, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(OwnedFd::from(opened))? {
        if let Ok(name) = entry?.file_name().to_str()
            && !matches!(name, "." | "..")
        {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}
