//! A reader-writer lock for C: with a strategy, and with checks of the threads that have it.

use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dimmer_locks::lock_api::RawRwLock as _;
use dimmer_locks::{Decorated, Paced, RawRwLock, auto};

use crate::made::{Content, Made, Wanted, thread, wanted};

/// A reader-writer lock with a strategy for the clocks and cores of its threads (docs/locks.md).
/// What it contains is not for use.
///
/// dimmer_rwlock_init() makes it; it must not be copied or moved then. Any thread may use it, but
/// not in a signal handler. A thread has it once at most, for reading or for writing. Readers that
/// overlap keep no writer out.
#[derive(Debug)]
#[repr(C)]
pub struct Rwlock {
    /// Not for use.
    pub own: [u64; 16],
}

/// What lies in a [`Rwlock`].
struct Own {
    /// No other lock of the process ever has this number.
    number: u64,
    /// The number of the thread that has the lock for writing; 0: none.
    writer: AtomicUsize,
    lock: Decorated<RawRwLock, Paced>,
}

impl Content for Own {
    const MARK: u32 = 0x6469_6d72;
}

thread_local! {
    /// The numbers of the locks that the thread has for reading.
    static READS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// How the calling thread has a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mine {
    No,
    Reads,
    Writes,
}

impl Own {
    /// `None` in the last destructors of a thread, where it cannot note what it reads.
    fn mine(&self) -> Option<Mine> {
        // Relaxed: only the thread itself stores its number, and removes it.
        if self.writer.load(Ordering::Relaxed) == thread() {
            return Some(Mine::Writes);
        }
        let reads = READS.try_with(|reads| reads.borrow().contains(&self.number)).ok()?;
        Some(if reads { Mine::Reads } else { Mine::No })
    }

    fn note_read(&self) {
        let _ = READS.try_with(|reads| reads.borrow_mut().push(self.number));
    }

    /// Notes that the thread reads no more.
    fn forget_read(&self) {
        let _ = READS.try_with(|reads| reads.borrow_mut().retain(|number| *number != self.number));
    }
}

/// Makes a reader-writer lock that no thread has.
///
/// * `strategy`: as for dimmer_mutex_init(), for readers and writers alike. With `auto`, the lock
///   chooses by the use that writers make of it. With strategies that spin, threads spin for some
///   microseconds, and sleep then.
///
/// Returns 0; EINVAL if `lock` is NULL, or if there is no strategy of this name
/// (dimmer_mutex_strategies()); EAGAIN after an error in dimmer. Then the lock was not made. A
/// lack of memory ends the program.
///
/// # Safety
/// `lock` is NULL or refers to memory of a `dimmer_rwlock` that holds none. `strategy` is NULL or
/// ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_rwlock_init(lock: *mut Rwlock, strategy: *const c_char) -> c_int {
    static LOCKS: AtomicU64 = AtomicU64::new(0);
    // SAFETY: the caller guarantees a text.
    let wanted = unsafe { wanted(strategy) };
    let make = || {
        let lock = match wanted? {
            Wanted::Auto => {
                Decorated::auto_around(RawRwLock::INIT, auto::offers_without_clocks(), Paced)
            }
            Wanted::Fixed(strategy) => Decorated::around(RawRwLock::INIT, strategy, Paced),
        };
        let number = LOCKS.fetch_add(1, Ordering::Relaxed);
        Some(Own { number, writer: AtomicUsize::new(0), lock })
    };
    // SAFETY: the caller guarantees the memory.
    unsafe { Made::put(lock, make) }
}

/// Ends a reader-writer lock. Its memory may hold another one then.
///
/// Returns 0; EBUSY if a thread has the lock, which then stays; EINVAL if there is none.
///
/// # Safety
/// `lock` is NULL or refers to a `dimmer_rwlock`, and no thread is in a call with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_rwlock_destroy(lock: *mut Rwlock) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { Made::<Own>::end(lock, |own| own.lock.is_locked()) }
}

/// Executes what the strategy has for a thread that starts, as dimmer_mutex_start().
///
/// Returns 0; EINVAL if there is no lock.
///
/// # Safety
/// `lock` is NULL or refers to a `dimmer_rwlock`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_rwlock_start(lock: *mut Rwlock) -> c_int {
    // SAFETY: the caller guarantees it.
    let Some(own) = (unsafe { Made::<Own>::get(lock) }) else { return libc::EINVAL };
    own.lock.start();
    0
}

/// Acquires the lock for reading, together with other threads that read.
///
/// Returns 0; EDEADLK if the calling thread has it already, for reading or for writing; EAGAIN in
/// the last destructors of a thread; EINVAL if there is no lock.
///
/// # Safety
/// `lock` is NULL or refers to a `dimmer_rwlock`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_rwlock_rdlock(lock: *mut Rwlock) -> c_int {
    // SAFETY: the caller guarantees it.
    let Some(own) = (unsafe { Made::<Own>::get(lock) }) else { return libc::EINVAL };
    match own.mine() {
        Some(Mine::No) => {}
        Some(_) => return libc::EDEADLK,
        None => return libc::EAGAIN,
    }
    own.lock.lock_shared();
    own.note_read();
    0
}

/// Acquires the lock for reading if no thread has it for writing or waits for that.
///
/// Returns 0; EBUSY if it cannot be acquired now, or if the calling thread has it already; EAGAIN
/// in the last destructors of a thread; EINVAL if there is no lock.
///
/// # Safety
/// `lock` is NULL or refers to a `dimmer_rwlock`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_rwlock_tryrdlock(lock: *mut Rwlock) -> c_int {
    // SAFETY: the caller guarantees it.
    let Some(own) = (unsafe { Made::<Own>::get(lock) }) else { return libc::EINVAL };
    let Some(mine) = own.mine() else { return libc::EAGAIN };
    if mine != Mine::No || !own.lock.try_lock_shared() {
        return libc::EBUSY;
    }
    own.note_read();
    0
}

/// Acquires the lock for writing, for the calling thread alone.
///
/// Returns 0; EDEADLK if the calling thread has it already, for reading or for writing; EINVAL if
/// there is no lock.
///
/// # Safety
/// `lock` is NULL or refers to a `dimmer_rwlock`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_rwlock_wrlock(lock: *mut Rwlock) -> c_int {
    // SAFETY: the caller guarantees it.
    let Some(own) = (unsafe { Made::<Own>::get(lock) }) else { return libc::EINVAL };
    if own.mine().is_some_and(|mine| mine != Mine::No) {
        return libc::EDEADLK;
    }
    own.lock.lock_exclusive();
    own.writer.store(thread(), Ordering::Relaxed);
    0
}

/// Acquires the lock for writing if no thread has it.
///
/// Returns 0; EBUSY if a thread has it, also if it is the calling one; EINVAL if there is no lock.
///
/// # Safety
/// `lock` is NULL or refers to a `dimmer_rwlock`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_rwlock_trywrlock(lock: *mut Rwlock) -> c_int {
    // SAFETY: the caller guarantees it.
    let Some(own) = (unsafe { Made::<Own>::get(lock) }) else { return libc::EINVAL };
    if !own.lock.try_lock_exclusive() {
        return libc::EBUSY;
    }
    own.writer.store(thread(), Ordering::Relaxed);
    0
}

/// Releases the lock, for reading or for writing, as the calling thread has it.
///
/// Returns 0; EPERM if the calling thread does not have it, because others have it or none: then
/// nothing was changed; EINVAL if there is no lock. A lock of a thread that has ended stays locked.
/// In the last destructors of a thread, nothing checks that it has the lock for reading.
///
/// # Safety
/// `lock` is NULL or refers to a `dimmer_rwlock`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_rwlock_unlock(lock: *mut Rwlock) -> c_int {
    // SAFETY: the caller guarantees it.
    let Some(own) = (unsafe { Made::<Own>::get(lock) }) else { return libc::EINVAL };
    match own.mine() {
        Some(Mine::Writes) => {
            own.writer.store(0, Ordering::Relaxed);
            // SAFETY: the calling thread has it for writing.
            unsafe { own.lock.unlock_exclusive() };
            0
        }
        Some(Mine::Reads) => {
            own.forget_read();
            // SAFETY: the calling thread has it for reading.
            unsafe { own.lock.unlock_shared() };
            0
        }
        // The thread's notes are gone. No thread has the lock for writing, so it is believed.
        None if own.lock.is_locked() && !own.lock.raw().is_locked_exclusive() => {
            // SAFETY: the calling thread has it for reading, as it says.
            unsafe { own.lock.unlock_shared() };
            0
        }
        Some(Mine::No) | None => libc::EPERM,
    }
}
