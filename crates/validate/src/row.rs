//! One result of a paper beside ours.

/// How far our value may be from the paper's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// Equal to it.
    Same,
    /// By this part of the paper's value.
    Part(f64),
    /// By this much, in the unit of the value.
    Much(f64),
    /// Ours is at most the paper's.
    AtMost,
}

/// A value of a row: its name, the paper's value, and ours.
#[derive(Clone, Debug, PartialEq)]
struct Value {
    name: &'static str,
    paper: f64,
    ours: f64,
}

/// One recreated result.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The row's id, such as `R000-12`.
    pub id: &'static str,
    /// The place in the paper.
    pub place: &'static str,
    /// What was measured, on which configuration.
    pub what: &'static str,
    /// What the paper reports.
    pub paper: String,
    /// What the simulator gives.
    pub ours: String,
    /// The tolerance, as text.
    pub tolerance: String,
    /// Whether all values are within the tolerance.
    pub hit: bool,
    /// Why this tolerance; for a miss, what is known about its cause.
    pub reason: &'static str,
}

impl Tolerance {
    fn holds(self, paper: f64, ours: f64) -> bool {
        match self {
            Self::Same => ours == paper,
            Self::Part(part) => (ours - paper).abs() <= part * paper.abs(),
            Self::Much(much) => (ours - paper).abs() <= much,
            Self::AtMost => ours <= paper,
        }
    }

    fn told(self, unit: &str) -> String {
        match self {
            Self::Same => "the same".to_owned(),
            Self::Part(part) => format!("± {} %", short(100.0 * part)),
            Self::Much(much) => format!("± {}", with_unit(much, unit)),
            Self::AtMost => "at most".to_owned(),
        }
    }
}

/// A row under construction: its subject comes first, then its values, then the verdict.
#[derive(Debug)]
pub(crate) struct Draft {
    id: &'static str,
    place: &'static str,
    what: &'static str,
    unit: &'static str,
    values: Vec<Value>,
}

impl Draft {
    /// A row of numbers in this unit.
    pub(crate) fn new(
        id: &'static str,
        place: &'static str,
        what: &'static str,
        unit: &'static str,
    ) -> Self {
        Self { id, place, what, unit, values: Vec::new() }
    }

    /// Adds a value.
    pub(crate) fn value(mut self, name: &'static str, paper: f64, ours: f64) -> Self {
        self.values.push(Value { name, paper, ours });
        self
    }

    /// Completes the row: a hit if all values are.
    pub(crate) fn within(self, tolerance: Tolerance, reason: &'static str) -> Row {
        let told = |of: fn(&Value) -> f64| {
            let one = |value: &Value| {
                let number = with_unit(of(value), self.unit);
                if value.name.is_empty() { number } else { format!("{} {number}", value.name) }
            };
            self.values.iter().map(one).collect::<Vec<_>>().join(", ")
        };
        Row {
            id: self.id,
            place: self.place,
            what: self.what,
            paper: told(|value| value.paper),
            ours: told(|value| value.ours),
            tolerance: tolerance.told(self.unit),
            hit: self.values.iter().all(|value| tolerance.holds(value.paper, value.ours)),
            reason,
        }
    }
}

/// A row of words: a hit if they are the same.
pub(crate) fn words(
    id: &'static str,
    place: &'static str,
    what: &'static str,
    paper: &str,
    ours: &str,
    reason: &'static str,
) -> Row {
    Row {
        id,
        place,
        what,
        paper: paper.to_owned(),
        ours: ours.to_owned(),
        tolerance: Tolerance::Same.told(""),
        hit: paper == ours,
        reason,
    }
}

fn with_unit(value: f64, unit: &str) -> String {
    if unit.is_empty() { short(value) } else { format!("{} {unit}", short(value)) }
}

/// Formats a number with at most four significant digits and without zeros at the end.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_hit_if_all_its_values_are() {
        let row = |ours| {
            Draft::new("R1", "§1", "time", "µs")
                .value("median", 24.59, 24.6)
                .value("p95", 28.8, ours)
                .within(Tolerance::Part(0.05), "made up")
        };
        assert!(row(27.5).hit && !row(27.3).hit);
        assert_eq!(row(27.3).paper, "median 24.59 µs, p95 28.8 µs");
        assert_eq!(row(27.3).tolerance, "± 5 %");
    }

    #[test]
    fn tolerances_mean_what_they_say() {
        assert!(Tolerance::Same.holds(1.0, 1.0) && !Tolerance::Same.holds(1.0, 1.1));
        assert!(Tolerance::Much(1.0).holds(-0.9, 0.0) && !Tolerance::Much(1.0).holds(8.0, 40.0));
        assert!(Tolerance::AtMost.holds(500.0, 52.0) && !Tolerance::AtMost.holds(500.0, 501.0));
        assert!(!Tolerance::Part(0.1).holds(1.0, f64::NAN));
    }
}
