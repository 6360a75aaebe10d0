//! The stub that the jump over a function's entry leads to.
//!
//! The stub counts down to the next timed call, counts the call, executes the displaced
//! instructions and goes on in the function. Before the displaced instructions, the stub of a mark
//! hands the call over to the code that passes marks, and gets it back. All registers stay. Flags
//! may change: no caller passes flags to a function that can be hooked (`dimmer_scan` checks that).

use iced_x86::{
    Code, Decoder, DecoderOptions, Encoder, IcedError, Instruction, MemoryOperand, Register,
};

use super::thread_block::{COUNTDOWN, COUNTED_AT, PASSED};

/// The length of the jump over the entry: opcode and a 32-bit distance.
const JUMP_BYTES: usize = 5;
/// The opcode of a jump with a 32-bit distance.
const JUMP: u8 = 0xe9;
/// The instruction that stops a thread that reaches the rest of the displaced ones.
const TRAP: u8 = 0xcc;
/// `endbr64`, which has to stay where indirect calls land.
const LANDING_PAD: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Offset in the rarely executed part of the code for moved calls (bytes).
const MIGRATE_PART: usize = 32;

/// What a stub is built from: addresses and numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Address of the function's start.
    pub(crate) function: u64,
    /// The stub's future address.
    pub(crate) stub: u64,
    /// Future address of the stub's part for timed calls, which is apart because it is rarely
    /// executed.
    pub(crate) rare: u64,
    /// The number of the function.
    pub(crate) site: u32,
    /// Address of its [`crate::site::Site`].
    pub(crate) record: u64,
    /// Place, near the stub, of the address of the code for marks, if the entry is one.
    pub(crate) mark_at: Option<u64>,
    /// Place, near the stub, of the address of the code for timed calls.
    pub(crate) slow_at: u64,
    /// How its calls are moved; `None` if they cannot be.
    pub(crate) moving: Option<Moving>,
    /// See [`super::thread_block::thread_offset`].
    pub(crate) thread: i64,
}

/// How a function's calls are moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moving {
    /// Address of the decision whether they are, or of the function's gate.
    pub(crate) decision: u64,
    /// Whether it is a gate, which a thread passes that was there in this round: otherwise, calls
    /// are moved if the first byte is not zero.
    pub(crate) is_gate: bool,
    /// Place, near the stub, of the address of the code for moved calls.
    pub(crate) away_at: u64,
}

/// A stub, and how the function leads to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stub {
    /// Its code. The function's jump leads to the first byte.
    pub(crate) code: Vec<u8>,
    /// Its code for timed calls, and that for moved ones.
    pub(crate) rare: Vec<u8>,
    /// Offset in `code` of what follows the counting (bytes).
    pub(crate) body: usize,
    /// Offset in `code` of the displaced instructions (bytes).
    pub(crate) displaced: usize,
    /// Where in the function to write (bytes from its start).
    pub(crate) patch_at: usize,
    /// The bytes to write there.
    pub(crate) patch: Vec<u8>,
}

/// Builds the stub for a function whose first instructions are `head`. It displaces those of them
/// that the jump overwrites. Returns `None` if these cannot be encoded elsewhere, or if the stub is
/// too far away.
pub(crate) fn build(head: &[u8], place: &Place) -> Option<Stub> {
    let patch_at = if head.starts_with(&LANDING_PAD) { LANDING_PAD.len() } else { 0 };
    let head = &head[patch_at..];
    let start = place.function + patch_at as u64;
    let mut displaced = Vec::new();
    let mut length = 0;
    let mut decoder = Decoder::with_ip(64, head, start, DecoderOptions::NONE);
    while length < JUMP_BYTES {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return None;
        }
        length += instruction.len();
        displaced.push(instruction);
    }
    let count = count(place).ok()?;
    let body = count.len();
    let mark = place.mark_at.map(|kept_at| hand_over(place, kept_at, place.stub + body as u64));
    let mark = mark.transpose().ok()?.unwrap_or_default();
    let own = body + mark.len();
    displaced.push(Instruction::with_branch(Code::Jmp_rel32_64, start + length as u64).ok()?);
    let moved = encode(&mut displaced, place.stub + own as u64).ok()?;
    let distance = place.stub.wrapping_sub(start + JUMP_BYTES as u64).cast_signed();
    let mut patch = vec![JUMP];
    patch.extend(i32::try_from(distance).ok()?.to_le_bytes());
    patch.resize(length, TRAP);
    let mut rare = slow(place).ok()?;
    if let Some(moving) = place.moving {
        rare.resize(MIGRATE_PART, TRAP);
        let part = hand_over(place, moving.away_at, place.rare + MIGRATE_PART as u64).ok()?;
        rare.extend(part);
    }
    let code = [count, mark, moved].concat();
    Some(Stub { code, rare, body, displaced: own, patch_at, patch })
}

/// Encodes the instructions for another place. Their operands still refer to the original
/// addresses, even within the function itself: a function may take its own address to compare it.
fn encode(instructions: &mut [Instruction], at: u64) -> Result<Vec<u8>, IcedError> {
    let mut encoder = Encoder::new(64);
    let mut next = at;
    for instruction in instructions {
        // A short jump does not reach back.
        instruction.as_near_branch();
        next += encoder.encode(instruction, next)? as u64;
    }
    Ok(encoder.take_buffer())
}

/// Code that hands a call over to the code for timed calls.
fn slow(place: &Place) -> Result<Vec<u8>, IcedError> {
    hand_over(place, place.slow_at, place.rare)
}

/// Code that hands a call over to the code whose address is at `kept_at`.
fn hand_over(place: &Place, kept_at: u64, own: u64) -> Result<Vec<u8>, IcedError> {
    let to = MemoryOperand::with_base_displ(Register::RIP, kept_at.cast_signed());
    let mut code = [
        save_r11()?,
        Instruction::with2(Code::Mov_r64_imm64, Register::R11, place.record)?,
        Instruction::with1(Code::Jmp_rm64, to)?,
    ];
    encode(&mut code, own)
}

/// Code that counts a call. It ends where a mark is handed over, or where the displaced
/// instructions begin.
fn count(place: &Place) -> Result<Vec<u8>, IcedError> {
    let own = |what: usize| {
        let address = place.thread.wrapping_add_unsigned(what as u64);
        MemoryOperand::new(Register::None, Register::None, 1, address, 8, false, Register::FS)
    };
    let mut code = Vec::new();
    if let Some(moving) = place.moving {
        let decision = MemoryOperand::with_base(Register::R11);
        code.extend([
            save_r11()?,
            Instruction::with2(Code::Mov_r64_imm64, Register::R11, moving.decision)?,
        ]);
        let jump = if moving.is_gate {
            code.extend([
                Instruction::with2(Code::Mov_r32_rm32, Register::R11D, decision)?,
                Instruction::with2(Code::Cmp_rm32_r32, own(PASSED), Register::R11D)?,
            ]);
            Code::Jb_rel32_64
        } else {
            code.push(Instruction::with2(Code::Cmp_rm8_imm8, decision, 0)?);
            Code::Jne_rel32_64
        };
        code.extend([
            restore_r11()?,
            Instruction::with_branch(jump, place.rare + MIGRATE_PART as u64)?,
        ]);
    }
    let number = MemoryOperand::with_base_displ(Register::R11, 4 * i64::from(place.site));
    code.extend([
        Instruction::with2(Code::Sub_rm32_imm8, own(COUNTDOWN), 1)?,
        Instruction::with_branch(Code::Js_rel32_64, place.rare)?,
        save_r11()?,
        Instruction::with2(Code::Mov_r64_rm64, Register::R11, own(COUNTED_AT))?,
        Instruction::with1(Code::Inc_rm32, number)?,
        restore_r11()?,
    ]);
    encode(&mut code, place.stub)
}

/// The place of r11 while a stub uses it: below the stack pointer, where no call leaves anything.
fn r11_slot() -> MemoryOperand {
    MemoryOperand::with_base_displ(Register::RSP, -8)
}

fn save_r11() -> Result<Instruction, IcedError> {
    Instruction::with2(Code::Mov_rm64_r64, r11_slot(), Register::R11)
}

fn restore_r11() -> Result<Instruction, IcedError> {
    Instruction::with2(Code::Mov_r64_rm64, Register::R11, r11_slot())
}

impl Stub {
    /// The distance from the function's start to the last byte that is written.
    pub(crate) fn reach(&self) -> u64 {
        (self.patch_at + self.patch.len() - 1) as u64
    }
}
