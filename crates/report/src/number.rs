//! Measured numbers as text: digits in groups of three, a suitable unit, the interval next to it.
//!
//! Spaces inside a number and before its unit are U+00A0, so that no line breaks there.

use dimmer_probe::stats::Estimate;

/// The non-breaking space.
pub const SPACE: char = '\u{a0}';

/// A unit of time: its nanoseconds, and its sign.
#[derive(Clone, Copy)]
pub(crate) struct TimeUnit {
    pub(crate) ns: f64,
    pub(crate) sign: &'static str,
}

impl TimeUnit {
    /// The unit for a time: nanoseconds up to 10 us, since most effects last some thousands of
    /// them.
    pub(crate) fn of(ns: f64) -> Self {
        match ns.abs() {
            below if below < 9_999.5 => Self { ns: 1.0, sign: "ns" },
            below if below < 999_500.0 => Self { ns: 1e3, sign: "µs" },
            _ => Self { ns: 1e6, sign: "ms" },
        }
    }

    /// Decimals for `value`, given in this unit: three digits in all, and no fractions of a
    /// nanosecond from 10 ns on.
    pub(crate) fn decimals(self, value: f64) -> usize {
        let finest: usize = if self.ns > 1.0 { 2 } else { 1 };
        match value.abs() {
            below if below < 9.995 => finest,
            below if below < 99.95 => finest - 1,
            _ => 0,
        }
    }
}

/// `value` with digits in groups of three; a value that is not finite is "unlimited".
pub fn grouped(value: f64, decimals: usize) -> String {
    if !value.is_finite() {
        return "unlimited".to_owned();
    }
    let text = format!("{:.decimals$}", value.abs());
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let mut number = String::new();
    if value < 0.0 && text.bytes().any(|digit| (b'1'..=b'9').contains(&digit)) {
        number.push('−');
    }
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            number.push(SPACE);
        }
        number.push(digit);
    }
    if !fraction.is_empty() {
        number.push('.');
        number.push_str(fraction);
    }
    number
}

/// `value` with its sign, `+` included; what is rounded to zero has none.
pub(crate) fn signed(value: f64, decimals: usize) -> String {
    let number = grouped(value, decimals);
    let is_zero = !number.bytes().any(|digit| (b'1'..=b'9').contains(&digit));
    if value > 0.0 && !is_zero { format!("+{number}") } else { number }
}

/// `value` with five digits, or with all digits before the point: `4 108.5`, `1 234 568`, `0.1235`.
pub(crate) fn five_digits(value: f64) -> String {
    let decimals = [9_999.95, 999.995, 99.9995, 9.99995];
    let decimals = decimals.into_iter().filter(|most| value.abs() < *most).count();
    grouped(value, decimals)
}

/// A whole number in groups of three.
pub(crate) fn count(value: impl Into<f64>) -> String {
    grouped(value.into(), 0)
}

/// The number of entries of a list.
pub fn length(value: usize) -> String {
    grouped(value as f64, 0)
}

/// A number with its noun: `1 window`, `12 800 windows`, `2 processes`.
pub fn counted(number: usize, noun: &str) -> String {
    let end = match number {
        1 => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{} {noun}{end}", length(number))
}

/// A time in a suitable unit: `1 640 ns`, `24.6 µs`.
pub fn time(ns: f64) -> String {
    if !ns.is_finite() {
        return grouped(ns, 0);
    }
    let unit = TimeUnit::of(ns);
    let value = ns / unit.ns;
    format!("{}{SPACE}{}", grouped(value, unit.decimals(value)), unit.sign)
}

/// An upper bound of a time: rounded up, never down.
pub(crate) fn time_bound(ns: f64) -> String {
    let unit = TimeUnit::of(ns);
    let step = unit.ns / if unit.ns > 1.0 { 10.0 } else { 1.0 };
    // At least one step: nothing is below zero.
    time((ns / step).ceil().max(1.0) * step)
}

/// An upper bound of a ratio, in percent: rounded up, never down.
pub(crate) fn percent_bound(ratio: f64) -> String {
    format!("{}{SPACE}%", grouped((ratio * 1e4).ceil().max(1.0) / 100.0, 2))
}

/// A round time for an axis, as short as possible: `500 ns`, `1.5 µs`, `100 ms`.
pub(crate) fn round_time(ns: f64) -> String {
    // A computed power of ten is not exact.
    let unit = match ns.abs() {
        below if below < 999.5 => TimeUnit { ns: 1.0, sign: "ns" },
        below if below < 999_500.0 => TimeUnit { ns: 1e3, sign: "µs" },
        _ => TimeUnit { ns: 1e6, sign: "ms" },
    };
    let value = (ns / unit.ns * 1e3).round() / 1e3;
    // Adding zero makes a negative zero positive.
    format!("{}{SPACE}{}", value + 0.0, unit.sign)
}

/// The median of a time and its interval. They get more digits if that makes the interval's ends
/// differ, but at most two after the point: `1 640 ns`, `[1 580, 1 700]`.
pub(crate) fn time_estimate(ns: &Estimate) -> (String, String) {
    if !ns.median.is_finite() {
        return (time(ns.median), interval(ns, 0));
    }
    let unit = TimeUnit::of(ns.median);
    let value = ns.scaled(1.0 / unit.ns);
    let most = if unit.ns > 1.0 { 2 } else { 1 };
    let decimals = telling(&value, unit.decimals(value.median), most);
    let median = format!("{}{SPACE}{}", grouped(value.median, decimals), unit.sign);
    (median, interval(&value, decimals))
}

/// A ratio as a percentage: `94.0 %`.
pub fn percent(ratio: f64) -> String {
    format!("{}{SPACE}%", grouped(ratio * 100.0, 1))
}

/// The median of a ratio and its interval in percent: `94.0 %`, `[93.8, 94.1]`.
pub(crate) fn percent_estimate(ratio: &Estimate) -> (String, String) {
    let value = ratio.scaled(100.0);
    let decimals = telling(&value, 1, 2);
    (format!("{}{SPACE}%", grouped(value.median, decimals)), interval(&value, decimals))
}

/// Number of decimals, from `least` to `most`, with which the ends of an interval differ.
fn telling(estimate: &Estimate, least: usize, most: usize) -> usize {
    let (low, high) = estimate.ci95;
    let apart = |decimals: &usize| grouped(low, *decimals) != grouped(high, *decimals);
    (least..=most).find(apart).unwrap_or(least)
}

/// The ends of an interval with this number of decimals.
pub(crate) fn interval(estimate: &Estimate, decimals: usize) -> String {
    let (low, high) = estimate.ci95;
    format!("[{},{SPACE}{}]", grouped(low, decimals), grouped(high, decimals))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(text.replace(SPACE, " "), expected);
    }

    #[test]
    fn unit_fits_the_size() {
        check(&time(3.21), "3.2 ns");
        check(&time(38.4), "38 ns");
        check(&time(1640.2), "1 640 ns");
        check(&time(9_999.7), "10.0 µs");
        check(&time(24_590.0), "24.6 µs");
        check(&time(674_000.0), "674 µs");
        check(&time(1_333_000.0), "1.33 ms");
        check(&time(12_340_000.0), "12.3 ms");
    }

    #[test]
    fn five_digits_are_all_before_the_point_or_some_behind_it() {
        check(&five_digits(4108.46), "4 108.5");
        check(&five_digits(1_234_567.8), "1 234 568");
        check(&five_digits(9_999.97), "10 000");
        check(&five_digits(999.996), "1 000.0");
        check(&five_digits(0.123_45), "0.1235");
        check(&five_digits(-12.5), "−12.500");
    }

    #[test]
    fn round_times_are_short() {
        check(&round_time(-0.0), "0 ns");
        check(&round_time(1e5), "100 µs");
        check(&round_time(999.999_999_9), "1 µs");
        check(&round_time(500.0), "500 ns");
        check(&round_time(1500.0), "1.5 µs");
        check(&round_time(1e8), "100 ms");
    }

    #[test]
    fn bounds_are_rounded_up() {
        check(&time_bound(30.1), "31 ns");
        check(&time_bound(2e-10), "1.0 ns");
        check(&time_bound(12_310.0), "12.4 µs");
        check(&percent_bound(0.002_689_1), "0.27 %");
        check(&percent_bound(0.0), "0.01 %");
    }

    #[test]
    fn interval_keeps_the_unit_of_the_median() {
        let settle = Estimate { median: 12_000.0, ci95: (9_100.0, 14_000.0) };
        let (median, interval) = time_estimate(&settle);
        check(&median, "12.0 µs");
        check(&interval, "[9.1, 14.0]");
    }

    #[test]
    fn narrow_interval_gets_the_digits_that_tell_its_ends_apart() {
        let (median, interval) =
            time_estimate(&Estimate { median: 117_980.0, ci95: (117_870.0, 118_020.0) });
        check(&median, "118.0 µs");
        check(&interval, "[117.9, 118.0]");
    }

    #[test]
    fn one_is_singular() {
        check(&counted(1, "window"), "1 window");
        check(&counted(12_800, "window"), "12 800 windows");
    }

    #[test]
    fn zero_has_no_sign_and_a_missing_bound_no_digits() {
        check(&time(-0.01), "0.0 ns");
        check(&time(-12.0), "−12 ns");
        check(&time(f64::INFINITY), "unlimited");
        check(&percent(0.94), "94.0 %");
    }
}
