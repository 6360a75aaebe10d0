//! What a stub passes on about a hooked function.

use std::sync::atomic::AtomicU32;

use dimmer_scan::{Leaf, Width};

use crate::arch::registers::Form;

/// The data that the stub passes on: the function's number, and the addresses to go on at. Assembly
/// reads it. It lasts until the process ends.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Site {
    /// The function's number in the ledger.
    pub(crate) number: u32,
    /// The number of the mark, if the entry is one.
    pub(crate) mark: u32,
    /// Not 0 if calls pass the mark no more.
    pub(crate) is_off: AtomicU32,
    /// Address where a counted call goes on: at the mark, if the entry is one, otherwise at the
    /// displaced instructions.
    pub(crate) body: u64,
    /// Address of the displaced instructions of the entry.
    pub(crate) displaced: u64,
    /// For a leaf function: the registers that go along.
    pub(crate) passed: Passed,
}

/// The part of a [`Leaf`] that a delegated call needs, beside the function's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Passed {
    /// Components of the processor's state that the function reads.
    pub(crate) vectors: u32,
    /// Whether the function reads one of `r8` to `r15`.
    pub(crate) reads_upper: u8,
    /// Bytes of the first two vector registers that are carried back: as wide as the function's
    /// results may be, and no wider than the processor's registers.
    pub(crate) returned_bytes: u8,
    /// General registers in which the function returns something, a bit each.
    pub(crate) returned: u16,
}

impl Passed {
    /// `form` limits the width of registers: a function that picks its path by CPUID names
    /// registers that the processor may lack.
    pub(crate) fn new(leaf: &Leaf, form: Form) -> Self {
        let returned = leaf.returns_vectors.map(|width| width.min(form.widest()));
        Self {
            // A leaf function has no components above 7.
            vectors: u32::try_from(leaf.reads_vectors).unwrap_or_default(),
            reads_upper: u8::from(leaf.reads_general >> 8 != 0),
            returned_bytes: match returned {
                None => 0,
                Some(Width::Bits128) => 16,
                Some(Width::Bits256) => 32,
                Some(Width::Bits512) => 64,
            },
            returned: leaf.returns_general,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_carried_back_than_the_processor_has() {
        const SSE: u32 = 0b11;
        const AVX: u32 = 0b111;
        const AVX_512: u32 = 0b1110_0111;
        let bytes = |width, enabled| {
            let leaf = Leaf {
                reads_general: 0,
                reads_vectors: 0,
                returns_general: 0,
                returns_vectors: width,
            };
            Passed::new(&leaf, Form { enabled, has_xsavec: true }).returned_bytes
        };
        let on_each = |width| [SSE, AVX, AVX_512].map(|enabled| bytes(width, enabled));
        assert_eq!(on_each(None), [0, 0, 0]);
        assert_eq!(on_each(Some(Width::Bits128)), [16, 16, 16]);
        assert_eq!(on_each(Some(Width::Bits256)), [16, 32, 32]);
        assert_eq!(on_each(Some(Width::Bits512)), [16, 32, 64]);
    }
}
