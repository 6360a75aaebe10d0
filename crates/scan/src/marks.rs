//! Marked bytes of code, one bit each, so that any number of marks takes bounded memory.

use crate::elf::{self, Section};

/// A set of addresses in executable sections.
#[derive(Debug)]
pub(crate) struct Marks {
    words: Vec<Vec<u64>>,
}

impl Marks {
    /// An empty set for `sections`.
    pub(crate) fn new(sections: &[Section<'_>]) -> Self {
        let words = |section: &Section<'_>| vec![0; section.bytes.len().div_ceil(64)];
        Self { words: sections.iter().map(words).collect() }
    }

    /// Marks the byte at `offset` of the section with the given index. Returns whether it was
    /// unmarked.
    pub(crate) fn mark(&mut self, section: usize, offset: usize) -> bool {
        let Some(word) = self.words.get_mut(section).and_then(|words| words.get_mut(offset / 64))
        else {
            return false;
        };
        let bit = 1 << (offset % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Marks `address` if it lies in one of `sections`.
    pub(crate) fn mark_address(&mut self, sections: &[Section<'_>], address: u64) {
        if let Some(section) = elf::find(sections, address)
            && let Some(offset) = sections[section].offset(address)
        {
            self.mark(section, offset);
        }
    }

    /// The first marked byte of a section in `from..to`.
    pub(crate) fn next(&self, section: usize, from: usize, to: usize) -> Option<usize> {
        let words = self.words.get(section)?;
        let mut at = from;
        while at < to {
            let rest = words.get(at / 64)? >> (at % 64);
            if rest != 0 {
                let found = at + usize::try_from(rest.trailing_zeros()).ok()?;
                return (found < to).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}
