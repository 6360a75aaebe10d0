//! A lock whose sections a worker on a dedicated core executes.
//!
//! Paper 002, section 5.4: remote core locking. The data stay in the cache of that core, which can
//! be fast all the time.

use dimmer_runtime::Cores;
use lock_api::Mutex;

use crate::raw::RawMutex;

/// Data that a worker on a dedicated core works on, for threads that wait meanwhile.
///
/// A section that cannot be moved (from a worker, from more than 64 threads at a time, if the
/// worker has ended or is long at other work, or without cores) is executed by its caller, under a
/// mutex that all sections take. On the worker its line stays in that core's cache.
///
/// Each thread has a cache line of its own to the worker, which brings the section and takes back
/// its result, so answers are not collected for several threads as in ffwd: each is written to the
/// line that its owner waits for.
///
/// ```
/// use dimmer_locks::Delegated;
///
/// // Without a dedicated core, the caller executes the section.
/// let list = Delegated::new(None, vec![1, 2]);
/// let length = list.run(|list| {
///     list.push(3);
///     list.len()
/// });
/// assert_eq!(length, 3);
/// ```
///
/// A section must not run another one on the same data: it would wait for itself.
#[derive(Debug)]
pub struct Delegated<'a, T> {
    cores: Option<&'a Cores>,
    data: Mutex<RawMutex, T>,
}

impl<'a, T: Send> Delegated<'a, T> {
    /// Data for the worker of these cores. With several, threads are spread over them, so the data
    /// move from core to core: one core is best.
    #[must_use]
    pub const fn new(cores: Option<&'a Cores>, data: T) -> Self {
        Self { cores, data: Mutex::new(data) }
    }

    /// Runs a section on the data, and returns its result. A panic of the section continues here,
    /// and the data stay usable.
    ///
    /// # Cost
    /// A cache-line round trip, if the closure and its result have at most 48 bytes less a pointer.
    pub fn run<R: Send>(&self, section: impl FnOnce(&mut T) -> R + Send) -> R {
        let work = || section(&mut self.data.lock());
        match self.cores {
            Some(cores) => cores.delegate(work),
            None => work(),
        }
    }

    /// The data.
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}
