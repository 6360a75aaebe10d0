//! Chance with a seed.

use dimmer_policy::license::Chance;

/// A generator; equal seeds give equal numbers.
#[derive(Clone, Debug)]
pub struct Random(fastrand::Rng);

impl Random {
    /// The generator of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// A generator of its own for one of many: what one draws changes nothing for the others.
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
