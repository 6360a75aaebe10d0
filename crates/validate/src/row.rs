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

/// What the runs of an experiment give: one value, or the mean of several with the least and the
/// most of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ours {
    mean: f64,
    interval: Option<(f64, f64)>,
}

impl From<f64> for Ours {
    fn from(mean: f64) -> Self {
        Self { mean, interval: None }
    }
}

impl From<Vec<f64>> for Ours {
    /// NaN if there is none.
    fn from(runs: Vec<f64>) -> Self {
        let least = runs.iter().copied().fold(f64::INFINITY, f64::min);
        let most = runs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self { mean: runs.iter().sum::<f64>() / runs.len() as f64, interval: Some((least, most)) }
    }
}

/// A value of a row: its name, the paper's value with what its rounding leaves open, and ours.
#[derive(Clone, Debug, PartialEq)]
struct Value {
    name: &'static str,
    paper: f64,
    open: Option<(f64, f64)>,
    ours: Ours,
}

/// A number of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Number {
    /// Its name, if the row has several.
    pub name: &'static str,
    /// What the paper reports: the value, or a bound for it.
    pub paper: f64,
    /// What the simulator gives.
    pub ours: f64,
    /// The least and the most of several runs.
    pub interval: Option<(f64, f64)>,
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
    /// The numbers of both, if they are any, in this unit.
    pub numbers: (&'static str, Vec<Number>),
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
    pub(crate) fn value(mut self, name: &'static str, paper: f64, ours: impl Into<Ours>) -> Self {
        self.values.push(Value { name, paper, open: None, ours: ours.into() });
        self
    }

    /// Adds a value that follows from rounded figures of the paper, with the least and the most
    /// that it can be.
    pub(crate) fn rounded(
        mut self,
        name: &'static str,
        paper: f64,
        open: (f64, f64),
        ours: impl Into<Ours>,
    ) -> Self {
        self.values.push(Value { name, paper, open: Some(open), ours: ours.into() });
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
        let told = |of: &dyn Fn(&Value) -> Ours| {
            let one = |value: &Value| {
                let Ours { mean, interval } = of(value);
                let number = with_unit(mean, self.unit);
                let named =
                    if value.name.is_empty() { number } else { format!("{} {number}", value.name) };
                let (least, most) =
                    interval.map(|(least, most)| (short(least), short(most))).unzip();
                match (least, most) {
                    (Some(least), Some(most)) => format!("{named} [{least}, {most}]"),
                    _ => named,
                }
            };
            self.values.iter().map(one).collect::<Vec<_>>().join(", ")
        };
        let points = if self.unit == "%" { POINTS } else { 0.0 };
        let is_hit = |&Value { paper, open, ours: Ours { mean, .. }, .. }: &Value| match says {
            Says::Value => {
                let (least, most) = open.unwrap_or((paper, paper));
                let nearest = mean.max(least).min(most);
                (mean - nearest).abs() <= f64::max(PART * nearest.abs(), points)
            }
            Says::Bound => mean <= paper,
        };
        let is_rounded = self.values.iter().any(|value| value.open.is_some());
        let of = if is_rounded { ", of what its rounding leaves open" } else { "" };
        let tolerance = match says {
            Says::Value if points > 0.0 => {
                format!("± {} %, or {} points{of}", short(100.0 * PART), short(points))
            }
            Says::Value => format!("± {} %{of}", short(100.0 * PART)),
            Says::Bound => "at most".to_owned(),
        };
        let number = |&Value { name, paper, ours: Ours { mean, interval }, .. }: &Value| Number {
            name,
            paper,
            ours: mean,
            interval,
        };
        let numbers = (self.unit, self.values.iter().map(number).collect());
        Row {
            id: self.id,
            class: self.class,
            place: self.place,
            what: self.what,
            numbers,
            paper: told(&|value| Ours { mean: value.paper, interval: value.open }),
            ours: told(&|value| value.ours),
            tolerance,
            hit: self.values.iter().all(is_hit),
            reason,
        }
    }
}

/// What most of the runs of an experiment answer; the first of equally many. Without runs, nothing.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    words: String,
    /// How many runs answer this, and how many there are.
    runs: (usize, usize),
}

impl From<Vec<String>> for Answer {
    fn from(answers: Vec<String>) -> Self {
        let count = |words: &String| answers.iter().filter(|other| *other == words).count();
        let most = answers.iter().rev().max_by_key(|words| count(words)).cloned();
        let words = most.unwrap_or_default();
        Self { runs: (count(&words), answers.len()), words }
    }
}

impl From<&str> for Answer {
    fn from(words: &str) -> Self {
        Self { words: words.to_owned(), runs: (1, 1) }
    }
}

/// A row of words: a hit if most runs gave the same.
pub(crate) fn words(
    id: &'static str,
    class: Class,
    place: &'static str,
    what: &'static str,
    paper: &str,
    ours: impl Into<Answer>,
    reason: &'static str,
) -> Row {
    let Answer { words, runs: (same, all) } = ours.into();
    // What a minority of the runs shows is chance.
    let hit = paper == words && 2 * same > all;
    let ours = if same < all { format!("{words} ({same} of {all} runs)") } else { words };
    Row {
        id,
        class,
        place,
        what,
        paper: paper.to_owned(),
        ours,
        numbers: ("", Vec::new()),
        tolerance: "the same".to_owned(),
        hit,
        reason,
    }
}

/// A number and its unit, if it has one.
pub(crate) fn with_unit(value: f64, unit: &str) -> String {
    if unit.is_empty() { short(value) } else { format!("{} {unit}", short(value)) }
}

/// Formats a number with at most four significant digits and without zeros at the end.
pub(crate) fn short(value: f64) -> String {
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

    /// 16 ms and 15 ms, to whole ones, are from 15.5 over 15.5 to 16.5 over 14.5.
    #[test]
    fn what_the_papers_rounding_leaves_open_is_no_miss() {
        let row = |ours| draft("%").rounded("", 6.667, (0.0, 13.79), ours).row("made up");
        assert!(row(-0.5).hit && row(0.0).hit && row(13.79).hit && row(15.1).hit);
        assert!(!row(-0.6).hit && !row(15.2).hit && !row(f64::NAN).hit);
        assert_eq!(row(9.0).paper, "6.667 % [0, 13.79]");
        assert_eq!(row(9.0).tolerance, "± 10 %, or 0.5 points, of what its rounding leaves open");
        let slower = |ours| draft("%").rounded("", -20.0, (-23.0, -17.2), ours).row("made up");
        assert!(slower(-25.2).hit && slower(-15.6).hit && !slower(-15.4).hit);
    }

    #[test]
    fn several_runs_are_judged_by_their_mean_and_their_most_frequent_answer() {
        let row = draft("%").value("", 8.0, vec![7.0, 8.0, 10.5]).row("made up");
        assert!(row.hit);
        assert_eq!(row.ours, "8.5 % [7, 10.5]");
        assert!(!draft("%").value("", 8.0, Vec::new()).row("made up").hit);
        let answer = |answers: &[&str]| {
            let answers: Vec<String> = answers.iter().map(|answer| (*answer).to_owned()).collect();
            words("R1", Class::Predicted, "§1", "it helps", "yes", answers, "made up")
        };
        assert_eq!(answer(&["yes", "no", "yes"]).ours, "yes (2 of 3 runs)");
        assert!(answer(&["yes", "no", "yes"]).hit && !answer(&["no", "yes", "no"]).hit);
        let split = answer(&["yes", "no", "perhaps"]);
        assert_eq!((split.ours.as_str(), split.hit), ("yes (1 of 3 runs)", false));
        assert_eq!((answer(&["yes", "yes"]).ours, answer(&[]).hit), ("yes".to_owned(), false));
    }

    #[test]
    fn a_bound_holds_for_what_is_not_larger() {
        let row = |ours| draft("").value("", 1.0, ours).at_most("made up");
        assert!(row(1.0).hit && !row(1.1).hit && !row(f64::NAN).hit);
    }
}
