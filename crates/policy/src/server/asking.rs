//! Clients that ask for cores: programs whose threads go to wide cores of their own accord
//! (`dimmer run --specialise`).
//!
//! Whether moving pays is not asked for them: their user has decided that, and what moves are
//! threads, for phases of many calls, so neither trials of calls nor the price of handing one over
//! apply. The number of cores follows their work as that of others does, and other users lose no
//! more by them ([`super::shares`]).

use dimmer_processor::units::{Nanos, Time};

/// A client has its cores for this long after it was last seen to use or to need them. A guess: as
/// long as programs without a server keep theirs.
const KEPT: Nanos = Nanos::from_ms(10_000);

/// What is known of such a client.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Asking {
    /// Whether it has called one of its functions, or been on wide cores, since the last step.
    is_active: bool,
    /// When that was so last.
    used: Option<Time>,
}

impl Asking {
    /// Records that it needs cores.
    pub(super) const fn needs(&mut self) {
        self.is_active = true;
    }

    /// Whether it is to have cores.
    pub(super) const fn is_wanted(&self) -> bool {
        self.used.is_some()
    }

    /// Returns whether [`Self::is_wanted`] has changed.
    pub(super) fn step(&mut self, now: Time) -> bool {
        let was = self.is_wanted();
        if std::mem::take(&mut self.is_active) {
            self.used = Some(now);
        }
        // A clock that goes back restarts the time.
        self.used = self.used.map(|used| used.min(now)).filter(|used| now - *used < KEPT);
        was != self.is_wanted()
    }

    /// When it no longer has cores, if nothing happens until then.
    pub(super) fn next_wakeup(&self) -> Option<Time> {
        self.used.map(|used| used + KEPT)
    }
}
