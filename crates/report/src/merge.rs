//! Results of several probes side by side: `dimmer merge` and `dimmer probe --baseline`.
//! `docs/merge-json.md` describes the document.

mod parquet;

use std::collections::BTreeMap;

use dimmer_fleet::baseline::Comparison;
use dimmer_fleet::document::Document;
use dimmer_fleet::measure::{Cost, Measure};
use dimmer_fleet::merge::{Kind, Merged};
use serde::Serialize;

use crate::number::{counted, grouped, time};
use crate::screen::Screen;
use crate::table::{Cell, Table};

/// Maximum number of outliers shown.
const MOST: usize = 20;

/// The document `dimmer/merge/1`.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    kinds: Vec<KindEntry>,
    outliers: Vec<OutlierEntry>,
    probes: Vec<ProbeEntry>,
}

#[derive(Debug, Serialize)]
struct KindEntry {
    processor: String,
    microarchitecture: String,
    microcode: Option<String>,
    hypervisor: Option<String>,
    kernel: Option<String>,
    probes: usize,
    with_effect: usize,
    open: usize,
    not_measured: usize,
    outliers: usize,
    costs: BTreeMap<&'static str, Spread>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

#[derive(Debug, Serialize)]
struct OutlierEntry {
    file: String,
    #[serde(flatten)]
    measure: MeasureEntry,
    typical: f64,
    of: usize,
    #[serde(skip)]
    text: String,
}

#[derive(Debug, Serialize)]
struct ProbeEntry {
    file: String,
    processor: String,
    microarchitecture: String,
    microcode: Option<String>,
    hypervisor: Option<String>,
    kernel: Option<String>,
    time: String,
    effect: String,
    interrupted: bool,
    costs: Vec<MeasureEntry>,
}

#[derive(Debug, Serialize)]
struct MeasureEntry {
    cost: &'static str,
    unit: &'static str,
    mixture: String,
    threads: u64,
    burst_instructions: Option<u64>,
    has_effect: bool,
    median: f64,
    ci95: [f64; 2],
}

impl MeasureEntry {
    fn new(measure: &Measure) -> Self {
        Self {
            cost: measure.key.cost.name(),
            unit: measure.key.cost.unit(),
            mixture: measure.key.kernel.clone(),
            threads: measure.key.threads,
            burst_instructions: measure.key.burst,
            has_effect: measure.has_effect,
            median: measure.median,
            ci95: measure.interval,
        }
    }
}

impl KindEntry {
    fn new(kind: &Kind) -> Self {
        let spread = |[least, median, most]: [f64; 3]| Spread { least, median, most };
        Self {
            processor: kind.processor.clone(),
            microarchitecture: kind.microarchitecture.clone(),
            microcode: kind.microcode.clone(),
            hypervisor: kind.hypervisor.clone(),
            kernel: kind.kernel.clone(),
            probes: kind.probes,
            with_effect: kind.with_effect,
            open: kind.open,
            not_measured: kind.not_measured,
            outliers: kind.outliers,
            costs: kind.costs.iter().map(|(name, costs)| (*name, spread(*costs))).collect(),
        }
    }

    /// How many of the probes found an effect, and how many cannot answer.
    fn slowed(&self) -> String {
        let mut text = grouped(self.with_effect as f64, 0);
        for (count, what) in [(self.open, "open"), (self.not_measured, "not measured")] {
            if count > 0 {
                text += &format!(", {count} {what}");
            }
        }
        text
    }
}

impl ProbeEntry {
    fn new(probe: &Document) -> Self {
        let machine = probe.machine.clone();
        Self {
            file: probe.file.display().to_string(),
            processor: machine.brand,
            microarchitecture: machine.microarchitecture,
            microcode: machine.microcode,
            hypervisor: machine.hypervisor,
            kernel: machine.kernel,
            time: machine.time,
            effect: probe.effect.clone(),
            interrupted: probe.interrupted,
            costs: probe.measures.iter().map(MeasureEntry::new).collect(),
        }
    }
}

impl Report {
    /// These probes, merged.
    pub fn new(probes: &[Document]) -> Self {
        let merged = Merged::new(probes);
        let outlier = |one: &dimmer_fleet::merge::Outlier| {
            let file = probes[one.probe].file.display().to_string();
            let text = format!(
                "{file}: {}: {}, the median of {} is {}",
                one.measure.key,
                interval(&one.measure),
                counted(one.of, "probe"),
                amount(one.measure.key.cost, one.typical),
            );
            let (typical, of) = (one.typical, one.of);
            OutlierEntry { file, measure: MeasureEntry::new(&one.measure), typical, of, text }
        };
        Self {
            schema: "dimmer/merge/1",
            kinds: merged.kinds.iter().map(KindEntry::new).collect(),
            outliers: merged.outliers.iter().map(outlier).collect(),
            probes: probes.iter().map(ProbeEntry::new).collect(),
        }
    }

    /// The kinds of machines as a table, outliers first.
    pub fn text(&self, screen: Screen) -> String {
        let mut text = String::new();
        if !self.outliers.is_empty() {
            text += "Not as others with the same processor:\n";
            for outlier in self.outliers.iter().take(MOST) {
                text += &screen.fill(&outlier.text);
            }
            if let Some(rest) = self.outliers.len().checked_sub(MOST).filter(|rest| *rest > 0) {
                text += &format!("and {} more; --json has all.\n", counted(rest, "cost"));
            }
            text += "\n";
        }
        let header = ["processor", "microcode", "hypervisor", "kernel"].map(Cell::from);
        let numbers = ["probes", "slowed", "a burst costs", "between bursts", "long stretch"];
        let mut table = Table::new(header.into_iter().chain(numbers.map(Cell::right)));
        for kind in &self.kinds {
            let known = |value: &Option<String>, none: &str| {
                Cell::from(value.clone().unwrap_or_else(|| none.to_owned()))
            };
            let cost = |cost: Cost| {
                let spread = kind.costs.get(cost.name());
                Cell::right(spread.map(|spread| spread.text(cost)).unwrap_or_default())
            };
            table.row([
                kind.processor.as_str().into(),
                known(&kind.microcode, "not known"),
                known(&kind.hypervisor, "none"),
                known(&kind.kernel, "not known"),
                Cell::right(grouped(kind.probes as f64, 0)),
                Cell::right(kind.slowed()),
                cost(Cost::Burst),
                cost(Cost::Recurrence),
                cost(Cost::Stretch),
            ]);
        }
        text + &table.render(screen)
    }

    /// All costs of all probes as CSV, a line each.
    ///
    /// # Errors
    /// A row cannot be written, which happens in memory and has no cause to fail.
    pub fn csv(&self) -> Result<Vec<u8>, ::csv::Error> {
        let mut writer = ::csv::Writer::from_writer(Vec::new());
        writer.write_record([
            "file",
            "processor",
            "microarchitecture",
            "microcode",
            "hypervisor",
            "kernel",
            "time",
            "effect",
            "interrupted",
            "cost",
            "unit",
            "mixture",
            "threads",
            "burst_instructions",
            "has_effect",
            "median",
            "median_low",
            "median_high",
        ])?;
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        for probe in &self.probes {
            for cost in &probe.costs {
                let burst = cost.burst_instructions.map(|burst| burst.to_string());
                writer.write_record([
                    &probe.file,
                    &probe.processor,
                    &probe.microarchitecture,
                    &text(&probe.microcode),
                    &text(&probe.hypervisor),
                    &text(&probe.kernel),
                    &probe.time,
                    &probe.effect,
                    &probe.interrupted.to_string(),
                    cost.cost,
                    cost.unit,
                    &cost.mixture,
                    &cost.threads.to_string(),
                    &burst.unwrap_or_default(),
                    &cost.has_effect.to_string(),
                    &cost.median.to_string(),
                    &cost.ci95[0].to_string(),
                    &cost.ci95[1].to_string(),
                ])?;
            }
        }
        writer.into_inner().map_err(|error| ::csv::Error::from(error.into_error()))
    }
}

impl Report {
    /// All costs of all probes as Parquet, a row each, with the columns of [`Self::csv`].
    ///
    /// # Errors
    /// It cannot be written, which happens in memory and has no cause to fail.
    pub fn parquet(&self) -> Result<Vec<u8>, ::parquet::errors::ParquetError> {
        use parquet::Column::{Flag, MaybeText, MaybeWhole, Number, Text, Whole};
        let costs: Vec<(&ProbeEntry, &MeasureEntry)> = self
            .probes
            .iter()
            .flat_map(|probe| probe.costs.iter().map(move |cost| (probe, cost)))
            .collect();
        let text = |of: fn(&ProbeEntry) -> &String| {
            Text(costs.iter().map(|(probe, _)| of(probe).clone()).collect())
        };
        let maybe = |of: fn(&ProbeEntry) -> &Option<String>| {
            MaybeText(costs.iter().map(|(probe, _)| of(probe).clone()).collect())
        };
        let number =
            |of: fn(&MeasureEntry) -> f64| Number(costs.iter().map(|(_, cost)| of(cost)).collect());
        let word = |of: fn(&MeasureEntry) -> &str| {
            Text(costs.iter().map(|(_, cost)| of(cost).to_owned()).collect())
        };
        parquet::file(&[
            ("file", text(|probe| &probe.file)),
            ("processor", text(|probe| &probe.processor)),
            ("microarchitecture", text(|probe| &probe.microarchitecture)),
            ("microcode", maybe(|probe| &probe.microcode)),
            ("hypervisor", maybe(|probe| &probe.hypervisor)),
            ("kernel", maybe(|probe| &probe.kernel)),
            ("time", text(|probe| &probe.time)),
            ("effect", text(|probe| &probe.effect)),
            ("interrupted", Flag(costs.iter().map(|(probe, _)| probe.interrupted).collect())),
            ("cost", word(|cost| cost.cost)),
            ("unit", word(|cost| cost.unit)),
            ("mixture", word(|cost| &cost.mixture)),
            ("threads", Whole(costs.iter().map(|(_, cost)| cost.threads).collect())),
            (
                "burst_instructions",
                MaybeWhole(costs.iter().map(|(_, cost)| cost.burst_instructions).collect()),
            ),
            ("has_effect", Flag(costs.iter().map(|(_, cost)| cost.has_effect).collect())),
            ("median", number(|cost| cost.median)),
            ("median_low", number(|cost| cost.ci95[0])),
            ("median_high", number(|cost| cost.ci95[1])),
        ])
    }
}

impl Spread {
    /// The median, and the range if it differs noticeably.
    fn text(self, cost: Cost) -> String {
        let Self { least, median, most } = self;
        let [least, shown, most] = [least, median, most].map(|value| amount(cost, value));
        if least == most { shown } else { format!("{shown} ({least} to {most})") }
    }
}

fn amount(cost: Cost, value: f64) -> String {
    match cost.unit() {
        "ns" => time(value),
        _ => format!("{} %", grouped(value, 1)),
    }
}

fn interval(measure: &Measure) -> String {
    let of = |value: f64| amount(measure.key.cost, value);
    let [low, high] = measure.interval;
    format!("{} [{}, {}]", of(measure.median), of(low), of(high))
}

/// What has become worse or better since an earlier probe, as text.
pub fn comparison(comparison: &Comparison<'_>, baseline: &str, screen: Screen) -> String {
    let mut lines = vec![format!(
        "Compared with {baseline}: {} measured in both, {} worse, {} better.",
        counted(comparison.compared, "cost"),
        grouped(comparison.worse.len() as f64, 0),
        grouped(comparison.better.len() as f64, 0),
    )];
    for (what, old, new) in &comparison.machine {
        lines.push(format!("{what}: {old} before, {new} now"));
    }
    for (word, pairs) in [("worse", &comparison.worse), ("better", &comparison.better)] {
        for [old, new] in pairs {
            lines.push(format!(
                "{word}: {}: {} before, {} now",
                new.key,
                interval(old),
                interval(new)
            ));
        }
    }
    for (number, which) in comparison.alone.into_iter().zip(["the baseline", "this probe"]) {
        if number > 0 {
            lines.push(format!("{} only in {which}", counted(number, "cost")));
        }
    }
    lines.iter().map(|line| screen.fill(line)).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn probe(file: &str, ns: f64) -> Document {
        let quantity = serde_json::json!({ "median": ns, "ci95": [ns - 1.0, ns + 1.0] });
        let text = serde_json::json!({
            "schema": "dimmer/probe/2",
            "verdict": { "effect": "yes" },
            "machine": {
                "brand": "P", "microarchitecture": "m", "microcode": null, "hypervisor": "KVM",
                "kernel": "6.1", "cpus": 2, "time": "2026-11-27T00:00:00Z",
            },
            "results": [{
                "mode": "episode", "kernel": "k", "threads": 1, "burst_instructions": 800,
                "effect": true, "mean_extra_ns": quantity,
            }],
            "interrupted": false,
        });
        Document::parse(Path::new(file), &text.to_string()).unwrap()
    }

    #[test]
    fn outliers_come_before_the_table() {
        let probes = [probe("a", 100.0), probe("b", 101.0), probe("c", 250.0)];
        let report = Report::new(&probes);
        let text = report.text(Screen::file(100));
        let expected = "\
Not as others with the same processor:
c: an isolated burst of 800 instructions, k: 250 ns [249 ns, 251 ns], the median of 3 probes is
101 ns

processor  microcode  hypervisor  kernel  probes  slowed        a burst costs  between  long stretch
                                                                                bursts
P          not known  KVM         6.1          3       3    101 ns (100 ns to
                                                                      250 ns)
";
        assert_eq!(text, expected, "{text}");
        let csv = String::from_utf8(report.csv().unwrap()).unwrap();
        assert_eq!(csv.lines().count(), 4);
        assert!(csv.ends_with("burst,ns,k,1,800,true,250,249,251\n"), "{csv}");
    }

    #[test]
    fn a_probe_that_measured_nothing_is_shown_as_such() {
        let nothing = Document {
            effect: "not-measured".to_owned(),
            measures: Vec::new(),
            ..probe("b", 100.0)
        };
        let report = Report::new(&[probe("a", 100.0), nothing]);
        let text = report.text(Screen::file(400));
        assert!(text.contains("1, 1 not measured"), "{text}");
        assert_eq!(serde_json::json!(report)["kinds"][0]["not_measured"], 1);
    }

    #[test]
    fn a_comparison_says_what_is_worse() {
        let (before, after) = (probe("a", 100.0), probe("b", 250.0));
        let text = comparison(&Comparison::new(&before, &after), "a.json", Screen::file(100));
        let expected = "\
Compared with a.json: 1 cost measured in both, 1 worse, 0 better.
worse: an isolated burst of 800 instructions, k: 100 ns [99 ns, 101 ns] before, 250 ns [249 ns,
251 ns] now
";
        assert_eq!(text, expected, "{text}");
    }
}
