//! Random times between measurements, so that none is in step with ticks of the kernel or of the
//! processor.

use std::time::{Duration, Instant};

/// The longest of these times. A guess: long against everything that is measured but sleep.
const LONGEST: Duration = Duration::from_micros(100);

/// A source of random times.
#[derive(Debug)]
pub(super) struct Phase(fastrand::Rng);

impl Phase {
    /// The times of this seed.
    pub(super) fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Executes, without a system call, for `least` and a random time up to 100 us.
    pub(super) fn execute(&mut self, least: Duration) {
        let until = Instant::now() + least + LONGEST.mul_f64(self.0.f64());
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }

    /// Puts these values into a random order.
    pub(super) fn shuffle<T>(&mut self, values: &mut [T]) {
        self.0.shuffle(values);
    }
}
