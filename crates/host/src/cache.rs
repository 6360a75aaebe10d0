//! Files that Dimmer keeps between runs in the user's own directories (XDG Base Directory
//! Specification): their paths, and the limit on their size.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};

use crate::cpuid::Identity;
use crate::machine::Machine;

/// The directory that the variable names, otherwise `usual` below the home directory; `None`
/// without a home directory.
#[must_use]
pub fn user_directory(variable: &str, usual: &str) -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    absolute(variable).or_else(|| Some(absolute("HOME")?.join(usual)))
}

/// Path of the user's stored model of this kind of machine, from a thorough or a quick measurement.
#[must_use]
pub fn model(machine: &Machine, quick: bool) -> Option<PathBuf> {
    let models = user_directory("XDG_STATE_HOME", ".local/state")?.join("dimmer");
    Some(models.join(model_name(machine, quick)))
}

/// Name of the file with the stored model of this kind of machine. Several machines may share a
/// home directory, so it has what the costs of wide SIMD code depend on: the processor, its
/// microcode, and the hypervisor.
#[must_use]
pub fn model_name(machine: &Machine, quick: bool) -> String {
    let Identity { vendor, family, model, stepping, .. } = &machine.identity;
    let plain = |text: &str| -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' };
        text.chars().map(plain).collect()
    };
    let microcode = plain(machine.microcode.as_deref().unwrap_or("unknown"));
    let hypervisor = plain(machine.hypervisor.as_deref().unwrap_or("metal"));
    let effort = if quick { "quick" } else { "full" };
    let vendor = plain(vendor);
    format!("model-{vendor}-{family}-{model}-{stepping}-{microcode}-{hypervisor}-{effort}.toml")
}

/// The cache directory, for data that can be computed again: scans, plans, choices. `None` without
/// a home directory.
#[must_use]
pub fn directory() -> Option<PathBuf> {
    Some(user_directory("XDG_CACHE_HOME", ".cache")?.join("dimmer"))
}

/// How many levels below a directory [`bound`] searches: one for the kind, one for the version, one
/// for the choice of instruction classes.
const DEEPEST: usize = 3;

/// Least size that a file counts for (bytes), because examining many small files takes time too: 5
/// us each, on a busy virtual machine with ext4. Files that count for 64 MiB are therefore examined
/// in 10 ms.
const LEAST: u64 = 32 << 10;

/// At most this many files are removed at once. Removing 14 000 took 12 s on a disk that other
/// processes kept busy (ext4), so this many take 0.2 s there.
const MOST_REMOVED: usize = 256;

/// Removes files below a directory until the rest takes at most `most_bytes`. Each file counts for
/// at least 32 KiB. The least recently read or written files go first, as far as the file system
/// records reads: most file systems do so once a day (mount(8), `relatime`).
///
/// A file that another process is about to write is new, and a file that another process reads
/// stays readable to that process. Links are neither followed nor removed. If another user owns the
/// directory, perhaps because the home directory is shared, nothing is removed.
///
/// # Errors
/// The directory does not exist, or another user owns it. A file that cannot be removed stays.
///
/// # Cost
/// One system call per file, a few microseconds. Removing takes longer, so one call removes at most
/// 256 files and the next call removes more.
pub fn bound(directory: &Path, most_bytes: u64) -> io::Result<()> {
    let opened = open(CWD, directory)?;
    if rustix::fs::fstat(&opened)?.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let (mut directories, mut files) = (vec![(opened, 0)], Vec::new());
    let mut place = 0;
    while place < directories.len() {
        look(&mut directories, place, &mut files);
        place += 1;
    }
    files.sort_unstable_by_key(|file| file.used);
    let mut bytes = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.bytes));
    for file in files.into_iter().take(MOST_REMOVED) {
        if bytes <= most_bytes {
            break;
        }
        let (directory, _) = &directories[file.directory];
        // Another process may remove the same file.
        let _ = rustix::fs::unlinkat(directory, &file.name, AtFlags::empty());
        bytes = bytes.saturating_sub(file.bytes);
    }
    Ok(())
}

/// A file below a directory.
struct File {
    /// Index of the file's own directory in the list of directories found.
    directory: usize,
    name: CString,
    /// Last read or write (s since 1970, ns; signed in the C library).
    used: (i64, i128),
    bytes: u64,
}

/// Adds the files and subdirectories of one directory to the lists.
fn look(directories: &mut Vec<(OwnedFd, usize)>, place: usize, files: &mut Vec<File>) {
    let (directory, depth) = &directories[place];
    let depth = depth + 1;
    let mut below = Vec::new();
    for entry in Dir::read_from(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Ok(found) = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => files.push(File {
                directory: place,
                name: name.to_owned(),
                used: (found.st_atime, found.st_atime_nsec.into())
                    .max((found.st_mtime, found.st_mtime_nsec.into())),
                bytes: found.st_size.unsigned_abs().max(LEAST),
            }),
            FileType::Directory if depth <= DEEPEST && !matches!(name.to_bytes(), b"." | b"..") => {
                below.extend(open(directory.as_fd(), name).map(|opened| (opened, depth)));
            }
            _ => {}
        }
    }
    directories.extend(below);
}

fn open(at: BorrowedFd<'_>, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

#[cfg(test)]
#[expect(clippy::print_stdout, reason = "tests say why they are skipped")]
mod tests {
    use std::fs::FileTimes;
    use std::time::{Duration, SystemTime};

    use super::*;

    /// Creates a file of `times_least` times [`LEAST`] bytes, last written `written` days ago and
    /// last read `read` days ago.
    fn write(path: &Path, times_least: u64, written: u64, read: u64) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = std::fs::File::create(path).unwrap();
        file.set_len(times_least * LEAST).unwrap();
        let ago = |days: u64| SystemTime::now() - Duration::from_secs(days * 24 * 3600);
        let times = FileTimes::new().set_modified(ago(written)).set_accessed(ago(read));
        file.set_times(times).unwrap();
    }

    /// Checks which files remain after a limit of `most_times` times [`LEAST`].
    #[track_caller]
    fn check(most_times: u64, expected: &[&str]) {
        let directory = tempfile::tempdir().unwrap();
        let (root, elsewhere) = (directory.path().join("kept"), directory.path().join("elsewhere"));
        write(&root.join("scan/1/written"), 10, 9, 9);
        write(&root.join("scan/1/read"), 10, 20, 1);
        write(&root.join("plan/1/heavy/small"), 0, 7, 7);
        write(&root.join("run/new.json.123"), 10, 0, 0);
        write(&elsewhere.join("old"), 100, 50, 50);
        std::os::unix::fs::symlink(&elsewhere, root.join("link")).unwrap();
        std::os::unix::fs::symlink(elsewhere.join("old"), root.join("run/link")).unwrap();
        bound(&root, most_times * LEAST).unwrap();
        let files = ["scan/1/written", "plan/1/heavy/small", "scan/1/read", "run/new.json.123"];
        let left = files.into_iter().filter(|file| root.join(file).exists());
        assert_eq!(left.collect::<Vec<_>>(), expected);
        assert!(root.join("link/old").exists() && root.join("run/link").exists());
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let [written, small, read, new] =
            ["scan/1/written", "plan/1/heavy/small", "scan/1/read", "run/new.json.123"];
        check(31, &[written, small, read, new]);
        check(30, &[small, read, new]);
        check(21, &[small, read, new]);
        check(20, &[read, new]);
        check(19, &[new]);
        check(0, &[]);
    }

    #[test]
    fn many_files_go_by_and_by() {
        let directory = tempfile::tempdir().unwrap();
        (0..600).for_each(|number| write(&directory.path().join(number.to_string()), 1, 1, 1));
        for left in [344, 88, 10, 10] {
            bound(directory.path(), 10 * LEAST).unwrap();
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), left);
        }
    }

    #[test]
    fn nothing_is_removed_of_other_users() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("kept");
        bound(&root, 0).unwrap_err();
        write(&root.join("run/file"), 1, 1, 1);
        if let Err(why) = std::os::unix::fs::chown(&root, Some(1), None) {
            return println!("SKIPPED: cannot give a directory away: {why}");
        }
        assert_eq!(bound(&root, 0).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(root.join("run/file").exists());
    }
}
