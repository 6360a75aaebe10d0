//! Names of functions from a static archive of the same library: its members still have all their
//! symbols, and hand-written assembly is the same in both.
//!
//! A function of a member is found by its bytes, except those that the linker fills in or may
//! rewrite (relocations; relaxation, System V ABI, x86-64 supplement, §B.2). A match gives a name
//! only if it is the only one and enough bytes were compared. Compiled code usually differs between
//! archive and library, and is not found.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use object::LittleEndian as Little;
use object::elf::{self, FileHeader64, SectionHeader64};
use object::read::archive::ArchiveFile;
use object::read::elf::{
    FileHeader as _, Rela as _, SectionHeader as _, SectionTable, Sym as _, SymbolTable,
};

use crate::Code;
use crate::elf::damage;
use crate::error::ScanError;
use crate::names::Names;

/// Fewer compared bytes prove nothing. A guess: some eight instructions.
const FEWEST_COMPARED: usize = 32;

/// Bytes of the key that a function is looked up by. The linker fills in none of them.
const KEY_BYTES: usize = 16;

/// The largest offset of the key in its function.
const LAST_KEY: usize = 64;

/// The largest difference in length: padding may belong to only one of the two.
const MOST_PADDING: usize = 63;

/// A static archive of a library.
#[derive(Clone, Debug, Default)]
pub struct Archive<'data> {
    functions: Vec<Function<'data>>,
    /// The byte ranges that the linker fills in, of all functions.
    holes: Vec<Range<u32>>,
    /// Indexes of functions, by the offset of the key and by the key.
    keys: BTreeMap<usize, HashMap<[u8; KEY_BYTES], Vec<usize>>>,
    /// Length of the archive in bytes.
    length: usize,
}

/// A function of a member.
#[derive(Clone, Debug)]
struct Function<'data> {
    name: &'data str,
    bytes: &'data [u8],
    /// Bytes from the start of the section to the function. Holes are relative to the section.
    offset: usize,
    /// Its holes, as indexes, ascending and disjoint.
    holes: Range<usize>,
}

/// A symbol in code of a member. Of several symbols at one place, the first in this order is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Symbol<'data> {
    section: usize,
    offset: u64,
    local: bool,
    no_function: bool,
    size: u64,
    name: &'data str,
}

type Table<'data> = SectionTable<'data, FileHeader64<Little>>;

impl<'data> Archive<'data> {
    /// Reads the members of an archive (`ar`). Members that are not ELF objects are left out.
    ///
    /// Takes time in proportion to the length: some milliseconds for ten megabytes.
    ///
    /// # Errors
    /// [`ScanError::Damaged`] if the bytes are not an archive, or if its parts overlap too often.
    pub fn read(bytes: &'data [u8]) -> Result<Self, ScanError> {
        let damaged = |error: object::read::Error| damage("static archive", error.to_string());
        let file = ArchiveFile::parse(bytes).map_err(damaged)?;
        let mut archive = Self { length: bytes.len(), ..Self::default() };
        // Budget for the bytes of members, sections and names, which may overlap.
        let mut budget = bytes.len().saturating_mul(4);
        let mut spend = |bytes: usize| {
            let left = budget.checked_sub(bytes);
            budget = left.ok_or_else(|| damage("static archive", "parts overlap too often"))?;
            Ok(())
        };
        for member in file.members() {
            let data = member.map_err(damaged)?.data(bytes).map_err(damaged)?;
            spend(data.len())?;
            archive.add_member(data, &mut spend)?;
        }
        for (index, function) in archive.functions.iter().enumerate() {
            let holes = archive.holes.get(function.holes.clone()).unwrap_or_default();
            if let Some((at, key)) = function.key(holes) {
                archive.keys.entry(at).or_default().entry(key).or_default().push(index);
            }
        }
        Ok(archive)
    }

    /// Names those of `functions`, ranges of addresses in `code`, that match one of the archive's.
    ///
    /// All functions that are alike must be among `functions`: a function of the archive that
    /// matches several of them gives no name.
    #[must_use]
    pub fn names(&self, code: &Code<'_>, functions: &[Range<u64>]) -> Names<'data> {
        let lengths = functions.iter().map(|range| range.end.saturating_sub(range.start));
        let lengths = usize::try_from(lengths.fold(0, u64::saturating_add)).unwrap_or(usize::MAX);
        // Budget for compared bytes. Few functions start alike, unless they were made to.
        let mut budget = lengths.saturating_add(self.length).saturating_mul(8);
        let mut fits: Vec<(usize, usize)> = Vec::new();
        for (number, range) in functions.iter().enumerate() {
            let Some(bytes) = code.at(range.start) else { continue };
            let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or_default();
            for candidate in self.candidates(bytes) {
                let function = &self.functions[candidate];
                if function.bytes.len().abs_diff(length) > MOST_PADDING {
                    budget = budget.saturating_sub(1);
                    continue;
                }
                budget = budget.saturating_sub(function.bytes.len());
                let holes = self.holes.get(function.holes.clone()).unwrap_or_default();
                if function.is_at(bytes, holes) {
                    fits.push((candidate, number));
                }
            }
            if budget == 0 {
                // The search is incomplete, so no match is known to be unique.
                return Names::default();
            }
        }
        self.unambiguous(functions, fits)
    }

    /// Indexes of the archive's functions that start like `bytes`.
    fn candidates<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
        let by_place = self.keys.iter().filter_map(|(at, keys)| {
            let key = bytes.get(*at..)?.first_chunk::<KEY_BYTES>()?;
            keys.get(key)
        });
        by_place.flatten().copied()
    }

    /// Names from the matches that are unique on both sides.
    fn unambiguous(&self, functions: &[Range<u64>], fits: Vec<(usize, usize)>) -> Names<'data> {
        let mut times = vec![0_u32; self.functions.len()];
        fits.iter().for_each(|(function, _)| times[*function] += 1);
        let mut named: BTreeMap<u64, Option<&'data str>> = BTreeMap::new();
        for (function, number) in fits {
            let name = self.functions[function].name;
            let known = named.entry(functions[number].start).or_insert(Some(name));
            if times[function] > 1 || *known != Some(name) {
                *known = None;
            }
        }
        let named = named.into_iter().filter_map(|(address, name)| Some((address, name?)));
        Names::new(named.collect())
    }

    /// Adds the functions of a member; does nothing if it is not an ELF object.
    fn add_member(
        &mut self,
        bytes: &'data [u8],
        spend: &mut impl FnMut(usize) -> Result<(), ScanError>,
    ) -> Result<(), ScanError> {
        let Ok(header) = FileHeader64::<Little>::parse(bytes) else { return Ok(()) };
        if header.e_machine(Little) != elf::EM_X86_64 || header.e_type(Little) != elf::ET_REL {
            return Ok(());
        }
        let Ok(table) = header.sections(Little, bytes) else { return Ok(()) };
        let Ok(symbols) = table.symbols(Little, bytes, elf::SHT_SYMTAB) else { return Ok(()) };
        let holes = self.add_holes(&table, bytes, spend)?;
        let mut found = function_symbols(&table, &symbols, bytes.len(), spend)?;
        found.sort_unstable();
        found.dedup_by_key(|symbol| (symbol.section, symbol.offset));
        for (index, symbol) in found.iter().enumerate() {
            let section = table.section(object::SectionIndex(symbol.section));
            let Some(code) = section.ok().and_then(|section| section.data(Little, bytes).ok())
            else {
                continue;
            };
            let next = found.get(index + 1).filter(|next| next.section == symbol.section);
            let end = next.map_or(code.len() as u64, |next| next.offset);
            let until_next = end.saturating_sub(symbol.offset);
            let length = if symbol.size > 0 { symbol.size } else { until_next };
            let Ok(offset) = usize::try_from(symbol.offset) else { continue };
            let range = usize::try_from(length).ok().and_then(|length| offset.checked_add(length));
            let Some(own) = range.and_then(|end| code.get(offset..end)) else { continue };
            spend(own.len())?;
            let holes = holes.get(&symbol.section).cloned().unwrap_or(0..0);
            let holes = self.holes_between(holes, offset, own.len());
            self.functions.push(Function { name: symbol.name, bytes: own, offset, holes });
        }
        Ok(())
    }

    /// Adds the ranges that the linker fills in. Returns their indexes, by section of code.
    fn add_holes(
        &mut self,
        table: &Table<'data>,
        bytes: &'data [u8],
        spend: &mut impl FnMut(usize) -> Result<(), ScanError>,
    ) -> Result<BTreeMap<usize, Range<usize>>, ScanError> {
        let mut by_section: BTreeMap<usize, Vec<Range<u32>>> = BTreeMap::new();
        for section in table.iter().filter(|section| section.sh_type(Little) == elf::SHT_RELA) {
            let of = section.info_link(Little);
            if !table.section(of).is_ok_and(is_code) {
                continue;
            }
            let Ok(Some((relocations, _))) = section.rela(Little, bytes) else { continue };
            spend(size_of_val(relocations))?;
            by_section.entry(of.0).or_default().extend(relocations.iter().filter_map(
                |relocation| hole(relocation.r_type(Little, false), relocation.r_offset(Little)),
            ));
        }
        let mut ranges = BTreeMap::new();
        for (section, mut holes) in by_section {
            holes.sort_unstable_by_key(|hole| (hole.start, hole.end));
            let first = self.holes.len();
            for hole in holes {
                match self.holes[first..].last_mut().filter(|last| last.end >= hole.start) {
                    Some(last) => last.end = last.end.max(hole.end),
                    None => self.holes.push(hole),
                }
            }
            ranges.insert(section, first..self.holes.len());
        }
        Ok(ranges)
    }

    /// The indexes of the section's `holes` that reach into `length` bytes at `offset`.
    fn holes_between(&self, holes: Range<usize>, offset: usize, length: usize) -> Range<usize> {
        let all = self.holes.get(holes.clone()).unwrap_or_default();
        let first = all.partition_point(|hole| hole.end as usize <= offset);
        let after = all.partition_point(|hole| (hole.start as usize) < offset + length);
        holes.start + first..holes.start + after.max(first)
    }
}

impl Function<'_> {
    /// Its bytes between the holes, each part with its offset.
    fn parts<'a>(&'a self, holes: &'a [Range<u32>]) -> impl Iterator<Item = (usize, &'a [u8])> {
        let within = |at: u32| (at as usize).saturating_sub(self.offset).min(self.bytes.len());
        let starts = [0].into_iter().chain(holes.iter().map(move |hole| within(hole.end)));
        let ends = holes.iter().map(move |hole| within(hole.start)).chain([self.bytes.len()]);
        starts.zip(ends).filter_map(|(start, end)| Some((start, self.bytes.get(start..end)?)))
    }

    /// Its key and the key's offset; `None` if it is too short, or too much of it is filled in.
    fn key(&self, holes: &[Range<u32>]) -> Option<(usize, [u8; KEY_BYTES])> {
        let compared: usize = self.parts(holes).map(|(_, part)| part.len()).sum();
        let mut long = self.parts(holes).filter(|(_, part)| part.len() >= KEY_BYTES);
        let (at, part) = long.next()?;
        let key = part.first_chunk()?;
        (compared >= FEWEST_COMPARED && at <= LAST_KEY).then_some((at, *key))
    }

    /// Whether `code` starts with this function.
    fn is_at(&self, code: &[u8], holes: &[Range<u32>]) -> bool {
        code.len() >= self.bytes.len()
            && self.parts(holes).all(|(start, part)| code[start..].starts_with(part))
    }
}

fn is_code(section: &SectionHeader64<Little>) -> bool {
    section.sh_flags(Little).contains(elf::SHF_EXECINSTR)
        && section.sh_type(Little) == elf::SHT_PROGBITS
}

/// The symbols that name functions, of a member of this length in bytes.
fn function_symbols<'data>(
    table: &Table<'data>,
    symbols: &SymbolTable<'data, FileHeader64<Little>>,
    length: usize,
    spend: &mut impl FnMut(usize) -> Result<(), ScanError>,
) -> Result<Vec<Symbol<'data>>, ScanError> {
    let mut found = Vec::new();
    for (index, symbol) in symbols.enumerate() {
        let type_ = symbol.st_type();
        let function = type_ == elf::STT_FUNC || type_ == elf::STT_GNU_IFUNC;
        let local = symbol.st_bind() == elf::STB_LOCAL;
        // A label of no type is a function only if other members can refer to it.
        if !function && (type_ != elf::STT_NOTYPE || local) {
            continue;
        }
        let Ok(Some(section)) = symbols.symbol_section(Little, symbol, index) else { continue };
        if !table.section(section).is_ok_and(is_code) {
            continue;
        }
        let Ok(name) = symbols.strings().get(symbol.st_name(Little)) else {
            // The search for its end read through all of the names.
            spend(length / 2)?;
            continue;
        };
        spend(name.len())?;
        let Some(name) = std::str::from_utf8(name).ok().filter(|name| !name.is_empty()) else {
            continue;
        };
        found.push(Symbol {
            section: section.0,
            offset: symbol.st_value(Little),
            local,
            no_function: !function,
            size: symbol.st_size(Little),
            name,
        });
    }
    Ok(found)
}

/// The bytes of the section that the linker may write because of a relocation.
fn hole(kind: elf::RelocationType, offset: u64) -> Option<Range<u32>> {
    // Bytes before the place, and bytes from the place on.
    let (before, after) = match kind {
        elf::R_X86_64_NONE => return None,
        elf::R_X86_64_8 | elf::R_X86_64_PC8 => (0, 1),
        elf::R_X86_64_16 | elf::R_X86_64_PC16 => (0, 2),
        elf::R_X86_64_PC32
        | elf::R_X86_64_PLT32
        | elf::R_X86_64_32
        | elf::R_X86_64_32S
        | elf::R_X86_64_GOT32
        | elf::R_X86_64_GOTPC32
        | elf::R_X86_64_SIZE32
        | elf::R_X86_64_DTPOFF32
        | elf::R_X86_64_TPOFF32 => (0, 4),
        // Relaxation knows these: the instructions around them may become others.
        elf::R_X86_64_TLSGD | elf::R_X86_64_TLSLD => (4, 12),
        elf::R_X86_64_GOTPCREL
        | elf::R_X86_64_GOTPCRELX
        | elf::R_X86_64_REX_GOTPCRELX
        | elf::R_X86_64_GOTTPOFF
        | elf::R_X86_64_GOTPC32_TLSDESC => (3, 4),
        elf::R_X86_64_TLSDESC_CALL => (0, 2),
        // Others have eight bytes at most. Those for newer instructions have prefixes before them.
        _ => (6, 8),
    };
    let start = u32::try_from(offset.saturating_sub(before)).ok()?;
    Some(start..u32::try_from(offset.checked_add(after)?).ok()?)
}
