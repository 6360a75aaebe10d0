//! Mixtures: instructions of several kernels in a given ratio, spread evenly.
//!
//! The AVXFREQ thesis leaves the clock's behaviour under heterogeneous code to future work (paper
//! 000 §3.3.2, §6.1).

use super::{Dependency, Feature, Kernel, KernelError, Upper, find};

/// The largest share of one part, in instructions per period.
pub(super) const MAX_SHARE: usize = 4096;

/// Reads `KERNEL:SHARE+KERNEL:SHARE...`.
pub(super) fn parse(mixture: &str) -> Result<Kernel, KernelError> {
    let mut parts = Vec::new();
    for part in mixture.split('+') {
        let (name, share) = part.split_once(':').unwrap_or((part, ""));
        let kernel = find(name)?;
        let share = share.parse().ok().filter(|share| (1..=MAX_SHARE).contains(share));
        let Some(share) = share else {
            return Err(KernelError::Share { mixture: mixture.to_owned(), part: name.to_owned() });
        };
        parts.push((kernel, share));
    }
    let mut needs: Vec<Feature> = parts.iter().flat_map(|(k, _)| k.needs.clone()).collect();
    needs.sort_unstable();
    needs.dedup();
    let unrolled = parts.iter().all(|(kernel, _)| kernel.dependency == Dependency::Unrolled);
    Ok(Kernel {
        name: mixture.to_owned(),
        class: parts.iter().map(|(k, _)| k.class).max().unwrap_or(parts[0].0.class),
        dependency: if unrolled { Dependency::Unrolled } else { Dependency::Dependent },
        upper: parts.iter().map(|(k, _)| k.upper).max().unwrap_or(Upper::Clean),
        needs,
        instructions: interleave(&parts),
    })
}

/// Makes one period: each slot goes to the part that lags furthest behind its share.
fn interleave(parts: &[(Kernel, usize)]) -> Vec<Vec<u8>> {
    let total: usize = parts.iter().map(|(_, share)| share).sum();
    let mut taken = vec![0_usize; parts.len()];
    let mut period = Vec::with_capacity(total);
    for slot in 1..=total {
        // The lag is share * slot / total - taken, in whole numbers; the first part wins ties.
        let lag = |i: usize| parts[i].1 * slot + total - taken[i] * total;
        let next =
            (0..parts.len()).rev().max_by_key(|&i| if taken[i] < parts[i].1 { lag(i) } else { 0 });
        let next = next.unwrap_or(0);
        let code = &parts[next].0.instructions;
        period.push(code[taken[next] % code.len()].clone());
        taken[next] += 1;
    }
    period
}
