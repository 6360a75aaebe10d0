//! Executable memory: routines assembled from kernel templates.
//!
//! The area is writable or executable, never both. It can lie on huge pages (paper 000 §3.2.4
//! suspected instruction-cache misses at page borders and left huge pages as future work).

use std::collections::BTreeMap;
use std::io;
use std::ptr::NonNull;

use iced_x86::{Code, Encoder, IcedError, Instruction, MemoryOperand, Register};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap,
};

use dimmer_processor::class::InstructionClass;

use super::operands;
use crate::kernel::{Kernel, Upper};
use crate::program::{Operands, Work};
use crate::target::TargetError;

/// Size of the area: one huge page.
const AREA: usize = 2 << 20;

/// Longest burst that is assembled without a loop (instructions).
const STRAIGHT: usize = 1024;

/// Instructions in the body of a looping burst, rounded up to whole template periods.
const BODY: usize = 992;

/// An area of executable memory and the routines in it.
#[derive(Debug)]
pub(super) struct CodeArea {
    memory: NonNull<u8>,
    used: usize,
    bursts: BTreeMap<(String, u32, Operands), usize>,
    fixed: Fixed,
}

/// Offsets of the routines that every program may use.
#[derive(Clone, Copy, Debug, Default)]
struct Fixed {
    clock: usize,
    unit: usize,
    issue: usize,
    dirty: usize,
    zeroed: usize,
}

// SAFETY: the area is plain memory owned by this value; no thread-local state belongs to it.
unsafe impl Send for CodeArea {}

impl CodeArea {
    /// Makes an area with the routines that do not depend on a kernel.
    pub(super) fn new(huge_pages: bool) -> Result<Self, TargetError> {
        let failed = |source: rustix::io::Errno| TargetError::Memory {
            what: "executable memory",
            source: io::Error::from(source),
        };
        // Twice the size, so that an aligned huge page lies inside.
        let flags = MapFlags::PRIVATE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses aliases nothing.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * AREA, protection, flags) };
        let base = mapped.map_err(failed)?.cast::<u8>();
        let skip = base.align_offset(AREA);
        // SAFETY: `skip` is below AREA, so AREA bytes from there lie within the mapping of 2 *
        // AREA.
        let aligned = unsafe { base.add(skip) };
        let memory = NonNull::new(aligned).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
        if huge_pages {
            // SAFETY: the range lies in the mapping made above; the advice changes no content.
            unsafe { madvise(memory.as_ptr().cast(), AREA, Advice::LinuxHugepage) }
                .map_err(failed)?;
        }
        // SAFETY: AREA bytes from `memory` are mapped and writable. Writing now faults the pages
        // in.
        unsafe { memory.as_ptr().write_bytes(0xcc, AREA) };
        let mut area = Self { memory, used: 0, bursts: BTreeMap::new(), fixed: Fixed::default() };
        area.fixed = Fixed {
            clock: area.add("clock", clock)?,
            unit: area.add("unit", unit)?,
            issue: area.add("issue", issue)?,
            dirty: area.add("dirty", |a| {
                a.load(Code::EVEX_Vmovupd_zmm_k1z_zmmm512, Register::ZMM0)?;
                a.plain(Code::Retnq)
            })?,
            zeroed: area.add("zeroed", |a| {
                a.load(Code::EVEX_Vmovupd_zmm_k1z_zmmm512, Register::ZMM0)?;
                a.plain(Code::VEX_Vzeroupper)?;
                a.plain(Code::Retnq)
            })?,
        };
        Ok(area)
    }

    /// The routine for `work`, and the number of iterations to call it with. It is assembled at its
    /// first use.
    pub(super) fn routine(&mut self, work: &Work) -> Result<(*const u8, u64), TargetError> {
        let (offset, iterations) = match work {
            Work::Clock { links } => (self.fixed.clock, links / Work::CLOCK_STEP),
            Work::Unit { links } => (self.fixed.unit, links / Work::CLOCK_STEP),
            Work::Issue { instructions } => (self.fixed.issue, instructions / Work::ISSUE_STEP),
            Work::TouchUpper { clean: false } => (self.fixed.dirty, 0),
            Work::TouchUpper { clean: true } => (self.fixed.zeroed, 0),
            Work::Burst { kernel, instructions, operands } => {
                (self.burst(kernel, *instructions, *operands)?, 0)
            }
        };
        // SAFETY: every offset was returned by `add` and lies within the area.
        let routine = unsafe { self.memory.as_ptr().add(offset) };
        Ok((routine.cast_const(), u64::from(iterations.max(1))))
    }

    /// Whether more than half of the area is used.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.used > AREA / 2
    }

    fn burst(
        &mut self,
        kernel: &Kernel,
        count: u32,
        operands: Operands,
    ) -> Result<usize, TargetError> {
        let key = (kernel.name.clone(), count, operands);
        if let Some(&offset) = self.bursts.get(&key) {
            return Ok(offset);
        }
        let offset = self.add(&kernel.name, |a| assemble_burst(a, kernel, count, operands))?;
        self.bursts.insert(key, offset);
        Ok(offset)
    }

    /// Assembles one routine after the others, and returns its offset.
    fn add(
        &mut self,
        name: &str,
        write: impl FnOnce(&mut Assembler) -> Result<(), IcedError>,
    ) -> Result<usize, TargetError> {
        let refused = |why: String| TargetError::Assembly { kernel: name.to_owned(), why };
        let offset = self.used.next_multiple_of(64);
        let mut assembler = Assembler::new();
        write(&mut assembler).map_err(|e| refused(e.to_string()))?;
        let code = assembler.code;
        if offset + code.len() > AREA {
            return Err(refused(format!("{} bytes of code do not fit", code.len())));
        }
        self.protect(MprotectFlags::READ | MprotectFlags::WRITE)?;
        // SAFETY: `offset` is within the area (checked above).
        let place = unsafe { self.memory.as_ptr().add(offset) };
        // SAFETY: `code.len()` bytes from `place` are within the area (checked above). The area is
        // writable now, and no program executes it: programs run only while `Silicon` is borrowed
        // by `run`, and this is called before.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), place, code.len()) };
        self.protect(MprotectFlags::READ | MprotectFlags::EXEC)?;
        self.used = offset + code.len();
        Ok(offset)
    }

    fn protect(&self, flags: MprotectFlags) -> Result<(), TargetError> {
        // SAFETY: the range is this area's own mapping, and nothing is borrowed from it.
        unsafe { mprotect(self.memory.as_ptr().cast(), AREA, flags) }.map_err(|source| {
            TargetError::Memory { what: "executable memory", source: io::Error::from(source) }
        })
    }
}

impl Drop for CodeArea {
    fn drop(&mut self) {
        // SAFETY: the range lies within the mapping made in `new`, and all routines end with
        // `self`. An error would only leak address space.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), AREA) };
    }
}

fn clock(a: &mut Assembler) -> Result<(), IcedError> {
    let again = a.code.len();
    for _ in 0..Work::CLOCK_STEP {
        a.two(Code::Imul_r32_rm32, Register::EAX, Register::EAX)?;
    }
    a.repeat(again)?;
    a.plain(Code::Retnq)
}

fn unit(a: &mut Assembler) -> Result<(), IcedError> {
    let again = a.code.len();
    for _ in 0..Work::CLOCK_STEP {
        a.two(Code::Add_rm32_r32, Register::EAX, Register::EDX)?;
    }
    a.repeat(again)?;
    a.plain(Code::Retnq)
}

fn issue(a: &mut Assembler) -> Result<(), IcedError> {
    use Register::{R8, R9, R10, R11, RAX, RDI, RDX, RSI};
    let again = a.code.len();
    for _ in 0..Work::ISSUE_STEP / 8 {
        for register in [RAX, RDX, RSI, RDI, R8, R9, R10, R11] {
            a.two(Code::Add_rm64_r64, register, register)?;
        }
    }
    a.repeat(again)?;
    a.plain(Code::Retnq)
}

/// Writes a burst: operands, `count` instructions, clean-up.
fn assemble_burst(
    a: &mut Assembler,
    kernel: &Kernel,
    count: u32,
    operands: Operands,
) -> Result<(), IcedError> {
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
    a.plain(Code::Retnq)
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

    fn add(&mut self, instruction: Result<Instruction, IcedError>) -> Result<(), IcedError> {
        self.encoder.encode(&instruction?, self.code.len() as u64)?;
        self.code.extend(self.encoder.take_buffer());
        Ok(())
    }

    /// An instruction without operands.
    fn plain(&mut self, code: Code) -> Result<(), IcedError> {
        self.add(Ok(Instruction::with(code)))
    }

    fn two(&mut self, code: Code, to: Register, from: Register) -> Result<(), IcedError> {
        self.add(Instruction::with2(code, to, from))
    }

    /// Loads a register from the begin of the operands.
    fn load(&mut self, code: Code, to: Register) -> Result<(), IcedError> {
        self.add(Instruction::with2(code, to, MemoryOperand::with_base(Register::R15)))
    }

    /// Goes back to an offset in the code as often as rcx says.
    fn repeat(&mut self, from: usize) -> Result<(), IcedError> {
        self.add(Instruction::with1(Code::Dec_rm64, Register::RCX))?;
        self.add(Instruction::with_branch(Code::Jne_rel32_64, from as u64))
    }
}
