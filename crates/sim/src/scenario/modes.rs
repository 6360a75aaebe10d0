//! Runs whose mechanisms change on the way, as something decides that sees the work done.

use std::collections::BTreeMap;

use dimmer_processor::model::Model;

use super::{Outcome, Scenario};
use crate::{Machine, Mode, Moment, Observer, Settings, SimError};

/// What decides which mechanisms are in force.
pub trait ChoosesMode {
    /// When it decides next.
    fn next(&self, now: Moment) -> Moment;

    /// It is time. Returns the mode from now on.
    ///
    /// * `work`: what each program has done up to now, in the order of their names: requests if it
    ///   serves any, otherwise instructions.
    fn choose(&mut self, now: Moment, work: &[f64]) -> Mode;
}

impl Scenario {
    /// The same scenario whose threads begin again when they have finished, until the end.
    #[must_use]
    pub fn endless(&self, end: Moment) -> Self {
        let threads = self.threads.iter().cloned();
        let threads = threads.map(|thread| super::Thread { times: u64::MAX, ..thread }).collect();
        Self { threads, end: Some(end), ..self.clone() }
    }

    /// Runs the scenario to its end on a machine that changes its mode
    /// ([`Settings::changes_mode`]), or until `stops` returns true.
    ///
    /// # Errors
    /// As [`Scenario::machine_of`] and [`Machine::run`].
    pub fn run_in_modes<O: Observer>(
        &self,
        model: &Model,
        settings: Settings,
        chooses: &mut dyn ChoosesMode,
        observer: O,
        stops: &dyn Fn() -> bool,
    ) -> Result<(Outcome, O), SimError> {
        let (mut machine, end) = self.machine_of(model, settings, observer)?;
        machine.narrows(self.narrowing());
        let mut mode = Mode::NONE;
        let mut is_partial = false;
        while machine.now() < end {
            let until = chooses.next(machine.now()).min(end);
            let has_events = machine.run(until)?;
            is_partial = stops();
            if !has_events || is_partial {
                break;
            }
            let chosen = chooses.choose(machine.now(), &self.work(&machine));
            if chosen != mode {
                mode = chosen;
                machine.change_to(mode)?;
            }
        }
        let outcome = Outcome::new(&self.threads, &machine, is_partial);
        Ok((outcome, machine.into_observer()))
    }

    /// What each program has done, in the order of their names.
    fn work<O: Observer>(&self, machine: &Machine<O>) -> Vec<f64> {
        let mut programs: BTreeMap<&str, (f64, Option<f64>)> = BTreeMap::new();
        for (thread, totals) in self.threads.iter().zip(machine.threads()) {
            let (instructions, requests) = programs.entry(&thread.program.1).or_default();
            let runs = thread.steps.runs.iter();
            let done = runs.map(|(counter, _)| totals.instructions.get(*counter).unwrap_or(&0.0));
            *instructions += done.sum::<f64>();
            if thread.requests.is_some() {
                let served = totals.latencies.as_deref().map_or(0, hdrhistogram::Histogram::len);
                *requests = Some(requests.unwrap_or(0.0) + served as f64);
            }
        }
        programs
            .into_values()
            .map(|(instructions, requests)| requests.unwrap_or(instructions))
            .collect()
    }
}
