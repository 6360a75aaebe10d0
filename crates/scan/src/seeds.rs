//! Functions in code that neither symbols nor frames describe, as is common in hand-written
//! assembly.
//!
//! A reference from elsewhere is a seed: a call, a jump, a taken address, a relocated pointer. A
//! seed may also be a table of constants. So its range, up to the next seed, must decode
//! throughout, and must be left by a return or a jump, or go on into the next function; otherwise
//! it is rejected as data. Code found this way contains further seeds.

use std::collections::BTreeMap;

use crate::analysis::{Analyser, Analysis, Reference, ReferenceKind};
use crate::elf::{self, Image, Section};
use crate::hook::follows_an_end;
use crate::marks::Marks;
use crate::starts::Known;

/// The most passes over the gaps. Later passes find only functions that newly found code calls at
/// lower addresses. What is left after the last pass stays with the function before it. A guess.
const MOST_ROUNDS: usize = 4;

/// A range that neither symbols nor frames describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The index of the section.
    pub(crate) section: usize,
    /// Offset of the first byte.
    pub(crate) start: usize,
    /// Offset after the last byte.
    pub(crate) end: usize,
}

/// A function found by a seed.
#[derive(Debug)]
pub(crate) struct Seeded {
    /// The index of the section.
    pub(crate) section: usize,
    /// Offset of the first byte.
    pub(crate) start: usize,
    /// Offset after the last byte, without padding.
    pub(crate) end: usize,
    /// The analysis of its code.
    pub(crate) analysis: Analysis,
}

/// The evidence that a function starts at an address, the most reliable first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// A symbol or an unwinding record.
    Described,
    /// A direct call.
    Call,
    /// Compiled code takes its address.
    CompiledPointer,
    /// A direct jump from another function.
    Jump,
    /// A relocated pointer, or a symbol without a type.
    Pointer,
    /// Code without unwinding records takes its address. It may be the address of a function, of a
    /// label in the middle of a frame, or of data.
    Address,
}

/// The references from code, collected as it is decoded.
#[derive(Debug)]
pub(crate) struct References {
    /// Where functions may start.
    pub(crate) starts: Marks,
    /// Targets of direct jumps and calls from other functions.
    pub(crate) entered: Marks,
    /// Targets of direct calls from other functions.
    called: Marks,
    /// Targets of direct calls from functions that keep data below their stack pointer.
    called_above_data: Marks,
    /// Addresses outside the own function that compiled code takes. Compilers take only addresses
    /// of functions.
    taken_by_compiler: Marks,
    /// Targets of relocated pointers, and symbols that may be a function's.
    pointed: Marks,
    /// Addresses that code takes as values.
    pub(crate) taken: Marks,
    /// Direct jumps between functions: the address of the jump, and its target.
    pub(crate) jumps: Vec<(u64, u64)>,
}

impl References {
    /// Starts with the references in the file's tables.
    pub(crate) fn new(image: &Image<'_>) -> Self {
        let mut starts = Marks::new(&image.sections);
        let unsure = image.symbols.iter().filter(|symbol| !symbol.function && !symbol.local);
        let mut pointed = Marks::new(&image.sections);
        for address in image.pointers.iter().copied().chain(unsure.map(|symbol| symbol.address)) {
            starts.mark_address(&image.sections, address);
            pointed.mark_address(&image.sections, address);
        }
        let none = || Marks::new(&image.sections);
        Self {
            starts,
            entered: none(),
            called: none(),
            called_above_data: none(),
            taken_by_compiler: none(),
            pointed,
            taken: none(),
            jumps: Vec::new(),
        }
    }

    /// Whether anything in the file leads to the byte at `offset` of a section, or takes its
    /// address.
    pub(crate) fn is_led_to(&self, section: usize, offset: usize) -> bool {
        let marks = [&self.starts, &self.entered, &self.taken];
        marks.iter().any(|marks| marks.next(section, offset, offset + 1).is_some())
    }

    /// The most reliable evidence for the byte at `offset` of a section.
    pub(crate) fn evidence(&self, section: usize, offset: usize) -> Evidence {
        let kinds = [
            (&self.called, Evidence::Call),
            (&self.taken_by_compiler, Evidence::CompiledPointer),
            (&self.entered, Evidence::Jump),
            (&self.pointed, Evidence::Pointer),
        ];
        let leads = |marks: &Marks| marks.next(section, offset, offset + 1).is_some();
        let found = kinds.into_iter().find(|(marks, _)| leads(marks));
        found.map_or(Evidence::Address, |(_, evidence)| evidence)
    }

    /// Whether another function calls the byte at `offset` of a section.
    pub(crate) fn is_called(&self, section: usize, offset: usize) -> bool {
        self.called.next(section, offset, offset + 1).is_some()
    }

    /// Whether a function that keeps data below its stack pointer calls the byte at `offset` of a
    /// section. Compilers use that memory only in functions without calls. Assembly relies on the
    /// functions that it calls to keep it.
    pub(crate) fn is_called_above_data(&self, section: usize, offset: usize) -> bool {
        self.called_above_data.next(section, offset, offset + 1).is_some()
    }

    /// Adds the references of a function. `is_compiled` is whether an unwinding record describes
    /// it.
    pub(crate) fn add(
        &mut self,
        sections: &[Section<'_>],
        references: &[Reference],
        analysis: &Analysis,
        is_compiled: bool,
    ) {
        for reference in references {
            let Some(section) = elf::find(sections, reference.target) else { continue };
            let Some(offset) = sections[section].offset(reference.target) else { continue };
            let sure = match reference.kind {
                ReferenceKind::Call => true,
                // May lead into the middle of a function, or to the target of an indirect jump.
                ReferenceKind::Jump | ReferenceKind::Address => {
                    reference.target.is_multiple_of(16)
                        || follows_an_end(sections[section].bytes, offset)
                }
            };
            if sure {
                self.starts.mark(section, offset);
            }
            match reference.kind {
                ReferenceKind::Call => {
                    self.called.mark(section, offset);
                    if analysis.below_stack {
                        self.called_above_data.mark(section, offset);
                    }
                }
                ReferenceKind::Address if is_compiled => {
                    self.taken_by_compiler.mark(section, offset);
                }
                ReferenceKind::Address | ReferenceKind::Jump => {}
            }
            if reference.kind == ReferenceKind::Address {
                self.taken.mark(section, offset);
            } else {
                self.entered.mark(section, offset);
            }
            if reference.kind == ReferenceKind::Jump {
                self.jumps.push((reference.from, reference.target));
            }
        }
    }
}

/// The ranges between `known` ones, which are by address and disjoint.
pub(crate) fn gaps(sections: &[Section<'_>], known: &[Known]) -> Vec<Gap> {
    let mut gaps = Vec::new();
    let mut known = known.iter().peekable();
    for (section, code) in sections.iter().enumerate() {
        let mut start = 0;
        while let Some(range) = known.next_if(|range| range.section == section) {
            if range.start > start {
                gaps.push(Gap { section, start, end: range.start });
            }
            start = range.end;
        }
        if start < code.bytes.len() {
            gaps.push(Gap { section, start, end: code.bytes.len() });
        }
    }
    gaps
}

/// The functions in `gaps`, by address, and the number of rejected seeds.
///
/// Decodes every byte of the gaps at most [`MOST_ROUNDS`] times.
pub(crate) fn find(
    sections: &[Section<'_>],
    gaps: &[Gap],
    references: &mut References,
    analyser: &mut Analyser,
) -> (Vec<Seeded>, usize) {
    // From section and offset to the end of the range and its analysis; `None` for data.
    let mut ranges: BTreeMap<(usize, usize), (usize, Option<Analysis>)> = BTreeMap::new();
    for _ in 0..MOST_ROUNDS {
        let mut changed = false;
        for gap in gaps {
            let mut next = references.starts.next(gap.section, gap.start, gap.end);
            while let Some(start) = next {
                next = references.starts.next(gap.section, start + 1, gap.end);
                let end = next.unwrap_or(gap.end);
                let old = ranges.get(&(gap.section, start));
                if old.is_some_and(|(old_end, _)| *old_end == end) {
                    continue;
                }
                changed = true;
                let analysis = attempt(sections, gap.section, start..end, references, analyser);
                ranges.insert((gap.section, start), (end, analysis));
            }
        }
        if !changed {
            break;
        }
    }
    accept(ranges)
}

/// The functions among `ranges`, by address, and the number of the other ranges.
fn accept(ranges: BTreeMap<(usize, usize), (usize, Option<Analysis>)>) -> (Vec<Seeded>, usize) {
    let (mut accepted, mut rejected) = (Vec::new(), 0);
    // From the last to the first, because a range may depend on whether the next one is a function.
    let mut next: Option<(usize, usize)> = None;
    for ((section, start), (end, analysis)) in ranges.into_iter().rev() {
        let goes_on = next == Some((section, end));
        let whole = |analysis: &Analysis| analysis.leaves || analysis.falls_through && goes_on;
        let Some(analysis) = analysis.filter(whole) else {
            rejected += 1;
            continue;
        };
        // Padding that execution does not reach belongs to no function.
        let trimmed = start + usize::try_from(analysis.padding.0).unwrap_or_default();
        let end = if analysis.falls_through { end } else { trimmed };
        accepted.push(Seeded { section, start, end, analysis });
        next = Some((section, start));
    }
    accepted.reverse();
    (accepted, rejected)
}

/// The analysis of a range that may be a function; `None` if it is data. A range that falls through
/// is a function only if the next one is. References count only if the range is code.
fn attempt(
    sections: &[Section<'_>],
    section: usize,
    range: std::ops::Range<usize>,
    references: &mut References,
    analyser: &mut Analyser,
) -> Option<Analysis> {
    let address = sections[section].address + range.start as u64;
    let mut analysis = analyser.run(sections[section].bytes.get(range)?, address, true);
    if analysis.undecodable > 0 || !(analysis.leaves || analysis.falls_through) {
        return None;
    }
    if !analysis.falls_through {
        analysis.instructions.without_scalar(analysis.padding.1);
    }
    references.add(sections, &analyser.references, &analysis, false);
    Some(analysis)
}
