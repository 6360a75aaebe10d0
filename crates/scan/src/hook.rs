//! Whether the entry of a function can be overwritten with a jump, to intercept its calls.
//!
//! The jump is direct with a 32-bit distance, five bytes long. The whole instructions that it
//! displaces run elsewhere, after some that change flags. A landing pad (`endbr64`) stays, and the
//! jump comes after it. The checks cover what a file shows. They miss code that computes addresses,
//! and another file that jumps into the first bytes.

use std::fmt;

use iced_x86::{
    Decoder, DecoderOptions, EncodingKind, FlowControl, Instruction, Mnemonic, OpKind, RflagsBits,
};

use crate::analysis::{Analysis, JUMP_BYTES};
use crate::balance::Verdict;
use crate::seeds::Evidence;

/// Why a function's entry cannot be overwritten with a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unhookable {
    /// Its whole instructions have fewer bytes than the jump.
    TooShort {
        /// Bytes of whole instructions from the entry.
        bytes: u32,
    },
    /// Code leads to an instruction, or into one, that the jump would displace.
    Entered {
        /// The place that it leads to, in bytes from the entry.
        offset: u32,
    },
    /// One of the instructions that the jump would displace is a call. It would return to a place
    /// without an unwinding record.
    Calls {
        /// The call, in bytes from the entry.
        offset: u32,
    },
    /// The stack there is not as a call leaves it: it is a part of another function or of a linkage
    /// table, or the start of the program.
    NotCalled,
    /// It reads or writes its return address, other than by returning. With a hook it would find
    /// another one.
    UsesReturnAddress {
        /// The address of the instruction.
        at: u64,
    },
    /// It returns with another stack pointer than it started with: it is a part of another
    /// function, reached by a jump.
    ReturnsElsewhere {
        /// The address of the return.
        at: u64,
    },
    /// It returns on another stack than it started on.
    ChangesStacks {
        /// The address of the return.
        at: u64,
    },
    /// It calls code of its file that changes stacks, or leads to such calls. It may return twice,
    /// as in the first switch of a coroutine whose stack is copied. The return address of a hook
    /// works only once.
    MayReturnTwice {
        /// The address that it calls.
        by: u64,
    },
    /// It takes condition flags from the code that leads there.
    TakesFlags,
    /// The function may keep data below the stack pointer, where a hook puts a register. Applies to
    /// places inside functions, and to starts that only a jump shows; at other starts there is no
    /// such data yet.
    BelowStack {
        /// The first instruction that refers there, in bytes from the function's start.
        offset: u32,
    },
    /// A function that calls it keeps data below its own stack pointer, where a hook puts a
    /// register.
    CallerBelowStack,
    /// The dynamic linker writes into the first bytes.
    Relocated {
        /// The first of these bytes, in bytes from the entry.
        offset: u32,
    },
    /// Nothing shows that it is called: it has neither symbol nor unwinding record, and the
    /// references to it may mean data or the middle of another function.
    DoubtfulEntry,
    /// It is one of the C library's memory and string functions, which a hook uses itself, or a
    /// wide function without a name there, which may be one.
    MemoryFunction,
    /// It chooses the implementation of an indirect function, before the program is relocated.
    Resolver,
}

impl Unhookable {
    /// A one-word name of the reason.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::TooShort { .. } => "too-short",
            Self::Entered { .. } => "entered",
            Self::Calls { .. } => "calls",
            Self::NotCalled => "not-called",
            Self::UsesReturnAddress { .. } => "uses-return-address",
            Self::ReturnsElsewhere { .. } => "returns-elsewhere",
            Self::ChangesStacks { .. } => "changes-stacks",
            Self::MayReturnTwice { .. } => "may-return-twice",
            Self::TakesFlags => "takes-flags",
            Self::BelowStack { .. } => "below-stack",
            Self::CallerBelowStack => "caller-below-stack",
            Self::Relocated { .. } => "relocated",
            Self::DoubtfulEntry => "doubtful-entry",
            Self::MemoryFunction => "memory-function",
            Self::Resolver => "resolver",
        }
    }
}

impl fmt::Display for Unhookable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort { bytes } => {
                write!(f, "it has {bytes} bytes of whole instructions, the jump takes {JUMP_BYTES}")
            }
            Self::Entered { offset } => {
                write!(f, "code jumps to byte {offset}, which the jump would displace")
            }
            Self::Calls { offset } => {
                write!(f, "the jump would displace the call at byte {offset}")
            }
            Self::NotCalled => f.write_str(
                "the stack there is not as a call leaves it: it is a part of another function, or where the \
                 program begins",
            ),
            Self::UsesReturnAddress { at } => {
                write!(f, "the instruction at {at:#x} uses its return address")
            }
            Self::ReturnsElsewhere { at } => write!(
                f,
                "it returns at {at:#x} with another stack pointer than it began with: it is a part of \
                 another function"
            ),
            Self::ChangesStacks { at } => write!(f, "it returns at {at:#x} on another stack"),
            Self::MayReturnTwice { by } => write!(
                f,
                "it calls {by:#x}, which changes stacks or leads to code that does, and may return twice"
            ),
            Self::TakesFlags => f.write_str("it takes condition flags from its caller"),
            Self::BelowStack { offset } => {
                write!(f, "byte {offset} of the function refers to what lies below the stack pointer")
            }
            Self::CallerBelowStack => f.write_str(
                "a function that calls it keeps something below its stack pointer",
            ),
            Self::Relocated { offset } => {
                write!(f, "the dynamic linker writes to byte {offset}, under the jump")
            }
            Self::DoubtfulEntry => f.write_str(
                "nothing shows that it is called: it has neither symbol nor unwinding record, and what \
                 leads there may lead to data or into the midst of another function",
            ),
            Self::MemoryFunction => f.write_str(
                "it is, or without a name may be, one of the C library's memory and string functions",
            ),
            Self::Resolver => f.write_str("it resolves an indirect function during relocation"),
        }
    }
}

/// How many instructions from an entry are searched for one that Linux emulates.
const FIRST_INSTRUCTIONS: usize = 16;

/// The address of an instruction for the breakpoint that counts entries at `entry` of a function
/// that starts at `start`. It is the first that executes once per entry and that Linux emulates
/// (`arch/x86/kernel/uprobes.c`: pushes, near branches, `nop`). If there is none, it is the first
/// that takes a breakpoint at all, which instructions with EVEX prefix do not. `None` if there is
/// neither up to the first branch.
pub(crate) fn probe_point(code: &[u8], start: u64, entry: u64) -> Option<u64> {
    let inside = code.get(usize::try_from(entry.checked_sub(start)?).ok()?..)?;
    let (mut emulated, mut supported) = (None, None);
    for (index, instruction) in
        Decoder::with_ip(64, inside, entry, DecoderOptions::NONE).into_iter().enumerate()
    {
        if instruction.is_invalid() {
            break;
        }
        let at = Some(instruction.ip());
        if index < FIRST_INSTRUCTIONS && is_emulated(&instruction) {
            emulated = emulated.or(at);
        }
        if instruction.encoding() != EncodingKind::EVEX {
            supported = supported.or(at);
        }
        if instruction.flow_control() != FlowControl::Next {
            break;
        }
    }
    let targets: Vec<u64> = Decoder::with_ip(64, code, start, DecoderOptions::NONE)
        .into_iter()
        .filter(|instruction| instruction.op0_kind() == OpKind::NearBranch64)
        .map(|instruction| instruction.near_branch_target())
        .collect();
    let is_passed_once =
        |at: &u64| !targets.iter().any(|target| (entry + 1..=*at).contains(target));
    emulated.filter(is_passed_once).or_else(|| supported.filter(is_passed_once))
}

fn is_emulated(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Push => instruction.op0_kind() == OpKind::Register,
        Mnemonic::Nop => instruction.len() == 1,
        Mnemonic::Loop | Mnemonic::Loope | Mnemonic::Loopne | Mnemonic::Jrcxz => false,
        _ => {
            instruction.flow_control() == FlowControl::ConditionalBranch
                || instruction.is_jmp_short_or_near()
        }
    }
}

/// The flags that arithmetic sets.
pub(crate) const STATUS_FLAGS: u32 = RflagsBits::OF
    | RflagsBits::SF
    | RflagsBits::ZF
    | RflagsBits::AF
    | RflagsBits::CF
    | RflagsBits::PF;

/// What the check uses besides the code itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    /// The address.
    pub(crate) address: u64,
    /// The bytes of the whole section.
    pub(crate) section: &'a [u8],
    /// Offset of the entry in the section.
    pub(crate) offset: usize,
    /// What the code itself shows about the stack there.
    pub(crate) balance: Verdict,
    /// Whether a caller keeps data below its stack pointer.
    pub(crate) called_above_data: bool,
    /// The evidence that a function starts there.
    pub(crate) evidence: Evidence,
    /// The function's name.
    pub(crate) name: Option<&'a str>,
    /// Whether the file is the C library.
    pub(crate) libc: bool,
    /// Whether it resolves an indirect function.
    pub(crate) resolver: bool,
    /// Whether the stack at the entry is as a call leaves it, according to the frame.
    pub(crate) called: bool,
    /// The first place under the jump, other than the entry, that other functions lead to.
    pub(crate) entered: Option<u32>,
    /// The first place under the jump that is relocated.
    pub(crate) relocated: Option<u32>,
}

/// The number of bytes that a jump at `entry` displaces, or why there can be no jump.
pub(crate) fn check(entry: &Entry<'_>, analysis: &Analysis) -> Result<u8, Unhookable> {
    let behind_pad = u32::from(analysis.first) - u32::from(analysis.landing_pad);
    if behind_pad < JUMP_BYTES {
        return Err(Unhookable::TooShort { bytes: behind_pad });
    }
    // The bits of the displaced bytes, entry included: a loop to the entry may keep variables below
    // the stack pointer, where hooks put a register, and its iterations would count as calls.
    let own = analysis.entered & ((1_u32 << analysis.first) - 1);
    let own = (own != 0).then(|| own.trailing_zeros());
    if let Some(offset) = own.into_iter().chain(entry.entered).min() {
        return Err(Unhookable::Entered { offset });
    }
    if let Some(offset) = entry.relocated {
        return Err(Unhookable::Relocated { offset });
    }
    if entry.resolver {
        return Err(Unhookable::Resolver);
    }
    if !entry.called {
        return Err(Unhookable::NotCalled);
    }
    let wide = || analysis.instructions.wide() > 0;
    if entry.libc && entry.name.map_or_else(wide, is_memory_function) {
        return Err(Unhookable::MemoryFunction);
    }
    if let Some(reason) = entry.balance.refusal() {
        return Err(reason);
    }
    if entry.called_above_data {
        return Err(Unhookable::CallerBelowStack);
    }
    let looks_like_one =
        entry.address.is_multiple_of(16) && follows_an_end(entry.section, entry.offset);
    match (entry.evidence, entry.balance) {
        (Evidence::Described | Evidence::Call, _) => {}
        // This evidence may mean data.
        (Evidence::CompiledPointer, _) if looks_like_one => {}
        (Evidence::Pointer, Verdict::Shown { .. }) if looks_like_one => {}
        (Evidence::Jump, Verdict::Shown { below_stack: false }) => {}
        // The code that jumps there may keep data below the stack pointer.
        (Evidence::Jump, Verdict::Shown { .. }) => {
            return Err(Unhookable::BelowStack { offset: 0 });
        }
        _ => return Err(Unhookable::DoubtfulEntry),
    }
    let code = entry.section.get(entry.offset..).unwrap_or_default();
    check_head(code, usize::from(analysis.first))?;
    Ok(analysis.first)
}

/// How many instructions are searched for a flag that is read. A guess: code sets one much earlier.
const MOST_INSTRUCTIONS: usize = 256;

/// Refuses a call in the first `displaced` bytes. Also refuses code that reads a flag there or
/// later, before an instruction writes flags or leads elsewhere.
fn check_head(code: &[u8], displaced: usize) -> Result<(), Unhookable> {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let mut flags_known = true;
    for _ in 0..MOST_INSTRUCTIONS {
        if !decoder.can_decode() || !flags_known && decoder.position() >= displaced {
            break;
        }
        let position = decoder.position();
        let instruction = decoder.decode();
        let flow = instruction.flow_control();
        if position < displaced && matches!(flow, FlowControl::Call | FlowControl::IndirectCall) {
            let offset = u32::try_from(position).unwrap_or_default();
            return Err(Unhookable::Calls { offset });
        }
        if flags_known && instruction.rflags_read() & STATUS_FLAGS != 0 {
            return Err(Unhookable::TakesFlags);
        }
        let passes_on = flow == FlowControl::Next && instruction.rflags_modified() == 0;
        flags_known &= passes_on;
    }
    Ok(())
}

/// Whether `name` is one of the C library's memory and string functions, or one of their
/// implementations (`__memmove_avx_unaligned_erms`). `strtol` and the like match too, which is
/// harmless.
fn is_memory_function(name: &str) -> bool {
    const BEGINNINGS: [&str; 13] = [
        "mem",
        "str",
        "stp",
        "wcs",
        "wcp",
        "wmem",
        "rawmem",
        "bcmp",
        "bcopy",
        "bzero",
        "index",
        "rindex",
        "explicit_bzero",
    ];
    let name = name.trim_start_matches('_');
    BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

/// Whether the bytes before `offset` look like the end of other code: a return, a jump, or padding.
/// Looks at the bytes alone, because the start of the instruction before is unknown.
pub(crate) fn follows_an_end(section: &[u8], offset: usize) -> bool {
    let before = section.get(..offset).unwrap_or_default();
    match before {
        // The section starts here, or `int3`, `nop`, `ret`, or zeros, which also end long `nop`s.
        [] | [.., 0xcc | 0x90 | 0xc3 | 0x00] => true,
        // `jmp rel8`, `ud2`, `jmp` to a register, `ret imm16`, `jmp rel32`.
        [.., 0xeb, _] | [.., 0x0f, 0x0b] | [.., 0xff, 0xe0..=0xe7] => true,
        [.., 0xc2, _, _] | [.., 0xe9, _, _, _, _] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `vmovdqu64 ymm5, [rdi + 128]`, which takes no breakpoint.
    const EVEX: [u8; 7] = [0x62, 0xf1, 0xfe, 0x28, 0x6f, 0x6f, 0x04];
    const MOV: [u8; 3] = [0x48, 0x89, 0xf8];
    const PUSH: [u8; 1] = [0x53];
    const RET: [u8; 1] = [0xc3];

    #[test]
    fn breakpoints_are_put_where_they_cost_least() {
        let at = |parts: &[&[u8]], entry: u64| probe_point(&parts.concat(), 0x1000, 0x1000 + entry);
        assert_eq!(at(&[&MOV, &PUSH, &RET], 0), Some(0x1003));
        assert_eq!(at(&[&EVEX, &MOV, &RET], 0), Some(0x1007));
        assert_eq!(at(&[&MOV, &RET], 0), Some(0x1000));
        assert_eq!(at(&[&RET, &EVEX, &EVEX, &MOV, &RET], 1), Some(0x100f));
        assert_eq!(at(&[&EVEX, &[0x0f, 0x0b]], 8), None);
    }

    #[test]
    fn breakpoints_are_not_put_where_loops_lead() {
        // mov rax, rdi; push rbx; jmp to the push.
        let code = [&MOV[..], &PUSH, &[0xeb, 0xfd]].concat();
        assert_eq!(probe_point(&code, 0x1000, 0x1000), Some(0x1000));
    }
}
