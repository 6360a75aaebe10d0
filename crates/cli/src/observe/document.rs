//! The wire format of `dimmer observe --json`, schema `dimmer/observe/1`; `docs/observe-json.md` describes
//! every key.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use dimmer_host::root::Root;
use dimmer_observe::{FunctionPlace, FunctionSeen, Times};
use dimmer_processor::class::InstructionClass;
use serde::Serialize;

use super::Run;
use crate::scan;
use crate::scan::document::{FileEntry, ModelEntry, WideFunction};

/// Shares of all times for which quantiles are told.
const QUANTILES: [(&str, f64); 5] =
    [("p5", 0.05), ("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p95", 0.95)];

/// Everything that was seen of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema: &'static str,
    pub(crate) command: Vec<String>,
    pub(crate) exit_status: Option<i32>,
    pub(crate) lasted_s: f64,
    pub(crate) cpu_s: f64,
    pub(crate) processes: usize,
    pub(crate) threads: usize,
    pub(crate) threads_left_out: usize,
    pub(crate) model: Option<ModelEntry>,
    pub(crate) hooked_classes: Vec<String>,
    pub(crate) files: Vec<File>,
    pub(crate) functions: Vec<Function>,
    pub(crate) unreadable: Vec<String>,
}

/// A file that was loaded.
#[derive(Debug, Serialize)]
pub(crate) struct File {
    pub(crate) path: String,
    /// Functions with instructions of the hooked classes.
    pub(crate) wide_functions: usize,
    /// Functions that were hooked.
    pub(crate) hooked: usize,
    pub(crate) problem: Option<String>,
}

/// A function that was called.
#[derive(Debug, Serialize)]
pub(crate) struct Function {
    pub(crate) file: String,
    pub(crate) address: u64,
    pub(crate) name: Option<String>,
    pub(crate) name_source: Option<String>,
    #[serde(skip)]
    pub(crate) title: String,
    pub(crate) class: Option<String>,
    pub(crate) level: Option<String>,
    pub(crate) threads: usize,
    pub(crate) calls: u64,
    pub(crate) calls_per_s: f64,
    /// Calls that were timed.
    pub(crate) timed: u64,
    pub(crate) lasted_ns: Option<Distribution>,
    /// From the end of a call to the thread's next call of any hooked function.
    pub(crate) gap_after_ns: Option<Distribution>,
    /// Time within, of all calls, in parts of the program's time on CPUs.
    pub(crate) time_share: Option<f64>,
}

/// How long something was.
#[derive(Debug, Serialize)]
pub(crate) struct Distribution {
    pub(crate) mean: f64,
    #[serde(flatten)]
    pub(crate) quantiles: BTreeMap<&'static str, f64>,
    /// The middle of each bucket, and how many calls.
    pub(crate) histogram: Vec<(f64, f64)>,
}

impl Report {
    pub(super) fn new(run: &Run<'_>) -> Self {
        let observed = run.observed;
        let files = observed.files.iter().map(|(path, problem)| {
            let known = hookable(path, run);
            let entries = observed.hooked.get(path).into_iter().flatten();
            let hooked: BTreeSet<u64> = entries.map(|entry| begin(&known, *entry)).collect();
            let file = File {
                path: path.to_string_lossy().into_owned(),
                wide_functions: known.len(),
                hooked: hooked.len(),
                problem: (!problem.is_empty()).then(|| problem.clone()),
            };
            (path.as_path(), (file, known))
        });
        let files: BTreeMap<&Path, (File, Vec<WideFunction>)> = files.collect();
        let known = |file: &Path| files.get(file).map_or(&[][..], |(_, known)| known);
        let mut functions: Vec<Function> = observed
            .functions(|file, entry| begin(known(file), entry))
            .iter()
            .map(|(place, seen)| {
                Function::new(place, at(known(&place.file), place.address), seen, run)
            })
            .collect();
        functions.sort_by(|a, b| {
            let time = |one: &Function| one.time_share.unwrap_or_default();
            time(b).total_cmp(&time(a)).then(b.calls.cmp(&a.calls))
        });
        let words = |word: &std::ffi::OsString| word.to_string_lossy().into_owned();
        Self {
            schema: "dimmer/observe/1",
            command: run.command.iter().map(words).collect(),
            exit_status: run.status.code(),
            lasted_s: observed.lasted.as_secs_f64(),
            cpu_s: run.on_cpu.as_secs_f64(),
            processes: observed.processes,
            threads: observed.threads.len(),
            threads_left_out: observed.threads_left_out,
            model: run.model.map(|(model, from)| ModelEntry::new(model, from)),
            hooked_classes: run.classes.iter().map(|class| class.name().to_owned()).collect(),
            files: files.into_values().map(|(file, _)| file).collect(),
            functions,
            unreadable: observed.unreadable.clone(),
        }
    }
}

/// The function of `known`, which are by address, that `address` lies in.
fn at(known: &[WideFunction], address: u64) -> Option<&WideFunction> {
    let after = known.partition_point(|function| function.address <= address);
    let function = known.get(after.checked_sub(1)?)?;
    (address - function.address < function.size).then_some(function)
}

/// Where the function begins that has the entry `address`; there, if nothing is known of it.
fn begin(known: &[WideFunction], address: u64) -> u64 {
    at(known, address).map_or(address, |function| function.address)
}

/// The functions of a file with instructions of the classes looked for, as a scan has them.
fn hookable(path: &Path, run: &Run<'_>) -> Vec<WideFunction> {
    let root = Root::live();
    let known = if run.classes.iter().all(|class| *class >= InstructionClass::Light256) {
        scan::scan_file(&root, path)
    } else {
        scan::scan_narrow_too(&root, path)
    };
    let Ok(known) = known else { return Vec::new() };
    let model = run.model.map(|(model, _)| model);
    let mut functions = FileEntry::new(String::new(), known, model).scan.wide_functions;
    functions.retain(|function| {
        run.classes.iter().any(|class| function.instructions.contains_key(class.name()))
    });
    functions
}

impl Function {
    fn new(
        place: &FunctionPlace,
        found: Option<&WideFunction>,
        seen: &FunctionSeen,
        run: &Run<'_>,
    ) -> Self {
        let (address, tally) = (place.address, &seen.tally);
        let seconds = run.observed.lasted.as_secs_f64();
        let on_cpu = run.on_cpu.as_secs_f64();
        let within = tally.lasted.mean().map(|_| tally.lasted.sum() * 1e-9);
        let unnamed = format!("{address:#x}");
        Self {
            file: place.file.to_string_lossy().into_owned(),
            address,
            name: found.and_then(|found| found.name.clone()),
            name_source: found.and_then(|found| found.name_source.clone()),
            title: found.map_or(unnamed, scan::text::title),
            class: found.map(|found| found.class.clone()),
            level: found.and_then(|found| found.level.clone()),
            threads: seen.threads,
            calls: tally.calls,
            calls_per_s: tally.calls as f64 / seconds,
            timed: tally.lasted.measured(),
            lasted_ns: Distribution::of(&tally.lasted),
            gap_after_ns: Distribution::of(&tally.gap_after),
            time_share: within.filter(|_| on_cpu > 0.0).map(|within| within / on_cpu),
        }
    }
}

impl Distribution {
    fn of(times: &Times) -> Option<Self> {
        let quantiles = QUANTILES.iter();
        let quantiles =
            quantiles.filter_map(|(name, share)| Some((*name, times.quantile(*share)?)));
        Some(Self {
            mean: times.mean()?,
            quantiles: quantiles.collect(),
            histogram: times.iter().collect(),
        })
    }
}
