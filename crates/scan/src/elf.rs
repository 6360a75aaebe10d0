//! What a scan reads from an ELF file: executable sections, symbols, relocations, and its identity.
//!
//! Follows the System V ABI and its x86-64 supplement, through the `object` crate. Nothing here
//! trusts the file: tables that overlap until their sizes add up to more than the file are refused,
//! so that the work stays proportional to its length.

use std::ops::Range;

use object::LittleEndian as Little;
use object::elf::{self, FileHeader64, SectionHeader64};
use object::read::elf::{
    Dyn as _, FileHeader as _, ProgramHeader as _, Rela as _, SectionHeader as _, SectionTable,
    Sym as _,
};

use crate::Needed;
use crate::error::{Machine, ScanError};

/// The tables of the file that a scan reads.
#[derive(Debug, Default)]
pub(crate) struct Image<'data> {
    /// Executable sections with bytes in the file, by address, disjoint.
    pub(crate) sections: Vec<Section<'data>>,
    /// Defined symbols of functions, or of no type. Those of `.symtab` come first.
    pub(crate) symbols: Vec<Symbol<'data>>,
    /// Addresses that the file marks as pointers: what the dynamic linker relocates, resolvers,
    /// entry point, initialization and termination.
    pub(crate) pointers: Vec<u64>,
    /// Where the kernel or the loader starts to execute the file; zero for most libraries.
    pub(crate) entry: u64,
    /// Addresses of resolvers of indirect functions.
    pub(crate) resolvers: Vec<u64>,
    /// Addresses that the dynamic linker writes to, sorted.
    pub(crate) relocated: Vec<u64>,
    /// Address and bytes of `.eh_frame`.
    pub(crate) frames: Option<(u64, &'data [u8])>,
    /// The build id.
    pub(crate) build_id: Option<Vec<u8>>,
    /// The name under which other files need this one.
    pub(crate) soname: Option<String>,
    /// Names of the needed libraries.
    pub(crate) needed: Vec<String>,
    /// Directories that the loader searches for them.
    pub(crate) runpath: Vec<String>,
}

/// An executable section.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section<'data> {
    /// The address in memory.
    pub(crate) address: u64,
    /// Its bytes.
    pub(crate) bytes: &'data [u8],
}

impl Section<'_> {
    /// The address after the last byte.
    pub(crate) fn end(&self) -> u64 {
        // Cannot overflow: `Reader::code` checks this.
        self.address.saturating_add(self.bytes.len() as u64)
    }

    /// The offset of `address`; `None` if it lies outside.
    pub(crate) fn offset(&self, address: u64) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.address)?).ok()?;
        (offset < self.bytes.len()).then_some(offset)
    }
}

/// A symbol in code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol<'data> {
    /// The address.
    pub(crate) address: u64,
    /// The size in bytes; zero if the file does not give it.
    pub(crate) size: u64,
    /// Whether its type is function, rather than none.
    pub(crate) function: bool,
    /// Whether it is local to the file it was compiled from.
    pub(crate) local: bool,
    /// The name.
    pub(crate) name: &'data str,
}

type Table<'data> = SectionTable<'data, FileHeader64<Little>>;

/// Reads the tables of the ELF file `bytes`.
///
/// # Errors
/// See [`ScanError`].
pub(crate) fn read(bytes: &[u8]) -> Result<Image<'_>, ScanError> {
    let reader = Reader::new(bytes)?;
    let sections = reader.code()?;
    let (symbols, resolvers) = reader.symbols(|address| find(&sections, address).is_some())?;
    let mut image = Image { sections, symbols, resolvers, ..Image::default() };
    reader.relocations(&mut image)?;
    reader.dynamic(&mut image)?;
    image.entry = reader.header.e_entry(Little);
    image.pointers.push(image.entry);
    if let Some(section) = reader.named(b".eh_frame") {
        image.frames = Some((section.sh_addr(Little), reader.data(section)?));
    }
    image.build_id = reader.build_id()?;
    Ok(image)
}

/// Reads the build id alone.
///
/// # Errors
/// See [`ScanError`].
pub(crate) fn build_id(bytes: &[u8]) -> Result<Option<Vec<u8>>, ScanError> {
    Reader::new(bytes)?.build_id()
}

/// Reads the symbols alone, also those of a debug file, whose code is in another file.
///
/// # Errors
/// See [`ScanError`].
pub(crate) fn symbols(bytes: &[u8]) -> Result<Vec<Symbol<'_>>, ScanError> {
    let reader = Reader::new(bytes)?;
    let code = reader.code_addresses();
    let is_code = |address: u64| {
        let after = code.partition_point(|range| range.start <= address);
        after.checked_sub(1).is_some_and(|index| code[index].contains(&address))
    };
    Ok(reader.symbols(is_code)?.0)
}

/// The bytes of the section called `name`; `None` if there is none.
///
/// # Errors
/// See [`ScanError`].
pub(crate) fn section<'data>(
    bytes: &'data [u8],
    name: &str,
) -> Result<Option<&'data [u8]>, ScanError> {
    let reader = Reader::new(bytes)?;
    reader.named(name.as_bytes()).map(|section| reader.data(section)).transpose()
}

/// Reads what the dynamic loader has to load.
///
/// # Errors
/// See [`ScanError`].
pub(crate) fn needed(bytes: &[u8]) -> Result<Needed, ScanError> {
    let reader = Reader::new(bytes)?;
    let mut image = Image::default();
    reader.dynamic(&mut image)?;
    let is_go = reader.named(b".note.go.buildid").is_some();
    Ok(Needed { libraries: image.needed, runpath: image.runpath, is_go })
}

/// The name under which other files need this one.
///
/// # Errors
/// See [`ScanError`].
pub(crate) fn soname(bytes: &[u8]) -> Result<Option<String>, ScanError> {
    let reader = Reader::new(bytes)?;
    let mut image = Image::default();
    reader.dynamic(&mut image)?;
    Ok(image.soname)
}

/// Reads the executable sections alone, by address.
///
/// # Errors
/// See [`ScanError`].
pub(crate) fn code(bytes: &[u8]) -> Result<Vec<Section<'_>>, ScanError> {
    Reader::new(bytes)?.code()
}

/// The addresses of segments that are both executable and writable.
pub(crate) fn writable_code(bytes: &[u8]) -> Result<Vec<Range<u64>>, ScanError> {
    let reader = Reader::new(bytes)?;
    let headers =
        reader.header.program_headers(Little, bytes).map_err(damaged("program headers"))?;
    let is_both = |header: &&elf::ProgramHeader64<Little>| {
        let (flags, both) = (header.p_flags(Little), elf::PF_W | elf::PF_X);
        header.p_type(Little) == elf::PT_LOAD && flags & both == both
    };
    let addresses = |header: &elf::ProgramHeader64<Little>| {
        let start = header.p_vaddr(Little);
        start..start.saturating_add(header.p_memsz(Little))
    };
    Ok(headers.iter().filter(is_both).map(addresses).collect())
}

/// Distinguishes files of another kind from damaged ones. The parser does not.
fn check_kind(bytes: &[u8]) -> Result<(), ScanError> {
    if bytes.get(..4) != Some(b"\x7fELF") {
        let found = bytes.iter().take(4).copied().collect();
        return Err(ScanError::NotElf { found });
    }
    let truncated = || ScanError::Damaged {
        place: "file header".to_owned(),
        problem: format!("the file has only {} bytes", bytes.len()),
    };
    let (class, order) = (bytes.get(4).ok_or_else(truncated)?, bytes.get(5).ok_or_else(truncated)?);
    let field: [u8; 2] =
        bytes.get(18..20).and_then(|field| field.try_into().ok()).ok_or_else(truncated)?;
    let number = if *order == 2 { u16::from_be_bytes(field) } else { u16::from_le_bytes(field) };
    let bits = if *class == 1 { 32 } else { 64 };
    if number != elf::EM_X86_64.0 || bits != 64 || *order == 2 {
        return Err(ScanError::NotX8664 { machine: Machine { number, bits } });
    }
    Ok(())
}

fn damaged(place: &'static str) -> impl Fn(object::read::Error) -> ScanError {
    move |error| ScanError::Damaged { place: place.to_owned(), problem: error.to_string() }
}

pub(crate) fn damage(place: &str, problem: impl Into<String>) -> ScanError {
    ScanError::Damaged { place: place.to_owned(), problem: problem.into() }
}

/// The bytes of the table of section names; empty if it is missing.
fn names_of<'data>(
    header: &FileHeader64<Little>,
    table: &Table<'data>,
    bytes: &'data [u8],
) -> &'data [u8] {
    let index = header.shstrndx(Little, bytes).ok().and_then(|index| usize::try_from(index).ok());
    let section = index.and_then(|index| table.section(object::SectionIndex(index)).ok());
    section.and_then(|section| section.data(Little, bytes).ok()).unwrap_or_default()
}

struct Reader<'data> {
    bytes: &'data [u8],
    header: &'data FileHeader64<Little>,
    table: Table<'data>,
    names: &'data [u8],
}

impl<'data> Reader<'data> {
    fn new(bytes: &'data [u8]) -> Result<Self, ScanError> {
        check_kind(bytes)?;
        let header = FileHeader64::<Little>::parse(bytes).map_err(damaged("file header"))?;
        let kind = header.e_type(Little);
        if kind != elf::ET_EXEC && kind != elf::ET_DYN {
            return Err(ScanError::NotLinked { kind: kind.0 });
        }
        let table = header.sections(Little, bytes).map_err(damaged("section headers"))?;
        if table.is_empty() {
            return Err(ScanError::NoSections);
        }
        Ok(Self { bytes, header, names: names_of(header, &table, bytes), table })
    }

    fn named(&self, name: &[u8]) -> Option<&SectionHeader64<Little>> {
        self.table.iter().find(|section| self.is_named(section, name))
    }

    fn data(&self, section: &SectionHeader64<Little>) -> Result<&'data [u8], ScanError> {
        section.data(Little, self.bytes).map_err(|error| {
            let offset = section.sh_offset(Little);
            damage(&format!("section at file offset {offset:#x}"), error.to_string())
        })
    }

    /// Compares without searching for the end of the name, which a damaged file may lack.
    fn is_named(&self, section: &SectionHeader64<Little>, name: &[u8]) -> bool {
        let start = usize::try_from(section.sh_name(Little)).ok();
        let rest = start.and_then(|start| self.names.get(start..)).unwrap_or_default();
        rest.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0))
    }

    fn code(&self) -> Result<Vec<Section<'data>>, ScanError> {
        let mut sections = Vec::new();
        for header in self.table.iter() {
            let flags = header.sh_flags(Little);
            if !flags.contains(elf::SHF_EXECINSTR)
                || !flags.contains(elf::SHF_ALLOC)
                || header.sh_type(Little) == elf::SHT_NOBITS
            {
                continue;
            }
            let (address, bytes) = (header.sh_addr(Little), self.data(header)?);
            if address.checked_add(bytes.len() as u64).is_none()
                || u32::try_from(bytes.len()).is_err()
            {
                return Err(damage("executable section", format!("too large at {address:#x}")));
            }
            if !bytes.is_empty() {
                sections.push(Section { address, bytes });
            }
        }
        sections.sort_by_key(|section| section.address);
        if let Some(pair) = sections.windows(2).find(|pair| pair[0].end() > pair[1].address) {
            let (first, second) = (pair[0].address, pair[1].address);
            let problem = format!("those at {first:#x} and {second:#x} overlap");
            return Err(damage("executable sections", problem));
        }
        let total: usize = sections.iter().map(|section| section.bytes.len()).sum();
        if total > self.bytes.len() {
            return Err(damage("executable sections", "larger than the file together"));
        }
        Ok(sections)
    }

    /// The defined symbols of functions, or of no type, that are in code, and the addresses of
    /// those that resolve indirect functions.
    fn symbols(
        &self,
        is_code: impl Fn(u64) -> bool,
    ) -> Result<(Vec<Symbol<'data>>, Vec<u64>), ScanError> {
        let (mut found, mut resolvers) = (Vec::new(), Vec::new());
        // Names in a sound file may overlap where one ends another, but not that often.
        let mut budget = self.bytes.len().saturating_mul(4);
        for (kind, place) in
            [(elf::SHT_SYMTAB, "symbol table"), (elf::SHT_DYNSYM, "dynamic symbols")]
        {
            let symbols = self.table.symbols(Little, self.bytes, kind).map_err(damaged(place))?;
            for symbol in symbols.iter() {
                let address = symbol.st_value(Little);
                let type_ = symbol.st_type();
                let function = type_ == elf::STT_FUNC || type_ == elf::STT_GNU_IFUNC;
                if symbol.is_undefined(Little)
                    || !(function || type_ == elf::STT_NOTYPE)
                    || !is_code(address)
                {
                    continue;
                }
                // An unreadable name counts as none; the function exists all the same. But the
                // search for its end read through all of the names, which must not happen often.
                let name = symbols.strings().get(symbol.st_name(Little)).ok();
                let cost = name.map_or(self.bytes.len() / 2, <[u8]>::len);
                budget = budget
                    .checked_sub(cost)
                    .ok_or_else(|| damage(place, "names overlap too often, or have no end"))?;
                let name = name.unwrap_or_default();
                if type_ == elf::STT_GNU_IFUNC {
                    resolvers.push(address);
                }
                found.push(Symbol {
                    address,
                    size: symbol.st_size(Little),
                    function,
                    local: symbol.st_bind() == elf::STB_LOCAL,
                    name: std::str::from_utf8(name).unwrap_or_default(),
                });
            }
        }
        Ok((found, resolvers))
    }

    /// The address ranges of code in memory, by address. Includes sections without bytes in the
    /// file: debug files leave the bytes out.
    fn code_addresses(&self) -> Vec<Range<u64>> {
        let executable = self.table.iter().filter(|section| {
            let flags = section.sh_flags(Little);
            flags.contains(elf::SHF_EXECINSTR) && flags.contains(elf::SHF_ALLOC)
        });
        let range = |section: &SectionHeader64<Little>| {
            let start = section.sh_addr(Little);
            start..start.saturating_add(section.sh_size(Little))
        };
        let mut ranges: Vec<Range<u64>> = executable.map(range).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges
    }

    fn relocations(&self, image: &mut Image<'data>) -> Result<(), ScanError> {
        let mut budget = self.bytes.len() as u64;
        // Packed relocations are to different words of the file, so a sound one has no more.
        let mut unpacked = self.bytes.len() / 8;
        // Read once, and only if there are packed relocations.
        let mut segments = None;
        for section in self.table.iter() {
            // The others were kept by `--emit-relocs` and are already applied.
            if !section.sh_flags(Little).contains(elf::SHF_ALLOC) {
                continue;
            }
            let kind = section.sh_type(Little);
            if kind == elf::SHT_RELA || kind == elf::SHT_RELR {
                budget = budget
                    .checked_sub(section.sh_size(Little))
                    .ok_or_else(|| damage("relocations", "larger than the file together"))?;
            }
            if kind == elf::SHT_RELA {
                self.with_addends(section, image)?;
            } else if kind == elf::SHT_RELR {
                let segments = match &mut segments {
                    Some(segments) => segments,
                    none => none.insert(self.segments()?),
                };
                self.packed(section, segments, &mut unpacked, image)?;
            }
        }
        image.relocated.sort_unstable();
        Ok(())
    }

    fn with_addends(
        &self,
        section: &'data SectionHeader64<Little>,
        image: &mut Image<'data>,
    ) -> Result<(), ScanError> {
        let found = section.rela(Little, self.bytes).map_err(damaged("relocations"))?;
        for relocation in found.map(|(relocations, _)| relocations).unwrap_or_default() {
            let kind = relocation.r_type(Little, false);
            let target = relocation.r_addend(Little).cast_unsigned();
            if kind == elf::R_X86_64_RELATIVE || kind == elf::R_X86_64_IRELATIVE {
                image.pointers.push(target);
            }
            if kind == elf::R_X86_64_IRELATIVE {
                image.resolvers.push(target);
            }
            let place = relocation.r_offset(Little);
            if find(&image.sections, place).is_some() {
                image.relocated.push(place);
            }
        }
        Ok(())
    }

    /// Relative relocations packed as RELR: an even word is an address; an odd one is a bit map of
    /// the 63 words that follow. The addend is stored where the result will be. There may be `left`
    /// more of them.
    fn packed(
        &self,
        section: &'data SectionHeader64<Little>,
        segments: &mut Segments<'data>,
        left: &mut usize,
        image: &mut Image<'data>,
    ) -> Result<(), ScanError> {
        let (words, _) = self.data(section)?.as_chunks::<8>();
        let mut next: u64 = 0;
        let mut relocate = |place: u64| {
            image.pointers.extend(segments.word_at(place));
            if find(&image.sections, place).is_some() {
                image.relocated.push(place);
            }
        };
        for word in words {
            let word = u64::from_le_bytes(*word);
            let places = if word & 1 == 0 { 1 } else { word.count_ones() as usize - 1 };
            *left = left
                .checked_sub(places)
                .ok_or_else(|| damage("relocations", "more than the file has words"))?;
            if word & 1 == 0 {
                relocate(word);
                next = word.wrapping_add(8);
            } else {
                (0..63).filter(|bit| word >> (bit + 1) & 1 == 1).for_each(|bit: u64| {
                    relocate(next.wrapping_add(8 * bit));
                });
                next = next.wrapping_add(8 * 63);
            }
        }
        Ok(())
    }

    fn segments(&self) -> Result<Segments<'data>, ScanError> {
        let headers =
            self.header.program_headers(Little, self.bytes).map_err(damaged("program headers"))?;
        let mut parts: Vec<(u64, &'data [u8])> = headers
            .iter()
            .filter(|header| header.p_type(Little) == elf::PT_LOAD)
            .filter_map(|header| {
                Some((header.p_vaddr(Little), header.data(Little, self.bytes).ok()?))
            })
            .collect();
        parts.sort_by_key(|part| part.0);
        Ok(Segments { parts })
    }

    fn dynamic(&self, image: &mut Image<'data>) -> Result<(), ScanError> {
        let found = self.table.dynamic(Little, self.bytes).map_err(damaged("dynamic section"))?;
        let Some((entries, link)) = found else { return Ok(()) };
        let strings =
            self.table.strings(Little, self.bytes, link).map_err(damaged("dynamic strings"))?;
        let mut budget = self.bytes.len().saturating_mul(4);
        for entry in entries {
            let (tag, value) = (entry.d_tag(Little), entry.d_val(Little));
            if tag == elf::DT_NULL {
                break;
            } else if tag == elf::DT_INIT || tag == elf::DT_FINI {
                image.pointers.push(value);
                continue;
            }
            let is_name =
                [elf::DT_SONAME, elf::DT_NEEDED, elf::DT_RPATH, elf::DT_RUNPATH].contains(&tag);
            if !is_name {
                continue;
            }
            let name = u32::try_from(value).ok().and_then(|at| strings.get(at).ok());
            let name = name.ok_or_else(|| damage("dynamic section", "a name in it has no end"))?;
            // A name may have one directory for each byte, which takes more memory than that.
            let directories = name.iter().filter(|byte| **byte == b':').count();
            budget = budget
                .checked_sub(name.len() + directories * size_of::<String>())
                .ok_or_else(|| {
                    damage(
                        "dynamic section",
                        "names overlap too often, or have too many directories",
                    )
                })?;
            let name = String::from_utf8_lossy(name).into_owned();
            if tag == elf::DT_SONAME {
                image.soname.get_or_insert(name);
            } else if tag == elf::DT_NEEDED {
                image.needed.push(name);
            } else {
                image.runpath.extend(name.split(':').map(str::to_owned));
            }
        }
        Ok(())
    }

    fn build_id(&self) -> Result<Option<Vec<u8>>, ScanError> {
        let Some(section) = self.named(b".note.gnu.build-id") else { return Ok(None) };
        let mut notes = match section.notes(Little, self.bytes) {
            Ok(Some(notes)) => notes,
            Ok(None) => return Ok(None),
            Err(error) => return Err(damaged("build id")(error)),
        };
        while let Some(note) = notes.next().map_err(damaged("build id"))? {
            if note.name() == elf::ELF_NOTE_GNU && note.n_type(Little) == elf::NT_GNU_BUILD_ID {
                return Ok(Some(note.desc().to_vec()));
            }
        }
        Ok(None)
    }
}

/// Loaded segments by address, to read memory as it is before relocation.
struct Segments<'data> {
    parts: Vec<(u64, &'data [u8])>,
}

impl Segments<'_> {
    fn word_at(&mut self, address: u64) -> Option<u64> {
        let after = self.parts.partition_point(|part| part.0 <= address);
        let (start, bytes) = self.parts.get(after.checked_sub(1)?)?;
        let offset = usize::try_from(address - start).ok()?;
        let word = bytes.get(offset..offset.checked_add(8)?)?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    }
}

/// The index of the section that holds `address`.
pub(crate) fn find(sections: &[Section<'_>], address: u64) -> Option<usize> {
    let index = sections.partition_point(|section| section.address <= address).checked_sub(1)?;
    (address < sections[index].end()).then_some(index)
}
