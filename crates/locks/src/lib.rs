//! Locks whose threads act on the clocks and cores that they run on.
//!
//! Implements the decorated locks of paper 002 (sections 3.2 and 4.2 to 4.3), and its delegation of
//! critical sections (section 5.4). `docs/locks.md` has what they cost.
//!
//! From the bottom up:
//!
//! | module | what |
//! |---|---|
//! | [`waiting`] | how a thread waits for a word: spinning, monitor-wait, futex |
//! | [`raw`], [`mcs`] | the locks without decoration: a word; a queue of threads |
//! | [`condvar`], [`barrier`] | conditions for any lock here; a barrier |
//! | [`clocks`] | what a decorated lock asks of a thread's clock and core |
//! | [`decorated`], [`auto`] | the decoration, by a strategy of `policy::boost`; its choice |
//! | [`delegated`], [`combining`] | critical sections that another thread executes |
//! | [`batched`], [`pthread`] | to compare with: answers in groups; the C library's mutex |
//!
//! All are used through [`lock_api`], as those of `parking_lot` are:
//!
//! ```
//! use dimmer_locks::{Decorated, Mutex, RawMutex, Strategy, Unchanged};
//!
//! let plain = Mutex::new(1);
//! *plain.lock() += 1;
//!
//! let raw = Decorated::<RawMutex, _>::new(Strategy::Owner, Unchanged);
//! let decorated = lock_api::Mutex::from_raw(raw, 1);
//! *decorated.lock() += 1;
//! assert_eq!(*plain.lock(), *decorated.lock());
//! ```
//!
//! There is no poisoning: a panic in a section releases the lock. No lock can be dropped while a
//! thread has it or waits for it, because the thread borrows it:
//!
//! ```compile_fail,E0505
//! let lock = dimmer_locks::Mutex::new(1);
//! let guard = lock.lock();
//! drop(lock);
//! drop(guard);
//! ```
//!
//! Guards of decorated locks stay on the thread that has made the requests:
//!
//! ```compile_fail,E0277
//! fn is_send<T: Send>() {}
//! is_send::<lock_api::MutexGuard<'static, dimmer_locks::Decorated<
//!     dimmer_locks::RawMutex,
//!     dimmer_locks::Unchanged,
//! >, u32>>();
//! ```

pub mod auto;
pub mod barrier;
pub mod batched;
pub mod clocks;
pub mod combining;
pub mod condvar;
pub mod decorated;
pub mod delegated;
pub mod mcs;
pub mod pthread;
pub mod raw;
pub mod waiting;

pub use dimmer_policy::boost::{Act, Offers, Point, Speed, Strategy};
pub use lock_api;
pub use parking_lot::RawRwLock;

pub use barrier::Barrier;
pub use batched::Batched;
pub use clocks::{Clocks, Paced, Place, Recorder, Unchanged};
pub use combining::Combining;
pub use condvar::Condvar;
pub use decorated::Decorated;
pub use delegated::Delegated;
pub use mcs::RawMcs;
pub use raw::RawMutex;
pub use waiting::{Waiting, WaitingLock, Within};

/// A mutex of one word, without decoration.
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;
/// Its guard.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;
/// A fair mutex: threads get it in the order in which they asked for it.
pub type McsMutex<T> = lock_api::Mutex<RawMcs, T>;
/// A mutex with a strategy.
pub type DecoratedMutex<T, C> = lock_api::Mutex<Decorated<RawMutex, C>, T>;
/// A reader-writer lock without decoration: that of `parking_lot`.
pub type RwLock<T> = lock_api::RwLock<RawRwLock, T>;
/// A reader-writer lock with a strategy.
pub type DecoratedRwLock<T, C> = lock_api::RwLock<Decorated<RawRwLock, C>, T>;
