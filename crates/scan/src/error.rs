//! Why a file cannot be scanned.

use std::fmt;

/// Why a file cannot be scanned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScanError {
    /// Not an ELF file.
    #[error("not an ELF file: it begins with the bytes {found:02x?}, not with 7f 45 4c 46")]
    NotElf {
        /// The first bytes, at most four.
        found: Vec<u8>,
    },
    /// An ELF file for another processor.
    #[error("an ELF file for {machine}; only x86-64 can be scanned")]
    NotX8664 {
        /// The processor that it is for.
        machine: Machine,
    },
    /// Neither a program nor a library, so it has no addresses.
    #[error(
        "an ELF file of type {kind} ({}); only linked programs and libraries can be scanned",
        kind_name(*kind)
    )]
    NotLinked {
        /// The file's type (`e_type`).
        kind: u16,
    },
    /// A file whose section headers were removed. They show what is code.
    #[error("an ELF file without section headers, which say where its code is")]
    NoSections,
    /// Truncated, or contradicting itself.
    #[error("damaged or truncated: {place}: {problem}")]
    Damaged {
        /// The part of the file.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// The machine that an ELF file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    /// The number of the architecture (`e_machine`).
    pub number: u16,
    /// Bits of an address: 32 or 64.
    pub bits: u32,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Numbers from the registry of the System V ABI.
        let name = match self.number {
            3 => "i386",
            8 => "MIPS",
            20 => "PowerPC",
            21 => "PowerPC 64",
            22 => "S/390",
            40 => "Arm",
            62 => "x86-64",
            183 => "AArch64",
            243 => "RISC-V",
            258 => "LoongArch",
            number => return write!(f, "architecture {number} with {} bits", self.bits),
        };
        write!(f, "{name} with {}-bit addresses", self.bits)
    }
}

fn kind_name(kind: u16) -> &'static str {
    match kind {
        1 => "an object before linking",
        4 => "a memory dump",
        _ => "unknown",
    }
}
