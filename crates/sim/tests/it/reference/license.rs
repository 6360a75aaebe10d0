//! "What a processor does by its model": levels, from the rule to the release.

use dimmer_processor::model::{self, Model, Path, Upper};

use super::{LEAST, Simulator, value, whole};
use crate::drawn::Code;

/// A rule for a level above the first.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) class: usize,
    pub(super) is_dirty: bool,
    pub(super) level: usize,
    pub(super) instructions: u64,
    pub(super) density: f64,
    pub(super) grant_ns: Option<f64>,
}

impl Rule {
    pub(super) fn all(model: &Model) -> Vec<Self> {
        let rules = model.rules.iter().filter(|rule| rule.level.value.index() > 0);
        let rule = |rule: &model::Rule| Self {
            class: rule.class as usize,
            is_dirty: rule.upper == Upper::Dirty,
            level: usize::try_from(rule.level.value.index()).unwrap(),
            instructions: rule.instructions.as_ref().map_or(1, |number| number.value),
            density: rule.density_per_cycle.as_ref().map_or(0.0, |density| density.value),
            grant_ns: rule.grant_ns.as_ref().map(|grant| grant.value as f64),
        };
        rules.map(rule).collect()
    }
}

/// A request that is pending.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) rule: usize,
    /// When the core stands still for its level, and when that comes.
    pub(super) still_ns: f64,
    pub(super) due_ns: f64,
    pub(super) slot_ns: f64,
}

/// What a core's governor is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Doing {
    Nothing,
    Holding {
        until_ns: f64,
        /// Whether bursts recur for which the level is kept.
        is_kept: bool,
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
pub(super) struct Core {
    pub(super) level: usize,
    pub(super) doing: Doing,
    /// The code that ran when the governor looked last.
    pub(super) saw: Option<Code>,
    /// For each level, when the last code ended that asked for it or more.
    pub(super) asked_until: Vec<f64>,
    /// When the last code that asked for anything ended.
    pub(super) burst_ended: Option<f64>,
    pub(super) bursts_since: f64,
    /// Whether a second one has followed that.
    pub(super) bursts_recur: bool,
    /// Since when code has run that asks for anything, and the most that it has asked for.
    burst_since: f64,
    burst_asked: usize,
    /// For each recurrence of long bursts, when the last one ended, and until when it slows code.
    pub(super) long_until: Vec<(Option<f64>, f64)>,
    /// The usual time from the start of the count to the level that it asks for, and how much
    /// longer the last request takes or took than usual.
    takes_ns: f64,
    lateness: f64,
}

impl Core {
    pub(super) fn new(levels: usize, long_recurrences: usize) -> Self {
        Self {
            level: 0,
            doing: Doing::Nothing,
            saw: None,
            asked_until: vec![0.0; levels],
            burst_ended: None,
            bursts_since: 0.0,
            bursts_recur: false,
            burst_since: 0.0,
            burst_asked: 0,
            long_until: vec![(None, 0.0); long_recurrences],
            takes_ns: 0.0,
            lateness: 1.0,
        }
    }
}

/// The slots of a package.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    pub(super) start_ns: f64,
    pub(super) end_ns: f64,
    pub(super) is_next_wanted: bool,
}

/// How much longer a request takes than usual.
fn lateness(takes: f64, usual: f64) -> f64 {
    if usual > 0.0 { takes / usual } else { 1.0 }
}

impl Simulator<'_> {
    /// The processor does what it is time for on a core.
    pub(super) fn governor_acts(&mut self, core: usize) {
        while self.governor_acts_once(core) {
            self.is_something_done = true;
        }
    }

    /// Returns whether there was anything to do.
    fn governor_acts_once(&mut self, core: usize) -> bool {
        match self.cores[core].doing {
            Doing::Counting { rule, since_ns, left } if left < LEAST => {
                self.request(core, rule, since_ns, None);
            }
            Doing::Waiting(Request { rule, still_ns, due_ns, slot_ns })
                if self.is_due(still_ns) =>
            {
                let to = self.rules[rule].level;
                let slot_ns = Some(slot_ns);
                self.cores[core].doing = Doing::Still { to, until_ns: due_ns, slot_ns };
            }
            Doing::Holding { until_ns, .. } if self.is_due(until_ns) => {
                let until_ns = until_ns.max(whole(self.now)) + value(&self.model.release.stall_ns);
                let to = self.released_to(core, until_ns);
                self.cores[core].doing = Doing::Still { to, until_ns, slot_ns: None };
            }
            Doing::Still { to, until_ns, slot_ns } if self.is_due(until_ns) => {
                let is_change = !self.is_governed() && to != self.cores[core].level;
                self.result.cores[core].changes += u64::from(is_change);
                self.cores[core].level = to;
                self.cores[core].doing = Doing::Nothing;
                self.decides(core, slot_ns);
            }
            _ => return false,
        }
        true
    }

    /// The governor sees what code runs.
    pub(super) fn governor_looks(&mut self, core: usize) {
        let runs = self.code_on(core);
        let saw = std::mem::replace(&mut self.cores[core].saw, runs);
        if saw == runs {
            return;
        }
        self.is_something_done = true;
        let (had, asks) = (self.asks_for(saw), self.asks_for(runs));
        let now = whole(self.now);
        let this = &mut self.cores[core];
        for level in asks + 1..=had {
            this.asked_until[level] = now;
        }
        if had > 0 && asks == 0 {
            this.burst_ended = Some(now);
            let long = this.long_until.iter_mut().zip(&self.model.long_recurrences);
            for ((ended, until_ns), long) in long {
                let level = usize::try_from(long.level.value.index()).unwrap();
                let lasted_ns = now - this.burst_since;
                if this.burst_asked >= level && lasted_ns >= long.burst_ns.value as f64 {
                    let gap_ns = long.gap_ns.value as f64;
                    let recurs = ended.is_some_and(|ended| this.burst_since - ended < gap_ns);
                    *until_ns = if recurs { now + gap_ns } else { 0.0 };
                    *ended = Some(now);
                }
            }
        }
        if had == 0 {
            (this.burst_since, this.burst_asked) = (now, 0);
        }
        this.burst_asked = this.burst_asked.max(asks);
        if had == 0 && asks > 0 {
            let limit = value(&self.model.release.recurrence_ns);
            this.bursts_recur = this.burst_ended.is_some_and(|ended| now - ended < limit);
            if !this.bursts_recur {
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
                    let usual = self.takes(core, rule, 1.0);
                    let takes = usual.max(self.stall_ns());
                    let due_ns = now + takes + waits;
                    if due_ns < pending.due_ns {
                        self.cores[core].lateness = lateness(takes, usual);
                        self.waits(core, rule, due_ns, pending.slot_ns);
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
            let late = if slot_ns.is_some() { self.cores[core].lateness } else { 1.0 };
            self.cores[core].takes_ns = self.takes(core, rule, late);
            self.cores[core].doing = Doing::Counting { rule, since_ns: now, left: needed as f64 };
            if needed == 1 {
                self.request(core, rule, now, slot_ns);
            }
        } else if asks >= level {
            self.cores[core].doing = Doing::Nothing;
        } else if !matches!(self.cores[core].doing, Doing::Holding { .. }) {
            let until_ns = self.cores[core].asked_until[level] + self.hold_ns(core);
            let is_kept = self.bursts_keep_it(core);
            self.cores[core].doing = Doing::Holding { until_ns: until_ns.max(now), is_kept };
        }
    }

    fn request(&mut self, core: usize, rule: usize, since_ns: f64, granted: Option<f64>) {
        let now = whole(self.now);
        let slot_ns = self.slot(core, now, granted);
        let takes = self.cores[core].takes_ns;
        let granted_ns = (since_ns + takes.max(0.0).round()).max(now + self.stall_ns());
        self.cores[core].lateness = lateness(granted_ns - since_ns, takes);
        self.waits(core, rule, granted_ns + (slot_ns - now), slot_ns);
    }

    /// A request is pending, which is decided 1 ns after its slot starts.
    fn waits(&mut self, core: usize, rule: usize, due_ns: f64, slot_ns: f64) {
        let has_slots = value(&self.model.request.slot_ns) > 0.0;
        let decided_ns = slot_ns + f64::from(u8::from(has_slots));
        let still_ns = (due_ns - self.stall_ns()).max(decided_ns);
        let due_ns = due_ns.max(decided_ns);
        self.cores[core].doing = Doing::Waiting(Request { rule, still_ns, due_ns, slot_ns });
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

    pub(super) fn package(&self, core: usize) -> usize {
        let cores = self.model.shape.cores.as_ref().map_or(u32::MAX, |cores| cores.value);
        core / usize::try_from(cores).unwrap()
    }

    pub(super) fn stall_ns(&self) -> f64 {
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
    pub(super) fn asks_for(&self, code: Option<Code>) -> usize {
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

    /// The time from the start of the count to the level, for a core that asks alone. `late`: how
    /// much longer than usual the grant just now took.
    fn takes(&self, core: usize, rule: usize, late: f64) -> f64 {
        let Some(grant_ns) = self.rules[rule].grant_ns else {
            let request = &self.model.request;
            let throttled = request.throttled_ns.as_ref().or(request.voltage_ns.as_ref());
            return throttled.map_or(0.0, |ns| ns.value as f64) + self.stall_ns();
        };
        let Core { level, saw, .. } = self.cores[core];
        let lower = self.rules.iter().filter(|rule| self.applies(rule, saw) && rule.level <= level);
        let behind = lower.filter_map(|rule| rule.grant_ns).fold(0.0, f64::max);
        if behind < grant_ns { grant_ns - behind * late } else { grant_ns }
    }

    fn hold_ns(&self, core: usize) -> f64 {
        let release = &self.model.release;
        let hold = value(&release.hold_ns);
        if self.bursts_keep_it(core) { hold.max(value(&release.recurrence_ns)) } else { hold }
    }

    /// Whether bursts have recurred for long enough that a level is kept.
    fn bursts_keep_it(&self, core: usize) -> bool {
        let release = &self.model.release;
        let Core { bursts_since, bursts_recur, .. } = self.cores[core];
        let recur_ns = whole(self.now) - bursts_since;
        release.recurrence_ns.is_some()
            && bursts_recur
            && recur_ns >= value(&release.recurrence_after_ns)
    }

    /// Whether a core keeps its level for bursts that recur, runs no code that asks for any, and
    /// the model has how much longer that takes.
    pub(super) fn is_between_bursts(&self, core: usize) -> bool {
        matches!(self.cores[core].doing, Doing::Holding { is_kept: true, .. })
            && self.asks_for(self.cores[core].saw) == 0
            && self.model.release.recurrence_slowdown.is_some()
    }

    /// How much longer code takes on such a core than at L0.
    pub(super) fn kept_slowdown(&self, core: usize, active: u32) -> f64 {
        let takes = |level| (1.0 - self.clock(level, active) / self.clock(0, active)).max(0.0);
        let most = (0..self.model.levels.len()).map(takes).fold(0.0, f64::max);
        let part = if most > 0.0 { takes(self.cores[core].level) / most } else { 0.0 };
        let slowdown = self.model.release.recurrence_slowdown.as_ref();
        part * slowdown.map_or(0.0, |slowdown| slowdown.value)
    }

    /// How much longer code takes on a core than at L0, because it runs between long bursts.
    pub(super) fn long_slowdown(&self, core: usize) -> f64 {
        let this = &self.cores[core];
        if self.asks_for(this.saw) > 0 {
            return 0.0;
        }
        let all = self.model.long_recurrences.iter().zip(&this.long_until);
        let left = all.filter(|(_, (_, until_ns))| !self.is_due(*until_ns));
        left.map(|(long, _)| long.slowdown.value).fold(0.0, f64::max)
    }

    fn released_to(&self, core: usize, until_ns: f64) -> usize {
        let this = &self.cores[core];
        let asks = self.asks_for(this.saw);
        let hold = self.hold_ns(core);
        let is_held = |level: &usize| this.asked_until[*level] + hold > until_ns;
        (asks + 1..this.level).rev().find(is_held).unwrap_or(asks)
    }

    /// The clock of a level (GHz) with this number of active cores.
    pub(super) fn clock(&self, level: usize, active: u32) -> f64 {
        let bin = |level: usize| {
            let bins = self.model.levels[level].bins.iter();
            let bin = bins.filter(|bin| bin.cores >= active).min_by_key(|bin| bin.cores);
            bin.map(|bin| bin.mhz.value as f64 / 1000.0)
        };
        let ratio = self.model.levels[level].clock_ratio.as_ref().map(|ratio| ratio.value);
        bin(level).unwrap_or_else(|| ratio.unwrap() * bin(0).unwrap())
    }

    pub(super) fn is_still(&self, core: usize) -> bool {
        let is_still = match self.cores[core].doing {
            Doing::Still { to, .. } => self.stops_for(core, to),
            _ => false,
        };
        is_still || self.is_still_by_software(core)
    }

    /// Whether code that asks for a level is throttled on a core.
    pub(super) fn is_throttled(&self, core: usize) -> bool {
        let this = &self.cores[core];
        let is_pending = matches!(this.doing, Doing::Counting { .. } | Doing::Waiting(_));
        is_pending && this.level == 0
    }

    /// Instructions per nanosecond that a core's count counts.
    pub(super) fn count_rate(&self, core: usize) -> f64 {
        let class = self.code_on(core).map(|code| code.class);
        let running = self.running_on(core).into_iter();
        let counted = running.filter(|thread| Some(self.code(*thread).class) == class);
        counted.map(|thread| self.rate(thread) * self.code(thread).share).sum()
    }
}
