//! "Governors in software": `avxfreq` and `user`.

use dimmer_processor::class::InstructionClass;
use dimmer_sim::Governor;

use super::{LEAST, MOMENT_NS, Simulator, rounded_up, value, whole};

const INTERRUPT_NS: f64 = 4000.0;
const LOOK_NS: f64 = 1000.0;
const CALL_NS: f64 = 1000.0;
/// From the first operation to the counter's interrupt.
const SKID_CYCLES: f64 = 28.6;
const PERIOD_NS: f64 = 100_000.0;
const REST_NS: f64 = 66_000.0;
const EMPTY_LOOKS: u32 = 6;

/// What is done when nothing keeps the core any more.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Interrupt,
    Set(usize),
}

/// What a governor in software keeps of a core.
#[derive(Clone, Debug, Default)]
pub(super) struct Software {
    /// The level that it has set, and that whose clock the processor has granted.
    pub(super) set: usize,
    pub(super) granted: usize,
    raise_ns: Option<f64>,
    /// Until when the core stands still as its clock has changed.
    still_ns: f64,
    act: Option<Act>,
    /// Cycles until the counter's interrupt.
    skid: Option<f64>,
    look_ns: Option<f64>,
    empty_looks: u32,
    operations: f64,
    cycles: f64,
}

impl Simulator<'_> {
    pub(super) fn is_governed(&self) -> bool {
        self.governor != Governor::Hardware
    }

    /// The clock of a core by its levels (GHz), if its own level is `own` and this one is granted.
    fn governed(&self, core: usize, own: usize, granted: usize) -> f64 {
        let active = self.active_beside(core).max(1);
        if !self.is_governed() {
            return self.clock(own, active);
        }
        let l0 = self.clock(0, active);
        let reduced = match &self.model.levels[own].reduced_mhz {
            _ if own == 0 => l0,
            Some(mhz) => mhz.value as f64 / 1000.0 * l0 / self.clock(0, 1),
            None => l0 - 0.1,
        };
        reduced.min(self.clock(granted, active))
    }

    /// The clock of a core by its levels (GHz).
    pub(super) fn cap(&self, core: usize) -> f64 {
        let active = self.active_beside(core).max(1);
        let by_level = self.governed(core, self.cores[core].level, self.software[core].granted);
        if self.is_governed() {
            return by_level;
        }
        let slowed = |slowdown: f64| self.clock(0, active) / (1.0 + slowdown);
        let by_level = if self.is_between_bursts(core) {
            slowed(self.kept_slowdown(core, active))
        } else {
            by_level
        };
        by_level.min(slowed(self.long_slowdown(core)))
    }

    /// Whether a change of the core's own level to this one stops it.
    pub(super) fn stops_for(&self, core: usize, to: usize) -> bool {
        let granted = self.software[core].granted;
        !self.is_governed() || self.cap(core) != self.governed(core, to, granted)
    }

    pub(super) fn is_still_by_software(&self, core: usize) -> bool {
        !self.is_due(self.software[core].still_ns)
    }

    /// Something keeps the core, after what does so already. Returns since when.
    pub(super) fn keeps(&mut self, core: usize, ns: f64) -> f64 {
        let start_ns = self.kept_ns[core].max(self.now);
        self.kept_ns[core] = start_ns + ns;
        self.result.cores[core].interrupts += 1;
        start_ns
    }

    /// The program calls the governor.
    pub(super) fn calls(&mut self, core: usize, level: usize) {
        self.acts_if_over(core);
        self.keeps(core, CALL_NS);
        self.software[core].act = Some(Act::Set(level));
    }

    /// What keeps a core is over.
    fn acts_if_over(&mut self, core: usize) {
        if !self.is_kept(core)
            && let Some(act) = self.software[core].act.take()
        {
            self.is_something_done = true;
            match act {
                Act::Set(level) => self.sets(core, level),
                Act::Interrupt => {
                    self.software[core].look_ns = Some(whole(self.now) + PERIOD_NS);
                    self.software[core].empty_looks = 0;
                    self.sets(core, 1.min(self.model.levels.len() - 1));
                }
            }
        }
    }

    pub(super) fn software_acts(&mut self, core: usize) {
        self.acts_if_over(core);
        if self.software[core].skid.is_some_and(|cycles| cycles < LEAST) {
            self.is_something_done = true;
            self.software[core].skid = None;
            self.keeps(core, INTERRUPT_NS);
            self.software[core].act = Some(Act::Interrupt);
        }
        if self.software[core].raise_ns.is_some_and(|ns| self.is_due(ns)) {
            self.is_something_done = true;
            self.grants(core, self.software[core].set);
        }
        if self.software[core].look_ns.is_some_and(|ns| self.is_due(ns)) {
            self.is_something_done = true;
            self.looks_at_the_counter(core);
        }
    }

    fn looks_at_the_counter(&mut self, core: usize) {
        let now = whole(self.now);
        let this = &mut self.software[core];
        let (operations, cycles) = (this.operations.round(), this.cycles.round());
        let mut level = this.set;
        if operations > 0.0 {
            this.empty_looks = 0;
            this.look_ns = Some(now + PERIOD_NS);
            if operations >= cycles {
                level = 2.min(self.model.levels.len() - 1);
            }
        } else {
            this.empty_looks += 1;
            this.look_ns = match this.empty_looks {
                ..EMPTY_LOOKS => Some(now + PERIOD_NS),
                EMPTY_LOOKS => Some(now + REST_NS),
                _ => None,
            };
            if this.look_ns.is_none() {
                level = 0;
            }
        }
        self.sets(core, level);
        self.keeps(core, LOOK_NS);
    }

    /// The counter waits for an operation, and one is executed.
    pub(super) fn arms(&mut self, core: usize) {
        let this = &self.software[core];
        let waits = this.look_ns.is_none() && this.act.is_none() && this.skid.is_none();
        let executes = !self.is_still(core) && !self.is_kept(core);
        let is_wide = |thread: &usize| {
            let code = self.code(*thread);
            let is_executed = self.rate(*thread) > 0.0;
            code.class == InstructionClass::Heavy512 && code.share > 0.0 && is_executed
        };
        let is_avxfreq = self.governor == Governor::AvxFreq;
        if is_avxfreq && waits && executes && self.running_on(core).iter().any(is_wide) {
            self.software[core].skid = Some(SKID_CYCLES);
        }
    }

    fn sets(&mut self, core: usize, level: usize) {
        let this = &mut self.software[core];
        (this.operations, this.cycles) = (0.0, 0.0);
        if this.set == level {
            return;
        }
        this.set = level;
        this.raise_ns = None;
        self.result.cores[core].changes += 1;
        let raise_ns = self.next_raise(core);
        if level < self.software[core].granted && raise_ns > self.now + MOMENT_NS {
            self.software[core].raise_ns = Some(raise_ns);
        } else {
            self.grants(core, level);
        }
    }

    /// When the power control decides next about clocks that software raises.
    fn next_raise(&self, core: usize) -> f64 {
        let period = value(&self.model.clock.raise_period_ns);
        let first = self.raises_ns[self.package(core)];
        if period == 0.0 || first > self.now {
            return first.max(self.now);
        }
        first + ((self.now - first - MOMENT_NS) / period).ceil() * period
    }

    fn grants(&mut self, core: usize, level: usize) {
        let before = self.cap(core);
        self.software[core].granted = level;
        self.software[core].raise_ns = None;
        if self.cap(core) != before {
            self.software[core].still_ns = self.now + self.stall_ns();
        }
    }

    /// When software acts next on a core.
    pub(super) fn software_next(&self, core: usize) -> Vec<f64> {
        let this = &self.software[core];
        let mut next: Vec<f64> = this.raise_ns.into_iter().chain(this.look_ns).collect();
        if self.is_still_by_software(core) {
            next.push(this.still_ns);
        }
        if let Some(cycles) = this.skid.filter(|_| !self.is_still(core)) {
            next.push(self.now + rounded_up(cycles / self.cap(core)));
        }
        next
    }

    /// Time passes in which nothing happens.
    pub(super) fn software_counts(&mut self, core: usize, span: f64) {
        let running = self.running_on(core);
        let cycles = if self.is_still(core) { 0.0 } else { self.cap(core) * span };
        let wide = running.iter().map(|thread| (self.code(*thread), self.rate(*thread)));
        let wide = wide.filter(|(code, _)| code.class == InstructionClass::Heavy512);
        let operations: f64 = wide.map(|(code, rate)| 2.0 * rate * span * code.share).sum();
        let this = &mut self.software[core];
        this.operations += operations;
        if !running.is_empty() {
            this.cycles += cycles;
        }
        if let Some(left) = &mut this.skid {
            *left -= cycles;
        }
    }
}
