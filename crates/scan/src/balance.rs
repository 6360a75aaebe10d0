//! Whether code that starts at an address finds the stack as a call leaves it: the return address
//! on top, and used only to return.
//!
//! A hook takes the return address off the stack and puts it back, so it works only where there is
//! one. Symbols and unwinding records show where calls lead. But hand-written assembly has labels
//! without either, whose address code takes and jumps to in the middle of a frame (dav1d's
//! kernels). The code after such a label shows what the label is: the instruction that returns
//! takes its address from a place whose distance to the stack pointer at the label is known.
//!
//! This follows every path from the entry. It tracks the registers and words of the stack that hold
//! a stack address. `leaf` checks more on fewer functions, at a multiple of the cost.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use dimmer_processor::class::InstructionClass;
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};

use crate::classify::{self, Traits};
use crate::elf::{self, Section};
use crate::hook::Unhookable;

/// The most instructions to follow from one entry. A guess: enough for the largest unrolled kernels
/// of libcrypto and libx265.
const MOST_STEPS: usize = 1 << 14;

/// Bytes of the return address.
const RETURN_BYTES: i64 = 8;

const RSP: usize = 4;
const RBP: usize = 5;

/// Registers that some instructions write without naming them: `rax`, `rcx`, `rdx`, `rbx`, `rsi`,
/// `rdi`.
const IMPLIED: [usize; 6] = [0, 1, 2, 3, 6, 7];

/// Registers that a called function may change (System V ABI, §3.2.1): `rax`, `rcx`, `rdx`, `rsi`,
/// `rdi`, `r8` to `r11`.
const CHANGED_BY_CALLS: u16 = 0b1111_1100_0111 & !(1 << RSP | 1 << RBP);

/// What the paths from an entry show about the stack there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A path returns to the address on top of the stack, and no path contradicts this.
    Shown {
        /// Whether the code refers to memory below the stack pointer.
        below_stack: bool,
    },
    /// No path that could be followed shows anything.
    Open,
    /// The code reads or writes the address on top of the stack, other than by returning.
    UsesReturnAddress {
        /// The instruction's address.
        at: u64,
    },
    /// The code returns with another stack pointer than it started with.
    ReturnsElsewhere {
        /// The instruction's address.
        at: u64,
    },
    /// The code returns on another stack than it started on.
    ChangesStacks {
        /// The instruction's address.
        at: u64,
    },
    /// The code calls code that changes stacks, or leads to such calls.
    LeadsToChange {
        /// The address that it calls.
        by: u64,
    },
}

impl Verdict {
    /// Whether a path returns to the caller.
    pub(crate) const fn is_shown(self) -> bool {
        matches!(self, Self::Shown { .. })
    }

    /// Why there can be no hook; `None` if the verdict does not rule one out.
    pub(crate) const fn refusal(self) -> Option<Unhookable> {
        match self {
            Self::Shown { .. } | Self::Open => None,
            Self::UsesReturnAddress { at } => Some(Unhookable::UsesReturnAddress { at }),
            Self::ReturnsElsewhere { at } => Some(Unhookable::ReturnsElsewhere { at }),
            Self::ChangesStacks { at } => Some(Unhookable::ChangesStacks { at }),
            Self::LeadsToChange { by } => Some(Unhookable::MayReturnTwice { by }),
        }
    }
}

/// Follows paths through the code of a file.
pub(crate) struct Ways<'file> {
    sections: &'file [Section<'file>],
    /// Starts of functions that symbols or unwinding records describe, ascending.
    begins: Vec<u64>,
    factory: InstructionInfoFactory,
    /// Functions that the code of the last entry calls and that were not known to return.
    pub(crate) called: BTreeSet<u64>,
}

impl<'file> Ways<'file> {
    /// Follows paths through the code of these sections. `begins` are the starts of functions that
    /// symbols or unwinding records describe, ascending.
    pub(crate) fn new(sections: &'file [Section<'file>], begins: Vec<u64>) -> Self {
        let factory = InstructionInfoFactory::new();
        Self { sections, begins, factory, called: BTreeSet::new() }
    }

    /// Follows the code from an entry. Functions that start at `returning` are known to return to
    /// their callers.
    ///
    /// Takes some 50 ns for each instruction.
    pub(crate) fn follow(&mut self, entry: u64, returning: &BTreeSet<u64>) -> Verdict {
        let sections = self.sections;
        self.called.clear();
        let mut walk = Walk {
            before: BTreeMap::from([(entry, State::at_entry())]),
            pending: vec![entry],
            address: entry,
            next_leader: u64::MAX,
            shown: false,
            below_stack: false,
            factory: &mut self.factory,
            traits: classify::table(),
            returning,
            called: &mut self.called,
        };
        let mut steps_left = MOST_STEPS;
        while let Some(leader) = walk.pending.pop() {
            let Some(mut state) = walk.before.get(&leader).cloned() else { continue };
            let section = elf::find(sections, leader).map(|section| &sections[section]);
            let bytes = section.and_then(|section| section.bytes.get(section.offset(leader)?..));
            let Some(bytes) = bytes else { continue };
            let mut decoder = Decoder::with_ip(64, bytes, leader, DecoderOptions::NONE);
            let mut instruction = Instruction::default();
            let next = walk.before.range(leader.saturating_add(1)..).next();
            walk.next_leader = next.map_or(u64::MAX, |(address, _)| *address);
            let next = self.begins.partition_point(|begin| *begin <= leader);
            let next_function = self.begins.get(next).copied().unwrap_or(u64::MAX);
            while decoder.can_decode() {
                let address = decoder.ip();
                walk.address = address;
                if address >= walk.next_leader {
                    walk.lead(address, &state);
                    break;
                }
                // A call at the end of a function does not return.
                if address >= next_function && !state.is_certain || steps_left == 0 {
                    break;
                }
                steps_left -= 1;
                decoder.decode_out(&mut instruction);
                if instruction.is_invalid() {
                    break;
                }
                match walk.step(&mut state, &instruction) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(verdict) => return verdict,
                }
            }
        }
        match walk.shown {
            true => Verdict::Shown { below_stack: walk.below_stack },
            false => Verdict::Open,
        }
    }
}

/// What a register or a word of the stack holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    /// No stack address, or one at an unknown place.
    #[default]
    Other,
    /// In the stack pointer: an address that was loaded from outside this stack.
    Foreign,
    /// A stack address, as its distance from the stack pointer at the entry.
    Entry(i32),
    /// A stack address, as its distance from where the stack pointer was last rounded down.
    Rounded(i32),
}

impl Value {
    fn plus(self, by: i64) -> Self {
        let plus = |offset: i32| i32::try_from(i64::from(offset).saturating_add(by)).ok();
        match self {
            Self::Entry(offset) => plus(offset).map_or(Self::Other, Self::Entry),
            Self::Rounded(offset) => plus(offset).map_or(Self::Other, Self::Rounded),
            value => value,
        }
    }

    /// Its distance from `other`, if that is known.
    fn from(self, other: Self) -> Option<i64> {
        match (self, other) {
            (Self::Entry(one), Self::Entry(other)) | (Self::Rounded(one), Self::Rounded(other)) => {
                Some(i64::from(one) - i64::from(other))
            }
            _ => None,
        }
    }

    fn is_known(self) -> bool {
        matches!(self, Self::Entry(_) | Self::Rounded(_))
    }
}

/// What is known before an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    registers: [Value; 16],
    /// Stack words that hold stack addresses, by place.
    words: BTreeMap<Value, Value>,
    /// Whether execution comes here for sure: no call on the path, which might not return.
    is_certain: bool,
}

impl State {
    fn at_entry() -> Self {
        let mut registers = [Value::Other; 16];
        registers[RSP] = Value::Entry(0);
        Self { registers, words: BTreeMap::new(), is_certain: true }
    }

    /// What holds on both paths.
    fn meet(&self, other: &Self) -> Self {
        let mut met = self.clone();
        for (own, other) in met.registers.iter_mut().zip(other.registers) {
            *own = match (*own, other) {
                (own, other) if own == other => own,
                // One path that changes stacks is enough.
                (Value::Foreign, _) | (_, Value::Foreign) => Value::Foreign,
                _ => Value::Other,
            };
        }
        met.words.retain(|place, value| other.words.get(place) == Some(value));
        met
    }

    /// The place of the stack that a memory operand names, if that is known.
    fn place(&self, instruction: &Instruction) -> Option<Value> {
        let is_plain = instruction.memory_index() == Register::None
            && instruction.segment_prefix() == Register::None;
        let base = number(instruction.memory_base()).filter(|_| is_plain)?;
        let place = self.registers[base].plus(instruction.memory_displacement64().cast_signed());
        place.is_known().then_some(place)
    }

    /// Whether `size` bytes at a place hold part of the return address.
    fn is_return_address(place: Value, size: i64) -> bool {
        matches!(place, Value::Entry(at) if i64::from(at) < RETURN_BYTES && i64::from(at).saturating_add(size) > 0)
    }

    fn load(&self, place: Option<Value>) -> Value {
        place.and_then(|place| self.words.get(&place)).copied().unwrap_or_default()
    }

    fn store(&mut self, place: Value, size: i64, value: Value) {
        self.words.retain(|at, _| {
            at.from(place).is_none_or(|distance| distance >= size || distance <= -RETURN_BYTES)
        });
        if value.is_known() {
            self.words.insert(place, value);
        }
    }
}

struct Walk<'way> {
    /// What is known where paths meet, by address.
    before: BTreeMap<u64, State>,
    pending: Vec<u64>,
    /// The current instruction, and the next place after it where paths meet.
    address: u64,
    next_leader: u64,
    shown: bool,
    below_stack: bool,
    factory: &'way mut InstructionInfoFactory,
    traits: &'static [Traits],
    returning: &'way BTreeSet<u64>,
    called: &'way mut BTreeSet<u64>,
}

impl Walk<'_> {
    /// Records that execution goes on at `target`.
    fn lead(&mut self, target: u64, state: &State) {
        match self.before.entry(target) {
            Entry::Vacant(place) => drop(place.insert(state.clone())),
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                if known.is_certain && !state.is_certain || known == state {
                    return;
                }
                if known.is_certain == state.is_certain {
                    let met = known.meet(state);
                    if met == *known {
                        return;
                    }
                    *known = met;
                } else {
                    known.clone_from(state);
                }
            }
        }
        self.pending.push(target);
        if target > self.address {
            self.next_leader = self.next_leader.min(target);
        }
    }

    /// Follows one instruction. Returns whether execution goes on after it.
    fn step(&mut self, state: &mut State, instruction: &Instruction) -> Result<bool, Verdict> {
        let at = instruction.ip();
        let is_direct = instruction.op0_kind() == OpKind::NearBranch64;
        let stack = state.registers[RSP];
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::XbeginXabortXend => {
                if !self.is_apart(state, instruction) {
                    self.compute(state, instruction)?;
                }
                return Ok(true);
            }
            FlowControl::UnconditionalBranch if is_direct => {
                self.lead(instruction.near_branch_target(), state);
            }
            FlowControl::ConditionalBranch => {
                self.lead(instruction.near_branch_target(), state);
                return Ok(true);
            }
            FlowControl::Call
                if is_direct && instruction.near_branch_target() == instruction.next_ip() =>
            {
                state.registers[RSP] = stack.plus(-RETURN_BYTES);
                return Ok(true);
            }
            FlowControl::Call | FlowControl::IndirectCall => {
                for number in (0..16).filter(|number| CHANGED_BY_CALLS & 1 << number != 0) {
                    state.registers[number] = Value::Other;
                }
                let target = instruction.near_branch_target();
                let returns = is_direct && self.returning.contains(&target);
                if is_direct && !returns {
                    self.called.insert(target);
                }
                state.is_certain &= returns;
                return Ok(true);
            }
            // A jump from a linkage table to another file's function, which returns to the caller.
            FlowControl::IndirectBranch if instruction.is_ip_rel_memory_operand() => {
                self.shown |= state.is_certain && stack == Value::Entry(0);
            }
            FlowControl::Return => match stack {
                Value::Entry(0) => self.shown |= state.is_certain,
                Value::Foreign => return Err(Verdict::ChangesStacks { at }),
                Value::Entry(_) | Value::Rounded(_) if state.is_certain => {
                    return Err(Verdict::ReturnsElsewhere { at });
                }
                _ => {}
            },
            _ => {}
        }
        Ok(false)
    }

    /// Whether an instruction has nothing to do with stack addresses. This is so for most wide
    /// ones: they write no general register except the first operand.
    fn is_apart(&self, state: &State, instruction: &Instruction) -> bool {
        let is_stack = |register| {
            number(register).is_some_and(|number| state.registers[number] != Value::Other)
        };
        self.traits[instruction.code() as usize].class >= Some(InstructionClass::Light256)
            && !instruction.op0_register().is_gpr()
            && !is_stack(instruction.memory_base())
    }

    /// Follows an instruction after which execution goes on.
    fn compute(&mut self, state: &mut State, instruction: &Instruction) -> Result<(), Verdict> {
        let at = instruction.ip();
        let stack = state.registers[RSP];
        let memory = (0..instruction.op_count())
            .any(|index| instruction.op_kind(index) == OpKind::Memory)
            && !is_address_alone(instruction.mnemonic());
        let place = if memory { state.place(instruction) } else { None };
        if let Some(place) = place {
            let size = i64::try_from(instruction.memory_size().size()).unwrap_or(i64::MAX);
            // Functions that realign their frame push a copy of the return address, for debuggers.
            let is_copy = instruction.mnemonic() == Mnemonic::Push;
            if State::is_return_address(place, size) && !is_copy {
                return Err(Verdict::UsesReturnAddress { at });
            }
            self.below_stack |= place.from(stack).is_some_and(|distance| distance < 0);
        }
        let own = number(instruction.op0_register())
            .filter(|_| instruction.op0_kind() == OpKind::Register);
        let other = number(instruction.op1_register())
            .filter(|_| instruction.op_count() > 1 && instruction.op1_kind() == OpKind::Register);
        let by = instruction.stack_pointer_increment();
        match (instruction.code(), own, other) {
            (Code::Push_r64, Some(own), _) => {
                let pushed = state.registers[own];
                state.registers[RSP] = stack.plus(-RETURN_BYTES);
                state.store(state.registers[RSP], RETURN_BYTES, pushed);
            }
            (Code::Pop_r64, Some(own), _) => {
                if State::is_return_address(stack, RETURN_BYTES) {
                    return Err(Verdict::UsesReturnAddress { at });
                }
                let popped = state.load(Some(stack));
                state.registers[RSP] = stack.plus(RETURN_BYTES);
                state.registers[own] = popped;
            }
            (Code::Leaveq, ..) => {
                let frame = state.registers[RBP];
                state.registers[RBP] = state.load(Some(frame));
                state.registers[RSP] = frame.plus(RETURN_BYTES);
            }
            _ if by != 0 => {
                // Other pushes and pops; `enter`.
                if by > 0 && State::is_return_address(stack, i64::from(by)) {
                    return Err(Verdict::UsesReturnAddress { at });
                }
                state.registers[RSP] = stack.plus(i64::from(by));
                if let Some(own) = own {
                    state.registers[own] = Value::Other;
                }
                if by < 0 {
                    state.store(state.registers[RSP], i64::from(-by), Value::Other);
                }
            }
            (Code::Mov_r64_rm64 | Code::Mov_rm64_r64, Some(own), Some(other)) => {
                state.registers[own] = state.registers[other];
            }
            (Code::Mov_r64_rm64, Some(own), None) => {
                let loaded = state.load(place);
                // Loaded from outside a frame: coroutines change stacks this way.
                let is_foreign = own == RSP && place.is_none() && !state.is_frame(instruction);
                state.registers[own] = if is_foreign { Value::Foreign } else { loaded };
            }
            (Code::Mov_rm64_r64, None, Some(other)) => {
                if let Some(place) = place {
                    state.store(place, RETURN_BYTES, state.registers[other]);
                }
            }
            (Code::Lea_r64_m, Some(own), _) => {
                state.registers[own] = state.place(instruction).unwrap_or_default();
            }
            (Code::Add_rm64_imm8 | Code::Add_rm64_imm32, Some(own), _) => {
                let by = instruction.immediate(1).cast_signed();
                state.registers[own] = state.registers[own].plus(by);
            }
            (Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32, Some(own), _) => {
                let by = instruction.immediate(1).cast_signed();
                state.registers[own] = state.registers[own].plus(by.wrapping_neg());
            }
            // Compilers subtract known sizes, or restore what they saved. An added register instead
            // leads to another coroutine's place in a stack that is copied away and back.
            (Code::Add_rm64_r64 | Code::Add_r64_rm64, Some(RSP), _) => {
                state.registers[RSP] = Value::Foreign;
            }
            (Code::And_rm64_imm8 | Code::And_rm64_imm32, Some(own), _)
                if state.registers[own].is_known() =>
            {
                // Forgets words relative to an earlier rounding.
                state.words.retain(|place, value| {
                    !matches!(place, Value::Rounded(_)) && !matches!(value, Value::Rounded(_))
                });
                for register in &mut state.registers {
                    if matches!(register, Value::Rounded(_)) {
                        *register = Value::Other;
                    }
                }
                state.registers[own] = Value::Rounded(0);
            }
            (Code::Xchg_rm64_r64 | Code::Xchg_r64_RAX, Some(own), Some(other)) => {
                state.registers.swap(own, other);
                if [own, other].contains(&RSP) && !state.registers[RSP].is_known() {
                    state.registers[RSP] = Value::Foreign;
                }
            }
            _ => self.change(state, instruction, own, place),
        }
        Ok(())
    }

    /// Follows any other instruction: what it writes no longer holds a stack address.
    fn change(
        &mut self,
        state: &mut State,
        instruction: &Instruction,
        own: Option<usize>,
        place: Option<Value>,
    ) {
        let is_stored = place.is_some() && !state.words.is_empty();
        // Only these registers are ever written without being named.
        let is_implied = IMPLIED.iter().any(|number| state.registers[*number].is_known());
        let is_own = own.is_some_and(|own| state.registers[own] != Value::Other);
        let is_other = (1..instruction.op_count()).any(|index| {
            number(instruction.op_register(index))
                .is_some_and(|number| number != RSP && state.registers[number].is_known())
        });
        if !(is_own || is_other || is_stored || is_implied) {
            return;
        }
        let is_written = |access: OpAccess| {
            !matches!(access, OpAccess::None | OpAccess::Read | OpAccess::NoMemAccess)
        };
        let info = self.factory.info(instruction);
        for used in info.used_registers() {
            if is_written(used.access())
                && let Some(number) = number(used.register())
            {
                state.registers[number] = Value::Other;
            }
        }
        if let Some(place) = place
            && info.used_memory().iter().any(|memory| is_written(memory.access()))
        {
            let size = i64::try_from(instruction.memory_size().size()).unwrap_or(i64::MAX);
            state.store(place, size, Value::Other);
        }
    }
}

impl State {
    /// Whether a memory operand's base is the stack or frame pointer, or holds a stack address.
    fn is_frame(&self, instruction: &Instruction) -> bool {
        number(instruction.memory_base())
            .is_some_and(|base| base == RSP || base == RBP || self.registers[base].is_known())
    }
}

/// Whether an instruction, taken alone, may move the stack pointer to another stack. Following code
/// without such an instruction finds no change.
pub(crate) fn may_change_stacks(instruction: &Instruction) -> bool {
    let is_stack_pointer = |index| instruction.op_register(index) == Register::RSP;
    match instruction.code() {
        Code::Mov_r64_rm64 => {
            is_stack_pointer(0)
                && instruction.op1_kind() == OpKind::Memory
                && !matches!(instruction.memory_base(), Register::RSP | Register::RBP)
        }
        Code::Add_rm64_r64 | Code::Add_r64_rm64 => is_stack_pointer(0),
        Code::Xchg_rm64_r64 | Code::Xchg_r64_RAX => is_stack_pointer(0) || is_stack_pointer(1),
        _ => false,
    }
}

/// Whether a memory operand of this instruction is only an address that is not accessed.
fn is_address_alone(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Lea
            | Mnemonic::Nop
            | Mnemonic::Prefetchnta
            | Mnemonic::Prefetcht0
            | Mnemonic::Prefetcht1
            | Mnemonic::Prefetcht2
            | Mnemonic::Prefetchw
            | Mnemonic::Prefetchwt1
            | Mnemonic::Prefetch
            | Mnemonic::Clflush
            | Mnemonic::Clflushopt
            | Mnemonic::Clwb
    )
}

/// The number of a general register of any width.
fn number(register: Register) -> Option<usize> {
    register.is_gpr().then(|| register.full_register().number())
}
