//! Metrics as a file for the textfile collector of Prometheus' node_exporter, which serves the
//! files of a directory with its own metrics. The format is Prometheus' text format 0.0.4; names
//! follow Prometheus' rules (base units, and the unit at the end). Values are those of one run, so
//! all are gauges.

use std::fmt::Write as _;

use crate::estimate::rounded;

/// A text in the making.
#[derive(Debug, Default)]
pub(crate) struct Textfile {
    text: String,
}

impl Textfile {
    /// Adds a metric with its samples: labels and value of each. Nothing without samples.
    pub(crate) fn gauge(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Vec<(&'static str, String)>, f64)>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} gauge");
        for (labels, value) in samples {
            let labels =
                labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
            let labels = labels.collect::<Vec<_>>().join(",");
            // Six digits, as in JSON; times since 1970 have more.
            let value = if value.abs() < 1e6 { rounded(value) } else { value };
            let braced = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            let _ = writeln!(self.text, "{name}{braced} {value}");
        }
    }

    /// Adds a metric with one value and these labels.
    pub(crate) fn one(
        &mut self,
        name: &str,
        help: &str,
        labels: &[(&'static str, String)],
        value: impl Into<Option<f64>>,
    ) {
        self.gauge(name, help, value.into().map(|value| (labels.to_vec(), value)));
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

/// A label's value with backslash, quote and newline escaped.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_cannot_break_the_format_and_empty_metrics_are_left_out() {
        let mut file = Textfile::default();
        file.one("dimmer_x_seconds", "What", &[("a", "b\"\\\nc".to_owned())], 0.25);
        file.one("dimmer_y", "What", &[], None);
        file.one("dimmer_z", "What", &[], 1.0);
        assert_eq!(
            file.into_text(),
            "# HELP dimmer_x_seconds What\n# TYPE dimmer_x_seconds gauge\n\
             dimmer_x_seconds{a=\"b\\\"\\\\\\nc\"} 0.25\n\
             # HELP dimmer_z What\n# TYPE dimmer_z gauge\ndimmer_z 1\n"
        );
    }
}
