//! Waiting by looking at the word again and again, with `pause` in between.

use dimmer_host::cpuid::Cpuid;

use super::way::{IsWaitedFor, Way};
use super::word::Word;

/// Spinning.
pub(crate) const WAY: Way = Way { name: "spin", is_available, wait };

/// Iterations of the spinning loop between two readings of the clock.
const TURNS: u32 = if cfg!(all(test, loom)) { 1 } else { 64 };

fn is_available(_: &Cpuid) -> bool {
    true
}

unsafe fn wait(word: &Word, is_waited_for: IsWaitedFor<'_>) -> Option<u32> {
    spin(word, is_waited_for)
}

/// Looks [`TURNS`] times. Returns the first value that is not waited for.
#[inline]
pub(super) fn spin(word: &Word, is_waited_for: impl Fn(u32) -> bool) -> Option<u32> {
    for _ in 0..TURNS {
        let now = word.value();
        if !is_waited_for(now) {
            return Some(now);
        }
        std::hint::spin_loop();
    }
    None
}
