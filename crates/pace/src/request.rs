//! What a thread asks for, and what becomes of it.

use std::num::NonZeroU8;
use std::time::Duration;

use dimmer_host::cpufreq::clocks::Clocks;
use dimmer_policy::boost::Speed;
use dimmer_processor::units::KiloHertz;

/// A clock that a thread asks for: a share of the fastest one, or one of the paper's three speeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request(NonZeroU8);

impl Request {
    /// The slowest clock.
    pub const SLOW: Self = Self(NonZeroU8::new(101).unwrap());
    /// The fastest clock without turbo. Where the kernel does not report it, the machine decides as
    /// if nothing was asked for.
    pub const BASE: Self = Self(NonZeroU8::new(102).unwrap());
    /// The fastest clock.
    pub const TURBO: Self = Self(NonZeroU8::new(103).unwrap());

    /// This share of the fastest clock, but not less than the slowest; `None` unless it is from 1
    /// to 100 percent.
    #[must_use]
    pub const fn percent(percent: u8) -> Option<Self> {
        if percent <= 100 { Self::of_number(percent) } else { None }
    }

    /// The number by which C programs know it: percent, or 101 to 103 for the slowest clock, the
    /// base clock and the fastest.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0.get()
    }

    /// The request of this number, if there is one.
    #[must_use]
    pub const fn of_number(number: u8) -> Option<Self> {
        match NonZeroU8::new(number) {
            Some(known) if number <= Self::TURBO.number() => Some(Self(known)),
            _ => None,
        }
    }

    /// The clock that this means among a core's clocks; `None` for a base clock that is not known.
    #[must_use]
    pub fn clock(self, clocks: &Clocks) -> Option<KiloHertz> {
        let Clocks { slowest, base, fastest } = *clocks;
        match self {
            Self::SLOW => Some(slowest),
            Self::BASE => base,
            Self::TURBO => Some(fastest),
            Self(percent) => {
                let khz = fastest.khz().saturating_mul(percent.get().into()) / 100;
                Some(KiloHertz::from_khz(khz).clamp(slowest, fastest))
            }
        }
    }
}

impl From<Speed> for Request {
    fn from(speed: Speed) -> Self {
        match speed {
            Speed::Slow => Self::SLOW,
            Speed::Base => Self::BASE,
            Speed::Turbo => Self::TURBO,
        }
    }
}

/// How much the caller wants to know: the three ways of paper 002, footnote 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Ask and go on.
    BestEffort,
    /// Ask, and return the clock that the core has then.
    Decided,
    /// Ask, and execute until the core has the clock, at most for this time: if others leave no
    /// power for it, it never does.
    Granted {
        /// The longest wait.
        within: Duration,
    },
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A back end has it.
    Requested,
    /// Nothing was done: there is no back end ([`crate::back_end()`]), or it no longer works
    /// ([`crate::trouble`]), or the base clock is not known, or a destructor of a thread-local
    /// variable asks for a core after the thread's requests have ended.
    Unavailable,
}

/// What became of a request, and of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether a back end has the request.
    pub decision: Decision,
    /// The clock that the kernel reports of the core; `None` if the caller did not wish to know,
    /// or the kernel does not report it.
    pub clock: Option<KiloHertz>,
    /// Whether that is the clock that was asked for, up to 5 %.
    pub is_granted: bool,
}

/// Whether a core that runs at `clock` runs at `wanted`.
///
/// The kernel reports a mean over some milliseconds, so they are hardly ever equal. That 5 % are
/// near enough is a guess: one to two of the steps of 100 MHz in which processors choose clocks.
pub(crate) fn is_granted(wanted: KiloHertz, clock: KiloHertz) -> bool {
    wanted.khz().abs_diff(clock.khz()).saturating_mul(20) <= wanted.khz()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCKS: Clocks = Clocks {
        slowest: KiloHertz::from_mhz(800),
        base: Some(KiloHertz::from_mhz(3400)),
        fastest: KiloHertz::from_mhz(3900),
    };

    #[track_caller]
    fn check(number: u8, mhz: u64) {
        let request = Request::of_number(number).expect("a request");
        assert_eq!(request.clock(&CLOCKS), Some(KiloHertz::from_mhz(mhz)), "{request:?}");
    }

    /// Paper 002, table 3: the clocks of the i7-4770.
    #[test]
    fn means_the_clocks_of_the_paper() {
        check(Request::from(Speed::Turbo).number(), 3900);
        check(Request::from(Speed::Base).number(), 3400);
        check(Request::from(Speed::Slow).number(), 800);
        let unknown = Clocks { base: None, ..CLOCKS };
        assert_eq!(Request::BASE.clock(&unknown), None);
        assert_eq!(Request::SLOW.clock(&unknown), Some(KiloHertz::from_mhz(800)));
    }

    #[test]
    fn means_percent_of_the_fastest_clock_within_the_limits() {
        check(100, 3900);
        check(50, 1950);
        check(21, 819);
        check(20, 800);
        check(1, 800);
        assert_eq!(Request::percent(0), None);
        assert_eq!(Request::percent(101), None);
    }

    #[test]
    fn every_number_stands_for_one_request_or_none() {
        for number in 0..=u8::MAX {
            let request = Request::of_number(number);
            assert_eq!(request.is_some(), (1..=103).contains(&number), "{number}");
            assert!(request.is_none_or(|request| request.number() == number), "{number}");
        }
    }

    #[test]
    fn a_clock_is_granted_up_to_a_twentieth() {
        let mhz = KiloHertz::from_mhz;
        assert!(is_granted(mhz(4000), mhz(4000)));
        assert!(is_granted(mhz(4000), mhz(3800)) && is_granted(mhz(800), mhz(840)));
        assert!(!is_granted(mhz(4000), mhz(3799)) && !is_granted(mhz(800), mhz(841)));
    }
}
