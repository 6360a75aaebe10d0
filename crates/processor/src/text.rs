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

/// What is wrong with a TOML document, in a line: the place in it, the key, and the types by TOML's
/// names instead of Rust's.
#[must_use]
pub fn toml_problem(text: &str, error: &toml::de::Error) -> String {
    let start = error.span().and_then(|span| text.get(..span.start));
    let line = start.map(|start| format!("line {}: ", line_of(text, start.len())));
    let key = start.and_then(key_before).map(|key| format!("`{key}`: "));
    let mut message = in_words_of_toml(&error.message().replace('\n', " "));
    if let (true, Some(named)) =
        (message == "duplicate key", error.span().and_then(|at| text.get(at)))
    {
        message += &format!(" `{named}`");
    }
    line.into_iter().chain(key).collect::<String>() + &message
}

/// The key whose value starts where `text` ends.
fn key_before(text: &str) -> Option<&str> {
    let before = text.trim_end().strip_suffix('=')?.trim_end();
    let is_part = |character: char| character.is_ascii_alphanumeric() || "_-".contains(character);
    let start = before.rfind(|character| !is_part(character)).map_or(0, |at| at + 1);
    before.get(start..).filter(|key| !key.is_empty())
}

/// A message of serde's with the names of types that users write.
fn in_words_of_toml(message: &str) -> String {
    const EXPECTED: &str = ", expected ";
    let Some((found, expected)) = message.rsplit_once(EXPECTED) else { return message.to_owned() };
    let found = found.strip_suffix(" as i128").unwrap_or(found);
    let expected = match expected {
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" | "u8" | "u16" | "u32" | "u64" | "u128"
        | "usize" => "an integer",
        "f32" | "f64" => "a number",
        "a map" => "a table",
        "a sequence" => "an array",
        other if other.starts_with("struct ") => "a table",
        other => other,
    };
    format!("{found}{EXPECTED}{expected}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_document_has_place_key_and_types_of_toml() {
        let error = toml::de::DeTable::parse("a = 1\nmost-of = [").unwrap_err();
        let problem = toml_problem("a = 1\nmost-of = [", &error);
        assert!(problem.starts_with("line 2: "), "{problem}");
        let twice = "a = 1\nb.c = 2\na = 3";
        let error = toml::de::DeTable::parse(twice).unwrap_err();
        assert_eq!(toml_problem(twice, &error), "line 3: duplicate key `a`");
        assert_eq!(key_before("a = 1\nmost-of = "), Some("most-of"));
        assert_eq!(key_before("[[a"), None);
        for (serde, toml) in [
            (
                "invalid type: integer `9` as i128, expected i64",
                "invalid type: integer `9`, expected an integer",
            ),
            (
                "invalid type: string \"x, expected u8\", expected f64",
                "invalid type: string \"x, expected u8\", expected a number",
            ),
            (
                "invalid type: integer `7`, expected struct Step",
                "invalid type: integer `7`, expected a table",
            ),
            (
                "unknown field `a`, expected one of `b`, `c`",
                "unknown field `a`, expected one of `b`, `c`",
            ),
            ("missing field `a`", "missing field `a`"),
        ] {
            assert_eq!(in_words_of_toml(serde), toml);
        }
    }

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
