//! Which CPUs of a machine are slow, if their speeds alone say that.

use dimmer_processor::units::CpuId;

/// CPUs are slow if others are at least this many times as fast. A guess: kinds of cores differ by
/// more (the fast and the slow clock of paper 004 §5.1 by 2.4), and cores of one kind by less, of
/// which the firmware ranks some higher than others by a few percent.
const FASTER: f64 = 1.2;

/// The slow CPUs: all below the largest relative gap between speeds; none without a gap of
/// `FASTER`.
///
/// * `speeds`: each CPU's highest speed, in any unit. CPUs of speed 0 are not known, and left out.
#[must_use]
pub fn slow_cpus(speeds: &[(CpuId, u64)]) -> Vec<CpuId> {
    let known = speeds.iter().copied().filter(|(_, speed)| *speed > 0);
    let mut ascending: Vec<u64> = known.clone().map(|(_, speed)| speed).collect();
    ascending.sort_unstable();
    let gap = |pair: &[u64]| match *pair {
        [low, high] => (high as f64 / low as f64, low),
        _ => (1.0, 0),
    };
    let gaps = ascending.windows(2).map(gap);
    let largest = gaps.max_by(|left, right| left.0.total_cmp(&right.0));
    let Some((_, most)) = largest.filter(|(times, _)| *times >= FASTER) else { return Vec::new() };
    known.filter(|(_, speed)| *speed <= most).map(|(cpu, _)| cpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(speeds: &[u64], expected: &[u32]) {
        let speeds: Vec<(CpuId, u64)> = (0..).map(CpuId::new).zip(speeds.iter().copied()).collect();
        let expected: Vec<CpuId> = expected.iter().copied().map(CpuId::new).collect();
        assert_eq!(slow_cpus(&speeds), expected);
    }

    #[test]
    fn those_below_the_largest_gap_are_slow() {
        check(&[3400, 1400, 3400, 1400], &[1, 3]);
        // Three kinds: the two that are nearer each other are one.
        check(&[5000, 2500, 2000], &[1, 2]);
    }

    #[test]
    fn cores_of_one_kind_are_not_slow() {
        check(&[], &[]);
        check(&[3400], &[]);
        check(&[3400, 3400], &[]);
        // Ranks of the firmware, each some percent from the next.
        check(&[236, 226, 221, 216, 201, 196, 186, 166], &[]);
    }

    #[test]
    fn cpus_of_unknown_speed_are_left_out() {
        check(&[0, 3400, 1400], &[2]);
        check(&[0, 3400], &[]);
    }
}
