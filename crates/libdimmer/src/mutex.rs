//! A mutex of `dimmer-locks` for C: with a strategy, and with checks of its owner.

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};

use dimmer_locks::lock_api::RawMutex as _;
use dimmer_locks::{Decorated, Paced, RawMcs, RawMutex, WaitingLock, auto};

use crate::made::{Content, Made, Wanted, thread, wanted};

/// A mutex with a strategy for the clocks and cores of its threads (docs/locks.md). What it
/// contains is not for use.
///
/// dimmer_mutex_init() or dimmer_mutex_init_mcs() makes it; it must not be copied or moved then.
/// Any thread may use it, but not in a signal handler. Strategies request clocks where the machine
/// takes requests (docs/pace.md); with `mgrt`, the owner goes to a CPU of
/// dimmer_pace_dedicate_fast().
#[derive(Debug)]
#[repr(C)]
pub struct Mutex {
    /// Not for use.
    pub own: [u64; 16],
}

/// What lies in a [`Mutex`].
pub(crate) struct Own {
    /// The number of the thread that has the lock; 0: none.
    owner: AtomicUsize,
    lock: Kind,
}

/// The lock itself.
enum Kind {
    Word(Decorated<RawMutex, Paced>),
    Queue(Decorated<RawMcs, Paced>),
}

/// An expression with the lock of an [`Own`], whichever it is.
macro_rules! with_lock {
    ($own:expr, $lock:ident => $result:expr) => {
        match &$own.lock {
            Kind::Word($lock) => $result,
            Kind::Queue($lock) => $result,
        }
    };
}

impl Content for Own {
    const MARK: u32 = 0x6469_6d6d;
}

/// The names of the strategies.
const NAMES: &CStr = c"auto, spin, mwait, futex, one, ownr, wait, dlgt, mgrt";

fn decorated<R: WaitingLock>(wanted: Wanted) -> Decorated<R, Paced> {
    match wanted {
        Wanted::Auto => Decorated::auto(auto::offers_without_clocks(), Paced),
        Wanted::Fixed(strategy) => Decorated::new(strategy, Paced),
    }
}

impl Own {
    const fn new(lock: Kind) -> Self {
        Self { owner: AtomicUsize::new(0), lock }
    }

    /// Whether the calling thread has the mutex.
    pub(crate) fn is_mine(&self) -> bool {
        // Relaxed: only the thread itself stores its number, and removes it.
        self.owner.load(Ordering::Relaxed) == thread()
    }

    /// Acquires the mutex for the calling thread, which does not have it.
    pub(crate) fn acquire(&self) {
        with_lock!(self, lock => lock.lock());
        self.owner.store(thread(), Ordering::Relaxed);
    }

    /// Releases the mutex, which the calling thread has.
    pub(crate) fn release(&self) {
        self.owner.store(0, Ordering::Relaxed);
        // SAFETY: the calling thread has it.
        with_lock!(self, lock => unsafe { lock.unlock() });
    }
}

/// The mutex, if there is one.
///
/// # Safety
/// `mutex` is NULL or refers to a `dimmer_mutex`.
pub(crate) unsafe fn content<'a>(mutex: *const Mutex) -> Option<&'a Own> {
    // SAFETY: the caller guarantees it.
    unsafe { Made::get(mutex) }
}

/// Makes a mutex that no thread has.
///
/// * `strategy`: `auto`, or one of paper 002: `spin`, `mwait`, `futex`, `one`, `ownr`, `wait`,
///   `dlgt`, `mgrt`; NULL is `auto`. With `auto`, the mutex chooses by its use.
///
/// Returns 0; EINVAL if `mutex` is NULL, or if there is no strategy of this name
/// (dimmer_mutex_strategies()); EAGAIN after an error in dimmer. Then the mutex was not made. A
/// lack of memory ends the program. The first mutex with `auto` takes about a millisecond.
///
/// # Safety
/// `mutex` is NULL or refers to memory of a `dimmer_mutex` that holds none. `strategy` is NULL or
/// ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_mutex_init(mutex: *mut Mutex, strategy: *const c_char) -> c_int {
    // SAFETY: the caller guarantees a text.
    let wanted = unsafe { wanted(strategy) };
    let make = || Some(Own::new(Kind::Word(decorated(wanted?))));
    // SAFETY: the caller guarantees the memory.
    unsafe { Made::put(mutex, make) }
}

/// Makes a fair mutex that no thread has: a queue (MCS). Threads get it in the order in which they
/// asked for it, and each waits for a cache line of its own.
///
/// All other functions and the results are those of a mutex of dimmer_mutex_init().
///
/// # Safety
/// As for dimmer_mutex_init().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_mutex_init_mcs(
    mutex: *mut Mutex,
    strategy: *const c_char,
) -> c_int {
    // SAFETY: the caller guarantees a text.
    let wanted = unsafe { wanted(strategy) };
    let make = || Some(Own::new(Kind::Queue(decorated(wanted?))));
    // SAFETY: the caller guarantees the memory.
    unsafe { Made::put(mutex, make) }
}

/// Ends a mutex. Its memory may hold another one then.
///
/// Returns 0; EBUSY if a thread has the mutex, which then stays; EINVAL if there is none.
///
/// # Safety
/// `mutex` is NULL or refers to a `dimmer_mutex`, and no thread is in a call with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_mutex_destroy(mutex: *mut Mutex) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { Made::<Own>::end(mutex, |own| with_lock!(own, lock => lock.is_locked())) }
}

/// Executes what the strategy has for a thread that starts. Each thread calls this once before it
/// uses the mutex, if the strategy is `one`, `ownr`, `wait`, `dlgt` or `mgrt`.
///
/// Returns 0; EINVAL if there is no mutex.
///
/// # Safety
/// `mutex` is NULL or refers to a `dimmer_mutex`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_mutex_start(mutex: *mut Mutex) -> c_int {
    // SAFETY: the caller guarantees it.
    let Some(own) = (unsafe { content(mutex) }) else { return libc::EINVAL };
    with_lock!(own, lock => lock.start());
    0
}

/// Acquires the mutex, and waits for it as its strategy does.
///
/// Returns 0; EDEADLK if the calling thread has it already; EINVAL if there is no mutex.
///
/// # Safety
/// `mutex` is NULL or refers to a `dimmer_mutex`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_mutex_lock(mutex: *mut Mutex) -> c_int {
    // SAFETY: the caller guarantees it.
    let Some(own) = (unsafe { content(mutex) }) else { return libc::EINVAL };
    if own.is_mine() {
        return libc::EDEADLK;
    }
    own.acquire();
    0
}

/// Acquires the mutex if no thread has it.
///
/// Returns 0; EBUSY if a thread has it, also if it is the calling one; EINVAL if there is no mutex.
///
/// # Safety
/// `mutex` is NULL or refers to a `dimmer_mutex`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_mutex_trylock(mutex: *mut Mutex) -> c_int {
    // SAFETY: the caller guarantees it.
    let Some(own) = (unsafe { content(mutex) }) else { return libc::EINVAL };
    if !with_lock!(own, lock => lock.try_lock()) {
        return libc::EBUSY;
    }
    own.owner.store(thread(), Ordering::Relaxed);
    0
}

/// Releases the mutex.
///
/// Returns 0; EPERM if the calling thread does not have it, because another one has it or none:
/// then nothing was changed; EINVAL if there is no mutex. A mutex whose owner has ended stays
/// locked.
///
/// # Safety
/// `mutex` is NULL or refers to a `dimmer_mutex`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_mutex_unlock(mutex: *mut Mutex) -> c_int {
    // SAFETY: the caller guarantees it.
    let Some(own) = (unsafe { content(mutex) }) else { return libc::EINVAL };
    if !own.is_mine() {
        return libc::EPERM;
    }
    own.release();
    0
}

/// The names of strategies that dimmer_mutex_init(), dimmer_mutex_init_mcs() and
/// dimmer_rwlock_init() accept, for messages: `auto, spin, ...`.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_mutex_strategies() -> *const c_char {
    NAMES.as_ptr()
}

#[cfg(test)]
mod tests {
    use dimmer_locks::Strategy;

    use super::*;

    #[test]
    fn all_strategies_are_named() {
        let names = Strategy::ALL.map(Strategy::name);
        let expected = ["auto"].iter().chain(&names).copied().collect::<Vec<_>>().join(", ");
        assert_eq!(NAMES.to_str(), Ok(expected.as_str()));
    }
}
