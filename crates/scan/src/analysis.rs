//! One pass over the instructions of a range of code, which collects all that a scan needs.
//!
//! It decodes each byte once, in functions with hot loops twice, and reuses its allocations. It has
//! no notion of a function; its callers have.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use dimmer_processor::class::InstructionClass;
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind, Register};

use crate::balance;
use crate::classify::{self, Kind, Traits};
use crate::function::{ClassCounts, HotLoop};
use crate::loops;

/// The bytes of the jump over an entry: opcode and a 32-bit distance.
pub(crate) const JUMP_BYTES: u32 = 5;

/// The result of a pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct Analysis {
    /// Instructions by class.
    pub(crate) instructions: ClassCounts,
    /// Instructions that name a 512-bit register.
    pub(crate) zmm: u32,
    /// Instructions with the EVEX encoding.
    pub(crate) evex: u32,
    /// Bytes that do not decode as an instruction.
    pub(crate) undecodable: u32,
    /// Whether the code clears the upper register halves somewhere.
    pub(crate) vzeroupper: bool,
    /// Whether the upper halves may be dirty where execution leaves the code.
    pub(crate) leaves_dirty: bool,
    /// Whether there is a return, or a jump out of the range.
    pub(crate) leaves: bool,
    /// Whether execution goes on past the end of the range.
    pub(crate) falls_through: bool,
    /// Whether an instruction refers to memory below the stack pointer.
    pub(crate) below_stack: bool,
    /// Whether an instruction may take the stack pointer to another stack.
    pub(crate) may_change_stacks: bool,
    /// Loops with wide instructions.
    pub(crate) loops: Vec<HotLoop>,
    /// Bytes of the first whole instructions that reach [`JUMP_BYTES`] past the landing pad, if
    /// there is one; fewer if they do not reach that far.
    pub(crate) first: u8,
    /// Bytes of the landing pad at the start.
    pub(crate) landing_pad: u8,
    /// Bit n: a direct jump or call within the range leads to its byte n. For byte 0 only jumps
    /// count.
    pub(crate) entered: u32,
    /// Where the padding at the end of the range starts, in bytes, and the number of its
    /// instructions.
    pub(crate) padding: (u32, u32),
}

/// A reference of an instruction to a place outside its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// The instruction's address.
    pub(crate) from: u64,
    /// The address referred to.
    pub(crate) target: u64,
    /// The kind of reference.
    pub(crate) kind: ReferenceKind,
}

/// How an instruction refers to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReferenceKind {
    /// Calls it.
    Call,
    /// Jumps to it.
    Jump,
    /// Takes it as a value.
    Address,
}

/// Analyses ranges, one after the other.
#[derive(Debug)]
pub(crate) struct Analyser {
    traits: &'static [Traits],
    /// Whether to search for loops.
    wants_loops: bool,
    /// References of the last range to places outside it.
    pub(crate) references: Vec<Reference>,
    /// Targets and ends of backward jumps, as offsets.
    backward: Vec<(u32, u32)>,
    /// Offsets of forward jumps' targets, for jumps with dirty upper halves.
    dirty_ahead: BinaryHeap<Reverse<u32>>,
}

/// State carried from instruction to instruction.
struct State {
    addresses: Range<u64>,
    result: Analysis,
    dirty: bool,
    /// Whether execution cannot go on past the last instruction.
    ended: bool,
}

impl Analysis {
    /// Whether there are instructions on vectors or tiles, of any width.
    pub(crate) fn has_vectors(&self) -> bool {
        self.instructions.heaviest() >= Some(InstructionClass::Light128)
    }
}

impl Analyser {
    /// An analyser that has seen no range yet. It searches for loops if `wants_loops` is set.
    pub(crate) fn new(wants_loops: bool) -> Self {
        Self {
            traits: classify::table(),
            wants_loops,
            references: Vec::new(),
            backward: Vec::new(),
            dirty_ahead: BinaryHeap::new(),
        }
    }

    /// Decodes `bytes`, which lie at `start` in memory. With `give_up` it ends at the first byte
    /// that does not decode, for ranges that may not be code.
    pub(crate) fn run(&mut self, bytes: &[u8], start: u64, give_up: bool) -> Analysis {
        self.references.clear();
        self.backward.clear();
        self.dirty_ahead.clear();
        let end = start.saturating_add(bytes.len() as u64);
        let mut state = State {
            addresses: start..end,
            result: Analysis::default(),
            dirty: false,
            ended: false,
        };
        let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            let position = decoder.position();
            decoder.decode_out(&mut instruction);
            let traits = &self.traits[instruction.code() as usize];
            let offset = u32::try_from(position).unwrap_or(u32::MAX);
            if traits.kind == Kind::Invalid {
                state.result.undecodable += 1;
                state.result.padding = (offset + 1, 0);
                if give_up || decoder.set_position(position + 1).is_err() {
                    break;
                }
                decoder.set_ip(start.wrapping_add(position as u64 + 1));
                continue;
            }
            self.step(&mut state, traits, &instruction, offset);
        }
        let mut result = state.result;
        result.falls_through = !state.ended && !result.instructions.is_empty();
        result.leaves_dirty |= result.falls_through && state.dirty;
        if self.wants_loops && !self.backward.is_empty() && result.instructions.wide() > 0 {
            let steps = self.steps(bytes);
            result.loops = loops::innermost(start, &steps, &mut self.backward);
        }
        result
    }

    /// Offset and class of each instruction. Decodes the bytes again: few functions have both loops
    /// and wide instructions, and keeping this for all functions costs more.
    fn steps(&self, bytes: &[u8]) -> Vec<(u32, InstructionClass)> {
        let mut steps = Vec::new();
        let mut decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            let position = decoder.position();
            decoder.decode_out(&mut instruction);
            let traits = &self.traits[instruction.code() as usize];
            if traits.kind != Kind::Invalid {
                let class = traits.class.unwrap_or(InstructionClass::Scalar);
                steps.push((u32::try_from(position).unwrap_or(u32::MAX), class));
            } else if decoder.set_position(position + 1).is_err() {
                break;
            }
        }
        steps
    }

    fn step(&mut self, state: &mut State, traits: &Traits, instruction: &Instruction, offset: u32) {
        // An instruction has at most 15 bytes.
        let after = offset + u32::try_from(instruction.len()).unwrap_or_default();
        if offset == 0 && instruction.code() == Code::Endbr64 {
            state.result.landing_pad = u8::try_from(after).unwrap_or_default();
        }
        let jump_end = u32::from(state.result.landing_pad) + JUMP_BYTES;
        if offset < jump_end && u32::from(state.result.first) == offset {
            state.result.first = u8::try_from(after).unwrap_or_default();
        }
        while self.dirty_ahead.peek().is_some_and(|Reverse(ahead)| *ahead <= offset) {
            state.dirty = true;
            self.dirty_ahead.pop();
        }
        let class = traits.class.unwrap_or(InstructionClass::Scalar);
        state.result.instructions.count(class);
        if class >= InstructionClass::Light128 || traits.evex {
            state.count_vector(traits, class, instruction);
        }
        if traits.kind == Kind::Padding {
            state.result.padding.1 += 1;
        } else {
            state.result.padding = (after, 0);
            state.ended = false;
        }
        state.result.below_stack |= refers_below_stack(instruction);
        state.result.may_change_stacks |= balance::may_change_stacks(instruction);
        match traits.kind {
            Kind::Plain | Kind::Padding | Kind::Invalid => {}
            Kind::Address => self.take_address(state, instruction),
            Kind::ClearUpper => {
                state.result.vzeroupper = true;
                state.dirty = false;
            }
            Kind::Jump | Kind::Branch | Kind::Call => {
                self.follow(state, traits.kind, instruction, offset, after);
            }
            Kind::Return => state.leave(),
            // The target is unknown, so the code that follows keeps the state.
            Kind::IndirectJump => {
                let dirty = state.dirty;
                state.leave();
                state.dirty = dirty;
            }
            Kind::Stop => state.end(),
        }
    }

    fn take_address(&mut self, state: &State, instruction: &Instruction) {
        if instruction.is_ip_rel_memory_operand() {
            let target = instruction.ip_rel_memory_address();
            if !state.addresses.contains(&target) {
                let (from, kind) = (instruction.ip(), ReferenceKind::Address);
                self.references.push(Reference { from, target, kind });
            }
        }
    }

    /// Follows a direct jump, branch or call that lies between the offsets `from` and `after`.
    fn follow(
        &mut self,
        state: &mut State,
        kind: Kind,
        instruction: &Instruction,
        from: u32,
        after: u32,
    ) {
        if instruction.op0_kind() != OpKind::NearBranch64 {
            return;
        }
        let target = instruction.near_branch_target();
        if state.addresses.contains(&target) {
            let to = u32::try_from(target - state.addresses.start).unwrap_or(u32::MAX);
            // A call of the function's own start is like a call from any other function.
            if kind != Kind::Call || to != 0 {
                state.result.entered |= 1_u32.checked_shl(to).unwrap_or_default();
            }
            if kind == Kind::Call {
                return;
            }
            if to <= from {
                self.backward.push((to, after));
            } else if state.dirty {
                self.dirty_ahead.push(Reverse(to));
            }
            if kind == Kind::Jump {
                state.end();
            }
            return;
        }
        let how = if kind == Kind::Call { ReferenceKind::Call } else { ReferenceKind::Jump };
        self.references.push(Reference { from: instruction.ip(), target, kind: how });
        match kind {
            Kind::Jump => state.leave(),
            Kind::Branch => state.result.leaves_dirty |= state.dirty,
            _ => {}
        }
    }
}

impl State {
    fn count_vector(
        &mut self,
        traits: &Traits,
        class: InstructionClass,
        instruction: &Instruction,
    ) {
        self.result.evex += u32::from(traits.evex);
        let is_512 = matches!(class, InstructionClass::Light512 | InstructionClass::Heavy512);
        if is_512 && names_zmm(instruction) {
            self.result.zmm += 1;
        }
        if traits.writes_upper && instruction.op0_kind() == OpKind::Register {
            let register = instruction.op0_register();
            self.dirty |= (register.is_ymm() || register.is_zmm()) && register.number() < 16;
        }
    }

    /// Records that execution leaves the range here.
    fn leave(&mut self) {
        self.result.leaves = true;
        self.result.leaves_dirty |= self.dirty;
        self.end();
    }

    /// Records that only jumps reach the code that follows.
    fn end(&mut self) {
        self.dirty = false;
        self.ended = true;
    }
}

/// Whether the instruction refers to memory right below the stack pointer. A `lea` that moves the
/// stack pointer does not count.
pub(crate) fn refers_below_stack(instruction: &Instruction) -> bool {
    let moves_it =
        instruction.code() == Code::Lea_r64_m && instruction.op0_register() == Register::RSP;
    instruction.memory_base() == Register::RSP
        && instruction.memory_displacement64().cast_signed() < 0
        && !moves_it
}

pub(crate) fn names_zmm(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|index| instruction.op_register(index).is_zmm())
        || instruction.memory_index().is_zmm()
}
