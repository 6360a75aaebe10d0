//! Clocks of cores that divide the clock of the fastest core of their cluster (paper 004 §4.3).

use crate::model::Model;

/// The part by which clocks of models, which are whole MHz, may be off: 1250 / 833 is 1.5, too.
const ROUNDED: f64 = 1e-3;

/// The divisors of a processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Divisors {
    step: f64,
    most: f64,
}

impl Divisors {
    /// Those of this model; `None` if its cores do not depend on each other's clocks.
    #[must_use]
    pub fn new(model: &Model) -> Option<Self> {
        let step = model.clock.divisor_step.as_ref()?.value;
        let most = model.clock.divisor_most.as_ref().map_or(f64::INFINITY, |most| most.value);
        Some(Self { step, most })
    }

    /// The clock of a core that asks for this clock (GHz) beside this fastest one: the asked one or
    /// the next slower one, or a faster one if that takes more than the largest divisor.
    #[must_use]
    pub fn ghz(&self, asked: f64, fastest: f64) -> f64 {
        let divisors = fastest / asked / self.step * (1.0 - ROUNDED);
        let divisor = (divisors.ceil() * self.step).max(1.0);
        fastest / divisor.min(self.most)
    }
}
