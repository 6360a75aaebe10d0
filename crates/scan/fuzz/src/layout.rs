//! Where the tables of an ELF file lie, as far as a damaged file shows, so that damage hits what is
//! read.

use std::ops::Range;

/// Most sections to look at; libraries have about 30.
const MOST_SECTIONS: usize = 96;

/// A part of a file.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its range, within the file and not empty.
    pub range: Range<usize>,
    /// Bytes of one entry; 1 if it is not a table.
    pub entry: usize,
}

/// The parts of a file.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Headers and tables.
    pub tables: Vec<Part>,
    /// Executable sections.
    pub code: Vec<Part>,
    /// Addresses, offsets and sizes of sections, to write elsewhere.
    pub values: Vec<u64>,
}

impl Layout {
    /// The layout according to the headers of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut layout = Self::default();
        layout.table(bytes, 0, 64, 8);
        let segments = usize::from(half(bytes, 56));
        layout.table(bytes, word(bytes, 32), 56 * segments as u64, 56);
        let (headers, count) = (word(bytes, 40), usize::from(half(bytes, 60)).min(MOST_SECTIONS));
        layout.table(bytes, headers, 64 * count as u64, 64);
        let header = |index: usize| {
            let at = headers.checked_add(64 * index as u64)?;
            let at = usize::try_from(at).ok()?;
            bytes.get(at..at.checked_add(64)?)
        };
        let names = header(usize::from(half(bytes, 62))).map_or(0, |names| word(names, 24));
        for header in (0..count).filter_map(header) {
            let (offset, size) = (word(header, 24), word(header, 32));
            layout.values.extend([word(header, 16), offset, size]);
            let name = usize::try_from(names.saturating_add(u64::from(half(header, 0)))).ok();
            let name = name.and_then(|name| bytes.get(name..)).unwrap_or_default();
            // Types of sections by the System V ABI.
            match half(header, 4) {
                // Symbols and relocations.
                2 | 4 | 11 => layout.table(bytes, offset, size, 24),
                // Dynamic entries.
                6 => layout.table(bytes, offset, size, 16),
                // Packed relocations.
                19 => layout.table(bytes, offset, size, 8),
                // Notes.
                7 => layout.table(bytes, offset, size, 4),
                _ if header[8] & 4 != 0 => layout.code.extend(part(bytes, offset, size, 1)),
                _ if name.starts_with(b".eh_frame\0") => layout.table(bytes, offset, size, 4),
                _ => {}
            }
        }
        layout
    }

    fn table(&mut self, bytes: &[u8], offset: u64, size: u64, entry: usize) {
        self.tables.extend(part(bytes, offset, size, entry));
    }
}

fn part(bytes: &[u8], offset: u64, size: u64, entry: usize) -> Option<Part> {
    let start = usize::try_from(offset).ok()?;
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let end = start.saturating_add(size).min(bytes.len());
    (start < end).then_some(Part { range: start..end, entry })
}

fn half(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |field| u16::from_le_bytes([field[0], field[1]]))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..at + 8).and_then(|field| field.try_into().ok());
    field.map_or(0, u64::from_le_bytes)
}
