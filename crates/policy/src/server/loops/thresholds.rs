//! Paper 001's feedback loop (§4.2.3, §4.3.3): thresholds on the density of wide SIMD code that
//! move in the direction in which performance grew.
//!
//! Once per window, from the change of performance since the window before:
//!
//! | performance | direction | rate |
//! |---|---|---|
//! | grew | stays | times the factor |
//! | fell | turns | divided by the factor |
//! | as before | stays | stays |
//!
//! The loop that §4.2.3 designs first has an interval [-ε, ε] without a trend; the one that it
//! implements "instead" has none: any change counts.
//!
//! Then every threshold moves by the rate in the direction, within bounds. The direction changes
//! only at the ends of windows, so no window spans two directions ("windows are cut as soon as the
//! threshold growth direction changes"). If the number of moved clients has not changed for
//! long, the *exciter* adds to the rate, so that the loop does not stay where it happens to be.
//!
//! Where the paper leaves a value open, the value is a guess here, and the setting's comment marks
//! it.

use dimmer_processor::units::{Nanos, Time};

use super::{Constant, Constants, Definition, LONGEST_MS, Loop, WindowEnd};
use crate::server::decision::{Action, Reason};
use crate::server::evidence::{Density, LEVELS, NEGLIGIBLE};
use crate::server::settings;

/// The loop as configurations name it.
pub static DEFINITION: Definition = Definition {
    name: "thresholds",
    summary: "thresholds of density that follow performance, as in paper 001",
    constants: || Box::new(Settings::PAPER),
    settings: |cores, _| settings::Settings::paper(cores),
};

/// The constants of the loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The length of a window.
    pub window: Nanos,
    /// Performance counts as changed if it differs from the window before by more than this, in
    /// parts of it. None in the paper; for performance that varies by itself.
    pub least_trend: f64,
    /// The rate is multiplied by this if performance grew, and divided by it if performance fell;
    /// from 1.1.
    pub factor: f64,
    /// By how much thresholds move per window, at the start and at least.
    pub least_rate: f64,
    /// The exciter fires if the number of moved clients has not changed for this long.
    pub exciter: Nanos,
    /// The exciter adds this to the rate.
    pub excitement: f64,
    /// The thresholds at the start.
    pub begin: f64,
    /// The lowest threshold. Code with a lower density counts as scalar.
    pub lowest: f64,
    /// The highest threshold.
    pub highest: f64,
}

impl Settings {
    /// The paper's values, where it gives any.
    pub const PAPER: Self = Self {
        // §6.2.3 varies "window size" from 100 to 800 without a unit. Milliseconds are a guess: in
        // seconds, no window would end within the five minutes of an experiment, and a change takes
        // "a few seconds" to have its full effect (§6.2.1).
        window: Nanos::from_ms(100),
        // §4.2.3: "trend' < 0" and "trend' > 0" are the cases.
        least_trend: 0.0,
        // §4.2.3: "factor > 1". Its value is a guess, as are the least rate, the excitement and the
        // threshold at the start.
        factor: 2.0,
        least_rate: 0.01,
        // §6.2.1: "After 100 seconds the exciter triggers".
        exciter: Nanos::from_ms(100_000),
        // §6.2.1: "nearly all clients stopping to offload" at once, so about the whole range of
        // densities.
        excitement: 0.5,
        // §6.2.1: "The initial threshold of our policy is very low, thus all clients offload
        // immediately".
        begin: NEGLIGIBLE,
        lowest: NEGLIGIBLE,
        // All cycles: no code is denser, so nothing is moved.
        highest: 1.0,
    };
}

/// The least distance of the bounds of thresholds.
const ROOM: f64 = 0.1;

/// The least number of windows between two firings of the exciter. With fewer, thresholds run from
/// one bound to the other all the time.
const CALM: f64 = 10.0;

/// The least factor; a guess, as the paper has "factor > 1" (§4.2.3). With it, 42 windows in which
/// performance fell take back what the exciter added to the rate, and the paper's exciter waits for
/// 1000. With 1 none would: the rate would stay as the exciter left it.
const LEAST_FACTOR: f64 = 1.1;

impl Constants for Settings {
    fn definition(&self) -> &'static Definition {
        &DEFINITION
    }

    fn copy(&self) -> Box<dyn Constants> {
        Box::new(*self)
    }

    fn list(&mut self) -> Vec<Constant<'_>> {
        let Self { window, exciter, begin, lowest, highest, .. } = *self;
        // Thresholds need room between their bounds.
        let (most_lowest, least_highest) = (begin.min(highest - ROOM), begin.max(lowest + ROOM));
        let ms = |span: Nanos| span.as_f64() / 1e6;
        vec![
            Constant::time("window_ms", &mut self.window, (1.0, ms(exciter) / CALM)),
            // Above, a ruin of the performance is no trend.
            Constant::number("least_trend", &mut self.least_trend, (0.0, 0.2)),
            Constant::number("factor", &mut self.factor, (LEAST_FACTOR, 1000.0)),
            // At 0, thresholds never move but by the exciter.
            Constant::number("least_rate", &mut self.least_rate, (0.001, 1.0)),
            Constant::time("exciter_ms", &mut self.exciter, (CALM * ms(window), LONGEST_MS)),
            Constant::number("excitement", &mut self.excitement, (0.0, 1.0)),
            Constant::number("begin", &mut self.begin, (lowest, highest)),
            Constant::number("lowest", &mut self.lowest, (0.0, most_lowest)),
            Constant::number("highest", &mut self.highest, (least_highest, 1.0)),
        ]
    }

    fn start(&self, now: Time) -> Box<dyn Loop> {
        Box::new(Thresholds::new(*self, now))
    }
}

/// The state of the loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Thresholds {
    settings: Settings,
    now: [f64; LEVELS],
    /// Whether thresholds grow.
    is_upwards: bool,
    rate: f64,
    /// The number of moved clients, and since when it is the same.
    moved: (usize, Time),
}

impl Thresholds {
    /// The loop at its start: thresholds are low and pressed downwards. The paper does not state
    /// this direction. Upwards, thresholds would leave the bound of "very low" without cause.
    #[must_use]
    pub fn new(settings: Settings, now: Time) -> Self {
        let mut begun = Self {
            settings,
            now: [settings.begin; LEVELS],
            is_upwards: false,
            rate: settings.least_rate,
            moved: (0, now),
        };
        begun.grow(0.0);
        begun
    }

    fn range(&self) -> f64 {
        self.settings.highest - self.settings.lowest
    }

    fn is_at_bound(&self) -> bool {
        let bound = if self.is_upwards { self.settings.highest } else { self.settings.lowest };
        self.now.iter().all(|threshold| *threshold == bound)
    }

    /// Moves thresholds. Returns whether any changed.
    fn grow(&mut self, by: f64) -> bool {
        let before = self.now;
        for threshold in &mut self.now {
            *threshold = (*threshold + by).min(self.settings.highest).max(self.settings.lowest);
        }
        self.now != before
    }
}

impl Loop for Thresholds {
    fn copy(&self) -> Box<dyn Loop> {
        Box::new(self.clone())
    }

    fn window_length(&self) -> Nanos {
        self.settings.window
    }

    fn decide(&self, _group: usize, density: &Density) -> (Action, Reason) {
        let above = density.above(&self.now);
        above.map_or((Action::Stay, Reason::Sparse), |level| (Action::Move, Reason::Dense(level)))
    }

    fn window(&mut self, WindowEnd { now, trend, moved }: WindowEnd) -> bool {
        let Settings { least_trend, factor, least_rate, exciter, excitement, .. } = self.settings;
        match trend.change() {
            Some(trend) if trend > least_trend => self.rate *= factor,
            Some(trend) if trend < -least_trend => {
                self.is_upwards = !self.is_upwards;
                self.rate /= factor;
            }
            _ => {}
        }
        let (before, since) = self.moved;
        if before != moved || now < since {
            self.moved = (moved, now);
        } else if now - since >= exciter {
            self.moved = (moved, now);
            self.rate += excitement;
            // If all thresholds are at the bound that they are pressed against, a higher rate alone
            // would excite nothing.
            if self.is_at_bound() {
                self.is_upwards = !self.is_upwards;
            }
        }
        self.rate = self.rate.clamp(least_rate, self.range().max(least_rate));
        self.grow(if self.is_upwards { self.rate } else { -self.rate })
    }

    fn negligible(&self) -> f64 {
        self.settings.lowest
    }

    // The paper counts the window in which a client comes.
    fn skips_first_window(&self) -> bool {
        false
    }

    // The paper does not distinguish where calls ran (§7.1).
    fn counts_moved_calls(&self) -> bool {
        true
    }

    fn thresholds(&self) -> Option<&[f64; LEVELS]> {
        Some(&self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::performance::Trend;

    const SECOND: u64 = 1_000_000_000;
    const WINDOW: u64 = Settings::PAPER.window.ns();

    fn window(thresholds: &mut Thresholds, now: u64, trend: f64, moved: usize) {
        let now = Time::from_ns(now);
        thresholds.window(WindowEnd { now, trend: Trend::Changed(trend), moved });
    }

    /// Runs the loop on a load of one density. Moving changes its performance by `gain`.
    /// Returns the times at which the load was moved or came back.
    fn switches(gain: f64, density: f64, seconds: u64) -> Vec<u64> {
        let mut thresholds = Thresholds::new(Settings::PAPER, Time::START);
        let (mut was, mut before, mut switches) = (false, 1.0, Vec::new());
        for now in (WINDOW..=seconds * SECOND).step_by(100_000_000) {
            let is = density > thresholds.now[1];
            if is != was {
                switches.push(now);
            }
            let performance = if is { 1.0 + gain } else { 1.0 };
            window(&mut thresholds, now, performance / before - 1.0, usize::from(is));
            (was, before) = (is, performance);
        }
        switches
    }

    #[test]
    fn what_gains_is_moved_at_once_and_left_for_windows_after_the_exciter_only() {
        let switches = switches(0.1, 0.6, 350);
        // At once; then a pair each time the exciter fires.
        assert_eq!(switches[0], WINDOW);
        assert_eq!(switches.len(), 7, "{switches:?}");
        for pair in switches[1..].chunks(2) {
            assert!(pair[0] > 99 * SECOND && pair[1] - pair[0] <= 10 * WINDOW, "{pair:?}");
        }
    }

    #[test]
    fn what_changes_nothing_goes_back_and_forth_with_the_exciter() {
        let switches = switches(0.0, 0.6, 350);
        assert_eq!(switches.len(), 4, "{switches:?}");
        assert!(switches.windows(2).all(|pair| pair[1] - pair[0] > 99 * SECOND));
    }

    #[test]
    fn what_loses_is_left_within_windows() {
        let switches = switches(-0.1, 0.6, 99);
        assert!(switches.len() == 2 && switches[1] <= 10 * SECOND, "{switches:?}");
    }

    #[test]
    fn scalar_code_is_never_moved() {
        assert!(switches(0.1, 0.0, 350).is_empty());
    }

    #[test]
    fn losses_take_back_what_the_exciter_added_with_the_least_factor() {
        let settings = Settings { factor: LEAST_FACTOR, ..Settings::PAPER };
        let mut thresholds = Thresholds::new(settings, Time::START);
        thresholds.rate += settings.excitement;
        for index in 1..=41 {
            window(&mut thresholds, index * WINDOW, -0.1, 0);
        }
        assert!(thresholds.rate > settings.least_rate);
        window(&mut thresholds, 42 * WINDOW, -0.1, 0);
        assert!(thresholds.rate <= settings.least_rate);
    }

    #[test]
    fn a_clock_that_jumps_and_trends_that_are_none_stay_within_bounds() {
        let mut thresholds = Thresholds::new(Settings::PAPER, Time::from_ns(5));
        let trends = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, 1e300, -1e300];
        for (index, now) in
            [0, u64::MAX, 3, SECOND, 0, 2 * SECOND].iter().cycle().take(600).enumerate()
        {
            window(&mut thresholds, *now, trends[index % 5 + index % 2], index % 3);
            let is_within = |threshold: &f64| (0.01..=1.0).contains(threshold);
            assert!(thresholds.now.iter().all(is_within), "{thresholds:?}");
            assert!((0.01..=1.0).contains(&thresholds.rate));
        }
    }
}
