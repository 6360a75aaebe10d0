//! Instants and spans of time, at two resolutions: nanoseconds for real clocks, picoseconds for
//! simulated ones.
//!
//! An instant is a point on a clock, a span the distance of two. They are different types, so that
//! no sum of two instants compiles. All arithmetic saturates: a time that is out of range is as far
//! as can be told, and the span from a later instant to an earlier one is zero.

use core::time::Duration;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

use super::nearest;

/// Declares an instant and the span between two of them, in a unit.
macro_rules! timeline {
    (
        $(#[$instant_doc:meta])* $instant:ident,
        $(#[$span_doc:meta])* $span:ident,
        $from:ident, $get:ident, $suffix:literal
    ) => {
        $(#[$instant_doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $instant(u64);

        impl $instant {
            /// The origin of the clock.
            pub const START: Self = Self(0);

            /// The latest instant, which also stands for one that never comes.
            pub const MAX: Self = Self(u64::MAX);

            #[doc = concat!("The instant `value` ", $suffix, " after the origin of the clock.")]
            #[must_use]
            pub const fn $from(value: u64) -> Self {
                Self(value)
            }

            #[doc = concat!("The time since the origin of the clock in ", $suffix, ".")]
            #[must_use]
            pub const fn $get(self) -> u64 {
                self.0
            }
        }

        impl $instant {
            /// The span since the origin of the clock.
            #[must_use]
            pub const fn since_start(self) -> $span {
                $span(self.0)
            }
        }

        impl Add<$span> for $instant {
            type Output = Self;

            #[inline]
            fn add(self, span: $span) -> Self {
                Self(self.0.saturating_add(span.0))
            }
        }

        impl AddAssign<$span> for $instant {
            #[inline]
            fn add_assign(&mut self, span: $span) {
                *self = *self + span;
            }
        }

        impl Sub for $instant {
            type Output = $span;

            /// The span since an earlier instant.
            #[inline]
            fn sub(self, earlier: Self) -> $span {
                $span(self.0.saturating_sub(earlier.0))
            }
        }

        impl Sub<$span> for $instant {
            type Output = Self;

            #[inline]
            fn sub(self, span: $span) -> Self {
                Self(self.0.saturating_sub(span.0))
            }
        }

        $(#[$span_doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $span(u64);

        impl $span {
            /// No time.
            pub const ZERO: Self = Self(0);

            /// The longest span.
            pub const MAX: Self = Self(u64::MAX);

            #[doc = concat!("The span of `value` ", $suffix, ".")]
            #[must_use]
            pub const fn $from(value: u64) -> Self {
                Self(value)
            }

            #[doc = concat!("The span nearest to `value` ", $suffix, "; zero if it is negative or \
                             not a number.")]
            #[must_use]
            pub fn rounded(value: f64) -> Self {
                Self(nearest(value))
            }

            #[doc = concat!("The value in ", $suffix, ".")]
            #[must_use]
            pub const fn $get(self) -> u64 {
                self.0
            }

            #[doc = concat!("The value in ", $suffix, ", for ratios.")]
            #[must_use]
            pub const fn as_f64(self) -> f64 {
                self.0 as f64
            }

            /// How often `span` fits into this one. A span of zero counts as the shortest.
            #[must_use]
            pub fn times(self, span: Self) -> u64 {
                self.0 / span.0.max(1)
            }
        }

        impl Add for $span {
            type Output = Self;

            #[inline]
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl AddAssign for $span {
            #[inline]
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl Sub for $span {
            type Output = Self;

            #[inline]
            fn sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl Mul<u64> for $span {
            type Output = Self;

            #[inline]
            fn mul(self, by: u64) -> Self {
                Self(self.0.saturating_mul(by))
            }
        }

        impl Div<u64> for $span {
            type Output = Self;

            /// A part of the span, rounded down; all of it if `by` is zero.
            #[inline]
            fn div(self, by: u64) -> Self {
                Self(self.0 / by.max(1))
            }
        }

        impl Mul<$span> for u64 {
            type Output = $span;

            #[inline]
            fn mul(self, span: $span) -> $span {
                span * self
            }
        }

        impl Sum for $span {
            fn sum<I: Iterator<Item = Self>>(spans: I) -> Self {
                spans.fold(Self::ZERO, Self::add)
            }
        }

        impl<'a> Sum<&'a Self> for $span {
            fn sum<I: Iterator<Item = &'a Self>>(spans: I) -> Self {
                spans.copied().sum()
            }
        }

        impl std::fmt::Display for $span {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{} {}", self.0, $suffix)
            }
        }
    };
}

timeline!(
    /// An instant on a clock of the caller's. Where the clock starts does not matter.
    Time,
    /// A span of wall-clock time.
    Nanos,
    from_ns, ns, "ns"
);
timeline!(
    /// An instant of simulated time, from the start of the simulated machine; the range is 213
    /// days.
    Moment,
    /// A span of simulated time.
    Picos,
    from_ps, ps, "ps"
);

/// Picoseconds in a nanosecond.
const PS: u64 = 1000;

impl Nanos {
    /// The span of `us` microseconds.
    #[must_use]
    pub const fn from_us(us: u64) -> Self {
        Self(us * 1000)
    }

    /// The span of `ms` milliseconds.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }

    /// The value in microseconds, for people.
    #[must_use]
    pub fn us(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// The same span in simulated time.
    #[must_use]
    pub const fn picos(self) -> Picos {
        Picos(self.0.saturating_mul(PS))
    }
}

impl From<Duration> for Nanos {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Time {
    /// The same instant on a simulated clock.
    #[must_use]
    pub const fn moment(self) -> Moment {
        Moment(self.0.saturating_mul(PS))
    }
}

impl Moment {
    /// The last nanosecond up to this moment.
    #[must_use]
    pub const fn time(self) -> Time {
        Time(self.0 / PS)
    }
}

impl Picos {
    /// The span nearest to `ns` nanoseconds; zero if that is negative or not a number.
    #[must_use]
    pub fn from_ns(ns: f64) -> Self {
        Self::rounded(ns * PS as f64)
    }

    /// The whole nanoseconds of this span.
    #[must_use]
    pub const fn nanos(self) -> Nanos {
        Nanos(self.0 / PS)
    }

    /// The value in nanoseconds, not rounded.
    #[must_use]
    pub fn ns(self) -> f64 {
        self.0 as f64 / PS as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let (early, late) = (Time::from_ns(5), Time::from_ns(u64::MAX - 1));
        assert_eq!(late + Nanos::from_ns(7), Time::MAX);
        assert_eq!(early - late, Nanos::ZERO);
        assert_eq!(late - early, Nanos::from_ns(u64::MAX - 6));
        assert_eq!(early - Nanos::from_ns(7), Time::START);
        assert_eq!([Nanos::MAX, Nanos::MAX].iter().sum::<Nanos>(), Nanos::MAX);
        assert_eq!(Nanos::MAX * 2, Nanos::MAX);
        assert_eq!(Nanos::from(Duration::MAX), Nanos::MAX);
        assert_eq!(
            (Nanos::from_us(7).times(Nanos::from_us(2)), Nanos::from_ns(3).times(Nanos::ZERO)),
            (3, 3)
        );
    }

    #[test]
    fn both_resolutions_tell_the_same_time() {
        let moment = Moment::from_ps(1_999);
        assert_eq!(
            (moment.time(), Time::from_ns(2).moment()),
            (Time::from_ns(1), Moment::from_ps(2000))
        );
        assert_eq!(Time::MAX.moment(), Moment::MAX);
        assert_eq!(
            (Picos::from_ns(1.5), Picos::from_ns(-1.0)),
            (Picos::from_ps(1500), Picos::ZERO)
        );
        assert_eq!(
            (Picos::from_ps(1500).nanos(), Picos::from_ps(1500).ns()),
            (Nanos::from_ns(1), 1.5)
        );
    }
}
