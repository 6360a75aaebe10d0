//! Which functions can run on another thread's stack, with nothing of their caller's but some
//! registers, and nobody the wiser.
//!
//! Most wide-vector kernels are such *leaf functions*: they call nothing, keep no thread-local
//! storage, take no arguments from the stack and leave the processor's control registers alone. A
//! call of one can be handed over to another core as a closure, for much less than what moving a
//! thread takes. What is not shown to be so is not: the analysis sees the instructions (`graph`,
//! `refuse`), follows the stack and the general registers through them (`stack`, `value`), and
//! looks what callers count on (`expected`).
//!
//! What it takes for granted: that functions do not leave arrays of their own by an index, nor
//! overwrite what they have saved; that calls through pointers and from other files are standard
//! ones; and that nobody but the file's own code jumps into a function.

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

/// What a leaf function takes from its caller's registers and gives back in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// General registers that it reads, by their number in instructions (`rax` is bit 0, `rdi` bit
    /// 7). At most; the stack pointer is never among them.
    pub reads_general: u16,
    /// Vector registers and masks that it reads, as components of what XSAVE stores: SSE is bit 1,
    /// AVX bit 2, masks bit 5, the upper halves of `zmm0` to `zmm15` bit 6, `zmm16` to `zmm31` bit
    /// 7 (Intel SDM, vol. 1, §13.1).
    pub reads_vectors: u64,
    /// General registers that it may return something in, numbered likewise: `rax` and `rdx`.
    pub returns_general: u16,
    /// How much of the first two vector registers it may return something in; `None` if nothing.
    pub returns_vectors: Option<Width>,
}

/// The width of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Width {
    /// 128 bits; whatever lies above stays as it was.
    Bits128,
    /// 256 bits; whatever lies above is cleared.
    Bits256,
    /// 512 bits.
    Bits512,
}

impl Width {
    /// In bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::Bits128 => 128,
            Self::Bits256 => 256,
            Self::Bits512 => 512,
        }
    }

    /// The width of so many bits.
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
        /// The address of the instruction, here and below.
        at: u64,
    },
    /// It jumps where nobody knows.
    Jumps {
        /// Where.
        at: u64,
    },
    /// It calls the kernel, or raises an interrupt.
    System {
        /// Where.
        at: u64,
    },
    /// It uses thread-local storage.
    ThreadStorage {
        /// Where.
        at: u64,
    },
    /// It asks which processor it runs on.
    ThisProcessor {
        /// Where.
        at: u64,
    },
    /// It touches registers that are not handed over: x87 and MMX, segments, the direction flag,
    /// the control of arithmetic; or it has an instruction of which nobody has said that it does
    /// not.
    Control {
        /// Where.
        at: u64,
    },
    /// It reads or writes its return address, or what lies above.
    StackArguments {
        /// Where.
        at: u64,
    },
    /// It uses the stack, nobody knows at which place.
    StackUnknown {
        /// Where.
        at: u64,
    },
    /// An address of the stack leaves it, or becomes something else.
    StackAddress {
        /// Where.
        at: u64,
    },
    /// Nobody knows where its stack pointer is, or it returns with another than it got.
    StackPointer {
        /// Where.
        at: u64,
    },
    /// It needs more of the stack than another thread may have.
    TooDeep {
        /// Where.
        at: u64,
    },
    /// It does not restore a register that functions have to.
    NotRestored {
        /// The return.
        at: u64,
        /// The register's number.
        register: u8,
    },
    /// It takes condition flags from its caller.
    TakesFlags,
    /// There is no code where it leads.
    NoCode {
        /// Where to.
        at: u64,
    },
    /// It has too many instructions.
    TooLong,
    /// Nothing is known to lead to it, so nobody knows what callers count on.
    Unreached,
    /// Those who lead to it count on registers besides those that functions return something in.
    Expected,
}

impl fmt::Display for NotLeaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calls { at } => write!(f, "it calls another function at {at:#x}"),
            Self::Jumps { at } => write!(f, "nobody knows where it jumps at {at:#x}"),
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
                write!(f, "nobody knows which place of the stack it uses at {at:#x}")
            }
            Self::StackAddress { at } => {
                write!(f, "an address of its stack goes elsewhere at {at:#x}")
            }
            Self::StackPointer { at } => {
                write!(f, "nobody knows where its stack pointer is at {at:#x}")
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

/// The leaf functions of a file, found as they are asked for.
#[derive(Debug)]
pub struct Leaves<'data, 'scan> {
    code: &'scan Code<'data>,
    expected: Expected<'data, 'scan>,
}

impl<'data, 'scan> Leaves<'data, 'scan> {
    /// Reads the file `bytes` again, of which `code` and `scan` came. Takes about as long as the
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

    /// What the function that is entered at `entry` takes and gives, if it is a leaf function.
    /// Takes some microseconds for each of its instructions, and for those behind its calls.
    ///
    /// # Errors
    /// Why it is not known to be one.
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
            let is_expected = expected.meets(Registers::whole(number));
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
