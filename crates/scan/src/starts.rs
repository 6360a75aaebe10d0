//! Where functions start and end, according to symbols and frames.
//!
//! The two overlap in hand-written files: symbols within a frame, frames within a symbol, missing
//! sizes. Every byte must belong to at most one function, so that nothing is counted twice.

use std::ops::Range;

use crate::elf::{self, Image, Section, Symbol};
use crate::frames::Frame;
use crate::function::Origin;

/// A range that symbols or frames describe, within one section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// The index of the section.
    pub(crate) section: usize,
    /// Offset of the first byte.
    pub(crate) start: usize,
    /// Offset after the last byte.
    pub(crate) end: usize,
    /// Whether a symbol or a frame describes it.
    pub(crate) origin: Origin,
}

impl Known {
    /// Its addresses in memory.
    pub(crate) fn addresses(&self, sections: &[Section<'_>]) -> Range<u64> {
        let address = sections[self.section].address;
        address + self.start as u64..address + self.end as u64
    }
}

/// Ranges of functions, by address and disjoint.
///
/// A range ends where the next starts. If it would end earlier but an enclosing range goes on, it
/// also gets that rest: a second entry into a function usually shares its tail.
pub(crate) fn known(image: &Image<'_>, frames: &[Frame]) -> Vec<Known> {
    // Start, end if known, origin.
    let frames = frames.iter().map(|frame| (frame.start, frame.end, Origin::Frame));
    let symbols =
        image.symbols.iter().filter(|symbol| symbol.function).map(|symbol| {
            (symbol.address, symbol.address.saturating_add(symbol.size), Origin::Symbol)
        });
    let mut starts: Vec<(u64, u64, Origin)> = frames
        .chain(symbols)
        .filter(|(start, _, _)| elf::find(&image.sections, *start).is_some())
        .collect();
    starts.sort_unstable();
    starts.dedup_by(|again, kept| {
        let same = again.0 == kept.0;
        if same {
            *kept = (kept.0, kept.1.max(again.1), kept.2.min(again.2));
        }
        same
    });
    let mut reach = 0;
    let mut ranges = Vec::with_capacity(starts.len());
    for (index, (start, end, origin)) in starts.iter().copied().enumerate() {
        let Some(section) = elf::find(&image.sections, start) else { continue };
        let limit = image.sections[section].end();
        let next = starts.get(index + 1).map_or(limit, |next| next.0.min(limit));
        reach = reach.max(end);
        // A symbol without size that no other range encloses lasts until the next one.
        let end = if reach > start { reach.min(next) } else { next };
        ranges.extend(within(&image.sections, section, start, end, origin));
    }
    ranges
}

fn within(
    sections: &[Section<'_>],
    section: usize,
    start: u64,
    end: u64,
    origin: Origin,
) -> Option<Known> {
    let first = sections[section].offset(start)?;
    let length = usize::try_from(end.checked_sub(start)?).ok()?;
    Some(Known { section, start: first, end: first + length, origin })
}

/// The name of the function at each address, by address. Global symbols come before local ones and
/// those of `.symtab` before those of `.dynsym`.
pub(crate) fn names<'data>(symbols: &[Symbol<'data>]) -> Vec<(u64, &'data str)> {
    let mut names: Vec<(u64, bool, &'data str)> = symbols
        .iter()
        .filter(|symbol| !symbol.name.is_empty() && (symbol.function || !symbol.local))
        .map(|symbol| (symbol.address, symbol.local, symbol.name))
        .collect();
    // The sort is stable, and `.symtab` was read first.
    names.sort_by_key(|(address, local, _)| (*address, *local));
    names.dedup_by_key(|(address, _, _)| *address);
    names.into_iter().map(|(address, _, name)| (address, name)).collect()
}
