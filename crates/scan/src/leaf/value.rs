//! What registers and the stack hold, as far as the analysis of a function shows.
//!
//! Each general register, and each word that was put on the stack, holds what some register held at
//! the entry, a stack address, or anything else. An address is known as a distance from the stack
//! pointer at the entry, or from where that was rounded down to a multiple.

use std::collections::BTreeMap;

use crate::leaf::NotLeaf;
use crate::leaf::registers::Registers;

/// The most stack that a function may use, in bytes: a small part of what threads have (2 MiB in
/// Rust's library, 8 MiB in glibc's). A guess; the largest frames of libcrypto's kernels have 4
/// KiB.
pub(crate) const MOST_STACK: i64 = 1 << 16;

/// What offsets on the stack are relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Base {
    /// The stack pointer at the entry: the return address is at zero.
    Entry,
    /// An address that the instruction at `at` rounded down to a multiple of `by`. It lies below
    /// the offset `from` (relative to `Entry`) by less than `by`.
    Aligned { at: u64, from: i64, by: i64 },
}

impl Base {
    /// The lowest offset and the end of `size` bytes at `offset`, relative to the entry's stack
    /// pointer.
    pub(crate) const fn bounds(self, offset: i64, size: i64) -> (i64, i64) {
        match self {
            Self::Entry => (offset, offset.saturating_add(size)),
            Self::Aligned { from, by, .. } => {
                let lowest = from.saturating_sub(by - 1).saturating_add(offset);
                (lowest, from.saturating_add(offset).saturating_add(size))
            }
        }
    }
}

/// What a register or a word of the stack holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// What the general register of that number held at the entry.
    Entry(u8),
    /// A stack address.
    Stack(Base, i64),
    /// Something computed from addresses in the function's own part of the stack, and perhaps from
    /// addresses outside the stack.
    Own,
    /// Something computed from other stack addresses.
    OfStack,
    /// Anything else, or perhaps what one of these general registers held at the entry, one bit
    /// each.
    Mixed(u16),
}

impl Value {
    pub(crate) const OTHER: Self = Self::Mixed(0);

    /// The general registers whose value at the entry it may be, one bit each.
    pub(crate) const fn entered_in(self) -> u16 {
        match self {
            Self::Entry(number) => 1 << number,
            Self::Mixed(numbers) => numbers,
            _ => 0,
        }
    }

    pub(crate) const fn is_of_stack(self) -> bool {
        matches!(self, Self::Stack(..) | Self::Own | Self::OfStack)
    }
}

/// The place of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At that place of the stack.
    At((Base, i64)),
    /// In the function's own part of the stack, or not on the stack.
    Own,
    /// Not on the stack.
    Elsewhere,
}

/// What is known before an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) general: [Value; 16],
    /// Words that were put on the stack and are still there.
    pub(crate) words: BTreeMap<(Base, i64), Value>,
    /// Vector registers, masks and flags that the function has written.
    pub(crate) defined: Registers,
}

impl State {
    /// Where the function's own part of the stack ends, relative to the stack pointer at the entry:
    /// below the return address and the registers saved for the caller.
    pub(crate) fn end_of_own(&self) -> i64 {
        let is_kept = |number: u8| Registers::PRESERVED_GENERAL & 1 << number != 0;
        let kept = self.words.iter().filter_map(|((base, offset), word)| match (base, word) {
            (Base::Entry, Value::Entry(number)) if is_kept(*number) => Some(*offset),
            _ => None,
        });
        kept.min().unwrap_or(0).min(0)
    }

    /// The result of any computation with a value.
    pub(crate) fn computed(&self, value: Value) -> Value {
        match value {
            Value::Stack(base, offset) if base.bounds(offset, 0).1 < self.end_of_own() => {
                Value::Own
            }
            Value::Stack(..) => Value::OfStack,
            Value::Entry(_) | Value::Mixed(_) => Value::OTHER,
            value => value,
        }
    }

    /// The result of any computation with two values.
    pub(crate) fn computed_of(&self, one: Value, other: Value) -> Value {
        match (self.computed(one), self.computed(other)) {
            (Value::OfStack, _) | (_, Value::OfStack) => Value::OfStack,
            (Value::Own, _) | (_, Value::Own) => Value::Own,
            _ => Value::OTHER,
        }
    }
}

/// An address `by` bytes further.
pub(crate) const fn moved(value: Value, by: i64) -> Value {
    match value {
        Value::Stack(base, offset) => Value::Stack(base, offset.wrapping_add(by)),
        Value::Own | Value::OfStack => value,
        Value::Entry(_) | Value::Mixed(_) => value,
    }
}

/// An address rounded down by the instruction at `at`.
pub(crate) fn aligned(value: Value, mask: i64, at: u64) -> Value {
    let by = mask.wrapping_neg();
    match value {
        Value::Stack(Base::Entry, from) if by > 0 && by <= MOST_STACK && by & (by - 1) == 0 => {
            Value::Stack(Base::Aligned { at, from, by }, 0)
        }
        _ => Value::OfStack,
    }
}

/// The place that the stack pointer, or a register used in its stead, points to.
pub(crate) const fn address_of(value: Value, at: u64) -> Result<(Base, i64), NotLeaf> {
    match value {
        Value::Stack(base, offset) => Ok((base, offset)),
        _ => Err(NotLeaf::StackPointer { at }),
    }
}

/// Known words that `size` bytes of the stack may overlap.
pub(crate) fn touched(state: &State, (base, offset): (Base, i64), size: i64) -> Vec<(Base, i64)> {
    let (lowest, end) = base.bounds(offset, size);
    let meets = |place: &&(Base, i64)| {
        if place.0 == base {
            return place.1 < offset.saturating_add(size) && offset < place.1.saturating_add(8);
        }
        let (other_lowest, other_end) = place.0.bounds(place.1, 8);
        other_lowest < end && lowest < other_end
    };
    state.words.keys().filter(meets).copied().collect()
}
