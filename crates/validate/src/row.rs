//! One result of a paper beside ours.

/// What it says of the simulator that a row is within its tolerance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A prediction held: the value could have come out otherwise, and the parameters behind it
    /// come from elsewhere.
    Predicted,
    /// A part of the row is predicted; the others of its values are parameters.
    Mixed,
    /// Nothing but that the machine does what it was told: parameters of the model, or constants
    /// of an algorithm, come out as they were put in.
    SeenAgain,
}

impl Class {
    /// All of them, the most meaningful first.
    pub const ALL: [Self; 3] = [Self::Predicted, Self::Mixed, Self::SeenAgain];

    /// Its name, in text and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Predicted => "predicted",
            Self::Mixed => "mixed",
            Self::SeenAgain => "seen again",
        }
    }
}

/// The part of the paper's value by which ours may differ, in rows of every class.
const PART: f64 = 0.1;

/// The points by which a change in percent may differ, if that is more. Source: paper 000 §5.2.2
/// calls 0.31 % noise.
const POINTS: f64 = 0.5;

/// What the paper says of the values of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    /// What they are.
    Value,
    /// That ours are at most these.
    Bound,
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
    /// What a hit says.
    pub class: Class,
    /// The place in the paper.
    pub place: &'static str,
    /// What was measured, on which configuration.
    pub what: &'static str,
    /// What the paper reports.
    pub paper: String,
    /// What the simulator gives.
    pub ours: String,
    /// How far ours may be from that, as text. One rule for all rows.
    pub tolerance: String,
    /// Whether all values are within it.
    pub hit: bool,
    /// What stands behind our value; for a miss, what is known about its cause.
    pub reason: &'static str,
}

/// A row under construction: its subject comes first, then its values, then the verdict.
#[derive(Debug)]
pub(crate) struct Draft {
    id: &'static str,
    class: Class,
    place: &'static str,
    what: &'static str,
    unit: &'static str,
    values: Vec<Value>,
}

impl Draft {
    /// A row of numbers in this unit.
    pub(crate) fn new(
        id: &'static str,
        class: Class,
        place: &'static str,
        what: &'static str,
        unit: &'static str,
    ) -> Self {
        Self { id, class, place, what, unit, values: Vec::new() }
    }

    /// Adds a value.
    pub(crate) fn value(mut self, name: &'static str, paper: f64, ours: f64) -> Self {
        self.values.push(Value { name, paper, ours });
        self
    }

    /// Completes a row of values that the paper reports: a hit if all are near these.
    pub(crate) fn row(self, reason: &'static str) -> Row {
        self.complete(Says::Value, reason)
    }

    /// Completes a row of bounds that the paper reports: a hit if no value is larger.
    pub(crate) fn at_most(self, reason: &'static str) -> Row {
        self.complete(Says::Bound, reason)
    }

    fn complete(self, says: Says, reason: &'static str) -> Row {
        let told = |of: fn(&Value) -> f64| {
            let one = |value: &Value| {
                let number = with_unit(of(value), self.unit);
                if value.name.is_empty() { number } else { format!("{} {number}", value.name) }
            };
            self.values.iter().map(one).collect::<Vec<_>>().join(", ")
        };
        let points = if self.unit == "%" { POINTS } else { 0.0 };
        let is_hit = |&Value { paper, ours, .. }: &Value| match says {
            Says::Value => (ours - paper).abs() <= f64::max(PART * paper.abs(), points),
            Says::Bound => ours <= paper,
        };
        let tolerance = match says {
            Says::Value if points > 0.0 => {
                format!("± {} %, or {} points", short(100.0 * PART), short(points))
            }
            Says::Value => format!("± {} %", short(100.0 * PART)),
            Says::Bound => "at most".to_owned(),
        };
        Row {
            id: self.id,
            class: self.class,
            place: self.place,
            what: self.what,
            paper: told(|value| value.paper),
            ours: told(|value| value.ours),
            tolerance,
            hit: self.values.iter().all(is_hit),
            reason,
        }
    }
}

/// A row of words: a hit if they are the same.
pub(crate) fn words(
    id: &'static str,
    class: Class,
    place: &'static str,
    what: &'static str,
    paper: &str,
    ours: &str,
    reason: &'static str,
) -> Row {
    Row {
        id,
        class,
        place,
        what,
        paper: paper.to_owned(),
        ours: ours.to_owned(),
        tolerance: "the same".to_owned(),
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

    fn draft(unit: &'static str) -> Draft {
        Draft::new("R1", Class::Predicted, "§1", "time", unit)
    }

    #[test]
    fn a_row_is_a_hit_if_all_its_values_are_near_the_papers() {
        let row =
            |ours| draft("µs").value("median", 24.59, 24.6).value("p95", 28.8, ours).row("made up");
        assert!(row(26.0).hit && !row(25.9).hit && !row(f64::NAN).hit);
        assert_eq!(row(26.0).paper, "median 24.59 µs, p95 28.8 µs");
        assert_eq!(row(26.0).tolerance, "± 10 %");
    }

    #[test]
    fn a_change_in_percent_may_be_off_by_what_is_noise() {
        let row = |ours| draft("%").value("", -1.83, ours).row("made up");
        assert!(row(-2.3).hit && !row(-2.4).hit);
        assert_eq!(row(-2.3).tolerance, "± 10 %, or 0.5 points");
        let row = |ours| draft("%").value("", 14.9, ours).row("made up");
        assert!(row(16.3).hit && !row(16.5).hit);
    }

    #[test]
    fn a_bound_holds_for_what_is_not_larger() {
        let row = |ours| draft("").value("", 1.0, ours).at_most("made up");
        assert!(row(1.0).hit && !row(1.1).hit && !row(f64::NAN).hit);
    }
}
