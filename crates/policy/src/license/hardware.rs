//! What processors do by themselves, by the rules of a model.
//!
//! Wide code asks for a level, at its first instruction or after thousands. Until it is granted the
//! code is throttled; at the change the core stands still. Levels in between are visited or not.
//! The package's [`PowerControl`] serves such wishes in slots. When nothing asks for the level any
//! more, it is held for a while and given back at another standstill. (Paper 000 §3.3.) Where
//! bursts recur at short gaps for long enough, newer processors do not give it back at all. Both
//! kinds are one machine; only their models differ.
//!
//! Unknown, and a choice here: instructions that were not enough to ask for a level are forgotten
//! when the code ends; only the way up from L0 is throttled (paper 000 §3.3.3 saw the throttling
//! end at L1).

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::{Missing, Model, Path, Sourced, Upper};
use dimmer_processor::units::LicenseLevel;

use super::{Chance, Demand, Order, Time, log_normal, span};

/// What the rules are for, in words for [`Missing`].
const NEEDED_FOR: &str = "the license governor of the processor";

const L0: LicenseLevel = LicenseLevel::new(0);

/// A model's rules, complete.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// By class.
    asks: [Vec<Ask>; InstructionClass::ALL.len()],
    /// How long a level takes that no rule knows the time of (ns).
    usual_ns: f64,
    /// Of which standing still (ns).
    stall_ns: Time,
    is_in_turn: bool,
    hold_ns: f64,
    extended: Option<Extended>,
    recurrence: Option<Recurrence>,
    release_stall_ns: Time,
    slot_ns: Time,
    missed_share: f64,
}

/// Which code asks for which level, and how.
#[derive(Clone, Debug, PartialEq)]
struct Ask {
    upper: Upper,
    level: LicenseLevel,
    /// Instructions until it does: median, and standard deviation of the logarithm.
    instructions: (f64, f64),
    least_per_cycle: f64,
    /// From the first instruction at L0 to the level (ns), likewise.
    grant_ns: Option<(f64, f64)>,
}

/// Releases that take longer, by chance.
#[derive(Clone, Debug, PartialEq)]
struct Extended {
    share: f64,
    /// The same beside a core that has a level.
    share_beside: f64,
    most_ns: f64,
    level: Option<LicenseLevel>,
    class: Option<InstructionClass>,
}

/// When a level is not given back between bursts.
#[derive(Clone, Debug, PartialEq)]
struct Recurrence {
    /// While they recur at gaps below this (ns) ...
    below_ns: Time,
    /// ... and have done so for as long as this (ns).
    after_ns: Time,
}

impl Ask {
    /// After how many instructions, this time.
    fn instructions(&self, chance: &mut impl Chance) -> u64 {
        let (median, log_sd) = self.instructions;
        if log_sd == 0.0 { span(median) } else { span(log_normal(median, log_sd, chance.normal())) }
            .max(1)
    }
}

impl Rules {
    /// The rules of a processor; none where it has one level only.
    ///
    /// # Errors
    /// If the model knows neither how long a level takes to be granted, nor how long code is
    /// throttled; or not how long a level is held.
    pub fn new(model: &Model) -> Result<Self, Missing> {
        let (request, release) = (&model.request, &model.release);
        let mut asks = InstructionClass::ALL.map(|_| Vec::new());
        for rule in model.rules.iter().filter(|rule| rule.level.value > L0) {
            asks[rule.class as usize].push(Ask {
                upper: rule.upper,
                level: rule.level.value,
                instructions: (
                    number(rule.instructions.as_ref()).unwrap_or(1.0),
                    share(rule.instructions_log_sd.as_ref()),
                ),
                least_per_cycle: share(rule.density_per_cycle.as_ref()),
                grant_ns: number(rule.grant_ns.as_ref())
                    .map(|ns| (ns, share(rule.grant_log_sd.as_ref()))),
            });
        }
        let stall_ns = number(request.stall_ns.as_ref()).unwrap_or(0.0);
        let (mut usual_ns, mut hold_ns) = (stall_ns, 0.0);
        if asks.iter().flatten().any(|ask| ask.grant_ns.is_none()) {
            let throttled_ns = request.throttled_ns.as_ref().or(request.voltage_ns.as_ref());
            usual_ns += *model.require(throttled_ns, "request.throttled_ns", NEEDED_FOR)? as f64;
        }
        if asks.iter().any(|asks| !asks.is_empty()) {
            let key = "release.hold_ns";
            hold_ns = *model.require(release.hold_ns.as_ref(), key, NEEDED_FOR)? as f64;
        }
        let extended = release.extended_share.as_ref().zip(release.extended_ns.as_ref());
        let recurrence = release.recurrence_ns.as_ref().map(|below| Recurrence {
            below_ns: below.value,
            after_ns: release.recurrence_after_ns.as_ref().map_or(0, |after| after.value),
        });
        Ok(Self {
            asks,
            usual_ns,
            stall_ns: span(stall_ns),
            is_in_turn: request.path.as_ref().is_some_and(|path| path.value == Path::InTurn),
            hold_ns,
            extended: extended.map(|(share, most)| Extended {
                share: share.value,
                share_beside: release.extended_share_beside.as_ref().unwrap_or(share).value,
                most_ns: most.value as f64,
                level: release.extended_level.as_ref().map(|level| level.value),
                class: release.extended_class.as_ref().map(|class| class.value),
            }),
            recurrence,
            release_stall_ns: release.stall_ns.as_ref().map_or(0, |stall| stall.value),
            slot_ns: request.slot_ns.as_ref().map_or(0, |slot| slot.value),
            missed_share: share(request.missed_share.as_ref()),
        })
    }

    /// The level that this code asks for in the end.
    #[must_use]
    #[inline]
    pub fn level_of(&self, demand: &Demand) -> LicenseLevel {
        self.asks_of(demand).map(|ask| ask.level).max().unwrap_or(L0)
    }

    /// The more demanding of what two hardware threads of a core run: it rules (paper 003 §1).
    #[must_use]
    pub fn more_demanding(&self, one: Demand, other: Demand) -> Demand {
        let rank = |demand: &Demand| (self.level_of(demand), demand.class);
        if rank(&other) > rank(&one) { other } else { one }
    }

    /// After how many instructions code on a core at L0 asks for a level; `None` if it does not.
    pub fn instructions(&self, demand: &Demand, chance: &mut impl Chance) -> Option<u64> {
        Some(self.next_ask(demand, L0)?.instructions(chance))
    }

    fn asks_of(&self, demand: &Demand) -> impl Iterator<Item = &Ask> {
        self.asks[demand.class as usize].iter().filter(move |ask| {
            let is_upper = ask.upper == Upper::Any || ask.upper == demand.upper;
            is_upper && demand.per_cycle >= ask.least_per_cycle
        })
    }

    /// What the code asks for next at this level.
    fn next_ask(&self, demand: &Demand, level: LicenseLevel) -> Option<&Ask> {
        let higher = self.asks_of(demand).filter(|ask| ask.level > level);
        if self.is_in_turn {
            higher.min_by_key(|ask| ask.level)
        } else {
            higher.max_by_key(|ask| ask.level)
        }
    }

    /// How long the way from `level` to what is asked for takes once it is served (ns): median, and
    /// standard deviation of the logarithm.
    fn grant_ns(&self, ask: &Ask, demand: &Demand, level: LicenseLevel) -> (f64, f64) {
        let Some((from_l0, log_sd)) = ask.grant_ns else { return (self.usual_ns, 0.0) };
        let lower = self.asks_of(demand).filter(|lower| lower.level <= level);
        let behind = lower.filter_map(|lower| lower.grant_ns).map(|(ns, _)| ns);
        let ns = from_l0 - behind.fold(0.0, f64::max);
        (if ns > 0.0 { ns } else { from_l0 }, log_sd)
    }
}

fn number(value: Option<&Sourced<u64>>) -> Option<f64> {
    value.map(|sourced| sourced.value as f64)
}

fn share(value: Option<&Sourced<f64>>) -> f64 {
    value.map_or(0.0, |sourced| sourced.value)
}

/// The unit of a package that serves the wishes of its cores, in slots: whoever asks while one is
/// being served is served in the next slot, together with all others that wait; likewise, by
/// chance, somebody who asks at the moment at which a slot begins. Those who are served in one slot
/// get their levels together (the author's published raw data of paper 000, figure 3.10: within 1
/// µs, where runs differ by many), when the slowest of their wishes is decided: paper 000 §3.3.3
/// takes it that deciding several takes longer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PowerControl {
    /// When the latest slot begins, and when it ends.
    begins: Time,
    ends: Time,
    /// The slots that somebody may still join, or has not looked at since; few.
    slots: Vec<Slot>,
    /// Cores that have a level above L0.
    raised: usize,
}

/// A slot of the power control.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Slot {
    begins: Time,
    /// How much later than usual the slowest wish is decided, in standard deviations.
    deviation: f64,
    /// Wishes whose cores do not know yet when they are granted.
    wishes: u32,
}

impl PowerControl {
    /// Somebody asks; when the slot begins in which that is served.
    fn ask(&mut self, now: Time, rules: &Rules, chance: &mut impl Chance) -> Time {
        let is_missed = |chance: &mut _| Chance::uniform(chance) < rules.missed_share;
        if now >= self.ends {
            self.begin(now, rules);
        } else if now > self.begins || now == self.begins && is_missed(chance) {
            self.begin(self.ends, rules);
        }
        self.join(chance)
    }

    /// Whoever was served now gets a level more at once, with all others that were; everybody else
    /// waits for that, too.
    fn go_on(&mut self, now: Time, rules: &Rules, chance: &mut impl Chance) -> Time {
        if self.begins != now {
            self.begin(now, rules);
        }
        self.join(chance)
    }

    fn begin(&mut self, begins: Time, rules: &Rules) {
        self.begins = begins;
        self.ends = begins.saturating_add(rules.slot_ns);
    }

    /// A wish more in the latest slot.
    fn join(&mut self, chance: &mut impl Chance) -> Time {
        let (begins, deviation) = (self.begins, chance.normal());
        match self.slots.iter_mut().find(|slot| slot.begins == begins) {
            Some(slot) => {
                slot.deviation = slot.deviation.max(deviation);
                slot.wishes += 1;
            }
            None => self.slots.push(Slot { begins, deviation, wishes: 1 }),
        }
        begins
    }

    /// A core looks, once nobody can join any more, how much later than usual the slot is.
    fn deviation(&mut self, begins: Time) -> f64 {
        let Some(at) = self.slots.iter().position(|slot| slot.begins == begins) else { return 0.0 };
        let slot = &mut self.slots[at];
        let deviation = slot.deviation;
        slot.wishes -= 1;
        if slot.wishes == 0 {
            self.slots.swap_remove(at);
        }
        deviation
    }
}

/// The governor of one core.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    demand: Demand,
    level: LicenseLevel,
    doing: Doing,
    /// What ran last that asked for a level.
    last: InstructionClass,
    /// When that ended; `None` while it runs, and before the first.
    ended: Option<Time>,
    /// Since when bursts recur at short gaps.
    recurs_since: Option<Time>,
}

#[derive(Clone, Debug, PartialEq)]
enum Doing {
    /// The core has the level that its code asks for.
    Nothing,
    /// The level is given back then.
    Holding { until: Time },
    /// Code that began at `since` asks for a level once `instructions` of it were executed, and
    /// gets it after `grant_ns` (median, and standard deviation of the logarithm) from its begin.
    Counting { to: LicenseLevel, since: Time, grant_ns: (f64, f64), instructions: u64 },
    /// It was asked for at `asked`, and is served in the slot that begins then: when it is granted
    /// is known once nobody can join any more.
    Asked { to: LicenseLevel, since: Time, grant_ns: (f64, f64), asked: Time, begins: Time },
    /// The core stands still from `still` on, and has it at `due`.
    Waiting { to: LicenseLevel, still: Time, due: Time },
    /// The clock changes.
    Standing { to: LicenseLevel, until: Time },
}

impl Default for Hardware {
    fn default() -> Self {
        Self {
            demand: Demand::SCALAR,
            level: L0,
            doing: Doing::Nothing,
            last: InstructionClass::Scalar,
            ended: None,
            recurs_since: None,
        }
    }
}

impl Hardware {
    /// What it wants of the core now.
    #[must_use]
    #[inline]
    pub fn order(&self) -> Order {
        let is_asking = matches!(
            self.doing,
            Doing::Counting { .. } | Doing::Asked { .. } | Doing::Waiting { .. }
        );
        Order {
            level: self.level,
            is_throttled: is_asking && self.level == L0,
            is_still: matches!(self.doing, Doing::Standing { .. }),
        }
    }

    /// When to call [`Self::wake`].
    #[must_use]
    #[inline]
    pub fn next_wakeup(&self) -> Option<Time> {
        match self.doing {
            Doing::Nothing | Doing::Counting { .. } => None,
            Doing::Holding { until } | Doing::Standing { until, .. } => Some(until),
            Doing::Asked { begins, .. } => Some(begins.saturating_add(1)),
            Doing::Waiting { still, .. } => Some(still),
        }
    }

    /// After how many instructions of what runs, from when it began, to call [`Self::counted`].
    #[must_use]
    #[inline]
    pub fn counts(&self) -> Option<u64> {
        match self.doing {
            Doing::Counting { instructions, .. } => Some(instructions),
            _ => None,
        }
    }

    /// From now on the core runs `demand`.
    pub fn runs(
        &mut self,
        now: Time,
        demand: Demand,
        rules: &Rules,
        control: &mut PowerControl,
        chance: &mut impl Chance,
    ) {
        if demand == self.demand {
            return;
        }
        let asks = |demand: &Demand| rules.level_of(demand) > L0;
        let (did, does) = (asks(&self.demand), asks(&demand));
        self.demand = demand;
        if !(did || does) {
            return;
        }
        if does {
            self.last = demand.class;
        }
        match (did, does) {
            (false, true) => self.begins(now, rules),
            (true, false) => self.ended = Some(now),
            _ => {}
        }
        if !matches!(
            self.doing,
            Doing::Asked { .. } | Doing::Waiting { .. } | Doing::Standing { .. }
        ) {
            self.consider(now, false, rules, control, chance);
        }
    }

    /// So many instructions as it [counts](Self::counts) were executed.
    pub fn counted(
        &mut self,
        now: Time,
        rules: &Rules,
        control: &mut PowerControl,
        chance: &mut impl Chance,
    ) {
        self.ask(now, false, rules, control, chance);
    }

    /// What was counted asks; if a level was granted just now, not anew: the power control goes on.
    fn ask(
        &mut self,
        now: Time,
        is_granted: bool,
        rules: &Rules,
        control: &mut PowerControl,
        chance: &mut impl Chance,
    ) {
        let Doing::Counting { to, since, grant_ns, .. } = self.doing else { return };
        if rules.slot_ns == 0 {
            let deviation = chance.normal();
            return self.wait((to, since, grant_ns), (now, now), deviation, rules);
        }
        let begins = if is_granted {
            control.go_on(now, rules, chance)
        } else {
            control.ask(now, rules, chance)
        };
        self.doing = Doing::Asked { to, since, grant_ns, asked: now, begins };
    }

    /// What was wished for is granted so much later than usual, in standard deviations.
    fn wait(
        &mut self,
        (to, since, (median, log_sd)): (LicenseLevel, Time, (f64, f64)),
        (asked, begins): (Time, Time),
        deviation: f64,
        rules: &Rules,
    ) {
        let granted = since.saturating_add(span(log_normal(median, log_sd, deviation)));
        let soonest = asked.saturating_add(rules.stall_ns);
        let due = granted.max(soonest).saturating_add(begins.saturating_sub(asked));
        self.doing = Doing::Waiting { to, still: due.saturating_sub(rules.stall_ns), due };
    }

    /// The time has come.
    pub fn wake(
        &mut self,
        now: Time,
        rules: &Rules,
        control: &mut PowerControl,
        chance: &mut impl Chance,
    ) {
        match self.doing {
            Doing::Asked { to, since, grant_ns, asked, begins } if now > begins => {
                let deviation = control.deviation(begins);
                self.wait((to, since, grant_ns), (asked, begins), deviation, rules);
            }
            Doing::Waiting { to, still, due } if now >= still => {
                self.doing = Doing::Standing { to, until: due.max(now) };
            }
            Doing::Holding { until } if now >= until => {
                let to = rules.level_of(&self.demand);
                self.doing =
                    Doing::Standing { to, until: now.saturating_add(rules.release_stall_ns) };
            }
            Doing::Standing { to, until } if now >= until => {
                let is_granted = to > self.level;
                control.raised -= usize::from(self.level > L0);
                control.raised += usize::from(to > L0);
                self.level = to;
                self.doing = Doing::Nothing;
                self.consider(now, is_granted, rules, control, chance);
            }
            _ => {}
        }
    }

    /// Code that asks for a level begins.
    fn begins(&mut self, now: Time, rules: &Rules) {
        let gap = self.ended.take().map(|ended| now.saturating_sub(ended));
        let is_short = |recurrence: &Recurrence| gap.is_some_and(|gap| gap < recurrence.below_ns);
        if !rules.recurrence.as_ref().is_some_and(is_short) {
            self.recurs_since = Some(now);
        }
    }

    /// Which level to ask for, or to give back, for what runs now.
    fn consider(
        &mut self,
        now: Time,
        is_granted: bool,
        rules: &Rules,
        control: &mut PowerControl,
        chance: &mut impl Chance,
    ) {
        if let Some(ask) = rules.next_ask(&self.demand, self.level) {
            let instructions = ask.instructions(chance);
            let grant_ns = rules.grant_ns(ask, &self.demand, self.level);
            self.doing = Doing::Counting { to: ask.level, since: now, grant_ns, instructions };
            if instructions == 1 {
                self.ask(now, is_granted, rules, control, chance);
            }
        } else if rules.level_of(&self.demand) < self.level {
            let since = self.ended.unwrap_or(now);
            let until = since.saturating_add(self.hold(now, rules, control, chance)).max(now);
            self.doing = Doing::Holding { until };
        } else {
            self.doing = Doing::Nothing;
        }
    }

    /// For how long the level is held (ns).
    fn hold(
        &self,
        now: Time,
        rules: &Rules,
        control: &PowerControl,
        chance: &mut impl Chance,
    ) -> Time {
        if let (Some(recurrence), Some(since)) = (&rules.recurrence, self.recurs_since)
            && now.saturating_sub(since) >= recurrence.after_ns
        {
            return recurrence.below_ns.max(span(rules.hold_ns));
        }
        let applies = |extended: &&Extended| {
            extended.level.is_none_or(|level| level == self.level)
                && extended.class.is_none_or(|class| class <= self.last)
        };
        let longer = rules.extended.as_ref().filter(applies);
        let is_beside = control.raised > usize::from(self.level > L0);
        let longer = longer.filter(|extended| {
            chance.uniform() < if is_beside { extended.share_beside } else { extended.share }
        });
        let more = longer
            .map_or(0.0, |extended| chance.uniform() * (extended.most_ns - rules.hold_ns).max(0.0));
        span(rules.hold_ns + more)
    }
}

#[cfg(test)]
mod tests;
