//! What processors do by themselves, according to the rules of a model.
//!
//! Wide code asks for a level, at its first instruction or after thousands. The code is throttled
//! until the level is granted. The core stands still during the change. Levels in between are
//! visited or not. The package's [`PowerControl`] serves such requests in slots. When no code asks
//! for the level any more, it is held for a while and released in another standstill. (Paper 000
//! §3.3.) If bursts recur at short gaps for long enough, newer processors do not release it at all;
//! between long bursts that recur they run slower, whatever becomes of the level. Both kinds are
//! one state machine; only their models differ. `docs/model.md` specifies it ("What a processor
//! does by its model").
//!
//! Unknown, and choices here: instructions that were not enough to ask for a level are forgotten
//! when other code runs; only the way up from L0 is throttled (paper 000 §3.3.3 saw the throttling
//! end at L1); a level is held since the last code that asks for it, whatever asks for less since.

mod control;
mod rules;

use dimmer_processor::class::InstructionClass;
use dimmer_processor::units::{LicenseLevel, Nanos, Time};

pub use self::control::PowerControl;
pub use self::rules::Rules;
use self::rules::{AskId, GrantTime};
use super::{Chance, Demand, Order};

const L0: LicenseLevel = LicenseLevel::new(0);

/// The governor of one core.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    demand: Demand,
    level: LicenseLevel,
    doing: Doing,
    /// For each level above L0, the end of the last code that asked for it or a higher one; not
    /// meaningful while such code runs.
    asked: Vec<LastAsked>,
    /// When the last code that asked for any level ended; `None` while it runs, and before the
    /// first.
    ended: Option<Time>,
    /// Start of the last burst that did not follow another one after a short gap.
    first: Option<Time>,
    /// Since when bursts recur at short gaps: the start of the first of them; `None` before the
    /// second.
    recurs_since: Option<Time>,
    /// The burst that runs, if the model has recurrences of long ones.
    burst: Option<Burst>,
    /// The long bursts of each of those recurrences, in the order of the model.
    long: Vec<Option<Long>>,
    /// The recurrence that counts now.
    between_long: Option<BetweenLong>,
    /// The number of counts started.
    counts: u64,
}

/// Code that asks for levels, without other code in between.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Burst {
    began: Time,
    /// The highest level that it has asked for.
    asked: LicenseLevel,
}

/// The last of the long bursts of a recurrence.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Long {
    ended: Time,
    /// Until when it slows code; its end if it came too late after the one before.
    until: Time,
}

/// The recurrence of long bursts that slows code most.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BetweenLong {
    /// Its number in the model, from 0.
    number: usize,
    until: Time,
}

/// The end of code that asked for a level.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LastAsked {
    ended: Time,
    class: InstructionClass,
}

/// A count of instructions after which code asks for a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The number of the count. Another number is another count, which starts at zero.
    pub id: u64,
    /// The instructions of the class, from the start of the count on.
    pub instructions: u64,
}

/// A request for a level.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Wish {
    to: LicenseLevel,
    rule: AskId,
    /// When the code that asks started.
    since: Time,
    /// The time from then to the level, for a core that does not wait for a slot.
    grant: GrantTime,
}

#[derive(Clone, Debug, PartialEq)]
enum Doing {
    /// The core has the level that its code asks for.
    Nothing,
    /// The level is released at `until`. `is_kept`: it is held for bursts that recur, and the model
    /// has what that costs.
    Holding { until: Time, is_kept: bool },
    /// Code asks for a level once `count` instructions of it were executed.
    Counting { wish: Wish, count: Count },
    /// The code asked at `asked`, and is served in the slot that starts at `begins`. The time of
    /// the grant is known once no request can join that slot any more.
    Asked { wish: Wish, asked: Time, begins: Time },
    /// The core stands still from `still` on, and has the level at `due`. The slot started at
    /// `begins`.
    Waiting { wish: Wish, still: Time, due: Time, begins: Time, ratio: f64 },
    /// The clock changes until `until`. On the way up, `granted` is the start of the slot that
    /// served the request, and how much longer than its median the way took.
    Standing { to: LicenseLevel, until: Time, granted: Option<(Time, f64)> },
}

impl Default for Hardware {
    fn default() -> Self {
        Self {
            demand: Demand::SCALAR,
            level: L0,
            doing: Doing::Nothing,
            asked: Vec::new(),
            ended: None,
            first: None,
            recurs_since: None,
            burst: None,
            long: Vec::new(),
            between_long: None,
            counts: 0,
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
            changes_to: match self.doing {
                Doing::Standing { to, .. } => Some(to),
                _ => None,
            },
            is_between_bursts: matches!(self.doing, Doing::Holding { is_kept: true, .. })
                && self.ended.is_some(),
            between_long: self.between_long.map(|long| long.number),
        }
    }

    /// When to call [`Self::wake`].
    #[must_use]
    #[inline]
    pub fn next_wakeup(&self) -> Option<Time> {
        let changes = match self.doing {
            Doing::Nothing | Doing::Counting { .. } => None,
            Doing::Holding { until, .. } | Doing::Standing { until, .. } => Some(until),
            Doing::Asked { begins, .. } => Some(begins + Nanos::from_ns(1)),
            Doing::Waiting { still, .. } => Some(still),
        };
        match self.between_long {
            None => changes,
            Some(BetweenLong { until, .. }) => Some(changes.map_or(until, |at| at.min(until))),
        }
    }

    /// The instructions after which to call [`Self::counted`]. A count goes on while code runs that
    /// the same rule applies to, however it is split.
    #[must_use]
    #[inline]
    pub fn counts(&self) -> Option<Count> {
        match self.doing {
            Doing::Counting { count, .. } => Some(count),
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
        let before = std::mem::replace(&mut self.demand, demand);
        let (had, asks) = (rules.level_of(&before), rules.level_of(&demand));
        if had == L0 && asks == L0 {
            return;
        }
        self.ends(now, &before, had, asks);
        match (had > L0, asks > L0) {
            (false, true) => self.begins(now, asks, rules),
            (true, false) => self.burst_ends(now, rules),
            _ => self.burst.iter_mut().for_each(|burst| burst.asked = burst.asked.max(asks)),
        }
        match self.doing {
            Doing::Standing { .. } => {}
            Doing::Asked { .. } | Doing::Waiting { .. } => self.overtake(now, rules, chance),
            _ => self.consider(now, None, rules, control, chance),
        }
    }

    /// The counted instructions were executed.
    pub fn counted(
        &mut self,
        now: Time,
        rules: &Rules,
        control: &mut PowerControl,
        chance: &mut impl Chance,
    ) {
        self.ask(now, None, rules, control, chance);
    }

    /// Called at [`Self::next_wakeup`].
    pub fn wake(
        &mut self,
        now: Time,
        rules: &Rules,
        control: &mut PowerControl,
        chance: &mut impl Chance,
    ) {
        if self.between_long.is_some_and(|long| now >= long.until) {
            self.slow_between_long(now, rules);
        }
        match self.doing {
            Doing::Asked { wish, asked, begins } if now > begins => {
                let deviation = control.deviation(begins);
                self.doing = wait(wish, asked, begins, deviation, rules);
            }
            Doing::Waiting { wish, still, due, begins, ratio } if now >= still => {
                let granted = Some((begins, ratio));
                self.doing = Doing::Standing { to: wish.to, until: due.max(now), granted };
            }
            Doing::Holding { until, .. } if now >= until => {
                let until = now + rules.release_stall;
                let to = self.released_to(now, rules);
                self.doing = Doing::Standing { to, until, granted: None };
            }
            Doing::Standing { to, until, granted } if now >= until => {
                control.raised -= usize::from(self.level > L0);
                control.raised += usize::from(to > L0);
                self.level = to;
                self.doing = Doing::Nothing;
                self.consider(now, granted, rules, control, chance);
            }
            _ => {}
        }
    }

    /// Makes the counted request. `granted`: the slot that granted a level just now, if one did;
    /// then the power control goes on.
    fn ask(
        &mut self,
        now: Time,
        granted: Option<Time>,
        rules: &Rules,
        control: &mut PowerControl,
        chance: &mut impl Chance,
    ) {
        let Doing::Counting { wish, .. } = self.doing else { return };
        if rules.slot == Nanos::ZERO {
            let deviation = chance.normal();
            self.doing = wait(wish, now, now, deviation, rules);
            return;
        }
        let begins = match granted {
            Some(served) => control.go_on(now, served, rules, chance),
            None => control.ask(now, rules, chance),
        };
        self.doing = Doing::Asked { wish, asked: now, begins };
    }

    /// Other code runs while a request is pending. If one instruction of it is enough to ask for
    /// the same level or a higher one, and it would be granted sooner, that request takes the place
    /// of the pending one, in the same slot.
    fn overtake(&mut self, now: Time, rules: &Rules, chance: &mut impl Chance) {
        let Some((rule, ask)) = rules.next_ask(&self.demand, self.level) else { return };
        let grant = rules.grant_time(ask, &self.demand, self.level, 1.0);
        let other = Wish { to: ask.level, rule, since: now, grant };
        let is_other =
            |wish: &Wish| rule != wish.rule && ask.is_immediate() && ask.level >= wish.to;
        match self.doing {
            Doing::Asked { wish, asked, begins } if is_other(&wish) => {
                let due =
                    |wish: &Wish, asked| due(wish, asked, begins, wish.grant.median_ns(), rules);
                if due(&other, now) < due(&wish, asked) {
                    self.doing = Doing::Asked { wish: other, asked: now, begins };
                }
            }
            Doing::Waiting { wish, due, begins, .. } if is_other(&wish) => {
                let sooner = wait(other, now, begins, chance.normal(), rules);
                if matches!(sooner, Doing::Waiting { due: at, .. } if at < due) {
                    self.doing = sooner;
                }
            }
            _ => {}
        }
    }

    /// Code that asks for a level starts.
    fn begins(&mut self, now: Time, asks: LicenseLevel, rules: &Rules) {
        if !rules.long_recurrences.is_empty() {
            (self.burst, self.between_long) = (Some(Burst { began: now, asked: asks }), None);
        }
        let gap = self.ended.take().map(|ended| now - ended);
        let is_short =
            |recurrence: &rules::Recurrence| gap.is_some_and(|gap| gap < recurrence.below);
        if rules.recurrence.as_ref().is_some_and(is_short) {
            self.recurs_since = self.recurs_since.or(self.first);
        } else {
            self.recurs_since = None;
            self.first = Some(now);
        }
    }

    /// Code that asks for no level follows a burst.
    fn burst_ends(&mut self, now: Time, rules: &Rules) {
        self.ended = Some(now);
        let Some(Burst { began, asked }) = self.burst.take() else { return };
        self.long.resize(rules.long_recurrences.len(), None);
        for (last, recurrence) in self.long.iter_mut().zip(&rules.long_recurrences) {
            if asked >= recurrence.level && now - began >= recurrence.burst {
                let recurs = last.is_some_and(|last| began - last.ended < recurrence.gap);
                let until = if recurs { now + recurrence.gap } else { now };
                *last = Some(Long { ended: now, until });
            }
        }
        self.slow_between_long(now, rules);
    }

    /// Of the recurrences of long bursts that are not over, the one that slows code most counts.
    fn slow_between_long(&mut self, now: Time, rules: &Rules) {
        let all = rules.long_recurrences.iter().zip(&self.long).enumerate();
        let slow = all.filter_map(|(number, (recurrence, last))| {
            let until = (*last)?.until;
            (until > now).then_some((recurrence.slowdown, BetweenLong { number, until }))
        });
        let most = slow.max_by(|(one, _), (other, _)| one.total_cmp(other));
        self.between_long = most.map(|(_, long)| long);
    }

    /// Code that asked for `had` ends, and code that asks for `asks` follows.
    fn ends(&mut self, now: Time, before: &Demand, had: LicenseLevel, asks: LicenseLevel) {
        let last = LastAsked { ended: now, class: before.class };
        let (asks, had) = (place(asks), place(had));
        if self.asked.len() < had {
            self.asked.resize(had, last);
        }
        // The entry of a level is that before its place, as L0 has none.
        self.asked.iter_mut().take(had).skip(asks).for_each(|level| *level = last);
    }

    /// Determines which level to ask for, or to release, for the running code. `granted`: the level
    /// was granted just now, by the slot that started then, and how much longer than its median
    /// that took.
    fn consider(
        &mut self,
        now: Time,
        granted: Option<(Time, f64)>,
        rules: &Rules,
        control: &mut PowerControl,
        chance: &mut impl Chance,
    ) {
        if let Some((rule, ask)) = rules.next_ask(&self.demand, self.level) {
            if matches!(self.doing, Doing::Counting { wish, .. } if wish.rule == rule) {
                return;
            }
            let instructions = ask.instructions(chance);
            let ratio = granted.map_or(1.0, |(_, ratio)| ratio);
            let grant = rules.grant_time(ask, &self.demand, self.level, ratio);
            self.counts += 1;
            let count = Count { id: self.counts, instructions };
            let wish = Wish { to: ask.level, rule, since: now, grant };
            self.doing = Doing::Counting { wish, count };
            if instructions == 1 {
                self.ask(now, granted.map(|(begins, _)| begins), rules, control, chance);
            }
        } else if rules.level_of(&self.demand) >= self.level {
            self.doing = Doing::Nothing;
        } else if !matches!(self.doing, Doing::Holding { .. }) {
            let last = self.last_asked(self.level);
            let since = last.map_or(now, |last| last.ended);
            let class = last.map_or(InstructionClass::Scalar, |last| last.class);
            let recurrent = self.recurrent_hold(now, rules);
            let hold = recurrent.unwrap_or_else(|| self.hold(class, rules, control, chance));
            let is_kept = recurrent.is_some() && rules.knows_kept_clock();
            self.doing = Doing::Holding { until: (since + hold).max(now), is_kept };
        }
    }

    /// The end of the last code that asked for this level.
    fn last_asked(&self, level: LicenseLevel) -> Option<LastAsked> {
        self.asked.get(place(level).checked_sub(1)?).copied()
    }

    /// The level to which the core goes when it releases its level now: that of the running code,
    /// or a higher one that is still held when the standstill is over.
    fn released_to(&self, now: Time, rules: &Rules) -> LicenseLevel {
        let asks = rules.level_of(&self.demand);
        let hold = self.recurrent_hold(now, rules).unwrap_or(Nanos::rounded(rules.hold_ns));
        let is_held = |level: &LicenseLevel| {
            let last = self.last_asked(*level);
            last.is_some_and(|last| last.ended + hold > now + rules.release_stall)
        };
        let mut between = (asks.index() + 1..self.level.index()).rev().map(LicenseLevel::new);
        between.find(is_held).unwrap_or(asks)
    }

    /// How long levels are held while bursts recur; `None` if they do not.
    fn recurrent_hold(&self, now: Time, rules: &Rules) -> Option<Nanos> {
        let (recurrence, since) = (rules.recurrence.as_ref()?, self.recurs_since?);
        let hold = recurrence.below.max(Nanos::rounded(rules.hold_ns));
        (now - since >= recurrence.after).then_some(hold)
    }

    /// How long the level is held after code of this class, where bursts do not recur.
    fn hold(
        &self,
        after: InstructionClass,
        rules: &Rules,
        control: &PowerControl,
        chance: &mut impl Chance,
    ) -> Nanos {
        let applies = |extended: &&rules::Extended| {
            extended.level.is_none_or(|level| level == self.level)
                && extended.class.is_none_or(|class| class <= after)
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

/// The request waits for its level, which comes later than usual by `deviation` standard
/// deviations.
fn wait(wish: Wish, asked: Time, begins: Time, deviation: f64, rules: &Rules) -> Doing {
    let due = due(&wish, asked, begins, wish.grant.at(deviation), rules);
    let took = (due - wish.since - (begins - asked)).as_f64();
    let median = wish.grant.median_ns();
    let ratio = if median > 0.0 { took / median } else { 1.0 };
    Doing::Waiting { wish, still: due - rules.stall, due, begins, ratio }
}

/// When a request that was made at `asked` is granted, if that takes `grant_ns` from the start of
/// the code and its slot starts at `begins`.
fn due(wish: &Wish, asked: Time, begins: Time, grant_ns: f64, rules: &Rules) -> Time {
    let granted = wish.since + Nanos::rounded(grant_ns.max(0.0));
    granted.max(asked + rules.stall) + (begins - asked)
}

/// The place of a level in a list.
fn place(level: LicenseLevel) -> usize {
    usize::try_from(level.index()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
