//! A feedback loop that asks one question at a time: does all of it do better with this group of
//! calls moved, or without?
//!
//! A group is the calls of one region of one program, in all its processes: processes that share
//! cores slow each other, so trying one of them alone tells little (paper 001 §6.3: "stuck with
//! only half of the clients offloaded which is the worst-case-scenario"). At the end of a window at
//! most one group changes sides, and the change of performance over it is a sample of what moving
//! the group brings. Changing it back is another, so that drifts of the load cancel (a *switchback*
//! experiment: Bojinov, Simchi-Levi and Zhao, "Design and Analysis of Switchback Experiments",
//! 2023).
//!
//! Which group changes is decided as in discounted UCB (Garivier and Moulines, "On Upper-Confidence
//! Bound Policies for Switching Bandit Problems", 2011): samples lose weight with time, and a side
//! that has not been tried for long may be better than known by `2 B √(ξ ln n / N)`. While that
//! leaves open whether moving is worthwhile, calls stay, but for the trial: chance is to have
//! nothing moved. Where the processor's model expects it to be worthwhile they are moved meanwhile,
//! but for the trial, until one refutes that, or as many as are enough do not support it; where no
//! window can be compared with another, for one that is paid for. `B`, there the range of rewards,
//! is here the noise between windows, as in UCB-tuned (Auer, Cesa-Bianchi and Fischer, "Finite-time
//! Analysis of the Multiarmed Bandit Problem", 2002, §4). What trials take is paid for: by so much
//! time on CPUs as moved calls took more, a group waits for its next one until that is a small part
//! of the time ([`Settings::most_spent`]). A jump of performance that nobody here has caused makes
//! all samples old, as in Liu, Lee and Shroff, "A Change-Detection Based Framework for
//! Piecewise-Stationary Multi-Armed Bandit Problem", 2018.

use std::collections::BTreeMap;

use super::UserId;
use super::performance::Trend;
use crate::license::Time;
use crate::ways::WORTHWHILE;

/// The constants of the loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How long performance is measured for after each change (ns).
    pub window_ns: Time,
    /// How long before that is left out, until decisions have arrived and queues have emptied (ns).
    pub settle_ns: Time,
    /// What is left of a sample's weight after a window.
    pub discount: f64,
    /// ξ of UCB.
    pub exploration: f64,
    /// Samples of this weight are enough: what they leave open is chance, and is looked at again
    /// when they weigh less.
    pub enough: f64,
    /// The noise is taken to be no less than this, in parts of performance.
    pub least_noise: f64,
    /// What moving has to bring, in parts of performance, to be worth a core.
    pub least_gain: f64,
    /// A change of so many times the noise, and of [`Self::least_jump`], is one of the load.
    pub jump: f64,
    /// In parts of performance.
    pub least_jump: f64,
    /// How much time on CPUs trials of a group may take in the long run, in parts of its clients'
    /// time: by how much their calls last longer, in which their threads spin, and what the
    /// dedicated core works meanwhile.
    pub most_spent: f64,
}

impl Settings {
    /// For machines as they are.
    pub const USUAL: Self = Self {
        // Guesses: several hundred updates of a client that reports every 100 calls of some
        // microseconds.
        window_ns: 1_000_000_000,
        settle_ns: 200_000_000,
        // Half the weight after a minute; a guess, as programs' habits change.
        discount: 0.99,
        // Garivier and Moulines 2011, §4: the least for which the bound on regret holds.
        exploration: 0.5,
        // A guess: a load without any difference is then tried in one window of twenty, and not in
        // every one.
        enough: 5.0,
        least_noise: WORTHWHILE / 2.0,
        least_gain: WORTHWHILE,
        // Five standard deviations are chance once in a million windows.
        jump: 5.0,
        // A guess: a few times what is worthwhile.
        least_jump: 0.05,
        // Trials that take what is worthwhile give back nothing; half of it is a guess.
        most_spent: WORTHWHILE / 2.0,
    };
}

/// A trial ends early when its calls have lasted longer by so much of a window than where they are:
/// code around them would have to gain more than that. It is about the most that a program gains in
/// paper 001 (§6.3: nginx loses 8.5 % instead of 17 %). What the dedicated core works does not slow
/// the program, and is soon as much for one with many threads.
const DEAR: f64 = 0.1;

/// What is known of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Group {
    /// What moving brings, in parts of performance, and the weight of the samples.
    gain: f64,
    weight: f64,
    is_moved: bool,
    /// Whether moving is expected to be worthwhile, where samples do not say.
    is_expected: bool,
    /// Whether it came in the midst of the window: what it does in the next one cannot be compared
    /// with that.
    is_new: bool,
    /// What its trials took and is not paid for yet (ns of each member's time).
    spent_ns: f64,
    /// By how much its calls have lasted longer in the window (ns of each member's time).
    longer_ns: f64,
    /// Members whose calls may be moved at all.
    candidates: usize,
    /// Whose they are.
    user: UserId,
}

/// The state of the loop. Groups are numbered by the caller, from 0 without large holes.
#[derive(Clone, Debug, PartialEq)]
pub struct Trials {
    settings: Settings,
    groups: Vec<Group>,
    /// Changed at the end of the last window.
    changed: Option<usize>,
    /// Moved without being known to be better, and too dear for that to go on until the end of the
    /// window.
    dear: Option<usize>,
    /// So many windows, the present one first, cannot be compared with the one before: a group
    /// began to be moved in their midst.
    unlike: u8,
    /// Whether nothing could be compared since a group changed sides.
    is_blind: bool,
    /// The mean square of what chance did to trends, and its weight.
    noise: (f64, f64),
    /// How many groups had been tried before a user's last was. One user's are not tried before
    /// another's however many they are.
    turns: BTreeMap<UserId, u64>,
}

impl Trials {
    /// Nothing is known, nothing is moved.
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

    /// A group is this user's.
    pub fn own(&mut self, group: usize, user: UserId) {
        self.with(group).user = user;
    }

    /// A group, which is a new one where it was not known.
    fn with(&mut self, group: usize) -> &mut Group {
        if group >= self.groups.len() {
            self.groups.resize(group + 1, Group::default());
        }
        &mut self.groups[group]
    }

    /// Whether a group's calls are moved now.
    #[must_use]
    pub fn is_moved(&self, group: usize) -> bool {
        self.groups.get(group).is_some_and(|group| group.is_moved)
    }

    /// What moving a group brings, in parts of performance, as far as known.
    #[must_use]
    pub fn gain(&self, group: usize) -> Option<f64> {
        self.groups.get(group).filter(|group| group.weight > 0.0).map(|group| group.gain)
    }

    /// Whether what is tried now has taken so much already that the window is to end.
    #[must_use]
    pub const fn is_dear(&self) -> bool {
        self.dear.is_some()
    }

    /// Whether a group is where it is to find out more.
    #[must_use]
    pub fn is_tried(&self, group: usize) -> bool {
        self.groups.get(group).is_some_and(|group| group.is_moved != self.is_better(group))
    }

    /// So many windows have passed: what is known loses weight, and who is there pays for trials.
    pub fn pass(&mut self, windows: u64) {
        // More are as good as these: nothing is left.
        let windows = i32::try_from(windows).unwrap_or(i32::MAX);
        let left = self.settings.discount.powi(windows);
        let paid = self.settings.most_spent * self.settings.window_ns as f64 * f64::from(windows);
        for group in &mut self.groups {
            group.weight *= left;
            // The time in which none of them runs is nobody's to pay with: programs that come often
            // for a short while would be tried each time. That before they came is of the window,
            // too, if nobody was there to end it.
            if group.candidates > 0 && !group.is_new {
                group.spent_ns = (group.spent_ns - paid).max(0.0);
            }
        }
    }

    /// A group's moved calls, those of one member, have lasted so much longer than they would have
    /// where they are, and the dedicated core has worked for so long (ns). Together that is the
    /// price of trying, where it is not known that moving is better.
    pub fn spend(&mut self, group: usize, longer_ns: f64, worked_ns: f64) {
        // Calls that are still moved when a trial has ended are of it, too.
        let is_open = |known: &Group| self.known(known) != Some(true) && !self.is_agreed(known);
        let is_open = self.groups.get(group).is_some_and(is_open);
        if let Some(known) =
            self.groups.get_mut(group).filter(|_| is_open && (longer_ns + worked_ns).is_finite())
        {
            let each = |ns: f64| ns.max(0.0) / known.candidates.max(1) as f64;
            known.longer_ns += each(longer_ns);
            known.spent_ns += each(longer_ns + worked_ns);
            if known.is_moved && known.longer_ns > DEAR * self.settings.window_ns as f64 {
                self.dear = Some(group);
            }
        }
    }

    /// The last member of a group has gone: it is to begin where it does better when one comes
    /// again.
    pub fn rest(&mut self, group: usize) {
        let Some(mut known) = self.groups.get(group).copied() else { return };
        // What was never sampled is expected anew, if that is paid for.
        known.is_expected &= known.weight > 0.0;
        known.is_moved = self.is_better(&known);
        self.groups[group] = known;
        // How performance changes with its going tells nothing of it.
        self.leave_out(group);
    }

    /// A number is used anew, for a group of which nothing is known.
    pub fn forget(&mut self, group: usize) {
        if let Some(known) = self.groups.get_mut(group) {
            *known = Group::default();
        }
        self.leave_out(group);
    }

    fn leave_out(&mut self, group: usize) {
        self.changed = self.changed.filter(|changed| *changed != group);
        self.dear = self.dear.filter(|dear| *dear != group);
    }

    /// Moving a group is expected to bring so much, in parts of performance. Where nothing is known
    /// of it, nothing is tried, and its trials are paid for, it is moved from now on if that is
    /// worthwhile.
    pub fn expect(&mut self, group: usize, gain: f64) {
        // Nor in the window after one in which another began to: with one after the other nothing
        // would ever be compared.
        let is_idle = self.changed.is_none() && self.unlike != 1;
        if let Some(known) = self.groups.get_mut(group)
            && is_idle
            && (known.weight <= 0.0 && known.spent_ns <= 0.0 && !known.is_moved)
            && gain > self.settings.least_gain
        {
            (known.is_moved, known.is_expected) = (true, true);
            // That in which it does, and the first in which it is moved from begin to end.
            self.unlike = 2;
        }
    }

    /// One more member of a group, or one fewer, may be moved.
    pub fn candidate(&mut self, group: usize, is_one: bool) {
        let Group { candidates, is_new, .. } = self.with(group);
        let comes = is_one && *candidates == 0;
        *is_new |= comes;
        *candidates =
            if is_one { candidates.saturating_add(1) } else { candidates.saturating_sub(1) };
        // Its windows may be comparable.
        self.is_blind &= !comes;
    }

    /// The end of a window that [`Self::pass`] was told of, given how performance has changed since
    /// the one before. The group that changes sides, if any does; none is tried where the next
    /// window could not be compared with this one.
    ///
    /// # Cost
    /// Linear in groups.
    pub fn window(&mut self, trend: Trend) -> Option<usize> {
        let change = trend.change().filter(|change| change.is_finite());
        let dear = self.dear.take();
        // A window that ends early for a group that had not changed sides is no trial's.
        let is_alike = self.unlike == 0 && (dear.is_none() || dear == self.changed);
        if let Some(change) = change.filter(|_| is_alike) {
            self.learn(change);
        }
        if let Some(dear) = dear.and_then(|dear| self.groups.get_mut(dear)) {
            // Whoever expected that it is worthwhile did not expect this.
            dear.is_expected = false;
        }
        self.unlike = self.unlike.saturating_sub(1);
        // Processes that come and go can have a first window again and again, and never a second.
        self.is_blind = change.is_none() && (self.is_blind || self.changed.is_some());
        let is_comparable = trend != Trend::Unknown && !self.is_blind;
        if !is_comparable {
            // Then nothing refutes what is expected: that has to be paid for as trials are.
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

    /// It is this group's turn, and so its user's.
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
        // More than a doubling is nobody's gain; without a bound it would be noise for ever.
        let trend = trend.clamp(-1.0, 1.0);
        let is_jump = trend.abs() > self.settings.least_jump.max(self.settings.jump * self.noise());
        let chance = if let Some(group) = self.changed.and_then(|of| self.groups.get_mut(of)) {
            let sample = if group.is_moved { trend } else { -trend };
            let Group { gain, weight, .. } = *group;
            group.gain = (gain * weight + sample) / (weight + 1.0);
            group.weight += 1.0;
            // How far samples are from what was known tells the noise as well, and nothing else
            // does where groups change all the time. The variance of their difference is 1 + 1 /
            // weight times theirs.
            Some((sample - gain).powi(2) * weight / (weight + 1.0)).filter(|_| weight > 0.0)
        } else if is_jump {
            // What is known of programs that are not there is neither confirmed nor refuted by it.
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

    /// Whether a group is known to do better moved, and not by chance.
    #[must_use]
    pub fn is_known_better(&self, group: usize) -> bool {
        self.known_of(group) == Some(true)
    }

    fn known_of(&self, group: usize) -> Option<bool> {
        self.groups.get(group).and_then(|group| self.known(group))
    }

    /// Whether moving is worthwhile, if that is known and not by chance.
    fn known(&self, group: &Group) -> Option<bool> {
        let above = group.gain - self.settings.least_gain;
        (above.abs() > self.unknown(group)).then_some(above > 0.0)
    }

    /// Whether samples say what is expected, though it may be chance: that is enough until they are
    /// old.
    fn is_agreed(&self, group: &Group) -> bool {
        group.is_expected && group.weight > 0.0 && group.gain > self.settings.least_gain
    }

    /// Whether it is to be moved, by what is known, or else by what is expected.
    fn is_better(&self, group: &Group) -> bool {
        self.known(group).unwrap_or(group.is_expected)
    }

    /// By how much a group's gain may differ from what is known of it.
    fn unknown(&self, group: &Group) -> f64 {
        let samples = 1.0 / (1.0 - self.settings.discount);
        2.0 * self.noise() * (self.settings.exploration * samples.ln() / group.weight).sqrt()
    }
}

#[cfg(test)]
mod tests;
