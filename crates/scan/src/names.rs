//! Names of functions that a file itself no longer has, from the debug file that was split off it.
//!
//! A debug file is recognized by build id, or by a link in the file with a checksum (GDB manual,
//! "Debugging Information in Separate Files"). A small one, with symbols alone, may be packed in
//! the file itself ("MiniDebugInfo"). The caller finds and reads the files.

use xz4rust::{XzDecoder, XzNextBlockResult};

use crate::elf;
use crate::error::ScanError;
use crate::starts;

/// The largest size of an unpacked debug file, in multiples of its packed length. Those of a
/// distribution become five times as long.
const MOST_GROWTH: usize = 32;

/// The largest dictionary of a packed debug file, in bytes: that of `xz -9`.
const LARGEST_DICTIONARY: usize = 64 << 20;

/// Names of functions by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names<'data>(Vec<(u64, &'data str)>);

impl<'data> Names<'data> {
    /// The names in the symbol tables of an ELF file, or of the debug file that was split off it.
    ///
    /// # Errors
    /// As [`crate::scan`], for problems in the headers and symbols.
    pub fn read(bytes: &'data [u8]) -> Result<Self, ScanError> {
        Ok(Self(starts::names(&elf::symbols(bytes)?)))
    }

    /// Takes `names`, sorted by address.
    pub(crate) fn new(names: Vec<(u64, &'data str)>) -> Self {
        Self(names)
    }

    /// The name of the function that starts at `address`.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<&'data str> {
        let index = self.0.binary_search_by_key(&address, |(at, _)| *at).ok()?;
        Some(self.0[index].1)
    }

    /// The number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A file's reference to its debug file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugLink {
    /// The name of the debug file, without a directory.
    pub name: String,
    /// The checksum of the debug file.
    checksum: u32,
}

impl DebugLink {
    /// Whether `bytes` are those of the debug file that the link means. Takes a second for a
    /// gigabyte or two.
    #[must_use]
    pub fn is_to(&self, bytes: &[u8]) -> bool {
        checksum(bytes) == self.checksum
    }
}

/// The link to a debug file in the ELF file `bytes` (`.gnu_debuglink`); `None` if there is none.
///
/// # Errors
/// As [`crate::scan`], for problems in the headers, and if the link names no file.
pub fn debug_link(bytes: &[u8]) -> Result<Option<DebugLink>, ScanError> {
    let Some(section) = elf::section(bytes, ".gnu_debuglink")? else { return Ok(None) };
    let link = || {
        let length = section.iter().position(|byte| *byte == 0)?;
        let name = std::str::from_utf8(&section[..length]).ok()?;
        // The checksum comes after the zero, at a multiple of four.
        let at = (length + 1).next_multiple_of(4);
        let checksum = section.get(at..at.checked_add(4)?)?.try_into().ok()?;
        let is_name = !name.is_empty() && !name.contains('/') && name != "..";
        is_name.then(|| DebugLink { name: name.to_owned(), checksum: u32::from_le_bytes(checksum) })
    };
    link().map(Some).ok_or_else(|| elf::damage("link to the debug file", "it names none"))
}

/// The debug file that is packed in the ELF file `bytes` (`.gnu_debugdata`); `None` if there is
/// none.
///
/// # Errors
/// As [`crate::scan`], for problems in the headers, and if it cannot be unpacked.
pub fn embedded_debug_file(bytes: &[u8]) -> Result<Option<Vec<u8>>, ScanError> {
    let Some(packed) = elf::section(bytes, ".gnu_debugdata")? else { return Ok(None) };
    unpack(packed).map(Some).map_err(|problem| elf::damage("packed debug file", problem))
}

fn unpack(packed: &[u8]) -> Result<Vec<u8>, String> {
    let most = packed.len().saturating_mul(MOST_GROWTH);
    let mut decoder = XzDecoder::in_heap_with_alloc_dict_size(0, LARGEST_DICTIONARY);
    let (mut unpacked, mut rest) = (Vec::new(), packed);
    let mut buffer = vec![0; 1 << 16];
    loop {
        let step = decoder.decode(rest, &mut buffer).map_err(|error| error.to_string())?;
        let (consumed, produced) = (step.input_consumed(), step.output_produced());
        rest = rest.get(consumed..).unwrap_or_default();
        unpacked.extend_from_slice(buffer.get(..produced).unwrap_or_default());
        if matches!(step, XzNextBlockResult::EndOfStream(..)) {
            return Ok(unpacked);
        }
        if unpacked.len() > most {
            return Err(format!("it becomes more than {MOST_GROWTH} times as long"));
        }
        if consumed == 0 && produced == 0 {
            return Err("it ends early".to_owned());
        }
    }
}

/// The checksum of a debug file: CRC-32 as in IEEE 802.3, computed eight bytes at a time.
fn checksum(bytes: &[u8]) -> u32 {
    const TABLES: [[u32; 256]; 8] = tables();
    let (eights, rest) = bytes.as_chunks::<8>();
    let mut sum = u32::MAX;
    let entry = |table: usize, byte: u8| TABLES[table][usize::from(byte)];
    for eight in eights {
        let [a, b, c, d] = sum.to_le_bytes();
        let [e, f, g, h, i, j, k, l] = *eight;
        sum = entry(7, a ^ e)
            ^ entry(6, b ^ f)
            ^ entry(5, c ^ g)
            ^ entry(4, d ^ h)
            ^ entry(3, i)
            ^ entry(2, j)
            ^ entry(1, k)
            ^ entry(0, l);
    }
    for byte in rest {
        sum = entry(0, sum.to_le_bytes()[0] ^ byte) ^ sum >> 8;
    }
    !sum
}

/// What a byte adds to the sum, by the number of bytes after it.
const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "less than 256")]
        let mut sum = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            // The polynomial, its bits in reverse.
            sum = if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
            bit += 1;
        }
        tables[0][byte] = sum;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        byte = 0;
        while byte < 256 {
            let before: u32 = tables[table - 1][byte];
            tables[table][byte] = tables[0][(before & 0xff) as usize] ^ before >> 8;
            byte += 1;
        }
        table += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_that_of_the_standard() {
        // The check value of CRC-32/ISO-HDLC, and lengths around eight.
        assert_eq!(checksum(b"123456789"), 0xcbf4_3926);
        assert_eq!(checksum(b""), 0);
        assert_eq!(checksum(b"The quick brown fox jumps over the lazy dog"), 0x414f_a339);
    }
}
