//! The power control of a package, which serves the requests of its cores in slots.

use dimmer_processor::units::Time;

use super::Rules;
use crate::license::Chance;

/// The unit of a package that serves the requests of its cores, in slots that do not overlap.
///
/// A request that comes while no slot is running starts one at once. A request that comes while one
/// is running is served in the next slot, which starts when the running one ends, together with all
/// others that wait for it. Of the requests made at the moment at which a slot starts, each misses
/// it by itself with the model's share, and waits for the next. The requests of one slot are
/// decided when the slowest of them is: paper 000 §3.3.3 assumes that deciding several takes
/// longer, and the author's published raw data of figure 3.10 have them within 1 µs, where runs
/// differ by many.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PowerControl {
    /// When the running slot, or the last one, started and ends.
    begins: Time,
    ends: Time,
    /// Whether requests wait for the slot that starts when that one ends.
    is_next_asked: bool,
    /// The slots whose decision some core has yet to read. There are few.
    slots: Vec<Slot>,
    /// Cores that have a level above L0.
    pub(super) raised: usize,
}

/// A slot of the power control.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Slot {
    begins: Time,
    /// How much later than usual the slowest request is decided, in standard deviations.
    deviation: f64,
    /// Number of requests whose cores have not yet read the deviation.
    requests: u32,
}

impl PowerControl {
    /// Adds a request. Returns the start of the slot that serves it.
    pub(super) fn ask(&mut self, now: Time, rules: &Rules, chance: &mut impl Chance) -> Time {
        self.turn(now, rules);
        if now >= self.ends {
            self.begin(now, rules);
        } else if now > self.begins || chance.uniform() < rules.missed_share {
            return self.join_next(chance);
        }
        self.join(self.begins, chance)
    }

    /// Adds the request for the next level by a core that was granted one now, served by the slot
    /// that started at `served`. That slot ends with the grant if no other slot has started and no
    /// request waits for one. Otherwise the request is one like any other. Returns the start of the
    /// slot that serves it.
    pub(super) fn go_on(
        &mut self,
        now: Time,
        served: Time,
        rules: &Rules,
        chance: &mut impl Chance,
    ) -> Time {
        self.turn(now, rules);
        let is_over = now >= self.ends || self.begins == served && !self.is_next_asked;
        if is_over {
            self.begin(now, rules);
        } else if now > self.begins {
            return self.join_next(chance);
        }
        self.join(self.begins, chance)
    }

    /// Starts the slot that requests wait for, if its time has come.
    fn turn(&mut self, now: Time, rules: &Rules) {
        if self.is_next_asked && now >= self.ends {
            self.begin(self.ends, rules);
        }
    }

    fn begin(&mut self, begins: Time, rules: &Rules) {
        (self.begins, self.ends) = (begins, begins + rules.slot);
        self.is_next_asked = false;
    }

    fn join_next(&mut self, chance: &mut impl Chance) -> Time {
        self.is_next_asked = true;
        self.join(self.ends, chance)
    }

    /// Adds a request to the slot that starts at `begins`. Returns that time.
    fn join(&mut self, begins: Time, chance: &mut impl Chance) -> Time {
        let deviation = chance.normal();
        match self.slots.iter_mut().find(|slot| slot.begins == begins) {
            Some(slot) => {
                slot.deviation = slot.deviation.max(deviation);
                slot.requests += 1;
            }
            None => self.slots.push(Slot { begins, deviation, requests: 1 }),
        }
        begins
    }

    /// Returns to a core how much later than usual the slot is decided, in standard deviations,
    /// once no request can join it any more.
    pub(super) fn deviation(&mut self, begins: Time) -> f64 {
        let Some(at) = self.slots.iter().position(|slot| slot.begins == begins) else { return 0.0 };
        let slot = &mut self.slots[at];
        let deviation = slot.deviation;
        slot.requests -= 1;
        if slot.requests == 0 {
            self.slots.swap_remove(at);
        }
        deviation
    }

    /// Whether no request waits, for tests.
    #[cfg(test)]
    pub(super) fn is_settled(&self) -> bool {
        self.slots.is_empty()
    }
}
