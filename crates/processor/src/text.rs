//! Text files: places in them, for error messages, and text as they write it.

use std::fmt::{Display, Write as _};

/// The line, from 1, that contains the byte at `offset`. An offset beyond the end is in the last
/// line.
#[must_use]
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

/// A text as TOML writes it, on one line.
#[must_use]
pub fn quoted(text: &impl Display) -> String {
    let mut quoted = String::from("\"");
    for character in text.to_string().chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                // Writing to a string cannot fail.
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_count_from_one_and_an_end_of_line_belongs_to_its_line() {
        let lines = |text: &str| [0, 1, 2, 3, 99].map(|offset| line_of(text, offset));
        assert_eq!(lines(""), [1; 5]);
        assert_eq!(lines("a\nb"), [1, 1, 2, 2, 2]);
        assert_eq!(lines("ä\n"), [1, 1, 1, 2, 2]);
    }

    #[test]
    fn quoted_text_is_one_line_that_toml_reads() {
        assert_eq!(quoted(&"a \"b\" \\ ä\n\u{7f}"), "\"a \\\"b\\\" \\\\ ä\\u000a\\u007f\"");
    }
}
