//! How windows under one mechanism differ by chance.

/// The most weight of what is known, in samples, once the load has changed. A guess: new ones count
/// for more after some seconds.
const LITTLE: f64 = 30.0;

/// The weight of differences that tells chance from other changes. A guess.
const ENOUGH: f64 = 4.0;

/// What differences of windows have shown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Noise {
    /// The mean square of the noise of a sample, a part of the work.
    mean: f64,
    /// In differences of windows.
    weight: f64,
}

impl Noise {
    /// The mean square of a sample's noise.
    pub(super) const fn mean(self) -> f64 {
        self.mean
    }

    /// Whether any difference was seen.
    pub(super) fn is_seen(self) -> bool {
        self.weight > 0.0
    }

    /// Whether enough was seen to tell chance from other changes.
    pub(super) fn is_known(self) -> bool {
        self.weight >= ENOUGH
    }

    /// By what part of its work a window differs from the one before it.
    pub(super) fn learn(&mut self, change: f64) {
        // A sample has the noise of one window and of two others with the weights of `OF_TRIAL`;
        // this has that of two windows.
        let square = 7.0 / 9.0 * change * change;
        self.mean = (self.mean * self.weight + square) / (self.weight + 1.0);
        self.weight += 1.0;
    }

    /// Keeps this part of the weight.
    pub(super) fn fade(&mut self, part: f64) {
        self.weight *= part;
    }

    /// The load has changed, and another one has other noise.
    pub(super) fn of_another_load(&mut self) {
        self.weight = self.weight.min(LITTLE);
    }
}
