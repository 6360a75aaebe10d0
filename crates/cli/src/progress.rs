//! How far a measurement is, and whether the user wants it to end.

use std::time::{Duration, Instant};

use dimmer_host::interrupt::Interrupt;
use dimmer_probe::lab::Observer;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// A bar of this number of steps, on standard error.
pub(crate) fn bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(steps), output::progress_target());
    let style = ProgressStyle::with_template("{bar:24} {percent:>3} %  {elapsed}  {msg}");
    if let Ok(style) = style {
        bar.set_style(style.progress_chars("━╸ "));
    }
    bar
}

/// What a [`spinner`] shows: how long the work has taken, and what it is at.
pub(crate) const AT: &str = "{spinner} {elapsed}  {msg}";

/// A mark of work whose length is not known, with a message; hidden until [`show`].
pub(crate) fn spinner(template: &str) -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    if let Ok(style) = ProgressStyle::with_template(template) {
        spinner.set_style(style);
    }
    spinner
}

/// Shows a spinner on standard error, if that is a terminal.
pub(crate) fn show(spinner: &ProgressBar) {
    spinner.set_draw_target(output::progress_target());
}

/// How long a command may take without a bar.
pub(crate) const SHOWN_AFTER: Duration = Duration::from_secs(2);

/// The steps of a bar of 1000 for the part that is done (0 to 1).
pub(crate) fn thousandths(done: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
    let thousandths = (done * 1000.0).round() as u64;
    thousandths
}

/// The bar of a measurement that a user may end.
pub(crate) struct Progress {
    bar: ProgressBar,
    interrupt: Interrupt,
    shown_from: Instant,
}

impl Progress {
    /// A bar that is drawn once the measurement has taken longer than `after`.
    pub(crate) fn new(interrupt: Interrupt, after: Duration) -> Self {
        Self { bar: bar(1000), interrupt, shown_from: Instant::now() + after }
    }

    /// Removes the bar from the screen.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Progress {
    fn begins(&mut self, what: &str, done: f64) {
        if Instant::now() < self.shown_from {
            return;
        }
        self.bar.set_position(thousandths(done));
        self.bar.set_message(what.to_owned());
    }

    fn wants_stop(&self) -> bool {
        self.interrupt.is_set()
    }
}
