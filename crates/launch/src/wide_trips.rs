//! Measures what it takes to move a thread to wide CPUs and back, by its affinity.

use std::time::Instant;

use dimmer_host::affinity::{self, AffinityError};
use dimmer_probe::stats::Samples;
use dimmer_processor::units::CpuId;

/// Number of measured moves there and back: some milliseconds in all.
const MOVES: usize = 200;

/// The times of moves of a thread to the `wide` CPUs and back to the `narrow` ones (ns each).
///
/// # Errors
/// [`AffinityError`]: the kernel does not move the thread.
pub(crate) fn round_trips(wide: &[CpuId], narrow: &[CpuId]) -> Result<Samples, AffinityError> {
    let before = affinity::allowed()?;
    let trip = |_| {
        let begun = Instant::now();
        affinity::allow(wide)?;
        affinity::allow(narrow)?;
        Ok(begun.elapsed().as_nanos() as f64)
    };
    let trips: Result<Vec<f64>, AffinityError> =
        affinity::allow(narrow).and_then(|()| (0..MOVES).map(trip).collect());
    // The program inherits it.
    affinity::allow(&before)?;
    Ok(trips?.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::print_stdout, reason = "says that it was skipped")]
    fn a_thread_has_its_affinity_back_after_its_moves() {
        let all = affinity::allowed().unwrap();
        let [rest @ .., last] = all.as_slice() else { return };
        if rest.is_empty() {
            println!("SKIPPED: needs two CPUs, and this process may run on one");
            return;
        }
        let trips = round_trips(&[*last], rest).unwrap();
        assert!(trips.estimate().unwrap().median > 0.0);
        assert_eq!(affinity::allowed().unwrap(), all);
        // A CPU that no machine has.
        assert!(round_trips(&[CpuId::new(1023)], rest).is_err());
        assert_eq!(affinity::allowed().unwrap(), all);
    }
}
