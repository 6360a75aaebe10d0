//! The wire format of `dimmer scan --json`, schema `dimmer/scan/1`, and of the cache;
//! `docs/scan-json.md` describes every key.

use std::collections::BTreeMap;

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_scan::{ClassCounts, Entry, Function, HotLoop, Origin, Scan};
use serde::{Deserialize, Serialize};

/// The results of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema: &'static str,
    pub(crate) model: Option<ModelEntry>,
    pub(crate) files: Vec<FileEntry>,
    pub(crate) failed: Vec<Failure>,
}

/// The model that defines the levels.
#[derive(Debug, Serialize)]
pub(crate) struct ModelEntry {
    pub(crate) name: String,
    pub(crate) source: String,
    pub(crate) levels: Vec<String>,
}

/// A file that could not be scanned.
#[derive(Debug, Serialize)]
pub(crate) struct Failure {
    pub(crate) path: String,
    pub(crate) error: String,
}

/// A file.
#[derive(Debug, Serialize)]
pub(crate) struct FileEntry {
    pub(crate) path: String,
    #[serde(flatten)]
    pub(crate) scan: FileScan,
}

/// The content of a file, whatever its name is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileScan {
    pub(crate) build_id: Option<String>,
    pub(crate) soname: Option<String>,
    pub(crate) needed: Vec<String>,
    pub(crate) runpath: Vec<String>,
    pub(crate) code_bytes: u64,
    pub(crate) function_bytes: u64,
    pub(crate) undecodable_bytes: u64,
    pub(crate) functions: Origins,
    pub(crate) rejected_seeds: usize,
    pub(crate) instructions: Counts,
    pub(crate) zmm_instructions: u64,
    /// The most demanding level of all functions; set once the model is known.
    pub(crate) level: Option<String>,
    pub(crate) wide_functions: Vec<WideFunction>,
}

/// Number of functions by what shows that they are functions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Origins {
    pub(crate) symbol: usize,
    pub(crate) frame: usize,
    pub(crate) seed: usize,
}

/// Numbers of instructions by class; classes that do not occur are left out.
pub(crate) type Counts = BTreeMap<String, u64>;

/// A function with instructions of 256 bits or more, or tiles.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct WideFunction {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) name: Option<String>,
    /// Set if there is a name.
    pub(crate) name_source: Option<String>,
    pub(crate) origin: String,
    pub(crate) class: String,
    /// Set once the model is known.
    pub(crate) level: Option<String>,
    pub(crate) instructions: Counts,
    pub(crate) wide_instructions: u64,
    pub(crate) zmm_instructions: u32,
    pub(crate) evex_instructions: u32,
    pub(crate) vzeroupper: bool,
    pub(crate) may_return_dirty: bool,
    pub(crate) loops: Vec<Loop>,
    pub(crate) hook_bytes: Option<u8>,
    pub(crate) unhookable: Option<String>,
    pub(crate) unhookable_why: Option<String>,
    pub(crate) entries: Vec<InnerEntry>,
}

/// A place inside a function that other functions lead to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct InnerEntry {
    pub(crate) address: u64,
    pub(crate) hook_bytes: Option<u8>,
    pub(crate) unhookable: Option<String>,
    pub(crate) unhookable_why: Option<String>,
}

/// A loop with wide instructions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Loop {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) instructions: Counts,
    pub(crate) wide_instructions: u64,
}

impl Report {
    pub(crate) fn new(model: Option<ModelEntry>) -> Self {
        Self { schema: "dimmer/scan/1", model, files: Vec::new(), failed: Vec::new() }
    }
}

impl ModelEntry {
    pub(crate) fn new(model: &Model, source: &str) -> Self {
        Self {
            name: model.identity.name.clone(),
            source: source.to_owned(),
            levels: model.levels.iter().map(|level| level.name.clone()).collect(),
        }
    }
}

impl FileEntry {
    /// A scan with the levels that its functions request by a model.
    pub(crate) fn new(path: String, mut scan: FileScan, model: Option<&Model>) -> Self {
        let mut highest = None;
        for function in &mut scan.wide_functions {
            let present = function.instructions.keys().filter_map(|class| class.parse().ok());
            let level = model
                .map(|model| dimmer_scan::level(present, function.zmm_instructions > 0, model));
            function.level = level.zip(model).and_then(|(level, model)| name(model, level));
            highest = highest.max(level);
        }
        scan.level = highest.zip(model).and_then(|(level, model)| name(model, level));
        Self { path, scan }
    }
}

fn name(model: &Model, level: dimmer_processor::units::LicenseLevel) -> Option<String> {
    let index = usize::try_from(level.index()).ok()?;
    model.levels.get(index).map(|level| level.name.clone())
}

impl FileScan {
    /// The scan in the wire format, without levels, with the functions for which `is_told` returns
    /// true.
    pub(crate) fn of(scan: &Scan, is_told: impl Fn(&Function) -> bool) -> Self {
        let totals = &scan.totals;
        let hexadecimal = |id: &Vec<u8>| id.iter().map(|byte| format!("{byte:02x}")).collect();
        let told = scan.functions.iter().filter(|function| is_told(function));
        Self {
            build_id: scan.build_id.as_ref().map(hexadecimal),
            soname: scan.soname.clone(),
            needed: scan.needed.clone(),
            runpath: scan.runpath.clone(),
            code_bytes: totals.code_bytes,
            function_bytes: totals.function_bytes,
            undecodable_bytes: totals.undecodable_bytes,
            functions: Origins { symbol: totals.symbols, frame: totals.frames, seed: totals.seeds },
            rejected_seeds: totals.rejected_seeds,
            instructions: named(totals.instructions.iter().map(|(class, n)| (*class, *n))),
            zmm_instructions: totals.zmm,
            level: None,
            wide_functions: told.map(WideFunction::of).collect(),
        }
    }
}

impl WideFunction {
    fn of(function: &Function) -> Self {
        let origin = match function.origin {
            Origin::Symbol => "symbol",
            Origin::Frame => "frame",
            Origin::Seed => "seed",
        };
        Self {
            address: function.addresses.start,
            size: function.addresses.end - function.addresses.start,
            name: function.name.clone(),
            name_source: function.name.as_ref().map(|_| "symbol".to_owned()),
            origin: origin.to_owned(),
            class: function.heaviest().unwrap_or(InstructionClass::Scalar).name().to_owned(),
            level: None,
            instructions: counts(&function.instructions),
            wide_instructions: function.instructions.wide(),
            zmm_instructions: function.zmm,
            evex_instructions: function.evex,
            vzeroupper: function.vzeroupper,
            may_return_dirty: function.may_return_dirty,
            loops: function.loops.iter().map(Loop::of).collect(),
            hook_bytes: function.hook.ok(),
            unhookable: function.hook.err().map(|reason| reason.kind().to_owned()),
            unhookable_why: function.hook.err().map(|reason| reason.to_string()),
            entries: function
                .entries
                .iter()
                .map(|entry| InnerEntry::of(function.addresses.start, entry))
                .collect(),
        }
    }
}

impl InnerEntry {
    fn of(function: u64, entry: &Entry) -> Self {
        Self {
            address: function + u64::from(entry.offset),
            hook_bytes: entry.hook.ok(),
            unhookable: entry.hook.err().map(|reason| reason.kind().to_owned()),
            unhookable_why: entry.hook.err().map(|reason| reason.to_string()),
        }
    }
}

impl Loop {
    fn of(hot: &HotLoop) -> Self {
        Self {
            address: hot.addresses.start,
            size: hot.addresses.end - hot.addresses.start,
            instructions: counts(&hot.instructions),
            wide_instructions: hot.instructions.wide(),
        }
    }
}

fn counts(counts: &ClassCounts) -> Counts {
    named(counts.iter().map(|(class, count)| (class, u64::from(count))))
}

fn named(counts: impl Iterator<Item = (InstructionClass, u64)>) -> Counts {
    let present = counts.filter(|(_, count)| *count > 0);
    present.map(|(class, count)| (class.name().to_owned(), count)).collect()
}
