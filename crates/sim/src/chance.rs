//! Random numbers from a seed.

use dimmer_policy::license::Chance;

/// A random number generator; equal seeds give equal numbers.
#[derive(Clone, Debug)]
pub struct Random(fastrand::Rng);

impl Random {
    /// The generator for this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Derives an independent generator: numbers drawn from it do not change those of the others.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self(self.0.fork())
    }
}

impl Chance for Random {
    fn uniform(&mut self) -> f64 {
        self.0.f64()
    }
}
