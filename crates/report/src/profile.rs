//! A profile by the wide SIMD code in it. `docs/scan-perf-json.md` describes the document.

mod text;

use std::collections::BTreeMap;
use std::path::PathBuf;

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_profile::Profile;
use dimmer_profile::code::{Around, Function, Places};
use dimmer_profile::summary::{self, FunctionSum, Sum, Summary};
use serde::Serialize;

use crate::scan::{ModelEntry, level_name};
use crate::screen::Screen;

/// The document `dimmer/scan-perf/1`.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    profile: String,
    event: Option<String>,
    samples: u64,
    lost: u64,
    other_events: u64,
    cut_off: Option<String>,
    has_callers: bool,
    #[serde(skip)]
    has_copied_stacks: bool,
    model: Option<ModelEntry>,
    total: Shares,
    programs: Vec<ProgramEntry>,
    files: Vec<FileEntry>,
    functions: Vec<FunctionEntry>,
    unread: Vec<UnreadEntry>,
}

#[derive(Debug, Serialize)]
struct UnreadEntry {
    path: String,
    error: String,
}

impl UnreadEntry {
    fn new((path, error): (&PathBuf, &String)) -> Self {
        Self { path: path.display().to_string(), error: error.clone() }
    }
}

/// Shares of the whole profile (percent), by the events that its samples stand for.
#[derive(Debug, Serialize)]
struct Shares {
    share_pct: f64,
    wide_pct: f64,
    unknown_pct: f64,
    kernel_pct: f64,
    classes_pct: BTreeMap<String, f64>,
    levels_pct: Option<BTreeMap<String, f64>>,
}

#[derive(Debug, Serialize)]
struct ProgramEntry {
    name: String,
    samples: u64,
    #[serde(flatten)]
    shares: Shares,
}

#[derive(Debug, Serialize)]
struct FileEntry {
    path: String,
    build_id: Option<String>,
    error: Option<String>,
    samples: u64,
    #[serde(flatten)]
    shares: Shares,
}

#[derive(Debug, Serialize)]
struct FunctionEntry {
    name: Option<String>,
    #[serde(skip)]
    title: String,
    file: Option<String>,
    address: Option<u64>,
    kind: &'static str,
    class: Option<&'static str>,
    near: Option<&'static str>,
    level: Option<String>,
    samples: u64,
    #[serde(flatten)]
    shares: Shares,
    callers: Vec<CallerEntry>,
}

#[derive(Debug, Serialize)]
struct CallerEntry {
    name: Option<String>,
    #[serde(skip)]
    title: String,
    file: Option<String>,
    address: Option<u64>,
    share_pct: f64,
}

/// Makes entries of one profile.
struct Entries<'a> {
    profile: &'a Profile,
    places: &'a Places,
    model: Option<&'a Model>,
    /// All events.
    all: f64,
}

impl Report {
    /// A profile that was read from the file called `name`, with the levels of a model.
    pub fn new(
        name: String,
        profile: &Profile,
        places: &Places,
        model: Option<(&Model, &str)>,
    ) -> Self {
        let summary = Summary::of(profile, places);
        let of = model.map(|(model, _)| model);
        let all = summary.total.all.events.max(1) as f64;
        let entries = Entries { profile, places, model: of, all };
        let mut functions: Vec<FunctionEntry> = summary
            .functions
            .iter()
            .filter_map(|(number, sum)| entries.function(*number, sum))
            .collect();
        functions.sort_by(|a, b| order(&a.shares, &b.shares));
        let mut programs: Vec<ProgramEntry> = summary
            .programs
            .iter()
            .map(|(number, sum)| ProgramEntry {
                name: profile.programs.get(*number as usize).cloned().unwrap_or_default(),
                samples: sum.all.samples,
                shares: entries.shares(sum),
            })
            .collect();
        programs.sort_by(|a, b| order(&a.shares, &b.shares));
        let mut files: Vec<FileEntry> =
            summary.files.iter().filter_map(|(number, sum)| entries.file(*number, sum)).collect();
        files.sort_by(|a, b| order(&a.shares, &b.shares));
        Self {
            schema: "dimmer/scan-perf/1",
            profile: name,
            event: profile.event.clone(),
            samples: summary.total.all.samples,
            lost: profile.lost,
            other_events: profile.other_events,
            cut_off: profile.cut_off.clone(),
            has_callers: summary.has_callers,
            has_copied_stacks: profile.has_copied_stacks,
            model: model.map(|(model, from)| ModelEntry::new(model, from)),
            total: entries.shares(&summary.total),
            programs,
            files,
            unread: places.unread.iter().map(UnreadEntry::new).collect(),
            functions,
        }
    }

    /// The shares as text: of the whole, then by program, file and function.
    pub fn text(&self, screen: Screen) -> String {
        text::render(self, screen)
    }

    /// The functions with samples in code of this class or a more demanding one, or at this level
    /// of the model or a higher one, in words; `None` if there are none.
    pub fn reaching(&self, limit: &crate::scan::limit::Limit) -> Option<String> {
        let levels = self.model.as_ref().map_or(&[][..], |model| &model.levels);
        let found = self.functions.iter().filter(|function| {
            let class = function.near.and_then(|class| class.parse::<InstructionClass>().ok());
            limit.is_reached(class, function.level.as_deref(), levels)
        });
        let found: Vec<String> = found
            .map(|one| {
                let file = one.file.as_deref().unwrap_or_default();
                let near = one.near.unwrap_or_default();
                format!("{file}: {} has {} samples in {near} code", one.title, one.samples)
            })
            .collect();
        (!found.is_empty()).then(|| found.join("\n"))
    }

    /// The number of files with samples that could not be scanned, or read.
    pub fn failed(&self) -> usize {
        self.unread.len() + self.files.iter().filter(|file| file.error.is_some()).count()
    }
}

/// The most wide samples first, then the most samples.
fn order(a: &Shares, b: &Shares) -> std::cmp::Ordering {
    b.wide_pct.total_cmp(&a.wide_pct).then(b.share_pct.total_cmp(&a.share_pct))
}

impl Entries<'_> {
    fn pct(&self, events: u64) -> f64 {
        events as f64 / self.all * 100.0
    }

    fn shares(&self, sum: &Sum) -> Shares {
        let of = |around: Around| self.pct(sum.by.get(&around).copied().unwrap_or_default());
        let mut classes_pct = BTreeMap::new();
        let mut levels_pct = self.model.map(|_| BTreeMap::new());
        for (around, events) in &sum.by {
            let Around::Wide { class, .. } = around else { continue };
            *classes_pct.entry(class.name().to_owned()).or_default() += self.pct(*events);
            if let (Some(levels), Some(level)) = (&mut levels_pct, level(*around, self.model)) {
                *levels.entry(level).or_default() += self.pct(*events);
            }
        }
        Shares {
            share_pct: self.pct(sum.all.events),
            wide_pct: self.pct(sum.wide()),
            unknown_pct: of(Around::Unknown),
            kernel_pct: of(Around::Kernel),
            classes_pct,
            levels_pct,
        }
    }

    fn file(&self, number: u32, sum: &Sum) -> Option<FileEntry> {
        let file = self.profile.files.get(number as usize)?;
        let id = |id: &Vec<u8>| id.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(FileEntry {
            path: file.path.clone(),
            build_id: file.build_id.as_ref().map(id),
            error: self.places.failed.get(&number).cloned(),
            samples: sum.all.samples,
            shares: self.shares(sum),
        })
    }

    fn function(&self, number: usize, of: &FunctionSum) -> Option<FunctionEntry> {
        let function = self.places.functions.get(number)?;
        let (name, file, address, kind) = self.parts(function);
        let most = of.sum.most_demanding();
        let near = match most {
            Some(Around::Wide { class, .. }) => Some(class.name()),
            _ => None,
        };
        let class = self.places.classes.get(&number).map(|class| class.name());
        let mut callers: Vec<CallerEntry> = of
            .callers
            .iter()
            .filter_map(|(caller, events)| {
                let function = self.places.functions.get(*caller)?;
                let (name, file, address, _) = self.parts(function);
                let title = title(function);
                Some(CallerEntry { name, title, file, address, share_pct: self.pct(*events) })
            })
            .collect();
        callers.sort_by(|a, b| b.share_pct.total_cmp(&a.share_pct));
        Some(FunctionEntry {
            name,
            title: title(function),
            file,
            address,
            kind,
            class,
            near,
            level: most.and_then(|around| level(around, self.model)),
            samples: of.sum.all.samples,
            shares: self.shares(&of.sum),
            callers,
        })
    }

    fn parts(
        &self,
        function: &Function,
    ) -> (Option<String>, Option<String>, Option<u64>, &'static str) {
        match function {
            Function::OfFile { file, name, address } => {
                let path = self.profile.files.get(*file as usize).map(|file| file.path.clone());
                (name.clone(), path, *address, "file")
            }
            Function::Generated { name } => (name.clone(), None, None, "generated"),
            Function::Kernel => (None, None, None, "kernel"),
            Function::Unknown => (None, None, None, "unknown"),
        }
    }
}

/// The name of a function in tables and stacks.
fn title(function: &Function) -> String {
    match function {
        Function::OfFile { name: None, address: None, .. } => "[no known function]".to_owned(),
        Function::OfFile { name, address, .. } => {
            dimmer_scan::title(name.as_deref(), address.unwrap_or_default())
        }
        Function::Generated { name } => match name {
            Some(name) => dimmer_scan::title(Some(name), 0),
            None => "[no file]".to_owned(),
        },
        Function::Kernel => "[kernel]".to_owned(),
        Function::Unknown => "[unknown]".to_owned(),
    }
}

/// The name of the license level that code asks for; `None` without a model or wide code.
fn level(around: Around, model: Option<&Model>) -> Option<String> {
    let Around::Wide { class, uses_zmm } = around else { return None };
    model.and_then(|model| level_name(model, dimmer_scan::level([class], uses_zmm, model)))
}

/// The profile as folded stacks. Above a function whose sampled code is wide there is a frame with
/// its class and, by a model, its level.
pub fn folded(profile: &Profile, places: &Places, model: Option<&Model>) -> String {
    summary::folded(profile, places, title, |around| match around {
        Around::Wide { class, .. } => Some(match level(around, model) {
            Some(level) => format!("{} {level}", class.name()),
            None => class.name().to_owned(),
        }),
        Around::Unknown => Some("not known".to_owned()),
        Around::Narrow | Around::Kernel => None,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dimmer_processor::model::builtin;
    use dimmer_profile::code::Machine;

    use super::*;

    /// The made-up profile of a text, of files that are not there.
    fn of(text: &str) -> (Profile, Places) {
        let profile = dimmer_profile::read(text.as_bytes()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let root = dimmer_host::root::Root::new(directory.path());
        let machine = Machine { root, maps: Some(directory.path().to_owned()) };
        let places = Places::of(&profile, &machine, |_| {});
        (profile, places)
    }

    const TEXT: &str = "\
a 1 1.0: 1 cpu-clock:
\t10 f+0x0 (/none)
\t20 g;h+0x1 (/none)

a 1 1.1: 1 cpu-clock:
\tffffffff00 k+0x0 ([kernel.kallsyms])

";

    #[test]
    fn code_that_is_not_there_counts_as_unknown() {
        let (profile, places) = of(TEXT);
        let report = Report::new("p".to_owned(), &profile, &places, None);
        let text = report.text(Screen::file(100));
        assert!(text.contains("2 samples of cpu-clock"), "{text}");
        assert!(text.contains("50.0 % of them are in code that is not known"), "{text}");
        assert!(text.contains("50.0 % in the kernel"), "{text}");
        assert!(text.contains("/none: "), "{text}");
        assert_eq!(folded(&profile, &places, None), "a;[kernel] 1\na;g:h;f;[not known] 1\n");
    }

    #[test]
    fn levels_are_those_of_the_model() {
        let model = Model::parse(Path::new("m"), builtin("i9-7940x").unwrap()).unwrap();
        let wide = |class| Around::Wide { class, uses_zmm: true };
        let name = |around| level(around, Some(&model));
        assert_eq!(name(wide(InstructionClass::Heavy512)).as_deref(), Some("L2"));
        assert_eq!(name(Around::Narrow), None);
        assert_eq!(level(wide(InstructionClass::Heavy512), None), None);
    }
}
