//! The end of the process's first thread.
//!
//! A process ends when `main` returns, or when its last thread ends. A program whose first thread
//! ends by pthread_exit(3) or by exit(2) relies on the latter, and a worker would keep its process
//! for ever. So workers look whether only threads of this crate are left, and end as well: the C
//! library then calls exit(3), as it does without this crate.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use rustix::fs::{Mode, OFlags, RawDir};

use crate::arch::system_call;
use crate::signals;
use crate::spawn::our_threads;

/// Where the kernel stores 0 when the first thread ends (`CLONE_CHILD_CLEARTID`); null if unknown.
/// It is in the C library's data of that thread, which exist as long as the process.
static CLEARED: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Call on the first thread of the process: workers see its end. On other threads, and on a kernel
/// that does not tell the address (`CONFIG_CHECKPOINT_RESTORE`), nothing changes.
pub(crate) fn note() {
    if rustix::thread::gettid() != rustix::process::getpid() {
        return;
    }
    HAS_SURVIVOR.store(false, Ordering::Relaxed);
    // Valgrind does not know that the kernel writes here, and would take what was never written for
    // an error of the program's.
    let mut cleared: *mut AtomicU32 = ptr::null_mut();
    let place = (&raw mut cleared).expose_provenance().cast_signed() as i64;
    let arguments = [libc::PR_GET_TID_ADDRESS.into(), place, 0, 0, 0, 0];
    // SAFETY: the kernel writes one address, to a place for one.
    if unsafe { system_call(libc::SYS_prctl, arguments) } == 0 {
        CLEARED.store(cleared, Ordering::Relaxed);
    }
}

/// Whether another thread of the program was there after the first one's end.
static HAS_SURVIVOR: AtomicBool = AtomicBool::new(false);

/// Call before the calling thread, which is at home, ends by exit(2).
pub fn note_exit() {
    // Without threads of this crate, the kernel alone decides.
    if our_threads() > 0 && rustix::thread::gettid() == rustix::process::getpid() {
        note_survivor();
    }
}

/// Whether another thread of the program is there beside the first one.
fn note_survivor() -> Option<bool> {
    let is_there = threads()? > 1 + our_threads();
    if is_there {
        HAS_SURVIVOR.store(true, Ordering::Relaxed);
    }
    Some(is_there)
}

/// Whether no thread of the program is left. Costs a load as long as the first thread exists. A
/// sandbox may forbid what comes after that.
pub(crate) fn is_program_over() -> bool {
    // SAFETY: null, or the address that the kernel has named, in memory that is never freed.
    let cleared = unsafe { CLEARED.load(Ordering::Relaxed).as_ref() };
    let has_ended = cleared.is_some_and(|thread| thread.load(Ordering::Relaxed) == 0);
    // The first thread counts as long as the process exists.
    has_ended && note_survivor() == Some(false)
}

/// For the end of a thread of this crate, when no thread of the program is left. `mask` is that of
/// the program's threads.
pub(crate) fn end_with_program(mask: &signals::Mask) {
    // The status of a process is that of its last thread, since Linux 5.18. If that was the first
    // one, which then ended by exit(2), this thread has to end with its status.
    let is_first = !HAS_SURVIVOR.load(Ordering::Relaxed);
    if let Some(status @ 1..) = exit_status().filter(|_| is_first) {
        // SAFETY: the C library ends threads likewise. Nothing waits for this one.
        unsafe { system_call(libc::SYS_exit, [status, 0, 0, 0, 0, 0]) };
    }
    // The C library may call exit(3) after this, which runs the program's handlers.
    signals::set(mask);
}

/// The status that the first thread has ended with, if `/proc` is there.
fn exit_status() -> Option<i64> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let stat = rustix::fs::open(c"/proc/self/stat", flags, Mode::empty()).ok()?;
    let mut text = [0; 1024];
    let length = rustix::io::read(stat, &mut text).ok()?;
    status_in(std::str::from_utf8(text.get(..length)?).ok()?)
}

/// Field 52 of the file, `exit_code`: see proc_pid_stat(5).
fn status_in(stat: &str) -> Option<i64> {
    // The name, field 2, may contain any characters.
    let (_, from_state) = stat.rsplit_once(") ")?;
    let waited: i64 = from_state.split_ascii_whitespace().nth(52 - 3)?.parse().ok()?;
    Some(waited >> 8)
}

/// Number of threads of the process, if `/proc` is there; a first thread that has ended counts.
pub fn threads() -> Option<usize> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let tasks = rustix::fs::open(c"/proc/self/task", flags, Mode::empty()).ok()?;
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(tasks, &mut buffer);
    let mut count = 0;
    while let Some(entry) = entries.next() {
        count += usize::from(entry.ok()?.file_name().to_bytes()[0] != b'.');
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_is_the_last_field() {
        let zeros = "0 ".repeat(52 - 4);
        assert_eq!(status_in(&format!("7 (a) b) Z {zeros}768\n")), Some(3));
        assert_eq!(status_in("7 (a) Z 0 0"), None);
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert_eq!(status_in(&own), Some(0));
    }
}
