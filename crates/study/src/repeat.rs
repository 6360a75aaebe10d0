//! Ways to run one workload, each with the same seeds.

use dimmer_sim::SimError;
use rayon::prelude::*;

/// Runs each way with seeds 1 to `runs`, on all CPUs. The results of each way are in the order of
/// the seeds. If `stops` returns true, only seeds that are complete for all ways count.
/// `advances` is called after each seed; `one` runs a way with a seed, and returns `None` if it was
/// stopped.
///
/// # Errors
/// That of a run.
pub fn repeat<Way: Sync, T: Send + Clone>(
    ways: &[Way],
    (runs, stops, advances): (u64, &(dyn Fn() -> bool + Sync), &(dyn Fn() + Sync)),
    one: impl Fn(&Way, u64) -> Result<Option<T>, SimError> + Sync,
) -> Result<Vec<Vec<T>>, SimError> {
    let of_seed = |seed| -> Result<Option<Vec<T>>, SimError> {
        if stops() {
            return Ok(None);
        }
        let results = ways.par_iter().map(|way| one(way, seed)).collect();
        advances();
        results
    };
    let seeds: Vec<Option<Vec<T>>> =
        (1..=runs).into_par_iter().map(of_seed).collect::<Result<_, _>>()?;
    let mut results = vec![Vec::new(); ways.len()];
    for of_ways in seeds.into_iter().flatten() {
        results.iter_mut().zip(of_ways).for_each(|(of, result)| of.push(result));
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn results_are_in_the_order_of_seeds_and_incomplete_seeds_are_left_out() {
        let complete = AtomicU64::new(0);
        let advances = || {
            complete.fetch_add(1, Ordering::Relaxed);
        };
        let one = |way: &u64, seed| Ok((way + seed != 12).then_some(way + seed));
        let results = repeat(&[0, 10], (3, &|| false, &advances), one).unwrap();
        assert_eq!(results, [[1, 3], [11, 13]]);
        assert_eq!(complete.into_inner(), 3);
        assert_eq!(repeat(&[0, 10], (3, &|| true, &|| {}), one).unwrap(), [[0; 0], [0; 0]]);
    }
}
