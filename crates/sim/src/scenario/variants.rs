//! What a scenario contains, and variants of it: with narrower code, without requests for P-states,
//! with another price of a hand-over.

use std::sync::Arc;

use dimmer_policy::license::hardware::Rules;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::{Missing, Model};
use dimmer_processor::units::LicenseLevel;

use super::steps::Steps;
use super::{Scenario, Thread};
use crate::Step;
use crate::program::{Narrowing, Operation};

impl Scenario {
    /// The highest level that any of its code asks for by the rules of a model.
    ///
    /// # Errors
    /// If the model lacks a value that its rules need.
    pub fn highest_level(&self, model: &Model) -> Result<LicenseLevel, Missing> {
        let rules = Rules::new(model)?;
        let levels = self.segments().map(|segment| rules.level_of(&segment.demand()));
        Ok(levels.max().unwrap_or(LicenseLevel::new(0)))
    }

    /// Whether any of its code has 512-bit registers.
    #[must_use]
    pub fn has_512_bit_code(&self) -> bool {
        use InstructionClass::{Heavy512, Light512};
        self.segments().any(|segment| matches!(segment.class, Light512 | Heavy512))
    }

    /// Whether threads enter marked regions.
    #[must_use]
    pub fn has_regions(&self) -> bool {
        self.steps().any(|step| matches!(step, Step::Enter(_)))
    }

    /// Whether threads take locks.
    #[must_use]
    pub fn has_locks(&self) -> bool {
        self.steps().any(|step| matches!(step, Step::Lock(_) | Step::Spin(..) | Step::Mwait(_)))
    }

    /// Whether threads request P-states.
    #[must_use]
    pub fn requests_pstates(&self) -> bool {
        self.steps().any(is_request)
    }

    /// The number of cores of its machine.
    #[must_use]
    pub fn cores(&self) -> u32 {
        self.cores
    }

    /// The time to hand a marked region over and back (ns), if it is not the model's.
    #[must_use]
    pub fn hand_over_ns(&self) -> Option<f64> {
        self.hand_over_ns
    }

    /// The same scenario with another time to hand a marked region over and back (ns).
    #[must_use]
    pub fn with_hand_over_ns(&self, ns: f64) -> Self {
        Self { hand_over_ns: Some(ns), ..self.clone() }
    }

    /// The same scenario in which threads make no requests for P-states.
    #[must_use]
    pub fn without_requests(&self) -> Self {
        self.changed(|step| if is_request(step) { Step::Skip } else { *step })
    }

    /// The same scenario with its widest code in registers of half the width, which does half as
    /// much in a cycle; `None` if it has none of more than 128 bits for which there is such code.
    #[must_use]
    pub fn narrowed(&self) -> Option<Self> {
        let narrowing = self.narrowing()?;
        Some(self.changed(|step| match step {
            Step::Run(segment) => Step::Run(narrowing.narrow(segment).unwrap_or(*segment)),
            step => *step,
        }))
    }

    /// Which of its code [`Self::narrowed`] replaces by which.
    pub(super) fn narrowing(&self) -> Option<Narrowing> {
        Narrowing::of(self.segments())
    }

    /// All steps of all threads, blocks aside.
    pub(super) fn steps(&self) -> impl Iterator<Item = &Step> {
        let operations = self.threads.iter().flat_map(|thread| thread.steps.operations.iter());
        operations.filter_map(Operation::step)
    }

    /// The same scenario with other steps.
    fn changed(&self, change: impl Fn(&Step) -> Step) -> Self {
        let level = LicenseLevel::new(0);
        let mut last: Option<(&Arc<Steps>, Arc<Steps>)> = None;
        let threads = self.threads.iter().map(|thread| {
            let steps = match &last {
                Some((of, steps)) if Arc::ptr_eq(of, &thread.steps) => Arc::clone(steps),
                _ => {
                    let operations = thread.steps.operations.iter();
                    let operations =
                        operations.map(|operation| operation.with(|step| (change(step), level)));
                    Arc::new(thread.steps.with(operations.collect()))
                }
            };
            last = Some((&thread.steps, Arc::clone(&steps)));
            Thread { steps, ..thread.clone() }
        });
        Self { threads: threads.collect(), ..self.clone() }
    }
}

fn is_request(step: &Step) -> bool {
    matches!(step, Step::Ask(_) | Step::AskBy { .. })
}
