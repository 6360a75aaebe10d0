//! Core scheduling on the simulated machine: the CPUs of a core run threads that have executed wide
//! code, or others, and rather nothing than both (paper 003 §6.1, after A. Li, "Core scheduling:
//! prevent fast instructions from slowing you down", Linux Plumbers 2019).
//!
//! That proposal sorts processes by how they used registers in the long run; here a thread is of
//! one kind from its first wide code on.

use dimmer_policy::specialise::Class;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::units::LicenseLevel;

use super::{Machine, Observer};
use crate::SimError;
use crate::program::Segment;
use crate::sched::Scheduler;

impl<O: Observer> Machine<O> {
    pub(super) fn prepare_core_scheduling(&mut self) {
        if self.settings.core_scheduling {
            self.scheduler.keeps_apart();
        }
    }

    /// The thread begins this code on the core. If it is its first wide code, the core's CPUs look
    /// for what may run beside it.
    pub(super) fn tags(&mut self, thread: usize, core: usize, segment: &Segment) {
        let is_wide = segment.class >= InstructionClass::Light512;
        if self.settings.core_scheduling && is_wide && !self.threads[thread].is_tagged {
            self.threads[thread].is_tagged = true;
            self.scheduler.classify(thread, Class::Wide(LicenseLevel::new(1)));
            self.cores[core].looks = Some(self.now);
        }
    }

    /// A CPU of the core has taken a thread: the others take its like, or nothing.
    pub(super) fn keeps_apart(&mut self, core: usize, slot: usize) -> Result<(), SimError> {
        if !self.settings.core_scheduling {
            return Ok(());
        }
        for other in (0..self.cores[core].slots.len()).filter(|other| *other != slot) {
            let kind = |slot: usize| {
                let running = self.cores[core].slots[slot].as_ref()?;
                Some(self.threads[running.thread].is_tagged)
            };
            match (kind(slot), kind(other)) {
                (Some(one), Some(another)) if one != another => self.takes_turns(core, other)?,
                (Some(_), None) => self.fill(core, other)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// A thread has left a CPU of the core: what could not run beside it may run now.
    pub(super) fn is_left(&mut self, core: usize, slot: usize) -> Result<(), SimError> {
        if self.settings.core_scheduling && self.cores[core].slots[slot].is_none() {
            for other in 0..self.cores[core].slots.len() {
                self.fill(core, other)?;
            }
        }
        Ok(())
    }
}
