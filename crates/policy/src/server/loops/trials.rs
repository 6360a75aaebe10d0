//! A feedback loop that asks one question at a time: do all clients together do better with this
//! group of calls moved, or without?
//!
//! A group is the calls of one region of one program, in all its processes. Processes that share
//! cores slow each other, so a trial of one of them alone shows little (paper 001 §6.3: "stuck with
//! only half of the clients offloaded which is the worst-case-scenario"). At the end of a window at
//! most one group changes sides. The change of performance over it is a sample of what moving the
//! group brings. Changing it back is another sample, so that drifts of the load cancel (a
//! *switchback* experiment: Bojinov, Simchi-Levi and Zhao, "Design and Analysis of Switchback
//! Experiments", 2023).
//!
//! The choice of the group follows discounted UCB (Garivier and Moulines, "On Upper-Confidence
//! Bound Policies for Switching Bandit Problems", 2011): samples lose weight with time, and a side
//! that has not been tried for long may be better than known by `2 B √(ξ ln n / N)`. `B` is the
//! range of rewards there. Here it is the noise between windows, as in UCB-tuned (Auer,
//! Cesa-Bianchi and Fischer, "Finite-time Analysis of the Multiarmed Bandit Problem", 2002, §4).
//!
//! While that leaves open whether moving is worthwhile, calls stay, except in trials, so that
//! chance alone moves nothing. If the processor's model expects a benefit, calls are moved
//! meanwhile, except in trials, until one trial refutes the expectation or enough trials fail to
//! support it. If no window can be compared with another, they are moved for one window, and again
//! when that is paid for.
//!
//! Trials have to be paid for: a group waits for its next trial until the extra time on CPUs of its
//! moved calls is a small part of the time ([`Settings::most_spent`]). A jump of performance that
//! no group here has caused makes all samples old, as in Liu, Lee and Shroff, "A Change-Detection
//! Based Framework for Piecewise-Stationary Multi-Armed Bandit Problem", 2018.

use std::collections::BTreeMap;

use dimmer_processor::units::{Nanos, Time};

use super::{Constant, Constants, Definition, LONGEST_MS, Loop, WindowEnd};
use crate::server::UserId;
use crate::server::decision::{Action, Reason};
use crate::server::evidence::Density;
use crate::server::performance::Trend;
use crate::server::settings;
use crate::ways::WORTHWHILE;

/// The loop as configurations name it.
pub static DEFINITION: Definition = Definition {
    name: "trials",
    summary: "trials of each region of a program, with and without moving",
    constants: || Box::new(Settings::USUAL),
    settings: |cores, prices| settings::Settings { prices, ..settings::Settings::usual(cores) },
};

/// The constants of the loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How long performance is measured after a change has settled.
    pub window: Nanos,
    /// How long a change takes to settle: decisions have to arrive and queues to empty.
    /// Performance is not measured meanwhile.
    pub settle: Nanos,
    /// The part of a sample's weight that is left after a window.
    pub discount: f64,
    /// ξ of UCB.
    pub exploration: f64,
    /// Samples of this weight are enough: what they leave open is chance, and is examined again
    /// when they weigh less.
    pub enough: f64,
    /// The noise is assumed to be no less than this, in parts of performance.
    pub least_noise: f64,
    /// The gain that makes moving worth a core, in parts of performance.
    pub least_gain: f64,
    /// A change of this many times the noise, and of [`Self::least_jump`], is a change of the load.
    pub jump: f64,
    /// The smallest change that counts as a change of the load, in parts of performance.
    pub least_jump: f64,
    /// The time on CPUs that trials of a group may take in the long run, in parts of its clients'
    /// time: by how much their calls last longer, while their threads spin, and how long the
    /// dedicated core works meanwhile.
    pub most_spent: f64,
}

impl Settings {
    /// For usual machines.
    pub const USUAL: Self = Self {
        // Guesses: several hundred updates of a client that reports every 100 calls of some
        // microseconds.
        window: Nanos::from_ms(1000),
        settle: Nanos::from_ms(200),
        // Half the weight after a minute; a guess, as programs' habits change.
        discount: 0.99,
        // Garivier and Moulines 2011, §4: the smallest value for which the bound on regret holds.
        exploration: 0.5,
        // A guess: a load without any difference is then tried in one window of twenty, not in
        // every one.
        enough: 5.0,
        least_noise: WORTHWHILE / 2.0,
        least_gain: WORTHWHILE,
        // Chance exceeds five standard deviations once in a million windows.
        jump: 5.0,
        // A guess: a few times what is worthwhile.
        least_jump: 0.05,
        // Trials that take as much as is worthwhile give back nothing; half of it is a guess.
        most_spent: WORTHWHILE / 2.0,
    };
}

impl Constants for Settings {
    fn definition(&self) -> &'static Definition {
        &DEFINITION
    }

    fn copy(&self) -> Box<dyn Constants> {
        Box::new(*self)
    }

    /// With any of these together, two samples show that moving is worthwhile which doubles
    /// performance.
    fn list(&mut self) -> Vec<Constant<'_>> {
        vec![
            Constant::time("window_ms", &mut self.window, (1.0, LONGEST_MS)),
            Constant::time("settle_ms", &mut self.settle, (0.0, LONGEST_MS)),
            // Below, nothing is left of the first sample of a trial when the second comes. At 1,
            // UCB knows no number of samples: ln(1 / (1 - discount)) is infinite.
            Constant::number("discount", &mut self.discount, (0.5, 0.9999)),
            // At 0, what was never tried counts as known. Above, chance hides any gain.
            Constant::number("exploration", &mut self.exploration, (0.01, 5.0)),
            // Fewer than one sample are never enough to begin with.
            Constant::number("enough", &mut self.enough, (1.0, 1000.0)),
            // As `exploration`.
            Constant::number("least_noise", &mut self.least_noise, (0.0001, 0.05)),
            Constant::number("least_gain", &mut self.least_gain, (0.0, 0.5)),
            // Below, noise counts as a change of the load, which makes all samples old.
            Constant::number("jump", &mut self.jump, (1.0, 1000.0)),
            Constant::number("least_jump", &mut self.least_jump, (0.0, 1.0)),
            // At 0, no trial but the first is ever paid for.
            Constant::number("most_spent", &mut self.most_spent, (0.0001, 1.0)),
        ]
    }

    fn start(&self, _now: Time) -> Box<dyn Loop> {
        Box::new(Trials::new(*self))
    }
}

/// A trial ends early when its calls have lasted longer than at home by this part of a window: the
/// code around them would have to gain more than that. It is about the most that a program gains in
/// paper 001 (§6.3: nginx loses 8.5 % instead of 17 %). The work of the dedicated core does not
/// count here: it does not slow the program, and it soon adds up to as much for a program with many
/// threads.
const DEAR: f64 = 0.1;

/// What is known about a group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Group {
    /// What moving brings, in parts of performance; `weight` is the weight of the samples.
    gain: f64,
    weight: f64,
    is_moved: bool,
    /// Whether moving is expected to be worthwhile, if samples do not decide it.
    is_expected: bool,
    /// Whether it came in the middle of the window: the next window cannot be compared with this
    /// one.
    is_new: bool,
    /// What its trials took and have not paid for yet (ns of each member's time).
    spent_ns: f64,
    /// By how much its calls have lasted longer in the window (ns of each member's time).
    longer_ns: f64,
    /// Number of members whose calls may be moved at all.
    candidates: usize,
    /// The user whose calls they are.
    user: UserId,
}

/// The state of the loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Trials {
    settings: Settings,
    groups: Vec<Group>,
    /// The group that changed sides at the end of the last window.
    changed: Option<usize>,
    /// A group that is moved without being known to be better, and that is too expensive to go on
    /// until the end of the window.
    dear: Option<usize>,
    /// Number of windows, the present one first, that cannot be compared with the one before: a
    /// group was first moved in their middle.
    unlike: u8,
    /// Whether no window could be compared since a group changed sides.
    is_blind: bool,
    /// The mean square of the noise in trends, and its weight.
    noise: (f64, f64),
    /// The number of each user's last turn. A user's groups do not come before another's, however
    /// many they are.
    turns: BTreeMap<UserId, u64>,
}

impl Trials {
    /// Starts with nothing known and nothing moved.
    #[must_use]
    pub const fn new(settings: Settings) -> Self {
        Self {
            settings,
            groups: Vec::new(),
            changed: None,
            dear: None,
            unlike: 0,
            is_blind: false,
            noise: (0.0, 0.0),
            turns: BTreeMap::new(),
        }
    }

    /// Returns a group. It is a new one if it was not known.
    fn with(&mut self, group: usize) -> &mut Group {
        if group >= self.groups.len() {
            self.groups.resize(group + 1, Group::default());
        }
        &mut self.groups[group]
    }

    /// Whether a group's calls are moved now.
    fn is_moved(&self, group: usize) -> bool {
        self.groups.get(group).is_some_and(|group| group.is_moved)
    }

    /// The gain of moving a group, in parts of performance, as far as known.
    fn gain(&self, group: usize) -> Option<f64> {
        self.groups.get(group).filter(|group| group.weight > 0.0).map(|group| group.gain)
    }

    /// Whether a group is on its present side for a trial.
    fn is_tried(&self, group: usize) -> bool {
        self.groups.get(group).is_some_and(|group| group.is_moved != self.is_better(group))
    }

    fn leave_out(&mut self, group: usize) {
        self.changed = self.changed.filter(|changed| *changed != group);
        self.dear = self.dear.filter(|dear| *dear != group);
    }

    /// Ends a window that [`Loop::pass`] has counted. `trend` is the change of performance since
    /// the window before. Returns the group that changes sides, if any does. No group is tried if
    /// the next window could not be compared with this one.
    ///
    /// # Cost
    /// Linear in groups.
    fn change_side(&mut self, trend: Trend) -> Option<usize> {
        let change = trend.change().filter(|change| change.is_finite());
        let dear = self.dear.take();
        // A window that ends early for a group that had not changed sides belongs to no trial.
        let is_alike = self.unlike == 0 && (dear.is_none() || dear == self.changed);
        if let Some(change) = change.filter(|_| is_alike) {
            self.learn(change);
        }
        if let Some(dear) = dear.and_then(|dear| self.groups.get_mut(dear)) {
            // The expectation of a benefit did not include this price.
            dear.is_expected = false;
        }
        self.unlike = self.unlike.saturating_sub(1);
        // Processes that come and go can have a first window again and again, and never a second.
        self.is_blind = change.is_none() && (self.is_blind || self.changed.is_some());
        let is_comparable = trend != Trend::Unknown && !self.is_blind;
        if !is_comparable {
            // Then nothing refutes the expectation: it has to be paid for, as trials are.
            let untried = |group: &&mut Group| group.weight <= 0.0 && group.spent_ns > 0.0;
            let untried = self.groups.iter_mut().filter(untried).filter(|group| !group.is_new);
            untried.for_each(|group| group.is_expected = false);
        }
        let candidates = self.groups.iter().enumerate().filter(|(_, group)| group.candidates > 0);
        let wrong = |(_, group): &(usize, &Group)| group.is_moved != self.is_better(group);
        self.changed = match candidates.clone().find(wrong) {
            Some((number, _)) => Some(number),
            None if !is_comparable || self.unlike > 0 => None,
            None => {
                let may_be_better = |group: &Group| {
                    self.unknown(group) - (group.gain - self.settings.least_gain).abs()
                };
                let is_open = |group: &Group| {
                    let enough = if self.is_agreed(group) { 1.0 } else { self.settings.enough };
                    let is_paid = group.is_moved || group.spent_ns <= 0.0;
                    group.weight < enough && is_paid && !group.is_new
                };
                let open = candidates.filter(|(_, group)| is_open(group));
                let known = open.map(|(number, group)| {
                    let turn = self.turns.get(&group.user).copied().unwrap_or(0);
                    (number, turn, may_be_better(group))
                });
                // The first of the greatest, of the user who has waited for longest.
                let better = |best: (usize, u64, f64), other: (usize, u64, f64)| {
                    let is_other = other.1 < best.1 || (other.1 == best.1 && other.2 > best.2);
                    if is_other { other } else { best }
                };
                let best = known.filter(|(.., index)| *index > 0.0).reduce(better);
                best.map(|(number, ..)| self.turn(number))
            }
        };
        if let Some(group) = self.changed.and_then(|number| self.groups.get_mut(number)) {
            group.is_moved = !group.is_moved;
        }
        for group in &mut self.groups {
            (group.is_new, group.longer_ns) = (false, 0.0);
        }
        self.changed
    }

    /// Gives this group its turn, which is also its user's.
    fn turn(&mut self, group: usize) -> usize {
        let next = self.turns.values().max().map_or(1, |last| last.saturating_add(1));
        if self.turns.len() > self.groups.len() {
            let groups = &self.groups;
            self.turns.retain(|user, _| groups.iter().any(|group| group.user == *user));
        }
        self.turns.insert(self.groups[group].user, next);
        group
    }

    fn learn(&mut self, trend: f64) {
        // No group gains more than a doubling. Without a bound, the value would be noise for ever.
        let trend = trend.clamp(-1.0, 1.0);
        let is_jump = trend.abs() > self.settings.least_jump.max(self.settings.jump * self.noise());
        let chance = if let Some(group) = self.changed.and_then(|of| self.groups.get_mut(of)) {
            let sample = if group.is_moved { trend } else { -trend };
            let Group { gain, weight, .. } = *group;
            group.gain = (gain * weight + sample) / (weight + 1.0);
            group.weight += 1.0;
            // The distance of samples from what was known measures the noise as well. Nothing else
            // does where groups change all the time. The variance of this difference is 1 + 1 /
            // weight times that of the samples.
            Some((sample - gain).powi(2) * weight / (weight + 1.0)).filter(|_| weight > 0.0)
        } else if is_jump {
            // A jump neither confirms nor refutes what is known about programs that are not there.
            let present = self.groups.iter_mut().filter(|group| group.candidates > 0);
            present.for_each(|group| group.weight = 0.0);
            None
        } else {
            Some(trend * trend)
        };
        if let Some(square) = chance {
            let (mean, weight) = self.noise;
            let weight = weight * self.settings.discount;
            self.noise = ((mean * weight + square) / (weight + 1.0), weight + 1.0);
        }
        let is_refuted = |group: &Group| {
            // Samples that are enough count as they are, chance or not.
            let is_enough = group.weight >= self.settings.enough;
            self.known(group) == Some(false)
                || (is_enough && group.gain <= self.settings.least_gain)
        };
        if let Some(tried) = self.changed.filter(|of| self.groups.get(*of).is_some_and(is_refuted))
        {
            self.groups[tried].is_expected = false;
        }
    }

    fn noise(&self) -> f64 {
        self.noise.0.sqrt().max(self.settings.least_noise)
    }

    /// Whether a group is known to do better when it is moved, beyond chance.
    fn is_known_better(&self, group: usize) -> bool {
        self.known_of(group) == Some(true)
    }

    fn known_of(&self, group: usize) -> Option<bool> {
        self.groups.get(group).and_then(|group| self.known(group))
    }

    /// Whether moving is worthwhile, if that is known beyond chance.
    fn known(&self, group: &Group) -> Option<bool> {
        let above = group.gain - self.settings.least_gain;
        (above.abs() > self.unknown(group)).then_some(above > 0.0)
    }

    /// Whether samples agree with the expectation, perhaps by chance: that is enough until they are
    /// old.
    fn is_agreed(&self, group: &Group) -> bool {
        group.is_expected && group.weight > 0.0 && group.gain > self.settings.least_gain
    }

    /// Whether the group should be moved, by what is known, or if nothing is, by what is expected.
    fn is_better(&self, group: &Group) -> bool {
        self.known(group).unwrap_or(group.is_expected)
    }

    /// By how much a group's gain may differ from the known one.
    fn unknown(&self, group: &Group) -> f64 {
        let samples = 1.0 / (1.0 - self.settings.discount);
        2.0 * self.noise() * (self.settings.exploration * samples.ln() / group.weight).sqrt()
    }
}

impl Loop for Trials {
    fn copy(&self) -> Box<dyn Loop> {
        Box::new(self.clone())
    }

    fn window_length(&self) -> Nanos {
        self.settings.window
    }

    fn decide(&self, group: usize, _density: &Density) -> (Action, Reason) {
        let is_moved = self.is_moved(group);
        let reason = if self.is_tried(group) {
            Reason::Tried
        } else if self.is_known_better(group) {
            Reason::Worth
        } else if is_moved {
            Reason::Expected
        } else if self.gain(group).is_none() {
            Reason::Untried
        } else {
            Reason::NotWorth
        };
        (if is_moved { Action::Move } else { Action::Stay }, reason)
    }

    fn window(&mut self, WindowEnd { trend, .. }: WindowEnd) -> bool {
        self.change_side(trend).is_some()
    }

    fn settling(&self) -> Option<Nanos> {
        Some(self.settings.settle)
    }

    /// Whether the present trial has taken so much already that the window has to end.
    fn ends_early(&self) -> bool {
        self.dear.is_some()
    }

    /// Samples lose weight, and groups with members pay for trials.
    fn pass(&mut self, windows: u64) {
        // A larger number has the same effect: nothing is left.
        let windows = i32::try_from(windows).unwrap_or(i32::MAX);
        let left = self.settings.discount.powi(windows);
        let paid = self.settings.most_spent * self.settings.window.as_f64() * f64::from(windows);
        for group in &mut self.groups {
            group.weight *= left;
            // Time in which no member runs pays for nothing. Otherwise programs that come often for
            // a short while would be tried each time. The window includes the time before the
            // members came, if there was no client to end it.
            if group.candidates > 0 && !group.is_new {
                group.spent_ns = (group.spent_ns - paid).max(0.0);
            }
        }
    }

    fn own(&mut self, group: usize, user: UserId) {
        self.with(group).user = user;
    }

    fn candidate(&mut self, group: usize, is_one: bool) {
        let Group { candidates, is_new, .. } = self.with(group);
        let comes = is_one && *candidates == 0;
        *is_new |= comes;
        *candidates =
            if is_one { candidates.saturating_add(1) } else { candidates.saturating_sub(1) };
        // The windows of the new member may be comparable.
        self.is_blind &= !comes;
    }

    /// The group is moved from now on if that is worthwhile, nothing is known about the group,
    /// nothing is tried, and its trials are paid for.
    fn expect(&mut self, group: usize, gain: f64) {
        // Nor in the window after one in which another group was first moved: with one such start
        // after the other, no windows could ever be compared.
        let is_idle = self.changed.is_none() && self.unlike != 1;
        if let Some(known) = self.groups.get_mut(group)
            && is_idle
            && (known.weight <= 0.0 && known.spent_ns <= 0.0 && !known.is_moved)
            && gain > self.settings.least_gain
        {
            (known.is_moved, known.is_expected) = (true, true);
            // The present window, and the first one in which the group is moved from start to end.
            self.unlike = 2;
        }
    }

    /// Together this is the price of a trial, unless moving is known to be better.
    fn spend(&mut self, group: usize, longer_ns: f64, worked_ns: f64) {
        // Calls that are still moved after the end of a trial belong to it, too.
        let is_open = |known: &Group| self.known(known) != Some(true) && !self.is_agreed(known);
        let is_open = self.groups.get(group).is_some_and(is_open);
        if let Some(known) =
            self.groups.get_mut(group).filter(|_| is_open && (longer_ns + worked_ns).is_finite())
        {
            let each = |ns: f64| ns.max(0.0) / known.candidates.max(1) as f64;
            known.longer_ns += each(longer_ns);
            known.spent_ns += each(longer_ns + worked_ns);
            if known.is_moved && known.longer_ns > DEAR * self.settings.window.as_f64() {
                self.dear = Some(group);
            }
        }
    }

    /// When a member comes again, the group starts on its better side.
    fn rest(&mut self, group: usize) {
        let Some(mut known) = self.groups.get(group).copied() else { return };
        // A group that was never sampled has to be expected again, when that is paid for.
        known.is_expected &= known.weight > 0.0;
        known.is_moved = self.is_better(&known);
        self.groups[group] = known;
        // The change of performance when the group goes is no evidence about it.
        self.leave_out(group);
    }

    fn forget(&mut self, group: usize) {
        if let Some(known) = self.groups.get_mut(group) {
            *known = Group::default();
        }
        self.leave_out(group);
    }
}

#[cfg(test)]
mod tests;
