//! Functions that the user names: in the files that a program loads from the start, or by address
//! in a library.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use dimmer_hook::{PlannedEntry, is_own_ground};
use dimmer_host::root::Root;
use dimmer_observe::Place;
use dimmer_report::scan::{FileScan, WideFunction};

use crate::{bad_input, launch, scan};

/// Number of similar names that are suggested for a wrong one.
const NEAREST: usize = 3;

/// Whether the user may mean this function: by its symbol, or as `dimmer scan` shows it, which is
/// by address if it has no symbol.
fn is_named(function: &WideFunction, name: &str) -> bool {
    match &function.name {
        Some(known) => known == name || dimmer_report::scan::title(function) == name,
        None => address(name) == Some(function.address),
    }
}

/// Parses a hexadecimal number after `0x`.
fn address(text: &str) -> Option<u64> {
    text.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok())
}

/// A function that the user has named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// By symbol, or as `dimmer scan` shows it: `0x` and the address if it has no symbol.
    Name(String),
    /// By a library's file or file name, and the address of an entry in it.
    Place { library: String, address: u64 },
}

impl Wanted {
    /// Parses `NAME`, or `LIBRARY:OFFSET` with a hexadecimal offset after `0x`.
    pub(crate) fn parse(text: &str) -> Self {
        let place = text.rsplit_once(":0x").and_then(|(library, offset)| {
            let address = u64::from_str_radix(offset, 16).ok()?;
            Some(Self::Place { library: library.to_owned(), address })
        });
        place.unwrap_or_else(|| Self::Name(text.to_owned()))
    }

    /// Whether this is a function of this file or, given an address, has an entry there.
    pub(crate) fn is(&self, file: &Path, function: &WideFunction) -> bool {
        match self {
            Self::Name(name) => is_named(function, name),
            Self::Place { library, address } => {
                let real = file.canonicalize().unwrap_or_else(|_| file.to_path_buf());
                let is_name =
                    |path: &Path| path.file_name().and_then(OsStr::to_str) == Some(library);
                let is_file = is_name(file)
                    || is_name(&real)
                    || Path::new(library).canonicalize().is_ok_and(|named| named == real);
                is_file && has_entry(function, *address)
            }
        }
    }
}

fn has_entry(function: &WideFunction, address: u64) -> bool {
    function.address == address || function.entries.iter().any(|entry| entry.address == address)
}

/// Which functions to hook, and no others.
#[derive(Debug)]
pub(crate) struct Plans {
    /// Where the hooks read the plans.
    pub(crate) directory: Place,
    pub(crate) functions: Vec<Planned>,
}

/// A function to hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) file: PathBuf,
    /// The name that `dimmer scan` shows.
    pub(crate) title: String,
    /// The entries of the function.
    pub(crate) entries: Vec<PlannedEntry>,
}

/// Writes the plans that hook these functions.
pub(crate) fn plans(program: &launch::Program, wanted: &[Wanted]) -> anyhow::Result<Plans> {
    let (functions, files) = find(program, wanted)?;
    Plans::write(files.iter().map(PathBuf::as_path), functions)
}

/// Finds these functions, and the files in which nothing else is to be hooked.
pub(crate) fn find(
    program: &launch::Program,
    wanted: &[Wanted],
) -> anyhow::Result<(Vec<Planned>, Vec<PathBuf>)> {
    let mut files: Vec<(PathBuf, FileScan)> = Vec::new();
    let mut add = |file: &Path| {
        let Ok(file) = file.canonicalize() else { return };
        if !files.iter().any(|(known, _)| *known == file)
            && let Ok(scan) = scan::scan_narrow_too(&Root::live(), &file)
        {
            files.push((file, scan));
        }
    };
    program.loaded().iter().for_each(|loaded| add(&loaded.file));
    // A library that is loaded later can be named by its file.
    for one in wanted {
        if let Wanted::Place { library, .. } = one {
            add(Path::new(library));
        }
    }
    let mut chosen: BTreeMap<&Path, BTreeMap<u64, &WideFunction>> = BTreeMap::new();
    for one in wanted {
        let found = match one {
            Wanted::Name(name) => by_name(name, &files, &program.file.display().to_string())?,
            Wanted::Place { library, address } => vec![by_place(library, *address, &files)?],
        };
        for (file, function) in found {
            chosen.entry(file).or_default().insert(function.address, function);
        }
    }
    let planned = |(file, functions): (&&Path, &BTreeMap<u64, &WideFunction>)| -> Vec<Planned> {
        let planned = |function: &&WideFunction| Planned {
            file: file.to_path_buf(),
            title: dimmer_report::scan::title(function),
            entries: entries(function).collect(),
        };
        functions.values().map(planned).collect()
    };
    let functions = chosen.iter().flat_map(planned).collect();
    let hookable = files.into_iter().filter(|(_, scan)| !is_own(scan));
    Ok((functions, hookable.map(|(file, _)| file).collect()))
}

impl Plans {
    /// Writes plans that hook these functions, and nothing else in these files.
    pub(crate) fn write<'a>(
        files: impl Iterator<Item = &'a Path>,
        functions: Vec<Planned>,
    ) -> anyhow::Result<Self> {
        let directory = Place::in_memory().context("cannot make a directory for plans")?;
        for file in files {
            let of_it = functions.iter().filter(|planned| planned.file == file);
            let entries = of_it.flat_map(|planned| planned.entries.iter().copied()).collect();
            dimmer_hook::keep_plan(file, entries, directory.path())
                .context("cannot write what to hook")?;
        }
        Ok(Self { directory, functions })
    }
}

/// A function in its file.
type Found<'a> = (&'a Path, &'a WideFunction);

fn is_own(scan: &FileScan) -> bool {
    is_own_ground(scan.soname.as_deref().unwrap_or_default())
}

/// The functions with this name, if any can be hooked.
fn by_name<'a>(
    name: &str,
    files: &'a [(PathBuf, FileScan)],
    program: &str,
) -> anyhow::Result<Vec<Found<'a>>> {
    let (mut found, mut problem): (Vec<Found<'a>>, _) = (Vec::new(), None);
    for (file, scan) in files {
        for function in scan.wide_functions.iter().filter(|function| is_named(function, name)) {
            match why_not(scan, function) {
                None => found.push((file, function)),
                Some(why) => problem = Some(format!("`{name}` of {}: {why}", file.display())),
            }
        }
    }
    if !found.is_empty() {
        return Ok(found);
    }
    if let Some(why) = problem {
        return Err(bad_input(format!("cannot hook {why}")));
    }
    let known = files.iter().flat_map(|(_, scan)| &scan.wide_functions);
    let nearest =
        nearest(name, known.filter(|one| one.name.is_some()).map(dimmer_report::scan::title));
    let hint = if nearest.is_empty() {
        "`dimmer scan --libraries` lists those with wide-vector code".to_owned()
    } else {
        format!("the nearest are {}", nearest.join(", "))
    };
    Err(bad_input(format!(
        "no function `{name}` in {program} or the libraries that it needs; {hint}"
    )))
}

/// The function with an entry at this address.
fn by_place<'a>(
    library: &str,
    address: u64,
    files: &'a [(PathBuf, FileScan)],
) -> anyhow::Result<Found<'a>> {
    let is_it = |(file, scan): &&(PathBuf, FileScan)| {
        let name = file.file_name().and_then(OsStr::to_str);
        name == Some(library)
            || scan.soname.as_deref() == Some(library)
            || Path::new(library).canonicalize().is_ok_and(|real| real == *file)
    };
    let Some((file, scan)) = files.iter().find(is_it) else {
        let names = files.iter().filter_map(|(file, _)| file.file_name()?.to_str());
        let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
        return Err(bad_input(format!(
            "`{library}` is neither a file nor loaded from the start; loaded are {}",
            names.join(", ")
        )));
    };
    if let Some(function) = scan.wide_functions.iter().find(|one| has_entry(one, address)) {
        return match why_not(scan, function) {
            None => Ok((file, function)),
            Some(why) => Err(bad_input(format!("cannot hook {library}:{address:#x}: {why}"))),
        };
    }
    let mut around: Vec<&WideFunction> =
        scan.wide_functions.iter().filter(|function| why_not(scan, function).is_none()).collect();
    around.sort_by_key(|function| function.address.abs_diff(address));
    let shown = |function: &&WideFunction| {
        format!("{:#x} `{}`", function.address, dimmer_report::scan::title(function))
    };
    let around: Vec<String> = around.iter().take(NEAREST).map(shown).collect();
    Err(bad_input(format!(
        "{address:#x} is no entry of a function in {}; the nearest are {}",
        file.display(),
        around.join(", ")
    )))
}

/// The reason why a function cannot be hooked.
fn why_not(scan: &FileScan, function: &WideFunction) -> Option<String> {
    if is_own(scan) {
        return Some("hooks themselves run on this library".to_owned());
    }
    if entries(function).next().is_some() {
        return None;
    }
    Some(function.unhookable_why.clone().unwrap_or_default())
}

/// The entries of a function that can be hooked.
fn entries(function: &WideFunction) -> impl Iterator<Item = PlannedEntry> + '_ {
    let inner = function.entries.iter().map(|entry| (entry.address, entry.hook_bytes));
    let all = [(function.address, function.hook_bytes)].into_iter().chain(inner);
    all.filter_map(|(address, bytes)| Some(PlannedEntry::new(address, bytes?)))
}

/// The names that are most similar to this one, the best first; dissimilar names are left out.
fn nearest(name: &str, known: impl Iterator<Item = String>) -> Vec<String> {
    const ALIKE: f64 = 0.8;
    let likeness = |other: String| (strsim::jaro_winkler(name, &other), other);
    let mut alike: Vec<(f64, String)> =
        known.map(likeness).filter(|(likeness, _)| *likeness >= ALIKE).collect();
    alike.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    alike.dedup_by(|a, b| a.1 == b.1);
    alike.into_iter().take(NEAREST).map(|(_, name)| format!("`{name}`")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_from_names() {
        let name = |name: &str| Wanted::Name(name.to_owned());
        assert_eq!(Wanted::parse("ns::f"), name("ns::f"));
        assert_eq!(Wanted::parse("a:0xzz"), name("a:0xzz"));
        let place = Wanted::Place { library: "libx.so.1".to_owned(), address: 0x12f0 };
        assert_eq!(Wanted::parse("libx.so.1:0x12f0"), place);
    }

    #[test]
    fn functions_without_a_name_are_named_by_their_address() {
        let mut function = WideFunction { address: 0x1ca70, ..WideFunction::default() };
        let is = |function: &WideFunction, name: &str| {
            Wanted::parse(name).is(Path::new("/l/libx.so"), function)
        };
        assert!(is(&function, "0x1ca70") && is(&function, "libx.so:0x1ca70"));
        assert!(!is(&function, "0x1ca71") && !is(&function, "liby.so:0x1ca70"));
        assert_eq!(dimmer_report::scan::title(&function), "0x1ca70");
        function.name = Some("f".to_owned());
        assert!(is(&function, "f") && !is(&function, "0x1ca70"));
    }

    #[test]
    fn nearest_names_come_first_and_others_not_at_all() {
        let known = ["memcpy", "poly1305_block", "poly1305_blocks_avx512", "poly1305_blocks"];
        let found = nearest("poly1305_bloks", known.iter().map(|name| (*name).to_owned()));
        assert_eq!(found, ["`poly1305_blocks`", "`poly1305_block`", "`poly1305_blocks_avx512`"]);
        assert!(nearest("xyz", known.iter().map(|name| (*name).to_owned())).is_empty());
    }
}
