//! What processors do by themselves, according to the rules of a model.
//!
//! Wide code asks for a level, at its first instruction or after thousands. The code is throttled
//! until the level is granted. The core stands still during the change. Levels in between are
//! visited or not. The package's [`PowerControl`] serves such requests in slots. When no code asks
//! for the level any more, it is held for a while and released in another standstill. (Paper 000
//! §3.3.) If bursts recur at short gaps for long enough, newer processors do not release it at all.
//! Both kinds are one state machine; only their models differ.
//!
//! Unknown, and a choice here: instructions that were not enough to ask for a level are forgotten
//! when the code ends; only the way up from L0 is throttled (paper 000 §3.3.3 saw the throttling
//! end at L1).

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::{Missing, Model, Path, Sourced, Upper};
use dimmer_processor::units::{LicenseLevel, Nanos, Time, nearest};

use super::{Chance, Demand, Order, log_normal};

/// What the model's values are needed for, in words for [`Missing`].
const NEEDED_FOR: &str = "the license governor of the processor";

const L0: LicenseLevel = LicenseLevel::new(0);

/// The complete rules of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// The requests of each class.
    asks: [Vec<Ask>; InstructionClass::ALL.len()],
    /// The time to a level for which no rule gives the time (ns).
    usual_ns: f64,
    /// The part of it in which the core stands still.
    stall: Nanos,
    is_in_turn: bool,
    hold_ns: f64,
    extended: Option<Extended>,
    recurrence: Option<Recurrence>,
    release_stall: Nanos,
    slot: Nanos,
    missed_share: f64,
}

/// Which code asks for which level, and how.
#[derive(Clone, Debug, PartialEq)]
struct Ask {
    upper: Upper,
    level: LicenseLevel,
    /// Instructions until the code asks: median, and standard deviation of the logarithm.
    instructions: (f64, f64),
    least_per_cycle: f64,
    /// The time from the first instruction at L0 to the level (ns), in the same form.
    grant_ns: Option<(f64, f64)>,
}

/// Releases that take longer, at random.
#[derive(Clone, Debug, PartialEq)]
struct Extended {
    share: f64,
    /// The same share beside a core that has a level.
    share_beside: f64,
    most_ns: f64,
    level: Option<LicenseLevel>,
    class: Option<InstructionClass>,
}

/// When a level is kept between bursts.
#[derive(Clone, Debug, PartialEq)]
struct Recurrence {
    /// While bursts recur at gaps below this ...
    below: Nanos,
    /// ... and have done so for at least this long.
    after: Nanos,
}

impl Ask {
    /// Draws the number of instructions until the code asks.
    fn instructions(&self, chance: &mut impl Chance) -> u64 {
        let (median, log_sd) = self.instructions;
        let drawn =
            if log_sd == 0.0 { median } else { log_normal(median, log_sd, chance.normal()) };
        nearest(drawn).max(1)
    }
}

impl Rules {
    /// The rules of a processor; empty if it has only one level.
    ///
    /// # Errors
    /// If the model has neither the time until a level is granted nor the time for which code is
    /// throttled, or if it lacks the time for which a level is held.
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
            below: Nanos::from_ns(below.value),
            after: nanos(release.recurrence_after_ns.as_ref()),
        });
        Ok(Self {
            asks,
            usual_ns,
            stall: Nanos::rounded(stall_ns),
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
            release_stall: nanos(release.stall_ns.as_ref()),
            slot: nanos(request.slot_ns.as_ref()),
            missed_share: share(request.missed_share.as_ref()),
        })
    }

    /// The highest level that this code asks for.
    #[must_use]
    #[inline]
    pub fn level_of(&self, demand: &Demand) -> LicenseLevel {
        self.asks_of(demand).map(|ask| ask.level).max().unwrap_or(L0)
    }

    /// The more demanding of the demands of a core's two hardware threads: it decides (paper 003
    /// §1).
    #[must_use]
    pub fn more_demanding(&self, one: Demand, other: Demand) -> Demand {
        let rank = |demand: &Demand| (self.level_of(demand), demand.class);
        if rank(&other) > rank(&one) { other } else { one }
    }

    /// The number of instructions after which code on a core at L0 asks for a level; `None` if it
    /// does not.
    pub fn instructions(&self, demand: &Demand, chance: &mut impl Chance) -> Option<u64> {
        Some(self.next_ask(demand, L0)?.instructions(chance))
    }

    fn asks_of(&self, demand: &Demand) -> impl Iterator<Item = &Ask> {
        self.asks[demand.class as usize].iter().filter(move |ask| {
            let is_upper = ask.upper == Upper::Any || ask.upper == demand.upper;
            is_upper && demand.per_cycle >= ask.least_per_cycle
        })
    }

    /// The next request of the code at this level.
    fn next_ask(&self, demand: &Demand, level: LicenseLevel) -> Option<&Ask> {
        let higher = self.asks_of(demand).filter(|ask| ask.level > level);
        if self.is_in_turn {
            higher.min_by_key(|ask| ask.level)
        } else {
            higher.max_by_key(|ask| ask.level)
        }
    }

    /// The time from `level` to the requested level once the request is served (ns): median, and
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

/// A span that is zero where the model does not give it.
fn nanos(value: Option<&Sourced<u64>>) -> Nanos {
    value.map_or(Nanos::ZERO, |sourced| Nanos::from_ns(sourced.value))
}

fn share(value: Option<&Sourced<f64>>) -> f64 {
    value.map_or(0.0, |sourced| sourced.value)
}

/// The unit of a package that serves the requests of its cores, in slots. A request that comes
/// while a slot is being served is served in the next slot, together with all others that wait. The
/// same happens, by chance, to a request at the moment at which a slot starts. The requests of one
/// slot are granted together (the author's published raw data of paper 000, figure 3.10: within 1
/// µs, where runs differ by many), when the slowest of them is decided: paper 000 §3.3.3 assumes
/// that deciding several takes longer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PowerControl {
    /// When the latest slot starts; `ends` is when it ends.
    begins: Time,
    ends: Time,
    /// The slots that a request may still join, or that a core has not looked at since. There are
    /// few.
    slots: Vec<Slot>,
    /// Cores that have a level above L0.
    raised: usize,
}

/// A slot of the power control.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Slot {
    begins: Time,
    /// How much later than usual the slowest request is decided, in standard deviations.
    deviation: f64,
    /// Number of requests whose cores have not yet read when they are granted.
    wishes: u32,
}

impl PowerControl {
    /// Adds a request. Returns the start of the slot that serves it.
    fn ask(&mut self, now: Time, rules: &Rules, chance: &mut impl Chance) -> Time {
        let is_missed = |chance: &mut _| Chance::uniform(chance) < rules.missed_share;
        if now >= self.ends {
            self.begin(now, rules);
        } else if now > self.begins || now == self.begins && is_missed(chance) {
            self.begin(self.ends, rules);
        }
        self.join(chance)
    }

    /// Adds a request for one more level by a core that was served now. It is served at once, with
    /// all others that were served now; every other request waits for that, too.
    fn go_on(&mut self, now: Time, rules: &Rules, chance: &mut impl Chance) -> Time {
        if self.begins != now {
            self.begin(now, rules);
        }
        self.join(chance)
    }

    fn begin(&mut self, begins: Time, rules: &Rules) {
        self.begins = begins;
        self.ends = begins + rules.slot;
    }

    /// Adds a request to the latest slot. Returns the slot's start.
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

    /// Returns to a core how much later than usual the slot is, once no request can join it any
    /// more.
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
    /// The class of the last code that asked for a level.
    last: InstructionClass,
    /// When that code ended; `None` while it runs, and before the first.
    ended: Option<Time>,
    /// Since when bursts recur at short gaps.
    recurs_since: Option<Time>,
}

#[derive(Clone, Debug, PartialEq)]
enum Doing {
    /// The core has the level that its code asks for.
    Nothing,
    /// The level is released at `until`.
    Holding { until: Time },
    /// Code that started at `since` asks for a level once `instructions` of it were executed, and
    /// gets it `grant_ns` (median, and standard deviation of the logarithm) after its start.
    Counting { to: LicenseLevel, since: Time, grant_ns: (f64, f64), instructions: u64 },
    /// The code asked at `asked`, and is served in the slot that starts at `begins`. The time of
    /// the grant is known once no request can join that slot any more.
    Asked { to: LicenseLevel, since: Time, grant_ns: (f64, f64), asked: Time, begins: Time },
    /// The core stands still from `still` on, and has the level at `due`.
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
    /// The state that it wants for the core now.
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
            Doing::Asked { begins, .. } => Some(begins + Nanos::from_ns(1)),
            Doing::Waiting { still, .. } => Some(still),
        }
    }

    /// The number of instructions of the running code, from its start, after which to call
    /// [`Self::counted`].
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

    /// The number of instructions that it [counts](Self::counts) were executed.
    pub fn counted(
        &mut self,
        now: Time,
        rules: &Rules,
        control: &mut PowerControl,
        chance: &mut impl Chance,
    ) {
        self.ask(now, false, rules, control, chance);
    }

    /// Makes the counted request. If a level was granted just now, it is not a new one: the power
    /// control goes on.
    fn ask(
        &mut self,
        now: Time,
        is_granted: bool,
        rules: &Rules,
        control: &mut PowerControl,
        chance: &mut impl Chance,
    ) {
        let Doing::Counting { to, since, grant_ns, .. } = self.doing else { return };
        if rules.slot == Nanos::ZERO {
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

    /// The request is granted later than usual by `deviation` standard deviations.
    fn wait(
        &mut self,
        (to, since, (median, log_sd)): (LicenseLevel, Time, (f64, f64)),
        (asked, begins): (Time, Time),
        deviation: f64,
        rules: &Rules,
    ) {
        let granted = since + Nanos::rounded(log_normal(median, log_sd, deviation));
        let soonest = asked + rules.stall;
        let due = granted.max(soonest) + (begins - asked);
        self.doing = Doing::Waiting { to, still: due - rules.stall, due };
    }

    /// Called at [`Self::next_wakeup`].
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
                self.doing = Doing::Standing { to, until: now + rules.release_stall };
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

    /// Code that asks for a level starts.
    fn begins(&mut self, now: Time, rules: &Rules) {
        let gap = self.ended.take().map(|ended| now - ended);
        let is_short = |recurrence: &Recurrence| gap.is_some_and(|gap| gap < recurrence.below);
        if !rules.recurrence.as_ref().is_some_and(is_short) {
            self.recurs_since = Some(now);
        }
    }

    /// Determines which level to ask for, or to release, for the running code.
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
            let until = (since + self.hold(now, rules, control, chance)).max(now);
            self.doing = Doing::Holding { until };
        } else {
            self.doing = Doing::Nothing;
        }
    }

    /// How long the level is held.
    fn hold(
        &self,
        now: Time,
        rules: &Rules,
        control: &PowerControl,
        chance: &mut impl Chance,
    ) -> Nanos {
        if let (Some(recurrence), Some(since)) = (&rules.recurrence, self.recurs_since)
            && now - since >= recurrence.after
        {
            return recurrence.below.max(Nanos::rounded(rules.hold_ns));
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
        Nanos::rounded(rules.hold_ns + more)
    }
}

#[cfg(test)]
mod tests;
