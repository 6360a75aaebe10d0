//! A mutex of `dimmer-locks` for C: with a strategy, and with checks of its owner.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use dimmer_locks::lock_api::RawMutex as _;
use dimmer_locks::{Decorated, Paced, RawMutex, Strategy, auto};

use crate::call::contained;

/// A mutex with a strategy for the clocks and cores of its threads (docs/locks.md). What it
/// contains is not for use.
///
/// dimmer_mutex_init() makes it; it must not be copied or moved then. Any thread may use it, but
/// not in a signal handler. Strategies request clocks where the machine takes requests
/// (docs/pace.md); with `mgrt`, the owner goes to a CPU of dimmer_pace_dedicate_fast().
#[derive(Debug)]
#[repr(C)]
pub struct Mutex {
    /// Not for use.
    pub own: [u64; 16],
}

/// What lies in a [`Mutex`].
#[repr(C)]
struct Content {
    /// [`MADE`], if it was initialised and not destroyed.
    made: AtomicU32,
    /// The number of the thread that has the lock; 0: none.
    owner: AtomicUsize,
    lock: Decorated<RawMutex, Paced>,
}

const _: () = assert!(size_of::<Content>() <= size_of::<Mutex>());
const _: () = assert!(align_of::<Content>() <= align_of::<Mutex>());

/// Memory that holds a mutex: a value that other memory is unlikely to have.
const MADE: u32 = 0x6469_6d6d;

/// The names of the strategies.
const NAMES: &CStr = c"auto, spin, mwait, futex, one, ownr, wait, dlgt, mgrt";

/// The number of the calling thread, from 1 on. No other thread of the process ever has it, and it
/// stays the same when the thread migrates.
fn thread() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(0) };
    }
    let number = NUMBER.get();
    if number != 0 {
        return number;
    }
    let number = THREADS.fetch_add(1, Ordering::Relaxed) + 1;
    NUMBER.set(number);
    number
}

/// The content, if there is a mutex.
///
/// # Safety
/// `mutex` is NULL or refers to a `dimmer_mutex`.
unsafe fn content<'a>(mutex: *const Mutex) -> Option<&'a Content> {
    // SAFETY: the first field of the content, and any bytes are a word.
    let made = unsafe { mutex.cast::<AtomicU32>().as_ref() }?;
    // Relaxed: programs order the use of a mutex after its initialisation.
    let is_made = made.load(Ordering::Relaxed) == MADE;
    // SAFETY: it was initialised.
    is_made.then(|| unsafe { &*mutex.cast::<Content>() })
}

/// Makes a mutex that no thread has.
///
/// * `strategy`: `auto`, or one of paper 002: `spin`, `mwait`, `futex`, `one`, `ownr`, `wait`,
///   `dlgt`, `mgrt`; NULL is `auto`. With `auto`, the mutex chooses by its use.
///
/// Returns 0; EINVAL if `mutex` is NULL, or if there is no strategy of this name
/// (dimmer_mutex_strategies()); EAGAIN if the system lacks memory or the like. Then the mutex was
/// not made. The first mutex with `auto` takes about a millisecond.
///
/// # Safety
/// `mutex` is NULL or refers to memory of a `dimmer_mutex` that holds none. `strategy` is NULL or
/// ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_mutex_init(mutex: *mut Mutex, strategy: *const c_char) -> c_int {
    let name = if strategy.is_null() {
        c"auto"
    } else {
        // SAFETY: the caller guarantees a text.
        unsafe { CStr::from_ptr(strategy) }
    };
    let make = || match name.to_str() {
        Ok("auto") => Some(Decorated::auto(auto::offers_without_clocks(), Paced)),
        Ok(name) => Strategy::named(name).map(|strategy| Decorated::new(strategy, Paced)),
        Err(_) => None,
    };
    let Some(lock) = contained(make) else { return libc::EAGAIN };
    let Some(lock) = lock.filter(|_| !mutex.is_null()) else { return libc::EINVAL };
    let made = Content { made: AtomicU32::new(MADE), owner: AtomicUsize::new(0), lock };
    // SAFETY: the memory of a mutex is as large, and the caller's.
    unsafe { mutex.cast::<Content>().write(made) };
    0
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
    let Some(own) = (unsafe { content(mutex) }) else { return libc::EINVAL };
    if own.lock.is_locked() {
        return libc::EBUSY;
    }
    own.made.store(0, Ordering::Relaxed);
    // SAFETY: it was initialised, and no other call uses it.
    unsafe { mutex.cast::<Content>().drop_in_place() };
    0
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
    own.lock.start();
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
    // Relaxed: only the thread itself stores its number, and removes it.
    if own.owner.load(Ordering::Relaxed) == thread() {
        return libc::EDEADLK;
    }
    own.lock.lock();
    own.owner.store(thread(), Ordering::Relaxed);
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
    if !own.lock.try_lock() {
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
    // Relaxed: only the thread itself stores its number, and removes it.
    if own.owner.load(Ordering::Relaxed) != thread() {
        return libc::EPERM;
    }
    own.owner.store(0, Ordering::Relaxed);
    // SAFETY: the calling thread has it.
    unsafe { own.lock.unlock() };
    0
}

/// The names that dimmer_mutex_init() accepts, for messages: `auto, spin, ...`.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_mutex_strategies() -> *const c_char {
    NAMES.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_strategies_are_named() {
        let names = Strategy::ALL.map(Strategy::name);
        let expected = ["auto"].iter().chain(&names).copied().collect::<Vec<_>>().join(", ");
        assert_eq!(NAMES.to_str(), Ok(expected.as_str()));
    }
}
