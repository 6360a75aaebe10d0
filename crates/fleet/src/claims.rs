//! Sentences of the documentation that records confirm or refute: `machines/claims.toml`.
//!
//! A claim quotes its sentence, and names a quantity of a document and what must hold of it. A
//! figure with an interval confirms a claim only with the whole interval, and refutes it only with
//! the whole interval; in between it cannot say.

use std::path::{Path, PathBuf};

use dimmer_processor::text::toml_problem;
use serde::Deserialize;
use serde_json::Value;

use crate::database::{Entry, Record};
use crate::evidence::Evidence;
use crate::kinds;
use crate::place::{Place, Quantity, Unexpected, plain};

/// The claims of README.md and docs/.
const BUILTIN: &str = include_str!("../../../machines/claims.toml");

/// Size limit of a file of claims (bytes).
const LONGEST: u64 = 1 << 20;

/// A claim as its file has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    id: String,
    file: String,
    quote: String,
    documents: Vec<String>,
    quantity: String,
    #[serde(default)]
    unit: String,
    least: Option<f64>,
    most: Option<f64>,
    below: Option<String>,
    is: Option<Vec<String>>,
    when: Option<When>,
    #[serde(default)]
    quiet: bool,
}

/// For which machines a claim is.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct When {
    document: String,
    place: String,
    is: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    claim: Vec<Written>,
}

/// A sentence of the documentation, and what must hold on a machine for it.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Its name.
    pub id: String,
    /// The document with the sentence.
    pub file: String,
    /// Its words.
    pub quote: String,
    /// The documents of a record that have the quantity.
    documents: Vec<&'static str>,
    quantity: Place,
    /// The quantity's unit.
    pub unit: String,
    condition: Condition,
    when: Option<(&'static str, Place, Vec<String>)>,
    /// Whether other programs on the machine would decide instead.
    quiet: bool,
}

#[derive(Clone, Debug)]
enum Condition {
    Range(f64, f64),
    Below(Place),
    Is(Vec<String>),
}

/// What a record says of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The claim is wrong on this machine.
    Refuted,
    /// The claim holds on this machine.
    Confirmed,
    /// No figure, or one whose interval allows both.
    CannotSay,
}

impl Verdict {
    /// The name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refuted => "refuted",
            Self::Confirmed => "confirmed",
            Self::CannotSay => "cannot say",
        }
    }
}

/// A verdict with its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// The figure that decided: of several, the one farthest on the wrong side.
    pub figure: Option<Quantity>,
    /// The text that decided, where the claim is about one.
    pub text: Option<String>,
    /// Where it is, or why there is none.
    pub reason: String,
}

/// The claims cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimsError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] dimmer_host::bounded_file::BoundedFileError),
    /// It is no TOML, or a key is wrong.
    #[error("{}: {what}", file.display())]
    Toml {
        /// The file.
        file: PathBuf,
        /// What is wrong, with its line.
        what: String,
    },
    /// A claim makes no sense.
    #[error("{}: claim `{id}`: {what}", file.display())]
    Claim {
        /// The file.
        file: PathBuf,
        /// The claim.
        id: String,
        /// What is wrong, and what is accepted.
        what: String,
    },
}

/// The claims of the documentation.
///
/// # Errors
/// Never: a test reads the file.
pub fn builtin() -> Result<Vec<Claim>, ClaimsError> {
    parse(Path::new("machines/claims.toml"), BUILTIN)
}

/// The claims beside a user's records, in `claims.toml`; those of the documentation if there are
/// none.
///
/// # Errors
/// [`ClaimsError`]
pub fn beside(directory: &Path) -> Result<Vec<Claim>, ClaimsError> {
    let file = directory.join("claims.toml");
    if !file.exists() {
        return builtin();
    }
    parse(&file, &dimmer_host::bounded_file::read_to_string(&file, LONGEST)?)
}

/// Reads claims.
///
/// # Errors
/// [`ClaimsError`]
pub fn parse(file: &Path, text: &str) -> Result<Vec<Claim>, ClaimsError> {
    let File { claim } = toml::from_str(text).map_err(|error| {
        let what = toml_problem(text, &error);
        ClaimsError::Toml { file: file.to_owned(), what }
    })?;
    let mut claims: Vec<Claim> = Vec::new();
    for written in claim {
        let id = written.id.clone();
        let wrong = |what| ClaimsError::Claim { file: file.to_owned(), id: id.clone(), what };
        if claims.iter().any(|other| other.id == written.id) {
            return Err(wrong("a second claim has this name".to_owned()));
        }
        claims.push(Claim::new(written).map_err(wrong)?);
    }
    Ok(claims)
}

impl Claim {
    fn new(written: Written) -> Result<Self, String> {
        let place = |text: &str| text.parse::<Place>().map_err(|error| error.to_string());
        let kind = |name: &String| {
            kinds::of(name).map(|kind| kind.name).ok_or_else(|| {
                format!("unknown document `{name}`: expected one of {}", kinds::names())
            })
        };
        if written.quote.trim().is_empty() {
            return Err("`quote`: expected the words of a sentence".to_owned());
        }
        if written.documents.is_empty() {
            return Err("`documents`: expected at least one name".to_owned());
        }
        let Written { least, most, .. } = written;
        let (low, high) = (least.unwrap_or(f64::NEG_INFINITY), most.unwrap_or(f64::INFINITY));
        let has_range = (least.is_some() || most.is_some()) && low <= high;
        let condition = match (has_range, written.below, written.is) {
            (true, None, None) => Condition::Range(low, high),
            (false, Some(other), None) => Condition::Below(place(&other)?),
            (false, None, Some(texts)) if !texts.is_empty() => Condition::Is(texts),
            _ => {
                let what = "expected `least`, `most` or both, `below`, or `is`: one condition";
                return Err(what.to_owned());
            }
        };
        let when =
            |when: When| Ok::<_, String>((kind(&when.document)?, place(&when.place)?, when.is));
        Ok(Self {
            id: written.id,
            file: written.file,
            quote: written.quote,
            documents: written.documents.iter().map(kind).collect::<Result<_, _>>()?,
            quantity: place(&written.quantity)?,
            unit: written.unit,
            condition,
            when: written.when.map(when).transpose()?,
            quiet: written.quiet,
        })
    }

    /// The condition in words, as `at most 20 s`.
    #[must_use]
    pub fn condition(&self) -> String {
        let number = |value: f64| format!("{value} {}", self.unit).trim_end().to_owned();
        match &self.condition {
            Condition::Range(low, high) if low.is_infinite() => {
                format!("at most {}", number(*high))
            }
            Condition::Range(low, high) if high.is_infinite() => {
                format!("at least {}", number(*low))
            }
            Condition::Range(low, high) => format!("{low} to {}", number(*high)),
            Condition::Below(other) => format!("less than `{other}`"),
            Condition::Is(texts) => texts.join(" or "),
        }
    }

    /// What a record says of the claim.
    #[must_use]
    pub fn judge(&self, record: &Record) -> Judgement {
        if let Some((document, place, wanted)) = &self.when {
            let Some(entry) = record.document(document) else {
                return cannot_say(format!("no {document}.json"));
            };
            let found = place.of(&entry.value).unwrap_or_default();
            if !found.iter().any(|(_, value)| wanted.contains(&plain(value))) {
                return cannot_say("it is about other machines".to_owned());
            }
        }
        if self.quiet && record.evidence().is_some_and(Evidence::is_busy) {
            return cannot_say("the machine was busy".to_owned());
        }
        let entries: Vec<&Entry> =
            self.documents.iter().filter_map(|name| record.document(name)).collect();
        if entries.is_empty() {
            return cannot_say(format!("no {}.json", self.documents.join(".json or ")));
        }
        let mut judged = Vec::new();
        for entry in &entries {
            match self.judge_entry(entry) {
                Ok(of_entry) => judged.extend(of_entry),
                Err(error) => return cannot_say(format!("{}.json: {error}", entry.name)),
            }
        }
        // The first of the worst ones.
        let worst = |one: &Judgement| match one.verdict {
            Verdict::Refuted => 0,
            Verdict::CannotSay => 1,
            Verdict::Confirmed => 2,
        };
        judged.sort_by(|a, b| {
            worst(a).cmp(&worst(b)).then(self.margin(b).total_cmp(&self.margin(a)))
        });
        let nothing = || cannot_say(format!("`{}` was not measured", self.quantity));
        judged.into_iter().next().unwrap_or_else(nothing)
    }

    fn judge_entry(&self, entry: &Entry) -> Result<Vec<Judgement>, Unexpected> {
        let at = |place: &str| format!("{}.json: {place}", entry.name);
        if let Condition::Is(texts) = &self.condition {
            let of_value = |(place, value): (String, &Value)| {
                let text = plain(value);
                let holds = texts.contains(&text);
                Judgement {
                    verdict: if holds { Verdict::Confirmed } else { Verdict::Refuted },
                    figure: None,
                    text: Some(text),
                    reason: at(&place),
                }
            };
            return Ok(self.quantity.of(&entry.value)?.into_iter().map(of_value).collect());
        }
        let range = match &self.condition {
            Condition::Below(other) => {
                let others = other.quantities(&entry.value)?;
                let Some((_, other)) = others.first() else { return Ok(Vec::new()) };
                let [low, high] = other.ends();
                [f64::NEG_INFINITY, low, high]
            }
            Condition::Range(low, high) => [*low, *high, *high],
            Condition::Is(_) => return Ok(Vec::new()),
        };
        let [least, surely, most] = range;
        let quantities = self.quantity.quantities(&entry.value)?;
        let of_quantity = |(place, figure): (String, Quantity)| {
            let [low, high] = figure.ends();
            let verdict = if low >= least && high <= surely {
                Verdict::Confirmed
            } else if high < least || low > most {
                Verdict::Refuted
            } else {
                Verdict::CannotSay
            };
            Judgement { verdict, figure: Some(figure), text: None, reason: at(&place) }
        };
        Ok(quantities.into_iter().map(of_quantity).collect())
    }

    /// How far a figure is on the wrong side, or towards it.
    fn margin(&self, judgement: &Judgement) -> f64 {
        let Some(figure) = judgement.figure else { return 0.0 };
        match self.condition {
            Condition::Range(low, high) => (figure.median - high).max(low - figure.median),
            Condition::Below(_) | Condition::Is(_) => figure.median,
        }
    }
}

fn cannot_say(reason: String) -> Judgement {
    Judgement { verdict: Verdict::CannotSay, figure: None, text: None, reason }
}

#[cfg(test)]
mod tests;
