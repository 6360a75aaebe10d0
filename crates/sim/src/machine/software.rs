//! Acts of a governor in software on a core: it sees the running code, takes time, and sets levels.

use dimmer_policy::license::avxfreq::Counted;
use dimmer_policy::license::oracle::{self, Prices};
use dimmer_policy::license::predictive::{Decision, Ran, Region};
use dimmer_policy::license::{Change, Demand};
use dimmer_processor::class::InstructionClass;
use dimmer_processor::units::{LicenseLevel, nearest};

use super::{L0, Machine, Observer};
use crate::Picos;
use crate::core::{Act, Running};
use crate::governor::Software;
use crate::program::{License, Segment};

impl<O: Observer> Machine<O> {
    pub(super) fn call(&mut self, core: usize, call: License) {
        let Software::User(user) = &mut self.cores[core].software else { return };
        match call {
            License::Reclocking(is_on) => user.set_reclocking(is_on),
            License::Set(level) => user.set_license(level),
        }
        let level = user.level();
        let call_ns = self.call_ns(core, self.cores[core].set, level);
        self.steal(core, call_ns, Some(Act::Set(level)));
    }

    /// Takes time from the core for the governor in software, which does `act`, if any, at the end.
    pub(super) fn steal(&mut self, core: usize, ns: f64, act: Option<Act>) {
        // What is over at this moment is done before.
        if !self.cores[core].delays.is_stolen(self.now)
            && let Some(over) = self.cores[core].act.take()
        {
            self.act(core, over);
        }
        let this = &mut self.cores[core];
        this.delays.steal(self.now, Picos::from_ns(ns));
        this.act = act.or(this.act);
        this.totals.interrupts += 1;
    }

    /// Performs an act of the governor in software.
    pub(super) fn act(&mut self, core: usize, act: Act) {
        let (time, this) = (self.now.time(), &mut self.cores[core]);
        let level = match (act, &mut this.software) {
            (Act::Set(level), _) => level,
            (Act::Interrupt, Software::AvxFreq(avxfreq)) => {
                avxfreq.interrupt(time);
                avxfreq.level()
            }
            (Act::Look, Software::AvxFreq(avxfreq)) => {
                let counted =
                    Counted { operations: nearest(this.operations), cycles: nearest(this.cycles) };
                avxfreq.look(time, counted);
                avxfreq.level()
            }
            _ => return,
        };
        (this.operations, this.cycles) = (0.0, 0.0);
        if level != this.set {
            let from = std::mem::replace(&mut this.set, level);
            this.totals.changes += 1;
            self.changes_level(core, from, level);
            self.observer.decides(self.now, core, level);
        }
    }

    /// Arms the interrupt: the first 512-bit operation of any thread executed while the counter is
    /// armed causes an interrupt some cycles later. What was on the core at this moment alone has
    /// not been executed.
    pub(super) fn count_if_armed(&mut self, core: usize) {
        let is_counted =
            |segment: &Segment| segment.class == InstructionClass::Heavy512 && segment.share > 0.0;
        let this = &mut self.cores[core];
        if let Software::AvxFreq(avxfreq) = &this.software
            && avxfreq.is_armed()
            && this.act.is_none()
            && (this.skid.is_none() || this.skid_since == self.now)
        {
            let is_executed = this.is_executing(self.now)
                && this.slots.iter().flatten().any(|running| is_counted(&running.segment));
            this.skid = is_executed.then_some(self.settings.costs.skid_cycles);
            this.skid_since = self.now;
        }
    }

    /// Handles the counter's interrupt, if it has come.
    pub(super) fn interrupt_if_due(&mut self, core: usize) {
        if self.cores[core].is_interrupted() {
            self.cores[core].skid = None;
            self.steal(core, self.settings.costs.interrupt_ns, Some(Act::Interrupt));
        }
    }

    /// Reports to the governor in software that other code runs on the core than before.
    pub(super) fn tell_software(&mut self, core: usize, before: &Demand) {
        if let Software::Absent = self.cores[core].software {
            return;
        }
        let this = &self.cores[core];
        let change = Change {
            asked: this.asked,
            had: self.processor.rules().level_of(before),
            held: this.wanted(),
        };
        let Change { asked, had, held } = change;
        let prices = self.prices(core, held.max(asked).max(had));
        let heard = (self.region(core, asked), self.ran(core));
        let decision = match &mut self.cores[core].software {
            Software::Absent | Software::User(_) | Software::AvxFreq(_) => return,
            Software::Oracle => {
                let level = oracle::runs(&change, || self.gap(core, asked, &prices), &prices);
                level.map_or(Decision::Keep, Decision::Set)
            }
            Software::Predictive(predictive) => {
                let time = self.now.time();
                predictive.runs(time, &change, heard, &prices, self.processor.hold())
            }
        };
        let this = &mut self.cores[core];
        if asked == L0 && had > L0 {
            (this.scaled, this.scaled_cycles) = (0.0, 0.0);
        }
        match decision {
            Decision::Keep => {}
            Decision::Hold => this.release = None,
            Decision::Set(level) => {
                this.release = None;
                let from = this.set;
                let call_ns = self.call_ns(core, from, level);
                self.steal(core, call_ns, Some(Act::Set(level)));
            }
            Decision::ReleaseAfter(hold) => {
                this.release = Some(self.now + hold.picos());
            }
        }
    }

    /// The thread and code on the core that ask for this level.
    fn region(&self, core: usize, asked: LicenseLevel) -> Region {
        let asks = |running: &&Running| {
            self.processor.rules().level_of(&running.segment.demand()) == asked
        };
        let running = self.cores[core].slots.iter().flatten().find(asks);
        running.map_or_else(Region::default, |running| Region {
            thread: running.thread,
            code: running.segment.counter,
        })
    }

    /// What ran on the core since the demand last fell to L0.
    fn ran(&self, core: usize) -> Ran {
        let this = &self.cores[core];
        let scaled_ns = this.scaled_cycles / self.processor.ghz(L0, self.active(core));
        Ran { scaled_ns, lost_ns: (this.scaled / 1000.0 - scaled_ns).max(0.0) }
    }

    /// The cost of changes of a core between L0 and this level.
    fn prices(&self, core: usize, level: LicenseLevel) -> Prices {
        let slower = self.processor.slower(level, self.active(core));
        Prices { changes_ns: self.both_ways_ns(core, level), slower }
    }
}
