//! `dimmer scan`: the wide SIMD functions of programs, libraries and processes.

mod cache;
mod names;

use std::collections::{BTreeSet, VecDeque};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use dimmer_host::cpuid::Cpuid;
use dimmer_host::libraries::{self, Search};
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_processor::model::Model;
use dimmer_report::scan::{FileScan, Report};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::Scan;
use crate::output;
use crate::{bad_input, input, model};
use cache::Key;
use names::Sources;

pub(crate) fn run(root: &Root, arguments: &Scan) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let machine = Machine::read(&Root::live(), &Cpuid::instruction());
    let model = choose_model(arguments.model.name(), &machine)?;
    let mut places = places(root, arguments)?;
    if !arguments.libraries {
        places.truncate(1);
    }
    let mut report = Report::new(model.as_ref().map(|(model, from)| (model, from.as_str())));
    let library_path = std::env::var("LD_LIBRARY_PATH").ok();
    let search = Search::new(root, library_path.as_deref(), &machine.features);
    let progress = progress();
    let mut seen: BTreeSet<PathBuf> = BTreeSet::new();
    let mut places = VecDeque::from(places);
    while let Some(place) = places.pop_front() {
        if !seen.insert(place.file.canonicalize().unwrap_or_else(|_| place.file.clone())) {
            continue;
        }
        progress.set_message(place.path.clone());
        progress.tick();
        let scan = match scan_file(root, &place.file) {
            Ok(scan) => scan,
            Err(error) if seen.len() == 1 => {
                return Err(bad_input(format!("{}: {error:#}", place.path)));
            }
            Err(error) => {
                report.add_failed(place.path, format!("{error:#}"));
                continue;
            }
        };
        if arguments.libraries && place.is_file {
            needed(&search, &place, &scan, &mut places, &mut report);
        }
        let model = model.as_ref().map(|(model, _)| model);
        report.add(place.path, scan, model);
    }
    progress.finish_and_clear();
    output::show(json, &report, &report.text(output::screen()))?;
    Ok(ExitCode::SUCCESS)
}

/// A file to scan.
#[derive(Debug)]
struct Place {
    /// The path that is shown.
    path: String,
    /// Where to read the file.
    file: PathBuf,
    /// Whether its libraries must be searched for; those of a process are known.
    is_file: bool,
}

/// The file, or the files of the process, that the user named. The first one is the program.
fn places(root: &Root, arguments: &Scan) -> anyhow::Result<Vec<Place>> {
    if let Some(file) = &arguments.file {
        if !file.exists() {
            let shown = file.display();
            let hint = match shown.to_string().parse::<u32>() {
                Ok(pid) => format!("; `-p {pid}` scans a process"),
                Err(_) => String::new(),
            };
            return Err(bad_input(format!(
                "no file `{shown}`; expected a program or a library{hint}"
            )));
        }
        let path = file.display().to_string();
        return Ok(vec![Place { path, file: file.clone(), is_file: true }]);
    }
    let pid = arguments.process.pid.ok_or_else(|| bad_input("no file and no process to scan"))?;
    let mapped = libraries::mapped(root, pid).map_err(|error| {
        let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        bad_input(format!("--pid {pid}: no process of this user: {error}: {why}"))
    })?;
    let place = |one: libraries::Mapped| Place { path: one.path, file: one.file, is_file: false };
    Ok(mapped.into_iter().map(place).collect())
}

/// Queues the libraries that a file needs.
fn needed(
    search: &Search,
    place: &Place,
    scan: &FileScan,
    places: &mut VecDeque<Place>,
    report: &mut Report,
) {
    let own = place.file.canonicalize().unwrap_or_else(|_| place.file.clone());
    let origin = own.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
    for name in &scan.needed {
        match search.find(name, &origin, &scan.runpath) {
            Some(file) => {
                let path = file.to_string_lossy().into_owned();
                places.push_back(Place { path, file, is_file: true });
            }
            None => {
                let why = format!("{} needs it, and it is nowhere the loader looks", place.path);
                report.add_failed(name.clone(), why);
            }
        }
    }
}

/// The scan of one file, from the cache if it was scanned before.
pub(crate) fn scan_file(root: &Root, file: &Path) -> anyhow::Result<FileScan> {
    let bytes = read(file)?;
    let build_id = dimmer_scan::build_id(&bytes)?;
    let sources = Sources::find(root, file, &bytes);
    let names = sources.stamp();
    let key = Key { build_id: build_id.as_deref(), length: bytes.len(), names: &names };
    if let Some(scan) = cache::read(key) {
        return Ok(scan);
    }
    let mut scan =
        FileScan::of(&dimmer_scan::scan(&bytes)?, |function| function.instructions.wide() > 0);
    sources.name(&bytes, &mut scan);
    cache::write(key, &scan);
    Ok(scan)
}

/// A text that changes when this file, or a file with names of its functions, is replaced.
pub(crate) fn stamp(root: &Root, file: &Path) -> anyhow::Result<String> {
    let names = Sources::find(root, file, &read(file)?).stamp();
    Ok(format!("{}{names}", identity(file)?))
}

/// Identifies this file in its present state: the identity also changes if the code was changed
/// while the build id and the times that can be set stayed the same.
pub(crate) fn identity(file: &Path) -> std::io::Result<String> {
    let file = std::fs::metadata(file)?;
    let (seconds, rest) = (file.ctime(), file.ctime_nsec());
    Ok(format!("{}-{}-{}-{seconds}.{rest}", file.dev(), file.ino(), file.len()))
}

/// The scan of one file including its functions that are not wide; these scans are not cached.
pub(crate) fn scan_narrow_too(root: &Root, file: &Path) -> anyhow::Result<FileScan> {
    let bytes = read(file)?;
    let mut functions = dimmer_scan::scan(&bytes)?;
    functions.check_narrow(&bytes)?;
    let mut scan = FileScan::of(&functions, |_| true);
    Sources::find(root, file, &bytes).name(&bytes, &mut scan);
    Ok(scan)
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    match input::program(file) {
        Err(dimmer_host::bounded_file::BoundedFileError::Kind { found, .. }) => {
            anyhow::bail!("{found}; expected a program or a library")
        }
        read => Ok(read?),
    }
}

/// The model that defines which code requests which level, and its origin: the requested model, or
/// the result of a probe of this machine.
pub(crate) fn choose_model(
    asked: Option<&str>,
    machine: &Machine,
) -> anyhow::Result<Option<(Model, String)>> {
    if let Some(name) = asked {
        return Ok(Some((model::read(name)?, name.to_owned())));
    }
    let mut kept = [false, true]
        .into_iter()
        .filter_map(|quick| dimmer_host::cache::model(&machine.identity, quick));
    let kept = kept.find(|path| path.exists());
    kept.map(|path| Ok((model::read_file(&path)?, path.display().to_string()))).transpose()
}

fn progress() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_draw_target(output::progress_target());
    let style = ProgressStyle::with_template("{spinner} {elapsed}  {msg}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}
