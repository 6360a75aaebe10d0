//! Measured values, from JSON documents and CSV files.

use std::collections::BTreeMap;

use dimmer_processor::text::json_problem;
use serde::Deserialize;
use serde_json::Value;

use super::document::MOST_MEASURED;
use super::place::Path;

/// Where measured values are.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunsDocument {
    /// JSON documents or CSV files with a heading, one or a list of them.
    file: Files,
    /// Of JSON: the path of the values.
    values: Option<String>,
    /// Of CSV: the column of the values.
    column: Option<String>,
    /// Of CSV: the lines that count, by what other columns hold.
    #[serde(default, rename = "where")]
    lines: BTreeMap<String, String>,
    /// What the values are multiplied by, to be in the metric's unit.
    times: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a file, or a list of files")]
enum Files {
    One(String),
    Several(Vec<String>),
}

impl RunsDocument {
    /// The values in the files, and the standard error of their mean if there is one file that has
    /// an interval in the place of values.
    ///
    /// * `read`: returns the text of a file.
    pub(super) fn values(
        &self,
        read: impl Fn(&str) -> Result<String, String>,
    ) -> Result<(Vec<f64>, Option<f64>), String> {
        let scale = Scale(self.times.unwrap_or(1.0));
        if !scale.0.is_finite() || scale.0 == 0.0 {
            return Err(format!("`times` is {}, expected a number other than 0", scale.0));
        }
        let files = match &self.file {
            Files::One(file) => std::slice::from_ref(file),
            Files::Several(files) => files,
        };
        let (mut values, mut errors) = (Vec::new(), Vec::new());
        for file in files {
            let found = self.of_file(&read(file)?, scale);
            let (found, error) = found.map_err(|error| format!("{file}: {error}"))?;
            values.extend(found);
            errors.extend(error);
        }
        // Several quantities are repeats: their own scatter counts.
        let error = errors.first().copied().filter(|_| values.len() == 1);
        if values.is_empty() {
            Err("`file` is an empty list".to_owned())
        } else {
            Ok((values, error))
        }
    }

    fn of_file(&self, text: &str, scale: Scale) -> Result<(Vec<f64>, Option<f64>), String> {
        match (&self.values, &self.column) {
            (Some(path), None) if self.lines.is_empty() => of_json(text, path, scale),
            (None, Some(column)) => {
                of_csv(text, column, &self.lines, scale).map(|values| (values, None))
            }
            _ => {
                Err("expected `values`, the path of numbers in a JSON document, or `column` of a \
                      CSV file and perhaps `where`"
                    .to_owned())
            }
        }
    }
}

/// What values are multiplied by.
#[derive(Clone, Copy)]
struct Scale(f64);

impl Scale {
    /// The measured value that a number of the file stands for. No metric is ever below 0.
    fn measured(self, number: f64) -> Option<f64> {
        Some(number * self.0).filter(|value| (0.0..=MOST_MEASURED).contains(value))
    }

    /// The accepted numbers.
    fn accepted(self) -> String {
        let times =
            if self.0 == 1.0 { String::new() } else { format!(" after `times`, {}", self.0) };
        format!("a number from 0 to {MOST_MEASURED:e}{times}")
    }
}

fn of_json(text: &str, path: &str, scale: Scale) -> Result<(Vec<f64>, Option<f64>), String> {
    let document: Value = serde_json::from_str(text).map_err(|error| json_problem(&error, 0))?;
    let found = Path::parse(path)?.find(&document)?;
    let measured = |value: &Value| {
        let refused = || format!("`{path}` is {}, expected {}", shortened(value), scale.accepted());
        value.as_f64().and_then(|number| scale.measured(number)).ok_or_else(refused)
    };
    if let [quantity] = &found[..]
        && let Some(median) = quantity.get("median").filter(|median| median.is_number())
    {
        let ends = [0, 1].map(|end| quantity.get("ci95")?.get(end)?.as_f64());
        let [Some(low), Some(high)] = ends else {
            return Err(format!("`{path}` has a `median` but no `ci95` with two ends"));
        };
        // An interval of no width, as of values that all were equal, is no error.
        let error = (high - low) / (2.0 * 1.96) * scale.0.abs();
        return Ok((vec![measured(median)?], (error > 0.0).then_some(error)));
    }
    Ok((found.into_iter().map(measured).collect::<Result<_, _>>()?, None))
}

/// A JSON value in a few words.
fn shortened(value: &Value) -> String {
    match value {
        Value::Object(keys) => {
            let keys: Vec<&str> = keys.keys().map(String::as_str).collect();
            format!("an object with {}", keys.join(", "))
        }
        Value::Array(entries) => {
            format!("a list of {}: `*` means all entries", entries.len())
        }
        other => other.to_string(),
    }
}

fn of_csv(
    text: &str,
    column: &str,
    lines: &BTreeMap<String, String>,
    scale: Scale,
) -> Result<Vec<f64>, String> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let heading = reader.headers().map_err(|error| csv_problem(&error))?.clone();
    let place = |name: &str| {
        let mut found = (0..heading.len()).filter(|at| heading.get(*at) == Some(name));
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => {
                Err(format!("line 1: column `{name}` stands twice, expected it once"))
            }
            (Some(at), None) => Ok(at),
            (None, _) => {
                let names = heading.iter().collect::<Vec<_>>().join(", ");
                Err(format!("no column `{name}`, expected one of {names}"))
            }
        }
    };
    let of = place(column)?;
    let chosen = lines.iter().map(|(name, value)| Ok((place(name)?, value)));
    let chosen: Vec<(usize, &String)> = chosen.collect::<Result<_, String>>()?;
    let mut values = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| csv_problem(&error))?;
        let line = record.position().map_or(0, csv::Position::line);
        if chosen.iter().all(|(place, value)| record.get(*place) == Some(value)) {
            let text = record.get(of).unwrap_or_default();
            let value = text.parse().ok().and_then(|number| scale.measured(number));
            let refused = || {
                let accepted = scale.accepted();
                format!("line {line}: `{column}` is \"{text}\", expected {accepted}")
            };
            values.push(value.ok_or_else(refused)?);
        }
    }
    if values.is_empty() {
        let wanted: Vec<String> = lines.iter().map(|(of, is)| format!("{of} = {is}")).collect();
        return Err(format!("no line has {}", wanted.join(", ")));
    }
    Ok(values)
}

/// What is wrong with a CSV file, with its place.
fn csv_problem(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths { pos: Some(at), expected_len, len } => {
            let line = at.line();
            format!("line {line} and the heading differ: {len} and {expected_len} values")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"ways": [
        {"way": "plain", "runs": [{"requests_per_s": 10.0}, {"requests_per_s": 12}]},
        {"way": "narrow", "runs": []}]}"#;

    const CSV: &str = "size,way,rate\n4,plain,10\n8,plain,5.5\n4, narrow, 11\n4,plain,x\n";

    #[track_caller]
    fn check(document: &str, text: &str, expected: Result<&[f64], &str>) {
        let document: RunsDocument = toml::from_str(document).unwrap();
        let found = document.values(|_| Ok(text.to_owned())).map(|(values, _)| values);
        assert_eq!(found.as_deref().map_err(String::as_str), expected);
    }

    #[test]
    fn values_come_from_documents_of_dimmer_and_from_tables() {
        let of = "file = 'f'\nvalues = 'ways.plain.runs.*.requests_per_s'\ntimes = 2";
        check(of, JSON, Ok(&[20.0, 24.0]));
        check("file = 'f'\ncolumn = 'rate'\nwhere = { way = 'narrow' }", CSV, Ok(&[11.0]));
        check("file = 'f'\ncolumn = 'rate'\nwhere = { size = '8' }", CSV, Ok(&[5.5]));
    }

    #[test]
    fn a_quantity_with_its_interval_has_a_standard_error() {
        let json = r#"{"cpu_s": {"median": 2.0, "ci95": [1.902, 2.098]}, "x": {"median": 1}}"#;
        let of = |values: &str| {
            let document = format!("file = 'f'\nvalues = '{values}'\ntimes = 1000");
            toml::from_str::<RunsDocument>(&document).unwrap().values(|_| Ok(json.to_owned()))
        };
        let (values, error) = of("cpu_s").unwrap();
        assert!(values == [2000.0] && (error.unwrap() - 50.0).abs() < 1e-9, "{error:?}");
        // Of several files, the scatter of their medians counts.
        let several = "file = ['f', 'g']\nvalues = 'cpu_s'";
        let several: RunsDocument = toml::from_str(several).unwrap();
        assert_eq!(several.values(|_| Ok(json.to_owned())), Ok((vec![2.0, 2.0], None)));
        assert_eq!(of("x").unwrap_err(), "f: `x` has a `median` but no `ci95` with two ends");
    }

    #[test]
    fn what_is_not_there_is_answered_with_what_is() {
        let no = "f: no `wide` in `ways`, expected one of narrow, plain";
        check("file = 'f'\nvalues = 'ways.wide.x'", JSON, Err(no));
        let no = "f: no `*` in `ways.narrow.runs`: nothing is below it";
        check("file = 'f'\nvalues = 'ways.narrow.runs.*.x'", JSON, Err(no));
        let no = "f: `ways.plain.runs` is a list of 2: `*` means all entries, expected a \
                  number from 0 to 1e18";
        check("file = 'f'\nvalues = 'ways.plain.runs'", JSON, Err(no));
        let no = "f: no column `speed`, expected one of size, way, rate";
        check("file = 'f'\ncolumn = 'speed'", CSV, Err(no));
        let no = "f: line 5: `rate` is \"x\", expected a number from 0 to 1e18";
        check("file = 'f'\ncolumn = 'rate'", CSV, Err(no));
        let of = "file = 'f'\ncolumn = 'rate'";
        let no = "f: line 2: `rate` is \"-10\", expected a number from 0 to 1e18";
        check(of, "rate\n-10\n", Err(no));
        let no = "f: line 2: `rate` is \"10\", expected a number from 0 to 1e18 after `times`, -2";
        check(&format!("{of}\ntimes = -2"), "rate\n10\n", Err(no));
        let no = "f: line 1: column `rate` stands twice, expected it once";
        check(of, "rate,way,rate\n1,x,2\n", Err(no));
        let no = "f: line 3 and the heading differ: 1 and 2 values";
        check(of, "rate,way\n1,x\n2\n", Err(no));
        let no = "f: `x` is -1, expected a number from 0 to 1e18";
        check("file = 'f'\nvalues = 'x'", "{\"x\": -1}", Err(no));
        let no = "f: line 1, column 1: the text ends too early";
        check("file = 'f'\nvalues = 'x'", "{", Err(no));
        let no = "f: no line has size = 5";
        check("file = 'f'\ncolumn = 'rate'\nwhere = { size = '5' }", CSV, Err(no));
        let no = "expected `values`, the path of numbers in a JSON document, or `column` of a CSV \
                  file and perhaps `where`";
        check("file = 'f'", CSV, Err(&format!("f: {no}")));
        let no = "`times` is 0, expected a number other than 0";
        check("file = 'f'\ncolumn = 'rate'\ntimes = 0.0", CSV, Err(no));
    }
}
