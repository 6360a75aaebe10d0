//! The rules of a model, as the license governor uses them.

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::{self, Assumed, Missing, Model, Path, Sourced, Upper};
use dimmer_processor::units::{LicenseLevel, Nanos, nearest};

use super::L0;
use crate::license::{Chance, Demand, log_normal};

/// What the model's values are needed for, in words for [`Missing`].
const NEEDED_FOR: &str = "the license governor of the processor";

/// The complete rules of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// The requests of each class.
    pub(super) asks: [Vec<Ask>; InstructionClass::ALL.len()],
    /// The time to a level for which no rule gives the time (ns).
    usual_ns: f64,
    /// The part of it in which the core stands still.
    pub(super) stall: Nanos,
    pub(super) is_in_turn: bool,
    pub(super) hold_ns: f64,
    pub(super) extended: Option<Extended>,
    pub(super) recurrence: Option<Recurrence>,
    /// In the order of the model.
    pub(super) long_recurrences: Vec<LongRecurrence>,
    pub(super) release_stall: Nanos,
    pub(super) slot: Nanos,
    pub(super) missed_share: f64,
    /// What the model lacks of these, and what is used in its place.
    assumed: Vec<(Basis, Assumed)>,
}

/// What rests on an assumption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basis {
    /// Code of this class that a rule for this level applies to.
    Rule(InstructionClass, Upper, LicenseLevel),
    /// All code that asks for a level.
    Any,
    /// Code that asks for several levels.
    SeveralLevels,
    /// Code that asks for a level, on several cores.
    SeveralCores,
}

/// Which code asks for which level, and how.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ask {
    upper: Upper,
    pub(super) level: LicenseLevel,
    /// Instructions until the code asks: median, and standard deviation of the logarithm.
    instructions: (f64, f64),
    least_per_cycle: f64,
    /// The time from the first instruction at L0 to the level (ns), in the same form.
    pub(super) grant_ns: Option<(f64, f64)>,
}

/// One of the rules: its class, and its place among those of the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AskId {
    class: InstructionClass,
    index: usize,
}

/// How long it takes from the start of code that asks to the level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct GrantTime {
    /// The time from L0 (ns): median, and standard deviation of the logarithm.
    median: f64,
    log_sd: f64,
    /// The part of it that passed before, on the way to the level that the core has (ns).
    behind: f64,
}

/// Releases that take longer, at random.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Extended {
    pub(super) share: f64,
    /// The same share beside a core that has a level.
    pub(super) share_beside: f64,
    pub(super) most_ns: f64,
    pub(super) level: Option<LicenseLevel>,
    pub(super) class: Option<InstructionClass>,
}

/// When a level is kept between bursts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Recurrence {
    /// While bursts recur at gaps below this ...
    pub(super) below: Nanos,
    /// ... and have done so for at least this long.
    pub(super) after: Nanos,
    /// Whether it was measured how much longer code takes then.
    pub(super) is_measured: bool,
}

/// When code runs slower between long bursts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LongRecurrence {
    /// While bursts that ask for this level or a higher one ...
    pub(super) level: LicenseLevel,
    /// ... for at least this long ...
    pub(super) burst: Nanos,
    /// ... recur at gaps below this.
    pub(super) gap: Nanos,
    /// How much longer code takes then.
    pub(super) slowdown: f64,
}

impl Ask {
    /// Draws the number of instructions until the code asks.
    pub(super) fn instructions(&self, chance: &mut impl Chance) -> u64 {
        let (median, log_sd) = self.instructions;
        let drawn =
            if log_sd == 0.0 { median } else { log_normal(median, log_sd, chance.normal()) };
        nearest(drawn).max(1)
    }

    /// Whether the first instruction always asks.
    pub(super) fn is_immediate(&self) -> bool {
        self.instructions == (1.0, 0.0)
    }
}

impl LongRecurrence {
    fn new(of: &model::LongRecurrence) -> Self {
        Self {
            level: of.level.value,
            burst: Nanos::from_ns(of.burst_ns.value),
            gap: Nanos::from_ns(of.gap_ns.value),
            slowdown: of.slowdown.value,
        }
    }
}

impl GrantTime {
    /// The median (ns).
    pub(super) fn median_ns(&self) -> f64 {
        self.median - self.behind
    }

    /// The time (ns) that is `deviation` standard deviations from the median.
    pub(super) fn at(&self, deviation: f64) -> f64 {
        log_normal(self.median, self.log_sd, deviation) - self.behind
    }
}

impl Rules {
    /// The rules of a processor; empty if it has only one level. [`Rules::assumed`] lists what is
    /// used in the place of missing values.
    ///
    /// # Errors
    /// If the model has neither the time until a level is granted nor the time for which code is
    /// throttled, or if it lacks the time for which a level is held.
    pub fn new(model: &Model) -> Result<Self, Missing> {
        let (request, release) = (&model.request, &model.release);
        let stall_ns = number(request.stall_ns.as_ref()).unwrap_or(0.0);
        let (mut usual_ns, mut hold_ns) = (stall_ns, 0.0);
        let mut assumed = Vec::new();
        let mut asks = InstructionClass::ALL.map(|_| Vec::new());
        let rules = model.rules.iter().filter(|rule| rule.level.value > L0);
        if rules.clone().any(|rule| rule.grant_ns.is_none()) {
            let throttled_ns = request.throttled_ns.as_ref().or(request.voltage_ns.as_ref());
            usual_ns += *model.require(throttled_ns, "request.throttled_ns", NEEDED_FOR)? as f64;
        }
        for rule in rules {
            let level = rule.level.value;
            let mut lacks = |key: &str, value: String| {
                let upper = if rule.upper == Upper::Dirty { ", upper dirty" } else { "" };
                let name = model.levels.iter().zip(0..).find(|(_, index)| *index == level.index());
                let name = name.map_or("", |(level, _)| level.name.as_str());
                let key = format!("rule.{key} ({}{upper}, {name})", rule.class.name());
                assumed
                    .push((Basis::Rule(rule.class, rule.upper, level), Assumed::new(key, value)));
            };
            if rule.instructions.is_none() {
                lacks("instructions", "1: the first instruction asks".to_owned());
            }
            if rule.grant_ns.is_none() {
                lacks("grant_ns", format!("{usual_ns} ns: the time throttled and the standstill"));
            }
            asks[rule.class as usize].push(Ask {
                upper: rule.upper,
                level,
                instructions: (
                    number(rule.instructions.as_ref()).unwrap_or(1.0),
                    share(rule.instructions_log_sd.as_ref()),
                ),
                least_per_cycle: share(rule.density_per_cycle.as_ref()),
                grant_ns: number(rule.grant_ns.as_ref())
                    .map(|ns| (ns, share(rule.grant_log_sd.as_ref()))),
            });
        }
        if asks.iter().any(|asks| !asks.is_empty()) {
            let key = "release.hold_ns";
            hold_ns = *model.require(release.hold_ns.as_ref(), key, NEEDED_FOR)? as f64;
        }
        let lacking = [
            (request.stall_ns.is_none(), Basis::Any, "request.stall_ns", "0 ns"),
            (request.path.is_none(), Basis::SeveralLevels, "request.path", "directly"),
            (
                request.slot_ns.is_none(),
                Basis::SeveralCores,
                "request.slot_ns",
                "none: requests of several cores do not wait for each other",
            ),
            (
                request.slot_ns.is_some() && request.missed_share.is_none(),
                Basis::SeveralCores,
                "request.missed_share",
                "0",
            ),
            (release.stall_ns.is_none(), Basis::Any, "release.stall_ns", "0 ns"),
        ];
        let lacking = lacking.into_iter().filter(|(is_lacking, ..)| *is_lacking);
        assumed.extend(lacking.map(|(_, basis, key, value)| (basis, Assumed::new(key, value))));
        let extended = release.extended_share.as_ref().zip(release.extended_ns.as_ref());
        let recurrence = release.recurrence_ns.as_ref().map(|below| Recurrence {
            below: Nanos::from_ns(below.value),
            after: nanos(release.recurrence_after_ns.as_ref()),
            is_measured: release.recurrence_slowdown.is_some(),
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
            long_recurrences: model.long_recurrences.iter().map(LongRecurrence::new).collect(),
            release_stall: nanos(release.stall_ns.as_ref()),
            slot: nanos(request.slot_ns.as_ref()),
            missed_share: share(request.missed_share.as_ref()),
            assumed,
        })
    }

    /// What is used in the place of values that the model lacks, as far as this code on `cores`
    /// cores of a package depends on it.
    pub fn assumed(&self, code: &[Demand], cores: u32) -> Vec<Assumed> {
        let levels = |demand: &Demand| self.asks_of(demand).count();
        let rests_on = |basis: &Basis| {
            code.iter().any(|demand| match *basis {
                Basis::Rule(class, upper, level) => {
                    let is_of = |ask: &Ask| ask.upper == upper && ask.level == level;
                    demand.class == class && self.asks_of(demand).any(is_of)
                }
                Basis::Any => levels(demand) > 0,
                Basis::SeveralLevels => levels(demand) > 1,
                Basis::SeveralCores => levels(demand) > 0 && cores > 1,
            })
        };
        let assumed = self.assumed.iter().filter(|(basis, _)| rests_on(basis));
        assumed.map(|(_, assumed)| assumed.clone()).collect()
    }

    /// Whether the clock between bursts for which a level is kept was measured.
    pub(super) fn knows_kept_clock(&self) -> bool {
        self.recurrence.as_ref().is_some_and(|recurrence| recurrence.is_measured)
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
        Some(self.next_ask(demand, L0)?.1.instructions(chance))
    }

    fn asks_of(&self, demand: &Demand) -> impl Iterator<Item = &Ask> {
        self.asks[demand.class as usize].iter().filter(|ask| ask.applies(demand))
    }

    /// The next request of the code at this level.
    pub(super) fn next_ask(&self, demand: &Demand, level: LicenseLevel) -> Option<(AskId, &Ask)> {
        let asks = self.asks[demand.class as usize].iter().enumerate();
        let higher = asks.filter(|(_, ask)| ask.applies(demand) && ask.level > level);
        let next = if self.is_in_turn {
            higher.min_by_key(|(_, ask)| ask.level)
        } else {
            higher.max_by_key(|(_, ask)| ask.level)
        };
        next.map(|(index, ask)| (AskId { class: demand.class, index }, ask))
    }

    /// The time from `level` to the requested level. `ratio`: how much longer than its median the
    /// way to `level` took, if the core goes on from there, else 1.
    pub(super) fn grant_time(
        &self,
        ask: &Ask,
        demand: &Demand,
        level: LicenseLevel,
        ratio: f64,
    ) -> GrantTime {
        let Some((median, log_sd)) = ask.grant_ns else {
            return GrantTime { median: self.usual_ns, log_sd: 0.0, behind: 0.0 };
        };
        let lower = self.asks_of(demand).filter(|lower| lower.level <= level);
        let behind = lower.filter_map(|lower| lower.grant_ns).map(|(ns, _)| ns);
        let behind = behind.fold(0.0, f64::max);
        GrantTime { median, log_sd, behind: if behind < median { behind * ratio } else { 0.0 } }
    }
}

impl Ask {
    /// Whether the rule applies to this code.
    fn applies(&self, demand: &Demand) -> bool {
        let is_upper = self.upper == Upper::Any || self.upper == demand.upper;
        is_upper && demand.per_cycle >= self.least_per_cycle
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
