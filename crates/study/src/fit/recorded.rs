//! Measured values, from JSON documents and CSV files.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

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
        let times = self.times.unwrap_or(1.0);
        if !times.is_finite() || times == 0.0 {
            return Err(format!("`times` is {times}, expected a number other than 0"));
        }
        let files = match &self.file {
            Files::One(file) => std::slice::from_ref(file),
            Files::Several(files) => files,
        };
        let (mut values, mut errors) = (Vec::new(), Vec::new());
        for file in files {
            let found = self.of_file(&read(file)?);
            let (found, error) = found.map_err(|error| format!("{file}: {error}"))?;
            values.extend(found.into_iter().map(|value| value * times));
            errors.extend(error.map(|error| error * times.abs()));
        }
        // Several quantities are repeats: their own scatter counts.
        let error = errors.first().copied().filter(|_| values.len() == 1);
        if values.is_empty() {
            Err("`file` is an empty list".to_owned())
        } else {
            Ok((values, error))
        }
    }

    fn of_file(&self, text: &str) -> Result<(Vec<f64>, Option<f64>), String> {
        match (&self.values, &self.column) {
            (Some(path), None) if self.lines.is_empty() => of_json(text, path),
            (None, Some(column)) => of_csv(text, column, &self.lines).map(|values| (values, None)),
            _ => {
                Err("expected `values`, the path of numbers in a JSON document, or `column` of a \
                      CSV file and perhaps `where`"
                    .to_owned())
            }
        }
    }
}

fn of_json(text: &str, path: &str) -> Result<(Vec<f64>, Option<f64>), String> {
    let document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let found = Path::parse(path)?.find(&document)?;
    if let [quantity] = &found[..]
        && let Some(median) = quantity.get("median").and_then(Value::as_f64)
    {
        let ends = [0, 1].map(|end| quantity.get("ci95")?.get(end)?.as_f64());
        let [Some(low), Some(high)] = ends else {
            return Err(format!("`{path}` has a `median` but no `ci95` with two ends"));
        };
        // An interval of no width, as of values that all were equal, is no error.
        let error = (high - low) / (2.0 * 1.96);
        return Ok((vec![median], (error > 0.0).then_some(error)));
    }
    let number = |value: &Value| {
        let refused = || format!("`{path}` is {}, expected numbers", shortened(value));
        value.as_f64().ok_or_else(refused)
    };
    Ok((found.into_iter().map(number).collect::<Result<_, _>>()?, None))
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

fn of_csv(text: &str, column: &str, lines: &BTreeMap<String, String>) -> Result<Vec<f64>, String> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let heading = reader.headers().map_err(|error| error.to_string())?.clone();
    let place = |name: &str| {
        let names = || heading.iter().collect::<Vec<_>>().join(", ");
        let found = heading.iter().position(|of| of == name);
        found.ok_or_else(|| format!("no column `{name}`, expected one of {}", names()))
    };
    let of = place(column)?;
    let chosen = lines.iter().map(|(name, value)| Ok((place(name)?, value)));
    let chosen: Vec<(usize, &String)> = chosen.collect::<Result<_, String>>()?;
    let mut values = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| error.to_string())?;
        let line = record.position().map_or(0, csv::Position::line);
        if chosen.iter().all(|(place, value)| record.get(*place) == Some(value)) {
            let text = record.get(of).unwrap_or_default();
            let value = text.parse::<f64>();
            let refused = |_| format!("line {line}: `{column}` is \"{text}\", expected a number");
            values.push(value.map_err(refused)?);
        }
    }
    if values.is_empty() {
        let wanted: Vec<String> = lines.iter().map(|(of, is)| format!("{of} = {is}")).collect();
        return Err(format!("no line has {}", wanted.join(", ")));
    }
    Ok(values)
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
        let no = "f: `ways.plain.runs` is a list of 2: `*` means all entries, expected numbers";
        check("file = 'f'\nvalues = 'ways.plain.runs'", JSON, Err(no));
        let no = "f: no column `speed`, expected one of size, way, rate";
        check("file = 'f'\ncolumn = 'speed'", CSV, Err(no));
        let no = "f: line 5: `rate` is \"x\", expected a number";
        check("file = 'f'\ncolumn = 'rate'", CSV, Err(no));
        let no = "f: no line has size = 5";
        check("file = 'f'\ncolumn = 'rate'\nwhere = { size = '5' }", CSV, Err(no));
        let no = "expected `values`, the path of numbers in a JSON document, or `column` of a CSV \
                  file and perhaps `where`";
        check("file = 'f'", CSV, Err(&format!("f: {no}")));
        let no = "`times` is 0, expected a number other than 0";
        check("file = 'f'\ncolumn = 'rate'\ntimes = 0.0", CSV, Err(no));
    }
}
