//! Sets of registers, and which of them an instruction reads and writes.
//!
//! A vector register counts as two: the 128 bits that the oldest instructions use, and the bits
//! above. A general register also counts as two, with the lowest byte apart. The set that an
//! instruction reads is never too small, and the set that it defines is never too large.

use std::ops::{BitAnd, BitOr, BitOrAssign, Not};

use iced_x86::{Instruction, InstructionInfo, Mnemonic, OpAccess, OpKind, Register, UsedRegister};

use crate::hook::STATUS_FLAGS;

/// A set of registers.
///
/// | bits | |
/// |---|---|
/// | 0 to 15 | whole general registers, in the order of their encoding |
/// | 16 to 31 | their lowest bytes |
/// | 32 to 63 | `xmm0` to `xmm31` |
/// | 64 to 95 | the bits above them in `zmm0` to `zmm31` |
/// | 96 to 103 | masks |
/// | 104 to 109 | status flags |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registers(u128);

const BYTES: u32 = 16;
const LOW: u32 = 32;
const HIGH: u32 = 64;
const MASKS: u32 = 96;
const FLAGS: u32 = 104;

impl Registers {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const ALL: Self = Self((1 << (FLAGS + 6)) - 1);
    /// Registers that a function returns results in by the standard calling convention: `rax`,
    /// `rdx`, and two vectors. Source: System V ABI, x86-64 supplement, §3.2.3.
    pub(crate) const RETURNED: Self = Self(0b101 << BYTES | 0b101 | 0b11 << LOW | 0b11 << HIGH);
    /// Registers that a function preserves by the same convention: `rbx`, `rsp`, `rbp`, `r12` to
    /// `r15`.
    pub(crate) const PRESERVED: Self =
        Self(Self::PRESERVED_GENERAL as u128 | (Self::PRESERVED_GENERAL as u128) << BYTES);
    /// The same registers by number, one bit each.
    pub(crate) const PRESERVED_GENERAL: u16 = 0b1111_0000_0011_1000;
    /// General registers.
    pub(crate) const GENERAL: Self = Self((1 << LOW) - 1);
    /// Status flags.
    pub(crate) const STATUS: Self = Self(0x3f << FLAGS);

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the sets have a register in common.
    pub(crate) const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The registers of this set that are not in `other`.
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The whole general register of that number.
    pub(crate) const fn whole(number: u32) -> Self {
        Self(1 << number)
    }

    /// Any part of the general register of that number: its lowest byte is a part of its own.
    pub(crate) const fn any_of(number: u32) -> Self {
        Self(1 << number | 1 << (BYTES + number))
    }

    /// Whether the set has the lower 128 bits of one of these vector registers, given as bits.
    pub(crate) const fn low(self, numbers: u32) -> bool {
        self.0 >> LOW & numbers as u128 != 0
    }

    /// The same for the bits above.
    pub(crate) const fn high(self, numbers: u32) -> bool {
        self.0 >> HIGH & numbers as u128 != 0
    }

    /// Whether a mask is in the set.
    pub(crate) const fn masks(self) -> bool {
        self.0 >> MASKS & 0xff != 0
    }

    /// The vector registers and masks of the set.
    pub(crate) const fn vectors(self) -> Self {
        Self(self.0 >> LOW << LOW & !(0x3f << FLAGS))
    }

    /// What an instruction that reads `register` reads.
    fn read_by(register: Register) -> Self {
        if let Some(number) = general_number(register) {
            let lowest = register.size() == 1 && !is_second_byte(register);
            return if lowest { Self(1 << (BYTES + number)) } else { Self(1 << number) };
        }
        if register.is_xmm() {
            return Self(1 << (LOW + vector_number(register)));
        }
        Self::defined_by(register)
    }

    /// What writing all of `register` defines.
    fn defined_by(register: Register) -> Self {
        if let Some(number) = general_number(register) {
            return match register.size() {
                8 => Self(1 << number | 1 << (BYTES + number)),
                1 | 2 if !is_second_byte(register) => Self(1 << (BYTES + number)),
                _ => Self::NONE,
            };
        }
        if register.is_xmm() {
            return Self(1 << (LOW + vector_number(register)));
        }
        if register.is_ymm() || register.is_zmm() {
            let number = vector_number(register);
            return Self(1 << (LOW + number) | 1 << (HIGH + number));
        }
        if register.is_k() {
            return Self(1 << (MASKS + number_within(register)));
        }
        Self::NONE
    }

    /// What writing `register`, or a part of it, may change.
    fn changed_by(register: Register) -> Self {
        match general_number(register) {
            Some(number) => Self(1 << number | 1 << (BYTES + number)),
            None => Self::defined_by(register),
        }
    }
}

impl BitOr for Registers {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Registers {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for Registers {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Not for Registers {
    type Output = Self;

    fn not(self) -> Self {
        Self(!self.0 & Self::ALL.0)
    }
}

/// The number of a general register of any width.
pub(crate) fn general_number(register: Register) -> Option<u32> {
    register.is_gpr().then(|| number_within(register.full_register()))
}

fn number_within(register: Register) -> u32 {
    u32::try_from(register.number()).unwrap_or_default()
}

fn vector_number(register: Register) -> u32 {
    number_within(register) & 31
}

/// Whether it is `ah`, `bh`, `ch` or `dh`.
fn is_second_byte(register: Register) -> bool {
    matches!(register, Register::AH | Register::BH | Register::CH | Register::DH)
}

/// What an instruction does to registers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Uses {
    /// What it reads, perhaps only in some cases.
    pub(crate) reads: Registers,
    /// What it always sets to a value of its own.
    pub(crate) defines: Registers,
    /// What it may change.
    pub(crate) changes: Registers,
}

impl Uses {
    /// What an instruction does.
    pub(crate) fn of(instruction: &Instruction, info: &InstructionInfo) -> Self {
        let mut uses = Self::default();
        for used in info.used_registers() {
            uses.add(used);
        }
        if instruction.mnemonic() == Mnemonic::Vzeroupper {
            // `vzeroupper` leaves the lower halves, and reads nothing.
            let upper = Registers(0xffff << HIGH);
            uses = Self { reads: Registers::NONE, defines: upper, changes: upper };
        }
        if makes_a_constant(instruction) {
            uses.reads = uses.reads.without(Registers::changed_by(instruction.op0_register()));
        }
        let flags = |bits: u32| Registers(u128::from(bits & STATUS_FLAGS) << FLAGS);
        uses.reads |= flags(instruction.rflags_read());
        uses.changes |= flags(instruction.rflags_modified());
        // Shifts by zero leave the flags alone, but the decoder reports that they change them.
        if !is_shift_by_register(instruction) {
            uses.defines |= flags(instruction.rflags_modified());
        }
        uses
    }

    fn add(&mut self, used: &UsedRegister) {
        let register = used.register();
        let access = used.access();
        if is_read(access) {
            self.reads |= Registers::read_by(register);
        }
        if is_written(access) {
            self.changes |= Registers::changed_by(register);
        }
        if matches!(access, OpAccess::Write | OpAccess::ReadWrite) {
            self.defines |= Registers::defined_by(register);
        }
    }
}

/// Whether this kind of access reads.
pub(crate) fn is_read(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

/// Whether this kind of access writes.
pub(crate) fn is_written(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

/// Whether the result is the same whatever the operands hold: they are all one register, or the
/// instruction's table is constant. (The decoder itself handles differences.)
fn makes_a_constant(instruction: &Instruction) -> bool {
    let operands = instruction.op_count();
    let is_own = |index: u32| {
        instruction.op_kind(index) == OpKind::Register
            && instruction.op_register(index) == instruction.op0_register()
    };
    match instruction.mnemonic() {
        Mnemonic::Vpternlogd | Mnemonic::Vpternlogq => {
            !instruction.has_op_mask() && matches!(instruction.immediate8(), 0 | 0xff)
        }
        Mnemonic::Pcmpeqb
        | Mnemonic::Pcmpeqw
        | Mnemonic::Pcmpeqd
        | Mnemonic::Pcmpeqq
        | Mnemonic::Vpcmpeqb
        | Mnemonic::Vpcmpeqw
        | Mnemonic::Vpcmpeqd
        | Mnemonic::Vpcmpeqq
        | Mnemonic::Kxnorb
        | Mnemonic::Kxnorw
        | Mnemonic::Kxnord
        | Mnemonic::Kxnorq
        | Mnemonic::Kxorb
        | Mnemonic::Kxorw
        | Mnemonic::Kxord
        | Mnemonic::Kxorq => (0..operands).all(is_own),
        _ => false,
    }
}

fn is_shift_by_register(instruction: &Instruction) -> bool {
    let is_count = |index| instruction.op_register(index) == Register::CL;
    instruction.op_count() > 1 && is_count(instruction.op_count() - 1)
}
