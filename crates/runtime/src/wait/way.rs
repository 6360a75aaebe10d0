//! What a way to wait for a word is. One file has each; `ways` lists them.

use dimmer_host::cpuid::Cpuid;

use super::word::Word;

/// Whether a value of the word is waited for to change.
pub(crate) type IsWaitedFor<'a> = &'a dyn Fn(u32) -> bool;

/// The longest wait by a monitor, in ticks of the time-stamp counter: 5 to 10 us. It is also the
/// delay with which a worker that waits for one thread's line sees another thread's. A guess.
pub(crate) const MONITOR_TICKS: u32 = 20_000;

/// A way to wait until a word changes.
#[derive(Debug)]
pub(crate) struct Way {
    /// Its name, for tests and people.
    #[cfg_attr(any(not(test), loom), expect(dead_code, reason = "tests print it"))]
    pub(crate) name: &'static str,
    /// Whether a processor has what it takes.
    pub(crate) is_available: fn(&Cpuid) -> bool,
    /// Waits for a bounded time while the function is true for the word's value. Returns the value
    /// for which it is not, if it has seen one. `None`: the time is over, or there was a write, or
    /// neither; the caller looks again. A write between the first look and the wait ends the wait.
    ///
    /// Touches neither `errno` nor anything else in thread-local storage.
    ///
    /// # Safety
    /// The processor has what it takes.
    pub(crate) wait: unsafe fn(&Word, IsWaitedFor<'_>) -> Option<u32>,
}
