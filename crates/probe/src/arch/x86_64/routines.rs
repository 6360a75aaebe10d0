//! Routines: the code of windows of work, under the contract at the head of `drive.rs`.

#[cfg(test)]
mod tests;

use iced_x86::{Code, Encoder, IcedError, Instruction, MemoryOperand, Register};

use dimmer_processor::class::InstructionClass;

use super::operands;
use crate::kernel::{Kernel, Upper};
use crate::program::{Operands, Work};

/// Why a routine cannot be assembled.
pub(crate) type AssemblyError = IcedError;

/// An instruction of one byte that ends a program that runs into it.
pub(crate) const TRAP: u8 = 0xcc;

/// Longest burst that is assembled without a loop (instructions).
const STRAIGHT: usize = 1024;

/// Instructions in the body of a looping burst, rounded up to whole template periods.
const BODY: usize = 992;

pub(crate) fn clock() -> Result<Vec<u8>, AssemblyError> {
    let mut a = Assembler::new();
    let again = a.code.len();
    for _ in 0..Work::CLOCK_STEP {
        a.two(Code::Imul_r32_rm32, Register::EAX, Register::EAX)?;
    }
    a.repeat(again)?;
    a.end()
}

pub(crate) fn unit() -> Result<Vec<u8>, AssemblyError> {
    let mut a = Assembler::new();
    let again = a.code.len();
    for _ in 0..Work::CLOCK_STEP {
        a.two(Code::Add_rm32_r32, Register::EAX, Register::EDX)?;
    }
    a.repeat(again)?;
    a.end()
}

pub(crate) fn issue() -> Result<Vec<u8>, AssemblyError> {
    use Register::{R8, R9, R10, R11, RAX, RDI, RDX, RSI};
    let mut a = Assembler::new();
    let again = a.code.len();
    for _ in 0..Work::ISSUE_STEP / 8 {
        for register in [RAX, RDX, RSI, RDI, R8, R9, R10, R11] {
            a.two(Code::Add_rm64_r64, register, register)?;
        }
    }
    a.repeat(again)?;
    a.end()
}

/// Loads a 512-bit register, and leaves its upper halves dirty.
pub(crate) fn dirty() -> Result<Vec<u8>, AssemblyError> {
    let mut a = Assembler::new();
    a.load(Code::EVEX_Vmovupd_zmm_k1z_zmmm512, Register::ZMM0)?;
    a.end()
}

/// Loads a 512-bit register, and cleans its upper halves.
pub(crate) fn zeroed() -> Result<Vec<u8>, AssemblyError> {
    let mut a = Assembler::new();
    a.load(Code::EVEX_Vmovupd_zmm_k1z_zmmm512, Register::ZMM0)?;
    a.plain(Code::VEX_Vzeroupper)?;
    a.end()
}

/// Writes a burst: operands, `count` instructions, clean-up.
pub(crate) fn burst(
    kernel: &Kernel,
    count: u32,
    operands: Operands,
) -> Result<Vec<u8>, AssemblyError> {
    let mut a = Assembler::new();
    let tile = kernel.class == InstructionClass::Tile;
    if tile {
        let offset = (operands::TILE_CONFIG as u64).cast_signed();
        let shape = MemoryOperand::with_base_displ(Register::R15, offset);
        a.add(Instruction::with1(Code::VEX_Ldtilecfg_m512, shape))?;
    }
    if operands == Operands::Loaded {
        match kernel.class {
            InstructionClass::Tile => {
                a.add(Instruction::with2(Code::Mov_r32_imm32, Register::ESI, 64))?;
                let rows = MemoryOperand::with_base_index(Register::R15, Register::RSI);
                for tile in [Register::TMM6, Register::TMM7] {
                    a.add(Instruction::with2(Code::VEX_Tileloadd_tmm_sibmem, tile, rows))?;
                }
            }
            // With dirty upper halves, the register was loaded long before and must stay as it is.
            _ if kernel.upper != Upper::Clean => {}
            InstructionClass::Light512 | InstructionClass::Heavy512 => {
                a.load(Code::EVEX_Vmovupd_zmm_k1z_zmmm512, Register::ZMM0)?;
            }
            InstructionClass::Light256 | InstructionClass::Heavy256 => {
                a.load(Code::VEX_Vmovupd_ymm_ymmm256, Register::YMM0)?;
            }
            _ => a.load(Code::Movq_xmm_xmmm64, Register::XMM0)?,
        }
    }
    let code = &kernel.instructions;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let mut straight = count;
    if count > STRAIGHT {
        let periods = BODY.div_ceil(code.len());
        let body = periods * code.len();
        straight = count % body;
        let rounds = u32::try_from(count / body).unwrap_or(u32::MAX);
        a.add(Instruction::with2(Code::Mov_r32_imm32, Register::ECX, rounds))?;
        let again = a.code.len();
        a.code.extend(code.iter().cycle().take(body).flatten());
        a.repeat(again)?;
    }
    a.code.extend(code.iter().cycle().take(straight).flatten());
    if tile {
        a.plain(Code::VEX_Tilerelease)?;
    } else if kernel.is_wide() && kernel.upper != Upper::Dirty {
        a.plain(Code::VEX_Vzeroupper)?;
    }
    a.end()
}

/// A routine being written. It runs at any address: its branches are relative, and its operands
/// are registers and what r15 points to.
struct Assembler {
    code: Vec<u8>,
    encoder: Encoder,
}

impl Assembler {
    fn new() -> Self {
        Self { code: Vec::new(), encoder: Encoder::new(64) }
    }

    fn add(
        &mut self,
        instruction: Result<Instruction, AssemblyError>,
    ) -> Result<(), AssemblyError> {
        self.encoder.encode(&instruction?, self.code.len() as u64)?;
        self.code.extend(self.encoder.take_buffer());
        Ok(())
    }

    /// An instruction without operands.
    fn plain(&mut self, code: Code) -> Result<(), AssemblyError> {
        self.add(Ok(Instruction::with(code)))
    }

    /// Returns from the routine.
    fn end(mut self) -> Result<Vec<u8>, AssemblyError> {
        self.plain(Code::Retnq)?;
        Ok(self.code)
    }

    fn two(&mut self, code: Code, to: Register, from: Register) -> Result<(), AssemblyError> {
        self.add(Instruction::with2(code, to, from))
    }

    /// Loads a register from the start of the operand page.
    fn load(&mut self, code: Code, to: Register) -> Result<(), AssemblyError> {
        self.add(Instruction::with2(code, to, MemoryOperand::with_base(Register::R15)))
    }

    /// Goes back to an offset in the code as often as rcx says.
    fn repeat(&mut self, from: usize) -> Result<(), AssemblyError> {
        self.add(Instruction::with1(Code::Dec_rm64, Register::RCX))?;
        self.add(Instruction::with_branch(Code::Jne_rel32_64, from as u64))
    }
}
