//! Functions that the user names: in the files that a program loads from the start, or by address
//! in a library.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use dimmer_hook::{PlannedEntry, is_own_ground};
use dimmer_host::root::Root;
use dimmer_observe::Place;
use dimmer_policy::phases::Mark;
use dimmer_scan::{Function, Scan};

use crate::LaunchError;
use crate::names;
use crate::program::Program;

/// Number of similar names that are suggested for a wrong one.
const NEAREST: usize = 3;

/// Whether the user may mean a function with this symbol and address: by its symbol, or as
/// `dimmer scan` shows it, which is by address if it has no symbol.
fn is_named(symbol: Option<&str>, start: u64, name: &str) -> bool {
    match symbol {
        Some(known) => known == name || dimmer_scan::title(symbol, start) == name,
        None => address(name) == Some(start),
    }
}

/// Whether the user may mean a function with this symbol by its short name, if no function has the
/// name itself.
fn is_named_short(symbol: Option<&str>, name: &str) -> bool {
    symbol.is_some_and(|symbol| dimmer_scan::short(symbol) == name)
}

/// Parses a hexadecimal number after `0x`.
fn address(text: &str) -> Option<u64> {
    text.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok())
}

/// A function that the user has named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// By symbol, or as `dimmer scan` shows it: `0x` and the address if it has no symbol. In C++
    /// also without the types of the arguments, if only one function is called so.
    Name(String),
    /// By a library's file or file name, and the address of an entry in it.
    Place {
        /// The file or its name.
        library: String,
        /// The address in the file.
        address: u64,
    },
}

impl Wanted {
    /// Parses `NAME`, or `LIBRARY:OFFSET` with a hexadecimal offset after `0x`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let place = text.rsplit_once(":0x").and_then(|(library, offset)| {
            let address = u64::from_str_radix(offset, 16).ok()?;
            Some(Self::Place { library: library.to_owned(), address })
        });
        place.unwrap_or_else(|| Self::Name(text.to_owned()))
    }

    /// The functions of these files that are meant.
    fn found<'a>(
        &self,
        files: &'a [(PathBuf, Scan)],
        program: &Program,
    ) -> Result<Vec<Found<'a>>, LaunchError> {
        match self {
            Self::Name(name) => by_name(name, files, program),
            Self::Place { library, address } => Ok(vec![by_place(library, *address, files)?]),
        }
    }

    /// Whether this is a function of this file with this symbol or, given an address, has an entry
    /// there. A short name counts also if another function has the name itself. `entries` are the
    /// addresses of its entries, its start first.
    #[must_use]
    pub fn is(&self, file: &Path, symbol: Option<&str>, entries: &[u64]) -> bool {
        match self {
            Self::Name(name) => {
                entries.first().is_some_and(|start| is_named(symbol, *start, name))
                    || is_named_short(symbol, name)
            }
            Self::Place { library, address } => {
                let real = file.canonicalize().unwrap_or_else(|_| file.to_path_buf());
                let is_name =
                    |path: &Path| path.file_name().and_then(OsStr::to_str) == Some(library);
                let is_file = is_name(file)
                    || is_name(&real)
                    || Path::new(library).canonicalize().is_ok_and(|named| named == real);
                is_file && entries.contains(address)
            }
        }
    }
}

/// The addresses of a function's entries, its start first, whether they can be hooked or not.
fn all_entries(function: &Function) -> impl Iterator<Item = u64> + '_ {
    let start = function.addresses.start;
    let inner = function.entries.iter().map(move |entry| start + u64::from(entry.offset));
    [start].into_iter().chain(inner)
}

/// The name that `dimmer scan` shows.
pub(crate) fn title(function: &Function) -> String {
    dimmer_scan::title(function.name.as_deref(), function.addresses.start)
}

/// Which functions to hook, and no others.
#[derive(Debug)]
pub(crate) struct Plans {
    /// Where the hooks read the plans.
    pub(crate) directory: Place,
    pub(crate) functions: Vec<Planned>,
    /// The names of the marks among them, by their numbers.
    pub(crate) marks: Vec<String>,
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

/// Writes the plans that hook these functions of a program.
pub(crate) fn plans(program: &Program, wanted: &[Wanted]) -> Result<Plans, LaunchError> {
    let (functions, files) = find(program, wanted)?;
    Plans::write(files.iter().map(PathBuf::as_path), functions)
}

/// Finds these functions, and the files in which nothing else is to be hooked.
pub(crate) fn find(
    program: &Program,
    wanted: &[Wanted],
) -> Result<(Vec<Planned>, Vec<PathBuf>), LaunchError> {
    let files = scans(program, wanted);
    let mut chosen: BTreeMap<&Path, BTreeMap<u64, &Function>> = BTreeMap::new();
    for one in wanted {
        for (file, function) in one.found(&files, program)? {
            chosen.entry(file).or_default().insert(function.addresses.start, function);
        }
    }
    let planned = |(file, functions): (&&Path, &BTreeMap<u64, &Function>)| -> Vec<Planned> {
        // Each entry belongs to one function, or its calls would be decided twice.
        let mut taken: BTreeSet<u64> = functions.keys().copied().collect();
        let mut planned = |function: &&Function| {
            let leaders = function.hookable_leaders().filter(|(start, _)| taken.insert(*start));
            let leaders = leaders.map(|(start, displaced)| PlannedEntry::new(start, displaced));
            Planned {
                file: file.to_path_buf(),
                title: title(function),
                entries: planned_entries(function).chain(leaders).collect(),
            }
        };
        functions.values().map(&mut planned).collect()
    };
    let functions = chosen.iter().flat_map(planned).collect();
    Ok((functions, hookable(files)))
}

/// Likewise, each by itself: `planned` gets the number of what was wanted, and a function that it
/// is. A function that is wanted twice is planned once.
///
/// # Errors
/// The number of what was wanted, and why it is not planned.
pub(crate) fn find_each(
    program: &Program,
    wanted: &[Wanted],
    planned: impl Fn(usize, Found<'_>) -> Result<Planned, LaunchError>,
) -> Result<(Vec<Planned>, Vec<PathBuf>), (usize, LaunchError)> {
    let files = scans(program, wanted);
    let (mut functions, mut taken) = (Vec::new(), BTreeSet::new());
    for (number, one) in wanted.iter().enumerate() {
        let found = one.found(&files, program).map_err(|error| (number, error))?;
        for (file, function) in found {
            if taken.insert((file, function.addresses.start)) {
                let planned = planned(number, (file, function));
                functions.push(planned.map_err(|error| (number, error))?);
            }
        }
    }
    drop(taken);
    Ok((functions, hookable(files)))
}

/// Why one of the functions that are wanted is not there.
pub(crate) struct NotFound {
    /// Which of those that are wanted.
    pub(crate) at: usize,
    pub(crate) why: LaunchError,
    /// The names of the files that were searched.
    pub(crate) files: Vec<String>,
}

/// Finds the one function that each of these means, in their order, and the files in which nothing
/// else is to be hooked.
///
/// # Errors
/// [`NotFound`]: also if several functions have the name, in one file or in several.
pub(crate) fn find_one_each<T>(
    program: &Program,
    wanted: &[Wanted],
    planned: impl Fn(Found<'_>) -> Result<T, LaunchError>,
) -> Result<(Vec<T>, Vec<PathBuf>), NotFound> {
    let files = scans(program, wanted);
    let find = |one: &Wanted| {
        let found = one.found(&files, program)?;
        if let Wanted::Name(name) = one {
            only(name, &files)?;
        }
        planned(*found.first().ok_or(LaunchError::Choice)?)
    };
    let mut all = Vec::new();
    for (at, one) in wanted.iter().enumerate() {
        all.push(find(one).map_err(|why| {
            let names = files.iter().filter_map(|(file, _)| file.file_name()?.to_str());
            NotFound { at, why, files: names.map(str::to_owned).collect() }
        })?);
    }
    Ok((all, hookable(files)))
}

/// Checks that one function alone has this name, also if others cannot be hooked.
fn only(name: &str, files: &[(PathBuf, Scan)]) -> Result<(), LaunchError> {
    let all =
        || files.iter().flat_map(|(file, scan)| scan.functions.iter().map(move |of| (file, of)));
    let is_it = |of: &Function| is_named(of.name.as_deref(), of.addresses.start, name);
    let is_short = |of: &Function| is_named_short(of.name.as_deref(), name);
    let has_it = all().any(|(_, of)| is_it(of));
    let meant = all().filter(|(_, of)| if has_it { is_it(of) } else { is_short(of) });
    let place = |(file, of): (&PathBuf, &Function)| {
        let library = file.file_name().unwrap_or_default().to_string_lossy();
        format!("`{library}:{:#x}`", of.addresses.start)
    };
    let functions: Vec<String> = meant.map(place).collect();
    if functions.len() > 1 {
        return Err(LaunchError::Ambiguous { name: name.to_owned(), functions });
    }
    Ok(())
}

/// Functions of which some are to be chosen.
pub(crate) struct Candidates {
    /// Their names, by number.
    pub(crate) names: Vec<String>,
    pub(crate) functions: Vec<Planned>,
    /// The files in which nothing else is to be hooked.
    pub(crate) files: Vec<PathBuf>,
}

/// The functions of a program and its libraries that have a name and can be hooked, by the names
/// that [`Wanted::parse`] takes, except in files with an allocator for the program, as a thread's
/// first mark allocates. If there are more than `most` names, those of the program's own
/// file come first, then those of each library in the order of loading, and in a file the longest
/// functions. (A guess: short functions are more often those that all others call.)
///
/// `planned` gets the number of the name, and a function that it is.
pub(crate) fn candidates(
    program: &Program,
    most: usize,
    planned: impl Fn(usize, Found<'_>) -> Result<Planned, LaunchError>,
) -> Result<Candidates, LaunchError> {
    let files = scans(program, &[]);
    let names = Short::of(&files);
    let (mut numbers, mut functions) = (BTreeMap::new(), Vec::new());
    let may_have_marks = |(file, scan): &&(PathBuf, Scan)| !is_own(scan) && !allocates(file);
    for (file, scan) in files.iter().filter(may_have_marks) {
        let mut known: Vec<&Function> = scan.functions.iter().collect();
        known.sort_by_key(|one| Reverse(one.addresses.end.saturating_sub(one.addresses.start)));
        for function in known.into_iter().filter(|one| planned_entries(one).next().is_some()) {
            let name = function.name.as_deref().and_then(|symbol| names.best(symbol));
            let next = numbers.len();
            if let Some(name) = name.filter(|name| next < most || numbers.contains_key(name)) {
                let number = *numbers.entry(name).or_insert(next);
                functions.push(planned(number, (file, function))?);
            }
        }
    }
    let mut names: Vec<(usize, String)> =
        numbers.into_iter().map(|(name, number)| (number, name)).collect();
    names.sort_unstable();
    let names = names.into_iter().map(|(_, name)| name).collect();
    Ok(Candidates { names, functions, files: hookable(files) })
}

/// Whether the program may allocate by functions of this file. Also if it cannot be read.
fn allocates(file: &Path) -> bool {
    const ALLOCATING: [&str; 3] = ["malloc", "calloc", "realloc"];
    let bytes = dimmer_host::program::read(file);
    bytes.ok().is_none_or(|bytes| dimmer_scan::defines_any(&bytes, &ALLOCATING).unwrap_or(true))
}

/// The short names of all functions, each with the whole names of those that have it.
struct Short(BTreeMap<String, BTreeSet<String>>);

impl Short {
    fn of(files: &[(PathBuf, Scan)]) -> Self {
        let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let functions = files.iter().flat_map(|(_, scan)| &scan.functions);
        for symbol in functions.filter_map(|one| one.name.as_deref()) {
            let whole = dimmer_scan::plain(symbol);
            names.entry(dimmer_scan::short(symbol)).or_default().insert(whole);
        }
        Self(names)
    }

    /// The name of the function with this symbol for users: the short one, if it means no other
    /// function, else the symbol. `None` if a list on a command line, or a graph, cannot hold it.
    fn best(&self, symbol: &str) -> Option<String> {
        let short = dimmer_scan::short(symbol);
        let is_one = self.0.get(&short).is_none_or(|whole| whole.len() == 1);
        let names = [Some(short).filter(|_| is_one), Some(symbol.to_owned())];
        let is_possible =
            |name: &String| !name.contains([',', '\'', '"', '\\']) && Mark::new(name).is_ok();
        names.into_iter().flatten().find(is_possible)
    }
}

/// The files that the program loads from its start, and those that are named, with their functions.
fn scans(program: &Program, wanted: &[Wanted]) -> Vec<(PathBuf, Scan)> {
    let mut files: Vec<(PathBuf, Scan)> = Vec::new();
    let mut add = |file: &Path| {
        let Ok(file) = file.canonicalize() else { return };
        if !files.iter().any(|(known, _)| *known == file)
            && let Ok(named) = names::scan(&Root::live(), &file)
        {
            files.push((file, named.scan));
        }
    };
    program.loaded().iter().for_each(|loaded| add(&loaded.file));
    // A library that is loaded later can be named by its file.
    for one in wanted {
        if let Wanted::Place { library, .. } = one {
            add(Path::new(library));
        }
    }
    files
}

/// The files in which something can be hooked.
fn hookable(files: Vec<(PathBuf, Scan)>) -> Vec<PathBuf> {
    files.into_iter().filter(|(_, scan)| !is_own(scan)).map(|(file, _)| file).collect()
}

impl Plans {
    /// Writes plans that hook these functions, and nothing else in these files.
    pub(crate) fn write<'a>(
        files: impl Iterator<Item = &'a Path>,
        functions: Vec<Planned>,
    ) -> Result<Self, LaunchError> {
        let directory = Place::in_memory().map_err(LaunchError::PlanPlace)?;
        for file in files {
            let of_it = functions.iter().filter(|planned| planned.file == file);
            let entries = of_it.flat_map(|planned| planned.entries.iter().copied()).collect();
            dimmer_hook::keep_plan(file, entries, directory.path()).map_err(LaunchError::Plan)?;
        }
        Ok(Self { directory, functions, marks: Vec::new() })
    }
}

/// A function in its file.
pub(crate) type Found<'a> = (&'a Path, &'a Function);

fn is_own(scan: &Scan) -> bool {
    is_own_ground(scan.soname.as_deref().unwrap_or_default())
}

/// The functions with this name. If there is none, those with this short name, if it is that of one
/// function.
fn by_name<'a>(
    name: &str,
    files: &'a [(PathBuf, Scan)],
    program: &Program,
) -> Result<Vec<Found<'a>>, LaunchError> {
    let known = || files.iter().flat_map(|(_, scan)| &scan.functions);
    let is_it =
        |function: &Function| is_named(function.name.as_deref(), function.addresses.start, name);
    if known().any(is_it) {
        return hookable_of(name, files, is_it);
    }
    let is_it = |function: &Function| is_named_short(function.name.as_deref(), name);
    let symbols: BTreeSet<&str> =
        known().filter(|one| is_it(one)).filter_map(|one| one.name.as_deref()).collect();
    let meant: BTreeSet<String> = symbols.iter().map(|one| dimmer_scan::plain(one)).collect();
    match meant.len() {
        0 => {
            let nearest = nearest(name, known().filter(|one| one.name.is_some()).map(title));
            let (name, program) = (name.to_owned(), program.file.clone());
            Err(LaunchError::NoFunction { name, program, nearest })
        }
        1 => hookable_of(name, files, is_it),
        _ => {
            let shown = |symbol: &&str| format!("`{symbol}` ({})", dimmer_scan::plain(symbol));
            let functions = symbols.iter().map(shown).collect();
            Err(LaunchError::Ambiguous { name: name.to_owned(), functions })
        }
    }
}

/// The functions of which `is_it` is true and that can be hooked.
///
/// # Errors
/// If it is true only of functions that cannot be hooked.
fn hookable_of<'a>(
    name: &str,
    files: &'a [(PathBuf, Scan)],
    is_it: impl Fn(&Function) -> bool,
) -> Result<Vec<Found<'a>>, LaunchError> {
    let (mut found, mut problem): (Vec<Found<'a>>, _) = (Vec::new(), None);
    for (file, scan) in files {
        for function in scan.functions.iter().filter(|function| is_it(function)) {
            match why_not(scan, function) {
                None => found.push((file, function)),
                Some(why) => problem = Some((format!("`{name}` of {}", file.display()), why)),
            }
        }
    }
    match problem.filter(|_| found.is_empty()) {
        Some((what, why)) => Err(LaunchError::CannotHook { what, why }),
        None => Ok(found),
    }
}

/// The function with an entry at this address.
fn by_place<'a>(
    library: &str,
    address: u64,
    files: &'a [(PathBuf, Scan)],
) -> Result<Found<'a>, LaunchError> {
    let is_it = |(file, scan): &&(PathBuf, Scan)| {
        let name = file.file_name().and_then(OsStr::to_str);
        name == Some(library)
            || scan.soname.as_deref() == Some(library)
            || Path::new(library).canonicalize().is_ok_and(|real| real == *file)
    };
    let Some((file, scan)) = files.iter().find(is_it) else {
        let names = files.iter().filter_map(|(file, _)| file.file_name()?.to_str());
        let loaded = names.map(str::to_owned).collect();
        return Err(LaunchError::NoFile { library: library.to_owned(), loaded });
    };
    let has_entry = |function: &&Function| all_entries(function).any(|entry| entry == address);
    if let Some(function) = scan.functions.iter().find(has_entry) {
        return match why_not(scan, function) {
            None => Ok((file, function)),
            Some(why) => {
                let what = format!("{library}:{address:#x}");
                Err(LaunchError::CannotHook { what, why })
            }
        };
    }
    let mut around: Vec<&Function> =
        scan.functions.iter().filter(|function| why_not(scan, function).is_none()).collect();
    around.sort_by_key(|function| function.addresses.start.abs_diff(address));
    let shown =
        |function: &&Function| format!("{:#x} `{}`", function.addresses.start, title(function));
    let nearest = around.iter().take(NEAREST).map(shown).collect();
    Err(LaunchError::NoEntry { address, file: file.clone(), nearest })
}

/// The reason why a function cannot be hooked.
fn why_not(scan: &Scan, function: &Function) -> Option<String> {
    if is_own(scan) {
        return Some("hooks themselves run on this library".to_owned());
    }
    if function.hookable_entries().chain(function.hookable_leaders()).next().is_some() {
        return None;
    }
    Some(function.hook.err().map(|reason| reason.to_string()).unwrap_or_default())
}

/// The entries of a function that can be hooked.
pub(crate) fn planned_entries(function: &Function) -> impl Iterator<Item = PlannedEntry> + '_ {
    let entries = function.hookable_entries();
    entries.map(|(address, displaced)| PlannedEntry::new(address, displaced))
}

/// The names that are most similar to this one, the best first; dissimilar names are left out.
fn nearest(name: &str, known: impl Iterator<Item = String>) -> Vec<String> {
    const ALIKE: f64 = 0.8;
    let likeness = |other: String| (strsim::jaro_winkler(name, &other), other);
    let mut alike: Vec<(f64, String)> =
        known.map(likeness).filter(|(likeness, _)| *likeness >= ALIKE).collect();
    alike.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    alike.dedup_by(|a, b| a.1 == b.1);
    alike.into_iter().take(NEAREST).map(|(_, name)| name).collect()
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
        let is = |symbol: Option<&str>, name: &str| {
            Wanted::parse(name).is(Path::new("/l/libx.so"), symbol, &[0x1ca70, 0x1ca80])
        };
        assert!(is(None, "0x1ca70") && is(None, "libx.so:0x1ca70"));
        assert!(is(None, "libx.so:0x1ca80") && !is(None, "0x1ca80"));
        assert!(!is(None, "0x1ca71") && !is(None, "liby.so:0x1ca70"));
        assert!(is(Some("f"), "f") && !is(Some("f"), "0x1ca70"));
    }

    #[test]
    fn nearest_names_come_first_and_others_not_at_all() {
        let known = ["memcpy", "poly1305_block", "poly1305_blocks_avx512", "poly1305_blocks"];
        let found = nearest("poly1305_bloks", known.iter().map(|name| (*name).to_owned()));
        assert_eq!(found, ["poly1305_blocks", "poly1305_block", "poly1305_blocks_avx512"]);
        assert!(nearest("xyz", known.iter().map(|name| (*name).to_owned())).is_empty());
    }
}
