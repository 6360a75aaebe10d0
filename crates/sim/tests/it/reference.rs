//! A small, slow simulator, written from `docs/model.md` ("What a processor does by its model") and
//! `docs/scenario.md` ("How it runs") alone. It shares no code with the simulator that it checks
//! but the reading of models.
//!
//! It knows threads that stay on a core of their own, and models in which nothing is left to
//! chance. At each moment it does all that is due, then looks for the next moment at which anything
//! can happen. Times are nanoseconds.

use dimmer_processor::model::{Model, Path, Upper};

use crate::drawn::{Code, Length, Step, Work};

/// Rounding: times that differ by less are one moment (ns).
const MOMENT_NS: f64 = 1e-4;

/// What came of a run.
#[derive(Debug, Default)]
pub(crate) struct Result {
    /// When it ended (ns).
    pub(crate) end_ns: f64,
    pub(crate) cores: Vec<CoreResult>,
    pub(crate) threads: Vec<ThreadResult>,
}

/// Where a core's time went (ns), and how often its level changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct CoreResult {
    pub(crate) level_ns: Vec<f64>,
    pub(crate) throttled_ns: f64,
    pub(crate) still_ns: f64,
    pub(crate) idle_ns: f64,
    pub(crate) changes: u64,
}

/// What a thread did.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadResult {
    /// Instructions and time of each step, of blocks each of theirs.
    pub(crate) steps: Vec<(f64, f64)>,
    pub(crate) finished_ns: Option<f64>,
}

/// A rule for a level above the first.
#[derive(Debug)]
struct Rule {
    class: usize,
    is_dirty: bool,
    level: usize,
    instructions: u64,
    density: f64,
    grant_ns: Option<f64>,
}

/// A request that is pending.
#[derive(Clone, Copy, Debug)]
struct Request {
    rule: usize,
    due_ns: f64,
    slot_ns: f64,
}

/// What a core's governor is about.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Nothing,
    Holding {
        until_ns: f64,
    },
    Counting {
        rule: usize,
        since_ns: f64,
        left: f64,
    },
    Waiting(Request),
    /// With the slot that granted the level, on the way up.
    Still {
        to: usize,
        until_ns: f64,
        slot_ns: Option<f64>,
    },
}

#[derive(Debug)]
struct Core {
    level: usize,
    doing: Doing,
    /// The code that ran when the governor looked last.
    saw: Option<Code>,
    /// For each level, when the last code ended that asked for it or more.
    asked_until: Vec<f64>,
    /// When the last code that asked for anything ended.
    burst_ended: Option<f64>,
    bursts_since: f64,
}

/// The slots of a package.
#[derive(Clone, Debug, Default)]
struct Slots {
    start_ns: f64,
    end_ns: f64,
    is_next_wanted: bool,
}

#[derive(Clone, Copy, Debug)]
enum At {
    Asleep { until_ns: f64 },
    Runs { step: usize, left: f64, until_ns: f64 },
    Finished,
}

#[derive(Debug)]
struct Thread<'a> {
    core: usize,
    at: At,
    /// Its steps that are no blocks, in the order of the file.
    steps: Vec<&'a Step>,
    /// The steps of a round, with blocks written out, as indices of `steps`.
    round: Vec<usize>,
    next: usize,
    rounds: u64,
}

/// The simulator.
#[derive(Debug)]
pub(crate) struct Simulator<'a> {
    model: &'a Model,
    work: &'a Work,
    rules: Vec<Rule>,
    cores: Vec<Core>,
    slots: Vec<Slots>,
    threads: Vec<Thread<'a>>,
    now: f64,
    result: Result,
}

/// Whole nanoseconds: the rules know no others.
fn whole(ns: f64) -> f64 {
    (ns + MOMENT_NS).floor()
}

fn value(value: &Option<dimmer_processor::model::Sourced<u64>>) -> f64 {
    value.as_ref().map_or(0.0, |value| value.value as f64)
}

impl<'a> Simulator<'a> {
    pub(crate) fn run(model: &'a Model, work: &'a Work) -> Result {
        let levels = model.levels.len();
        let rules = model.rules.iter().filter(|rule| rule.level.value.index() > 0);
        let rules = rules.map(|rule| Rule {
            class: rule.class as usize,
            is_dirty: rule.upper == Upper::Dirty,
            level: usize::try_from(rule.level.value.index()).unwrap(),
            instructions: rule.instructions.as_ref().map_or(1, |number| number.value),
            density: rule.density_per_cycle.as_ref().map_or(0.0, |density| density.value),
            grant_ns: rule.grant_ns.as_ref().map(|grant| grant.value as f64),
        });
        let core = |_| Core {
            level: 0,
            doing: Doing::Nothing,
            saw: None,
            asked_until: vec![0.0; levels],
            burst_ended: None,
            bursts_since: 0.0,
        };
        let thread = |thread: &'a crate::drawn::Thread| Thread {
            core: thread.core,
            at: At::Asleep { until_ns: thread.begin_us * 1000.0 },
            steps: Step::single(&thread.steps),
            round: Step::written_out(&thread.steps),
            next: 0,
            rounds: thread.times,
        };
        let empty = CoreResult { level_ns: vec![0.0; levels], ..CoreResult::default() };
        let of_thread = |thread: &crate::drawn::Thread| ThreadResult {
            steps: vec![(0.0, 0.0); Step::single(&thread.steps).len()],
            finished_ns: None,
        };
        let mut simulator = Self {
            model,
            work,
            rules: rules.collect(),
            cores: (0..work.cores).map(core).collect(),
            slots: vec![Slots::default(); work.cores],
            threads: work.threads.iter().map(thread).collect(),
            now: 0.0,
            result: Result {
                end_ns: 0.0,
                cores: vec![empty; work.cores],
                threads: work.threads.iter().map(of_thread).collect(),
            },
        };
        simulator.go();
        simulator.result
    }

    fn go(&mut self) {
        loop {
            self.do_all_that_is_due();
            let end = self.work.end_us.map(|us| us * 1000.0);
            let next = self.next_moment().into_iter().chain(end).min_by(f64::total_cmp);
            let Some(next) = next else { break };
            self.pass(next - self.now);
            self.now = next;
            if end.is_some_and(|end| next >= end) {
                break;
            }
        }
        self.result.end_ns = self.now;
    }

    // What is due.

    fn do_all_that_is_due(&mut self) {
        // Each round of these may make something else due.
        for _ in 0..20 {
            for core in 0..self.cores.len() {
                self.governor_acts(core);
            }
            for thread in 0..self.threads.len() {
                self.thread_goes_on(thread);
            }
            for core in 0..self.cores.len() {
                self.governor_looks(core);
            }
        }
    }

    fn is_due(&self, ns: f64) -> bool {
        ns <= self.now + MOMENT_NS
    }

    fn thread_goes_on(&mut self, index: usize) {
        loop {
            match self.threads[index].at {
                At::Finished => return,
                At::Asleep { until_ns } if !self.is_due(until_ns) => return,
                At::Runs { left, until_ns, .. } if left > 0.5 && !self.is_due(until_ns) => return,
                _ => {}
            }
            let thread = &mut self.threads[index];
            if thread.next == thread.round.len() {
                (thread.next, thread.rounds) = (0, thread.rounds - 1);
            }
            if thread.rounds == 0 {
                thread.at = At::Finished;
                self.result.threads[index].finished_ns = Some(self.now);
                return;
            }
            let step = thread.round[thread.next];
            thread.next += 1;
            thread.at = match *thread.steps[step] {
                Step::Sleep { us } => At::Asleep { until_ns: self.now + us * 1000.0 },
                Step::Run { length: Length::Us(us), .. } => {
                    At::Runs { step, left: f64::INFINITY, until_ns: self.now + us * 1000.0 }
                }
                Step::Run { length: Length::Instructions(left), .. } => {
                    At::Runs { step, left, until_ns: f64::INFINITY }
                }
                Step::Repeat { .. } => unreachable!("blocks are written out"),
            };
        }
    }

    fn governor_acts(&mut self, core: usize) {
        match self.cores[core].doing {
            Doing::Counting { rule, since_ns, left } if left < 0.5 => {
                self.request(core, rule, since_ns, None);
            }
            Doing::Waiting(Request { rule, due_ns, slot_ns })
                if self.is_due(due_ns - self.stall_ns()) =>
            {
                let to = self.rules[rule].level;
                let slot_ns = Some(slot_ns);
                self.cores[core].doing = Doing::Still { to, until_ns: due_ns, slot_ns };
            }
            Doing::Holding { until_ns } if self.is_due(until_ns) => {
                let until_ns = until_ns.max(whole(self.now)) + value(&self.model.release.stall_ns);
                let to = self.released_to(core, until_ns);
                self.cores[core].doing = Doing::Still { to, until_ns, slot_ns: None };
            }
            Doing::Still { to, until_ns, slot_ns } if self.is_due(until_ns) => {
                self.result.cores[core].changes += u64::from(to != self.cores[core].level);
                self.cores[core].level = to;
                self.cores[core].doing = Doing::Nothing;
                self.decides(core, slot_ns);
            }
            _ => {}
        }
    }

    /// The governor sees what code runs.
    fn governor_looks(&mut self, core: usize) {
        let runs = self.code_on(core);
        let saw = std::mem::replace(&mut self.cores[core].saw, runs);
        if saw == runs {
            return;
        }
        let (had, asks) = (self.asks_for(saw), self.asks_for(runs));
        let now = whole(self.now);
        let this = &mut self.cores[core];
        for level in asks + 1..=had {
            this.asked_until[level] = now;
        }
        if had > 0 && asks == 0 {
            this.burst_ended = Some(now);
        }
        if had == 0 && asks > 0 {
            let limit = value(&self.model.release.recurrence_ns);
            if this.burst_ended.is_none_or(|ended| now - ended >= limit) {
                this.bursts_since = now;
            }
            this.burst_ended = None;
        }
        match self.cores[core].doing {
            Doing::Still { .. } => {}
            Doing::Waiting(pending) => {
                let Some(rule) = self.next_rule(core) else { return };
                let Rule { level, instructions, .. } = self.rules[rule];
                let is_other = rule != pending.rule && instructions == 1;
                if is_other && level >= self.rules[pending.rule].level {
                    let waits = (pending.slot_ns - now).max(0.0);
                    let takes = self.takes(core, rule).max(self.stall_ns());
                    let due_ns = now + takes + waits;
                    if due_ns < pending.due_ns {
                        self.cores[core].doing =
                            Doing::Waiting(Request { rule, due_ns, slot_ns: pending.slot_ns });
                    }
                }
            }
            _ => self.decides(core, None),
        }
    }

    /// What the governor of a core does that neither waits for a level nor stands still.
    /// `slot_ns`: the slot in which the core was granted its level just now.
    fn decides(&mut self, core: usize, slot_ns: Option<f64>) {
        let now = whole(self.now);
        let asks = self.asks_for(self.cores[core].saw);
        let level = self.cores[core].level;
        if let Some(rule) = self.next_rule(core) {
            if matches!(self.cores[core].doing, Doing::Counting { rule: of, .. } if of == rule) {
                return;
            }
            let needed = self.rules[rule].instructions;
            self.cores[core].doing = Doing::Counting { rule, since_ns: now, left: needed as f64 };
            if needed == 1 {
                self.request(core, rule, now, slot_ns);
            }
        } else if asks >= level {
            self.cores[core].doing = Doing::Nothing;
        } else if !matches!(self.cores[core].doing, Doing::Holding { .. }) {
            let until_ns = self.cores[core].asked_until[level] + self.hold_ns(core);
            self.cores[core].doing = Doing::Holding { until_ns: until_ns.max(now) };
        }
    }

    fn request(&mut self, core: usize, rule: usize, since_ns: f64, granted: Option<f64>) {
        let now = whole(self.now);
        let slot_ns = self.slot(core, now, granted);
        let takes = self.takes(core, rule);
        let due_ns = (since_ns + takes).max(now + self.stall_ns()) + (slot_ns - now);
        self.cores[core].doing = Doing::Waiting(Request { rule, due_ns, slot_ns });
    }

    /// When the slot starts that serves a request of this core's.
    fn slot(&mut self, core: usize, now: f64, granted: Option<f64>) -> f64 {
        let length = value(&self.model.request.slot_ns);
        if length == 0.0 {
            return now;
        }
        let package = self.package(core);
        let slots = &mut self.slots[package];
        let start = |slots: &mut Slots, at: f64| {
            *slots = Slots { start_ns: at, end_ns: at + length, is_next_wanted: false };
        };
        if slots.is_next_wanted && now >= slots.end_ns {
            let at = slots.end_ns;
            start(slots, at);
        }
        let ends_its_slot = granted == Some(slots.start_ns) && !slots.is_next_wanted;
        if now >= slots.end_ns || ends_its_slot {
            start(slots, now);
        }
        if now == slots.start_ns {
            return now;
        }
        slots.is_next_wanted = true;
        slots.end_ns
    }

    // What the model says.

    fn package(&self, core: usize) -> usize {
        let cores = self.model.shape.cores.as_ref().map_or(u32::MAX, |cores| cores.value);
        core / usize::try_from(cores).unwrap()
    }

    fn stall_ns(&self) -> f64 {
        value(&self.model.request.stall_ns)
    }

    fn applies(&self, rule: &Rule, code: Option<Code>) -> bool {
        code.is_some_and(|code| {
            rule.class == code.class as usize
                && (!rule.is_dirty || code.is_dirty)
                && code.per_cycle * code.share >= rule.density
        })
    }

    /// The highest level that code asks for.
    fn asks_for(&self, code: Option<Code>) -> usize {
        let rules = self.rules.iter().filter(|rule| self.applies(rule, code));
        rules.map(|rule| rule.level).max().unwrap_or(0)
    }

    fn next_rule(&self, core: usize) -> Option<usize> {
        let Core { level, saw, .. } = self.cores[core];
        let rules = self.rules.iter().enumerate();
        let rules = rules.filter(|(_, rule)| self.applies(rule, saw) && rule.level > level);
        let is_in_turn =
            self.model.request.path.as_ref().map(|path| path.value) == Some(Path::InTurn);
        let next = if is_in_turn {
            rules.min_by_key(|(_, rule)| rule.level)
        } else {
            rules.max_by_key(|(_, rule)| rule.level)
        };
        next.map(|(index, _)| index)
    }

    /// The time from the start of the count to the level, for a core that asks alone.
    fn takes(&self, core: usize, rule: usize) -> f64 {
        let Some(grant_ns) = self.rules[rule].grant_ns else {
            let request = &self.model.request;
            let throttled = request.throttled_ns.as_ref().or(request.voltage_ns.as_ref());
            return throttled.map_or(0.0, |ns| ns.value as f64) + self.stall_ns();
        };
        let Core { level, saw, .. } = self.cores[core];
        let lower = self.rules.iter().filter(|rule| self.applies(rule, saw) && rule.level <= level);
        let behind = lower.filter_map(|rule| rule.grant_ns).fold(0.0, f64::max);
        if behind < grant_ns { grant_ns - behind } else { grant_ns }
    }

    fn hold_ns(&self, core: usize) -> f64 {
        let release = &self.model.release;
        let hold = value(&release.hold_ns);
        let Some(below) = &release.recurrence_ns else { return hold };
        let recurs_for = whole(self.now) - self.cores[core].bursts_since;
        if recurs_for >= value(&release.recurrence_after_ns) {
            hold.max(below.value as f64)
        } else {
            hold
        }
    }

    fn released_to(&self, core: usize, until_ns: f64) -> usize {
        let this = &self.cores[core];
        let asks = self.asks_for(this.saw);
        let hold = self.hold_ns(core);
        let is_held = |level: &usize| this.asked_until[*level] + hold > until_ns;
        (asks + 1..this.level).rev().find(is_held).unwrap_or(asks)
    }

    /// The clock of a level (GHz) with this number of active cores.
    fn clock(&self, level: usize, active: u32) -> f64 {
        let bin = |level: usize| {
            let bins = self.model.levels[level].bins.iter();
            let bin = bins.filter(|bin| bin.cores >= active).min_by_key(|bin| bin.cores);
            bin.map(|bin| bin.mhz.value as f64 / 1000.0)
        };
        let ratio = self.model.levels[level].clock_ratio.as_ref().map(|ratio| ratio.value);
        bin(level).unwrap_or_else(|| ratio.unwrap() * bin(0).unwrap())
    }

    // What cores do.

    fn code_on(&self, core: usize) -> Option<Code> {
        self.threads.iter().enumerate().find_map(|(index, thread)| match thread.at {
            At::Runs { step, .. } if thread.core == core => Some(self.code(index, step)),
            _ => None,
        })
    }

    fn code(&self, thread: usize, step: usize) -> Code {
        match self.threads[thread].steps[step] {
            Step::Run { code, .. } => self.work.codes[*code],
            _ => unreachable!("no code runs in it"),
        }
    }

    fn active_beside(&self, core: usize) -> u32 {
        let package = self.package(core);
        let cores = 0..self.cores.len();
        let active =
            cores.filter(|other| self.package(*other) == package && self.code_on(*other).is_some());
        u32::try_from(active.count()).unwrap()
    }

    fn is_still(&self, core: usize) -> bool {
        matches!(self.cores[core].doing, Doing::Still { .. })
    }

    fn is_throttled(&self, core: usize) -> bool {
        let this = &self.cores[core];
        let is_pending = matches!(this.doing, Doing::Counting { .. } | Doing::Waiting(_));
        is_pending && this.level == 0 && self.asks_for(self.code_on(core)) > 0
    }

    /// Instructions per nanosecond.
    fn rate(&self, core: usize) -> f64 {
        let Some(code) = self.code_on(core) else { return 0.0 };
        if self.is_still(core) {
            return 0.0;
        }
        let request = &self.model.request;
        let factor = request.throttle_factor.as_ref();
        let chained = request.chained_throttle_factor.as_ref().or(factor);
        let throttle = match (self.is_throttled(core), code.is_chained) {
            (false, _) => 1.0,
            (true, false) => factor.map_or(1.0, |factor| factor.value),
            (true, true) => chained.map_or(1.0, |factor| factor.value),
        };
        let level = self.cores[core].level;
        let issue = self.model.levels[level].issue_ratio.as_ref().map_or(1.0, |ratio| ratio.value);
        let clock = self.clock(level, self.active_beside(core));
        1.0 / (1.0 / (code.per_cycle * throttle * issue * clock) + code.memory_ns)
    }

    /// When anything can happen next.
    fn next_moment(&self) -> Option<f64> {
        let mut next = Vec::new();
        for core in 0..self.cores.len() {
            let rate = self.rate(core);
            match self.cores[core].doing {
                Doing::Nothing => {}
                Doing::Holding { until_ns } | Doing::Still { until_ns, .. } => next.push(until_ns),
                Doing::Waiting(Request { due_ns, .. }) => next.push(due_ns - self.stall_ns()),
                Doing::Counting { left, .. } => {
                    let share = self.code_on(core).map_or(0.0, |code| code.share);
                    if rate * share > 0.0 {
                        next.push(self.now + left / (rate * share));
                    }
                }
            }
        }
        for thread in &self.threads {
            match thread.at {
                At::Finished => {}
                At::Asleep { until_ns } => next.push(until_ns),
                At::Runs { left, until_ns, .. } => {
                    next.push(until_ns);
                    next.push(self.now + left / self.rate(thread.core));
                }
            }
        }
        let next = next.into_iter().filter(|ns| ns.is_finite()).min_by(f64::total_cmp);
        next.map(|next| next.max(self.now + MOMENT_NS))
    }

    /// Time passes in which nothing happens.
    fn pass(&mut self, span: f64) {
        for core in 0..self.cores.len() {
            let is_active = self.code_on(core).is_some();
            let (is_still, is_throttled) = (self.is_still(core), self.is_throttled(core));
            let done = self.rate(core) * span;
            let share = self.code_on(core).map_or(0.0, |code| code.share);
            let level = self.cores[core].level;
            let totals = &mut self.result.cores[core];
            *if !is_active {
                &mut totals.idle_ns
            } else if is_still {
                &mut totals.still_ns
            } else if is_throttled {
                &mut totals.throttled_ns
            } else {
                &mut totals.level_ns[level]
            } += span;
            if let Doing::Counting { left, .. } = &mut self.cores[core].doing {
                *left -= done * share;
            }
            for (index, thread) in self.threads.iter_mut().enumerate() {
                if let At::Runs { step, left, .. } = &mut thread.at
                    && thread.core == core
                {
                    *left -= done;
                    let (instructions, time) = &mut self.result.threads[index].steps[*step];
                    *instructions += done;
                    *time += span;
                }
            }
        }
    }
}
