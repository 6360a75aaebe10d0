//! Places in JSON, as in `ways[name=server].gain_pct` or `results[mode=episode,effect=false]`.
//!
//! A place is keys with points between them. After the key of a list, brackets choose entries: `[]`
//! all of them, `[key=value,...]` those whose keys have these values. `key=one|other` accepts
//! either value.

use std::str::FromStr;

use serde_json::Value;

/// A place, or several if it has brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    text: String,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    /// The entries of a list in which these keys have one of these values each.
    Entries(Vec<(String, Vec<String>)>),
}

/// The text is no place.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no place: expected keys as in `ways[name=server].gain_pct`")]
pub struct NoPlace(String);

/// Something else than expected is at a place.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{place}` is {found}, expected {expected}")]
pub struct Unexpected {
    /// The place, with numbers of entries: `ways[2].gain_pct`.
    pub place: String,
    /// What is there.
    pub found: String,
    /// What may be there.
    pub expected: &'static str,
}

/// A measured number: its median and, if it has one, its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantity {
    /// The median, or the number itself.
    pub median: f64,
    /// The ends of the interval that holds it with 95 % probability.
    pub interval: Option<[f64; 2]>,
}

impl Quantity {
    /// The ends of its interval, or the number twice.
    #[must_use]
    pub fn ends(&self) -> [f64; 2] {
        self.interval.unwrap_or([self.median; 2])
    }
}

impl FromStr for Place {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        let wrong = || NoPlace(text.to_owned());
        let mut steps = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            let (key, after) = rest.split_at(end);
            if key.is_empty() {
                return Err(wrong());
            }
            steps.push(Step::Key(key.to_owned()));
            rest = after;
            if let Some(inside) = rest.strip_prefix('[') {
                let (conditions, after) = inside.split_once(']').ok_or_else(wrong)?;
                let conditions = conditions.split(',').filter(|one| !one.is_empty());
                let conditions = conditions.map(|one| {
                    let (key, value) = one.split_once('=')?;
                    Some((key.to_owned(), value.split('|').map(str::to_owned).collect()))
                });
                let conditions = conditions.collect::<Option<_>>().ok_or_else(wrong)?;
                steps.push(Step::Entries(conditions));
                rest = after;
            }
            match rest.strip_prefix('.') {
                Some(after) if !after.is_empty() => rest = after,
                None if rest.is_empty() => {}
                _ => return Err(wrong()),
            }
        }
        if steps.is_empty() { Err(wrong()) } else { Ok(Self { text: text.to_owned(), steps }) }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Place {
    /// What is there, each with its own place. Empty if no entry of a list fulfils the conditions.
    ///
    /// # Errors
    /// A key is missing, or something is no object or no list.
    pub fn of<'a>(&self, value: &'a Value) -> Result<Vec<(String, &'a Value)>, Unexpected> {
        let mut found = vec![(String::new(), value)];
        for step in &self.steps {
            let next = found.into_iter().map(|(place, value)| step.of(&place, value));
            found = next.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        }
        Ok(found)
    }

    /// The quantities there. What is null was not measured, and is left out.
    ///
    /// # Errors
    /// As [`Self::of`], or if something else is there.
    pub fn quantities(&self, value: &Value) -> Result<Vec<(String, Quantity)>, Unexpected> {
        let read = |(place, value): (String, &Value)| match quantity(&place, value) {
            Ok(None) => None,
            Ok(Some(quantity)) => Some(Ok((place, quantity))),
            Err(error) => Some(Err(error)),
        };
        self.of(value)?.into_iter().filter_map(read).collect()
    }
}

impl Step {
    fn of<'a>(
        &self,
        place: &str,
        value: &'a Value,
    ) -> Result<Vec<(String, &'a Value)>, Unexpected> {
        match self {
            Self::Key(key) => {
                let dot = if place.is_empty() { "" } else { "." };
                let at = format!("{place}{dot}{key}");
                match value {
                    Value::Object(keys) => match keys.get(key) {
                        Some(value) => Ok(vec![(at, value)]),
                        None => Err(unexpected(&at, "missing", "a value or null")),
                    },
                    // What is below something that was not measured was not measured either.
                    Value::Null => Ok(vec![(at, value)]),
                    other => Err(unexpected(place, &kind(other), "an object")),
                }
            }
            Self::Entries(conditions) => match value {
                Value::Array(entries) => {
                    let fits = |entry: &Value| {
                        conditions.iter().all(|(key, wanted)| wanted.contains(&plain(&entry[key])))
                    };
                    let entries = entries.iter().enumerate().filter(|(_, entry)| fits(entry));
                    Ok(entries.map(|(at, entry)| (format!("{place}[{at}]"), entry)).collect())
                }
                Value::Null => Ok(Vec::new()),
                other => Err(unexpected(place, &kind(other), "a list")),
            },
        }
    }
}

/// A value as it stands in a condition or in a name.
#[must_use]
pub fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A number, or an object with `median` and `ci95`. `None` for null.
fn quantity(place: &str, value: &Value) -> Result<Option<Quantity>, Unexpected> {
    const EXPECTED: &str = "a number, null, or an object with a `median` and two ends `ci95`, \
                            the lower one first";
    let wrong = || unexpected(place, &kind(value), EXPECTED);
    if value.is_null() {
        return Ok(None);
    }
    if let Some(median) = value.as_f64() {
        return Ok(Some(Quantity { median, interval: None }));
    }
    let end = |index: usize| value["ci95"][index].as_f64();
    let (median, low, high) = (value["median"].as_f64(), end(0), end(1));
    let (Some(median), Some(low), Some(high)) = (median, low, high) else { return Err(wrong()) };
    if low > high {
        let found = format!("`ci95` from {low} to {high}");
        return Err(unexpected(place, &found, EXPECTED));
    }
    Ok(Some(Quantity { median, interval: Some([low, high]) }))
}

fn unexpected(place: &str, found: &str, expected: &'static str) -> Unexpected {
    let place = if place.is_empty() { "the document" } else { place };
    Unexpected { place: place.to_owned(), found: found.to_owned(), expected }
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("the text `{}`", text.chars().take(40).collect::<String>()),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object of other keys".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn quantities(place: &str, value: &Value) -> Result<Vec<(String, Quantity)>, String> {
        let place: Place = place.parse().map_err(|error: NoPlace| error.to_string())?;
        place.quantities(value).map_err(|error| error.to_string())
    }

    #[test]
    fn conditions_choose_entries() {
        let value = json!({ "ways": [
            { "name": "a b", "n": 1, "ns": 5.0 },
            { "name": "c", "n": 2, "ns": { "median": 6.0, "ci95": [5.0, 7.0] } },
            { "name": "c", "n": 3, "ns": null },
        ] });
        let found = |place: &str| -> Vec<f64> {
            quantities(place, &value).unwrap().into_iter().map(|(_, one)| one.median).collect()
        };
        assert_eq!(found("ways[].ns"), [5.0, 6.0]);
        assert_eq!(found("ways[name=a b].ns"), [5.0]);
        assert_eq!(found("ways[name=c,n=2].ns"), [6.0]);
        assert_eq!(found("ways[name=d].ns"), [0.0; 0]);
        assert_eq!(found("ways[name=d|a b,n=1].ns"), [5.0]);
        assert_eq!(found("ways[n=1|2|3].ns"), [5.0, 6.0]);
        assert_eq!(quantities("ways[n=2].ns", &value).unwrap()[0].0, "ways[1].ns");
    }

    #[test]
    fn an_interval_whose_ends_are_exchanged_is_refused() {
        let value = json!({ "ns": { "median": 6.0, "ci95": [100.0, -100.0] } });
        let message = quantities("ns", &value).unwrap_err();
        assert!(message.contains("`ci95` from 100 to -100"), "{message}");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let check = |place: &str, value: Value, expected: &str| {
            assert_eq!(quantities(place, &value).unwrap_err(), expected);
        };
        let expected = "expected a number, null, or an object with a `median` and two ends `ci95`, \
                        the lower one first";
        check(
            "a[].b",
            json!({ "a": [{ "b": "x" }] }),
            &format!("`a[0].b` is the text `x`, {expected}"),
        );
        check(
            "a",
            json!({ "a": { "median": 1 } }),
            &format!("`a` is an object of other keys, {expected}"),
        );
        check("a.b", json!({ "a": {} }), "`a.b` is missing, expected a value or null");
        check("a[]", json!({ "a": 7 }), "`a` is 7, expected a list");
        check("a", json!([]), "`the document` is a list, expected an object");
        for wrong in ["", ".a", "a.", "a[", "a[b]", "a]..b"] {
            let said = quantities(wrong, &json!({ "a]": 1 })).unwrap_err();
            assert!(said.contains("is no place"), "{wrong}: {said}");
        }
    }

    #[test]
    fn below_what_was_not_measured_nothing_is_wrong() {
        let value = json!({ "a": null });
        assert_eq!(quantities("a.median", &value), Ok(Vec::new()));
        assert_eq!(quantities("a[].b", &value), Ok(Vec::new()));
    }
}
