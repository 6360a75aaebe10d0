//! Finds wide SIMD functions in x86-64 ELF files without running them.
//!
//! [`scan`] takes the bytes of a program or library. It returns every function with its
//! instructions by class, its hot loops, and whether its entry can be hooked. The caller reads the
//! files, and decides what to do about a function.
//!
//! Functions are found by symbols, by frames (`.eh_frame`), and, where neither describes the code,
//! by references to it. Hand-written assembly needs the last: the assembly of x264 and x265 has no
//! frames, and no symbols once stripped, yet it holds all their AVX-512 code.
#![forbid(unsafe_code)]

mod analysis;
mod archive;
mod balance;
mod callers;
mod classify;
mod elf;
mod error;
mod frames;
mod function;
mod hook;
mod inner;
mod leaf;
mod loader;
mod loops;
mod marks;
mod names;
mod near;
mod runtime;
mod seeds;
mod starts;
mod survey;
mod title;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_processor::units::LicenseLevel;
use iced_x86::{Decoder, DecoderOptions, Instruction};

pub use archive::Archive;
pub use callers::Callers;
pub use classify::classify;
pub use error::{Machine, ScanError};
pub use function::{ClassCounts, Entry, Function, HotLoop, Leader, Origin, level};
pub use hook::Unhookable;
pub use leaf::{Leaf, Leaves, NotLeaf, Width};
pub use loader::{Name, Refused, Start, start};
pub use names::{DebugLink, Names, debug_link, embedded_debug_file};
pub use near::{Near, near_in};
pub use runtime::{Runtime, UnknownRuntime, runtime};
pub use title::{plain, short, title};

use analysis::{Analyser, Analysis};
use balance::{Verdict, Ways};
use elf::Image;
use frames::Frame;
use seeds::{Evidence, Gap};
use starts::Known;
use survey::Survey;

/// The contents of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// The build id, which identifies the file; `None` if it was linked without one.
    pub build_id: Option<Vec<u8>>,
    /// The name under which other files need this one; `None` for programs.
    pub soname: Option<String>,
    /// Names of the needed libraries, in the order in which the loader takes them.
    pub needed: Vec<String>,
    /// Directories that the loader searches for them first; `$ORIGIN` is the file's own.
    pub runpath: Vec<String>,
    /// All functions, by address and disjoint.
    pub functions: Vec<Function>,
    /// Sums over all functions.
    pub totals: Totals,
}

impl Scan {
    /// Every function with the license level that it requests on a processor.
    pub fn levels<'a>(
        &'a self,
        model: &'a Model,
    ) -> impl Iterator<Item = (&'a Function, LicenseLevel)> + 'a {
        self.functions.iter().map(|function| (function, function.level(model)))
    }

    /// Checks the entries of functions without wide instructions as well. [`scan`] skips the slow
    /// checks for these: whether the code uses its return address, or changes stacks. A caller that
    /// hooks functions that are not wide calls this first, with the same bytes.
    ///
    /// Takes about as long as the scan.
    ///
    /// # Errors
    /// As [`scan`], for problems in the headers.
    pub fn check_narrow(&mut self, bytes: &[u8]) -> Result<(), ScanError> {
        let sections = elf::code(bytes)?;
        let described = self.functions.iter().filter(|function| function.origin != Origin::Seed);
        let begins = described.map(|function| function.addresses.start).collect();
        let mut ways = Ways::new(&sections, begins);
        let is_left =
            |function: &&mut Function| function.instructions.wide() == 0 && function.hook.is_ok();
        for function in self.functions.iter_mut().filter(is_left) {
            if let Some(reason) = ways.follow(function.addresses.start, &BTreeSet::new()).refusal()
            {
                function.hook = Err(reason);
            }
        }
        Ok(())
    }

    /// The function that contains `address`.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<&Function> {
        let after = self.functions.partition_point(|known| known.addresses.start <= address);
        let function = self.functions.get(after.checked_sub(1)?)?;
        function.addresses.contains(&address).then_some(function)
    }
}

/// Sums over a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes of executable sections.
    pub code_bytes: u64,
    /// Bytes of executable sections that belong to a function. The others are padding, tables, or
    /// code without a known reference to it.
    pub function_bytes: u64,
    /// Bytes within functions that do not decode as an instruction.
    pub undecodable_bytes: u64,
    /// Functions that a symbol describes, whether or not a frame describes them too.
    pub symbols: usize,
    /// Functions that only a frame describes.
    pub frames: usize,
    /// Functions found only by references to them.
    pub seeds: usize,
    /// Targets of references that turned out to be data.
    pub rejected_seeds: usize,
    /// Instructions of all functions by class.
    pub instructions: BTreeMap<InstructionClass, u64>,
    /// Instructions of all functions that name a 512-bit register.
    pub zmm: u64,
}

/// Finds the functions of the ELF file `bytes`, with the classes of their instructions.
///
/// Takes time in proportion to the length: a few milliseconds for a megabyte of code. Files made to
/// take long, of nothing but packed relocations, take 0.1 s and 80 MB for a megabyte. The same
/// bytes give the same result.
///
/// # Errors
/// If the bytes are not an ELF file, not for x86-64, not linked, without section headers, or
/// damaged; see [`ScanError`].
pub fn scan(bytes: &[u8]) -> Result<Scan, ScanError> {
    let image = elf::read(bytes)?;
    let frames = frames_of(&image)?;
    let sections = &image.sections;
    let known = starts::known(&image, &frames);
    let mut survey = Survey::new(&image, &frames, &known, Analyser::new(true));
    survey.read_all();
    let (functions, rejected) = functions_of(survey, &seeds::gaps(sections, &known), |_| true);
    let mut totals = totals(&functions);
    totals.code_bytes = sections.iter().map(|section| section.bytes.len() as u64).sum();
    totals.rejected_seeds = rejected;
    let Image { build_id, soname, needed, runpath, .. } = image;
    Ok(Scan { build_id, soname, needed, runpath, functions, totals })
}

/// Finds the functions of the ELF file `bytes` that have instructions of one of `classes`. Each
/// class must be of more than 128 bits or on tiles. The functions are those that [`scan`] finds,
/// but without their loops.
///
/// Takes under a millisecond for a megabyte of code without such functions. In most libraries it
/// takes a third of the time of a scan.
///
/// # Errors
/// As [`scan`].
pub fn scan_wide(
    bytes: &[u8],
    classes: &BTreeSet<InstructionClass>,
) -> Result<Vec<Function>, ScanError> {
    let image = elf::read(bytes)?;
    let frames = frames_of(&image)?;
    let known = starts::known(&image, &frames);
    let gaps = seeds::gaps(&image.sections, &known);
    let mut survey = Survey::new(&image, &frames, &known, Analyser::new(false));
    if !survey.read_wide(&gaps, classes) {
        return Ok(Vec::new());
    }
    let holds = |counts: &ClassCounts| classes.iter().any(|class| counts.of(*class) > 0);
    let (mut functions, _) = functions_of(survey, &gaps, holds);
    functions.retain(|function| holds(&function.instructions));
    Ok(functions)
}

/// The build id of the ELF file `bytes`, without scanning it; `None` if it was linked without one.
///
/// # Errors
/// As [`scan`], for problems in the headers.
pub fn build_id(bytes: &[u8]) -> Result<Option<Vec<u8>>, ScanError> {
    elf::build_id(bytes)
}

/// What the loader needs to load an ELF file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needed {
    /// Names of the needed libraries.
    pub libraries: Vec<String>,
    /// Directories that the loader searches for them.
    pub runpath: Vec<String>,
    /// Whether the Go toolchain built it.
    pub is_go: bool,
}

/// What the loader needs to load the ELF file `bytes`, without scanning it.
///
/// # Errors
/// As [`scan`], for problems in the headers.
pub fn needed(bytes: &[u8]) -> Result<Needed, ScanError> {
    elf::needed(bytes)
}

/// Whether the ELF file `bytes` has one of these functions that other files may call, without
/// scanning it.
///
/// # Errors
/// As [`scan`], for problems in the headers and symbols.
pub fn defines_any(bytes: &[u8], functions: &[&str]) -> Result<bool, ScanError> {
    let symbols = elf::symbols(bytes)?;
    Ok(symbols.iter().any(|symbol| !symbol.local && functions.contains(&symbol.name)))
}

/// The name under which other files need the ELF file `bytes`; `None` for programs.
///
/// # Errors
/// As [`scan`], for problems in the headers.
pub fn soname(bytes: &[u8]) -> Result<Option<String>, ScanError> {
    elf::soname(bytes)
}

/// The executable bytes of an ELF file, by address.
#[derive(Clone, Debug)]
pub struct Code<'data> {
    file: &'data [u8],
    sections: Vec<elf::Section<'data>>,
}

impl<'data> Code<'data> {
    /// Finds the executable sections of the ELF file `bytes`.
    ///
    /// # Errors
    /// As [`scan`], for problems in the headers.
    pub fn read(bytes: &'data [u8]) -> Result<Self, ScanError> {
        Ok(Self { file: bytes, sections: elf::code(bytes)? })
    }

    /// The addresses of code that the program may change while it runs: of segments that are both
    /// executable and writable.
    ///
    /// # Errors
    /// As [`scan`], for problems in the headers.
    pub fn writable(&self) -> Result<Vec<Range<u64>>, ScanError> {
        elf::writable_code(self.file)
    }

    /// The bytes from `address` to the end of its section; `None` if there is no code there.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<&'data [u8]> {
        let section = &self.sections[elf::find(&self.sections, address)?];
        section.bytes.get(section.offset(address)?..)
    }

    /// The instructions at these addresses, one after the other. Goes on after bytes that do not
    /// decode.
    fn within(&self, addresses: &Range<u64>) -> impl Iterator<Item = Instruction> + use<'data> {
        let length = usize::try_from(addresses.end - addresses.start).unwrap_or(usize::MAX);
        let bytes = self.at(addresses.start).unwrap_or_default();
        let bytes = &bytes[..length.min(bytes.len())];
        Decoder::with_ip(64, bytes, addresses.start, DecoderOptions::NONE).into_iter()
    }

    /// The file offset of the byte at `address`; `None` if there is no code there.
    #[must_use]
    pub fn file_offset(&self, address: u64) -> Option<u64> {
        let bytes = self.at(address)?;
        Some((bytes.as_ptr().addr() - self.file.as_ptr().addr()) as u64)
    }

    /// Where to put the breakpoint that counts entries at `entry` of the function at these
    /// addresses. It is the first instruction that executes once per entry and that Linux emulates,
    /// which is far cheaper than executing it elsewhere in a single step. If there is none, it is
    /// the first that takes a breakpoint. `None` if none does.
    #[must_use]
    pub fn probe_point(&self, function: &Range<u64>, entry: u64) -> Option<u64> {
        let length = usize::try_from(function.end - function.start).unwrap_or(usize::MAX);
        let code = self.at(function.start).unwrap_or_default();
        hook::probe_point(&code[..length.min(code.len())], function.start, entry)
    }
}

/// A function, before the check whether it can be hooked.
struct Found {
    section: usize,
    start: usize,
    end: usize,
    origin: Origin,
    analysis: Analysis,
}

impl Found {
    /// The length in bytes.
    fn length(&self) -> u64 {
        (self.end - self.start) as u64
    }
}

/// The ranges that unwinding records describe, by address.
fn frames_of(image: &Image<'_>) -> Result<Vec<Frame>, ScanError> {
    let mut frames = match image.frames {
        Some((address, bytes)) => frames::frames(address, bytes)?,
        None => Vec::new(),
    };
    frames.sort_unstable_by_key(|frame| frame.start);
    Ok(frames)
}

/// The functions that were decoded and those found in `gaps`, by address, and the number of seeds
/// in the gaps that turned out to be data. The slow checks of an entry run only where `is_asked`
/// holds for the function's instructions.
fn functions_of(
    survey: Survey<'_>,
    gaps: &[Gap],
    is_asked: impl Fn(&ClassCounts) -> bool,
) -> (Vec<Function>, usize) {
    let Survey { image, frames, known, mut found, mut references, mut analyser, .. } = survey;
    let (seeded, rejected) = seeds::find(&image.sections, gaps, &mut references, &mut analyser);
    found.extend(seeded.into_iter().map(|seeded| Found {
        section: seeded.section,
        start: seeded.start,
        end: seeded.end,
        origin: Origin::Seed,
        analysis: seeded.analysis,
    }));
    found.sort_by_key(|found| (found.section, found.start));
    let names = starts::names(&image.symbols);
    let resolvers: BTreeSet<u64> = image.resolvers.iter().copied().collect();
    let libc = image.soname.as_deref() == Some("libc.so.6");
    let mut inner = inner::entries(image, frames, &references, &found);
    let leaders: BTreeSet<usize> =
        inner.values().flat_map(|inner| inner.leaders.iter().copied()).collect();
    let verdicts = verdicts(image, known, &found, &leaders, is_asked);
    let mut led = Vec::new();
    let function = |(number, found): (usize, Found)| {
        let code = &image.sections[found.section];
        let address = code.address + found.start as u64;
        let analysis = found.analysis;
        let displaced = usize::from(analysis.first);
        let entered =
            references.entered.next(found.section, found.start + 1, found.start + displaced);
        let first_relocated =
            image.relocated.partition_point(|place| place.saturating_add(7) < address);
        let relocated = image.relocated.get(first_relocated);
        let relocated = relocated.filter(|place| **place < address + u64::from(analysis.first));
        let name = names.binary_search_by_key(&address, |(at, _)| *at).ok().map(|at| names[at].1);
        let addresses = address..code.address + found.end as u64;
        let hook = hook::check(
            &hook::Entry {
                address,
                section: code.bytes,
                offset: found.start,
                balance: verdicts[number],
                called_above_data: references.is_called_above_data(found.section, found.start),
                evidence: match found.origin {
                    Origin::Symbol | Origin::Frame => Evidence::Described,
                    Origin::Seed => references.evidence(found.section, found.start),
                },
                name,
                libc,
                resolver: resolvers.contains(&address),
                called: address != image.entry && is_called(frames, address),
                entered: entered.and_then(|offset| u32::try_from(offset - found.start).ok()),
                relocated: relocated
                    .and_then(|place| u32::try_from(place.saturating_sub(address)).ok()),
            },
            &analysis,
        );
        let inner::Inner { mut entries, leaders } = inner.remove(&number).unwrap_or_default();
        if let Err(reason @ (Unhookable::Resolver | Unhookable::MemoryFunction)) = hook {
            entries.iter_mut().for_each(|entry| entry.hook = Err(reason));
        } else if !leaders.is_empty() {
            led.push((number, leaders));
        }
        Function {
            addresses,
            name: name.map(str::to_owned),
            origin: found.origin,
            instructions: analysis.instructions,
            zmm: analysis.zmm,
            evex: analysis.evex,
            undecodable_bytes: analysis.undecodable,
            vzeroupper: analysis.vzeroupper,
            may_return_dirty: analysis.leaves_dirty,
            loops: analysis.loops,
            hook,
            entries,
            leaders: Vec::new(),
        }
    };
    let mut functions: Vec<Function> = found.into_iter().enumerate().map(function).collect();
    for (number, leaders) in led {
        let leader = |leader: &usize| {
            let Function { addresses, name, hook, .. } = &functions[*leader];
            Leader { start: addresses.start, name: name.clone(), hook: *hook }
        };
        functions[number].leaders = leaders.iter().map(leader).collect();
    }
    (functions, rejected)
}

/// What the code of each function shows about the stack at its start, where `is_asked` holds for
/// its instructions. Functions without wide instructions are left open, except those that nothing
/// describes, those that may change stacks, and `leaders`, which are hooked for wide ones: see
/// [`Scan::check_narrow`].
fn verdicts(
    image: &Image<'_>,
    known: &[Known],
    found: &[Found],
    leaders: &BTreeSet<usize>,
    is_asked: impl Fn(&ClassCounts) -> bool,
) -> Vec<Verdict> {
    let sections = &image.sections;
    let begin = |found: &Found| sections[found.section].address + found.start as u64;
    let described = known.iter().map(|known| known.addresses(sections));
    let begins = described.clone().map(|addresses| addresses.start).collect();
    let mut ways = Ways::new(sections, begins);
    // Verdicts under the assumption that no function is known to return.
    let mut first: BTreeMap<u64, Verdict> = BTreeMap::new();
    let mut can_follow = BTreeSet::new();
    for (number, found) in found.iter().enumerate() {
        let analysis = &found.analysis;
        let is_seed = found.origin == Origin::Seed;
        let is_leader = leaders.contains(&number);
        if analysis.may_change_stacks
            || is_leader
            || analysis.instructions.wide() > 0
            || is_seed && analysis.has_vectors()
        {
            can_follow.insert(begin(found));
            if analysis.may_change_stacks || is_leader || is_asked(&analysis.instructions) {
                first.insert(begin(found), ways.follow(begin(found), &BTreeSet::new()));
            }
        }
    }
    let of = |found: &Found| first.get(&begin(found)).copied().unwrap_or(Verdict::Open);
    let mut verdicts: Vec<Verdict> = found.iter().map(of).collect();
    let shown = first.iter().filter(|(_, verdict)| verdict.is_shown());
    let mut returning: BTreeSet<u64> = shown.map(|(address, _)| *address).collect();
    // Follows the open ones again, with what is now known of called functions.
    for (verdict, found) in verdicts.iter_mut().zip(found) {
        let analysis = &found.analysis;
        let is_seed = found.origin == Origin::Seed && is_asked(&analysis.instructions);
        if *verdict != Verdict::Open || !(is_seed || analysis.may_change_stacks) {
            continue;
        }
        loop {
            *verdict = ways.follow(begin(found), &returning);
            let called = std::mem::take(&mut ways.called);
            let new = called.intersection(&can_follow).filter(|callee| !first.contains_key(callee));
            let new: Vec<u64> = new.copied().collect();
            if new.is_empty() {
                break;
            }
            for callee in new {
                let verdict = ways.follow(callee, &BTreeSet::new());
                first.insert(callee, verdict);
                if verdict.is_shown() {
                    returning.insert(callee);
                }
            }
        }
    }
    // Functions that change stacks themselves. Code anywhere in the file may lead to them.
    let changes = verdicts.iter().zip(found).filter(|(verdict, found)| {
        matches!(verdict, Verdict::ChangesStacks { .. }) && found.analysis.may_change_stacks
    });
    let changes: BTreeSet<u64> = changes.map(|(_, found)| begin(found)).collect();
    if !changes.is_empty() {
        let seeds = found.iter().filter(|found| found.origin == Origin::Seed);
        let seeds = seeds.map(|found| begin(found)..begin(found) + found.length());
        let leading = callers::leading_to(sections, described.chain(seeds), changes);
        for (verdict, found) in verdicts.iter_mut().zip(found) {
            if let (None, Some(by)) = (verdict.refusal(), leading.get(&begin(found))) {
                *verdict = Verdict::LeadsToChange { by: *by };
            }
        }
    }
    verdicts
}

/// Whether the stack at `address` is as a call leaves it. True where no frame describes the code;
/// false in the middle of a frame.
fn is_called(frames: &[Frame], address: u64) -> bool {
    frame_at(frames, address).is_none_or(|frame| frame.start == address && frame.called)
}

/// The last frame that starts at or before `address`, if it covers `address`.
fn frame_at(frames: &[Frame], address: u64) -> Option<&Frame> {
    let after = frames.partition_point(|frame| frame.start <= address);
    let before = &frames[after.checked_sub(1)?];
    (address < before.end).then_some(before)
}

fn totals(functions: &[Function]) -> Totals {
    let mut totals = Totals::default();
    for function in functions {
        totals.function_bytes += function.addresses.end - function.addresses.start;
        totals.undecodable_bytes += u64::from(function.undecodable_bytes);
        totals.zmm += u64::from(function.zmm);
        for (class, count) in function.instructions.iter() {
            *totals.instructions.entry(class).or_default() += u64::from(count);
        }
        *match function.origin {
            Origin::Symbol => &mut totals.symbols,
            Origin::Frame => &mut totals.frames,
            Origin::Seed => &mut totals.seeds,
        } += 1;
    }
    totals
}
