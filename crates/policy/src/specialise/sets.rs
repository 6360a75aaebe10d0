//! How many cores of a NUMA node are wide (paper 003 §5): as large a part of them as the threads
//! that ask for their level are of those that could run.
//!
//! The paper has a fixed number, and names what is wrong with any: with too few, narrow cores are
//! idle; with too many, threads that are not wide run on wide cores, at their lower clock. "Ideally
//! the ratio between the number of AVX-512 and non-AVX-512 cores matches the ratio between the
//! AVX-512 and non-AVX-512 parts of the workload." A scheduler says in regular looks how many
//! threads could run; after [`Settings::looks`] of these the number follows.

use dimmer_processor::units::{LicenseLevel, nearest};

use super::NARROW;

/// When the number of wide cores changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The number follows the mean of this many looks.
    pub looks: u32,
    /// It changes if the part that threads ask for differs from it by more than this (cores), above
    /// half a core: so load between two numbers does not change it all the time.
    pub apart: f64,
}

impl Settings {
    /// Every 20 looks, at ticks of a kernel some 20 to 80 ms; which is a guess, and so is the
    /// hysteresis.
    pub const DEFAULT: Self = Self { looks: 20, apart: 0.75 };
}

/// The sets of wide cores of a NUMA node, or of a machine without several.
#[derive(Clone, Debug, PartialEq)]
pub struct Sets {
    settings: Settings,
    cores: usize,
    /// CPUs of a core. All of them have the core's clock, so all have its level.
    cpus: usize,
    /// The number of cores of each level above 0.
    wide: Vec<usize>,
    /// Threads that could run, of each level, summed up over the looks.
    runnable: Vec<f64>,
    looks: u32,
}

impl Sets {
    /// Starts with one core of the highest level: whatever a thread asks for has a core.
    ///
    /// * `cores`, `cpus`: the cores of the node, and the CPUs of each.
    /// * `levels`: how many levels there are, 0 included.
    #[must_use]
    pub fn new(settings: Settings, cores: usize, cpus: usize, levels: usize) -> Self {
        let mut wide = vec![0; levels.saturating_sub(1)];
        if let Some(highest) = wide.last_mut() {
            *highest = 1.min(cores);
        }
        Self { settings, cores, cpus, wide, runnable: vec![0.0; levels], looks: 0 }
    }

    /// The level of each core, in the order of the cores: the last ones have the highest.
    #[must_use]
    pub fn levels(&self) -> Vec<LicenseLevel> {
        let mut levels = vec![NARROW; self.cores];
        let mut cores = levels.iter_mut().rev();
        for (below, number) in self.wide.iter().enumerate().rev() {
            let level = LicenseLevel::new(u32::try_from(below + 1).unwrap_or(u32::MAX));
            cores.by_ref().take(*number).for_each(|core| *core = level);
        }
        levels
    }

    /// Takes in how many threads of each level, 0 included, run or could run at this moment.
    /// Returns whether the sets have changed.
    pub fn look(&mut self, runnable: &[usize]) -> bool {
        for (sum, now) in self.runnable.iter_mut().zip(runnable) {
            *sum += *now as f64;
        }
        self.looks += 1;
        if self.looks < self.settings.looks {
            return false;
        }
        let looks = f64::from(std::mem::take(&mut self.looks));
        let mean: Vec<f64> =
            self.runnable.iter_mut().map(|sum| std::mem::take(sum) / looks).collect();
        self.follow(&mean)
    }

    /// Gives each level its part of the cores.
    fn follow(&mut self, runnable: &[f64]) -> bool {
        let before = self.wide.clone();
        // With fewer threads than CPUs, each has one; otherwise they share them evenly.
        let all = runnable.iter().sum::<f64>().max((self.cores * self.cpus) as f64);
        let mut left = self.cores;
        // A thread may ask for the highest level at any time.
        let mut least = 1;
        for (level, number) in self.wide.iter_mut().enumerate().rev() {
            let part = self.cores as f64 * runnable.get(level + 1).unwrap_or(&0.0) / all;
            if (part - *number as f64).abs() > self.settings.apart {
                *number = usize::try_from(nearest(part)).unwrap_or(usize::MAX);
            }
            *number = (*number).max(std::mem::take(&mut least)).min(left);
            left -= *number;
        }
        self.wide != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of cores of L1 and of L2, of eight with two CPUs each, after each period in which
    /// this many threads of the levels 0 to 2 could run.
    #[track_caller]
    fn check(runnable: &[[usize; 3]], expected: &[[usize; 2]]) {
        let mut sets = Sets::new(Settings::DEFAULT, 8, 2, 3);
        for (runnable, expected) in runnable.iter().zip(expected) {
            for _ in 0..Settings::DEFAULT.looks {
                sets.look(runnable);
            }
            let levels = sets.levels();
            let of = |level| levels.iter().filter(|one| one.index() == level).count();
            assert_eq!([of(1), of(2)], *expected, "{runnable:?}");
            assert!(levels.is_sorted());
        }
    }

    #[test]
    fn wide_threads_have_their_part_of_the_cores() {
        check(&[[16, 0, 16], [16, 16, 0], [8, 8, 8], [2, 2, 2]], &[[0, 4], [4, 1], [3, 3], [1, 1]]);
    }

    #[test]
    fn one_core_is_wide_even_if_no_thread_is() {
        check(&[[0, 0, 0], [64, 0, 0], [64, 1, 0]], &[[0, 1], [0, 1], [0, 1]]);
    }

    #[test]
    fn all_cores_are_wide_if_nothing_else_runs() {
        check(&[[0, 0, 16], [0, 16, 4]], &[[0, 8], [6, 2]]);
        // But one has the highest level.
        check(&[[0, 16, 0], [0, 64, 0]], &[[7, 1], [7, 1]]);
    }

    #[test]
    fn load_between_two_numbers_changes_nothing() {
        // Of 16 CPUs, 5 are 2.5 cores, 7 are 3.5.
        check(
            &[[8, 0, 6], [8, 0, 5], [8, 0, 7], [8, 0, 5], [8, 0, 4]],
            &[[0, 3], [0, 3], [0, 3], [0, 3], [0, 2]],
        );
    }

    #[test]
    fn machines_without_levels_or_cores_have_no_wide_core() {
        for (cores, levels) in [(0, 3), (4, 1), (4, 0), (0, 0)] {
            let mut sets = Sets::new(Settings::DEFAULT, cores, 2, levels);
            (0..200).for_each(|_| _ = sets.look(&[3, 3, 3]));
            assert_eq!(sets.levels(), vec![NARROW; cores]);
        }
    }
}
