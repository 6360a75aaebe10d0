//! The wire format of `dimmer probe --json`, schema `dimmer/probe/2`; `docs/probe-json.md`
//! describes every key.
//!
//! Keys are in the order of the fields here, and numbers have six significant digits, so that the
//! same findings always give the same bytes.

use std::collections::BTreeMap;

use dimmer_probe::outcome::{
    CurvePoint, Detail, Findings, Instrument, Neighbour, Outcome, Quantity, Relation, Skipped,
    Surroundings, Throttling,
};
use dimmer_probe::program::Counts;
use dimmer_probe::stats::Estimate;
use serde::Serialize;

use super::verdict;
use crate::estimate::{EstimateEntry, rounded};
use crate::machine::MachineDescription;
use crate::number::SPACE;

/// The document of the findings.
pub(super) fn document<'a>(findings: &'a Findings, machine: &'a MachineDescription) -> Report<'a> {
    Report {
        schema: "dimmer/probe/2",
        verdict: VerdictEntry::of(findings),
        machine: machine.into(),
        tsc_ghz: findings.tsc_ghz,
        instrument: (&findings.instrument).into(),
        surroundings: findings.surroundings.as_ref().map(SurroundingsEntry::from),
        results: findings.outcomes.iter().map(ResultEntry::from).collect(),
        skipped: findings.skipped.iter().map(SkippedEntry::from).collect(),
        interrupted: findings.interrupted,
    }
}

/// What `dimmer probe --json` writes.
#[derive(Serialize)]
pub(super) struct Report<'a> {
    schema: &'static str,
    verdict: VerdictEntry,
    machine: MachineEntry<'a>,
    tsc_ghz: f64,
    instrument: InstrumentEntry,
    surroundings: Option<SurroundingsEntry>,
    results: Vec<ResultEntry<'a>>,
    skipped: Vec<SkippedEntry<'a>>,
    interrupted: bool,
}

#[derive(Serialize)]
struct VerdictEntry {
    effect: &'static str,
    title: &'static str,
    sentences: Vec<String>,
    break_even: Option<BreakEvenEntry>,
    worst_pct: Option<f64>,
    next: &'static str,
}

#[derive(Serialize)]
struct BreakEvenEntry {
    bursts_per_second: f64,
    is_bound: bool,
    burst_instructions: u32,
}

impl VerdictEntry {
    fn of(findings: &Findings) -> Self {
        let verdict = verdict::of(findings);
        // A script that searches the text for "35.0 %" types a plain space.
        let plain = |text: &String| text.replace(SPACE, " ");
        Self {
            effect: verdict.effect.name(),
            title: verdict.title,
            next: verdict.next(),
            sentences: verdict.sentences.iter().map(plain).collect(),
            break_even: verdict.break_even.map(|even| BreakEvenEntry {
                bursts_per_second: rounded(even.per_second),
                is_bound: even.is_bound,
                burst_instructions: even.instructions,
            }),
            worst_pct: verdict.worst_pct.map(rounded),
        }
    }
}

#[derive(Serialize)]
pub(super) struct MachineEntry<'a> {
    vendor: &'a str,
    brand: &'a str,
    microarchitecture: &'a str,
    microcode: Option<&'a str>,
    hypervisor: Option<&'a str>,
    kernel: Option<&'a str>,
    cpus: usize,
    time: &'a str,
    dimmer_version: &'a str,
    command: &'a str,
}

impl<'a> From<&'a MachineDescription> for MachineEntry<'a> {
    fn from(machine: &'a MachineDescription) -> Self {
        Self {
            vendor: &machine.vendor,
            brand: &machine.brand,
            microarchitecture: &machine.microarchitecture,
            microcode: machine.microcode.as_deref(),
            hypervisor: machine.hypervisor.as_deref(),
            kernel: machine.kernel.as_deref(),
            cpus: machine.cpus,
            time: &machine.time,
            dimmer_version: &machine.version,
            command: &machine.command,
        }
    }
}

#[derive(Serialize)]
struct InstrumentEntry {
    multiplication_cycles: u32,
    nominal_ghz: f64,
    issue_per_cycle: f64,
    resolution_ns: f64,
    overhead_ns: f64,
    window_ns: f64,
}

impl From<&Instrument> for InstrumentEntry {
    fn from(instrument: &Instrument) -> Self {
        Self {
            multiplication_cycles: instrument.multiplication_cycles,
            nominal_ghz: rounded(instrument.nominal_ghz),
            issue_per_cycle: rounded(instrument.issue_per_cycle),
            resolution_ns: rounded(instrument.resolution_ns),
            overhead_ns: rounded(instrument.overhead_ns),
            window_ns: rounded(instrument.window_ns),
        }
    }
}

#[derive(Serialize)]
struct SurroundingsEntry {
    clock_ghz: QuantityEntry,
    busy_sibling_share: f64,
}

impl From<&Surroundings> for SurroundingsEntry {
    fn from(surroundings: &Surroundings) -> Self {
        Self {
            clock_ghz: (&surroundings.clock_ghz).into(),
            busy_sibling_share: rounded(surroundings.busy_sibling_share),
        }
    }
}

#[derive(Serialize)]
struct SkippedEntry<'a> {
    mode: Option<&'static str>,
    kernel: &'a str,
    reason: &'a str,
}

impl<'a> From<&'a Skipped> for SkippedEntry<'a> {
    fn from(skipped: &'a Skipped) -> Self {
        Self {
            mode: skipped.mode.map(dimmer_probe::mode::Mode::name),
            kernel: &skipped.kernel,
            reason: &skipped.reason,
        }
    }
}

#[derive(Serialize)]
struct ResultEntry<'a> {
    mode: &'static str,
    kernel: &'a str,
    class: &'static str,
    cpu: u32,
    threads: usize,
    repetitions: usize,
    source: &'static str,
    effect: bool,
    bound_ns: f64,
    horizon_ns: f64,
    disturbed_windows: usize,
    stolen_windows: usize,
    preemptions: u64,
    pmu: Option<PmuEntry>,
    #[serde(flatten)]
    detail: DetailEntry<'a>,
}

/// The values of performance counters during the timing.
#[derive(Serialize)]
struct PmuEntry {
    counted_ns: f64,
    clock_ghz: Option<f64>,
    events: BTreeMap<&'static str, u64>,
}

impl From<&Counts> for PmuEntry {
    fn from(counts: &Counts) -> Self {
        let cycles = counts.of("cycles").filter(|_| counts.ns > 0.0);
        Self {
            counted_ns: rounded(counts.ns),
            clock_ghz: cycles.map(|cycles| rounded(cycles as f64 / counts.ns)),
            events: counts.events.iter().copied().collect(),
        }
    }
}

impl<'a> From<&'a Outcome> for ResultEntry<'a> {
    fn from(outcome: &'a Outcome) -> Self {
        Self {
            mode: outcome.mode.name(),
            kernel: &outcome.kernel,
            class: outcome.class.name(),
            cpu: outcome.cpu.index(),
            threads: outcome.threads,
            repetitions: outcome.repetitions,
            source: "timing",
            effect: outcome.effect,
            bound_ns: rounded(outcome.bound_ns),
            horizon_ns: rounded(outcome.horizon_ns),
            disturbed_windows: outcome.disturbed_windows,
            stolen_windows: outcome.stolen_windows,
            preemptions: outcome.preemptions,
            pmu: outcome.counts.as_ref().map(PmuEntry::from),
            detail: (&outcome.detail).into(),
        }
    }
}

/// An estimate with the spread of the samples.
#[derive(Serialize)]
pub(super) struct QuantityEntry {
    #[serde(flatten)]
    estimate: EstimateEntry,
    p5: Option<f64>,
    pub(super) p25: Option<f64>,
    pub(super) p75: Option<f64>,
    pub(super) p95: Option<f64>,
}

impl QuantityEntry {
    pub(super) fn estimate(&self) -> Estimate {
        self.estimate.estimate()
    }
}

impl From<&Quantity> for QuantityEntry {
    fn from(quantity: &Quantity) -> Self {
        let quantile = |share| quantity.samples.quantile(share).map(rounded);
        Self {
            estimate: quantity.estimate.into(),
            p5: quantile(0.05),
            p25: quantile(0.25),
            p75: quantile(0.75),
            p95: quantile(0.95),
        }
    }
}

fn optional(quantity: Option<&Quantity>) -> Option<QuantityEntry> {
    quantity.map(QuantityEntry::from)
}

#[derive(Serialize)]
struct ThrottlingEntry {
    throttled_ns: Option<QuantityEntry>,
    throttle_factor: Option<EstimateEntry>,
}

impl From<Option<&Throttling>> for ThrottlingEntry {
    fn from(throttling: Option<&Throttling>) -> Self {
        Self {
            throttled_ns: throttling.map(|throttling| (&throttling.throttled_ns).into()),
            throttle_factor: throttling.map(|throttling| throttling.throttle_factor.into()),
        }
    }
}

#[derive(Serialize)]
struct CurveEntry {
    at_ns: f64,
    clock_ratio: EstimateEntry,
    stall_share: f64,
}

fn curve(points: &[CurvePoint]) -> Vec<CurveEntry> {
    let entry = |point: &CurvePoint| CurveEntry {
        at_ns: rounded(point.at_ns),
        clock_ratio: point.clock_ratio.into(),
        stall_share: rounded(point.stall_share),
    };
    points.iter().map(entry).collect()
}

#[derive(Serialize)]
struct NeighbourEntry {
    cpu: u32,
    relation: &'static str,
    effect: bool,
    extra_ns: QuantityEntry,
}

impl From<&Neighbour> for NeighbourEntry {
    fn from(neighbour: &Neighbour) -> Self {
        Self {
            cpu: neighbour.cpu.index(),
            relation: match neighbour.relation {
                Relation::OtherCore => "other-core",
                Relation::Sibling => "sibling",
            },
            effect: neighbour.effect,
            extra_ns: (&neighbour.extra_ns).into(),
        }
    }
}

#[derive(Serialize)]
struct StepEntry {
    at_ns: f64,
    clock_ratio: f64,
    instructions_per_cycle: f64,
}

#[derive(Serialize)]
struct TimedThroughputEntry {
    at_ns: f64,
    instructions_per_cycle: f64,
}

#[derive(Serialize)]
struct CountedThroughputEntry {
    instructions: f64,
    instructions_per_cycle: f64,
}

#[derive(Serialize)]
struct ResponseEntry {
    instructions: u32,
    effect_share: f64,
    bursts: usize,
}

#[derive(Serialize)]
struct QuantileEntry {
    burst_share: f64,
    instructions: f64,
}

#[derive(Serialize)]
struct GapEntry {
    gap_us: f64,
    slowdown_pct: EstimateEntry,
    stall_share: f64,
    burst_ns: EstimateEntry,
    kept_share: Option<f64>,
    kept_after_ms: Option<f64>,
    clock_ratio: f64,
}

#[derive(Serialize)]
#[serde(untagged)]
enum DetailEntry<'a> {
    Episode {
        burst_instructions: u32,
        quiet_ns: f64,
        burst_ns: QuantityEntry,
        effect_share: Option<EstimateEntry>,
        extra_ns: QuantityEntry,
        mean_extra_ns: Option<EstimateEntry>,
        clock_ratio_after: QuantityEntry,
        issue_ratio_after: QuantityEntry,
        release_delay_ns: Option<QuantityEntry>,
        release_stall_ns: Option<QuantityEntry>,
        #[serde(flatten)]
        throttling: ThrottlingEntry,
        neighbours: Vec<NeighbourEntry>,
        curve: Vec<CurveEntry>,
    },
    Downclock {
        observed_ns: f64,
        effect_share: Option<EstimateEntry>,
        settle_ns: Option<QuantityEntry>,
        lowest_after_ns: Option<QuantityEntry>,
        lowest_ratio: Option<QuantityEntry>,
        stall_ns: Option<QuantityEntry>,
        clock_ratio: QuantityEntry,
        instructions_per_cycle: QuantityEntry,
        #[serde(flatten)]
        throttling: ThrottlingEntry,
        steps: Vec<StepEntry>,
        curve: Vec<CurveEntry>,
        throughput: Vec<TimedThroughputEntry>,
    },
    Throttle {
        pre_throttle_ns: Option<QuantityEntry>,
        pre_throttle_instructions: Option<QuantityEntry>,
        #[serde(flatten)]
        throttling: ThrottlingEntry,
        throughput: Vec<CountedThroughputEntry>,
    },
    Instructions {
        required_instructions: Option<EstimateEntry>,
        quantiles: Vec<QuantileEntry>,
        response: Vec<ResponseEntry>,
    },
    Recurrence {
        burst_instructions: u32,
        regime_change_us: Option<EstimateEntry>,
        regime: &'a str,
        gaps: Vec<GapEntry>,
    },
    Levels {
        active: usize,
        clock_ghz: EstimateEntry,
        clock_ratio: EstimateEntry,
        instructions_per_cycle: EstimateEntry,
    },
}

impl<'a> From<&'a Detail> for DetailEntry<'a> {
    fn from(detail: &'a Detail) -> Self {
        match detail {
            Detail::Episode(episode) => Self::Episode {
                burst_instructions: episode.burst_instructions,
                quiet_ns: rounded(episode.quiet_ns),
                burst_ns: (&episode.burst_ns).into(),
                effect_share: episode.effect_share.map(EstimateEntry::from),
                extra_ns: (&episode.extra_ns).into(),
                mean_extra_ns: episode.mean_extra_ns.map(EstimateEntry::from),
                clock_ratio_after: (&episode.clock_ratio_after).into(),
                issue_ratio_after: (&episode.issue_ratio_after).into(),
                release_delay_ns: optional(episode.release_delay_ns.as_ref()),
                release_stall_ns: optional(episode.release_stall_ns.as_ref()),
                throttling: episode.throttling.as_ref().into(),
                neighbours: episode.neighbours.iter().map(NeighbourEntry::from).collect(),
                curve: curve(&episode.curve),
            },
            Detail::Downclock(downclock) => Self::Downclock {
                observed_ns: rounded(downclock.observed_ns),
                effect_share: downclock.effect_share.map(EstimateEntry::from),
                settle_ns: optional(downclock.settle_ns.as_ref()),
                lowest_after_ns: optional(downclock.lowest.as_ref().map(|low| &low.after_ns)),
                lowest_ratio: optional(downclock.lowest.as_ref().map(|low| &low.clock_ratio)),
                stall_ns: optional(downclock.stall_ns.as_ref()),
                clock_ratio: (&downclock.clock_ratio).into(),
                instructions_per_cycle: (&downclock.instructions_per_cycle).into(),
                throttling: downclock.throttling.as_ref().into(),
                steps: downclock
                    .steps
                    .iter()
                    .map(|step| StepEntry {
                        at_ns: rounded(step.at_ns),
                        clock_ratio: rounded(step.clock_ratio),
                        instructions_per_cycle: rounded(step.instructions_per_cycle),
                    })
                    .collect(),
                curve: curve(&downclock.curve),
                throughput: downclock
                    .throughput
                    .iter()
                    .map(|&(at_ns, per_cycle)| TimedThroughputEntry {
                        at_ns: rounded(at_ns),
                        instructions_per_cycle: rounded(per_cycle),
                    })
                    .collect(),
            },
            Detail::Throttle(throttle) => Self::Throttle {
                pre_throttle_ns: optional(throttle.pre_throttle_ns.as_ref()),
                pre_throttle_instructions: optional(throttle.pre_throttle_instructions.as_ref()),
                throttling: throttle.throttling.as_ref().into(),
                throughput: throttle
                    .throughput
                    .iter()
                    .map(|&(instructions, per_cycle)| CountedThroughputEntry {
                        instructions: rounded(instructions),
                        instructions_per_cycle: rounded(per_cycle),
                    })
                    .collect(),
            },
            Detail::Instructions(instructions) => Self::Instructions {
                required_instructions: instructions.median.map(EstimateEntry::from),
                quantiles: instructions
                    .quantiles
                    .iter()
                    .map(|&(share, instructions)| QuantileEntry {
                        burst_share: rounded(share),
                        instructions: rounded(instructions),
                    })
                    .collect(),
                response: instructions
                    .response
                    .iter()
                    .map(|&(instructions, share, bursts)| ResponseEntry {
                        instructions,
                        effect_share: rounded(share),
                        bursts,
                    })
                    .collect(),
            },
            Detail::Recurrence(recurrence) => Self::Recurrence {
                burst_instructions: recurrence.burst_instructions,
                regime_change_us: recurrence.regime_change_us.map(EstimateEntry::from),
                regime: &recurrence.regime,
                gaps: recurrence
                    .gaps
                    .iter()
                    .map(|gap| GapEntry {
                        gap_us: rounded(gap.gap_us),
                        slowdown_pct: gap.slowdown_pct.into(),
                        stall_share: rounded(gap.stall_share),
                        burst_ns: gap.burst_ns.into(),
                        kept_share: gap.kept_share.map(rounded),
                        kept_after_ms: gap.kept_after_ms.map(rounded),
                        clock_ratio: rounded(gap.clock_ratio),
                    })
                    .collect(),
            },
            Detail::Levels(levels) => Self::Levels {
                active: levels.active,
                clock_ghz: levels.clock_ghz.into(),
                clock_ratio: levels.clock_ratio.into(),
                instructions_per_cycle: levels.instructions_per_cycle.into(),
            },
        }
    }
}
