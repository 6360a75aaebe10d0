//! A builder of small ELF files. It writes only what a scan reads, by hand, so that tests can also
//! make files that no linker would.

use iced_x86::code_asm::CodeAssembler;

/// Address of the code, unless a test sets another one.
pub(crate) const CODE: u64 = 0x1000;
/// Address of the data.
const DATA: u64 = 0x10_0000;

/// The type of a symbol (System V ABI).
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    NoType = 0,
    Function = 2,
    Resolver = 10,
}

struct Section {
    name: &'static str,
    kind: u32,
    flags: u64,
    address: u64,
    bytes: Vec<u8>,
    link: u32,
    info: u32,
    entry_size: u64,
}

/// A frame: its start, its size in bytes, and how far the caller's stack pointer is above its own
/// at first; and, optionally, after how many bytes that distance changes, and to what.
struct Frame {
    start: u64,
    size: u32,
    depth: u8,
    then: Option<(u8, u8)>,
}

/// A library under construction.
pub(crate) struct Library {
    code: Vec<u8>,
    symbols: Vec<(String, u64, u64, Kind)>,
    frames: Vec<Frame>,
    relocations: Vec<(u64, u64, u64)>,
    packed: Vec<u64>,
    soname: Option<&'static str>,
    build_id: Option<Vec<u8>>,
    others: Vec<(&'static str, Vec<u8>)>,
    is_debug_file: bool,
    relocated_code: Option<Vec<(u64, u64)>>,
}

impl Library {
    pub(crate) fn new(code: Vec<u8>) -> Self {
        Self {
            code,
            symbols: Vec::new(),
            frames: Vec::new(),
            relocations: Vec::new(),
            packed: Vec::new(),
            soname: None,
            build_id: None,
            others: Vec::new(),
            is_debug_file: false,
            relocated_code: None,
        }
    }

    /// A library with one global function from the first byte to the last.
    pub(crate) fn whole(code: Vec<u8>) -> Self {
        let length = code.len() as u64;
        Self::new(code).function("whole", 0, length)
    }

    pub(crate) fn function(self, name: &str, offset: u64, size: u64) -> Self {
        self.symbol(name, offset, size, Kind::Function)
    }

    pub(crate) fn symbol(mut self, name: &str, offset: u64, size: u64, kind: Kind) -> Self {
        self.symbols.push((name.to_owned(), CODE + offset, size, kind));
        self
    }

    pub(crate) fn frame(self, offset: u64, size: u32) -> Self {
        self.part(offset, size, 8)
    }

    /// A frame at whose start the caller's stack pointer is `depth` bytes above.
    pub(crate) fn part(mut self, offset: u64, size: u32, depth: u8) -> Self {
        self.frames.push(Frame { start: CODE + offset, size, depth, then: None });
        self
    }

    /// After `bytes` of the last frame, the caller's stack pointer is `depth` bytes above.
    pub(crate) fn then(mut self, bytes: u8, depth: u8) -> Self {
        self.frames.last_mut().expect("a frame").then = Some((bytes, depth));
        self
    }

    /// A relocation of the word at `place` that makes it point at `offset` of the code.
    pub(crate) fn relative(mut self, place: u64, offset: u64) -> Self {
        self.relocations.push((place, 8, CODE + offset));
        self
    }

    /// Like [`Self::relative`], for a resolver.
    pub(crate) fn indirect(mut self, place: u64, offset: u64) -> Self {
        self.relocations.push((place, 37, CODE + offset));
        self
    }

    /// A word of data that points at `offset` of the code, relocated by a packed relocation.
    pub(crate) fn packed(mut self, offset: u64) -> Self {
        self.packed.push(CODE + offset);
        self
    }

    pub(crate) fn soname(mut self, name: &'static str) -> Self {
        self.soname = Some(name);
        self
    }

    pub(crate) fn build_id(mut self, id: &[u8]) -> Self {
        self.build_id = Some(id.to_vec());
        self
    }

    /// Adds a section with these bytes.
    pub(crate) fn section(mut self, name: &'static str, bytes: Vec<u8>) -> Self {
        self.others.push((name, bytes));
        self
    }

    /// Makes it a debug file that was split off: the code is not in the file.
    pub(crate) fn debug_file(mut self) -> Self {
        self.is_debug_file = true;
        self
    }

    /// Makes it an object before linking, with relocations of its code: offset and type.
    pub(crate) fn object(mut self, relocations: &[(u64, u64)]) -> Self {
        self.relocated_code = Some(relocations.to_vec());
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let section = |name, kind, flags, address, bytes| Section {
            name,
            kind,
            flags,
            address,
            bytes,
            link: 0,
            info: 0,
            entry_size: 0,
        };
        let code = if self.is_debug_file { 8 } else { 1 };
        let address = if self.relocated_code.is_some() { 0 } else { CODE };
        let (symbols, strings) = self.symbol_table();
        let data: Vec<u8> = self.packed.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut sections = vec![
            section("", 0, 0, 0, Vec::new()),
            section(".text", code, 6, address, self.code.clone()),
            section(".symtab", 2, 0, 0, symbols),
            section(".strtab", 3, 0, 0, strings),
            section(".rela.dyn", 4, 2, 0, self.relocation_table()),
            section(".data", 1, 3, DATA, data),
        ];
        sections[2].link = 3;
        sections[2].entry_size = 24;
        sections[4].entry_size = 24;
        if !self.frames.is_empty() {
            sections.push(section(".eh_frame", 1, 2, DATA * 2, self.frame_table(DATA * 2)));
        }
        if !self.packed.is_empty() {
            // The first word is given by its address, the others by a bit map of the words after
            // it.
            let map = (1_u64 << self.packed.len()) - 1;
            let words = [DATA, map & !1 | 1];
            let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            sections.push(section(".relr.dyn", 19, 2, 0, bytes));
        }
        if let Some(name) = self.soname {
            let link = u32::try_from(sections.len()).expect("few sections");
            let strings = [b"\0", name.as_bytes(), b"\0"].concat();
            sections.push(section(".dynstr", 3, 2, 0, strings));
            let words = [14_u64, 1, 0, 0];
            let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            sections.push(Section { link, ..section(".dynamic", 6, 3, 0, bytes) });
        }
        if let Some(id) = &self.build_id {
            let length = u32::try_from(id.len()).expect("short").to_le_bytes();
            let bytes = [&[4, 0, 0, 0], &length[..], &[3, 0, 0, 0], b"GNU\0", id].concat();
            sections.push(section(".note.gnu.build-id", 7, 2, 0, bytes));
        }
        for (name, bytes) in &self.others {
            sections.push(section(name, 1, 0, 0, bytes.clone()));
        }
        let Some(relocations) = &self.relocated_code else { return write(sections) };
        let words = relocations.iter().flat_map(|(place, kind)| [*place, *kind, 0]);
        let bytes = words.flat_map(u64::to_le_bytes).collect();
        let table = section(".rela.text", 4, 0, 0, bytes);
        sections.push(Section { link: 2, info: 1, entry_size: 24, ..table });
        let mut bytes = write(sections);
        // The file's type.
        bytes[16] = 1;
        bytes
    }

    fn symbol_table(&self) -> (Vec<u8>, Vec<u8>) {
        let (mut table, mut strings) = (vec![0; 24], vec![0]);
        for (name, address, size, kind) in &self.symbols {
            table.extend(u32::try_from(strings.len()).expect("few").to_le_bytes());
            // Global, in section 1.
            table.extend([0x10 | *kind as u8, 0, 1, 0]);
            let base = if self.relocated_code.is_some() { CODE } else { 0 };
            table.extend((address - base).to_le_bytes());
            table.extend(size.to_le_bytes());
            strings.extend(name.as_bytes());
            strings.push(0);
        }
        (table, strings)
    }

    fn relocation_table(&self) -> Vec<u8> {
        let words = self.relocations.iter().flat_map(|(place, kind, to)| [*place, *kind, *to]);
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// Version 1, augmentation "zR", addresses relative to themselves in four bytes. The caller's
    /// stack pointer is eight bytes above, or more in parts of functions.
    fn frame_table(&self, address: u64) -> Vec<u8> {
        let mut table = vec![0x14, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b];
        table.extend([0x0c, 7, 8]);
        table.resize(0x18, 0);
        for Frame { start, size, depth, then } in &self.frames {
            let at = u32::try_from(table.len()).expect("small");
            table.extend([0x14, 0, 0, 0]);
            table.extend((at + 4).to_le_bytes());
            let distance = start.wrapping_sub(address + u64::from(at) + 8).to_le_bytes();
            table.extend(&distance[..4]);
            table.extend(size.to_le_bytes());
            let (bytes, later) = then.unwrap_or((0, *depth));
            // Offset, advance, offset, nothing.
            table.extend([0, 0x0e, *depth, 0x40 | bytes, 0x0e, later, 0, 0]);
        }
        table.extend([0; 4]);
        table
    }
}

fn write(mut sections: Vec<Section>) -> Vec<u8> {
    let mut names = Vec::new();
    let mut name_at = Vec::new();
    sections.push(Section {
        name: ".shstrtab",
        kind: 3,
        flags: 0,
        address: 0,
        bytes: Vec::new(),
        link: 0,
        info: 0,
        entry_size: 0,
    });
    for section in &sections {
        name_at.push(u32::try_from(names.len()).expect("few"));
        names.extend(section.name.as_bytes());
        names.push(0);
    }
    sections.last_mut().expect("pushed above").bytes = names;

    let loaded: Vec<usize> =
        (0..sections.len()).filter(|index| sections[*index].address != 0).collect();
    let mut body = vec![0; 64 + 56 * loaded.len()];
    let mut at = Vec::new();
    for section in &sections {
        body.resize(body.len().next_multiple_of(16), 0);
        at.push(body.len() as u64);
        body.extend(&section.bytes);
    }
    body.resize(body.len().next_multiple_of(16), 0);
    let headers = body.len() as u64;
    for (section, (name, at)) in sections.iter().zip(name_at.iter().zip(&at)) {
        body.extend(name.to_le_bytes());
        body.extend(section.kind.to_le_bytes());
        let size = section.bytes.len() as u64;
        for word in [section.flags, section.address, *at, size] {
            body.extend(word.to_le_bytes());
        }
        body.extend(section.link.to_le_bytes());
        body.extend(section.info.to_le_bytes());
        body.extend(4_u64.to_le_bytes());
        body.extend(section.entry_size.to_le_bytes());
    }
    let count = u16::try_from(sections.len()).expect("few");
    let segments = u16::try_from(loaded.len()).expect("few");
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    header.extend([3, 0, 62, 0, 1, 0, 0, 0]);
    for word in [0, 64, headers] {
        header.extend(u64::to_le_bytes(word));
    }
    header.extend([0; 4]);
    for half in [64, 56, segments, 64, count, count - 1] {
        header.extend(half.to_le_bytes());
    }
    for index in loaded {
        let size = sections[index].bytes.len() as u64;
        header.extend([1, 0, 0, 0, 7, 0, 0, 0]);
        for word in [at[index], sections[index].address, 0, size, size, 4096] {
            header.extend(word.to_le_bytes());
        }
    }
    body[..header.len()].copy_from_slice(&header);
    body
}

/// The bytes that `write` assembles at [`CODE`].
pub(crate) fn assemble(
    write: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>,
) -> Vec<u8> {
    let mut assembler = CodeAssembler::new(64).expect("64 bits");
    write(&mut assembler).expect("instructions that exist");
    assembler.assemble(CODE).expect("labels that are set")
}
