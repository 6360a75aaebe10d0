//! The processor's monitor-wait (UMWAIT, MONITORX) for words of other crates' locks.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

use super::ways;
use super::word::Word;

/// Whether the processor has a monitor-wait that programs may execute. The first call takes some
/// 100 us in a virtual machine.
pub fn is_available() -> bool {
    static CHOSEN: OnceLock<()> = OnceLock::new();
    CHOSEN.get_or_init(ways::choose);
    ways::monitor().is_some()
}

/// Waits while the word is `value`, for some microseconds at most, or until a write to its cache
/// line. Returns at once, and false, if [`is_available`] has not been called or is false.
///
/// * `value`: below 2^31, as all values of the word.
#[inline]
pub fn wait(word: &AtomicU32, value: u32) -> bool {
    Word::of(word).monitor_wait(|now| now == value)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_wait_ends_without_a_change_and_with_one() {
        let word = AtomicU32::new(1);
        let has = is_available();
        let begin = Instant::now();
        assert_eq!(wait(&word, 1), has);
        assert!(begin.elapsed() < Duration::from_secs(10));
        word.store(2, Ordering::Relaxed);
        assert_eq!(wait(&word, 1), has);
    }
}
