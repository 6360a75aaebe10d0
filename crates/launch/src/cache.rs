//! What commands cache between runs besides models ([`dimmer_host::cache`]), in the user's own
//! directories.

use std::fs::{File, Metadata, Permissions};
use std::hash::Hasher as _;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Once;

use dimmer_host::{bounded_file, cache};
use dimmer_processor::class::InstructionClass;
use rustix::fs::{FlockOperation, Mode, OFlags};
use siphasher::sip::SipHasher13;

/// Size limit of the cache, not counting what the current command adds (bytes). A guess: two
/// thousand scans, since the scan of a library takes 30 KB on average.
const MOST_CACHED: u64 = 64 << 20;

/// Size limit of a cached file that is not one of lines (bytes).
const LONGEST: u64 = 16 << 20;

/// The directory of cached scans; `None` without a home directory.
#[must_use]
pub fn scans() -> Option<PathBuf> {
    Some(cache::directory()?.join("scan"))
}

/// The directory of cached simulations; `None` without a home directory.
#[must_use]
pub fn studies() -> Option<PathBuf> {
    Some(cache::directory()?.join("study"))
}

/// The directory of cached choices of functions; `None` without a home directory.
pub(crate) fn choices() -> Option<PathBuf> {
    Some(cache::directory()?.join("run"))
}

/// The directory of cached hook plans for functions with instructions of these classes; creates it.
/// `None` if it cannot be created.
pub(crate) fn plans(classes: &[InstructionClass]) -> Option<PathBuf> {
    let classes: Vec<&str> = classes.iter().map(|class| class.name()).collect();
    let version = concat!(env!("CARGO_PKG_VERSION"), "-10");
    let plans = cache::directory()?.join("plan").join(version).join(classes.join("+"));
    make_room();
    std::fs::create_dir_all(&plans).ok().map(|()| plans)
}

/// Caches a result in a file. If that fails, the only effect is that the next run computes the
/// result again.
pub fn keep(path: &Path, content: &str) {
    make_room();
    let _ = replace(path, content);
}

/// Caches a line of a file, as [`append`] adds it. If that fails, the only effect is that the next
/// run computes the line again.
pub fn keep_line(path: &Path, heading: &str, line: &str) {
    make_room();
    let _ = append(path, heading, line);
}

/// Reads a cached file.
///
/// # Errors
/// If there is none, or it is longer than 16 MiB.
pub fn read(path: &Path) -> io::Result<String> {
    bounded_file::read_to_string(path, LONGEST).map_err(io::Error::other)
}

/// Reads a cached file that belongs to this user. Files of other users, who may share the home
/// directory, decide nothing here.
///
/// # Errors
/// As [`read()`], and if it belongs to another user or is no regular file.
pub fn read_own(path: &Path) -> io::Result<String> {
    check_own(&path.metadata()?)?;
    read(path)
}

/// Reads a cached file of lines that belongs to this user, of any length. What is not text in it,
/// perhaps because it is damaged, is replaced by U+FFFD.
///
/// # Errors
/// If there is none, or it belongs to another user or is no regular file.
pub fn read_lines(path: &Path) -> io::Result<String> {
    check_own(&path.metadata()?)?;
    let bytes = bounded_file::read(path, u64::MAX).map_err(io::Error::other)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Checks that a file is regular and belongs to this user.
fn check_own(file: &Metadata) -> io::Result<()> {
    let is_own = file.uid() == rustix::process::geteuid().as_raw();
    if is_own && file.is_file() { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// A digest of these parts that is the same with every build of this program: files on disk are
/// named by it. Not for secrets: its key is known.
pub fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut hasher = SipHasher13::new();
    for part in parts {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part);
    }
    hasher.finish()
}

/// Evicts the least recently used entries if the cache is over its limit. Runs once per command.
fn make_room() {
    static MADE: Once = Once::new();
    MADE.call_once(|| drop(cache::directory().map(|cache| cache::bound(&cache, MOST_CACHED))));
}

/// Replaces the content of a file and creates its directory if necessary. A concurrent reader gets
/// the old or the new content.
///
/// # Errors
/// If the file cannot be written. It has its old content then.
pub fn replace(path: &Path, content: &str) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory)?;
    let mut prefix = path.file_name().unwrap_or_default().to_owned();
    prefix.push(".");
    // As for any new file, the process's mask restricts who may read it.
    let mode = Permissions::from_mode(0o666);
    let mut new =
        tempfile::Builder::new().prefix(&prefix).permissions(mode).tempfile_in(directory)?;
    new.write_all(content.as_bytes())?;
    new.persist(path)?;
    Ok(())
}

/// Adds a line to a file, below this heading if the file is new, and creates its directory if
/// necessary. Other processes may add lines at the same time. If the last line is not complete,
/// perhaps because the disk was full, it stays so, and the new line is below it.
///
/// # Errors
/// If the file cannot be written, belongs to another user or is no regular file. A part of the line
/// may be in it then.
pub fn append(path: &Path, heading: &str, line: &str) -> io::Result<()> {
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    // Without NONBLOCK, opening a FIFO might block. As for any new file, the process's mask
    // restricts who may read it.
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(0o666))?);
    check_own(&file.metadata()?)?;
    // Released when the file is closed.
    rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive))?;
    let start = match file.metadata()?.len() {
        0 => format!("{heading}\n"),
        length if is_newline(&file, length - 1)? => String::new(),
        _ => "\n".to_owned(),
    };
    file.write_all(format!("{start}{line}\n").as_bytes())
}

/// Whether the byte at this offset ends a line.
fn is_newline(file: &File, at: u64) -> io::Result<bool> {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    Ok(byte == *b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_several_threads_are_below_one_heading() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new").join("lines");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    (0..50)
                        .for_each(|line| append(path, "H", &format!("{thread} {line}")).unwrap());
                });
            }
        });
        let text = read_lines(&path).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.remove(0), "H");
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), 200);
    }

    #[test]
    fn a_line_that_is_not_complete_stays_and_what_is_no_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lines");
        std::fs::write(&path, b"H\n\xff to").unwrap();
        append(&path, "H", "new").unwrap();
        append(&path, "H", "other").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"H\n\xff to\nnew\nother\n");
        assert_eq!(read_lines(&path).unwrap(), "H\n\u{fffd} to\nnew\nother\n");
        let fifo = directory.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        append(&fifo, "H", "new").unwrap_err();
        read_lines(&fifo).unwrap_err();
    }

    #[test]
    fn nothing_is_left_of_a_file_that_cannot_be_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept");
        replace(&path, "one").unwrap();
        replace(&path, "other").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "other");
        let plain = directory.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        let mode = |path: &Path| path.metadata().unwrap().mode();
        assert_eq!(mode(&path), mode(&plain));
        std::fs::remove_file(plain).unwrap();
        let occupied = directory.path().join("directory");
        std::fs::create_dir_all(occupied.join("full")).unwrap();
        replace(&occupied, "text").unwrap_err();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn digests_are_the_same_with_every_build() {
        // Of the reference implementation of SipHash-1-3 with a key of zeros.
        assert_eq!(digest([b"ab".as_slice(), b"c"]), digest([b"ab".as_slice(), b"c"]));
        assert_ne!(digest([b"ab".as_slice(), b"c"]), digest([b"a".as_slice(), b"bc"]));
        assert_eq!(format!("{:016x}", digest([])), "d1fba762150c532c");
    }
}
