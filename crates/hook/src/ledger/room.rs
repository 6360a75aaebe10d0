//! How much memory a ledger may take, and how to reserve it.
//!
//! Nothing here raises a signal. A write beyond RLIMIT_FSIZE raises SIGXFSZ, so that limit is
//! checked before each write. (The C library makes the call `prlimit64` at each start, so no
//! sandbox lacks it.) Files are not closed by the C library's `close`, because POSIX makes that a
//! cancellation point.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::Access;
use rustix::process::{Resource, getrlimit};

use super::NoRoom;

/// One `SPARED`th of a file system's blocks and inodes stays free.
const SPARED: u64 = 4;

/// The zeros that memory is filled with.
static ZEROS: [u8; 1 << 14] = [0; 1 << 14];

/// A file that is closed by the bare system call.
#[derive(Debug)]
pub(super) struct Opened(ManuallyDrop<OwnedFd>);

impl Opened {
    pub(super) fn new(file: OwnedFd) -> Self {
        Self(ManuallyDrop::new(file))
    }
}

impl AsFd for Opened {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: the file is this value's own, and `ManuallyDrop` keeps it from being closed
        // again.
        unsafe { rustix::io::close(self.0.as_raw_fd()) };
    }
}

/// The type of tmpfs file systems, statfs(2).
const TMPFS: i64 = 0x0102_1994;

/// Checks whether a ledger may grow. On a file system in memory, at least a quarter has to stay
/// free for others. If the file `enough` exists, the run's ledgers may not grow.
pub(super) fn check(file: BorrowedFd<'_>, enough: &Path) -> Result<(), NoRoom> {
    let of = rustix::fs::fstatfs(file).map_err(|_| NoRoom::Refused)?;
    let is_short = |free: u64, all: u64| free.saturating_mul(SPARED) < all;
    let is_full = is_short(of.f_bavail, of.f_blocks) || is_short(of.f_ffree, of.f_files);
    if of.f_type == TMPFS && is_full {
        return Err(NoRoom::FileSystem);
    }
    if rustix::fs::access(enough, Access::EXISTS).is_ok() { Err(NoRoom::Run) } else { Ok(()) }
}

/// Writes all of `bytes` to a place of a file. From then on the file has memory there.
pub(crate) fn write(file: BorrowedFd<'_>, at: usize, mut bytes: &[u8]) -> Result<(), NoRoom> {
    let mut at = at as u64;
    let end = at + bytes.len() as u64;
    if getrlimit(Resource::Fsize).current.is_some_and(|most| end > most) {
        return Err(NoRoom::FileLimit);
    }
    while !bytes.is_empty() {
        let written = match rustix::io::pwrite(file, bytes, at) {
            Ok(0) | Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => {
                return Err(NoRoom::FileSystem);
            }
            Ok(written) => written,
            Err(error) if error == rustix::io::Errno::INTR => continue,
            Err(_) => return Err(NoRoom::Refused),
        };
        at += written as u64;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Fills a part of a file with zeros.
pub(super) fn reserve(file: BorrowedFd<'_>, from: usize, to: usize) -> Result<(), NoRoom> {
    let mut at = from;
    while at < to {
        let length = (to - at).min(ZEROS.len());
        write(file, at, &ZEROS[..length])?;
        at += length;
    }
    Ok(())
}

/// Checks whether this process may write a file of this length.
pub(crate) fn may_write(length: usize) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(most) if length as u64 > most => Err(rustix::io::Errno::FBIG.into()),
        _ => Ok(()),
    }
}
