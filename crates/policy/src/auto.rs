//! Which of several mechanisms a machine runs under: trials of each, against what is in force.
//!
//! [`Auto`] runs under one mechanism, at first none. For one window it tries another one, and goes
//! back. The work done in that window, over that of the windows before and after it, is a sample of
//! what the other one brings; drifts of the load cancel (a *switchback* experiment: Bojinov,
//! Simchi-Levi and Zhao, "Design and Analysis of Switchback Experiments", 2023). A mechanism is in
//! force from when its samples show that it does more than the one before, beyond chance. It is
//! tried on for as long as it may be better than that by more than [`Settings::least_gain`]: the
//! one with the greatest upper bound first (UCB: Auer, Cesa-Bianchi and Fischer, "Finite-time
//! Analysis of the Multiarmed Bandit Problem", 2002).
//!
//! Trials cost what the mechanism loses. That is paid from an account: all trials together lose at
//! most [`Settings::most_loss`] of [`Settings::period`] and of all time since, against none. A
//! trial ends early when it has used up what there is. Samples lose weight with time, and one that
//! contradicts the earlier ones takes their place. A jump of the load's speed makes all samples
//! old.
//!
//! This module decides; the caller measures work and changes mechanisms. It has no clock of its
//! own.

use dimmer_processor::units::{Nanos, Time};

use crate::ways::WORTHWHILE;

/// Constants of the trials.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How long work is measured.
    pub window: Nanos,
    /// How long a change of mechanisms takes to settle. Work is not measured meanwhile.
    pub settle: Nanos,
    /// How often a trial's loss is looked at.
    pub tick: Nanos,
    /// The part of the time that trials may lose against none.
    pub most_loss: f64,
    /// The time over which that is saved up.
    pub period: Nanos,
    /// A mechanism that cannot be better by this is not tried on, in parts of the work.
    pub least_gain: f64,
    /// Noise of a sample is assumed to be no less than this, in parts of the work.
    pub least_noise: f64,
    /// How many standard errors are beyond chance.
    pub certain: f64,
    /// A change of this many times the noise, and of [`Self::least_jump`], is one of the load.
    pub jump: f64,
    /// The smallest change that counts as one of the load, in parts of the work.
    pub least_jump: f64,
    /// The part of a sample's weight that is left after a window.
    pub discount: f64,
    /// Under another mechanism than none, none is tried this often.
    pub recheck: Nanos,
}

impl Settings {
    /// For usual programs.
    pub const USUAL: Self = Self {
        // Guesses: long beside a scheduler's turns and a governor's hold, short enough for tens of
        // trials in the time that users wait for.
        window: Nanos::from_ms(100),
        settle: Nanos::from_ms(10),
        tick: Nanos::from_ms(5),
        // What is worthwhile, less what a wrong choice may cost until it is found out.
        most_loss: 0.4 * WORTHWHILE,
        period: Nanos::from_ms(10_000),
        least_gain: WORTHWHILE / 4.0,
        least_noise: WORTHWHILE / 4.0,
        // Chance exceeds three standard errors once in some hundred looks.
        certain: 3.0,
        // As in `server::loops::trials`.
        jump: 5.0,
        least_jump: 0.05,
        // Half the weight after some minutes; a guess, as programs' habits change.
        discount: 0.9995,
        recheck: Nanos::from_ms(5_000),
    };
}

/// Work done, for each program in a unit of its own, as a rate (a second).
type Rates = Vec<f64>;

/// What is known of a mechanism: its samples of [`gain`] over none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Known {
    mean: f64,
    /// The mean square of the distance from the mean.
    variance: f64,
    weight: f64,
}

impl Known {
    fn learn(&mut self, sample: f64) {
        let away = sample - self.mean;
        let part = 1.0 / (self.weight + 1.0);
        self.mean += part * away;
        self.variance = (1.0 - part) * (self.variance + part * away * away);
        self.weight += 1.0;
    }

    /// The variance of the mean, where a sample has at least this one.
    fn uncertainty(&self, noise: f64) -> f64 {
        if self.weight > 0.0 { self.variance.max(noise) / self.weight } else { f64::INFINITY }
    }
}

/// What trials have shown of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// How much more work is done under it than under none: 0.01 is 1 % more. The natural logarithm
    /// of the ratio, where that is small.
    pub mean: f64,
    /// What chance leaves open to either side ([`Settings::certain`] standard errors).
    pub open: f64,
}

/// What runs now.
#[derive(Clone, Debug, PartialEq)]
struct Stretch {
    /// The mechanism tried; `None`: that in force.
    tries: Option<usize>,
    /// When it began, and when its measured window begins and ends.
    begun: Time,
    measured_from: Time,
    ends: Time,
    /// The work of each program when it began, and once its measured window has begun, then.
    at_begin: Vec<f64>,
    at_window: Option<(Time, Vec<f64>)>,
}

impl Stretch {
    fn new(settings: &Settings, tries: Option<usize>, now: Time, work: &[f64]) -> Self {
        let measured_from = now + settings.settle;
        Self {
            tries,
            begun: now,
            measured_from,
            ends: measured_from + settings.window,
            at_begin: work.to_vec(),
            at_window: None,
        }
    }
}

/// A trial that has ended, whose next window under the mechanism in force is still to come.
#[derive(Clone, Debug, PartialEq)]
struct Tried {
    mechanism: usize,
    before: Rates,
    rates: Rates,
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
    /// Rates of the last window under it, if it has been in force since.
    last: Option<Rates>,
    tried: Option<Tried>,
    /// The mean square of the noise of a sample, and its weight.
    noise: (f64, f64),
    /// What trials may still lose (ns), and since when.
    account: f64,
    accounted: Time,
    /// When none was last in force or tried.
    checked: Time,
}

impl Auto {
    /// Starts under none, the first of this many mechanisms.
    ///
    /// * `work`: of each program up to now, in a unit of its own.
    #[must_use]
    pub fn new(settings: Settings, mechanisms: usize, now: Time, work: &[f64]) -> Self {
        Self {
            settings,
            known: vec![Known::default(); mechanisms.max(1)],
            chosen: 0,
            stretch: Stretch::new(&settings, None, now, work),
            last: None,
            tried: None,
            noise: (0.0, 0.0),
            account: settings.most_loss * settings.period.as_f64(),
            accounted: now,
            checked: now,
        }
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
        Some(Gain { mean: known.mean, open })
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
        }
        let is_over = now >= self.stretch.ends;
        match self.stretch.tries {
            Some(mechanism) if is_over || self.is_too_dear(now, work) => {
                self.ends_trial(mechanism, now, work);
            }
            None if is_over => self.ends_window(now, work),
            _ => {}
        }
        self.in_force()
    }

    /// The mean rates since the measured window began, or if it has not, since the stretch did.
    fn rates(&self, now: Time, work: &[f64]) -> Option<Rates> {
        let begin = (self.stretch.begun, &self.stretch.at_begin);
        let window = self.stretch.at_window.as_ref().map(|(since, work)| (*since, work));
        let (since, from) = window.filter(|(since, _)| *since < now).unwrap_or(begin);
        rates(since, from, now, work)
    }

    /// What the present trial has lost against none (ns).
    fn lost_ns(&self, now: Time, work: &[f64]) -> f64 {
        let so_far = rates(self.stretch.begun, &self.stretch.at_begin, now, work);
        let gain = so_far.as_ref().zip(self.last.as_ref()).and_then(|(own, last)| gain(own, last));
        let over_none = gain.unwrap_or(0.0) + self.known[self.chosen].mean;
        lost(over_none) * (now - self.stretch.begun).as_f64()
    }

    fn is_too_dear(&self, now: Time, work: &[f64]) -> bool {
        // Half, as it is found out late, and changing back takes time as well. A change that has
        // not settled yet says little about what follows.
        let part = if now > self.stretch.measured_from { 0.5 } else { 1.0 };
        self.lost_ns(now, work) > part * self.account
    }

    fn ends_trial(&mut self, mechanism: usize, now: Time, work: &[f64]) {
        self.account -= self.lost_ns(now, work);
        let rates = self.rates(now, work);
        self.tried =
            self.last.take().zip(rates).map(|(before, rates)| Tried { mechanism, before, rates });
        if mechanism == 0 {
            self.checked = now;
        }
        self.begins(None, now, work);
    }

    fn ends_window(&mut self, now: Time, work: &[f64]) {
        self.account = (self.account + self.settings.most_loss * (now - self.accounted).as_f64())
            .min(self.settings.most_loss * self.settings.period.as_f64());
        self.accounted = now;
        for known in &mut self.known {
            known.weight *= self.settings.discount;
        }
        self.noise.1 *= self.settings.discount;
        let rates = self.rates(now, work);
        if let Some(rates) = &rates {
            match (self.tried.take(), &self.last) {
                (Some(tried), _) => self.learn(&tried, rates),
                (None, Some(last)) => self.compare(&last.clone(), rates),
                (None, None) => {}
            }
        }
        self.last = rates;
        let before = self.chosen;
        self.choose();
        if self.chosen != before {
            self.last = None;
        }
        if self.chosen == 0 {
            self.checked = now;
        }
        let tries = if self.last.is_some() { self.next_trial(now) } else { None };
        self.begins(tries, now, work);
    }

    fn begins(&mut self, tries: Option<usize>, now: Time, work: &[f64]) {
        self.stretch = Stretch::new(&self.settings, tries, now, work);
    }

    /// A trial and the windows around it are a sample.
    fn learn(&mut self, tried: &Tried, after: &Rates) {
        let Tried { mechanism, before, rates } = tried;
        let (Some(first), Some(second)) = (gain(rates, before), gain(rates, after)) else { return };
        let sample = f64::midpoint(first, second);
        // A sample of none is one of what is in force, the other way round.
        let (of, sample) = if *mechanism == 0 {
            (self.chosen, -sample)
        } else {
            (*mechanism, self.known[self.chosen].mean + sample)
        };
        let noise = self.noise();
        let known = &mut self.known[of];
        let away = (sample - known.mean).abs();
        let is_contradicted = known.weight >= 1.0
            && away > self.settings.least_jump.min(5.0 * self.settings.least_noise)
            && away > self.settings.jump * known.variance.max(noise).sqrt();
        if is_contradicted {
            *known = Known::default();
        }
        known.learn(sample);
    }

    /// Two windows under one mechanism differ by noise, or the load has changed.
    fn compare(&mut self, last: &Rates, rates: &Rates) {
        let Some(change) = gain(rates, last) else { return };
        let is_jump = change.abs() > self.settings.least_jump
            && change.abs() > self.settings.jump * self.noise().sqrt();
        if is_jump && self.noise.1 > 0.0 {
            self.forget();
            return;
        }
        // A sample has the noise of one window and of the mean of two, this the noise of two.
        let (mean, weight) = self.noise;
        self.noise = ((mean * weight + 0.75 * change * change) / (weight + 1.0), weight + 1.0);
    }

    /// What is known may no longer be so: none is in force, and all are tried again.
    fn forget(&mut self) {
        self.known.fill(Known::default());
        self.chosen = 0;
    }

    /// The mean square of a sample's noise.
    fn noise(&self) -> f64 {
        self.noise.0.max(self.settings.least_noise.powi(2))
    }

    fn uncertainty(&self, mechanism: usize) -> f64 {
        if mechanism == 0 { 0.0 } else { self.known[mechanism].uncertainty(self.noise()) }
    }

    /// By how much one mechanism is better than that in force, and what chance leaves open of that.
    fn over_chosen(&self, mechanism: usize) -> (f64, f64) {
        let open = self.uncertainty(mechanism) + self.uncertainty(self.chosen);
        let better = self.known[mechanism].mean - self.known[self.chosen].mean;
        (better, self.settings.certain * open.sqrt())
    }

    fn choose(&mut self) {
        if self.known[self.chosen].mean < 0.0 {
            self.chosen = 0;
        }
        let best = (0..self.known.len())
            .filter(|other| *other == 0 || self.known[*other].weight > 1.5)
            .map(|other| (other, self.over_chosen(other)))
            .filter(|(_, (better, open))| *better > *open)
            .max_by(|one, other| one.1.0.total_cmp(&other.1.0));
        if let Some((best, _)) = best {
            self.chosen = best;
        }
    }

    /// What is tried next, if anything is worth a trial that can be paid for.
    fn next_trial(&self, now: Time) -> Option<usize> {
        if self.chosen != 0 && now - self.checked >= self.settings.recheck {
            return Some(0);
        }
        let whole = (self.settings.window + self.settings.settle).as_f64();
        let full = self.settings.most_loss * self.settings.period.as_f64();
        let worth = |mechanism: usize| {
            let (better, open) = self.over_chosen(mechanism);
            let most = better + open;
            let known = &self.known[mechanism];
            // Of what nothing is known, a trial costs what there is, at most.
            let is_known = known.weight > 0.5;
            let costs = if is_known { lost(known.mean) * whole } else { 0.0 };
            let is_paid = costs.max(full / 4.0).min(0.9 * full) <= self.account;
            let is_open = open > self.settings.least_gain && most > self.settings.least_gain;
            (is_open && is_paid).then_some((mechanism, most))
        };
        let open = (1..self.known.len()).filter(|other| *other != self.chosen).filter_map(worth);
        // The first of the greatest.
        open.reduce(|best, other| if other.1 > best.1 { other } else { best }).map(|(of, _)| of)
    }
}

fn rates(since: Time, from: &[f64], now: Time, work: &[f64]) -> Option<Rates> {
    let span = (now - since).as_f64();
    (span > 0.0)
        .then(|| work.iter().zip(from).map(|(now, from)| (now - from) / span * 1e9).collect())
}

/// How much more work is done than elsewhere: the mean over programs of the difference over the
/// mean of both, -2 to 2. That is ln(own / other) where they differ little, and bounded where a
/// program happens to have done nothing. `None` if no program has done anything.
fn gain(own: &[f64], other: &[f64]) -> Option<f64> {
    let means =
        own.iter().zip(other).map(|(own, other)| (own - other, f64::midpoint(*own, *other)));
    let done = means.filter(|(_, mean)| *mean > 0.0 && mean.is_finite());
    let (sum, count) =
        done.fold((0.0, 0.0), |(sum, count), (more, mean)| (sum + more / mean, count + 1.0));
    (count > 0.0).then(|| (sum / count).clamp(-2.0, 2.0))
}

/// The part of the other's work that is lost by a gain, if it is a loss.
fn lost(gain: f64) -> f64 {
    (1.0 - (2.0 + gain) / (2.0 - gain)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests;
