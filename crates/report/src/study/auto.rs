//! `dimmer study --auto`: auto beside each mechanism alone. `docs/study-json.md` describes the
//! keys.

use dimmer_policy::ways::WORTHWHILE;
use dimmer_study::auto::{Case, Judgement, Length};
use dimmer_study::matrix::Plan;
use serde::Serialize;

use crate::number::{SPACE, counted, signed};
use crate::screen::Screen;
use crate::table::{Cell, Table};

/// The document `dimmer/study-auto/1`.
#[derive(Debug, Serialize)]
pub struct Document {
    schema: &'static str,
    /// Whether an interrupt ended the study before all cases were complete.
    partial: bool,
    /// Simulated time of each run, and the part of it that does not count (s).
    seconds: usize,
    learning_s: usize,
    cases: Vec<CaseEntry>,
}

/// A scenario on a model.
#[derive(Debug, Serialize)]
struct CaseEntry {
    scenario: String,
    model: String,
    /// Why nothing can be simulated, if so.
    does_not_apply: Option<String>,
    /// Mechanisms alone, the best first.
    alone: Vec<Alone>,
    /// Auto; `None` where it was not simulated.
    auto: Option<AutoEntry>,
}

/// A mechanism alone.
#[derive(Debug, Serialize)]
struct Alone {
    mechanism: &'static str,
    /// Work done relative to `none`, less 1.
    gain: f64,
}

/// What auto did.
#[derive(Debug, Serialize)]
struct AutoEntry {
    /// How many times shorter all times were than the document says.
    shorter: u64,
    candidates: Vec<&'static str>,
    /// Work done relative to `none`, less 1: after the learning time, and in the ten seconds with
    /// the least.
    gain: f64,
    worst: f64,
    chosen: &'static str,
    is_below: bool,
    /// Whether `gain` is within 1 % of the best mechanism alone, and `worst` of none.
    is_as_good_as_the_best: bool,
    is_never_worse: bool,
}

impl AutoEntry {
    fn new(of: &Judgement) -> Self {
        let (_, best) = of.best();
        Self {
            shorter: of.shorter,
            candidates: of.candidates.iter().map(|mechanism| mechanism.name()).collect(),
            gain: of.gain,
            worst: of.worst,
            chosen: of.chosen.name(),
            is_below: of.is_below,
            is_as_good_as_the_best: (1.0 + of.gain) / (1.0 + best) >= 1.0 - WORTHWHILE,
            is_never_worse: of.worst >= -WORTHWHILE,
        }
    }
}

impl CaseEntry {
    fn new(plan: &Plan, case: &Case) -> Self {
        let judged = case.judgement.as_ref();
        let judgement = judged.and_then(|judged| judged.as_ref().ok());
        let alone = judgement.into_iter().flat_map(|of| &of.alone);
        let mut alone: Vec<Alone> = alone
            .map(|(mechanism, gain)| Alone { mechanism: mechanism.name(), gain: *gain })
            .collect();
        alone.sort_by(|one, other| other.gain.total_cmp(&one.gain));
        Self {
            scenario: plan.scenarios[case.scenario].name.clone(),
            model: plan.models[case.model].name.clone(),
            does_not_apply: judged.and_then(|judged| judged.as_ref().err().cloned()),
            alone,
            auto: judgement.map(AutoEntry::new),
        }
    }

    /// Whether a mechanism alone gains what is worth any action, or auto falls short.
    fn is_listed(&self) -> bool {
        let gains = self.alone.first().is_some_and(|best| best.gain >= WORTHWHILE);
        let falls_short = |auto: &AutoEntry| {
            !auto.is_as_good_as_the_best || !auto.is_never_worse || auto.is_below
        };
        gains || self.auto.as_ref().is_some_and(falls_short)
    }
}

impl Document {
    /// What came of a plan's cases.
    #[must_use]
    pub fn new(plan: &Plan, length: Length, cases: &[Case]) -> Self {
        Self {
            schema: "dimmer/study-auto/1",
            partial: cases.iter().any(|case| case.judgement.is_none()),
            seconds: length.seconds,
            learning_s: length.learning,
            cases: cases.iter().map(|case| CaseEntry::new(plan, case)).collect(),
        }
    }

    /// The cases in which a mechanism gains something or auto falls short, and how many there are
    /// of each kind.
    #[must_use]
    pub fn text(&self, screen: Screen, all: bool) -> String {
        let mut table = Table::new([
            "scenario",
            "model",
            "best alone",
            "",
            "auto",
            "worst 10 s",
            "in force",
            "",
        ]);
        let percent = |part: f64| Cell::right(format!("{}{SPACE}%", signed(100.0 * part, 1)));
        for case in self.cases.iter().filter(|case| all || case.is_listed()) {
            let (Some(best), Some(auto)) = (case.alone.first(), &case.auto) else { continue };
            let mut short = Vec::new();
            short.extend((!auto.is_as_good_as_the_best).then_some("less than the best"));
            short.extend((!auto.is_never_worse).then_some("worse than none"));
            short.extend((auto.shorter > 1).then_some("a tenth of the time"));
            short.extend(auto.is_below.then_some("above the clock of its level"));
            table.row([
                Cell::from(case.scenario.as_str()),
                case.model.as_str().into(),
                best.mechanism.into(),
                percent(best.gain),
                percent(auto.gain),
                percent(auto.worst),
                auto.chosen.into(),
                short.join(", ").into(),
            ]);
        }
        let partial = "PARTIAL: interrupted before all cases were complete.\n\n";
        let mut text = if self.partial { partial.to_owned() } else { String::new() };
        text += &table.render(screen);
        let ran: Vec<&AutoEntry> =
            self.cases.iter().filter_map(|case| case.auto.as_ref()).collect();
        let count = |of: &dyn Fn(&AutoEntry) -> bool| ran.iter().filter(|auto| of(auto)).count();
        let told = format!(
            "Of {}: within 1{SPACE}% of the best mechanism alone {}, never more than 1{SPACE}% \
             below none over any ten seconds {}.",
            counted(ran.len(), "pair"),
            count(&|auto| auto.is_as_good_as_the_best),
            count(&|auto| auto.is_never_worse),
        );
        text += &format!("\n{}", screen.fill(&told));
        let told = format!(
            "Simulated time {}{SPACE}s, of which the first {} are for learning; seed 1. Gain: work \
             that programs get done, more than under none. Where a workload is too dense for that, \
             all times, those of auto too, are a tenth: {}. {} of a scenario and a model do not \
             apply.",
            self.seconds,
            self.learning_s,
            counted(count(&|auto| auto.shorter > 1), "pair"),
            counted(self.cases.iter().filter(|case| case.does_not_apply.is_some()).count(), "pair"),
        );
        text + &screen.fill(&told)
    }
}
