//! Measurements of several threads that the machine's other programs have not disturbed, as far as
//! there are some.
//!
//! Threads that have just slept get a CPU at once, and keep it for some milliseconds. So they sleep
//! before each short measurement, and one in which the kernel kept a thread off its CPU is
//! repeated.
//!
//! A thread that a lock has put to sleep waits for its CPU, too, when it is woken. So a lock that
//! puts threads to sleep is repeated more often, and of its turns, that with the fewest sleeps
//! counts.

use std::time::Duration;

use super::Place;
use crate::moves::REST;

/// Measurements for one result: of these, the least disturbed counts.
const TRIES: u32 = 6;
/// Up to this part of a measurement, waits for a CPU count as none: a thread that a lock has put to
/// sleep takes as long to get its CPU back.
const UNDISTURBED: f64 = 0.02;

/// A measurement of several threads.
pub(super) struct Measurement<T> {
    pub(super) value: T,
    /// How long it lasted.
    pub(super) lasted: Duration,
    /// How long its threads waited for a CPU, all together.
    pub(super) waited: Duration,
}

/// Sleeps, so that the kernel takes this thread for one that uses its CPU little.
pub(super) fn rest() {
    std::thread::sleep(REST);
}

/// The time that the calling thread has waited for a CPU; zero where the kernel does not count it.
pub(super) fn waited() -> Duration {
    let counted = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = counted.split(' ').nth(1).and_then(|waited| waited.parse().ok());
    Duration::from_nanos(waited.unwrap_or(0))
}

/// Measures until no thread has waited for a CPU, some times at most. Returns the least disturbed
/// measurement. Threads that share a CPU wait for each other: they are measured once.
///
/// # Errors
/// The first of `measure`.
pub(super) fn least_disturbed<T, E>(
    place: Place<'_>,
    threads: u32,
    mut measure: impl FnMut() -> Result<Measurement<T>, E>,
) -> Result<T, E> {
    let have_cpus = threads as usize <= place.cpus.len();
    let mut best = measure()?;
    for _ in 1..TRIES {
        if !have_cpus || best.waited <= best.lasted.mul_f64(UNDISTURBED) {
            break;
        }
        let next = measure()?;
        if next.waited < best.waited {
            best = next;
        }
    }
    Ok(best.value)
}

#[cfg(test)]
mod tests {
    use dimmer_host::root::Root;
    use dimmer_processor::units::CpuId;

    use super::*;

    /// Waits for a CPU of these milliseconds, in measurements of 100 ms.
    #[track_caller]
    fn check(waits: &[u64], threads: u32, expected: (u64, usize)) {
        let (root, cpus) = (Root::live(), [0, 1].map(CpuId::new));
        let place = Place { root: &root, cpus: &cpus };
        let mut tries = 0;
        let measure = || {
            tries += 1;
            let waited = Duration::from_millis(waits[tries - 1]);
            let lasted = Duration::from_millis(100);
            Ok::<_, ()>(Measurement { value: waits[tries - 1], lasted, waited })
        };
        let value = least_disturbed(place, threads, measure).unwrap();
        assert_eq!((value, tries), expected);
    }

    #[test]
    fn a_disturbed_measurement_is_repeated_and_the_best_counts() {
        check(&[0], 2, (0, 1));
        check(&[50, 2], 2, (2, 2));
        check(&[50, 30, 40, 45, 60, 70], 2, (30, 6));
        check(&[50], 3, (50, 1));
    }
}
