//! Which of the mechanisms that a machine has are in force, and changes of that while it runs.

use dimmer_policy::specialise::Class;
use dimmer_processor::units::LicenseLevel;

use super::{L0, Machine, Observer, Settings, short};
use crate::core::Running;
use crate::governor::Software;
use crate::program::{Narrowing, Segment};
use crate::queue::Target;
use crate::sched::Scheduler as _;
use crate::{Governor, SimError};

/// What is in force of the mechanisms that a machine has by its [`Settings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// What decides about levels.
    pub governor: Governor,
    /// Whether marked regions are moved.
    pub moves_regions: bool,
    /// Whether cores are specialised.
    pub specialises: bool,
    /// Whether threads migrate at marks.
    pub migrates: bool,
    /// Whether threads request P-states; otherwise all cores have those of the start.
    pub requests_pstates: bool,
    /// Whether the widest code runs in registers of half the width.
    pub is_narrow: bool,
}

impl Mode {
    /// No mechanism: the processor governs its levels, and code stays.
    pub const NONE: Self = Self {
        governor: Governor::Hardware,
        moves_regions: false,
        specialises: false,
        migrates: false,
        requests_pstates: false,
        is_narrow: false,
    };

    /// The mode in which a machine with these settings starts.
    pub(super) fn of(settings: &Settings) -> Self {
        if settings.changes_mode {
            return Self::NONE;
        }
        Self {
            governor: settings.governor,
            moves_regions: settings.region_moves.is_some(),
            specialises: settings.specialise.is_some(),
            migrates: settings.phases.is_some(),
            requests_pstates: true,
            is_narrow: false,
        }
    }
}

impl<O: Observer> Machine<O> {
    /// Sets which code is narrower in modes with narrower code.
    pub(crate) fn narrows(&mut self, narrowing: Option<Narrowing>) {
        self.narrowing = narrowing;
    }

    /// From now on, another mode is in force. The machine was made for that
    /// ([`Settings::changes_mode`]); what it has no settings for has no effect.
    ///
    /// # Errors
    /// As [`Machine::run`].
    pub fn change_to(&mut self, mode: Mode) -> Result<(), SimError> {
        for core in 0..self.cores.len() {
            self.advance(core);
        }
        let before = std::mem::replace(&mut self.mode, mode);
        if mode.is_narrow != before.is_narrow {
            self.replace_code();
            (0..self.cores.len()).for_each(|core| self.sees(core));
        }
        if mode.governor != before.governor {
            self.govern(before.governor);
        }
        if before.requests_pstates && !mode.requests_pstates {
            self.ask_as_at_the_start()?;
        }
        if mode.specialises != before.specialises {
            self.specialise()?;
        }
        for core in 0..self.cores.len() {
            self.settle(core);
        }
        if mode.moves_regions != before.moves_regions && self.regions.is_some() {
            self.serves()?;
        }
        Ok(())
    }

    /// Each core gets its governor of this mode, as it was when it last was in force. A governor in
    /// software begins at the level that the core's code asks for, and the code that was
    /// interrupted there. Programs that decide call it before their next code.
    fn govern(&mut self, before: Governor) {
        let highest = LicenseLevel::new(short(self.processor.levels().saturating_sub(1)));
        let rules = self.processor.rules();
        let mut levels: Vec<LicenseLevel> = self.cores.iter().map(|core| core.asked).collect();
        for (thread, this) in self.threads.iter_mut().enumerate() {
            this.program.calls_again();
            if let Some(interrupted) = &this.interrupted
                && let Some(cpu) = self.scheduler.home(thread)
            {
                let core = cpu / super::index(self.settings.threads_per_core);
                levels[core] = levels[core].max(rules.level_of(&interrupted.segment.demand()));
            }
        }
        for (core, asked) in levels.into_iter().enumerate() {
            let this = &mut self.cores[core];
            let kept = this.resting.remove(&self.mode.governor);
            let mut software = kept.unwrap_or_else(|| Software::new(self.mode.governor, highest));
            let set = match &mut software {
                Software::Absent => L0,
                Software::User(user) => {
                    user.set_license(asked);
                    asked
                }
                Software::AvxFreq(avxfreq) => avxfreq.level(),
                Software::Oracle | Software::Predictive(_) => asked,
            };
            let last = std::mem::replace(&mut this.software, software);
            this.resting.insert(before, last);
            (this.act, this.release, this.skid) = (None, None, None);
            let from = std::mem::replace(&mut this.set, set);
            if from != set {
                self.changes_level(core, from, set);
            }
        }
    }

    /// Code that runs, or was interrupted, goes on in registers of the mode's width.
    fn replace_code(&mut self) {
        let (Some(narrowing), is_narrow) = (self.narrowing, self.mode.is_narrow) else { return };
        let replace = |running: &mut Running| {
            let other = match (is_narrow, running.is_narrowed) {
                (true, false) => narrowing.narrow(&running.segment),
                (false, true) => narrowing.widen(&running.segment),
                _ => None,
            };
            if let Some(segment) = other {
                (running.segment, running.is_narrowed) = (segment, is_narrow);
            }
        };
        self.cores.iter_mut().flat_map(|core| core.slots.iter_mut().flatten()).for_each(replace);
        self.threads.iter_mut().filter_map(|thread| thread.interrupted.as_mut()).for_each(replace);
    }

    /// The segment as it runs in this mode, and whether it is narrower than the program's.
    pub(super) fn in_mode(&self, segment: Segment) -> (Segment, bool) {
        let narrowing = self.narrowing.filter(|_| self.mode.is_narrow);
        let narrower = narrowing.and_then(|narrowing| narrowing.narrow(&segment));
        (narrower.unwrap_or(segment), narrower.is_some())
    }

    /// Each core requests the P-state that it requested at the start.
    fn ask_as_at_the_start(&mut self) -> Result<(), SimError> {
        for core in 0..self.cores.len() {
            if let Some(wish) = self.wishes[core] {
                self.ask(core, core, wish)?;
            }
        }
        Ok(())
    }

    /// Cores are specialised from now on, or no longer.
    fn specialise(&mut self) -> Result<(), SimError> {
        let Some(of) = &mut self.specialised else { return Ok(()) };
        let (levels, stays_near) = of.set_in_force(self.mode.specialises);
        self.scheduler.widen(&levels);
        self.scheduler.stays_near(stays_near);
        for thread in 0..self.threads.len() {
            let class = match &self.specialised {
                Some(of) if self.mode.specialises => of.class(thread),
                _ => Class::Default,
            };
            self.scheduler.classify(thread, class);
        }
        if self.mode.specialises {
            self.queue.set(Target::Load, Some(self.now));
        }
        for core in 0..self.cores.len() {
            for slot in 0..self.cores[core].slots.len() {
                self.takes_turns(core, slot)?;
                self.fill(core, slot)?;
            }
        }
        Ok(())
    }
}
