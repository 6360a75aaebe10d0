//! The results of `dimmer phases`: a program's control-flow graph as text, JSON, SVG and page.
//! `docs/phases-json.md` describes the document.

mod choice;
mod layout;
mod page;
mod svg;
mod text;
mod words;

use dimmer_policy::phases::{
    Core, Counts, Finding, Graph, Mark, Metric, Profile, Scale, Threshold, TimeShare,
};
use dimmer_processor::units::Nanos;
use serde::Serialize;

pub use self::choice::chosen;
pub use self::words::meaning;
use crate::machine::MachineDescription;
use crate::screen::Screen;

/// What is shown of a program.
#[derive(Clone, Debug)]
pub struct Found {
    /// The graph. It has an edge.
    pub graph: Graph,
    /// What the profile, the threshold and the colors are by.
    pub metric: Metric,
    /// The value of each mark, by the metric.
    pub profile: Profile,
    /// Divides the marks; `None` if no two of them differ.
    pub threshold: Option<Threshold>,
    /// Where the threshold comes from.
    pub by: By,
    /// The time of a migration there and back; `None` if it is not known.
    pub migration: Option<Nanos>,
    /// What is wrong with the marks.
    pub findings: Vec<Finding>,
}

/// Where a threshold comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum By {
    /// It is in the middle of the largest gap between values.
    Gap,
    /// The user chose it.
    Hand,
    /// It is that of least energy on a processor.
    Energy(Solved),
}

/// What a program takes with the threshold of least energy.
#[derive(Clone, Debug, PartialEq)]
pub struct Solved {
    /// The processor.
    pub model: String,
    /// The P-state of the fast core.
    pub fast: String,
    /// The P-state of the slow core.
    pub slow: String,
    /// The time over that on the fast core alone.
    pub time_ratio: f64,
    /// The energy over that on the fast core alone.
    pub energy_ratio: f64,
}

/// A program's graph, and what was found out from it.
#[derive(Clone, Debug)]
pub struct PhaseGraph {
    found: Found,
    shares: Option<TimeShare>,
    scale: Option<Scale>,
}

impl PhaseGraph {
    /// Takes what is shown.
    pub fn new(found: Found) -> Self {
        let shares = TimeShare::of(&found.graph);
        let scale = Scale::of(&found.graph, found.metric);
        Self { found, shares, scale }
    }

    /// The tables and the assessment as text.
    pub fn text(&self, screen: Screen) -> String {
        text::render(self, screen)
    }

    /// The document `dimmer/phases/1`.
    pub fn document(&self) -> impl Serialize + use<> {
        Document::new(self)
    }

    /// The graph as an SVG file, which fetches and executes nothing.
    pub fn svg(&self) -> String {
        svg::file(self)
    }

    /// The graph and its tables as an HTML page, which fetches and executes nothing.
    pub fn page(&self, machine: &MachineDescription) -> String {
        page::render(self, machine)
    }

    /// The core for a mark; `None` if it has no value, or there is no threshold.
    fn core(&self, mark: &Mark) -> Option<Core> {
        Some(self.found.threshold?.core(self.found.profile.value(mark)?))
    }

    /// The number of marks for this core.
    fn marks_for(&self, core: Core) -> usize {
        self.found.profile.values().filter(|(mark, _)| self.core(mark) == Some(core)).count()
    }

    /// The share of an edge; 0 if it is not known.
    fn share(&self, counts: &Counts) -> f64 {
        self.shares.map_or(0.0, |shares| shares.of_edge(counts))
    }

    /// Whether some edge has a value.
    fn has_counters(&self) -> bool {
        self.found.graph.edges().any(|edge| self.found.metric.of(edge.2).is_some())
    }

    /// The edges that take most of the time, at most `most`: by their calls where nothing is known
    /// of their times. In the order of their names.
    fn longest(&self, most: usize) -> Vec<(&Mark, &Mark, &Counts)> {
        let mut edges: Vec<_> = self.found.graph.edges().collect();
        edges.sort_by(|(_, _, a), (_, _, b)| {
            self.share(b).total_cmp(&self.share(a)).then(b.calls.cmp(&a.calls))
        });
        edges.truncate(most);
        edges.sort_by_key(|(start, end, _)| (*start, *end));
        edges
    }
}

#[derive(Debug, Serialize)]
struct Document {
    schema: &'static str,
    metric: &'static str,
    share_of: Option<&'static str>,
    migration_ns: Option<u64>,
    threshold: Option<ThresholdDocument>,
    edges: Vec<EdgeDocument>,
    marks: Vec<MarkDocument>,
    findings: Vec<FindingDocument>,
}

#[derive(Debug, Serialize)]
struct ThresholdDocument {
    value: f64,
    by: &'static str,
    energy: Option<EnergyDocument>,
}

#[derive(Debug, Serialize)]
struct EnergyDocument {
    model: String,
    fast: String,
    slow: String,
    time_ratio: f64,
    energy_ratio: f64,
}

#[derive(Debug, Serialize)]
struct EdgeDocument {
    start: String,
    end: String,
    calls: u64,
    time_ns: Option<u64>,
    instructions: Option<u64>,
    cycles: Option<u64>,
    l2_latency: Option<u64>,
    l3_misses: Option<u64>,
    share: Option<f64>,
    l3_miss_rate: Option<f64>,
    l2_rate: Option<f64>,
    cpi: Option<f64>,
}

#[derive(Debug, Serialize)]
struct MarkDocument {
    mark: String,
    value: Option<f64>,
    core: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct FindingDocument {
    finding: &'static str,
    start: String,
    end: String,
    add_mark: bool,
    words: String,
}

impl Document {
    fn new(shown: &PhaseGraph) -> Self {
        let shares = shown.shares;
        let edge = |(start, end, counts): (&Mark, &Mark, &Counts)| EdgeDocument {
            start: start.to_string(),
            end: end.to_string(),
            calls: counts.calls,
            time_ns: counts.spent.time.map(Nanos::ns),
            instructions: counts.spent.instructions,
            cycles: counts.spent.cycles,
            l2_latency: counts.spent.l2_latency,
            l3_misses: counts.spent.l3_misses,
            share: shares.map(|shares| shares.of_edge(counts)),
            l3_miss_rate: Metric::L3MissRate.of(counts),
            l2_rate: Metric::L2Rate.of(counts),
            cpi: Metric::Cpi.of(counts),
        };
        let mark = |mark: &Mark| MarkDocument {
            mark: mark.to_string(),
            value: shown.found.profile.value(mark),
            core: shown.core(mark).map(words::core),
        };
        let finding = |finding: &Finding| FindingDocument {
            finding: words::kind(finding),
            start: finding.edge().0.to_string(),
            end: finding.edge().1.to_string(),
            add_mark: finding.add_mark_between().is_some(),
            words: Screen::file(0).shown(&words::sentence(finding, shown)),
        };
        Self {
            schema: "dimmer/phases/1",
            metric: words::key(shown.found.metric),
            share_of: shares.map(|one| if one.is_of_cycles() { "cycles" } else { "time" }),
            migration_ns: shown.found.migration.map(Nanos::ns),
            threshold: shown
                .found
                .threshold
                .map(|threshold| ThresholdDocument::new(threshold, &shown.found.by)),
            edges: shown.found.graph.edges().map(edge).collect(),
            marks: shown.found.graph.marks().into_iter().map(mark).collect(),
            findings: shown.found.findings.iter().map(finding).collect(),
        }
    }
}

impl ThresholdDocument {
    fn new(threshold: Threshold, by: &By) -> Self {
        let (by, energy) = match by {
            By::Gap => ("gap", None),
            By::Hand => ("hand", None),
            By::Energy(solved) => ("energy", Some(EnergyDocument::new(solved.clone()))),
        };
        Self { value: threshold.value(), by, energy }
    }
}

impl EnergyDocument {
    fn new(solved: Solved) -> Self {
        let Solved { model, fast, slow, time_ratio, energy_ratio } = solved;
        Self { model, fast, slow, time_ratio, energy_ratio }
    }
}

#[cfg(test)]
mod tests;
