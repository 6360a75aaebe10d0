//! Numbers in TOML and JSON by their paths, and TOML texts with other numbers in their place.
//!
//! A path has the keys from the top, with dots between them; a key with a dot is in double quotes.
//! An entry of a list is named by its number from 1, by any text that it holds (its `name`, its
//! `class`, the code that a step runs), or as `*`, which means all of them. `docs/fit.md` has it.

use std::borrow::Borrow;
use std::ops::Range;

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// How many names an error lists.
const LISTED: usize = 20;

/// The keys of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path(Vec<String>);

impl Path {
    /// Splits a path at its dots.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (mut keys, mut key, mut is_quoted) = (Vec::new(), String::new(), false);
        for character in text.chars() {
            match character {
                '"' => is_quoted = !is_quoted,
                '.' if !is_quoted => keys.push(std::mem::take(&mut key)),
                other => key.push(other),
            }
        }
        keys.push(key);
        if is_quoted || keys.iter().any(String::is_empty) {
            return Err(format!(
                "path `{text}`: expected keys with dots between them, as in \
                 `code.scalar.per_cycle`; a key with a dot in double quotes"
            ));
        }
        Ok(Self(keys))
    }

    /// What stands at the path below `top`; several things if a key means several entries.
    pub(super) fn find<'a, N: Node>(&self, top: &'a N) -> Result<Vec<&'a N>, String> {
        let mut found = vec![top];
        for (depth, key) in self.0.iter().enumerate() {
            let next: Vec<&N> = found.iter().flat_map(|node| node.below(key)).collect();
            if next.is_empty() {
                let mut names: Vec<String> = found.iter().flat_map(|node| node.names()).collect();
                names.sort();
                names.dedup();
                let more = if names.len() > LISTED { ", ..." } else { "" };
                names.truncate(LISTED);
                let place = self.0.get(..depth).unwrap_or_default().join(".");
                let place = if place.is_empty() { String::new() } else { format!(" in `{place}`") };
                return Err(if names.is_empty() {
                    format!("no `{key}`{place}: nothing is below it")
                } else {
                    format!("no `{key}`{place}, expected one of {}{more}", names.join(", "))
                });
            }
            found = next;
        }
        Ok(found)
    }
}

/// A value of a document.
pub(super) trait Node: Sized {
    /// The value of a key, if this is a table.
    fn child(&self, key: &str) -> Option<&Self>;
    /// The keys, if this is a table.
    fn keys(&self) -> Vec<&str>;
    /// The entries, if this is a list.
    fn entries(&self) -> &[Self];
    /// The text, if this is one.
    fn text(&self) -> Option<&str>;

    /// Whether this is a table that holds a text.
    fn holds(&self, text: &str) -> bool {
        self.keys().into_iter().filter_map(|key| self.child(key)).any(|of| of.text() == Some(text))
    }

    /// What a key means here.
    fn below(&self, key: &str) -> Vec<&Self> {
        if let Some(child) = self.child(key) {
            return vec![child];
        }
        let entries = self.entries();
        if key == "*" {
            return entries.iter().collect();
        }
        let number = key.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        match number {
            Some(index) => entries.get(index).into_iter().collect(),
            None => entries.iter().filter(|entry| entry.holds(key)).collect(),
        }
    }

    /// What keys may be here.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.keys().into_iter().map(str::to_owned).collect();
        for (entry, number) in self.entries().iter().zip(1..) {
            let first = ["name", "way", "kind", "class", "run"]
                .into_iter()
                .find_map(|key| entry.child(key)?.text());
            names.push(first.map_or_else(|| number.to_string(), str::to_owned));
        }
        names
    }
}

impl Node for Value {
    fn child(&self, key: &str) -> Option<&Self> {
        self.as_object()?.get(key)
    }

    fn keys(&self) -> Vec<&str> {
        self.as_object().map(|of| of.keys().map(String::as_str).collect()).unwrap_or_default()
    }

    fn entries(&self) -> &[Self] {
        self.as_array().map(Vec::as_slice).unwrap_or_default()
    }

    fn text(&self) -> Option<&str> {
        self.as_str()
    }
}

impl Node for Spanned<DeValue<'_>> {
    fn child(&self, key: &str) -> Option<&Self> {
        self.get_ref().as_table()?.get(key)
    }

    fn keys(&self) -> Vec<&str> {
        let Some(table) = self.get_ref().as_table() else { return Vec::new() };
        table.keys().map(|key| key.get_ref().borrow()).collect()
    }

    fn entries(&self) -> &[Self] {
        self.get_ref().as_array().map(AsRef::as_ref).unwrap_or_default()
    }

    fn text(&self) -> Option<&str> {
        self.get_ref().as_str()
    }
}

/// A number in a TOML text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    /// Where it stands.
    pub(super) span: Range<usize>,
    /// The number.
    pub(super) value: f64,
    /// Whether it is written without a point.
    pub(super) is_whole: bool,
    /// Of a value of a model: its interval and its source.
    pub(super) ci95: Option<Range<usize>>,
    /// Of a value of a model.
    pub(super) source: Option<Range<usize>>,
}

impl Place {
    /// The number in this text that a path names; several if it names several.
    pub(super) fn find(text: &str, path: &Path) -> Result<Vec<Self>, String> {
        let table = DeTable::parse(text).map_err(|error| error.message().to_owned())?;
        let span = table.span();
        let top = Spanned::new(span, DeValue::Table(table.into_inner()));
        path.find(&top)?.into_iter().map(Self::of).collect()
    }

    fn of(node: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        let sourced = |key: &str| node.child(key).map(Spanned::span);
        let number = node.child("value").unwrap_or(node);
        let (text, is_whole) = match number.get_ref() {
            DeValue::Integer(whole) if whole.radix() == 10 => (whole.as_str(), true),
            DeValue::Float(float) => (float.as_str(), false),
            other => {
                let names = node.names();
                let below = if names.is_empty() {
                    String::new()
                } else {
                    format!("; go on with one of {}", names.join(", "))
                };
                return Err(format!("expected a number, but it is a {}{below}", other.type_str()));
            }
        };
        let value = text.replace('_', "").parse::<f64>();
        let value = value.map_err(|error| format!("`{text}`: {error}"))?;
        Ok(Self {
            span: number.span(),
            value,
            is_whole,
            ci95: sourced("ci95"),
            source: sourced("source"),
        })
    }
}

/// How a number is written in TOML.
pub(super) fn written(value: f64, is_whole: bool) -> String {
    if is_whole { format!("{:.0}", value.round()) } else { format!("{value:?}") }
}

/// A text with other words in some places, which do not overlap.
pub(super) fn replaced(text: &str, mut changes: Vec<(Range<usize>, String)>) -> String {
    changes.sort_by_key(|(span, _)| span.start);
    let (mut new, mut done) = (String::new(), 0);
    for (span, word) in changes {
        new.push_str(text.get(done..span.start).unwrap_or_default());
        new.push_str(&word);
        done = span.end;
    }
    new.push_str(text.get(done..).unwrap_or_default());
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
cores = 2
[[code]]
name = \"scalar\"
per_cycle = 1.5
[[code]]
name = \"a.b\"
per_cycle = 2
[[thread]]
name = \"t\"
steps = [{ run = \"scalar\", us = 1_000 }, { run = \"a.b\", us = 3 }, { run = \"scalar\", us = 4 }]
[release]
hold_ns = { value = 5, ci95 = [4, 6], source = \"s\" }
";

    #[track_caller]
    fn check(path: &str, expected: Result<&[f64], &str>) {
        let found = Path::parse(path).and_then(|path| Place::find(TEXT, &path));
        let found = found.map(|places| places.iter().map(|place| place.value).collect::<Vec<_>>());
        assert_eq!(found.as_deref().map_err(String::as_str), expected);
    }

    #[test]
    fn numbers_are_found_by_names_by_numbers_and_all_of_them() {
        check("cores", Ok(&[2.0]));
        check("code.scalar.per_cycle", Ok(&[1.5]));
        check("code.\"a.b\".per_cycle", Ok(&[2.0]));
        check("thread.t.steps.scalar.us", Ok(&[1000.0, 4.0]));
        check("thread.t.steps.3.us", Ok(&[4.0]));
        check("thread.*.steps.*.us", Ok(&[1000.0, 3.0, 4.0]));
        check("release.hold_ns", Ok(&[5.0]));
    }

    #[test]
    fn what_is_not_there_is_answered_with_what_is() {
        check("core", Err("no `core`, expected one of code, cores, release, thread"));
        check("code.x.per_cycle", Err("no `x` in `code`, expected one of a.b, scalar"));
        check("code.scalar.ipc", Err("no `ipc` in `code.scalar`, expected one of name, per_cycle"));
        check(
            "thread.t.steps.4.us",
            Err("no `4` in `thread.t.steps`, expected one of a.b, scalar"),
        );
        check("code.scalar.name", Err("expected a number, but it is a string"));
        let steps = "expected a number, but it is a array; go on with one of scalar, a.b, scalar";
        check("thread.t.steps", Err(steps));
        let wrong = "path `code..x`: expected keys with dots between them, as in \
                     `code.scalar.per_cycle`; a key with a dot in double quotes";
        check("code..x", Err(wrong));
    }

    #[test]
    fn the_rest_of_a_text_stays() {
        let path = Path::parse("thread.t.steps.scalar.us").unwrap();
        let places = Place::find(TEXT, &path).unwrap();
        let changes = places.iter().map(|place| (place.span.clone(), "7".to_owned()));
        let expected = TEXT.replace("1_000", "7").replace("us = 4", "us = 7");
        assert_eq!(replaced(TEXT, changes.collect()), expected);
    }
}
