//! Records of machines: `dimmer machines`. `docs/machines-json.md` describes the documents.

mod check;
mod compare;
mod evidence;
mod page;

use dimmer_fleet::claims::Claim;
use dimmer_fleet::database::{Finding, Record};
use dimmer_fleet::kinds::Figure;
use dimmer_fleet::measure::{Cost, Measure};
use dimmer_fleet::place::Quantity;
use dimmer_probe::stats::Estimate;
use serde::Serialize;

use crate::number::{SPACE, grouped, interval, time, time_bound, time_estimate};
use crate::screen::Screen;
use crate::table::{Cell, Table};

use check::Check;
use compare::Compared;
pub use evidence::evidence;
pub use page::page;

/// What to show of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Machines, days, and what was found.
    List,
    /// All figures.
    Show,
    /// Figures side by side, and whether they agree.
    Compare,
    /// What is wrong, and what claims they refute.
    Check,
}

/// What is shown of records.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Shown {
    /// Machines, days, and what was found.
    List(List),
    /// All figures.
    Show(Show),
    /// Figures side by side.
    Compared(Compared),
    /// What is wrong, and what claims they refute.
    Check(Check),
}

impl Shown {
    /// Makes it. `problems` are what is wrong with the records.
    ///
    /// # Errors
    /// If fewer than two records are to be compared.
    pub fn new(
        what: What,
        records: &[&Record],
        claims: &[Claim],
        problems: Vec<String>,
    ) -> Result<Self, String> {
        Ok(match (what, records) {
            (What::List, _) => Self::List(List::new(records)),
            (What::Show, _) => Self::Show(Show::new(records)),
            (What::Compare, [] | [_]) => {
                return Err("compare: name two records at least".to_owned());
            }
            (What::Compare, _) => Self::Compared(Compared::new(records)),
            (What::Check, _) => Self::Check(Check::new(records, claims, problems)),
        })
    }

    /// As text. `is_all` also shows claims about which nothing can be said.
    pub fn text(&self, is_all: bool, screen: Screen) -> String {
        match self {
            Self::List(list) => list.text(screen),
            Self::Show(show) => show.text(screen),
            Self::Compared(compared) => compared.text(screen),
            Self::Check(check) => check.text(is_all, screen),
        }
    }

    /// Whether it is a check by which a record is wrong, or refutes a sentence.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Check(check) if check.is_refused())
    }
}

/// The document `dimmer/machines-list/1`.
#[derive(Debug, Serialize)]
pub struct List {
    schema: &'static str,
    records: Vec<RecordEntry>,
}

/// The document `dimmer/machines-show/1`.
#[derive(Debug, Serialize)]
pub struct Show {
    schema: &'static str,
    records: Vec<ShownEntry>,
}

#[derive(Debug, Serialize)]
struct ShownEntry {
    #[serde(flatten)]
    record: RecordEntry,
    figures: Vec<FigureEntry>,
    skipped: Vec<SkippedEntry>,
}

#[derive(Debug, Serialize)]
struct RecordEntry {
    name: String,
    machine: String,
    date: String,
    processor: String,
    microarchitecture: String,
    microcode: Option<String>,
    hypervisor: Option<String>,
    kernel: Option<String>,
    documents: Vec<&'static str>,
    effect: &'static str,
    bound_ns: Option<f64>,
    costs: Vec<CostEntry>,
    busy: Option<BusyEntry>,
    #[serde(skip)]
    finding: String,
}

#[derive(Debug, Serialize)]
struct CostEntry {
    cost: &'static str,
    unit: &'static str,
    mixture: String,
    median: f64,
    ci95: [f64; 2],
}

#[derive(Debug, Serialize)]
struct BusyEntry {
    is_busy: bool,
    others_cpu_pct: f64,
    steal_pct: f64,
    load_begin: [f64; 3],
    load_end: [f64; 3],
}

#[derive(Debug, Serialize)]
struct FigureEntry {
    document: &'static str,
    what: String,
    unit: &'static str,
    #[serde(flatten)]
    value: ValueEntry,
}

#[derive(Debug, Serialize)]
struct SkippedEntry {
    name: String,
    reason: String,
}

/// A number with its interval, if it has one.
#[derive(Clone, Copy, Debug, Serialize)]
struct ValueEntry {
    median: f64,
    ci95: Option<[f64; 2]>,
}

impl From<Quantity> for ValueEntry {
    fn from(quantity: Quantity) -> Self {
        Self { median: quantity.median, ci95: quantity.interval }
    }
}

impl List {
    /// These records.
    pub fn new(records: &[&Record]) -> Self {
        let records = records.iter().map(|record| RecordEntry::new(record)).collect();
        Self { schema: "dimmer/machines-list/1", records }
    }

    /// As text: the machines, and a line for each day.
    pub fn text(&self, screen: Screen) -> String {
        let mut text = String::new();
        let mut rest = self.records.as_slice();
        while let Some(first) = rest.first() {
            let days = rest.iter().take_while(|other| other.machine == first.machine).count();
            let (of_machine, others) = rest.split_at(days);
            rest = others;
            if !text.is_empty() {
                text.push('\n');
            }
            text += &screen.fill(&format!("{}: {}", first.machine, first.about()));
            let mut table = Table::default();
            for record in of_machine {
                let finding = std::iter::once(record.finding.clone()).chain(record.busy_note());
                table.row([
                    Cell::from(format!("  {}", record.date)),
                    Cell::lines(finding),
                    Cell::from(record.documents.join(", ")).dim(),
                ]);
            }
            text += &table.render(screen);
        }
        text
    }
}

impl Show {
    /// These records with all their figures.
    pub fn new(records: &[&Record]) -> Self {
        let shown = |record: &&Record| ShownEntry {
            record: RecordEntry::new(record),
            figures: record
                .documents
                .iter()
                .flat_map(|entry| {
                    entry.figures.iter().map(|figure| FigureEntry::new(entry.name, figure))
                })
                .collect(),
            skipped: record.evidence().map_or_else(Vec::new, |evidence| {
                let skipped = evidence.commands.iter().filter(|ran| !ran.is_done);
                let entry = |ran: &dimmer_fleet::evidence::Ran| SkippedEntry {
                    name: ran.name.clone(),
                    reason: ran.reason.clone().unwrap_or_default(),
                };
                skipped.map(entry).collect()
            }),
        };
        let records = records.iter().map(shown).collect();
        Self { schema: "dimmer/machines-show/1", records }
    }

    /// As text: a table for each record.
    pub fn text(&self, screen: Screen) -> String {
        let one = |shown: &ShownEntry| {
            let ShownEntry { record, figures, skipped } = shown;
            let mut text = screen.fill(&format!("{}: {}", record.name, record.about()));
            text += &screen.fill(&sentence(&record.finding));
            if let Some(note) = record.busy_note() {
                text += &screen.fill(&sentence(&note));
            }
            let mut table = Table::new(["document", "figure", "value", "interval"]);
            let mut last = "";
            for figure in figures {
                let (value, interval) = told(figure.value, figure.unit);
                let document = if figure.document == last { "" } else { figure.document };
                last = figure.document;
                let cells = [Cell::from(document), figure.what.as_str().into()];
                table.row(cells.into_iter().chain([Cell::right(value), interval.into()]));
            }
            text += "\n";
            text += &table.render(screen);
            for SkippedEntry { name, reason } in skipped {
                text += &screen.fill(&format!("skipped: {name}: {reason}"));
            }
            text
        };
        self.records.iter().map(one).collect::<Vec<_>>().join("\n")
    }
}

impl RecordEntry {
    fn new(record: &Record) -> Self {
        let finding = record.finding();
        let about = record.about.clone();
        let busy = record.evidence().map(|evidence| BusyEntry {
            is_busy: evidence.is_busy(),
            others_cpu_pct: evidence.others_cpu_pct,
            steal_pct: evidence.steal_pct,
            load_begin: evidence.load_begin,
            load_end: evidence.load_end,
        });
        Self {
            name: record.name.clone(),
            machine: record.machine.clone(),
            date: record.date.clone(),
            processor: about.brand,
            microarchitecture: about.microarchitecture,
            microcode: about.microcode,
            hypervisor: about.hypervisor,
            kernel: about.kernel,
            documents: record.documents.iter().map(|entry| entry.name).collect(),
            effect: finding.effect,
            bound_ns: finding.bound_ns,
            costs: finding.costs.iter().map(|cost| CostEntry::new(cost)).collect(),
            busy,
            finding: words(&finding),
        }
    }

    /// The machine in a line.
    fn about(&self) -> String {
        let known = |what: &str, value: &Option<String>| {
            value.as_ref().map_or_else(|| format!("{what} not known"), |it| format!("{what} {it}"))
        };
        let hypervisor = self.hypervisor.as_deref().unwrap_or("no hypervisor");
        format!(
            "{}, {}; {hypervisor}; {}; {}",
            self.processor,
            self.microarchitecture,
            known("kernel", &self.kernel),
            known("microcode", &self.microcode),
        )
    }

    /// That the machine was busy, if it was.
    fn busy_note(&self) -> Option<String> {
        let busy = self.busy.as_ref().filter(|busy| busy.is_busy)?;
        let (others, steal) = (grouped(busy.others_cpu_pct, 0), grouped(busy.steal_pct, 0));
        let load = grouped(busy.load_begin[0], 1);
        Some(format!(
            "busy meanwhile: other programs took {others}{SPACE}% of the CPUs, the hypervisor \
             {steal}{SPACE}%; load {load} at the start"
        ))
    }
}

impl CostEntry {
    fn new(cost: &Measure) -> Self {
        Self {
            cost: cost.key.cost.name(),
            unit: cost.key.cost.unit(),
            mixture: cost.key.kernel.clone(),
            median: cost.median,
            ci95: cost.interval,
        }
    }
}

impl FigureEntry {
    fn new(document: &'static str, figure: &Figure) -> Self {
        let what = figure.what.clone();
        Self { document, what, unit: figure.unit, value: figure.value.into() }
    }
}

/// The main finding of a record in words.
fn words(finding: &Finding<'_>) -> String {
    let costs: Vec<String> = finding.costs.iter().map(|cost| cost_in_words(cost)).collect();
    let costs = costs.join("; ");
    let bound = finding.bound_ns.map(time_bound);
    match (finding.effect, bound) {
        ("yes", _) => costs,
        ("no", bound) => {
            let bound = bound.map(|bound| format!(" above {bound}")).unwrap_or_default();
            let none = format!("no effect{bound}");
            if costs.is_empty() { none } else { format!("{none}; other probes saw: {costs}") }
        }
        ("open", _) => "open: chance explains what was seen as well".to_owned(),
        _ => "wide SIMD code was not measured".to_owned(),
    }
}

fn cost_in_words(cost: &Measure) -> String {
    let percent = |value: f64| format!("{}{SPACE}%", grouped(value, 1));
    match cost.key.cost {
        Cost::Burst => format!("an isolated burst costs {}", time(cost.median)),
        Cost::Recurrence => {
            format!("recurring bursts slow code between them by {}", percent(cost.median))
        }
        Cost::Stretch => format!("a long stretch lowers the clock by {}", percent(cost.median)),
        Cost::Release => format!("a long stretch costs the code after it {}", time(cost.median)),
        Cost::Throttle => format!("throttled for {} at the start", time(cost.median)),
        Cost::Level => format!("the settled clock is {} lower", percent(cost.median)),
    }
}

/// A text with a capital and a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

/// A number in its unit, and its interval.
fn told(value: ValueEntry, unit: &str) -> (String, String) {
    let estimate = |factor: f64| Estimate {
        median: value.median * factor,
        ci95: value.ci95.map_or((value.median * factor, value.median * factor), |[low, high]| {
            (low * factor, high * factor)
        }),
    };
    let decimals = match unit {
        "%" | "s" => 1,
        "" => 3,
        _ => 2,
    };
    let (number, ends) = match unit {
        "ns" => time_estimate(&estimate(1.0)),
        "us" => time_estimate(&estimate(1e3)),
        unit => {
            let number = grouped(value.median, decimals);
            let number = if unit.is_empty() { number } else { format!("{number}{SPACE}{unit}") };
            (number, interval(&estimate(1.0), decimals))
        }
    };
    (number, if value.ci95.is_some() { ends } else { String::new() })
}

#[cfg(test)]
mod tests;
