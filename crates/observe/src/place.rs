//! The directory of a run's ledgers. It lies in memory (tmpfs): hooked calls write to mapped files,
//! and such a write waits neither for a disk nor for memory, which was reserved.
//!
//! The observer holds a lock on its directory (flock(2)). The kernel releases the lock when the
//! process ends, however it ends. A directory of the same user without a lock was left by a killed
//! run: later runs and `dimmer restore` remove it. If its file [`KEPT_OFF`] lists threads that are
//! kept off cores, they first let these threads back.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use dimmer_hook::Names;
use dimmer_host::root::Root;
use dimmer_host::{bounded_file, exclusion};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open, statfs};
use rustix::process::geteuid;

/// Prefix of the directories' names.
const PREFIX: &str = "dimmer-run-";

/// The type of tmpfs file systems, statfs(2).
const TMPFS: i64 = 0x0102_1994;

/// Attempts to make a directory. Other runs look for directories without a lock, and may find a new
/// one before it is locked.
const ATTEMPTS: usize = 16;

/// A run's own directory, removed when this is dropped. If the process is killed, a later run or
/// `dimmer restore` removes it.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    /// The open directory, locked.
    _lock: File,
}

/// Why there is no place for ledgers.
#[derive(Debug, thiserror::Error)]
#[error("there is no place in memory for ledgers: {}", reasons.join("; "))]
pub struct NoPlace {
    /// Each place that was tried, with the reason why it failed.
    reasons: Vec<String>,
}

/// Directories where ledgers may lie, the best one first.
#[must_use]
pub fn places() -> Vec<PathBuf> {
    let named = ["XDG_RUNTIME_DIR", "TMPDIR"].into_iter().filter_map(std::env::var_os);
    let named = named.map(PathBuf::from).filter(|path| path.is_absolute());
    let mut places = vec![PathBuf::from("/dev/shm")];
    places.extend(named.chain([PathBuf::from("/tmp")]));
    places.dedup();
    places
}

/// Name of the file in a run's directory that lists the threads kept off cores, as
/// [`exclusion::written`] formats it. A file that is about to replace it has this name with a
/// suffix.
pub const KEPT_OFF: &str = "kept-off";

/// Maximum size of that file (bytes). A larger file is not read.
const LONGEST: u64 = 16 << 20;

/// Removes directories in these places that killed runs of this user have left. Lets threads back
/// that were kept off cores. Returns the paths that it removed.
///
/// # Errors
/// Never: a directory that cannot be removed stays.
pub fn remove_left_behind(root: &Root, places: &[PathBuf]) -> Vec<PathBuf> {
    let of_ours = |name: &OsStr| name.as_bytes().starts_with(PREFIX.as_bytes());
    let entries = places.iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten();
    let candidates = entries.filter(|entry| of_ours(&entry.file_name())).map(|entry| entry.path());
    let mut removed: Vec<PathBuf> = candidates.filter(|path| remove_unowned(root, path)).collect();
    removed.sort();
    removed
}

/// Removes a directory of this user that holds only a run's files and that no process has locked.
/// Returns whether it is gone.
fn remove_unowned(root: &Root, path: &Path) -> bool {
    let is_ours = |lock: &File| {
        lock.metadata().is_ok_and(|about| about.uid() == geteuid().as_raw())
            && fs::read_dir(path).is_ok_and(|mut names| names.all(|name| name.is_ok_and(is_of_run)))
    };
    let Ok(lock) = lock(path) else { return false };
    if !is_ours(&lock) {
        return false;
    }
    // A made-up machine has no threads.
    let kept_off = bounded_file::read_to_string(&path.join(KEPT_OFF), LONGEST);
    if let (true, Ok(kept_off)) = (root.is_live(), kept_off) {
        exclusion::let_back(root, &kept_off);
    }
    fs::remove_dir_all(path).is_ok()
}

/// Whether runs put such an entry into their directories. Another program's directory may happen to
/// have the prefix too.
fn is_of_run(entry: fs::DirEntry) -> bool {
    let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
    let is_kept_off = entry.file_name().as_bytes().starts_with(KEPT_OFF.as_bytes());
    !is_directory && (is_kept_off || Names::are_of_run(&entry.path()))
}

/// Opens a directory and locks it. Fails if another process holds the lock.
fn lock(path: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = File::from(open(path, flags, Mode::empty())?);
    flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
    Ok(directory)
}

impl Place {
    /// Makes a directory for files of a run besides ledgers: those that [`Names::are_of_run`]
    /// accepts.
    ///
    /// # Errors
    /// If no place in memory is writable.
    pub fn in_memory() -> Result<Self, NoPlace> {
        Self::new(&places())
    }

    /// Makes a directory in the first of these places where that succeeds.
    pub(crate) fn new(places: &[PathBuf]) -> Result<Self, NoPlace> {
        let mut reasons = Vec::new();
        for place in places {
            match Self::new_in(place) {
                Ok(made) => return Ok(made),
                Err(why) => reasons.push(format!("{}: {why}", place.display())),
            }
        }
        Err(NoPlace { reasons })
    }

    fn new_in(place: &Path) -> io::Result<Self> {
        let of = statfs(place)?;
        if of.f_type != TMPFS {
            return Err(io::Error::other("is no file system in memory (tmpfs)"));
        }
        if of.f_bavail.saturating_mul(4) < of.f_blocks {
            return Err(io::Error::other("has less than a quarter free"));
        }
        for _ in 0..ATTEMPTS {
            let own = Permissions::from_mode(0o700);
            let directory =
                tempfile::Builder::new().prefix(PREFIX).permissions(own).tempdir_in(place)?;
            let Ok(lock) = lock(directory.path()) else { continue };
            // Another run may have removed the directory before it was locked.
            if fs::metadata(directory.path()).is_ok() {
                return Ok(Self { path: directory.keep(), _lock: lock });
            }
        }
        Err(io::Error::other("other processes lock or remove what is made there"))
    }

    /// The directory's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // If it cannot be removed now, a later run removes it.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use dimmer_host::affinity;
    use dimmer_host::exclusion::{Kept, KeptOff};

    use super::*;

    /// A place in memory; `None` if there is none.
    #[expect(clippy::print_stdout, reason = "tests that cannot run here say so")]
    fn place() -> Option<tempfile::TempDir> {
        let made = tempfile::tempdir_in("/dev/shm").ok();
        let made = made.filter(|made| statfs(made.path()).is_ok_and(|of| of.f_type == TMPFS));
        if made.is_none() {
            println!("SKIPPED: there is no tmpfs at /dev/shm");
        }
        made
    }

    #[test]
    fn only_what_no_run_has_locked_is_removed() {
        let Some(parent) = place() else { return };
        let places = [parent.path().to_path_buf()];
        let running = Place::new(&places).unwrap();
        let killed = parent.path().join("dimmer-run-killed");
        fs::create_dir(&killed).unwrap();
        fs::write(killed.join("7-0.ledger"), "").unwrap();
        fs::write(killed.join(KEPT_OFF), "").unwrap();
        let others = parent.path().join("other");
        fs::create_dir(&others).unwrap();
        let precious = parent.path().join("dimmer-run-precious");
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("thesis.txt"), "").unwrap();
        std::os::unix::fs::symlink(&others, parent.path().join("dimmer-run-link")).unwrap();
        assert_eq!(remove_left_behind(&Root::live(), &places), std::slice::from_ref(&killed));
        assert!(!killed.exists() && others.exists() && precious.exists());
        let path = running.path().to_path_buf();
        assert!(path.exists());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        drop(running);
        assert!(!path.exists());
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "tests that cannot run here say so")]
    fn threads_that_a_killed_run_has_kept_off_cores_are_let_back() {
        let Some(parent) = place() else { return };
        let all = affinity::allowed().unwrap();
        let [first, .., last] = all.as_slice() else {
            println!("SKIPPED: needs two CPUs, and this process may run on one");
            return;
        };
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let root = Root::live();
        let killed = parent.path().join("dimmer-run-killed");
        fs::create_dir(&killed).unwrap();
        let note = |kept: &[Kept]| {
            fs::write(killed.join(KEPT_OFF), exclusion::written(&root, kept)).unwrap();
        };
        let others = &all[..all.len() - 1];
        let thread = child.id();
        KeptOff::new().keep_off_noted(&[thread], &[*last], |_| false, note);
        let may = || affinity::allowed_to(thread).unwrap();
        assert_eq!(may(), others);
        assert!(others.contains(first));
        let places = [parent.path().to_path_buf()];
        assert_eq!(remove_left_behind(&root, &places), std::slice::from_ref(&killed));
        assert_eq!(may(), all);
        // On a made-up machine, the file is ignored.
        fs::create_dir(&killed).unwrap();
        KeptOff::new().keep_off_noted(&[thread], &[*last], |_| false, note);
        assert_eq!(remove_left_behind(&Root::new("/made/up"), &places), [killed]);
        assert_eq!(may(), others);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_place_that_cannot_be_had_is_named_with_the_reason() {
        let missing = PathBuf::from("/nowhere");
        // A file system in memory in which no directory can be made.
        let refused = PathBuf::from("/proc");
        let error = Place::new(&[missing.clone(), refused]).unwrap_err().to_string();
        assert!(error.contains("/nowhere: No such file"), "{error}");
        assert!(error.contains("/proc: is no file system in memory"), "{error}");
        let Some(parent) = place() else { return };
        let made = Place::new(&[missing, parent.path().to_path_buf()]).unwrap();
        assert!(made.path().starts_with(parent.path()));
    }
}
