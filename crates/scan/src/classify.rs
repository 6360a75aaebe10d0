//! The class of one instruction, and the other traits that the analysis of a function needs.
//!
//! All of it follows from the instruction's code (its form in the manual: mnemonic, encoding, kinds
//! of operands). So the build generates one table (`build.rs`, which decides which mnemonics are
//! heavy), and classifying is one look-up. With a table made at run time, every process that loads
//! Dimmer's library would have to relocate the decoder's names of all instructions.

use dimmer_processor::class::InstructionClass;
use iced_x86::Instruction;

/// The class of `instruction`; `None` if it touches neither a vector nor a tile.
///
/// The width is that of the widest vector register that the instruction's form names. It is never
/// less than what the instruction reads or writes in memory (`vcvtpd2ps xmm, m256` is the form
/// `xmm, ymm/m256`). Arithmetic on one element (`vaddsd`), moving one element (`movd`, `vpextrq`)
/// and 64-bit MMX are scalar. Masks, `vzeroupper`, and moves of whole states (`xsave`, `fxsave`)
/// have no class. Takes nanoseconds.
#[must_use]
pub fn classify(instruction: &Instruction) -> Option<InstructionClass> {
    TABLE[instruction.code() as usize].class
}

/// The traits of an instruction that the analysis of a function needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    /// The class; `None` for neither vector nor tile.
    pub(crate) class: Option<InstructionClass>,
    /// Whether it has the EVEX encoding.
    pub(crate) evex: bool,
    /// Whether it may write the upper half of its first operand, if that is a wide register.
    pub(crate) writes_upper: bool,
    /// Its effect on control flow, or another property that the scan looks for.
    pub(crate) kind: Kind,
}

/// Kinds of instructions, by what a scan does with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Any other instruction.
    Plain,
    /// Bytes that are not an instruction.
    Invalid,
    /// Fills space between code: `nop`, `int3`.
    Padding,
    /// `lea`, which may give the address of a function.
    Address,
    /// Clears the upper halves: `vzeroupper`, `vzeroall`.
    ClearUpper,
    /// A direct jump.
    Jump,
    /// A direct conditional jump, `loop` and `jrcxz` included.
    Branch,
    /// A direct call.
    Call,
    /// An indirect or far jump.
    IndirectJump,
    /// A return.
    Return,
    /// Execution does not go on: `ud2`.
    Stop,
}

/// Traits by instruction code.
static TABLE: &[Traits] = &include!(concat!(env!("OUT_DIR"), "/traits.rs"));

/// The table. Callers fetch it once for many instructions.
pub(crate) const fn table() -> &'static [Traits] {
    TABLE
}

const fn traits(
    class: Option<InstructionClass>,
    evex: bool,
    writes_upper: bool,
    kind: Kind,
) -> Traits {
    Traits { class, evex, writes_upper, kind }
}
