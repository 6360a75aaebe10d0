//! The instructions that are reached from an address, through direct jumps to any place, and their
//! order.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};

use crate::Code;

/// The most instructions to follow. The longest functions of libcrypto and libx265 have a quarter
/// of that. A guess.
const MOST_STEPS: usize = 1 << 16;

/// An instruction, and where execution goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) instruction: Instruction,
    pub(crate) exit: Exit,
}

/// Where execution goes on after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// At the next instruction.
    Next,
    /// At this address.
    Jump(u64),
    /// At this address or at the next instruction.
    Branch(u64),
    /// In another function, and later at the next instruction.
    Call(Called),
    /// Where a pointer in the file's linkage table leads: in another function.
    Linked,
    /// At an unknown place.
    Unknown,
    /// At the caller.
    Return,
    /// Nowhere.
    Stop,
}

/// The target of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Called {
    /// The code at this address.
    At(u64),
    /// The target of a pointer.
    Pointer,
}

/// Instructions by address, and the addresses where paths meet.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) start: u64,
    pub(crate) steps: BTreeMap<u64, Step>,
    pub(crate) leaders: BTreeSet<u64>,
}

/// Why instructions could not be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// There is no instruction at this address.
    NoCode(u64),
    /// There are too many instructions.
    TooLong,
}

impl Graph {
    /// The instructions that are reached from `start`, without those of called functions.
    ///
    /// Takes time in proportion to their number.
    pub(crate) fn explore(code: &Code<'_>, start: u64) -> Result<Self, Lost> {
        let mut graph = Self { start, steps: BTreeMap::new(), leaders: BTreeSet::from([start]) };
        let mut pending = vec![start];
        while let Some(from) = pending.pop() {
            let bytes = code.at(from).ok_or(Lost::NoCode(from))?;
            let mut decoder = Decoder::with_ip(64, bytes, from, DecoderOptions::NONE);
            loop {
                let address = decoder.ip();
                if graph.steps.contains_key(&address) {
                    // Two paths meet there.
                    graph.leaders.insert(address);
                    break;
                }
                if !decoder.can_decode() {
                    return Err(Lost::NoCode(address));
                }
                let instruction = decoder.decode();
                if instruction.is_invalid() {
                    return Err(Lost::NoCode(address));
                }
                if graph.steps.len() >= MOST_STEPS {
                    return Err(Lost::TooLong);
                }
                let exit = exit(&instruction);
                graph.steps.insert(address, Step { instruction, exit });
                if let Exit::Jump(target) | Exit::Branch(target) = exit {
                    graph.leaders.insert(target);
                    pending.push(target);
                }
                if !matches!(exit, Exit::Next | Exit::Branch(_) | Exit::Call(_)) {
                    break;
                }
            }
        }
        Ok(graph)
    }
}

/// Where execution goes on after an instruction.
pub(crate) fn exit(instruction: &Instruction) -> Exit {
    let is_direct = instruction.op0_kind() == OpKind::NearBranch64;
    let target = instruction.near_branch_target();
    match instruction.flow_control() {
        FlowControl::Next => Exit::Next,
        FlowControl::UnconditionalBranch if is_direct => Exit::Jump(target),
        FlowControl::ConditionalBranch if is_direct => Exit::Branch(target),
        FlowControl::Call if is_direct => Exit::Call(Called::At(target)),
        FlowControl::Call | FlowControl::IndirectCall => Exit::Call(Called::Pointer),
        FlowControl::IndirectBranch if instruction.is_ip_rel_memory_operand() => Exit::Linked,
        FlowControl::Return => Exit::Return,
        FlowControl::Exception | FlowControl::Interrupt => Exit::Stop,
        _ => Exit::Unknown,
    }
}
