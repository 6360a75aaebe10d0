//! Programs that give up what hooks use: time stamps, or system calls.
//!
//! Hooks do without from before the program makes the system call for that. If the call fails, they
//! go on as before.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::ledger::{LedgerError, NoRoom};
use crate::process::{ONLY_COUNTS, RESTRICTED};

/// What a program gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// Reading time stamps.
    TimeStamps,
    /// Some system calls, by a filter, or most of them and time stamps, by the strict mode of
    /// seccomp. Hooks then make no system call that the program does not make itself.
    SystemCalls,
}

/// The number of reasons to make no system calls for the ledger.
static NO_CALLS: AtomicU32 = AtomicU32::new(0);

/// Something to do without, as long as there is a reason.
struct Lack {
    reasons: &'static AtomicU32,
    /// What each reason adds to `reasons`.
    step: u32,
    /// Whether one of the reasons stays for good.
    is_final: AtomicBool,
}

/// Time stamps, and system calls for the ledger.
static LACKS: [Lack; 2] = [Lack::new(&ONLY_COUNTS, RESTRICTED), Lack::new(&NO_CALLS, 1)];

impl Lack {
    const fn new(reasons: &'static AtomicU32, step: u32) -> Self {
        Self { reasons, step, is_final: AtomicBool::new(false) }
    }

    fn begin(&self) {
        // Ordering: SeqCst, before the system call that restricts the process, which comes next.
        // Calls read it without order: one that has begun returns normally.
        self.reasons.fetch_add(self.step, Ordering::SeqCst);
    }

    /// Ends what [`Self::begin`] has begun. At most one reason stays, so that the number never
    /// overflows.
    fn end(&self, stays: bool) {
        if !stays || self.is_final.swap(true, Ordering::Relaxed) {
            self.reasons.fetch_sub(self.step, Ordering::Relaxed);
        }
    }
}

impl GivenUp {
    fn lacks(self) -> &'static [Lack] {
        match self {
            Self::TimeStamps => &LACKS[..1],
            Self::SystemCalls => &LACKS,
        }
    }
}

/// Makes a system call by which the program gives something up; `has_given_up` decides by the
/// result whether it has. No hooked call that begins meanwhile, or afterwards if it has, uses that:
/// no time stamps are read, no return addresses taken off the stack, no memory reserved. Calls
/// under way return normally. Async-signal-safe.
pub fn giving_up<T>(
    what: GivenUp,
    call: impl FnOnce() -> T,
    has_given_up: impl FnOnce(&T) -> bool,
) -> T {
    what.lacks().iter().for_each(Lack::begin);
    let result = call();
    let stays = has_given_up(&result);
    what.lacks().iter().for_each(|lack| lack.end(stays));
    result
}

/// Notes that this process has given something up already.
pub fn has_given_up(what: GivenUp) {
    giving_up(what, || (), |()| true);
}

/// Whether the program has restricted its system calls, or is doing so. Then hooks make no system
/// call that the program does not make itself.
#[must_use]
pub fn is_restricted() -> bool {
    NO_CALLS.load(Ordering::Relaxed) > 0
}

/// Fails if no system calls may be made for the ledger.
pub(crate) fn unrestricted() -> Result<(), LedgerError> {
    if is_restricted() { Err(LedgerError::NoRoom(NoRoom::Restricted)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(lack: &Lack) -> u32 {
        lack.reasons.load(Ordering::Relaxed)
    }

    #[test]
    fn what_was_not_given_up_is_used_again() {
        static REASONS: AtomicU32 = AtomicU32::new(1);
        let lack = Lack::new(&REASONS, 2);
        lack.begin();
        // Two attempts at once, in two threads.
        lack.begin();
        assert_eq!(state(&lack), 5);
        lack.end(false);
        assert_eq!(state(&lack), 3);
        lack.end(false);
        assert_eq!(state(&lack), 1);
        for _ in 0..3 {
            lack.begin();
            lack.end(true);
            assert_eq!(state(&lack), 3);
        }
        lack.begin();
        lack.end(false);
        assert_eq!(state(&lack), 3);
    }
}
