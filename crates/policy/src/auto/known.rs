//! What is known of a mechanism by its samples.

use super::Settings;

/// What is known of a mechanism: its samples of gains over none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Known {
    pub(super) mean: f64,
    /// The mean square of the distance from the mean.
    pub(super) variance: f64,
    pub(super) weight: f64,
    /// The part of [`Self::weight`] that was measured against the mechanism in force: if more is
    /// learned of that one's gain, this one's changes as well.
    pub(super) linked: f64,
    /// How long trials of it took (ns), those long ago less.
    pub(super) tried: f64,
    /// The mean gain of the first windows after its trials over others, and its weight.
    pub(super) carryover: f64,
    pub(super) carryovers: f64,
    /// Whether the last sample contradicted the earlier ones, and was left out.
    pub(super) is_odd: bool,
}

impl Known {
    /// Learns a sample. One of a whole window has the weight 1.
    pub(super) fn learn(&mut self, sample: f64, weight: f64) {
        let away = sample - self.mean;
        let part = weight / (self.weight + weight).max(f64::MIN_POSITIVE);
        self.mean += part * away;
        self.variance = (1.0 - part) * (self.variance + part * away * away);
        self.weight += weight;
        self.linked += weight;
    }

    /// Learns how much more was done in the first window after a trial than in others.
    pub(super) fn learn_carryover(&mut self, gain: f64) {
        self.carryovers += 1.0;
        self.carryover += (gain - self.carryover) / self.carryovers;
    }

    /// The gain of the first windows after its trials, where mechanisms usually leave nothing
    /// behind.
    ///
    /// * `noise`: the variance of one such gain.
    /// * `caution`: by how many standard deviations it is assumed to be greater than it seems to.
    pub(super) fn carryover(&self, noise: f64, caution: f64, settings: &Settings) -> f64 {
        let weights = self.carryovers + noise / settings.usual_effect.powi(2);
        (self.carryover * self.carryovers + caution * (noise * weights).sqrt()) / weights
    }

    /// The gain of what it was measured against is greater by this.
    pub(super) fn shift(&mut self, by: f64) {
        self.mean += by * self.linked_part();
    }

    /// The part of its samples that was measured against the mechanism in force.
    pub(super) fn linked_part(&self) -> f64 {
        (self.linked / self.weight.max(1e-9)).min(1.0)
    }

    /// Whether a sample of this noise (a variance) cannot be one of the same gain.
    pub(super) fn is_contradicted(&self, sample: f64, noise: f64, settings: &Settings) -> bool {
        let away = (sample - self.mean).abs();
        self.weight >= 1.0
            && away > settings.least_jump.min(5.0 * settings.least_noise)
            && away > settings.jump * self.variance.max(noise).sqrt()
    }

    /// The variance of the mean, where a sample has at least this one.
    pub(super) fn uncertainty(&self, noise: f64) -> f64 {
        if self.weight > 0.0 { self.variance.max(noise) / self.weight } else { f64::INFINITY }
    }
}
