//! Clocks of cores, limited by the levels in force, by what software requests, and by rated power.

use dimmer_policy::license::Order;
use dimmer_processor::units::LicenseLevel;

use super::{L0, Machine, Observer};
use crate::governor::Software;
use crate::points::Change;
use crate::queue::Target;
use crate::{Moment, Picos, SimError};

impl<O: Observer> Machine<O> {
    /// Sets the clock from the levels in force and from the limit of the core's frequency domain.
    pub(super) fn set_clock(&mut self, core: usize) {
        let active = self.active(core);
        let this = &mut self.cores[core];
        let Order { level, is_between_bursts, between_long, .. } = this.order();
        let own = || {
            let ghz = if is_between_bursts {
                self.processor.kept_ghz(level, active)
            } else {
                self.processor.ghz(level, active)
            };
            between_long.map_or(ghz, |long| ghz.min(self.processor.between_long_ghz(long, active)))
        };
        this.ghz = match this.software {
            Software::Absent => own(),
            _ => self.processor.governed_ghz(level, this.granted, active),
        };
        if let Some(points) = &self.points {
            this.ghz = this.ghz.min(points.ghz(core));
        }
        let ghz = if this.is_active() { this.ghz } else { 0.0 };
        if let Ok(meter) = &mut self.meter {
            meter.change(self.now, core, ghz, this.ghz);
        }
        self.observer.clock(self.now, core, ghz);
    }

    /// A thread that takes steps on core `on` has `by` request this P-state for `core`.
    pub(super) fn ask_by(
        &mut self,
        on: usize,
        core: usize,
        by: usize,
        wish: usize,
    ) -> Result<(), SimError> {
        [core, by].into_iter().filter(|other| *other != on).for_each(|other| self.advance(other));
        self.ask(core, by, wish)?;
        [core, by].into_iter().filter(|other| *other != on).for_each(|other| self.settle(other));
        Ok(())
    }

    /// Core `by` requests this P-state for `core`, usually itself. The request keeps `by`, which
    /// wakes up for it if it is idle. One that is in force already is none, and costs nothing.
    pub(super) fn ask(&mut self, core: usize, by: usize, wish: usize) -> Result<(), SimError> {
        let Some(points) = &mut self.points else { return Ok(()) };
        let Some(Change { request, total }) = points.ask(core, wish)? else { return Ok(()) };
        let request = request.unwrap_or(Picos::from_ns(self.settings.costs.call_ns));
        let is_idle = !self.cores[by].executes_or_takes_steps();
        let wakes = if is_idle { self.wake_up(by) } else { Picos::ZERO };
        let asks = &mut self.cores[by];
        let (from, kept_until) = asks.delays.steal(self.now, wakes + request);
        let begin = from + wakes;
        asks.totals.interrupts += 1;
        if is_idle {
            asks.idle_since = kept_until;
            asks.deep_at = self.processor.deep_from().map(|from| kept_until + from);
        }
        self.observer.asks((begin, kept_until), (by, core), wish);
        self.cores[core].has_asked = true;
        let done = begin + total.unwrap_or_default();
        self.rule(core, Some((kept_until, done.max(kept_until))));
        Ok(())
    }

    /// Sets the P-states in force in the core's package. Call it when other cores execute than
    /// before, or when a core requests another P-state. The caller looks at the core itself.
    pub(super) fn rule(&mut self, core: usize, asked: Option<(Moment, Moment)>) {
        let active = self.active(core);
        let Self { points, cores, processor, now, .. } = self;
        let Some(points) = points else { return };
        let fastest = processor.ghz(L0, active);
        let is_active = |other: usize| {
            (other == core && asked.is_some()) || cores[other].executes_or_takes_steps()
        };
        let package = processor.package(core);
        let is_deep = processor.has_more_cores(package, cores.len())
            || cores[processor.cores_of(package, cores.len())]
                .iter()
                .any(|other| other.is_deep(*now));
        let domains = points.rule(*now, core, asked, fastest, is_deep, is_active);
        for domain in domains {
            if self.points.as_mut().is_some_and(|points| points.has_changed(domain)) {
                self.look_at(domain, Some(core));
            }
        }
    }

    /// A domain's clock takes a step.
    pub(super) fn steps(&mut self, domain: usize) {
        let Some(points) = &mut self.points else { return };
        points.step(domain);
        if points.makes_room(domain) {
            let core = points.cores(domain).start;
            self.rule(core, None);
        }
        self.look_at(domain, None);
    }

    /// Sets the clocks of a domain's cores, except that of `but`, and schedules the domain's next
    /// step.
    fn look_at(&mut self, domain: usize, but: Option<usize>) {
        let Some(points) = &self.points else { return };
        let next = points.next(domain);
        for core in points.cores(domain) {
            self.observer.rules(self.now, core, points.ruling(domain));
        }
        for core in points.reached(domain).filter(|core| Some(*core) != but) {
            // Idle cores get their clock when they wake up.
            if self.cores[core].is_active() {
                self.advance(core);
                self.set_clock(core);
                self.schedule(core);
            }
        }
        self.queue.set(Target::Domain(domain), next.map(|time| time.max(self.now)));
    }

    /// The cost of a change of a core's level by software, if the model gives the cost of changing
    /// between the clocks of the two levels.
    fn change(&self, core: usize, from: LicenseLevel, to: LicenseLevel) -> Option<Change> {
        let ghz = |level| self.processor.ghz(level, self.active(core));
        self.points.as_ref()?.change(ghz(from), ghz(to))
    }

    /// How long a system call that changes the level occupies the core (ns): as long as the model's
    /// request for the other clock, or if there is none, the assumed cost.
    pub(super) fn call_ns(&self, core: usize, from: LicenseLevel, to: LicenseLevel) -> f64 {
        let request = self.change(core, from, to).and_then(|change| change.request);
        request.map_or(self.settings.costs.call_ns, Picos::ns)
    }

    /// Handles a change of the level by a governor in software. If the model gives the duration of
    /// the change, the core runs on while the clock rises, and a lower clock is there at once.
    /// Otherwise a lower clock is granted at once, and a higher one when the power control decides
    /// next.
    pub(super) fn changes_level(&mut self, core: usize, from: LicenseLevel, to: LicenseLevel) {
        let Some(change) = self.change(core, from, to) else {
            let waits = to < self.cores[core].granted;
            let raises = waits.then(|| self.next_raise(core)).filter(|raises| *raises > self.now);
            self.cores[core].raises = raises;
            if raises.is_none() {
                self.grant(core, to);
            }
            return;
        };
        self.cores[core].granted = to;
        let span = change.total.unwrap_or(Picos::ZERO) - change.request.unwrap_or(Picos::ZERO);
        let [slow, fastest] = [from, L0].map(|level| self.processor.ghz(level, self.active(core)));
        let Some(points) = self.points.as_mut().filter(|_| to < from && span > Picos::ZERO) else {
            return;
        };
        points.rise(self.now, core, slow, span, fastest);
        let domain = points.domain(core);
        if points.has_changed(domain) {
            self.look_at(domain, Some(core));
        }
    }

    /// When the power control of the core's package next decides about raised clocks: now or later.
    fn next_raise(&self, core: usize) -> Moment {
        let (period, from) = (
            self.processor.raise_period(),
            self.packages[self.processor.package(core)].raises_from,
        );
        if period == Picos::ZERO || self.now <= from {
            return from.max(self.now);
        }
        let periods = (self.now - from).ps().div_ceil(period.ps());
        from + periods * period
    }

    /// The processor grants the clock of the level to software. The core stands still if its clock
    /// changes by that.
    pub(super) fn grant(&mut self, core: usize, level: LicenseLevel) {
        let active = self.active(core);
        let this = &mut self.cores[core];
        let before = std::mem::replace(&mut this.granted, level);
        this.raises = None;
        let own = this.order().level;
        let ghz = |set| self.processor.governed_ghz(own, set, active);
        if ghz(before) != ghz(level) {
            this.delays.stand_still(self.now, self.processor.stall());
        }
    }

    /// Whether the processor changes its own level now and the core stands still for it: always if
    /// it decides alone, otherwise if the clock changes by that.
    pub(super) fn halts(&self, core: usize) -> bool {
        let this = &self.cores[core];
        let Some(to) = this.order().changes_to else { return false };
        let active = self.active(core);
        let ghz = |own| self.processor.governed_ghz(own, this.granted, active);
        matches!(this.software, Software::Absent) || ghz(this.order().level) != ghz(to)
    }

    /// The cost of changing a core between L0 and this level and back (ns).
    pub(super) fn both_ways_ns(&self, core: usize, level: LicenseLevel) -> f64 {
        let one_way = |from, to| {
            let total = self.change(core, from, to).and_then(|change| change.total);
            let assumed = self.processor.stall().ns() + self.settings.costs.call_ns;
            total.map_or(assumed, Picos::ns)
        };
        // Code runs at the lower clock until the raise is granted: half a period on average.
        let waits_ns = self.processor.raise_period().ns() / 2.0;
        let slower = self.processor.slower(level, self.active(core));
        let is_timed = self.change(core, level, L0).is_some();
        let waiting = if is_timed { 0.0 } else { waits_ns * slower };
        one_way(L0, level) + one_way(level, L0) + waiting
    }
}
