//! The results of `dimmer scan`, and the form in which scans are cached; `docs/scan-json.md`
//! describes the document.

pub mod limit;
mod text;

use std::collections::BTreeMap;

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_scan::{ClassCounts, Entry, Function, HotLoop, Leader, Origin, Scan};
use serde::{Deserialize, Serialize};

pub use text::title;

use crate::screen::Screen;

/// The document `dimmer/scan/1`: the results of one run.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    model: Option<ModelEntry>,
    files: Vec<FileEntry>,
    failed: Vec<Failure>,
}

/// The model that defines the levels.
#[derive(Debug, Serialize)]
pub struct ModelEntry {
    pub(crate) name: String,
    pub(crate) source: String,
    pub(crate) levels: Vec<String>,
}

/// A file that could not be scanned.
#[derive(Debug, Serialize)]
struct Failure {
    path: String,
    error: String,
}

/// A file.
#[derive(Debug, Serialize)]
struct FileEntry {
    path: String,
    #[serde(flatten)]
    scan: FileScan,
}

/// The content of a file, whatever its name is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileScan {
    /// The linker's name for the build, in hexadecimal digits.
    pub build_id: Option<String>,
    /// The name by which other files need this library.
    pub soname: Option<String>,
    /// The libraries that the file needs, by their names.
    pub needed: Vec<String>,
    /// Where the loader looks for these libraries first.
    pub runpath: Vec<String>,
    /// Bytes of code.
    pub code_bytes: u64,
    /// Bytes of code that belong to functions.
    pub function_bytes: u64,
    /// Bytes of code that are no instructions.
    pub undecodable_bytes: u64,
    /// The functions, by how they are known.
    pub functions: Origins,
    /// Addresses that something leads to, but that cannot be functions.
    pub rejected_seeds: usize,
    /// All instructions.
    pub instructions: Counts,
    /// Instructions that name a 512-bit register.
    pub zmm_instructions: u64,
    /// The most demanding level of all functions; set once the model is known.
    pub level: Option<String>,
    /// The functions that are described, by address.
    pub wide_functions: Vec<WideFunction>,
}

/// Number of functions by what shows that they are functions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Origins {
    /// By a symbol.
    pub symbol: usize,
    /// By an unwinding frame.
    pub frame: usize,
    /// By what leads there.
    pub seed: usize,
}

/// Numbers of instructions by class; classes that do not occur are left out.
pub type Counts = BTreeMap<String, u64>;

/// A function, in most cases one with instructions of 256 bits or more, or tiles.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WideFunction {
    /// Its first address in the file.
    pub address: u64,
    /// Its length (bytes).
    pub size: u64,
    /// Its symbol.
    pub name: Option<String>,
    /// Where the name comes from; set if there is one.
    pub name_source: Option<String>,
    /// What shows that it is a function: `symbol`, `frame` or `seed`.
    pub origin: String,
    /// The most demanding class of its instructions.
    pub class: String,
    /// The level that it asks for; set once the model is known.
    pub level: Option<String>,
    /// Its instructions.
    pub instructions: Counts,
    /// Instructions of 256 bits or more, or with tiles.
    pub wide_instructions: u64,
    /// Instructions that name a 512-bit register.
    pub zmm_instructions: u32,
    /// Instructions in the encoding of AVX-512.
    pub evex_instructions: u32,
    /// Whether it clears the upper halves of registers.
    pub vzeroupper: bool,
    /// Whether it may return with dirty upper halves.
    pub may_return_dirty: bool,
    /// Its loops with wide instructions.
    pub loops: Vec<Loop>,
    /// The bytes that a hook at its entry displaces, if it can have one.
    pub hook_bytes: Option<u8>,
    /// The kind of reason why it cannot.
    pub unhookable: Option<String>,
    /// The reason in words.
    pub unhookable_why: Option<String>,
    /// Places inside it that other functions lead to.
    pub entries: Vec<InnerEntry>,
    /// Functions that jump to those of these places where no hook can be.
    pub leaders: Vec<LeadingFunction>,
}

/// A function that jumps into the middle of another one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeadingFunction {
    /// Its first address in the file.
    pub address: u64,
    /// Its symbol.
    pub name: Option<String>,
    /// The bytes that a hook at its entry displaces, if it can have one.
    pub hook_bytes: Option<u8>,
    /// The kind of reason why it cannot.
    pub unhookable: Option<String>,
    /// The reason in words.
    pub unhookable_why: Option<String>,
}

/// A place inside a function that other functions lead to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InnerEntry {
    /// Its address in the file.
    pub address: u64,
    /// The bytes that a hook there displaces, if it can have one.
    pub hook_bytes: Option<u8>,
    /// The kind of reason why it cannot.
    pub unhookable: Option<String>,
    /// The reason in words.
    pub unhookable_why: Option<String>,
    /// Whether another function calls it, rather than jumps there.
    pub is_called: bool,
}

/// A loop with wide instructions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loop {
    /// Its first address in the file.
    pub address: u64,
    /// Its length (bytes).
    pub size: u64,
    /// Its instructions.
    pub instructions: Counts,
    /// Instructions of 256 bits or more, or with tiles.
    pub wide_instructions: u64,
}

impl Report {
    /// A report without files, with levels by this model from this source.
    pub fn new(model: Option<(&Model, &str)>) -> Self {
        let model = model.map(|(model, source)| ModelEntry::new(model, source));
        Self { schema: "dimmer/scan/1", model, files: Vec::new(), failed: Vec::new() }
    }

    /// Adds a scan, with the levels that its functions request by the model.
    pub fn add(&mut self, path: String, scan: FileScan, model: Option<&Model>) {
        self.files.push(FileEntry { path, scan: scan.with_levels(model) });
    }

    /// Adds a file that could not be scanned.
    pub fn add_failed(&mut self, path: String, error: String) {
        self.failed.push(Failure { path, error });
    }

    /// The results as text: for each file its content, then its wide functions, the most demanding
    /// first.
    pub fn text(&self, screen: Screen) -> String {
        text::render(self, screen)
    }
}

impl ModelEntry {
    /// `source`: where the model comes from.
    pub(crate) fn new(model: &Model, source: &str) -> Self {
        Self {
            name: model.identity.name.clone(),
            source: source.to_owned(),
            levels: model.levels.iter().map(|level| level.name.clone()).collect(),
        }
    }
}

pub(crate) fn level_name(
    model: &Model,
    level: dimmer_processor::units::LicenseLevel,
) -> Option<String> {
    let index = usize::try_from(level.index()).ok()?;
    model.levels.get(index).map(|level| level.name.clone())
}

impl FileScan {
    /// The scan with the levels that its functions request by a model.
    #[must_use]
    pub fn with_levels(mut self, model: Option<&Model>) -> Self {
        let mut highest = None;
        for function in &mut self.wide_functions {
            let present = function.instructions.keys().filter_map(|class| class.parse().ok());
            let level = model
                .map(|model| dimmer_scan::level(present, function.zmm_instructions > 0, model));
            function.level = level.zip(model).and_then(|(level, model)| level_name(model, level));
            highest = highest.max(level);
        }
        self.level = highest.zip(model).and_then(|(level, model)| level_name(model, level));
        self
    }

    /// The scan in the form of documents, without levels, with the functions for which `is_told`
    /// returns true.
    pub fn of(scan: &Scan, is_told: impl Fn(&Function) -> bool) -> Self {
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
            leaders: function.leaders.iter().map(LeadingFunction::of).collect(),
        }
    }

    /// Whether calls may enter it in the middle where no hook counts them, even if its leaders are
    /// hooked. The functions in `reported`, by address, are reported in their own right, with the
    /// reason why they have no hook.
    pub fn is_entered_unseen(&self, reported: &[Self]) -> bool {
        let unseen =
            |leader: &LeadingFunction| leader.hook_bytes.is_none() && !leader.is_among(reported);
        self.entries.iter().any(|entry| entry.is_called && entry.hook_bytes.is_none())
            || self.leaders.iter().any(unseen)
    }
}

impl LeadingFunction {
    fn of(leader: &Leader) -> Self {
        Self {
            address: leader.start,
            name: leader.name.clone(),
            hook_bytes: leader.hook.ok(),
            unhookable: leader.hook.err().map(|reason| reason.kind().to_owned()),
            unhookable_why: leader.hook.err().map(|reason| reason.to_string()),
        }
    }

    /// Whether it is one of these functions, which are by address.
    pub(crate) fn is_among(&self, functions: &[WideFunction]) -> bool {
        functions.binary_search_by_key(&self.address, |function| function.address).is_ok()
    }
}

impl InnerEntry {
    fn of(function: u64, entry: &Entry) -> Self {
        Self {
            address: function + u64::from(entry.offset),
            hook_bytes: entry.hook.ok(),
            unhookable: entry.hook.err().map(|reason| reason.kind().to_owned()),
            unhookable_why: entry.hook.err().map(|reason| reason.to_string()),
            is_called: entry.is_called,
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
