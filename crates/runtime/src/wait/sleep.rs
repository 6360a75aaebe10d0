//! Waiting in the kernel, by the word's futex.

use dimmer_host::cpuid::Cpuid;

use super::way::{IsWaitedFor, Way};
use super::word::Word;

/// Sleeping, for a tenth of a second at most.
pub(crate) const WAY: Way = Way { name: "futex", is_available, wait };

fn is_available(_: &Cpuid) -> bool {
    true
}

unsafe fn wait(word: &Word, is_waited_for: IsWaitedFor<'_>) -> Option<u32> {
    let now = word.value();
    if is_waited_for(now) { word.sleep_while(now) } else { Some(now) }
}
