//! A feedback loop that asks one question at a time: does all of it do better with this group of calls moved, or without?
//!
//! A group is the calls of one region of one program, in all its processes: processes that share cores slow each other, so trying
//! one of them alone tells little (paper 001 §6.3: "stuck with only half of the clients offloaded which is the worst-case-scenario"). At the end of a
//! window at most one group changes sides, and the change of performance over it is a sample of what moving the group brings. Changing
//! it back is another, so that drifts of the load cancel (a *switchback* experiment: Bojinov, Simchi-Levi and Zhao, "Design and
//! Analysis of Switchback Experiments", 2023).
//!
//! Which group changes is decided as in discounted UCB (Garivier and Moulines, "On Upper-Confidence Bound Policies for Switching
//! Bandit Problems", 2011): samples lose weight with time, and a side that has not been tried for long may be better than known by `2 B √(ξ ln n /
//! N)`. While that leaves open whether moving is worthwhile, calls stay, but for the trial: chance is to have nothing moved. Where the processor's
//! model expects it to be worthwhile they are moved meanwhile, but for the trial, until one refutes that. `B`, there the range of rewards, is here the noise between windows, as in UCB-tuned (Auer, Cesa-Bianchi
//! and Fischer, "Finite-time Analysis of the Multiarmed Bandit Problem", 2002, §4). What trials take is paid for: by so much time on CPUs as moved
//! calls took more, a group waits for its next one until that is a small part of the time ([`Settings::most_spent`]). A jump of performance that nobody here has caused
//! makes all samples old, as in Liu, Lee and Shroff, "A Change-Detection Based Framework for Piecewise-Stationary Multi-Armed Bandit Problem", 2018.

use super::performance::Trend;
use crate::licence::Time;
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
    /// Samples of this weight are enough: what they leave open is chance, and is looked at again when they weigh less.
    pub enough: f64,
    /// The noise is taken to be no less than this, in parts of performance.
    pub least_noise: f64,
    /// What moving has to bring, in parts of performance, to be worth a core.
    pub least_gain: f64,
    /// A change of so many times the noise, and of [`Self::least_jump`], is one of the load.
    pub jump: f64,
    /// In parts of performance.
    pub least_jump: f64,
    /// How much time on CPUs trials of a group may take in the long run, in parts of its clients' time: by how much their calls last longer,
    /// in which their threads spin, and what the dedicated core works meanwhile.
    pub most_spent: f64,
}

impl Settings {
    /// For machines as they are.
    pub const USUAL: Self = Self {
        // Guesses: several hundred updates of a client that reports every 100 calls of some microseconds.
        window_ns: 1_000_000_000,
        settle_ns: 200_000_000,
        // Half the weight after a minute; a guess, as programs' habits change.
        discount: 0.99,
        // Garivier and Moulines 2011, §4: the least for which the bound on regret holds.
        exploration: 0.5,
        // A guess: a load without any difference is then tried in one window of twenty, and not in every one.
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

/// A trial ends early when its calls have lasted longer by so much of a window than where they are: code around them would have to
/// gain more than that. It is about the most that a program gains in paper 001 (§6.3: nginx loses 8.5 % instead of 17 %). What the
/// dedicated core works does not slow the program, and is soon as much for one with many threads.
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
    /// Whether it came, or began to be moved, in the midst of the window, with which the next one cannot be compared therefore.
    is_new: bool,
    /// What its trials took and is not paid for yet (ns of each member's time).
    spent_ns: f64,
    /// By how much its calls have lasted longer in the window (ns of each member's time).
    longer_ns: f64,
    /// Members whose calls may be moved at all.
    candidates: usize,
}

/// The state of the loop. Groups are numbered by the caller, from 0 without large holes.
#[derive(Clone, Debug, PartialEq)]
pub struct Trials {
    settings: Settings,
    groups: Vec<Group>,
    /// Changed at the end of the last window.
    changed: Option<usize>,
    /// Moved without being known to be better, and too dear for that to go on until the end of the window.
    dear: Option<usize>,
    /// The mean square of what chance did to trends, and its weight.
    noise: (f64, f64),
}

impl Trials {
    /// Nothing is known, nothing is moved.
    #[must_use]
    pub const fn new(settings: Settings) -> Self {
        Self { settings, groups: Vec::new(), changed: None, dear: None, noise: (0.0, 0.0) }
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
            // The time in which none of them runs is nobody's to pay with: programs that come often for a short while would be tried each time.
            if group.candidates > 0 {
                group.spent_ns = (group.spent_ns - paid).max(0.0);
            }
        }
    }

    /// A group's moved calls, those of one member, have lasted so much longer than they would have where they are, and the dedicated core
    /// has worked for so long (ns). Together that is the price of trying, where it is not known that moving is better.
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

    /// The last member of a group has gone: it is to begin where it does better when one comes again.
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

    /// Moving a group is expected to bring so much, in parts of performance. Where nothing is known of it, nothing is tried, and its trials are
    /// paid for, it is moved from now on if that is worthwhile.
    pub fn expect(&mut self, group: usize, gain: f64) {
        let is_idle = self.changed.is_none();
        if let Some(known) = self.groups.get_mut(group)
            && is_idle
            && (known.weight <= 0.0 && known.spent_ns <= 0.0 && !known.is_moved)
            && gain > self.settings.least_gain
        {
            (known.is_moved, known.is_expected, known.is_new) = (true, true, true);
        }
    }

    /// One more member of a group, or one fewer, may be moved.
    pub fn candidate(&mut self, group: usize, is_one: bool) {
        if group >= self.groups.len() {
            self.groups.resize(group + 1, Group::default());
        }
        let Group { candidates, is_new, .. } = &mut self.groups[group];
        *is_new |= is_one && *candidates == 0;
        *candidates =
            if is_one { candidates.saturating_add(1) } else { candidates.saturating_sub(1) };
    }

    /// The end of a window that [`Self::pass`] was told of, given how performance has changed since the one before. The group that changes
    /// sides, if any does; none is tried where the next window could not be compared with this one.
    ///
    /// # Cost
    /// Linear in groups.
    pub fn window(&mut self, trend: Trend) -> Option<usize> {
        if let Some(change) = trend.change().filter(|change| change.is_finite()) {
            self.learn(change);
        }
        if let Some(dear) = self.dear.take().and_then(|dear| self.groups.get_mut(dear)) {
            // Whoever expected that it is worthwhile did not expect this.
            dear.is_expected = false;
        }
        let candidates = self.groups.iter().enumerate().filter(|(_, group)| group.candidates > 0);
        let wrong = |(_, group): &(usize, &Group)| group.is_moved != self.is_better(group);
        self.changed = match candidates.clone().find(wrong) {
            Some((number, _)) => Some(number),
            None if trend == Trend::Unknown => None,
            None => {
                let may_be_better = |group: &Group| {
                    self.unknown(group) - (group.gain - self.settings.least_gain).abs()
                };
                // The first of the greatest.
                let greater = |(best, greatest), (number, group): (usize, &Group)| {
                    let index = may_be_better(group);
                    if index > greatest { (Some(number), index) } else { (best, greatest) }
                };
                let is_open = |group: &Group| {
                    let enough = if self.is_agreed(group) { 1.0 } else { self.settings.enough };
                    let is_paid = group.is_moved || group.spent_ns <= 0.0;
                    group.weight < enough && is_paid && !group.is_new
                };
                let open = candidates.filter(|(_, group)| is_open(group));
                open.fold((None, 0.0), greater).0
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

    fn learn(&mut self, trend: f64) {
        // More than a doubling is nobody's gain; without a bound it would be noise for ever.
        let trend = trend.clamp(-1.0, 1.0);
        let is_jump = trend.abs() > self.settings.least_jump.max(self.settings.jump * self.noise());
        let chance = if let Some(group) = self.changed.and_then(|of| self.groups.get_mut(of)) {
            let sample = if group.is_moved { trend } else { -trend };
            let Group { gain, weight, .. } = *group;
            group.gain = (gain * weight + sample) / (weight + 1.0);
            group.weight += 1.0;
            // How far samples are from what was known tells the noise as well, and nothing else does where groups change all the time.
            // The variance of their difference is 1 + 1 / weight times theirs.
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
        if let Some(tried) = self.changed.filter(|tried| self.known_of(*tried) == Some(false)) {
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

    /// Whether samples say what is expected, though it may be chance: that is enough until they are old.
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
mod tests {
    use super::*;

    /// Runs the loop on groups that bring so much; which are moved after each window.
    fn run(
        trials: &mut Trials,
        gains: &[f64],
        windows: usize,
        mut noise: impl FnMut() -> f64,
    ) -> Vec<Vec<bool>> {
        let performance = |trials: &Trials| -> f64 {
            gains
                .iter()
                .enumerate()
                .filter(|(group, _)| trials.is_moved(*group))
                .map(|(_, gain)| gain)
                .sum()
        };
        let mut before = performance(trials);
        let window = |_| {
            let now = performance(trials) + noise();
            trials.pass(1);
            trials.window(Trend::Changed(now - before));
            before = now;
            (0..gains.len()).map(|group| trials.is_moved(group)).collect()
        };
        (0..windows).map(window).collect()
    }

    fn of(groups: usize) -> Trials {
        let mut trials = Trials::new(Settings::USUAL);
        (0..groups).for_each(|group| trials.candidate(group, true));
        trials
    }

    /// Pseudo-random numbers of standard deviation one, by Knuth's linear congruential generator.
    fn chance(mut state: u64) -> impl FnMut() -> f64 {
        move || {
            let mut uniform = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 11) as f64 / (1_u64 << 53) as f64
            };
            ((0..12).map(|_| uniform()).sum::<f64>() - 6.0).clamp(-6.0, 6.0)
        }
    }

    #[test]
    fn what_gains_is_moved_and_what_loses_is_not() {
        let gains = [0.1, -0.1, 0.02, 0.0];
        let mut trials = of(4);
        let moved = run(&mut trials, &gains, 1000, || 0.0);
        for (group, gain) in gains.iter().enumerate() {
            let share = moved[10..].iter().filter(|moved| moved[group]).count() as f64 / 990.0;
            assert!(if *gain > 0.01 { share > 0.9 } else { share < 0.1 }, "{group} {share}");
        }
    }

    #[test]
    fn nothing_changes_often_on_constant_input() {
        for thousandths in -100_i32..100 {
            let mut trials = of(1);
            let moved = run(&mut trials, &[f64::from(thousandths) / 1000.0], 2000, || 0.0);
            let changes = moved[100..].windows(2).filter(|pair| pair[0] != pair[1]).count();
            // A side is tried again when the weight has fallen to where the other may be better, and each change adds one: there, back,
            // and there once more, if that was enough to know that it is better. So near what is just worthwhile, where neither side is
            // better, it is tried often, and elsewhere hardly ever.
            let Settings { least_noise, exploration, discount, least_gain, enough, .. } =
                Settings::USUAL;
            let distance = (f64::from(thousandths) / 1000.0 - least_gain).abs();
            let weight = 4.0 * least_noise.powi(2) * exploration * (1.0 / (1.0 - discount)).ln()
                / distance.powi(2);
            let allowed = 2.0 + 1900.0 * (1.0 - discount) * (weight.min(enough) + 3.0);
            assert!((changes as f64) < allowed, "{thousandths} {changes} {allowed}");
        }
    }

    #[test]
    fn noise_costs_samples_but_not_the_answer() {
        for seed in 1..20 {
            let (mut trials, mut noise) = (of(2), chance(seed));
            let moved = run(&mut trials, &[0.08, -0.08], 1000, || 0.02 * noise());
            let share = |group: usize| {
                moved[100..].iter().filter(|moved| moved[group]).count() as f64 / 900.0
            };
            assert!(share(0) > 0.8 && share(1) < 0.2, "{seed} {} {}", share(0), share(1));
        }
    }

    #[test]
    fn chance_alone_moves_hardly_anything() {
        for seed in 1..20 {
            let (mut trials, mut noise) = (of(1), chance(seed));
            // Moving brings nothing, and neighbours make performance go up and down by a third.
            let moved = run(&mut trials, &[0.0], 2000, || 0.3 * noise());
            let share = moved.iter().filter(|moved| moved[0]).count() as f64 / 2000.0;
            assert!(share < 0.12, "{seed} {share}");
        }
    }

    #[test]
    fn trials_take_no_more_than_they_may() {
        let mut trials = of(1);
        // Each window with calls moved takes a twentieth of its time, and noise leaves the question open.
        const TAKES: f64 = 0.05;
        let (mut noise, mut spent, windows) = (chance(3), 0.0, 2000);
        for _ in 0..windows {
            if trials.is_moved(0) && trials.is_tried(0) {
                let ns = TAKES * Settings::USUAL.window_ns as f64;
                trials.spend(0, ns / 2.0, ns / 2.0);
                spent += TAKES;
            }
            trials.pass(1);
            trials.window(Trend::Changed((0.3 * noise()).clamp(-0.9, 0.9)));
        }
        let share = spent / f64::from(windows);
        assert!(share > 0.0 && share <= Settings::USUAL.most_spent + TAKES / 1000.0, "{share}");
        // What comes late counts, too.
        let before = trials.groups[0].spent_ns;
        trials.groups[0].is_moved = false;
        trials.spend(0, 1000.0, 0.0);
        assert!(trials.groups[0].spent_ns > before);
        // Who has gone pays nothing.
        let owed = trials.groups[0].spent_ns;
        trials.candidate(0, false);
        trials.pass(u64::MAX);
        assert_eq!(trials.groups[0].spent_ns.to_bits(), owed.to_bits());
        trials.candidate(0, true);
        // What is paid is paid, however much was spent at once.
        trials.pass(u64::MAX);
        trials.spend(7, 1.0, 1.0);
        trials.spend(0, f64::NAN, 1.0);
        assert!(trials.groups[0].spent_ns <= 0.0);
    }

    #[test]
    fn a_change_of_habits_is_followed_within_bounds() {
        let mut trials = of(1);
        run(&mut trials, &[0.1], 300, || 0.0);
        assert!(trials.is_moved(0));
        // Without a jump to be seen, a stale sample is all that there is.
        let moved = run(&mut trials, &[-0.1], 600, || 0.0);
        let until = moved.iter().rposition(|moved| moved[0]).unwrap_or(0);
        assert!(until < 500, "{until}");
        // With one, it is looked at anew at once.
        trials.window(Trend::Changed(0.2));
        let moved = run(&mut trials, &[0.1], 10, || 0.0);
        assert!(moved[9][0], "{trials:?}");
    }

    #[test]
    fn what_may_not_be_moved_is_not_tried_and_numbers_are_used_anew() {
        let mut trials = of(2);
        trials.candidate(1, false);
        let moved = run(&mut trials, &[0.1, 0.1], 10, || 0.0);
        assert!(moved[9][0] && moved.iter().all(|moved| !moved[1]));
        assert!(trials.gain(0).is_some_and(|gain| (gain - 0.1).abs() < 1e-9));
        trials.forget(0);
        assert!(!trials.is_moved(0) && trials.gain(0).is_none());
        trials.forget(7);
        assert!(!trials.is_moved(7) && !trials.is_tried(7));
    }

    /// What becomes of a group that is expected to gain a tenth, and brings this: where it is after each window.
    fn expected(gain: f64) -> (Trials, Vec<bool>) {
        let mut trials = of(1);
        trials.expect(0, 0.1);
        assert!(trials.is_moved(0) && !trials.is_tried(0) && !trials.is_known_better(0));
        // It came in the midst of the first one, so the second is the first to compare with.
        assert_eq!(trials.window(Trend::Unknown), None);
        assert_eq!(trials.window(Trend::First), Some(0));
        assert!(trials.is_tried(0));
        let mut before = gain;
        let window = |_| {
            let now = if trials.is_moved(0) { gain } else { 0.0 };
            trials.pass(1);
            trials.window(Trend::Changed(now - before));
            before = now;
            trials.is_moved(0)
        };
        let moved = (0..50).map(window).collect();
        (trials, moved)
    }

    #[test]
    fn what_is_expected_to_gain_begins_moved_and_is_tried_without() {
        // Confirmed, supported, or refuted by the first window without.
        for (gain, stays) in [(0.1, 0), (0.02, 0), (-0.02, 50), (-0.1, 50)] {
            let (trials, moved) = expected(gain);
            let without = moved.iter().filter(|moved| !**moved).count();
            assert_eq!(without, stays, "{gain} {moved:?}");
            assert_eq!(trials.is_known_better(0), gain > 0.05, "{gain}");
        }
        // Neither, by the first: it is asked once more.
        let (_, moved) = expected(0.0);
        assert_eq!(moved[..5], [true, false, false, false, false]);
    }

    #[test]
    fn an_expectation_is_of_something_worthwhile_and_for_what_is_new() {
        let mut trials = of(3);
        trials.expect(0, Settings::USUAL.least_gain);
        trials.expect(1, f64::NAN);
        assert!(!trials.is_moved(0) && !trials.is_moved(1));
        // Not in the midst of another's trial.
        trials.window(Trend::Unknown);
        assert_eq!(trials.window(Trend::First), Some(0));
        trials.expect(1, 0.5);
        assert!(!trials.is_moved(1));
        // Not what is known.
        trials.window(Trend::Changed(-0.1));
        trials.window(Trend::Unknown);
        trials.expect(0, 0.5);
        assert!(!trials.is_moved(0));
        trials.expect(1, 0.5);
        assert!(trials.is_moved(1));
    }

    #[test]
    fn what_is_expected_and_too_dear_stays_until_that_is_paid() {
        let window = Settings::USUAL.window_ns as f64;
        let mut trials = of(1);
        trials.expect(0, 0.1);
        trials.spend(0, 0.09 * window, 0.0);
        assert!(!trials.is_dear());
        trials.spend(0, 0.02 * window, 0.0);
        assert!(trials.is_dear());
        assert_eq!(trials.window(Trend::Unknown), Some(0));
        assert!(!trials.is_dear() && !trials.is_moved(0));
        trials.window(Trend::First);
        trials.expect(0, 0.1);
        assert!(!trials.is_moved(0));
        // Nor does who goes and comes again begin anew.
        trials.candidate(0, false);
        trials.rest(0);
        trials.candidate(0, true);
        trials.expect(0, 0.1);
        assert!(!trials.is_moved(0));
        trials.pass(u64::MAX);
        trials.expect(0, 0.1);
        assert!(trials.is_moved(0));
    }

    #[test]
    fn any_trend_is_taken() {
        let mut trials = of(3);
        for trend in [f64::NAN, f64::INFINITY, -1e308, 1e308, 0.0, f64::MIN_POSITIVE]
            .iter()
            .cycle()
            .take(300)
        {
            trials.window(Trend::Changed(*trend));
            trials.window(Trend::First);
            trials.window(Trend::Unknown);
        }
        // It recovers from all of it.
        let moved = run(&mut trials, &[0.1, -0.1, 0.1], 3000, || 0.0);
        let share = |group: usize| moved[2000..].iter().filter(|moved| moved[group]).count();
        assert!(share(0) > 900 && share(1) < 100 && share(2) > 900, "{trials:?}");
    }
}
