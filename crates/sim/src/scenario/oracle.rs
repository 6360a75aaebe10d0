//! The oracle: it knows what will run, and what each way to govern would make of it.
//!
//! In a simulation the future can be tried: the oracle runs the scenario in every way and does what
//! does the work the soonest. The ways are the other governors, among them the processor alone, to
//! which all requests are left, and the break-even ([`dimmer_policy::license::oracle`]). So nothing
//! that it is compared with does better at the same prices. Ways that let code run below the level
//! that it asks for do not count: they gain by clocks at which a processor might not be stable.

use dimmer_processor::model::Model;

use super::{Outcome, Scenario};
use crate::{Governor, Moment, Observer, Settings, SimError};

/// What the oracle tries, the first among equals.
const WAYS: [Governor; 5] =
    [Governor::Hardware, Governor::Oracle, Governor::User, Governor::Predictive, Governor::AvxFreq];

impl Scenario {
    /// Runs the scenario as the oracle would ([`Scenario::run_on`]). [`Outcome::oracle_way`] is
    /// what it did.
    ///
    /// # Errors
    /// As [`Scenario::run_on`], in any of the ways that it tries.
    pub(super) fn run_oracle<O: Observer>(
        &self,
        model: &Model,
        settings: &Settings,
        observer: O,
        stops: &dyn Fn(Moment) -> bool,
    ) -> Result<(Outcome, O), SimError> {
        let under = |governor| Settings { governor, ..settings.clone() };
        let (mut best, mut hardware) = ((Governor::Hardware, 1.0), None);
        for way in WAYS {
            let (outcome, ()) = self.run_one(model, under(way), (), stops)?;
            if outcome.is_partial {
                break;
            }
            let speed = outcome.speed_over(hardware.as_ref().unwrap_or(&outcome));
            if speed > best.1 && outcome.is_at_its_levels() {
                best = (way, speed);
            }
            hardware.get_or_insert(outcome);
        }
        let (way, _) = best;
        let (outcome, observer) = self.run_one(model, under(way), observer, stops)?;
        Ok((Outcome { oracle_way: Some(way), ..outcome }, observer))
    }
}
