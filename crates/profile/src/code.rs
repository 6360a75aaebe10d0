//! The function at each place of a profile, and the instruction classes around it, from the files
//! that were run.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::PathBuf;

use dimmer_host::bounded_file::{self, BoundedFileError};
use dimmer_host::program;
use dimmer_host::root::Root;
use dimmer_launch::names::{Name, Sources};
use dimmer_processor::class::InstructionClass;
use dimmer_scan::{Code, Function as Scanned, Near, Scan, near_in};

use crate::jitdump::JitDump;
use crate::perf_map::PerfMap;
use crate::{File, Place, Profile, names_process};

/// Longer files with names of generated code are not read (bytes). A guess: a large Java server's
/// has some 10 MB, and with the code 100 MB.
const LONGEST_MAP: u64 = 1 << 28;
const LONGEST_DUMP: u64 = 1 << 30;

/// Where the files of a profile are.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The file system of the machine that was profiled, or one like it.
    pub root: Root,
    /// The directory with files `perf-PID.map` and `jit-PID.dump`. Without one it is `/tmp`, and a
    /// jitdump that the process has mapped goes before those there.
    pub maps: Option<PathBuf>,
}

/// What kind of code a sample lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Around {
    /// The kernel's, which is not looked at.
    Kernel,
    /// Code whose instructions are not known: generated, or of a file that is not there.
    Unknown,
    /// No instruction of more than 128 bits is near.
    Narrow,
    /// Wide instructions are near.
    Wide {
        /// The most demanding class of them.
        class: InstructionClass,
        /// Whether one of them names a 512-bit register.
        uses_zmm: bool,
    },
}

impl From<Near> for Around {
    fn from(near: Near) -> Self {
        match near {
            Near { class, uses_zmm } if class >= InstructionClass::Light256 => {
                Self::Wide { class, uses_zmm }
            }
            Near { .. } => Self::Narrow,
        }
    }
}

/// A function that a place lies in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Function {
    /// A function of a file.
    OfFile {
        /// Index of the file.
        file: u32,
        /// Its symbol.
        name: Option<String>,
        /// Its address in the file; `None` if the file is not there.
        address: Option<u64>,
    },
    /// Code in no file, such as generated code.
    Generated {
        /// Its name; `None` if neither `jit-PID.dump` nor `perf-PID.map` has it.
        name: Option<String>,
    },
    /// Anything in the kernel.
    Kernel,
    /// At no known place.
    Unknown,
}

/// What is at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Index of the function.
    pub function: usize,
    /// The code around the place.
    pub around: Around,
}

/// What is at the places of a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    found: BTreeMap<Place, Found>,
    /// The functions.
    pub functions: Vec<Function>,
    /// The most demanding class of all instructions of each function that was scanned.
    pub classes: BTreeMap<usize, InstructionClass>,
    /// Files whose code is not known, with the reason.
    pub failed: BTreeMap<u32, String>,
    /// Files with generated code that cannot be read, with the reason.
    pub unread: BTreeMap<PathBuf, String>,
}

impl Places {
    /// Looks up all places of a profile: scans the files that have samples, each once, some tens of
    /// milliseconds a file.
    ///
    /// * `on_file`: called with the path of each file before it is read.
    #[must_use]
    pub fn of(profile: &Profile, machine: &Machine, mut on_file: impl FnMut(&str)) -> Self {
        let mut lookup = Lookup { places: Self::default(), numbers: BTreeMap::new() };
        let all = profile.stacks.keys().flat_map(|stack| stack.frames.iter().copied());
        let all: BTreeSet<Place> = all.collect();
        let mut by_file: BTreeMap<u32, Vec<Place>> = BTreeMap::new();
        let mut by_process: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for place in all {
            match place {
                Place::Offset { file, .. } | Place::Symbol { file, .. } => {
                    by_file.entry(file).or_default().push(place)
                }
                Place::Kernel => lookup.add(place, Function::Kernel, Around::Kernel),
                Place::Unknown => {
                    lookup.add(place, Function::Unknown, Around::Unknown);
                }
                Place::Memory { pid, address } => by_process.entry(pid).or_default().push(address),
            }
        }
        for (pid, addresses) in by_process {
            lookup.generated(profile, machine, pid, &addresses);
        }
        for (number, places) in by_file {
            let Some(file) = profile.files.get(number as usize) else { continue };
            on_file(&file.path);
            lookup.file(profile, machine, (number, file), &places);
        }
        lookup.places
    }

    /// What is at a place of the profile.
    #[must_use]
    pub fn at(&self, place: &Place) -> Option<&Found> {
        self.found.get(place)
    }
}

/// The path of a jitdump, and its content if it is there.
type Dump = (PathBuf, Option<Vec<u8>>);

struct Lookup {
    places: Places,
    /// Indices of functions.
    numbers: BTreeMap<Function, usize>,
}

impl Lookup {
    fn add(&mut self, place: Place, function: Function, around: Around) {
        let number = self.number(function);
        self.places.found.insert(place, Found { function: number, around });
    }

    fn number(&mut self, function: Function) -> usize {
        if let Some(number) = self.numbers.get(&function) {
            return *number;
        }
        let number = self.places.functions.len();
        self.places.functions.push(function.clone());
        self.numbers.insert(function, number);
        number
    }

    /// Looks up places of a process in code that it has generated.
    fn generated(&mut self, profile: &Profile, machine: &Machine, pid: u32, addresses: &[u64]) {
        let (path, bytes) = machine.dump(profile, pid).unwrap_or_else(|(path, error)| {
            self.places.unread.insert(path.clone(), error.to_string());
            (path, None)
        });
        let dump = bytes.as_deref().map_or_else(|| Ok(JitDump::default()), JitDump::read);
        let dump = dump.unwrap_or_else(|error| {
            self.places.unread.insert(path, error.to_string());
            JitDump::default()
        });
        let map = machine.map(pid);
        let mut by_function: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for address in addresses.iter().copied() {
            if let Some(function) = dump.at(address) {
                by_function.entry(function.addresses.start).or_default().push(address);
                continue;
            }
            let name = map.at(address).map(|(_, name)| name.to_owned());
            let place = Place::Memory { pid, address };
            self.add(place, Function::Generated { name }, Around::Unknown);
        }
        for (start, addresses) in by_function {
            let Some(function) = dump.at(start) else { continue };
            let (whole, near) = near_in(function.code, start, &addresses);
            let own = self.number(Function::Generated { name: Some(function.name.clone()) });
            let class = self.places.classes.entry(own).or_insert(whole.class);
            *class = (*class).max(whole.class);
            for (address, near) in addresses.into_iter().zip(near) {
                let found = Found { function: own, around: near.into() };
                self.places.found.insert(Place::Memory { pid, address }, found);
            }
        }
    }

    /// Looks up places of one file.
    fn file(&mut self, profile: &Profile, machine: &Machine, of: (u32, &File), places: &[Place]) {
        let (number, file) = of;
        // `perf script` gives generated code the file that its name is from, pprof none.
        if names_process(&file.path, "perf-", ".map") || file.path.is_empty() {
            for place in places {
                let name = profiled_name(profile, place).map(str::to_owned);
                self.add(*place, Function::Generated { name }, Around::Unknown);
            }
            return;
        }
        if let Err(why) = self.scanned(profile, machine, of, places) {
            self.places.failed.insert(number, why);
            for place in places {
                let name = profiled_name(profile, place).map(str::to_owned);
                let function = Function::OfFile { file: number, name, address: None };
                self.add(*place, function, Around::Unknown);
            }
        }
    }

    /// Looks up places of one file in its scan.
    fn scanned(
        &mut self,
        profile: &Profile,
        machine: &Machine,
        (number, file): (u32, &File),
        places: &[Place],
    ) -> Result<(), String> {
        let (path, bytes) = machine.find(file)?;
        let scan = dimmer_scan::scan(&bytes).map_err(|error| error.to_string())?;
        let code = Code::read(&bytes).map_err(|error| error.to_string())?;
        let mut by_function: BTreeMap<usize, Vec<(Place, Option<u64>)>> = BTreeMap::new();
        let mut unknown = Vec::new();
        let index = Names::new(&scan, places);
        for place in places {
            let found = match place {
                Place::Offset { offset, .. } => code
                    .address(*offset)
                    .and_then(|address| Some((function_at(&scan, address)?, Some(address)))),
                Place::Symbol { distance, .. } => {
                    let name = profiled_name(profile, place).unwrap_or_default();
                    index.find(name).map(|function| {
                        let start = scan.functions[function].addresses.start;
                        (function, distance.map(|distance| start.saturating_add(distance)))
                    })
                }
                _ => None,
            };
            match found {
                Some((function, address)) => {
                    by_function.entry(function).or_default().push((*place, address));
                }
                None => unknown.push(*place),
            }
        }
        for place in unknown {
            let name = profiled_name(profile, &place).map(str::to_owned);
            let function = Function::OfFile { file: number, name, address: None };
            self.add(place, function, Around::Unknown);
        }
        let functions: Vec<&Scanned> =
            by_function.keys().map(|function| &scan.functions[*function]).collect();
        let mut names: Vec<Option<Name>> = functions.iter().map(|one| Name::own(one)).collect();
        let ranges: Vec<_> = functions.iter().map(|one| one.addresses.clone()).collect();
        Sources::find(&machine.root, &path, &bytes).name(&bytes, &ranges, &mut names);
        for ((places, function), name) in by_function.values().zip(functions).zip(names) {
            let name = name.map(|name| name.symbol);
            let address = Some(function.addresses.start);
            let own = self.number(Function::OfFile { file: number, name, address });
            if let Some(class) = function.heaviest() {
                self.places.classes.insert(own, class);
            }
            let whole = Near {
                class: function.heaviest().unwrap_or(InstructionClass::Scalar),
                uses_zmm: function.zmm > 0,
            };
            let addresses: Vec<u64> = places.iter().filter_map(|(_, address)| *address).collect();
            let mut near = code.near(function, &addresses).into_iter();
            for (place, address) in places {
                // Where the profile has only the name, all of the function counts.
                let one = address.and_then(|_| near.next()).unwrap_or(whole);
                self.places.found.insert(*place, Found { function: own, around: one.into() });
            }
        }
        Ok(())
    }
}

/// The name that the profile has for a place.
fn profiled_name<'a>(profile: &'a Profile, place: &Place) -> Option<&'a str> {
    let Place::Symbol { symbol, .. } = place else { return None };
    profile.symbols.get(*symbol as usize).map(String::as_str)
}

/// Index of the function at an address.
fn function_at(scan: &Scan, address: u64) -> Option<usize> {
    let after = scan.functions.partition_point(|known| known.addresses.start <= address);
    let index = after.checked_sub(1)?;
    scan.functions[index].addresses.contains(&address).then_some(index)
}

/// Functions of a file by name, as the file has it and as programmers write it.
struct Names(BTreeMap<String, usize>);

impl Names {
    fn new(scan: &Scan, places: &[Place]) -> Self {
        let mut names = BTreeMap::new();
        if places.iter().any(|place| matches!(place, Place::Symbol { .. })) {
            for (number, function) in scan.functions.iter().enumerate() {
                if let Some(name) = &function.name {
                    names.entry(dimmer_scan::plain(name)).or_insert(number);
                    names.entry(name.clone()).or_insert(number);
                }
            }
        }
        Self(names)
    }

    /// Symbols of the C library have their version after the name: `read@@GLIBC_2.2.5`.
    fn find(&self, name: &str) -> Option<usize> {
        let name =
            name.split_once('@').filter(|(_, after)| *after != "plt").map_or(name, |(n, _)| n);
        self.0.get(name).copied()
    }
}

impl Machine {
    /// The directory with files about generated code.
    fn maps(&self) -> PathBuf {
        self.maps.clone().unwrap_or_else(|| self.root.path("/tmp"))
    }

    /// The path and content of a process's jitdump; no content if there is none.
    ///
    /// # Errors
    /// Its path, and why it cannot be read.
    fn dump(&self, profile: &Profile, pid: u32) -> Result<Dump, (PathBuf, BoundedFileError)> {
        let usual = self.maps().join(format!("jit-{pid}.dump"));
        let mapped = profile.jitdumps.get(&pid).map(|path| self.root.path(path));
        let mut paths: Vec<PathBuf> = mapped.into_iter().chain([usual.clone()]).collect();
        if self.maps.is_some() {
            paths.reverse();
        }
        for path in paths {
            match bounded_file::read(&path, LONGEST_DUMP) {
                Ok(bytes) => return Ok((path, Some(bytes))),
                Err(BoundedFileError::Unreadable { source, .. })
                    if source.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err((path, error)),
            }
        }
        Ok((usual, None))
    }

    /// The names of a process's generated code; none if there is no such file.
    fn map(&self, pid: u32) -> PerfMap {
        let path = self.maps().join(format!("perf-{pid}.map"));
        let bytes = bounded_file::read(&path, LONGEST_MAP).unwrap_or_default();
        PerfMap::read(&String::from_utf8_lossy(&bytes))
    }

    /// The path and content of the file that was run: at its own path, or where `perf` keeps files
    /// by build id.
    ///
    /// # Errors
    /// Why there is none.
    fn find(&self, file: &File) -> Result<(PathBuf, Vec<u8>), String> {
        let wanted = file.build_id.as_deref().filter(|id| !id.is_empty());
        let own = self.root.path(&file.path);
        let cached = wanted.and_then(cached);
        let mut why = String::new();
        for path in [Some(own), cached].into_iter().flatten() {
            let bytes = match program::read(&path) {
                Ok(bytes) => bytes,
                Err(error) => {
                    why = if why.is_empty() { error.to_string() } else { why };
                    continue;
                }
            };
            let found = dimmer_scan::build_id(&bytes).map_err(|error| error.to_string())?;
            if wanted.is_none() || found.as_deref() == wanted {
                return Ok((path, bytes));
            }
            let hexadecimal =
                |id: &[u8]| -> String { id.iter().map(|byte| format!("{byte:02x}")).collect() };
            why = format!(
                "another file than the one that ran: its build id is {}, that of the profile {}",
                found.as_deref().map_or("missing".to_owned(), hexadecimal),
                hexadecimal(wanted.unwrap_or_default()),
            );
        }
        Err(why)
    }
}

/// Where `perf record` and `perf buildid-cache` keep the file of this build id.
fn cached(build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty())?;
    Some(PathBuf::from(home).join(format!(".debug/.build-id/{first:02x}/{rest}/elf")))
}
