//! A core: what runs on it, at which rate, and how long it spends in each state.

mod delays;

use std::collections::BTreeMap;

use dimmer_policy::license::hardware::{Count, Hardware, Rules};
use dimmer_policy::license::{Demand, Order};
use dimmer_processor::class::InstructionClass;
use dimmer_processor::supply::Activity;
use dimmer_processor::units::{LicenseLevel, Time, whole};

use self::delays::Delays;
use crate::governor::Software;
use crate::program::{Extent, Segment};
use crate::series::Series;
use crate::{Clocks, Governor, Moment, Picos, State, index};

/// Picoseconds in a nanosecond.
const PS: f64 = 1000.0;

/// The time that a core spends in each state; the sum is all of its time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// At each level, executing at full rate.
    pub level: Vec<Picos>,
    /// Executing code that is throttled until it has its level.
    pub throttled: Picos,
    /// Standing still while the clock changes.
    pub still: Picos,
    /// In interrupts and system calls of governors.
    pub stolen: Picos,
    /// Waking up from an idle state, or taking over a thread from another CPU.
    pub delayed: Picos,
    /// With nothing to run.
    pub idle: Picos,
    /// The part of the time at the levels at which the level was lower than the code asks for: a
    /// governor in software has not seen the code, or the program did not call it. A real processor
    /// would be unstable (paper 000 §4.2).
    pub below: Picos,
    /// The number of changes of its level.
    pub changes: u64,
    /// The number of interrupts by a governor in software.
    pub interrupts: u64,
}

/// An act of a governor in software: at once, or when its interrupt or call is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Act {
    /// The counter has interrupted.
    Interrupt,
    /// It reads the counter.
    Look,
    /// It sets the level.
    Set(LicenseLevel),
}

/// A thread on a core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub(crate) thread: usize,
    pub(crate) segment: Segment,
    /// Whether the segment has narrower code than the program's, as the mode has it.
    pub(crate) is_narrowed: bool,
    /// Instructions left, if instructions end the segment.
    pub(crate) left: f64,
    /// When the segment ends, if time ends it, or [`Moment::MAX`].
    pub(crate) ends: Moment,
    /// When its time slice ends, if others wait, or [`Moment::MAX`].
    pub(crate) slice_ends: Moment,
    /// Instructions per picosecond, and picoseconds per instruction; both 0 while it stands still.
    pub(crate) rate: f64,
    pub(crate) each: f64,
    /// When the segment is over at these rates, or [`Moment::MAX`].
    pub(crate) over: Moment,
}

impl Running {
    pub(crate) fn new(thread: usize, segment: Segment, now: Moment, slice_ends: Moment) -> Self {
        let left = match segment.extent {
            Extent::Instructions(n) => n,
            Extent::Time(_) => f64::INFINITY,
        };
        let (ends, over) = (Moment::MAX, Moment::MAX);
        let is_narrowed = false;
        let (rate, each) = (0.0, 0.0);
        let mut new =
            Self { thread, segment, is_narrowed, left, ends, slice_ends, rate, each, over };
        new.start(now);
        new
    }

    /// The segment, of which nothing has run, starts now.
    pub(crate) fn start(&mut self, now: Moment) {
        if let Extent::Time(span) = self.segment.extent {
            self.ends = now + span;
        }
    }

    /// Executes for this long. Returns the number of instructions.
    fn executes(&mut self, span: Picos) -> f64 {
        let done = self.rate * span.as_f64();
        self.left -= done;
        if self.left < LEAST {
            self.left = 0.0;
        }
        done
    }

    /// How long memory stalls this many instructions (ps).
    fn waited(&self, instructions: f64) -> f64 {
        instructions * self.segment.memory_ns * PS
    }

    /// Whether the segment is over.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        self.left <= 0.0 || self.ends <= now
    }

    /// When the segment will be over, if nothing changes.
    pub(crate) fn over_at(&self, now: Moment) -> Moment {
        let is_executed = self.each > 0.0 && self.left < f64::INFINITY;
        let executed = if is_executed { now + ceil(self.left * self.each) } else { Moment::MAX };
        executed.min(self.ends)
    }
}

/// What rounding may leave of a number of instructions or cycles: less than a picosecond of them.
const LEAST: f64 = 1e-3;

/// What a running thread did in some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// Instructions executed.
    pub(crate) instructions: f64,
    /// Cycles of its core, none while that stands still.
    pub(crate) cycles: f64,
    /// The time.
    pub(crate) span: Picos,
}

/// A core.
#[derive(Clone, Debug)]
pub(crate) struct Core {
    pub(crate) hardware: Hardware,
    pub(crate) software: Software,
    /// Governors in software that are not in force now.
    pub(crate) resting: BTreeMap<Governor, Software>,
    /// The level that the governor in software has set.
    pub(crate) set: LicenseLevel,
    /// The level whose clock the processor grants to it: the same, or a higher one until `raises`.
    pub(crate) granted: LicenseLevel,
    /// When the processor raises the clock, if software waits for that.
    pub(crate) raises: Option<Moment>,
    /// Whether the change of the processor's own level stops the core.
    pub(crate) halts: bool,
    /// When the governor sets the level back to L0, if it waits for that.
    pub(crate) release: Option<Moment>,
    pub(crate) delays: Delays,
    /// What is done at the end of the interrupts and system calls.
    pub(crate) act: Option<Act>,
    /// Cycles until the counter's interrupt comes, if it is on its way.
    pub(crate) skid: Option<f64>,
    /// When the machine last looked whether code makes it come.
    pub(crate) skid_since: Moment,
    /// When it looks for work, if it was interrupted for that.
    pub(crate) looks: Option<Moment>,
    /// The start of the idle time.
    pub(crate) idle_since: Moment,
    /// One for each hardware thread.
    pub(crate) slots: Vec<Option<Running>>,
    /// Whether further segments of the only thread start without an event.
    pub(crate) is_in_series: bool,
    /// Whether a thread takes steps, which is in none of the slots until one of them takes time.
    pub(crate) is_between: bool,
    /// The clock (GHz).
    pub(crate) ghz: f64,
    /// Everything is counted until then.
    pub(crate) since: Moment,
    /// The count of instructions that the processor's governor waits for, and how many are left.
    counting: Option<(Count, f64)>,
    /// 512-bit floating-point operations and cycles since the counters were reset.
    pub(crate) operations: f64,
    pub(crate) cycles: f64,
    /// Since the demand last fell to L0: cycles of code whose speed depends on the clock, and how
    /// long that took, with what kept it from executing (ps).
    pub(crate) scaled_cycles: f64,
    pub(crate) scaled: f64,
    /// Whether the machine counts it among the active ones.
    pub(crate) is_counted: bool,
    /// When it is in the idle state that the processor's fastest P-states need, if it is idle, and
    /// not by MWAIT.
    pub(crate) deep_at: Option<Moment>,
    /// The number of threads that wait by MWAIT for a lock here.
    pub(crate) mwaits: usize,
    /// Whether it executes nothing, and such threads wait.
    pub(crate) is_in_mwait: bool,
    /// Whether its threads have requested a P-state since the machine last looked at it.
    pub(crate) has_asked: bool,
    pub(crate) totals: Totals,
    order: Order,
    /// The demand that the governors saw last, and the level that it asks for.
    pub(crate) demand: Demand,
    pub(crate) asked: LicenseLevel,
    /// The state reported to the observer last.
    pub(crate) told: State,
}

impl Core {
    pub(crate) fn new(threads: usize, levels: usize, software: Software) -> Self {
        let hardware = Hardware::default();
        let order = hardware.order();
        Self {
            hardware,
            software,
            resting: BTreeMap::new(),
            set: LicenseLevel::new(0),
            granted: LicenseLevel::new(0),
            raises: None,
            halts: false,
            release: None,
            delays: Delays::default(),
            act: None,
            skid: None,
            skid_since: Moment::START,
            looks: None,
            idle_since: Moment::START,
            slots: vec![None; threads],
            is_in_series: false,
            is_between: false,
            ghz: 1.0,
            since: Moment::START,
            counting: None,
            operations: 0.0,
            scaled_cycles: 0.0,
            scaled: 0.0,
            cycles: 0.0,
            is_counted: false,
            deep_at: None,
            mwaits: 0,
            is_in_mwait: false,
            has_asked: false,
            totals: Totals { level: vec![Picos::ZERO; levels], ..Totals::default() },
            order,
            demand: Demand::SCALAR,
            asked: LicenseLevel::new(0),
            told: State { level: LicenseLevel::new(0), is_throttled: false, is_still: false },
        }
    }

    /// Whether anything runs.
    pub(crate) fn is_active(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    /// Whether a thread executes on it, or takes the steps between.
    pub(crate) fn executes_or_takes_steps(&self) -> bool {
        self.is_between || self.is_active()
    }

    /// Whether it is in the idle state that the processor's fastest P-states need.
    pub(crate) fn is_deep(&self, now: Moment) -> bool {
        let waits = !self.executes_or_takes_steps() && !self.is_in_mwait;
        waits && self.deep_at.is_some_and(|at| at <= now)
    }

    /// The level in force: that of the governor in software if there is one.
    pub(crate) fn level(&self) -> LicenseLevel {
        match self.software {
            Software::Absent => self.order.level,
            _ => self.set,
        }
    }

    pub(crate) fn order(&self) -> Order {
        self.order
    }

    /// Whether the running code is throttled until it has the level that it asks for.
    pub(crate) fn is_throttled(&self) -> bool {
        self.order.is_throttled && self.asked > self.order.level
    }

    pub(crate) fn is_still(&self, now: Moment) -> bool {
        self.halts || self.delays.is_still(now)
    }

    /// The highest demand of the running threads.
    pub(crate) fn most_demanding(&self, rules: &Rules) -> Demand {
        let demands = self.slots.iter().flatten().map(|running| running.segment.demand());
        demands.reduce(|one, other| rules.more_demanding(one, other)).unwrap_or(Demand::SCALAR)
    }

    /// Counts everything up to now. Calls `ran` for each running thread with what it did.
    pub(crate) fn advance(&mut self, now: Moment, mut ran: impl FnMut(&Running, Done)) {
        let span = now - self.since;
        if span == Picos::ZERO {
            return;
        }
        let begin = self.since;
        self.since = now;
        let (is_active, is_still) = (self.is_active(), self.is_still(begin));
        let is_executing = self.is_executing(begin);
        let is_throttled = self.is_throttled();
        let level = usize::try_from(self.level().index()).unwrap_or(0);
        let totals = &mut self.totals;
        let state = if !is_active {
            &mut totals.idle
        } else if is_still {
            &mut totals.still
        } else if self.delays.is_stolen(begin) {
            &mut totals.stolen
        } else if self.delays.is_delayed(begin) {
            &mut totals.delayed
        } else if is_throttled {
            &mut totals.throttled
        } else {
            &mut totals.level[level]
        };
        *state += span;
        if is_executing && self.asked > self.level() && !matches!(self.software, Software::Absent) {
            self.totals.below += span;
        }
        let cycles = if is_still { 0.0 } else { self.ghz * span.as_f64() / PS };
        // Unhalted cycles.
        if is_active {
            self.cycles += cycles;
        }
        // An interrupt comes whether a thread runs or not.
        if let Some(left) = &mut self.skid {
            *left -= cycles;
        }
        let class = self.demand.class;
        let mut counted = 0.0;
        let busy = self.slots.iter().flatten().count().max(1) as f64;
        for running in self.slots.iter_mut().flatten() {
            let done = running.executes(span);
            let wide = done * running.segment.share;
            let scaled = (span.as_f64() - running.waited(done)) / busy;
            self.scaled += scaled;
            if is_executing {
                self.scaled_cycles += scaled * self.ghz / PS;
            }
            if running.segment.class == InstructionClass::Heavy512 {
                // A fused multiplication and addition counts as two operations.
                self.operations += 2.0 * wide;
            }
            if running.segment.class == class {
                counted += wide;
            }
            ran(running, Done { instructions: done, cycles, span });
        }
        if let Some((_, left)) = &mut self.counting {
            *left -= counted;
        }
    }

    /// Counts the segments of a series that are over before `until`, as [`Core::advance`] does, and
    /// starts those that follow. Calls `ran` for each one that is over. Returns how many it starts.
    pub(crate) fn advance_in_series(
        &mut self,
        until: Moment,
        series: &mut Series,
        mut ran: impl FnMut(&Running, Done),
    ) -> u64 {
        let (ghz, level) = (self.ghz, index(self.level().index()));
        let Some(running) = self.slots.iter_mut().flatten().next() else { return 0 };
        let mut started = 0;
        while running.over < until && series.is_quiet() {
            let span = running.over - self.since;
            self.since = running.over;
            self.totals.level[level] += span;
            let cycles = ghz * span.as_f64() / PS;
            self.cycles += cycles;
            let instructions = running.executes(span);
            let scaled = span.as_f64() - running.waited(instructions);
            self.scaled += scaled;
            self.scaled_cycles += scaled * ghz / PS;
            if running.segment.class == InstructionClass::Heavy512 {
                self.operations += 2.0 * (instructions * running.segment.share);
            }
            ran(running, Done { instructions, cycles, span });
            let end = running.over;
            if !running.is_over(end) {
                // Rounding has left some of it.
                running.over = running.over_at(end);
                series.follow(running.over, |next| (next.rate, next.each));
            } else if let Some(next) = series.take_quiet() {
                *running = Running { slice_ends: running.slice_ends, ..*next };
                started += 1;
            }
        }
        started
    }

    /// Takes over the current order of the processor's governor.
    pub(crate) fn obey(&mut self) {
        let counts = self.hardware.counts();
        if self.counting.map(|(of, _)| of) != counts {
            self.counting = counts.map(|of| (of, of.instructions as f64));
        }
        let order = self.hardware.order();
        if order.level != self.order.level && matches!(self.software, Software::Absent) {
            self.totals.changes += 1;
        }
        self.order = order;
    }

    /// The level that the governor in software has decided on, even if it is not set yet.
    pub(crate) fn wanted(&self) -> LicenseLevel {
        match self.act {
            Some(Act::Set(level)) => level,
            _ => self.set,
        }
    }

    /// Whether the instructions that the processor's governor waits for have executed.
    pub(crate) fn has_counted(&self) -> bool {
        self.counting.is_some_and(|(_, left)| left < LEAST)
    }

    /// Whether the counter's interrupt has come.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.skid.is_some_and(|left| left < LEAST)
    }

    /// Whether running threads execute: the core neither stands still nor does anything else.
    pub(crate) fn is_executing(&self, now: Moment) -> bool {
        self.is_active() && !self.stops(now)
    }

    /// Whether something keeps the core from executing.
    fn stops(&self, now: Moment) -> bool {
        self.is_still(now) || self.delays.is_stolen(now) || self.delays.is_delayed(now)
    }

    /// What it executes, by the current rates: the mean over its busy CPUs.
    ///
    /// * `stalled`: the part of a busy core's power that remains while memory stalls it.
    pub(crate) fn activity(&self, stalled: f64) -> Activity {
        let mut activity = Activity { core: 0.0, traffic_mw: 0.0 };
        let busy = self.slots.iter().flatten().count();
        for running in self.slots.iter().flatten() {
            let Segment { memory_ns, activity: own, traffic_nj, .. } = running.segment;
            let waits = if running.each > 0.0 { memory_ns * PS / running.each } else { 0.0 };
            let own = if running.each > 0.0 { own } else { 1.0 };
            activity.core += ((1.0 - waits) * own + waits * stalled) / busy as f64;
            // Nanojoules a picosecond are kilowatts.
            activity.traffic_mw += running.rate * traffic_nj * 1e6;
        }
        activity
    }

    /// The thread that runs on the core, if there is only one.
    pub(crate) fn only_thread(&self) -> Option<usize> {
        let mut running = self.slots.iter().flatten();
        let only = running.next()?;
        running.next().is_none().then_some(only.thread)
    }

    /// Whether its only thread may run a series now: the core executes code that asks for no level,
    /// and the processor's governor counts no instructions.
    pub(crate) fn may_have_series(&self, now: Moment) -> bool {
        self.asked.index() == 0 && self.counting.is_none() && !self.stops(now)
    }

    /// Sets the rates of the running threads, and returns when the next event is due.
    ///
    /// * `series`: segments that follow that of the only thread, without an event.
    pub(crate) fn next(
        &mut self,
        now: Moment,
        factors: &Factors<'_>,
        mut series: Option<&mut Series>,
    ) -> Option<Moment> {
        let stops = self.stops(now);
        let busy = self.slots.iter().flatten().count();
        let shared = if busy > 1 { factors.smt_share } else { 1.0 };
        let (ghz, order) = (self.ghz, self.order);
        let mut next = Moment::MAX;
        let mut earlier = |time: Moment| next = next.min(time);
        let mut counted_rate = 0.0;
        for running in self.slots.iter_mut().flatten() {
            (running.rate, running.each) = if stops {
                (0.0, 0.0)
            } else {
                factors.rate(&running.segment, order, ghz * shared)
            };
            running.over = running.over_at(now);
            let mut over = running.over;
            if let Some(series) = &mut series {
                over = series.follow(over, |next| factors.rate(&next.segment, order, ghz * shared));
            }
            earlier(over);
            earlier(running.slice_ends);
            if running.segment.class == self.demand.class {
                counted_rate += running.rate * running.segment.share;
            }
        }
        if let Some((_, left)) = self.counting.filter(|_| counted_rate > 0.0) {
            earlier(now + ceil(left.max(0.0) / counted_rate));
        }
        if let Some(left) = self.skid.filter(|_| !self.is_still(now)) {
            earlier(now + ceil(left.max(0.0) * PS / ghz));
        }
        let wakes_at = |time: Option<Time>| time.map_or(Moment::MAX, Time::moment);
        earlier(wakes_at(self.hardware.next_wakeup()));
        earlier(self.raises.unwrap_or(Moment::MAX));
        earlier(self.looks.unwrap_or(Moment::MAX));
        // A thread may come at the very moment at which a call is over.
        if self.act.is_some() && !self.delays.is_stolen(now) {
            earlier(now);
        }
        // One act at a time: events due meanwhile are handled when it is over.
        if self.act.is_none() {
            earlier(self.release.unwrap_or(Moment::MAX));
            if let Software::AvxFreq(avxfreq) = &self.software {
                earlier(wakes_at(avxfreq.next_wakeup()));
            }
        }
        earlier(self.delays.next(now).unwrap_or(Moment::MAX));
        earlier(self.deep_at.filter(|at| *at > now).unwrap_or(Moment::MAX));
        (next < Moment::MAX).then_some(next.max(now))
    }
}

/// What the rate of instructions depends on beside the clock.
#[derive(Debug)]
pub(crate) struct Factors<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) throttle: f64,
    pub(crate) chained_throttle: f64,
    /// The share of the core's throughput that each of several busy hardware threads gets.
    pub(crate) smt_share: f64,
    /// Clocks whose levels also limit instruction issue.
    pub(crate) clocks: &'a Clocks,
    /// Work per cycle of the core, relative to the fastest cluster's cores.
    pub(crate) capacity: f64,
}

impl Factors<'_> {
    /// Instructions per picosecond, and picoseconds per instruction.
    fn rate(&self, segment: &Segment, order: Order, ghz: f64) -> (f64, f64) {
        let asks = || self.rules.level_of(&segment.demand()) > order.level;
        let throttle = match (order.is_throttled && asks(), segment.is_chained) {
            (false, _) => 1.0,
            (true, false) => self.throttle,
            (true, true) => self.chained_throttle,
        };
        let issue = if order.is_between_bursts { 1.0 } else { self.clocks.issue(order.level) };
        let per_ns = segment.ipc * self.capacity * throttle * issue * ghz;
        let each = (1.0 / per_ns + segment.memory_ns) * PS;
        (1.0 / each, each)
    }
}

/// Whole picoseconds, rounded up; at least one, so that time advances. What exceeds a whole number
/// by an error of floating-point numbers is whole, as the error depends on how a span is split.
fn ceil(ps: f64) -> Picos {
    const ERROR: f64 = 1e-3;
    // Avoids `f64::ceil`, which calls the C library where SSE 4.1 is not assumed.
    let below = whole(ps);
    Picos::from_ps(below.saturating_add(u64::from((below as f64) + ERROR < ps)).max(1))
}
