//! The switch by which Dimmer does nothing in a program.

use std::ffi::OsStr;

/// The variable: set to anything but nothing or `0`, what Dimmer has in a program does nothing.
/// Preloaded libraries hook and move nothing, marked regions stay where they are, and requests for
/// clocks do nothing.
pub const OFF: &str = "DIMMER_OFF";

/// Whether [`OFF`] is set in the environment of this process.
#[must_use]
pub fn is_off() -> bool {
    std::env::var_os(OFF).is_some_and(|value| means_off(&value))
}

/// Whether this is a value of [`OFF`] that switches off.
#[must_use]
pub fn means_off(value: &OsStr) -> bool {
    !matches!(value.as_encoded_bytes(), b"" | b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_and_zero_leave_it_on() {
        for (value, is_off) in [("", false), ("0", false), ("1", true), ("yes", true), ("00", true)]
        {
            assert_eq!(means_off(OsStr::new(value)), is_off, "{value}");
        }
    }
}
