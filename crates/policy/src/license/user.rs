//! The program decides itself (paper 000 §4.2): three calls beside AVXFREQ, which decides until the
//! program switches it off.

use dimmer_processor::units::{LicenseLevel, Time};

use super::avxfreq::{AvxFreq, Counted, Parameters};

/// The governor of one core whose program may decide.
#[derive(Clone, Debug, PartialEq)]
pub struct User {
    avxfreq: AvxFreq,
    parameters: Parameters,
    /// The level that the program has set; `None` while AVXFREQ decides.
    set: Option<LicenseLevel>,
}

impl User {
    /// At L0; AVXFREQ decides.
    #[must_use]
    pub fn new(parameters: Parameters) -> Self {
        Self { avxfreq: AvxFreq::new(parameters), parameters, set: None }
    }

    /// `avxfreq_is_enabled`: whether the other two calls have an effect. They always have one here.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        true
    }

    /// `avxfreq_set_reclocking`: whether AVXFREQ decides. When it is switched off, the level stays
    /// until the program sets one. When it is switched on, AVXFREQ starts at L0.
    pub fn set_reclocking(&mut self, is_on: bool) {
        match (is_on, self.set) {
            (false, None) => self.set = Some(self.avxfreq.level()),
            (true, Some(_)) => {
                self.set = None;
                self.avxfreq = AvxFreq::new(self.parameters);
            }
            _ => {}
        }
    }

    /// `avxfreq_set_license`: sets the level from now on, however far it is from the previous one;
    /// no effect while AVXFREQ decides.
    pub fn set_license(&mut self, level: LicenseLevel) {
        self.set = self.set.map(|_| level);
    }

    /// The level that the core should have.
    #[must_use]
    pub fn level(&self) -> LicenseLevel {
        self.set.unwrap_or_else(|| self.avxfreq.level())
    }

    /// Whether the counter should interrupt at its next operation ([`AvxFreq::is_armed`]).
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.set.is_none() && self.avxfreq.is_armed()
    }

    /// When to call [`Self::look`].
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Time> {
        self.avxfreq.next_wakeup().filter(|_| self.set.is_none())
    }

    /// [`AvxFreq::interrupt`], while AVXFREQ decides.
    pub fn interrupt(&mut self, now: Time) {
        if self.set.is_none() {
            self.avxfreq.interrupt(now);
        }
    }

    /// [`AvxFreq::look`], while AVXFREQ decides.
    pub fn look(&mut self, now: Time, counted: Counted) {
        if self.set.is_none() {
            self.avxfreq.look(now, counted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const L0: LicenseLevel = LicenseLevel::new(0);
    const L1: LicenseLevel = LicenseLevel::new(1);
    const L2: LicenseLevel = LicenseLevel::new(2);

    #[test]
    fn avxfreq_decides_until_it_is_told_not_to() {
        let mut user = User::new(Parameters::default());
        user.set_license(L2);
        assert_eq!((user.level(), user.is_armed()), (L0, true));
        user.interrupt(Time::START);
        assert_eq!((user.level(), user.next_wakeup()), (L1, Some(Time::from_ns(100_000))));
    }

    #[test]
    fn the_program_goes_to_any_level_at_once() {
        let mut user = User::new(Parameters::default());
        user.interrupt(Time::START);
        user.set_reclocking(false);
        assert_eq!((user.level(), user.next_wakeup(), user.is_armed()), (L1, None, false));
        for level in [L2, L0, L2] {
            user.set_license(level);
            assert_eq!(user.level(), level);
        }
        user.interrupt(Time::from_ns(5));
        user.look(Time::from_ns(100_000), Counted { operations: 0, cycles: 1 });
        assert_eq!(user.level(), L2);
    }

    #[test]
    fn avxfreq_begins_anew_when_it_is_told_to_go_on() {
        let mut user = User::new(Parameters::default());
        user.interrupt(Time::START);
        user.set_reclocking(false);
        user.set_license(L2);
        user.set_reclocking(true);
        assert_eq!((user.level(), user.is_armed(), user.is_enabled()), (L0, true, true));
    }
}
