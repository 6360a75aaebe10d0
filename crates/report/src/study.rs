//! `dimmer study`: mechanisms compared on workloads and processors. `docs/study-json.md` describes
//! the keys.

pub mod auto;
mod page;
mod reason;

use dimmer_policy::ways::WORTHWHILE;
use dimmer_study::Mechanism;
use dimmer_study::matrix::{Case, Cell, Plan, Runs};
use dimmer_study::ranking::{Interval, Place};
use dimmer_study::run::hold_ns;
use dimmer_study::sensitivity::{Parameter, Turn, Turns};
use serde::Serialize;

use crate::machine::MachineDescription;
use crate::number::{SPACE, counted, grouped, signed};
use crate::screen::Screen;
use crate::table::{Cell as Text, Table};

/// The document `dimmer/study/1`.
#[derive(Debug, Serialize)]
pub struct Document {
    schema: &'static str,
    /// Whether an interrupt ended the study before all of it was complete.
    partial: bool,
    /// Seeds of each cell that were asked for.
    seeds: u64,
    mechanisms: Vec<MechanismEntry>,
    scenarios: Vec<ScenarioEntry>,
    models: Vec<ModelEntry>,
    cases: Vec<CaseEntry>,
}

/// A mechanism.
#[derive(Debug, Serialize)]
struct MechanismEntry {
    name: &'static str,
    summary: &'static str,
    /// Whether no machine can have it today.
    is_bound: bool,
}

/// A workload.
#[derive(Debug, Serialize)]
struct ScenarioEntry {
    name: String,
    title: String,
    source: String,
}

/// A processor.
#[derive(Debug, Serialize)]
struct ModelEntry {
    name: String,
    title: String,
    /// How long a level is kept after its last use (µs).
    hold_us: Option<f64>,
}

/// All mechanisms on a scenario on a model.
#[derive(Debug, Serialize)]
struct CaseEntry {
    scenario: String,
    model: String,
    /// Whether an interrupt ended the study before all mechanisms were simulated.
    partial: bool,
    /// Why nothing can be simulated, if so.
    does_not_apply: Option<String>,
    /// Mechanisms that were simulated, the best first.
    ranking: Vec<Ranked>,
    /// The others.
    others: Vec<Other>,
    /// What would change the first place, if it was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sensitivity: Vec<TurnEntry>,
}

/// A mechanism that was simulated.
#[derive(Debug, Serialize)]
struct Ranked {
    mechanism: &'static str,
    /// Equal for mechanisms whose difference may be none; `None` if it has no rank.
    rank: Option<usize>,
    /// Runs, each with another seed.
    runs: usize,
    /// Whether no random number decided anything, as far as two seeds show.
    is_fixed: bool,
    /// Work done relative to `none`, less 1.
    gain: IntervalEntry,
    /// The longest 99th percentile of requests (µs), and relative to `none`, less 1.
    p99_us: Option<f64>,
    p99: Option<IntervalEntry>,
    /// Energy of all packages (J), and for the same work relative to `none`, less 1.
    joules: Option<f64>,
    energy: Option<IntervalEntry>,
    /// Why there is no energy.
    no_energy: Option<String>,
    /// Cores dedicated to moved calls, averaged over time.
    cores: f64,
    /// Time in which code ran above the clock of its level (s).
    below_s: f64,
    reason: String,
}

/// A mechanism that was not simulated.
#[derive(Debug, Serialize)]
struct Other {
    mechanism: &'static str,
    does_not_apply: String,
}

/// A mean and its 95 % interval.
#[derive(Clone, Copy, Debug, Serialize)]
struct IntervalEntry {
    mean: f64,
    ci95: Option<(f64, f64)>,
}

/// What changes the first place.
#[derive(Debug, Serialize)]
struct TurnEntry {
    parameter: &'static str,
    /// The factors nearest to 1 with which another mechanism is first, and that mechanism.
    changes: Vec<Change>,
}

/// A factor with which another mechanism is first.
#[derive(Debug, Serialize)]
struct Change {
    factor: f64,
    first: &'static str,
}

impl IntervalEntry {
    fn new(of: Interval) -> Self {
        Self { mean: of.mean, ci95: of.ci95 }
    }

    /// As a difference in percent, with the interval if that is wide enough to be seen.
    fn told(self) -> String {
        let mean = format!("{}{SPACE}%", signed(100.0 * self.mean, 2));
        match self.ci95 {
            None => format!("{mean} [no interval]"),
            Some((low, high)) if high - low < 2e-4 => mean,
            Some((low, high)) => {
                let [low, high] = [low, high].map(|end| grouped(100.0 * end, 2));
                format!("{mean} [{low},{SPACE}{high}]")
            }
        }
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

impl Ranked {
    fn new(place: &Place, runs: &Runs, none: &Runs, hold_ns: Option<f64>) -> Option<Self> {
        let first = runs.runs.first()?;
        let joules = runs.runs.iter().map(|run| run.joules.as_ref());
        Some(Self {
            mechanism: place.mechanism.name(),
            rank: place.rank,
            runs: runs.runs.len(),
            is_fixed: runs.is_fixed,
            gain: IntervalEntry::new(place.gain),
            p99_us: mean(runs.runs.iter().filter_map(|run| run.p99_us())),
            p99: place.p99.map(IntervalEntry::new),
            joules: mean(joules.clone().filter_map(|joules| joules.ok().copied())),
            energy: place.energy.map(IntervalEntry::new),
            no_energy: joules.clone().find_map(|joules| joules.err().cloned()),
            cores: mean(runs.runs.iter().map(|run| run.dedicated_cores))?,
            below_s: mean(runs.runs.iter().map(|run| run.below_s))?,
            reason: reason::of(place.mechanism, first, none.runs.first()?, hold_ns),
        })
    }
}

impl CaseEntry {
    /// `turns`: what changes its first place, as far as that was asked for and found.
    fn new(plan: &Plan, case: &Case, turns: &[(Parameter, Vec<Turn>)]) -> Self {
        let model = &plan.models[case.model];
        let hold_ns = hold_ns(&model.value);
        let none = case.runs(Mechanism::None);
        let places = case.ranking();
        let ranked =
            |place: &Place| Ranked::new(place, case.runs(place.mechanism)?, none?, hold_ns);
        let others = case.cells.iter().filter_map(|(mechanism, cell)| match cell {
            Cell::DoesNotApply(why) if case.refusal().is_none() => {
                Some(Other { mechanism: mechanism.name(), does_not_apply: why.clone() })
            }
            _ => None,
        });
        let turn = |(parameter, turns): &(Parameter, Vec<Turn>)| TurnEntry {
            parameter: parameter.name(),
            changes: turns
                .iter()
                .map(|turn| Change { factor: turn.factor, first: turn.first.name() })
                .collect(),
        };
        Self {
            scenario: plan.scenarios[case.scenario].name.clone(),
            model: model.name.clone(),
            partial: case.is_partial(),
            does_not_apply: case.refusal().map(str::to_owned),
            ranking: places.iter().filter_map(ranked).collect(),
            others: others.collect(),
            sensitivity: turns.iter().map(turn).collect(),
        }
    }

    /// Mechanisms that do not apply, those with the same reason together.
    fn refused(&self) -> Vec<(String, &str)> {
        let mut reasons: Vec<(String, &str)> = Vec::new();
        for Other { mechanism, does_not_apply } in &self.others {
            match reasons.iter_mut().find(|(_, why)| why == does_not_apply) {
                Some((names, _)) => *names += &format!(", {mechanism}"),
                None => reasons.push(((*mechanism).to_owned(), does_not_apply)),
            }
        }
        reasons
    }

    /// Whether the first place gains as much as is worth any action.
    fn is_worthwhile(&self) -> bool {
        self.best().first().is_some_and(|first| first.gain.mean >= WORTHWHILE)
    }

    /// Whether some mechanism may gain that much, or nothing: the seeds do not tell.
    fn is_open(&self) -> bool {
        let mut first = self.first().into_iter();
        !self.is_worthwhile() && first.any(|ranked| ranked.gain.mean >= WORTHWHILE)
    }

    /// The mechanisms in the first place; none while some are not simulated, which may be better.
    fn first(&self) -> Vec<&Ranked> {
        let is_first = |ranked: &&Ranked| !self.partial && ranked.rank == Some(1);
        self.ranking.iter().filter(is_first).collect()
    }

    /// The mechanisms in the first place: `none` alone if it is among them.
    fn best(&self) -> Vec<&Ranked> {
        let first = self.first();
        let none: Vec<&Ranked> =
            first.iter().copied().filter(|ranked| ranked.mechanism == "none").collect();
        if none.is_empty() { first } else { none }
    }
}

impl Document {
    /// `turns`: for each case, what changes its first place; empty if that was not asked for.
    #[must_use]
    pub fn new(plan: &Plan, cases: &[Case], turns: &[Turns]) -> Self {
        let mechanism = |mechanism: Mechanism| MechanismEntry {
            name: mechanism.name(),
            summary: mechanism.summary(),
            is_bound: mechanism.is_bound(),
        };
        let partial = cases.iter().any(Case::is_partial) || turns.iter().any(Option::is_none);
        let turns = turns.iter().map(|turns| turns.as_deref().unwrap_or_default());
        let turns = turns.chain(std::iter::repeat(&[][..]));
        Self {
            schema: "dimmer/study/1",
            partial,
            seeds: plan.seeds,
            mechanisms: plan.mechanisms().into_iter().map(mechanism).collect(),
            scenarios: plan
                .scenarios
                .iter()
                .map(|of| ScenarioEntry {
                    name: of.name.clone(),
                    title: of.value.name.clone(),
                    source: of.value.source.clone(),
                })
                .collect(),
            models: plan
                .models
                .iter()
                .map(|of| ModelEntry {
                    name: of.name.clone(),
                    title: of.value.identity.name.clone(),
                    hold_us: hold_ns(&of.value).map(|ns| ns / 1e3),
                })
                .collect(),
            cases: cases
                .iter()
                .zip(turns)
                .map(|(case, turns)| CaseEntry::new(plan, case, turns))
                .collect(),
        }
    }

    /// The study as one HTML page.
    #[must_use]
    pub fn page(&self, machine: &MachineDescription) -> String {
        page::render(self, machine)
    }

    fn told_partial(&self) -> Option<&'static str> {
        self.partial.then_some("PARTIAL: interrupted before all was complete.")
    }

    /// The study as text: the best mechanism of each case, and if there is one case, or `all` are
    /// wanted, the ranking of each.
    #[must_use]
    pub fn text(&self, screen: Screen, all: bool) -> String {
        let fit: Vec<&CaseEntry> =
            self.cases.iter().filter(|case| case.does_not_apply.is_none()).collect();
        let mut text = String::new();
        text.extend(self.told_partial().map(|told| format!("{told}\n\n")));
        if all || fit.len() == 1 {
            for case in &fit {
                text += &self.told_case(case, screen);
            }
        } else {
            text += &self.told_firsts(&fit, screen);
        }
        let refused: Vec<&CaseEntry> =
            self.cases.iter().filter(|case| case.does_not_apply.is_some()).collect();
        if all || refused.len() < 4 {
            for case in &refused {
                let why = case.does_not_apply.as_deref().unwrap_or_default();
                let told = format!("{} on {}: does not apply: {why}.", case.scenario, case.model);
                text += &format!("\n{}", screen.fill(&told));
            }
        } else {
            let pairs = counted(refused.len(), "other pair");
            let told = format!(
                "{pairs} of a scenario and a model do not apply: --verbose has the reasons."
            );
            text += &format!("\n{}", screen.fill(&told));
        }
        let seeds = counted(usize::try_from(self.seeds).unwrap_or(usize::MAX), "seed");
        let told = format!(
            "Gain: work that programs get done, more than under none with the same seed: mean and \
             95 % interval over {seeds}; one is enough where nothing is random. Mechanisms whose \
             difference may be none share a rank; bounds, and those under which code runs above \
             the clock of its level, have none."
        );
        text + "\n" + &screen.fill(&told)
    }

    /// The first places, scenario by scenario: those that are worth something with their reasons.
    fn told_firsts(&self, fit: &[&CaseEntry], screen: Screen) -> String {
        let mut text = String::new();
        for scenario in &self.scenarios {
            let of = fit.iter().filter(|case| case.scenario == scenario.name);
            let (worth, others): (Vec<&CaseEntry>, Vec<&CaseEntry>) =
                of.copied().partition(|case| case.is_worthwhile());
            if worth.is_empty() && others.is_empty() {
                continue;
            }
            text += &format!("{}\n", scenario.name);
            let mut table = Table::new(Vec::<&str>::new());
            for case in &worth {
                let best = case.best();
                let Some(first) = best.first() else { continue };
                let names: Vec<&str> = best.iter().map(|ranked| ranked.mechanism).collect();
                table.row([
                    Text::from(format!("  {}", case.model)),
                    names.join(", ").into(),
                    Text::right(first.gain.told()),
                    first.reason.as_str().into(),
                ]);
            }
            if !worth.is_empty() {
                text += &table.render(screen);
            }
            let percent = grouped(100.0 * WORTHWHILE, 0);
            let (open, others): (Vec<&CaseEntry>, Vec<&CaseEntry>) =
                others.into_iter().partition(|case| case.is_open());
            let (partial, others): (Vec<&CaseEntry>, Vec<&CaseEntry>) =
                others.into_iter().partition(|case| case.partial);
            for (cases, what) in [
                (open, format!("More --seeds must show whether {percent}{SPACE}% is gained")),
                (others, format!("Less than {percent}{SPACE}% is gained")),
                (partial, "Not complete".to_owned()),
            ] {
                if !cases.is_empty() {
                    let models: Vec<&str> = cases.iter().map(|case| case.model.as_str()).collect();
                    text += &screen.fill(&format!("  {what} on {}.", models.join(", ")));
                }
            }
        }
        text
    }

    fn told_case(&self, case: &CaseEntry, screen: Screen) -> String {
        let title = |name: &str| {
            self.models.iter().find(|model| model.name == name).map_or("", |model| &model.title)
        };
        let mut text =
            format!("\n{} on {} ({})\n\n", case.scenario, case.model, title(&case.model));
        let has_p99 = case.ranking.iter().any(|ranked| ranked.p99_us.is_some());
        let has_energy = case.ranking.iter().any(|ranked| ranked.joules.is_some());
        let mut header = vec!["Rank", "mechanism", "gain"];
        header.extend(has_p99.then_some("99 % within"));
        header.extend(has_energy.then_some("energy"));
        header.extend(["cores", "reason"]);
        let mut table = Table::new(header);
        for ranked in &case.ranking {
            let rank = ranked.rank.map_or("–".to_owned(), |rank| rank.to_string());
            let mut row =
                vec![Text::right(rank), ranked.mechanism.into(), Text::right(ranked.gain.told())];
            if has_p99 {
                row.push(Text::right(ranked.told_p99()));
            }
            if has_energy {
                row.push(Text::right(ranked.energy.map_or(String::new(), IntervalEntry::told)));
            }
            row.push(Text::right(grouped(ranked.cores, 2)));
            row.push(ranked.reason.as_str().into());
            table.row(row);
        }
        text += &table.render(screen);
        if case.partial {
            text += "\nNot complete: not all mechanisms were simulated.\n";
        }
        if let Some(why) = case.ranking.iter().find_map(|ranked| ranked.no_energy.as_ref()) {
            text += &format!("\n{}", screen.fill(&format!("No energy: {why}.")));
        }
        for turn in &case.sensitivity {
            text += &screen.fill(&turn.told());
        }
        if !case.others.is_empty() {
            text += "\n";
        }
        for (mechanisms, why) in case.refused() {
            text += &screen.fill(&format!("{mechanisms}: does not apply: {why}."));
        }
        text
    }
}

impl Ranked {
    /// The time within which 99 % of requests are done, and the difference to none.
    fn told_p99(&self) -> String {
        let Some(p99) = self.p99_us else { return String::new() };
        let difference = self.p99.map_or(0.0, |of| 100.0 * of.mean);
        format!("{}{SPACE}µs ({}{SPACE}%)", grouped(p99, 0), signed(difference, 1))
    }
}

impl TurnEntry {
    fn told(&self) -> String {
        let Self { parameter, changes } = self;
        let told = |change: &Change| {
            format!("{} first at {} times", change.first, grouped(change.factor, 2))
        };
        let told: Vec<String> = changes.iter().map(told).collect();
        if told.is_empty() {
            format!("{parameter}: no change of the first place within a factor of 8.")
        } else {
            format!("{parameter}: {}.", told.join("; "))
        }
    }
}

#[cfg(test)]
mod tests;
