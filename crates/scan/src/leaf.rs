//! Which functions can run on another thread's stack, with nothing of their caller's but some
//! registers, and with the same effect.
//!
//! Most wide SIMD kernels are such *leaf functions*: they call nothing, use no thread-local
//! storage, take no arguments from the stack and leave the processor's control registers alone. A
//! call of one can be delegated to another core as a closure, for much less than it costs to
//! migrate a thread. A function counts as a leaf only if the analysis shows it. The analysis checks
//! the instructions (`graph`, `refuse`), follows the stack and the general registers through them
//! (`stack`, `value`), and finds what callers rely on (`expected`).
//!
//! It assumes that functions do not index outside their own arrays, and do not overwrite what they
//! have saved; that calls through pointers and from other files are standard calls; and that only
//! the file's own code jumps into a function.

mod expected;
mod graph;
mod refuse;
mod registers;
mod stack;
mod value;

use std::fmt;

use crate::error::ScanError;
use crate::{Code, Scan, elf};
use expected::Expected;
use graph::{Graph, Lost};
use registers::Registers;

/// What a leaf function takes from its caller's registers and returns in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// General registers that it reads, by their number in instructions (`rax` is bit 0, `rdi` bit
    /// 7). An upper bound; the stack pointer is never among them.
    pub reads_general: u16,
    /// Vector registers and masks that it reads, as components of what XSAVE stores: SSE is bit 1,
    /// AVX bit 2, masks bit 5, the upper halves of `zmm0` to `zmm15` bit 6, `zmm16` to `zmm31` bit
    /// 7 (Intel SDM, vol. 1, §13.1).
    pub reads_vectors: u64,
    /// General registers that it may return something in, with the same numbers: `rax` and `rdx`.
    pub returns_general: u16,
    /// How much of the first two vector registers it may return something in; `None` if nothing.
    pub returns_vectors: Option<Width>,
}

/// The width of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Width {
    /// 128 bits; the bits above stay as they were.
    Bits128,
    /// 256 bits; the bits above are cleared.
    Bits256,
    /// 512 bits.
    Bits512,
}

impl Width {
    /// The width in bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::Bits128 => 128,
            Self::Bits256 => 256,
            Self::Bits512 => 512,
        }
    }

    /// The vector width of `bits` bits; `None` if there is none.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            128 => Some(Self::Bits128),
            256 => Some(Self::Bits256),
            512 => Some(Self::Bits512),
            _ => None,
        }
    }
}

/// Why a function is not known to be a leaf function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NotLeaf {
    /// It calls another function.
    Calls {
        /// The address of the instruction.
        at: u64,
    },
    /// It jumps to an unknown place.
    Jumps {
        /// The address of the instruction.
        at: u64,
    },
    /// It makes a system call, or raises an interrupt.
    System {
        /// The address of the instruction.
        at: u64,
    },
    /// It uses thread-local storage.
    ThreadStorage {
        /// The address of the instruction.
        at: u64,
    },
    /// It reads which processor it runs on.
    ThisProcessor {
        /// The address of the instruction.
        at: u64,
    },
    /// It touches registers that are not handed over: x87 and MMX, segments, the direction flag,
    /// the control of arithmetic. Or it has an instruction that is not known to leave these alone.
    Control {
        /// The address of the instruction.
        at: u64,
    },
    /// It reads or writes its return address, or the stack above it.
    StackArguments {
        /// The address of the instruction.
        at: u64,
    },
    /// It uses the stack at an unknown place.
    StackUnknown {
        /// The address of the instruction.
        at: u64,
    },
    /// A stack address leaves it, or becomes something else.
    StackAddress {
        /// The address of the instruction.
        at: u64,
    },
    /// Its stack pointer is at an unknown place, or it returns with another one than it got.
    StackPointer {
        /// The address of the instruction.
        at: u64,
    },
    /// It needs more stack than another thread may have.
    TooDeep {
        /// The address of the instruction.
        at: u64,
    },
    /// It does not restore a register that functions must restore.
    NotRestored {
        /// The address of the return.
        at: u64,
        /// The register's number.
        register: u8,
    },
    /// It takes condition flags from its caller.
    TakesFlags,
    /// There is no code where it leads.
    NoCode {
        /// The address that it leads to.
        at: u64,
    },
    /// It has too many instructions.
    TooLong,
    /// Nothing is known to lead to it, so it is unknown what callers rely on.
    Unreached,
    /// Its callers rely on registers besides those that functions return something in.
    Expected,
}

impl fmt::Display for NotLeaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calls { at } => write!(f, "it calls another function at {at:#x}"),
            Self::Jumps { at } => write!(f, "where it jumps at {at:#x} is not known"),
            Self::System { at } => write!(f, "it calls the kernel at {at:#x}"),
            Self::ThreadStorage { at } => write!(f, "it uses thread-local storage at {at:#x}"),
            Self::ThisProcessor { at } => {
                write!(f, "it asks at {at:#x} which processor it runs on")
            }
            Self::Control { at } => {
                write!(f, "the instruction at {at:#x} may touch registers that are not handed over")
            }
            Self::StackArguments { at } => {
                write!(f, "it uses its return address, or arguments on the stack, at {at:#x}")
            }
            Self::StackUnknown { at } => {
                write!(f, "which place of the stack it uses at {at:#x} is not known")
            }
            Self::StackAddress { at } => {
                write!(f, "an address of its stack goes elsewhere at {at:#x}")
            }
            Self::StackPointer { at } => {
                write!(f, "where its stack pointer is at {at:#x} is not known")
            }
            Self::TooDeep { at } => write!(f, "it uses much of the stack at {at:#x}"),
            Self::NotRestored { at, register } => {
                write!(
                    f,
                    "it does not restore general register {register} before it returns at {at:#x}"
                )
            }
            Self::TakesFlags => f.write_str("it takes condition flags from its caller"),
            Self::NoCode { at } => write!(f, "there is no code at {at:#x}, where it leads"),
            Self::TooLong => f.write_str("it has too many instructions"),
            Self::Unreached => f.write_str("nothing is known to lead to it"),
            Self::Expected => f.write_str(
                "its callers count on registers besides those that functions return something in",
            ),
        }
    }
}

/// The leaf functions of a file, found on request.
#[derive(Debug)]
pub struct Leaves<'data, 'scan> {
    code: &'scan Code<'data>,
    expected: Expected<'data, 'scan>,
}

impl<'data, 'scan> Leaves<'data, 'scan> {
    /// Reads the file `bytes` again, from which `code` and `scan` came. Takes about as long as the
    /// scan.
    ///
    /// # Errors
    /// As [`crate::scan`].
    pub fn read(
        bytes: &[u8],
        code: &'scan Code<'data>,
        scan: &'scan Scan,
    ) -> Result<Self, ScanError> {
        let image = elf::read(bytes)?;
        Ok(Self { code, expected: Expected::read(&image, code, scan) })
    }

    /// What the function that is entered at `entry` takes and returns, if it is a leaf function.
    /// Takes some microseconds for each of its instructions, and for each instruction after calls
    /// of it.
    ///
    /// # Errors
    /// Why it is not known to be a leaf function.
    pub fn at(&mut self, entry: u64) -> Result<Leaf, NotLeaf> {
        let graph = Graph::explore(self.code, entry).map_err(|lost| match lost {
            Lost::NoCode(at) => NotLeaf::NoCode { at },
            Lost::TooLong => NotLeaf::TooLong,
        })?;
        let found = stack::follow(&graph)?;
        if found.reads.meets(Registers::STATUS) {
            return Err(NotLeaf::TakesFlags);
        }
        let expected = self.expected.after(entry).ok_or(NotLeaf::Unreached)? & found.changes;
        if !expected.without(Registers::RETURNED).is_empty() {
            return Err(NotLeaf::Expected);
        }
        const FIRST: u32 = 0xffff;
        const FIRST_TWO: u32 = 0b11;
        let component = |bit: u32, is_read: bool| u64::from(is_read) << bit;
        let (reads, zmm) = (found.reads, found.names_zmm);
        let returns_general = |number: u32| {
            let is_expected = expected.meets(Registers::any_of(number));
            u16::from(is_expected) << number & found.gives
        };
        Ok(Leaf {
            reads_general: found.reads_general,
            reads_vectors: component(1, reads.low(FIRST))
                | component(2, reads.high(FIRST))
                | component(5, reads.masks())
                | component(6, reads.high(FIRST) && zmm)
                | component(7, reads.low(!FIRST) || reads.high(!FIRST)),
            returns_general: returns_general(0) | returns_general(2),
            returns_vectors: if expected.high(FIRST_TWO) {
                Some(if zmm { Width::Bits512 } else { Width::Bits256 })
            } else {
                expected.low(FIRST_TWO).then_some(Width::Bits128)
            },
        })
    }
}
