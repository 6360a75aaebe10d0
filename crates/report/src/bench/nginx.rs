//! The wire format of `dimmer bench nginx --json`, schema `dimmer/bench-nginx/1`;
//! `docs/bench-json.md` describes every key.

mod text;

use dimmer_bench::nginx::{CONNECTIONS, Cpus, DOCUMENT_BYTES, Run, Tls};
use dimmer_bench::pairs::{self, Verdict};
use dimmer_host::machine::Machine;
use dimmer_policy::ways;
use dimmer_probe::stats::{Estimate, Samples};
use serde::Serialize;

use super::ways::{MovedEntry, NARROW, OBSERVE, PLAIN, Regret, Turns, moves};
use crate::estimate::entry;
use crate::number::{SPACE, grouped, interval, percent};
use crate::screen::Screen;

/// The results of all turns.
#[derive(Debug)]
pub struct Measured {
    /// The runs of each way, one for each round, plain ones first.
    pub ways: Vec<Turns<Run>>,
    /// For each round, the share of CPU time that `observe` predicts narrower code to save, or why
    /// it makes no prediction.
    pub forecasts: Vec<Result<f64, String>>,
}

/// The document `dimmer/bench-nginx/1`.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    pub(super) processor: String,
    pub(super) hypervisor: Option<String>,
    kernel: Option<String>,
    pub(super) versions: Vec<String>,
    pub(super) cpus: CpusEntry,
    pub(super) cipher: &'static str,
    /// Whether connections are kept for many requests.
    pub(super) is_kept: bool,
    document_bytes: usize,
    connections: u32,
    pub(super) rounds: usize,
    pub(super) seconds: u32,
    pub(super) ways: Vec<Way>,
    pub(super) differences: Vec<Difference>,
    pub(super) forecast: Forecast,
    /// How far the policy server's CPU time is from that of the best of the other ways; `None`
    /// without a policy server.
    #[serde(skip_serializing_if = "Option::is_none")]
    regret: Option<Regret>,
    /// Failed requests, of all ways.
    pub(super) errors: u64,
    pub(super) conclusion: String,
}

#[derive(Debug, Serialize)]
pub(super) struct CpusEntry {
    pub(super) server: u32,
    pub(super) load: u32,
    pub(super) same_core: bool,
    /// The CPU that calls or threads were moved to, if any were.
    #[serde(skip_serializing_if = "Option::is_none")]
    away: Option<u32>,
}

/// One way to run the server.
#[derive(Debug, Serialize)]
pub(super) struct Way {
    pub(super) way: &'static str,
    #[serde(serialize_with = "entry")]
    pub(super) cpu_us_per_request: Option<Estimate>,
    #[serde(serialize_with = "entry")]
    pub(super) requests_per_s: Option<Estimate>,
    #[serde(serialize_with = "entry")]
    pub(super) busy_ratio: Option<Estimate>,
    pub(super) socket_errors: u64,
    pub(super) bad_responses: u64,
    /// Answers that were compared with the document, and how many of them differ.
    pub(super) checked: u64,
    pub(super) wrong: u64,
    /// Which calls were moved, for ways that move calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) moved: Option<MovedEntry>,
    runs: Vec<RunEntry>,
}

#[derive(Debug, Serialize)]
struct RunEntry {
    requests: u64,
    requests_per_s: f64,
    bytes_per_request: f64,
    cpu_s: f64,
    cpu_us_per_request: f64,
    busy_ratio: f64,
    socket_errors: u64,
    bad_responses: u64,
    /// The prediction of `observe` in percent; absent for all other ways.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_pct: Option<f64>,
}

/// The difference from the plain way to another one, round by round.
#[derive(Debug, Serialize)]
pub(super) struct Difference {
    from: &'static str,
    pub(super) to: &'static str,
    #[serde(serialize_with = "entry")]
    pub(super) cpu_per_request_pct: Option<Estimate>,
    #[serde(serialize_with = "entry")]
    pub(super) requests_per_s_pct: Option<Estimate>,
}

/// Prediction and result, in percent of the CPU time of a request.
#[derive(Debug, Serialize)]
pub(super) struct Forecast {
    #[serde(serialize_with = "entry")]
    pub(super) lost_pct: Option<Estimate>,
    #[serde(serialize_with = "entry")]
    pub(super) given_back_pct: Option<Estimate>,
    #[serde(serialize_with = "entry")]
    pub(super) lost_less_given_back_points: Option<Estimate>,
    /// The reason in the words of `observe` why there is no prediction.
    lost_unknown: Option<String>,
}

impl Report {
    /// `versions`: the versions of the programs; `seconds`: of each run.
    pub fn new(
        machine: &Machine,
        versions: &[String],
        (cpus, tls): (Cpus, Tls),
        seconds: u32,
        measured: &Measured,
    ) -> Self {
        let ways: Vec<Way> = (0..measured.ways.len()).map(|way| Way::new(way, measured)).collect();
        let differences: Vec<Difference> =
            (OBSERVE..measured.ways.len()).map(|to| Difference::new(to, measured)).collect();
        let forecast = Forecast::new(measured);
        let regret = Regret::new(&measured.ways, |_| true, Run::cpu_us_per_request);
        let mut conclusion = conclusion(&differences, &forecast, cpus);
        if let Some(regret) = &regret {
            conclusion = format!("{conclusion} {}", regret.text());
        }
        Self {
            schema: "dimmer/bench-nginx/1",
            processor: format!(
                "{}, {}",
                machine.identity.brand, machine.identity.microarchitecture
            ),
            hypervisor: machine.hypervisor.clone(),
            kernel: machine.kernel_release.clone(),
            versions: versions.to_vec(),
            cpus: CpusEntry {
                server: cpus.server.index(),
                load: cpus.load.index(),
                same_core: cpus.same_core,
                away: (measured.ways.iter())
                    .any(|turns| moves(turns.way).is_some())
                    .then(|| cpus.away.index()),
            },
            cipher: tls.cipher(),
            is_kept: tls != Tls::Rsa,
            document_bytes: DOCUMENT_BYTES,
            connections: CONNECTIONS,
            rounds: measured.ways[PLAIN].runs.len(),
            seconds,
            errors: ways.iter().map(Way::errors).sum(),
            conclusion,
            ways,
            differences,
            forecast,
            regret,
        }
    }
}

impl Way {
    fn new(way: usize, measured: &Measured) -> Self {
        let turns = &measured.ways[way];
        let runs = &turns.runs;
        let of = |value: fn(&Run) -> f64| runs.iter().map(value).collect::<Samples>().estimate();
        let forecast = |round: usize| {
            let forecast = measured.forecasts.get(round).and_then(|one| one.as_ref().ok());
            forecast.filter(|_| way == OBSERVE).map(|share| share * 100.0)
        };
        let entries = runs.iter().enumerate();
        Self {
            way: turns.way,
            cpu_us_per_request: of(Run::cpu_us_per_request),
            requests_per_s: of(|run| run.load.requests_per_s),
            busy_ratio: of(Run::busy_ratio),
            socket_errors: runs.iter().map(|run| run.load.socket_errors).sum(),
            bad_responses: runs.iter().map(|run| run.load.bad_responses).sum(),
            checked: runs.iter().map(|run| run.load.checked).sum(),
            wrong: runs.iter().map(|run| run.load.wrong).sum(),
            moved: MovedEntry::new(&turns.accounts),
            runs: entries.map(|(round, run)| RunEntry::new(run, forecast(round))).collect(),
        }
    }
}

impl Report {
    /// Whether any request failed, so that the results are worth nothing.
    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// The results as text.
    pub fn text(&self, screen: Screen) -> String {
        text::render(self, screen)
    }
}

impl Way {
    /// Requests that failed, or got another answer than the document.
    pub(super) fn errors(&self) -> u64 {
        self.socket_errors + self.bad_responses + self.wrong
    }
}

impl RunEntry {
    fn new(run: &Run, lost_pct: Option<f64>) -> Self {
        Self {
            requests: run.load.requests,
            requests_per_s: run.load.requests_per_s,
            bytes_per_request: run.load.bytes_per_request.round(),
            cpu_s: run.on_cpu.as_secs_f64(),
            cpu_us_per_request: (run.cpu_us_per_request() * 100.0).round() / 100.0,
            busy_ratio: (run.busy_ratio() * 1000.0).round() / 1000.0,
            socket_errors: run.load.socket_errors,
            bad_responses: run.load.bad_responses,
            lost_pct,
        }
    }
}

/// Pairs of a value of the plain way and of another one, one for each round.
fn paired(
    measured: &Measured,
    to: usize,
    value: fn(&Run) -> f64,
) -> impl Iterator<Item = (f64, f64)> + Clone {
    let pairs = measured.ways[PLAIN].runs.iter().zip(&measured.ways[to].runs);
    pairs.map(move |(plain, other)| (value(plain), value(other)))
}

impl Difference {
    fn new(to: usize, measured: &Measured) -> Self {
        Self {
            from: measured.ways[PLAIN].way,
            to: measured.ways[to].way,
            cpu_per_request_pct: pairs::change_pct(paired(measured, to, Run::cpu_us_per_request)),
            requests_per_s_pct: pairs::change_pct(paired(measured, to, |run| {
                run.load.requests_per_s
            })),
        }
    }
}

impl Forecast {
    fn new(measured: &Measured) -> Self {
        let lost = measured.forecasts.iter();
        let lost = lost.map(|share| share.as_ref().ok().map(|share| share * 100.0));
        let given_back = paired(measured, NARROW, Run::cpu_us_per_request);
        let given_back = given_back.map(|(plain, narrow)| (plain - narrow) / plain * 100.0);
        let both = lost.clone().zip(given_back.clone());
        let both = both.filter_map(|(lost, given_back)| Some((lost?, given_back)));
        Self {
            lost_pct: lost.flatten().collect::<Samples>().estimate(),
            given_back_pct: given_back.collect::<Samples>().estimate(),
            lost_less_given_back_points: pairs::difference(both),
            lost_unknown: measured.forecasts.iter().find_map(|one| one.clone().err()),
        }
    }
}

/// The conclusion in a few sentences. Spaces in numbers do not break.
fn conclusion(differences: &[Difference], forecast: &Forecast, cpus: Cpus) -> String {
    let of = |way: &str| {
        let of_it = differences.iter().find(|difference| difference.to == way);
        of_it.and_then(|difference| difference.cpu_per_request_pct)
    };
    let Some(narrow) = of("narrow") else { return "Nothing was measured.".to_owned() };
    let foretold = match (&forecast.lost_pct, forecast.lost_unknown.as_deref().unwrap_or_default())
    {
        (Some(lost), _) => format!("observe foretold {} less", told(lost)),
        (None, "") => "observe makes no forecast".to_owned(),
        (None, why) => format!("observe makes no forecast: {why}"),
    };
    let mut text = format!("{}; {foretold}.", came("Narrow", &narrow));
    // Observing is no way out.
    let others = differences.iter().filter(|one| !["observe", "narrow"].contains(&one.to));
    let others: Vec<(&str, Estimate)> =
        others.filter_map(|one| Some((one.to, one.cpu_per_request_pct?))).collect();
    for (way, change) in &others {
        let (first, rest) = way.split_at(1);
        let name = first.to_uppercase() + rest;
        let moved = moves(way).filter(|_| cpus.away == cpus.load);
        let where_to = moved.map_or_else(String::new, |how| {
            let what = if how.moves_threads() { "threads" } else { "calls" };
            format!(" (its {what} moved to the load's own CPU, as there is no third)")
        });
        text.push_str(&format!(" {}{where_to}.", came(&name, change)));
    }
    if !others.is_empty() {
        // A difference that exists may still be too small to be worth acting on.
        let less = |(_, change): &(&str, Estimate)| {
            matches!(pairs::verdict(change), Verdict::Less(_))
                && change.median <= -100.0 * ways::WORTHWHILE
        };
        let all = [("narrow", narrow)].into_iter().chain(others);
        let best = all.filter(less).min_by(|a, b| a.1.median.total_cmp(&b.1.median));
        text.push_str(&match best {
            Some((way, _)) => format!(" The best way out here is {way}."),
            None => format!(
                " The best way out here is to leave it: no other takes {} less.",
                percent(ways::WORTHWHILE)
            ),
        });
    }
    text
}

/// The result of a way, compared with the plain one.
fn came(way: &str, change: &Estimate) -> String {
    match pairs::verdict(change) {
        Verdict::Less(less) => format!("{way} takes {} less CPU time per request", told(&less)),
        Verdict::More(more) => format!("{way} takes {} more CPU time per request", told(&more)),
        Verdict::NoneLargerThan(bound) => {
            let bound = grouped((bound * 10.0).ceil() / 10.0, 1);
            format!("{way} makes no difference larger than {bound}{SPACE}% of CPU time per request")
        }
    }
}

fn told(estimate: &Estimate) -> String {
    let (median, range) = (grouped(estimate.median, 1), interval(estimate, 1));
    format!("{median}{SPACE}% {range}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dimmer_bench::nginx::Load;
    use dimmer_processor::units::CpuId;

    use super::*;

    fn estimate(low: f64, median: f64, high: f64) -> Estimate {
        Estimate { median, ci95: (low, high) }
    }

    #[track_caller]
    fn check(narrow: Estimate, lost: Result<Estimate, &str>, expected: &str) {
        let forecast = Forecast {
            lost_pct: lost.ok(),
            given_back_pct: None,
            lost_less_given_back_points: None,
            lost_unknown: lost.err().map(str::to_owned),
        };
        let found = conclusion(&[difference("narrow", narrow)], &forecast, CPUS);
        assert_eq!(found.replace(SPACE, " "), expected);
    }

    const NO_FORECAST: Forecast = Forecast {
        lost_pct: None,
        given_back_pct: None,
        lost_less_given_back_points: None,
        lost_unknown: None,
    };

    const CPUS: Cpus =
        Cpus { server: CpuId::new(1), load: CpuId::new(0), same_core: false, away: CpuId::new(0) };

    fn difference(to: &'static str, change: Estimate) -> Difference {
        let cpu_per_request_pct = Some(change);
        Difference { from: "plain", to, cpu_per_request_pct, requests_per_s_pct: None }
    }

    #[test]
    fn conclusion_names_the_best_way_out() {
        let found = |narrow, migrate| {
            let differences = [difference("narrow", narrow), difference("migrate", migrate)];
            conclusion(&differences, &NO_FORECAST, CPUS).replace(SPACE, " ")
        };
        let less = found(estimate(-3.0, -2.0, -1.0), estimate(-7.2, -6.1, -5.0));
        assert!(
            less.contains("Migrate takes 6.1 % [5.0, 7.2] less") && less.ends_with("is migrate."),
            "{less}"
        );
        let more = found(estimate(-1.0, 0.5, 2.0), estimate(5.0, 6.1, 7.2));
        assert!(
            more.contains(
                "6.1 % [5.0, 7.2] more CPU time per request (its calls moved to the load's own CPU"
            ),
            "{more}"
        );
        assert!(more.ends_with("is to leave it: no other takes 1.0 % less."), "{more}");
        let little = found(estimate(-2.1, -0.3, -0.2), estimate(5.0, 6.1, 7.2));
        assert!(little.ends_with("is to leave it: no other takes 1.0 % less."), "{little}");
    }

    #[test]
    fn conclusion_names_every_way_that_was_measured_but_observing() {
        let same = estimate(-0.5, 0.1, 0.5);
        let less = estimate(-4.0, -3.0, -2.0);
        for best in dimmer_launch::mechanism::ALL.map(|one| one.name) {
            let ways = dimmer_launch::mechanism::ALL.map(|one| one.name);
            let change = |way: &str| if way == best { less } else { same };
            let mut all = vec![difference("observe", estimate(-9.0, -8.0, -7.0))];
            all.extend(ways.map(|way| difference(way, change(way))));
            let found = conclusion(&all, &NO_FORECAST, CPUS);
            assert!(found.ends_with(&format!("The best way out here is {best}.")), "{found}");
            for way in ways {
                let name = way[..1].to_uppercase() + &way[1..];
                assert!(found.contains(&format!("{name} ")), "{way}: {found}");
            }
            assert!(!found.contains("Observe "), "{found}");
            assert_eq!(found.matches("its calls moved").count(), 3, "{found}");
            assert_eq!(found.matches("its threads moved").count(), 2, "{found}");
        }
    }

    #[test]
    fn conclusion_says_what_came_and_what_was_foretold() {
        check(
            estimate(-7.2, -6.1, -5.0),
            Ok(estimate(5.0, 5.2, 5.5)),
            "Narrow takes 6.1 % [5.0, 7.2] less CPU time per request; observe foretold 5.2 % [5.0, 5.5] less.",
        );
        check(
            estimate(0.5, 1.25, 2.0),
            Err(""),
            "Narrow takes 1.2 % [0.5, 2.0] more CPU time per request; observe makes no forecast.",
        );
        check(
            estimate(-1.0, 0.5, 2.01),
            Err("no model"),
            "Narrow makes no difference larger than 2.1 % of CPU time per request; observe makes no forecast: no model.",
        );
    }

    #[test]
    fn forecast_is_compared_in_the_rounds_that_have_one() {
        let runs = |us: &[u64]| -> Vec<Run> {
            let load = Load { requests: 1000, ..Load::default() };
            us.iter().map(|us| Run { load, on_cpu: Duration::from_millis(*us) }).collect()
        };
        let plain = runs(&[200, 100, 400]);
        let narrow = runs(&[180, 95, 380]);
        let named = ["plain", "observe", "narrow"].into_iter().zip([plain.clone(), plain, narrow]);
        let ways = named.map(|(way, runs)| Turns { way, runs, accounts: Vec::new() }).collect();
        let measured = Measured { ways, forecasts: vec![Ok(0.08), Err(String::new()), Ok(0.07)] };
        let forecast = Forecast::new(&measured);
        let near = |found: Option<Estimate>, expected: Estimate| {
            let found = found.unwrap();
            assert!((found.median - expected.median).abs() < 1e-9, "{found:?}");
            assert!((found.ci95.0 - expected.ci95.0).abs() < 1e-9, "{found:?}");
            assert!((found.ci95.1 - expected.ci95.1).abs() < 1e-9, "{found:?}");
        };
        near(forecast.lost_pct, estimate(7.0, 7.5, 8.0));
        near(forecast.given_back_pct, estimate(5.0, 5.0, 10.0));
        near(forecast.lost_less_given_back_points, estimate(-2.0, 0.0, 2.0));
        let difference = Difference::new(NARROW, &measured);
        near(difference.cpu_per_request_pct, estimate(-10.0, -5.0, -5.0));
    }
}
