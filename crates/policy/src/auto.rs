//! Which of several mechanisms a machine runs under: trials of each, against what is in force.
//!
//! [`Auto`] runs under one mechanism, at first none. For one window it tries another one, and goes
//! back. The work done in that window, over that of windows before and after it, is a sample of
//! what the other one brings; drifts of the load cancel (a *switchback* experiment: Bojinov,
//! Simchi-Levi and Zhao, "Design and Analysis of Switchback Experiments", 2023). The window just
//! after a change is not compared with: it shows what the former mechanism has left behind, threads
//! that have yet to spread over all cores for instance (their *carryover*). A mechanism is in
//! force from when its samples show that it does more than the one before, beyond chance. It is
//! tried on for as long as it may be better than that by more than [`Settings::least_gain`]: the
//! one with the greatest upper bound first (UCB: Auer, Cesa-Bianchi and Fischer, "Finite-time
//! Analysis of the Multiarmed Bandit Problem", 2002).
//!
//! Trials cost what the mechanism loses, and what it leaves behind. That is paid from an account:
//! all trials together lose at most [`Settings::most_loss`] of [`Settings::period`] and of all time
//! since, against none. A trial ends early when it has used up its share. Each of several users has
//! such an account, too.
//! Where work varies by chance, what a trial did says little: a mechanism's loss is estimated from
//! its samples and from what mechanisms usually bring ([`Settings::usual_effect`]), with caution.
//! Units of work are counted whole, so a look in which few were due says little, too.
//! Samples lose weight with time, and two in a row that contradict the earlier ones take their
//! place. A jump of the load's speed that lasts for two windows makes all samples old, as does what
//! is in force, if it gains less than its samples say.
//!
//! This module decides; the caller measures work and changes mechanisms. It has no clock of its
//! own.

use dimmer_processor::units::Time;

use accounts::Accounts;
use known::Known;
use noise::Noise;
pub use settings::Settings;
use stretch::{Stretch, Tried};
use work::{Rates, counting, gain, lost, rates};

mod accounts;
mod known;
mod noise;
mod settings;
mod stretch;
mod work;

/// The weights of the windows before a trial and after it, when the trial is compared with them: it
/// is one window away from the one before and two from the other, so a steady drift cancels.
const OF_TRIAL: [f64; 2] = [2.0 / 3.0, 1.0 / 3.0];

/// The same for the first window after a trial, which lies between the trial and the window after.
const OF_FIRST: [f64; 2] = [1.0 / 3.0, 2.0 / 3.0];

/// How many windows after a trial it pays for if the load has changed by then.
const OF_ANOTHER_LOAD: usize = 2;

/// A mechanism is chosen with samples of more than this weight: more than one.
const ENOUGH: f64 = 1.5;

/// What trials have shown of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// How much more work is done under it than under none: 0.01 is 1 % more.
    pub mean: f64,
    /// What chance leaves open to either side ([`Settings::certain`] standard errors).
    pub open: f64,
}

/// The difference between two windows under one mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// As usual.
    Noise,
    /// More than usual, for the first time.
    Odd,
    /// More than usual twice: the load has changed.
    Load,
}

/// The trials of a machine's mechanisms.
#[derive(Clone, Debug, PartialEq)]
pub struct Auto {
    settings: Settings,
    /// By the mechanism's number; none is number 0, of which all is known.
    known: Vec<Known>,
    /// The mechanism in force.
    chosen: usize,
    stretch: Stretch,
    /// Rates of its last usual window, if it has been in force since.
    last: Option<Rates>,
    tried: Option<Tried>,
    noise: Noise,
    /// The part of that which comes from counting whole units.
    counting: f64,
    /// Whether the last window differed more than usual from the one before.
    is_odd: bool,
    /// What trials have lost whose samples are forgotten (ns).
    lost: f64,
    /// Up to when the time of trials and [`Self::lost`] have been made less.
    accounted: Time,
    /// When none was last in force or tried.
    checked: Time,
    accounts: Accounts,
    /// Whether each mechanism may be tried, by its number.
    may_try: Vec<bool>,
}

impl Auto {
    /// Starts under none, the first of this many mechanisms.
    ///
    /// * `work`: of each program up to now, counted in a unit of its own (requests, calls,
    ///   instructions).
    #[must_use]
    pub fn new(settings: Settings, mechanisms: usize, now: Time, work: &[f64]) -> Self {
        Self {
            settings,
            known: vec![Known::default(); mechanisms.max(1)],
            chosen: 0,
            stretch: Stretch::new(&settings, now, work),
            last: None,
            tried: None,
            noise: Noise::default(),
            counting: 0.0,
            is_odd: false,
            lost: 0.0,
            accounted: now,
            checked: now,
            accounts: Accounts::default(),
            may_try: vec![true; mechanisms.max(1)],
        }
    }

    /// Sets which mechanisms may be tried from now on, by their numbers, as others cannot gain.
    /// What is in force stays so: trials have shown that it gains. At first all may be tried, and
    /// number 0 always may.
    pub fn try_only(&mut self, may_try: impl Iterator<Item = bool>) {
        self.may_try.iter_mut().zip(may_try).for_each(|(may, now)| *may = now);
    }

    /// Begins the present window again, because other programs' work is measured from now on.
    ///
    /// A trial that is under way ends without a sample, but its time is paid for. A mechanism that
    /// has not been compared with none for [`Settings::period`], because programs come and go all
    /// the time, is no longer in force.
    ///
    /// * `work`: of each program up to now, as [`Self::step`] gets it from now on.
    /// * `users`: the user of each program. Users count the same, however many programs they have.
    pub fn restart(&mut self, now: Time, work: &[f64], users: Vec<u32>) {
        if let Some(mechanism) = self.stretch.tries {
            let lost = self.loss(mechanism, 0.0, 0.0) * (now - self.stretch.begun).as_f64();
            self.lost += lost;
            self.accounts.add_unmeasured(lost);
        }
        if let Some(tried) = self.tried.take().filter(|tried| tried.mechanism != 0) {
            let lost = tried.lost_so_far(&self.accounts.users);
            self.lost += lost;
            self.accounts.add_unmeasured(lost);
        }
        (self.last, self.is_odd, self.accounts.users) = (None, false, users);
        if self.chosen == 0 {
            self.checked = now;
        } else if now - self.checked >= self.settings.period {
            self.begin_again();
        }
        self.begins(None, now, work);
    }

    /// Since when the present trial, or window of the mechanism in force, lasts.
    #[must_use]
    pub fn since(&self) -> Time {
        self.stretch.begun
    }

    /// The mechanism to run under now.
    #[must_use]
    pub fn in_force(&self) -> usize {
        self.stretch.tries.unwrap_or(self.chosen)
    }

    /// The mechanism that has been found best so far.
    #[must_use]
    pub fn chosen(&self) -> usize {
        self.chosen
    }

    /// What trials have shown of a mechanism; `None` for none, and for those without a sample.
    #[must_use]
    pub fn gain(&self, mechanism: usize) -> Option<Gain> {
        let known = self.known.get(mechanism).filter(|known| known.weight > 0.0)?;
        let open = self.settings.certain * known.uncertainty(self.noise()).sqrt();
        // From the difference over the mean of both to that over none.
        let mean = known.mean.clamp(-2.0, 1.9);
        Some(Gain { mean: 2.0 * mean / (2.0 - mean), open: open * (2.0 / (2.0 - mean)).powi(2) })
    }

    /// When to call [`Self::step`] next.
    #[must_use]
    pub fn next_wakeup(&self, now: Time) -> Time {
        let Stretch { tries, measured_from, ends, at_window, .. } = &self.stretch;
        let begins = if at_window.is_none() { *measured_from } else { *ends };
        let looks = if tries.is_some() { now + self.settings.tick } else { begins };
        begins.min(looks).min(*ends)
    }

    /// Time has passed. Returns the mechanism to run under from now on.
    ///
    /// * `work`: of each program up to now.
    ///
    /// # Cost
    /// Linear in programs and mechanisms.
    pub fn step(&mut self, now: Time, work: &[f64]) -> usize {
        if self.stretch.at_window.is_none() && now >= self.stretch.measured_from {
            self.stretch.at_window = Some((now, work.to_vec()));
            // Also if this step comes late, the window is a whole one.
            self.stretch.ends = self.stretch.ends.max(now + self.settings.window);
        }
        let is_over = now >= self.stretch.ends;
        match self.stretch.tries {
            Some(mechanism) if is_over || self.is_too_dear(mechanism, now, work) => {
                self.ends_trial(mechanism, now, work);
            }
            None if is_over => self.ends_window(now, work),
            _ => {}
        }
        self.in_force()
    }

    /// The mean rates since the measured window began, or if it has not, since the stretch did.
    fn rates(&self, now: Time, work: &[f64]) -> Option<Rates> {
        let (since, from) = self.measured_since(now);
        rates(since, from, now, work)
    }

    /// When the measured window began, or if it has not, the stretch, and the work by then.
    fn measured_since(&self, now: Time) -> (Time, &[f64]) {
        let Stretch { begun, at_begin, at_window, .. } = &self.stretch;
        let window = at_window.as_ref().filter(|(since, _)| *since < now);
        window.map_or((*begun, at_begin), |(since, work)| (*since, work))
    }

    /// What the present trial of a mechanism has lost against none, as far as is known (ns).
    fn lost_ns(&self, mechanism: usize, now: Time, work: &[f64]) -> f64 {
        let so_far = rates(self.stretch.begun, &self.stretch.at_begin, now, work);
        let gain = so_far
            .as_ref()
            .zip(self.last.as_ref())
            .and_then(|(own, last)| gain(own, last, &self.accounts.users));
        let over_none = gain.unwrap_or(0.0) + self.known[self.chosen].mean;
        let span = (now - self.stretch.begun).as_f64();
        self.loss(mechanism, over_none, span / self.settings.window.as_f64()) * span
    }

    /// What trials may still lose (ns).
    fn account(&self) -> f64 {
        let lost: f64 = (0..self.known.len()).map(|mechanism| self.lost_by(mechanism)).sum();
        self.most() - lost - self.lost
    }

    /// What a mechanism's trials have lost against none, as far as is known (ns).
    fn lost_by(&self, mechanism: usize) -> f64 {
        self.loss(mechanism, 0.0, 0.0) * self.known[mechanism].tried
    }

    /// The part of the work that a mechanism loses against none, by its samples and one more of
    /// some weight. What is not known may be a loss.
    fn loss(&self, mechanism: usize, sample: f64, weight: f64) -> f64 {
        let (mean, variance) = self.posterior(mechanism, sample, weight);
        lost(mean - self.settings.caution * variance.sqrt())
    }

    /// A mechanism's gain over none and the variance of that, from its samples and one more of some
    /// weight, and from what mechanisms usually bring.
    fn posterior(&self, mechanism: usize, sample: f64, weight: f64) -> (f64, f64) {
        if mechanism == 0 {
            return (0.0, 0.0);
        }
        let known = &self.known[mechanism];
        let noise = known.variance.max(self.noise());
        let weight = self.weight(weight, noise);
        let is_new = known.is_contradicted(sample, noise / weight.min(1.0), &self.settings);
        let known = if is_new { Known::default() } else { *known };
        let sum = known.weight.mul_add(known.mean, weight * sample);
        let weights = known.weight + weight + noise / self.settings.usual_effect.powi(2);
        (sum / weights, noise / weights)
    }

    /// The weight of a part of a window, in which few units may be due, or none.
    fn weight(&self, part: f64, noise: f64) -> f64 {
        part * (part * noise / self.counting.max(f64::MIN_POSITIVE)).min(1.0)
    }

    /// Forgets a mechanism's samples, but not what they cost.
    fn forget(&mut self, mechanism: usize) {
        self.lost += self.lost_by(mechanism);
        self.known[mechanism] = Known::default();
    }

    fn is_too_dear(&self, mechanism: usize, now: Time, work: &[f64]) -> bool {
        // As each unknown mechanism may come to that, none may use up all there is.
        self.lost_ns(mechanism, now, work) > self.account().min(self.share())
            || (mechanism != 0 && self.costs_a_user(now, work))
    }

    /// Whether the present trial would cost a user more than trials may.
    fn costs_a_user(&self, now: Time, work: &[f64]) -> bool {
        let so_far = rates(self.stretch.begun, &self.stretch.at_begin, now, work);
        let span = (now - self.stretch.begun).as_f64();
        let most = so_far.zip(self.last.as_ref());
        most.is_some_and(|(own, last)| self.accounts.most_with(&own, last, span) > self.most())
    }

    /// What trials may lose in all (ns).
    fn most(&self) -> f64 {
        self.settings.most_loss * self.settings.period.as_f64()
    }

    /// What one trial may lose (ns).
    fn share(&self) -> f64 {
        self.most() / 4.0
    }

    fn ends_trial(&mut self, mechanism: usize, now: Time, work: &[f64]) {
        let span = (now - self.stretch.begun).as_f64();
        let lost = self.lost_ns(mechanism, now, work);
        let rates = self.rates(now, work);
        let measured = (now - self.measured_since(now).0).as_f64() / self.settings.window.as_f64();
        self.tried = self.last.take().zip(rates).map(|(before, rates)| Tried {
            mechanism,
            before,
            rates,
            span,
            lost,
            measured: measured.min(1.0),
            ended: now,
            after: Vec::new(),
        });
        if mechanism == 0 {
            self.checked = now;
        }
        self.begins(None, now, work);
    }

    fn ends_window(&mut self, now: Time, work: &[f64]) {
        let span = (now - self.accounted).as_f64();
        let (most, most_loss) = (self.most(), self.settings.most_loss);
        let forgets = (-(span / self.settings.period.as_f64())).exp();
        // More than trials may lose is made up for at the rate at which they may lose.
        let left = move |lost: f64| (lost - most_loss * span).max(lost.min(most) * forgets);
        self.accounts.repay(left);
        self.lost = left(self.lost);
        self.accounted = now;
        for known in &mut self.known {
            known.tried *= forgets;
            known.weight *= self.settings.discount;
            known.linked *= self.settings.discount;
            known.carryovers *= self.settings.discount;
        }
        self.noise.fade(self.settings.discount);
        let (rates, span) = (self.rates(now, work), (now - self.stretch.begun).as_f64());
        if self.stretch.is_first {
            if let Some(tried) = &mut self.tried {
                tried.after.extend(rates.map(|rates| (rates, span)));
            }
            return self.begins(None, now, work);
        }
        let former = self.chosen;
        let tried = self.tried.take();
        let before = tried.as_ref().map(|tried| tried.before.clone()).or(self.last.take());
        self.last = rates;
        if let (Some(before), Some(rates)) = (before, self.last.clone()) {
            self.counting = counting([&before, &rates], &self.accounts.users, self.settings.window);
            let mut change = self.compare(&before, &rates);
            if change == Change::Load
                && tried.as_ref().is_some_and(|tried| self.is_left_by(tried, &rates, now))
            {
                (change, self.is_odd) = (Change::Odd, true);
            }
            match tried {
                Some(mut tried) if change == Change::Odd => {
                    tried.after.push((rates, span));
                    self.tried = Some(tried);
                }
                Some(mut tried) => {
                    if change == Change::Load {
                        tried.after.truncate(OF_ANOTHER_LOAD);
                    }
                    self.pays(&tried, &rates, change);
                }
                None => {}
            }
            match change {
                Change::Noise => {}
                // Chance, what a trial has left behind, or the load has changed: the next windows
                // show it.
                Change::Odd => self.last = Some(before),
                Change::Load => self.begin_again(),
            }
        }
        self.choose();
        if self.chosen != former {
            (self.last, self.tried, self.is_odd) = (None, None, false);
            self.known.iter_mut().for_each(|known| known.linked = 0.0);
        }
        if self.chosen == 0 {
            self.checked = now;
        }
        // While nothing is done, a trial shows nothing.
        let does_work = self.last.iter().flatten().any(|rate| *rate > 0.0);
        let may_try = does_work && self.noise.is_known() && !self.is_odd;
        let tries = if may_try { self.next_trial(now) } else { None };
        self.begins(tries, now, work);
    }

    fn begins(&mut self, tries: Option<usize>, now: Time, work: &[f64]) {
        let runs = tries.unwrap_or(self.chosen);
        let is_first = tries.is_none() && runs != self.stretch.runs;
        self.stretch = Stretch { tries, runs, is_first, ..Stretch::new(&self.settings, now, work) };
    }

    /// Whether a window that does less than the one before a trial may show what that has left
    /// behind.
    fn is_left_by(&self, tried: &Tried, rates: &Rates, now: Time) -> bool {
        let over = gain(rates, &tried.before, &self.accounts.users);
        tried.mechanism != 0
            && now - tried.ended < self.settings.leaves
            && over.is_some_and(|over| over < 0.0)
    }

    /// A trial and the windows after it are paid for, and learned from unless the load has changed.
    ///
    /// * `rates`: those of the first window that is compared with the trial.
    fn pays(&mut self, tried: &Tried, rates: &Rates, change: Change) {
        if tried.mechanism != 0 {
            let around = [&tried.before, rates];
            for (other, weight) in around.into_iter().zip(OF_TRIAL) {
                self.accounts.add(&tried.rates, other, weight * tried.span);
            }
            for (own, span) in &tried.after {
                for (other, weight) in around.into_iter().zip(OF_FIRST) {
                    self.accounts.add(own, other, weight * span);
                }
            }
        }
        let is_sample = change == Change::Noise && self.learn(tried, rates);
        if tried.mechanism == 0 {
            return;
        }
        if !is_sample {
            // The load may have changed before the trial, or after it.
            let users = &self.accounts.users;
            self.lost += tried.lost_so_far(users).max(tried.lost_against(rates, users));
            return;
        }
        self.known[tried.mechanism].tried += tried.span;
        self.lost += tried.lost_after(1, rates, &self.accounts.users);
        let Some((own, span)) = tried.after.first() else { return };
        if let Some(gain) = self.over(own, [&tried.before, rates], OF_FIRST) {
            self.known[tried.mechanism].learn_carryover(gain);
            self.lost += lost(self.carryover(tried.mechanism, self.settings.caution)) * span;
        }
    }

    /// The gain of a window over two others, one before it and one after it, of these weights.
    fn over(&self, own: &Rates, others: [&Rates; 2], weights: [f64; 2]) -> Option<f64> {
        let over = |other| gain(own, other, &self.accounts.users);
        let [first, second] = [over(others[0])?, over(others[1])?];
        Some(weights[0] * first + weights[1] * second)
    }

    /// What a window gains because a mechanism was in force before it: nothing, or less.
    fn carryover(&self, mechanism: usize, caution: f64) -> f64 {
        self.known[mechanism].carryover(self.noise(), caution, &self.settings).min(0.0)
    }

    /// A trial and the windows around it are a sample. Returns whether it counts.
    fn learn(&mut self, tried: &Tried, later: &Rates) -> bool {
        let Tried { mechanism, before, rates, measured, .. } = tried;
        if measured * measured < 4.0 * self.counting {
            // Not one unit was due. That trials without one end early must not count as a loss.
            return false;
        }
        let Some(sample) = self.over(rates, [before, later], OF_TRIAL) else { return false };
        // The trial, too, suffers from what was in force before it.
        let sample = sample - self.carryover(self.chosen, 0.0);
        // A sample of none is one of what is in force, the other way round.
        let (of, sample) = if *mechanism == 0 {
            (self.chosen, -sample)
        } else {
            (*mechanism, self.known[self.chosen].mean + sample)
        };
        let noise = self.noise();
        let weight = self.weight(*measured, noise.max(self.known[of].variance));
        let known = &mut self.known[of];
        let is_odd = known.is_contradicted(sample, noise / weight.min(1.0), &self.settings);
        if is_odd && !known.is_odd {
            known.is_odd = true;
            return false;
        }
        known.is_odd = false;
        let former = known.mean;
        // What it gains less may be another load, of which nothing is known.
        if is_odd && of == self.chosen && sample < former {
            self.begin_again();
            return false;
        }
        if is_odd {
            self.forget(of);
        }
        self.known[of].learn(sample, weight);
        if of == self.chosen {
            let by = self.known[of].mean - former;
            let others = self.known.iter_mut().enumerate().filter(|(other, _)| *other != of);
            others.for_each(|(_, known)| known.shift(by));
        }
        true
    }

    /// How two windows under one mechanism differ.
    fn compare(&mut self, before: &Rates, rates: &Rates) -> Change {
        // What does nothing has no noise to learn from.
        let Some(change) = gain(rates, before, &self.accounts.users) else { return Change::Noise };
        let limit = self.settings.least_jump.max(self.settings.jump * self.noise().sqrt());
        let is_jump = self.noise.is_seen() && change.abs() > limit;
        if is_jump {
            self.is_odd = !self.is_odd;
            return if self.is_odd { Change::Odd } else { Change::Load };
        }
        self.is_odd = false;
        self.noise.learn(change);
        Change::Noise
    }

    /// What is known may no longer be so: none is in force after the present trial, and all are
    /// tried again. What trials have lost is not forgotten.
    pub fn begin_again(&mut self) {
        (1..self.known.len()).for_each(|mechanism| self.forget(mechanism));
        self.chosen = 0;
        self.noise.of_another_load();
    }

    /// The mean square of a sample's noise.
    fn noise(&self) -> f64 {
        self.noise.mean().max(self.settings.least_noise.powi(2)).max(self.counting)
    }

    fn uncertainty(&self, mechanism: usize) -> f64 {
        if mechanism == 0 { 0.0 } else { self.known[mechanism].uncertainty(self.noise()) }
    }

    /// By how much one mechanism is better than that in force, and what chance leaves open of that.
    fn over_chosen(&self, mechanism: usize) -> (f64, f64) {
        // What was measured against that in force is as certain, however little is known of that.
        let apart = 1.0 - self.known[mechanism].linked_part();
        let open = self.uncertainty(mechanism) + apart * self.uncertainty(self.chosen);
        let better = self.known[mechanism].mean - self.known[self.chosen].mean;
        (better, self.settings.certain * open.sqrt())
    }

    fn choose(&mut self) {
        if self.known[self.chosen].mean < 0.0 {
            self.chosen = 0;
        }
        let (chosen, chosen_open) = self.posterior(self.chosen, 0.0, 0.0);
        let best = (0..self.known.len())
            .filter(|other| *other == 0 || self.known[*other].weight > ENOUGH)
            .map(|other| (other, self.posterior(other, 0.0, 0.0)))
            .filter(|(_, (mean, open))| {
                mean - chosen > self.settings.certain * (open + chosen_open).sqrt()
            })
            .max_by(|one, other| one.1.0.total_cmp(&other.1.0));
        if let Some((best, _)) = best {
            self.chosen = best;
        }
    }

    /// What is tried next, if anything is worth a trial that can be paid for.
    fn next_trial(&self, now: Time) -> Option<usize> {
        let is_due = self.known[self.chosen].is_odd || now - self.checked >= self.settings.recheck;
        if self.chosen != 0 && is_due {
            return Some(0);
        }
        let account = self.account();
        let worth = |mechanism: usize| {
            let (better, open) = self.over_chosen(mechanism);
            let most = better + open;
            // A trial that costs more ends early.
            let is_paid = account >= self.share();
            // With less, it could not be chosen, however much it gains.
            let is_new = self.known[mechanism].weight <= ENOUGH;
            let is_open = is_new || open > self.settings.least_gain;
            let is_open = is_open && most > self.settings.least_gain;
            let is_paid = is_paid && self.accounts.most() < self.most();
            (is_open && is_paid).then_some((mechanism, most))
        };
        let others = (1..self.known.len()).filter(|other| *other != self.chosen);
        let open = others.filter(|other| self.may_try[*other]).filter_map(worth);
        // The first of the greatest.
        open.reduce(|best, other| if other.1 > best.1 { other } else { best }).map(|(of, _)| of)
    }
}

#[cfg(test)]
mod tests;
