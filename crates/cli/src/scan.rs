//! `dimmer scan`: the wide SIMD functions of programs, libraries and processes.

mod cache;
mod perf;

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use dimmer_host::cpuid::Cpuid;
use dimmer_host::libraries::{self, Search};
use dimmer_host::machine::Machine;
use dimmer_host::program;
use dimmer_host::root::Root;
use dimmer_launch::names::{self, Name, NamedScan, Sources};
use dimmer_report::number::counted;
use dimmer_report::scan::{FileScan, Report};
use dimmer_scan::Function;
use indicatif::ProgressBar;

use crate::args::Scan;
use crate::bad_input;
use crate::exit;
use crate::output;
use crate::progress;
use cache::Key;

pub(crate) fn run(root: &Root, arguments: &Scan) -> anyhow::Result<ExitCode> {
    if let Some(profile) = &arguments.perf {
        return perf::run(root, arguments, profile);
    }
    let json = arguments.json.open()?;
    let machine = Machine::read(&Root::live(), &Cpuid::instruction());
    let model = crate::model::choose(arguments.model.name(), &machine)?;
    let (mut places, mut deleted) = places(root, arguments)?;
    if !arguments.libraries {
        places.truncate(1);
        deleted.clear();
    }
    let mut report = Report::new(model.as_ref().map(|(model, from)| (model, from.as_str())));
    for path in deleted {
        let why =
            "deleted since the process loaded it: restart the process to scan what it then loads";
        report.add_failed(path, why.to_owned());
    }
    let limit = arguments.fail_on.as_ref().map(|name| report.limit(name));
    let limit = limit.transpose().map_err(|error| bad_input(format!("--fail-on: {error}")))?;
    let library_path = std::env::var("LD_LIBRARY_PATH").ok();
    let search = Search::new(root, library_path.as_deref(), &machine.features);
    let spinner = progress();
    let mut seen: BTreeSet<PathBuf> = BTreeSet::new();
    let mut places = VecDeque::from(places);
    while let Some(place) = places.pop_front() {
        if !seen.insert(place.file.canonicalize().unwrap_or_else(|_| place.file.clone())) {
            continue;
        }
        spinner.set_message(output::printable(&place.path, false));
        spinner.tick();
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
    spinner.finish_and_clear();
    output::show(json, &report, &report.text(output::screen()))?;
    let Some(limit) = limit else { return Ok(ExitCode::SUCCESS) };
    answer(report.reaching(&limit), report.failed())
}

/// The exit status by what reaches the limit of --fail-on.
///
/// # Errors
/// Nothing does, but some files were not scanned.
fn answer(found: Option<String>, failed: usize) -> anyhow::Result<ExitCode> {
    match found {
        Some(found) => {
            eprintln!("{found}");
            Ok(ExitCode::from(exit::NO))
        }
        None if failed > 0 => Err(anyhow::anyhow!(
            "--fail-on: not answered, as {} could not be scanned",
            counted(failed, "file")
        )),
        None => Ok(ExitCode::SUCCESS),
    }
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

/// The file, or the files of the process, that the user named, and the paths of those of its
/// libraries that were deleted since. The first file is the program.
fn places(root: &Root, arguments: &Scan) -> anyhow::Result<(Vec<Place>, BTreeSet<String>)> {
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
        let place = Place { path, file: file.clone(), is_file: true };
        return Ok((vec![place], BTreeSet::new()));
    }
    let pid = arguments.process.pid.ok_or_else(|| bad_input("no file and no process to scan"))?;
    let (mapped, deleted) = libraries::mapped_and_deleted(root, pid).map_err(|error| {
        let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        bad_input(format!("--pid {pid}: no process of this user: {error}: {why}"))
    })?;
    let place = |one: libraries::Mapped| Place { path: one.path, file: one.file, is_file: false };
    Ok((mapped.into_iter().map(place).collect(), deleted))
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
    let whole = dimmer_scan::scan(&bytes)?;
    let is_wide = |function: &Function| function.instructions.wide() > 0;
    let mut scan = FileScan::of(&whole, is_wide);
    let wide = || whole.functions.iter().filter(|function| is_wide(function));
    let ranges: Vec<_> = wide().map(|function| function.addresses.clone()).collect();
    let mut names: Vec<_> = wide().map(Name::own).collect();
    let may_have_more = sources.name(&bytes, &ranges, &mut names);
    give(&mut scan, names);
    if !may_have_more {
        cache::write(key, &scan);
    }
    Ok(scan)
}

/// The scan of one file including its functions that are not wide; these scans are not cached.
pub(crate) fn scan_narrow_too(root: &Root, file: &Path) -> anyhow::Result<FileScan> {
    let NamedScan { scan, names } = names::scan(root, file)?;
    let mut scan = FileScan::of(&scan, |_| true);
    give(&mut scan, names);
    Ok(scan)
}

/// Gives each function its name, and where that comes from.
fn give(scan: &mut FileScan, names: Vec<Option<Name>>) {
    for (function, name) in scan.wide_functions.iter_mut().zip(names) {
        let name = name.map(|name| (name.symbol, name.source.to_owned()));
        (function.name, function.name_source) = name.unzip();
    }
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    match program::read(file) {
        Err(dimmer_host::bounded_file::BoundedFileError::Kind { found, .. }) => {
            anyhow::bail!("{found}; expected a program or a library")
        }
        read => Ok(read?),
    }
}

pub(crate) fn progress() -> ProgressBar {
    let spinner = progress::spinner(progress::AT);
    progress::show(&spinner);
    spinner
}
