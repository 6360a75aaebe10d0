//! Whether records are right, and which sentences of the documentation they confirm or refute;
//! `docs/machines-json.md` describes the document.

use dimmer_fleet::claims::{Claim, Verdict};
use dimmer_fleet::database::Record;
use serde::Serialize;

use super::{ValueEntry, told};
use crate::number::{counted, length};
use crate::screen::Screen;
use crate::table::{Cell, Colour, Table};

/// The document `dimmer/machines-check/1`.
#[derive(Debug, Serialize)]
pub struct Check {
    schema: &'static str,
    records: Vec<String>,
    problems: Vec<String>,
    confirmed: usize,
    refuted: usize,
    cannot_say: usize,
    claims: Vec<ClaimEntry>,
}

#[derive(Debug, Serialize)]
pub(super) struct ClaimEntry {
    pub(super) id: String,
    pub(super) file: String,
    pub(super) quote: String,
    pub(super) condition: String,
    pub(super) verdicts: Vec<VerdictEntry>,
}

#[derive(Debug, Serialize)]
pub(super) struct VerdictEntry {
    record: String,
    pub(super) verdict: &'static str,
    figure: Option<ValueEntry>,
    text: Option<String>,
    reason: String,
    #[serde(skip)]
    pub(super) told: String,
}

impl Check {
    /// Judges all claims by all records. `problems` are those of the records themselves.
    pub fn new(records: &[&Record], claims: &[Claim], problems: Vec<String>) -> Self {
        let claims = entries(records, claims);
        let count = |verdict: Verdict| {
            let all = claims.iter().flat_map(|claim| &claim.verdicts);
            all.filter(|one| one.verdict == verdict.name()).count()
        };
        Self {
            schema: "dimmer/machines-check/1",
            records: records.iter().map(|record| record.name.clone()).collect(),
            problems,
            confirmed: count(Verdict::Confirmed),
            refuted: count(Verdict::Refuted),
            cannot_say: count(Verdict::CannotSay),
            claims,
        }
    }

    /// Whether a record is wrong, or refutes a sentence.
    pub fn is_refused(&self) -> bool {
        !self.problems.is_empty() || self.refuted > 0
    }

    /// As text: problems, then each record with what it says. `is_all` also shows where it cannot
    /// say, with the reason.
    pub fn text(&self, is_all: bool, screen: Screen) -> String {
        let mut text: String =
            self.problems.iter().map(|problem| screen.fill(&format!("wrong: {problem}"))).collect();
        for (place, record) in self.records.iter().enumerate() {
            let mut table = Table::default();
            let mut unsaid = 0;
            let mut verdicts: Vec<(&ClaimEntry, &VerdictEntry)> =
                self.claims.iter().map(|claim| (claim, &claim.verdicts[place])).collect();
            // Stable: within a verdict, claims are in the order of their file.
            verdicts.sort_by_key(|(_, one)| rank(one.verdict));
            for (claim, one) in verdicts {
                if one.verdict == Verdict::CannotSay.name() && !is_all {
                    unsaid += 1;
                    continue;
                }
                let verdict = Cell::from(format!("  {}", one.verdict));
                let verdict = if one.verdict == Verdict::Refuted.name() {
                    verdict.coloured(Colour::Yellow)
                } else if one.verdict == Verdict::Confirmed.name() {
                    verdict.coloured(Colour::Green)
                } else {
                    verdict
                };
                table.row([
                    verdict,
                    one.told.as_str().into(),
                    Cell::from(claim.condition.as_str()),
                    Cell::from(format!("{}: \"{}\"", claim.file, claim.quote)),
                ]);
            }
            text += &screen.fill(record);
            text += &table.render(screen);
            if unsaid > 0 {
                let unsaid = counted(unsaid, "claim");
                text += &screen.fill(&format!(
                    "  cannot say anything about {unsaid} (--verbose has the reasons)"
                ));
            }
            text.push('\n');
        }
        let claims = counted(self.claims.len(), "claim");
        let records = counted(self.records.len(), "record");
        text + &screen.fill(&format!(
            "{claims} by {records}: {} confirmed, {} refuted, {} cannot say; {}.",
            length(self.confirmed),
            length(self.refuted),
            length(self.cannot_say),
            counted(self.problems.len(), "problem"),
        ))
    }
}

fn rank(verdict: &str) -> usize {
    [Verdict::Refuted, Verdict::Confirmed, Verdict::CannotSay]
        .iter()
        .position(|one| one.name() == verdict)
        .unwrap_or_default()
}

/// What each record says of each claim.
pub(super) fn entries(records: &[&Record], claims: &[Claim]) -> Vec<ClaimEntry> {
    let verdict = |claim: &Claim, record: &Record| {
        let judged = claim.judge(record);
        let figure = judged.figure.map(ValueEntry::from);
        let told = match (&figure, &judged.text) {
            (Some(value), _) => {
                let (number, interval) = told(*value, &claim.unit);
                format!("{number} {interval}").trim_end().to_owned()
            }
            (None, Some(text)) => text.clone(),
            (None, None) => judged.reason.clone(),
        };
        VerdictEntry {
            record: record.name.clone(),
            verdict: judged.verdict.name(),
            figure,
            text: judged.text,
            reason: judged.reason,
            told,
        }
    };
    let entry = |claim: &Claim| ClaimEntry {
        id: claim.id.clone(),
        file: claim.file.clone(),
        quote: claim.quote.clone(),
        condition: claim.condition(),
        verdicts: records.iter().map(|record| verdict(claim, record)).collect(),
    };
    claims.iter().map(entry).collect()
}
