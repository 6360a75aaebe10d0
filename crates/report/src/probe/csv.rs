//! Raw series as CSV, for plots and for statistics other than ours.
//!
//! One file for each mode, kernel and series; `docs/probe-json.md` lists the columns. Every row
//! starts with the key of its series, so that files can be joined.

use std::collections::BTreeMap;

use dimmer_probe::outcome::{
    CurvePoint, Detail, Downclock, Episode, Findings, Outcome, Quantity, Throttle, Throttling,
};
use dimmer_probe::stats::Estimate;

/// The first columns of every row.
const KEY: [&str; 4] = ["kernel", "cpu", "threads", "burst_instructions"];

/// Names of kernels are cut to this length in file names, which Linux limits to 255 bytes.
const LONGEST_NAME: usize = 200;

/// The content of each file, by its name.
pub(super) fn series(findings: &Findings) -> Result<BTreeMap<String, Vec<u8>>, csv::Error> {
    let mut tables = Tables::default();
    for outcome in &findings.outcomes {
        write_outcome(&mut tables, outcome)?;
    }
    let files = tables.files.into_iter();
    files
        .map(|(name, file)| {
            let bytes = file.into_inner().map_err(|error| error.into_error())?;
            Ok((name, bytes))
        })
        .collect()
}

/// The files being written, by name: outcomes of one mode and kernel share a file.
#[derive(Default)]
struct Tables {
    files: BTreeMap<String, csv::Writer<Vec<u8>>>,
}

impl Tables {
    fn append(
        &mut self,
        outcome: &Outcome,
        series: &str,
        header: &[&str],
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> csv::Result<()> {
        let name = file_name(outcome, series);
        let key = [
            outcome.kernel.clone(),
            outcome.cpu.to_string(),
            outcome.threads.to_string(),
            burst_instructions(&outcome.detail).map_or_else(String::new, |n| n.to_string()),
        ];
        let mut rows = rows.into_iter().peekable();
        if rows.peek().is_none() {
            return Ok(());
        }
        let file = match self.files.entry(name) {
            std::collections::btree_map::Entry::Occupied(open) => open.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => {
                let mut file = csv::Writer::from_writer(Vec::new());
                file.write_record(KEY.iter().chain(header))?;
                new.insert(file)
            }
        };
        for row in rows {
            file.write_record(key.iter().chain(&row))?;
        }
        Ok(())
    }
}

/// Length of the bursts; `None` for modes without bursts of one length.
fn burst_instructions(detail: &Detail) -> Option<u32> {
    match detail {
        Detail::Episode(episode) => Some(episode.burst_instructions),
        Detail::Recurrence(recurrence) => Some(recurrence.burst_instructions),
        _ => None,
    }
}

/// `<mode>-<kernel>-<series>.csv`. Characters that are problematic in file names are replaced: a
/// mixture `a:1+b:15` becomes `a.1_b.15`.
fn file_name(outcome: &Outcome, series: &str) -> String {
    let plain = |character| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' => character,
        ':' => '.',
        _ => '_',
    };
    let kernel: String = outcome.kernel.chars().map(plain).take(LONGEST_NAME).collect();
    format!("{}-{kernel}-{series}.csv", outcome.mode)
}

fn write_outcome(tables: &mut Tables, outcome: &Outcome) -> csv::Result<()> {
    write_samples(tables, outcome)?;
    match &outcome.detail {
        Detail::Episode(episode) => write_curve(tables, outcome, &episode.curve),
        Detail::Downclock(downclock) => write_downclock(tables, outcome, downclock),
        Detail::Throttle(throttle) => {
            let rows = throttle.throughput.iter().map(|(at, per_cycle)| texts(&[*at, *per_cycle]));
            let header = ["instructions", "instructions_per_cycle"];
            tables.append(outcome, "throughput", &header, rows)
        }
        Detail::Instructions(instructions) => {
            let rows = instructions.response.iter().map(|(instructions, share, bursts)| {
                vec![instructions.to_string(), share.to_string(), bursts.to_string()]
            });
            tables.append(outcome, "response", &["instructions", "effect_share", "bursts"], rows)
        }
        Detail::Recurrence(recurrence) => {
            let rows = recurrence.gaps.iter().map(|gap| {
                let mut row = vec![gap.gap_us.to_string()];
                row.extend(estimate(&gap.slowdown_pct));
                row.push(gap.stall_share.to_string());
                row.extend(estimate(&gap.burst_ns));
                row.extend([gap.kept_share, gap.kept_after_ms].map(or_empty));
                row.push(gap.clock_ratio.to_string());
                row
            });
            let header = [
                "gap_us",
                "slowdown_pct",
                "slowdown_pct_low",
                "slowdown_pct_high",
                "stall_share",
                "burst_ns",
                "burst_ns_low",
                "burst_ns_high",
                "kept_share",
                "kept_after_ms",
                "clock_ratio",
            ];
            tables.append(outcome, "gaps", &header, rows)
        }
        Detail::Levels(levels) => {
            let mut row = vec![levels.active.to_string()];
            row.extend(estimate(&levels.clock_ghz));
            row.extend(estimate(&levels.clock_ratio));
            row.extend(estimate(&levels.instructions_per_cycle));
            let header = [
                "active",
                "clock_ghz",
                "clock_ghz_low",
                "clock_ghz_high",
                "clock_ratio",
                "clock_ratio_low",
                "clock_ratio_high",
                "instructions_per_cycle",
                "instructions_per_cycle_low",
                "instructions_per_cycle_high",
            ];
            tables.append(outcome, "levels", &header, [row])
        }
    }
}

/// Every quantity of an outcome that has samples, by its name in the JSON.
fn quantities(detail: &Detail) -> Vec<(&'static str, Option<&Quantity>)> {
    match detail {
        Detail::Episode(episode) => episode_quantities(episode),
        Detail::Downclock(downclock) => vec![
            ("settle_ns", downclock.settle_ns.as_ref()),
            ("lowest_after_ns", downclock.lowest.as_ref().map(|low| &low.after_ns)),
            ("lowest_ratio", downclock.lowest.as_ref().map(|low| &low.clock_ratio)),
            ("stall_ns", downclock.stall_ns.as_ref()),
            ("clock_ratio", Some(&downclock.clock_ratio)),
            ("instructions_per_cycle", Some(&downclock.instructions_per_cycle)),
            ("throttled_ns", throttled_ns(downclock.throttling.as_ref())),
        ],
        Detail::Throttle(Throttle {
            pre_throttle_ns,
            pre_throttle_instructions,
            throttling,
            ..
        }) => vec![
            ("pre_throttle_ns", pre_throttle_ns.as_ref()),
            ("pre_throttle_instructions", pre_throttle_instructions.as_ref()),
            ("throttled_ns", throttled_ns(throttling.as_ref())),
        ],
        Detail::Instructions(_) | Detail::Recurrence(_) | Detail::Levels(_) => Vec::new(),
    }
}

fn episode_quantities(episode: &Episode) -> Vec<(&'static str, Option<&Quantity>)> {
    vec![
        ("burst_ns", Some(&episode.burst_ns)),
        ("extra_ns", Some(&episode.extra_ns)),
        ("clock_ratio_after", Some(&episode.clock_ratio_after)),
        ("issue_ratio_after", Some(&episode.issue_ratio_after)),
        ("release_delay_ns", episode.release_delay_ns.as_ref()),
        ("release_stall_ns", episode.release_stall_ns.as_ref()),
        ("throttled_ns", throttled_ns(episode.throttling.as_ref())),
    ]
}

fn throttled_ns(throttling: Option<&Throttling>) -> Option<&Quantity> {
    throttling.map(|throttling| &throttling.throttled_ns)
}

fn write_samples(tables: &mut Tables, outcome: &Outcome) -> csv::Result<()> {
    let own = outcome.cpu.to_string();
    let quantities = quantities(&outcome.detail);
    let mut rows = Vec::new();
    for (name, quantity) in quantities {
        let samples = quantity.iter().flat_map(|quantity| quantity.samples.values());
        rows.extend(samples.map(|value| vec![own.clone(), name.to_owned(), value.to_string()]));
    }
    if let Detail::Episode(episode) = &outcome.detail {
        for neighbour in &episode.neighbours {
            let at = neighbour.cpu.to_string();
            let samples = neighbour.extra_ns.samples.values();
            let row = |value: &f64| vec![at.clone(), "extra_ns".to_owned(), value.to_string()];
            rows.extend(samples.iter().map(row));
        }
    }
    tables.append(outcome, "samples", &["observed_cpu", "quantity", "value"], rows)
}

fn write_curve(tables: &mut Tables, outcome: &Outcome, curve: &[CurvePoint]) -> csv::Result<()> {
    let rows = curve.iter().map(|point| {
        let mut row = vec![point.at_ns.to_string()];
        row.extend(estimate(&point.clock_ratio));
        row.push(point.stall_share.to_string());
        row
    });
    let header = ["at_ns", "clock_ratio", "clock_ratio_low", "clock_ratio_high", "stall_share"];
    tables.append(outcome, "curve", &header, rows)
}

fn write_downclock(
    tables: &mut Tables,
    outcome: &Outcome,
    downclock: &Downclock,
) -> csv::Result<()> {
    write_curve(tables, outcome, &downclock.curve)?;
    let throughput = downclock.throughput.iter().map(|(at, per_cycle)| texts(&[*at, *per_cycle]));
    tables.append(outcome, "throughput", &["at_ns", "instructions_per_cycle"], throughput)?;
    let steps = downclock.steps.iter();
    let steps =
        steps.map(|step| texts(&[step.at_ns, step.clock_ratio, step.instructions_per_cycle]));
    tables.append(outcome, "steps", &["at_ns", "clock_ratio", "instructions_per_cycle"], steps)
}

fn texts(values: &[f64]) -> Vec<String> {
    values.iter().map(f64::to_string).collect()
}

/// A number, or an empty text.
fn or_empty(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// The median and the ends of its interval.
fn estimate(estimate: &Estimate) -> Vec<String> {
    texts(&[estimate.median, estimate.ci95.0, estimate.ci95.1])
}
