//! Constants of the trials.

use dimmer_processor::units::Nanos;

use crate::ways::WORTHWHILE;

/// Constants of the trials.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How long work is measured.
    pub window: Nanos,
    /// How long a change of mechanisms takes to settle. Work is not measured meanwhile.
    pub settle: Nanos,
    /// How long what a trial leaves behind may last: work that comes back to what it was before the
    /// trial within this time was lost by the trial.
    pub leaves: Nanos,
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
    /// The standard deviation of mechanisms' gains, and of what they leave behind, before anything
    /// is known of them.
    pub usual_effect: f64,
    /// By how many standard deviations mechanisms are assumed to do worse than they seem to, and to
    /// leave less behind.
    pub caution: f64,
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
        // A guess: Linux exchanges threads of busy CPUs after a few looks, of some 100 ms each.
        leaves: Nanos::from_ms(2_000),
        tick: Nanos::from_ms(5),
        // What is worthwhile, less what a wrong choice may cost until it is found out.
        most_loss: 0.4 * WORTHWHILE,
        period: Nanos::from_ms(10_000),
        least_gain: WORTHWHILE / 4.0,
        least_noise: WORTHWHILE / 4.0,
        // A guess: mechanisms that gain a tenth are good ones, and bad ones can halve the work.
        usual_effect: 0.1,
        // With less, trials cost more than they may where work varies much (this module's tests).
        caution: 1.0,
        // Chance exceeds that once in some thousand looks, and there are hundreds a minute.
        certain: 3.5,
        // As in `server::loops::trials`.
        jump: 5.0,
        least_jump: 0.05,
        // Half the weight after some minutes; a guess, as programs' habits change.
        discount: 0.9995,
        recheck: Nanos::from_ms(5_000),
    };

    /// The same in less time.
    ///
    /// * `times`: how often all times here go into what they were; 1 or more.
    #[must_use]
    pub fn faster(self, times: u64) -> Self {
        let part = |time: Nanos| time / times.max(1);
        Self {
            window: part(self.window),
            settle: part(self.settle),
            leaves: part(self.leaves),
            tick: part(self.tick),
            period: part(self.period),
            recheck: part(self.recheck),
            ..self
        }
    }
}
