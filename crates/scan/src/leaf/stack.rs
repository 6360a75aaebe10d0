//! How a function uses the stack, and which of its caller's registers it uses: an abstract
//! interpretation of its instructions.
//!
//! A register that is put on the stack and taken from there again is not *read*. It is read only if
//! code computes or addresses with its value.

use std::collections::BTreeMap;

use iced_x86::{
    Code, InstructionInfo, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};

use crate::leaf::NotLeaf;
use crate::leaf::graph::{Exit, Graph, Step};
use crate::leaf::refuse;
use crate::leaf::registers::{Registers, Uses, general_number, is_read, is_written};
use crate::leaf::value::{
    Base, MOST_STACK, Place, State, Value, address_of, aligned, moved, touched,
};

/// The most words of the stack to track. A guess; functions save some ten.
const MOST_WORDS: usize = 64;

/// The most visits of each instruction, on average. A guess; code written by people or compilers
/// takes three.
const MOST_TURNS: usize = 16;

/// The number of the stack pointer among the general registers.
const RSP: usize = 4;
const RAX: u8 = 0;
const RDX: u8 = 2;

/// What a function takes from its caller's registers and leaves in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    /// General registers that it reads, one bit each.
    pub(crate) reads_general: u16,
    /// Vector registers, masks and flags that it reads.
    pub(crate) reads: Registers,
    /// What it may change, except what it restores.
    pub(crate) changes: Registers,
    /// General registers that it may return with another value than it got, one bit each: `rax` and
    /// `rdx`.
    pub(crate) gives: u16,
    /// Whether it names 512-bit registers.
    pub(crate) names_zmm: bool,
}

/// Follows the code of a function.
///
/// # Errors
/// Why it cannot run on another stack, or with these registers alone.
pub(crate) fn follow(graph: &Graph) -> Result<Use, NotLeaf> {
    let mut factory = InstructionInfoFactory::new();
    let mut walk = Walk { factory: &mut factory, found: Use::default(), keeps: 0 };
    let mut general = [Value::OTHER; 16];
    for (number, value) in (0..).zip(&mut general) {
        *value = Value::Entry(number);
    }
    general[RSP] = Value::Stack(Base::Entry, 0);
    let state = State { general, words: BTreeMap::new(), defined: Registers::NONE };
    let mut before = BTreeMap::from([(graph.start, state)]);
    let mut pending = vec![graph.start];
    let mut turns_left = graph.steps.len().saturating_mul(MOST_TURNS);
    while let Some(leader) = pending.pop() {
        let Some(mut state) = before.get(&leader).cloned() else { continue };
        for (address, step) in graph.steps.range(leader..) {
            if *address != leader && graph.leaders.contains(address) {
                walk.lead(*address, &state, &mut before, &mut pending);
                break;
            }
            turns_left = turns_left.checked_sub(1).ok_or(NotLeaf::TooLong)?;
            match step.exit {
                Exit::Call(_) if !is_system(step) => return Err(NotLeaf::Calls { at: *address }),
                Exit::Linked | Exit::Unknown => return Err(NotLeaf::Jumps { at: *address }),
                _ => {}
            }
            refuse::check(&step.instruction)?;
            walk.step(&mut state, step)?;
            match step.exit {
                Exit::Next => {}
                Exit::Jump(target) => {
                    walk.lead(target, &state, &mut before, &mut pending);
                    break;
                }
                Exit::Branch(target) => walk.lead(target, &state, &mut before, &mut pending),
                Exit::Return => {
                    walk.leave(&state, *address)?;
                    break;
                }
                _ => break,
            }
        }
    }
    Ok(walk.found())
}

struct Walk<'factory> {
    factory: &'factory mut InstructionInfoFactory,
    found: Use,
    /// General registers that at some return hold what they held at the entry.
    keeps: u16,
}

impl Walk<'_> {
    /// Records that execution goes on at `target`.
    fn lead(
        &mut self,
        target: u64,
        state: &State,
        before: &mut BTreeMap<u64, State>,
        pending: &mut Vec<u64>,
    ) {
        let Some(known) = before.get_mut(&target) else {
            before.insert(target, state.clone());
            pending.push(target);
            return;
        };
        let joined = self.join(known, state);
        if joined != *known {
            *known = joined;
            pending.push(target);
        }
    }

    fn join(&mut self, one: &State, other: &State) -> State {
        let mut general = one.general;
        for (value, other) in general.iter_mut().zip(other.general) {
            *value = self.either(one, *value, other);
        }
        let mut words = BTreeMap::new();
        for place in one.words.keys().chain(other.words.keys()) {
            let word = |state: &State| state.words.get(place).copied().unwrap_or(Value::OTHER);
            match self.either(one, word(one), word(other)) {
                Value::OTHER => {}
                value => drop(words.insert(*place, value)),
            }
        }
        State { general, words, defined: one.defined & other.defined }
    }

    /// One of the two values; it is unknown which.
    fn either(&mut self, state: &State, one: Value, other: Value) -> Value {
        if one == other {
            return one;
        }
        if !one.is_of_stack() && !other.is_of_stack() {
            return Value::Mixed(one.entered_in() | other.entered_in());
        }
        self.use_up(one);
        self.use_up(other);
        state.computed_of(one, other)
    }

    /// Records a use of what registers held at the entry, if the value may be that.
    fn use_up(&mut self, value: Value) {
        self.found.reads_general |= value.entered_in();
    }

    fn step(&mut self, state: &mut State, step: &Step) -> Result<(), NotLeaf> {
        let instruction = &step.instruction;
        let at = instruction.ip();
        let info = self.factory.info(instruction).clone();
        let uses = Uses::of(instruction, &info);
        self.found.names_zmm |=
            (0..instruction.op_count()).any(|index| instruction.op_register(index).is_zmm());
        self.found.reads |= uses.reads.without(state.defined);
        self.found.changes |= uses.changes;
        state.defined |= uses.defines;
        let rsp = state.general[RSP];
        let own = general_number(instruction.op0_register());
        match instruction.code() {
            Code::Push_r64 => {
                let pushed = own.map_or(Value::OTHER, |number| state.general[number as usize]);
                state.general[RSP] = moved(rsp, -8);
                self.store(state, address_of(state.general[RSP], at)?, 8, Some(pushed), at)?;
            }
            Code::Push_rm64 => {
                let [from, _] = info.used_memory() else {
                    return Err(NotLeaf::StackUnknown { at });
                };
                let pushed = match self.place(state, from, at)? {
                    Place::At(place) => self.load(state, place, at)?,
                    Place::Own | Place::Elsewhere => Value::OTHER,
                };
                state.general[RSP] = moved(rsp, -8);
                self.store(state, address_of(state.general[RSP], at)?, 8, Some(pushed), at)?;
            }
            Code::Pop_r64 => {
                let popped = self.load(state, address_of(rsp, at)?, at)?;
                state.general[RSP] = moved(rsp, 8);
                if let Some(number) = own {
                    state.general[number as usize] = popped;
                }
            }
            Code::Leaveq => {
                let frame = state.general[5];
                state.general[5] = self.load(state, address_of(frame, at)?, at)?;
                state.general[RSP] = moved(frame, 8);
            }
            Code::Retnq => {}
            _ if instruction.is_string_instruction() => self.string(state, step, &info)?,
            _ if !self.simple(state, step, &info)? => self.any(state, step, &info, &uses)?,
            _ => {}
        }
        match state.general[RSP] {
            Value::Stack(base, offset) if base.bounds(offset, 0).0 >= -MOST_STACK => Ok(()),
            Value::Stack(..) => Err(NotLeaf::TooDeep { at }),
            _ => Err(NotLeaf::StackPointer { at }),
        }
    }

    /// Follows instructions that copy values, or add constants to addresses. Returns whether it is
    /// one.
    fn simple(
        &mut self,
        state: &mut State,
        step: &Step,
        info: &InstructionInfo,
    ) -> Result<bool, NotLeaf> {
        let instruction = &step.instruction;
        let at = instruction.ip();
        let number = |index| {
            let register = instruction.op_register(index);
            general_number(register).map(|number| number as usize)
        };
        let constant = match instruction.op1_kind() {
            OpKind::Immediate8to64 | OpKind::Immediate32to64 => {
                instruction.immediate(1).cast_signed()
            }
            _ => 0,
        };
        let value = match (instruction.code(), number(0), number(1)) {
            (Code::Mov_r64_rm64 | Code::Mov_rm64_r64, Some(_), Some(from)) => state.general[from],
            (Code::Mov_r64_rm64, Some(_), None) => {
                let [memory] = info.used_memory() else { return Ok(false) };
                match self.place(state, memory, at)? {
                    Place::At(place) => self.load(state, place, at)?,
                    Place::Own | Place::Elsewhere => Value::OTHER,
                }
            }
            (Code::Mov_rm64_r64, None, Some(from)) => {
                let [memory] = info.used_memory() else { return Ok(false) };
                let value = state.general[from];
                match self.place(state, memory, at)? {
                    Place::At(place) => self.store(state, place, 8, Some(value), at)?,
                    _ if value.is_of_stack() => return Err(NotLeaf::StackAddress { at }),
                    _ => self.use_up(value),
                }
                return Ok(true);
            }
            (Code::Lea_r64_m, Some(_), _) => {
                let of = |register: Register| {
                    general_number(register)
                        .map_or(Value::OTHER, |number| state.general[number as usize])
                };
                let (base, index) = (of(instruction.memory_base()), of(instruction.memory_index()));
                let base = moved(base, instruction.memory_displacement64().cast_signed());
                if instruction.memory_index() == Register::None && base.is_of_stack() {
                    base
                } else {
                    self.use_up(base);
                    self.use_up(index);
                    state.computed_of(base, index)
                }
            }
            (Code::Add_rm64_imm8 | Code::Add_rm64_imm32, Some(own), _)
                if state.general[own].is_of_stack() =>
            {
                moved(state.general[own], constant)
            }
            (Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32, Some(own), _)
                if state.general[own].is_of_stack() =>
            {
                moved(state.general[own], constant.wrapping_neg())
            }
            (Code::And_rm64_imm8 | Code::And_rm64_imm32, Some(own), _)
                if state.general[own].is_of_stack() =>
            {
                aligned(state.general[own], constant, at)
            }
            _ => return Ok(false),
        };
        if let Some(own) = number(0) {
            state.general[own] = value;
        }
        Ok(true)
    }

    /// Follows a string instruction. Its registers move along the stack.
    fn string(
        &mut self,
        state: &mut State,
        step: &Step,
        info: &InstructionInfo,
    ) -> Result<(), NotLeaf> {
        let at = step.instruction.ip();
        for memory in info.used_memory() {
            if let Place::At((base, offset)) = self.place(state, memory, at)?
                && state.computed(Value::Stack(base, offset)) != Value::Own
            {
                return Err(NotLeaf::StackUnknown { at });
            }
        }
        if state.general[usize::from(RAX)].is_of_stack() {
            return Err(NotLeaf::StackAddress { at });
        }
        for used in info.used_registers() {
            let Some(number) = general_number(used.register()) else { continue };
            let value = state.general[number as usize];
            self.use_up(value);
            if is_written(used.access()) {
                state.general[number as usize] = state.computed(value);
            }
        }
        Ok(())
    }

    /// Follows any other instruction.
    fn any(
        &mut self,
        state: &mut State,
        step: &Step,
        info: &InstructionInfo,
        uses: &Uses,
    ) -> Result<(), NotLeaf> {
        let instruction = &step.instruction;
        let at = instruction.ip();
        let mut made = Value::OTHER;
        let mut writes_memory = false;
        for memory in info.used_memory() {
            if memory.access() == OpAccess::NoMemAccess {
                continue;
            }
            writes_memory |= is_written(memory.access());
            let Place::At(place) = self.place(state, memory, at)? else { continue };
            let size = i64::try_from(memory.memory_size().size()).unwrap_or_default();
            if size == 0 {
                return Err(NotLeaf::StackUnknown { at });
            }
            self.check(place, size, at)?;
            if is_read(memory.access()) {
                made = state.computed_of(made, self.use_words(state, place, size));
            }
            if is_written(memory.access()) {
                let is_sure = memory.access() != OpAccess::CondWrite;
                self.store(state, place, size, is_sure.then_some(Value::OTHER), at)?;
            }
        }
        let is_operand = |register: Register| {
            let number = general_number(register);
            (0..instruction.op_count()).any(|index| {
                instruction.op_kind(index) == OpKind::Register
                    && general_number(instruction.op_register(index)) == number
            })
        };
        let is_address = |register: Register| {
            let number = general_number(register);
            let names = |memory: &UsedMemory| {
                general_number(memory.base()) == number || general_number(memory.index()) == number
            };
            info.used_memory().iter().any(names)
                || general_number(instruction.memory_base()) == number
                || general_number(instruction.memory_index()) == number
        };
        for used in info.used_registers() {
            let register = used.register();
            let Some(number) = general_number(register) else { continue };
            let value = state.general[number as usize];
            if is_read(used.access()) {
                self.use_up(value);
                if is_operand(register) || !is_address(register) {
                    made = state.computed_of(made, value);
                }
            }
        }
        if made.is_of_stack() && (writes_memory || !uses.changes.vectors().is_empty()) {
            return Err(NotLeaf::StackAddress { at });
        }
        for used in info.used_registers() {
            let Some(number) = general_number(used.register()) else { continue };
            if !is_written(used.access()) {
                continue;
            }
            let before = state.general[number as usize];
            let is_whole = uses.defines.meets(Registers::whole(number));
            let after = if is_whole { made } else { self.either(state, before, made) };
            state.general[number as usize] = after;
        }
        Ok(())
    }

    /// The place of memory that an instruction uses.
    fn place(&mut self, state: &State, memory: &UsedMemory, at: u64) -> Result<Place, NotLeaf> {
        let of = |register: Register| {
            general_number(register).map_or(Value::OTHER, |number| state.general[number as usize])
        };
        let (base, index) = (of(memory.base()), of(memory.index()));
        self.use_up(base);
        self.use_up(index);
        let first = moved(base, memory.displacement().cast_signed());
        match first {
            Value::Stack(base, offset) if memory.index() == Register::None => {
                Ok(Place::At((base, offset)))
            }
            _ => match state.computed_of(first, index) {
                Value::OfStack => Err(NotLeaf::StackUnknown { at }),
                Value::Own => Ok(Place::Own),
                _ => Ok(Place::Elsewhere),
            },
        }
    }

    /// Refuses places at the return address or above, and places far below.
    fn check(&self, (base, offset): (Base, i64), size: i64, at: u64) -> Result<(), NotLeaf> {
        let (lowest, end) = base.bounds(offset, size);
        if end > 0 {
            return Err(NotLeaf::StackArguments { at });
        }
        if lowest < -MOST_STACK { Err(NotLeaf::TooDeep { at }) } else { Ok(()) }
    }

    /// Loads a word of the stack.
    fn load(&mut self, state: &State, place: (Base, i64), at: u64) -> Result<Value, NotLeaf> {
        self.check(place, 8, at)?;
        if let Some(value) = state.words.get(&place) {
            return Ok(*value);
        }
        Ok(self.use_words(state, place, 8))
    }

    /// Stores `size` bytes on the stack: a word with a value, or other bytes (`Value::OTHER`).
    /// `None`: the instruction may or may not store other bytes.
    fn store(
        &mut self,
        state: &mut State,
        (base, offset): (Base, i64),
        size: i64,
        value: Option<Value>,
        at: u64,
    ) -> Result<(), NotLeaf> {
        self.check((base, offset), size, at)?;
        let touched = touched(state, (base, offset), size);
        for place in touched {
            let is_gone = value.is_some()
                && place.0 == base
                && offset <= place.1
                && place.1 + 8 <= offset.saturating_add(size);
            let Some(word) = state.words.remove(&place).filter(|_| !is_gone) else { continue };
            self.use_up(word);
            if word.is_of_stack() {
                state.words.insert(place, state.computed(word));
            }
        }
        if let Some(value) = value.filter(|value| *value != Value::OTHER) {
            state.words.insert((base, offset), value);
        }
        if state.words.len() > MOST_WORDS {
            return Err(NotLeaf::TooLong);
        }
        Ok(())
    }

    /// Reads bytes that may be parts of known words. Returns what a computation makes of these
    /// words.
    fn use_words(&mut self, state: &State, place: (Base, i64), size: i64) -> Value {
        let mut made = Value::OTHER;
        for place in touched(state, place, size) {
            let word = state.words[&place];
            self.use_up(word);
            made = state.computed_of(made, word);
        }
        made
    }

    /// Checks and records a return of the function.
    fn leave(&mut self, state: &State, at: u64) -> Result<(), NotLeaf> {
        if state.general[RSP] != Value::Stack(Base::Entry, 0) {
            return Err(NotLeaf::StackPointer { at });
        }
        for (number, value) in (0_u8..).zip(state.general) {
            let is_kept = value == Value::Entry(number);
            if Registers::PRESERVED_GENERAL & 1 << number != 0
                && usize::from(number) != RSP
                && !is_kept
            {
                return Err(NotLeaf::NotRestored { at, register: number });
            }
            if matches!(number, RAX | RDX) {
                if is_kept {
                    self.keeps |= 1 << number;
                } else {
                    self.found.gives |= 1 << number;
                    self.use_up(value);
                }
            }
        }
        Ok(())
    }

    /// The findings, after the last step.
    fn found(mut self) -> Use {
        // A register that is returned only on some paths must be passed in for the others.
        self.found.reads_general |= self.found.gives & self.keeps;
        self.found.reads = self.found.reads.without(Registers::GENERAL);
        self.found.changes = self.found.changes.without(Registers::PRESERVED);
        self.found
    }
}

fn is_system(step: &Step) -> bool {
    matches!(step.instruction.mnemonic(), Mnemonic::Syscall | Mnemonic::Sysenter)
}
