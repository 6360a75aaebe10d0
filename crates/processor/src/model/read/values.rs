//! The accepted values of each key: each function reads one value, or returns what it expects.

use std::str::FromStr;

use toml::de::DeValue;

use super::super::{Domain, Path};
use crate::class::InstructionClass;
use crate::units::LicenseLevel;

/// Reads one value, or returns what it expects.
pub(super) type Accept<T> = fn(&DeValue<'_>) -> Result<T, String>;

pub(super) const DOMAINS: [(&str, Domain); 3] =
    [("core", Domain::Core), ("cluster", Domain::Cluster), ("package", Domain::Package)];

pub(super) const SUPPLIES: [(&str, Domain); 2] =
    [("core", Domain::Core), ("package", Domain::Package)];

pub(super) const PATHS: [(&str, Path); 2] =
    [("in-turn", Path::InTurn), ("directly", Path::Directly)];

pub(super) fn word<T: Copy>(
    words: &'static [(&'static str, T)],
) -> impl Fn(&DeValue<'_>) -> Result<T, String> {
    move |value| {
        let found = value.as_str().unwrap_or_default();
        let known = words.iter().find(|(word, _)| *word == found);
        let accepted = || {
            let words: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
            words.join(" or ")
        };
        known.map(|(_, meaning)| *meaning).ok_or_else(accepted)
    }
}

/// One of these levels, by its name.
pub(super) fn a_level(
    levels: Vec<String>,
) -> impl Fn(&DeValue<'_>) -> Result<LicenseLevel, String> {
    move |value| {
        let name = value.as_str().unwrap_or_default();
        let index = levels.iter().position(|level| level == name);
        let index = index.and_then(|index| u32::try_from(index).ok());
        index.map(LicenseLevel::new).ok_or_else(|| format!("one of {}", levels.join(", ")))
    }
}

/// The name of one of these idle states.
pub(super) fn a_cstate(names: &[String]) -> impl Fn(&DeValue<'_>) -> Result<String, String> {
    move |value| {
        let name = names.iter().find(|name| value.as_str() == Some(name));
        let known = if names.is_empty() { "of which there is none" } else { &names.join(", ") };
        name.cloned().ok_or_else(|| format!("the name of a `[[cstate]]`: {known}"))
    }
}

pub(super) fn a_class(value: &DeValue<'_>) -> Result<InstructionClass, String> {
    let class = value.as_str().and_then(|name| InstructionClass::from_str(name).ok());
    class.ok_or_else(|| {
        let names = InstructionClass::ALL.map(InstructionClass::name);
        format!("one of {}", names.join(", "))
    })
}

fn integer(value: &DeValue<'_>) -> Option<i128> {
    match value {
        DeValue::Integer(integer) => {
            i128::from_str_radix(&integer.as_str().replace('_', ""), integer.radix()).ok()
        }
        _ => None,
    }
}

fn float(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Float(float) => float.as_str().replace('_', "").parse().ok(),
        _ => integer(value).map(|integer| integer as f64),
    }
    .filter(|value: &f64| value.is_finite())
}

/// A whole number in a range, including both ends.
fn within<T: TryFrom<i128>>(value: &DeValue<'_>, low: i128, high: i128) -> Result<T, String> {
    let found = integer(value).filter(|value| (low..=high).contains(value));
    found
        .and_then(|value| T::try_from(value).ok())
        .ok_or_else(|| format!("a whole number from {low} to {high}"))
}

/// A number in a range, including both ends; it need not be whole.
fn between(value: &DeValue<'_>, low: f64, high: f64) -> Result<f64, String> {
    let found = float(value).filter(|value| (low..=high).contains(value));
    found.ok_or_else(|| format!("a number from {low} to {high}"))
}

// The ranges are far wider than real values, but narrow enough that times in picoseconds neither
// vanish nor overflow.

/// A number of parts of a machine; at least 1.
pub(super) fn count<T: TryFrom<i128>>(value: &DeValue<'_>) -> Result<T, String> {
    within(value, 1, 65_536)
}

/// A number of parts of a machine; may be 0.
pub(super) fn count_or_none<T: TryFrom<i128>>(value: &DeValue<'_>) -> Result<T, String> {
    within(value, 0, 65_536)
}

/// A cache size: up to 1 TiB.
pub(super) fn kib<T: TryFrom<i128>>(value: &DeValue<'_>) -> Result<T, String> {
    within(value, 1, 1 << 30)
}

/// A clock frequency: up to 100 GHz.
pub(super) fn mhz<T: TryFrom<i128>>(value: &DeValue<'_>) -> Result<T, String> {
    within(value, 1, 100_000)
}

/// A voltage: up to 100 V.
pub(super) fn mv<T: TryFrom<i128>>(value: &DeValue<'_>) -> Result<T, String> {
    within(value, 1, 100_000)
}

/// Power: up to 1 MW.
pub(super) fn mw<T: TryFrom<i128>>(value: &DeValue<'_>) -> Result<T, String> {
    within(value, 1, 1_000_000_000)
}

/// Power that may be 0: up to 1 MW.
pub(super) fn mw_or_none<T: TryFrom<i128>>(value: &DeValue<'_>) -> Result<T, String> {
    within(value, 0, 1_000_000_000)
}

/// The step of divisors of a clock.
pub(super) fn divisor_step(value: &DeValue<'_>) -> Result<f64, String> {
    between(value, 0.001, 100.0)
}

/// A divisor of a clock.
pub(super) fn divisor(value: &DeValue<'_>) -> Result<f64, String> {
    between(value, 1.0, 1000.0)
}

/// A time: up to 1 hour.
pub(super) fn ns<T: TryFrom<i128>>(value: &DeValue<'_>) -> Result<T, String> {
    within(value, 0, 3_600_000_000_000)
}

/// The length of a time slot: from 100 ns to 1 hour.
pub(super) fn slot_ns<T: TryFrom<i128>>(value: &DeValue<'_>) -> Result<T, String> {
    within(value, 100, 3_600_000_000_000)
}

/// A time that may have decimals: up to 1 s.
pub(super) fn short_ns(value: &DeValue<'_>) -> Result<f64, String> {
    between(value, 0.0, 1e9)
}

/// A number of instructions.
pub(super) fn instructions<T: TryFrom<i128>>(value: &DeValue<'_>) -> Result<T, String> {
    within(value, 1, 1_000_000_000_000)
}

/// The standard deviation of a logarithm: at 3, one value in a thousand is 10,000 times the median.
pub(super) fn log_sd(value: &DeValue<'_>) -> Result<f64, String> {
    between(value, 0.0, 3.0)
}

/// Instructions per cycle.
pub(super) fn per_cycle(value: &DeValue<'_>) -> Result<f64, String> {
    between(value, 0.0, 64.0)
}

pub(super) fn share(value: &DeValue<'_>) -> Result<f64, String> {
    let found = float(value).filter(|value| (0.0..=1.0).contains(value));
    found.ok_or_else(|| "a share from 0 to 1".into())
}

pub(super) fn share_above_zero(value: &DeValue<'_>) -> Result<f64, String> {
    let found = float(value).filter(|value| *value > 0.0 && *value <= 1.0);
    found.ok_or_else(|| "a ratio above 0, at most 1".into())
}
