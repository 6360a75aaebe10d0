//! Text files: places in them, for error messages, and text as they write it.

use std::fmt::{Display, Write as _};

/// The line, from 1, that contains the byte at `offset`. An offset beyond the end is in the last
/// line.
#[must_use]
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

/// The line, from 1, that a message about a TOML table is about: that of the first key of the table
/// that the message has in backticks, or else the table's own.
///
/// * `start`: where the table starts.
#[must_use]
pub fn line_of_message(text: &str, start: usize, message: &str) -> usize {
    let line = line_of(text, start);
    let keys = || text.lines().skip(line).take_while(|line| !line.trim_start().starts_with('['));
    let of_key = |key: &str| {
        keys().position(|line| {
            let value = line.trim_start().strip_prefix(key);
            value.is_some_and(|value| value.trim_start().starts_with('='))
        })
    };
    let below = message.split('`').skip(1).step_by(2).find_map(of_key);
    line + below.map_or(0, |below| below + 1)
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
    let mut message = in_words(&error.message().replace('\n', " "), &TOML);
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

/// What is wrong with a JSON document, in a line: the place in it, and the types by JSON's names
/// instead of Rust's.
///
/// * `error`: as `serde_json` prints it, with line and column at the end.
/// * `lines_before`: the number of lines in the file before the document.
#[must_use]
pub fn json_problem(error: &impl Display, lines_before: usize) -> String {
    let error = error.to_string();
    let place = error.rsplit_once(" at line ").and_then(|(message, place)| {
        let (line, column) = place.split_once(" column ")?;
        Some((message, line.parse::<usize>().ok()?, column))
    });
    let Some((message, line, column)) = place else { return in_words(&error, &JSON) };
    format!("line {}, column {column}: {}", lines_before + line, in_words(message, &JSON))
}

/// A format's nouns for values that have parts.
struct Nouns {
    /// The parts have names.
    named: &'static str,
    /// The parts have an order.
    listed: &'static str,
}

const TOML: Nouns = Nouns { named: "a table", listed: "an array" };
const JSON: Nouns = Nouns { named: "an object", listed: "an array" };

/// A message of serde's with the names of types that users write.
fn in_words(message: &str, nouns: &Nouns) -> String {
    let Some((found, expected)) = message.rsplit_once(", expected ") else {
        return match message {
            "expected value" => "expected a value",
            "expected ident" => "expected `true`, `false` or `null`",
            "trailing characters" => "more text follows the end",
            other if other.starts_with("EOF while ") => "the text ends too early",
            other => other,
        }
        .to_owned();
    };
    let found = if let Some(length) = found.strip_prefix("invalid length ") {
        format!("found {} of {length}", nouns.listed)
    } else if let Some(name) = found.strip_prefix("unknown variant ") {
        format!("unknown name {name}")
    } else if let Some(value) =
        found.strip_prefix("invalid type: ").or_else(|| found.strip_prefix("invalid value: "))
    {
        format!("found {}", value_in_words(value, nouns))
    } else {
        found.to_owned()
    };
    format!("{found}, expected {}", type_in_words(expected, nouns))
}

fn value_in_words(value: &str, nouns: &Nouns) -> String {
    let value = match value.strip_suffix(" as i128").unwrap_or(value) {
        "map" => nouns.named,
        "sequence" => nouns.listed,
        other => variant_in_words(other).unwrap_or(other),
    };
    value.replacen("floating point ", "number ", 1)
}

fn type_in_words(expected: &str, nouns: &Nouns) -> String {
    for sized in ["a tuple of size ", "an array of length "] {
        if let Some(length) = expected.strip_prefix(sized) {
            return format!("{} of {length}", nouns.listed);
        }
    }
    match expected {
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "an integer",
        "u8" => "an integer from 0 to 255",
        "u16" => "an integer from 0 to 65535",
        "u32" => "an integer from 0 to 4294967295",
        "u64" | "u128" | "usize" => "an integer of at least 0",
        "f32" | "f64" => "a number",
        "a map" => nouns.named,
        "a sequence" => nouns.listed,
        other if other.starts_with("struct ") => nouns.named,
        other => variant_in_words(other).unwrap_or(other),
    }
    .to_owned()
}

/// A variant of a Rust enum: a name, or an object of one name.
fn variant_in_words(kind: &str) -> Option<&'static str> {
    let fields = kind.strip_suffix(" variant")?;
    Some(if fields == "unit" { "a name alone" } else { "a name with a value" })
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
    }

    #[test]
    fn types_and_values_have_the_names_that_users_write() {
        for (serde, words) in [
            (
                "invalid type: integer `9` as i128, expected i64",
                "found integer `9`, expected an integer",
            ),
            (
                "invalid type: string \"x, expected u8\", expected f64",
                "found string \"x, expected u8\", expected a number",
            ),
            (
                "invalid type: integer `7`, expected struct Step",
                "found integer `7`, expected a table",
            ),
            ("invalid type: map, expected a sequence", "found a table, expected an array"),
            (
                "invalid length 2, expected a tuple of size 3",
                "found an array of 2, expected an array of 3",
            ),
            (
                "invalid value: integer `256`, expected u8",
                "found integer `256`, expected an integer from 0 to 255",
            ),
            (
                "invalid type: newtype variant, expected unit variant",
                "found a name with a value, expected a name alone",
            ),
            ("unknown variant `a`, expected `b` or `c`", "unknown name `a`, expected `b` or `c`"),
            (
                "unknown field `a`, expected one of `b`, `c`",
                "unknown field `a`, expected one of `b`, `c`",
            ),
            ("missing field `a`", "missing field `a`"),
        ] {
            assert_eq!(in_words(serde, &TOML), words);
        }
    }

    #[test]
    fn what_is_wrong_with_json_has_its_place_once() {
        let problem = |error: &str| json_problem(&error, 6);
        let map = "invalid type: map, expected u64 at line 1 column 5";
        let words = "line 7, column 5: found an object, expected an integer of at least 0";
        assert_eq!(problem(map), words);
        let early = "EOF while parsing a value at line 2 column 0";
        assert_eq!(problem(early), "line 8, column 0: the text ends too early");
        assert_eq!(problem("missing field `a`"), "missing field `a`");
    }

    #[test]
    fn a_message_is_about_the_line_of_its_key() {
        let text = "x = 1\n[[a]]\nname = 1\n  low=2\n[[a]]\nhigh = 3\n";
        let line = |message: &str| line_of_message(text, 6, message);
        assert_eq!(line("thread `t`: `low` is 2, expected less than `name`"), 4);
        assert_eq!(line("`name` is 1"), 3);
        for message in ["`lo` is 2", "`high` is 3", "`x` is 1", "low", ""] {
            assert_eq!(line(message), 2, "{message}");
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
