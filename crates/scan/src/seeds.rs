//! Functions in code that neither symbols nor frames describe, as hand-written assembly often is.
//!
//! What leads there from elsewhere is a seed: a call, a jump, an address taken, a relocated
//! pointer. A seed may also be a table of constants, so its range, up to the next seed, must decode
//! throughout and be left by a return or a jump, or go on into the next function; else it is
//! rejected as data. Code found this way seeds more.

use std::collections::BTreeMap;

use crate::analysis::{Analyser, Analysis, Reference, ReferenceKind};
use crate::elf::{self, Image, Section};
use crate::hook::follows_an_end;
use crate::marks::Marks;
use crate::starts::Known;

/// How often gaps are gone through. Later rounds find only what code calls at lower addresses; what
/// is left after the last stays with the function before it. A guess.
const MOST_ROUNDS: usize = 4;

/// A range that nothing describes.
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
    /// Offset after the last byte, padding left out.
    pub(crate) end: usize,
    /// What is in it.
    pub(crate) analysis: Analysis,
}

/// What says that a function begins at an address, the most reliable first.
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
    /// A relocated pointer, or a symbol that does not say of what it is.
    Pointer,
    /// Code without unwinding records takes its address: that of a function, of a label in the
    /// midst of a frame, or of data.
    Address,
}

/// What code refers to, as it comes up.
#[derive(Debug)]
pub(crate) struct References {
    /// Where functions may begin.
    pub(crate) starts: Marks,
    /// Where direct jumps and calls from other functions lead.
    pub(crate) entered: Marks,
    /// Where direct calls from other functions lead.
    called: Marks,
    /// Those of them that come from functions which keep something below their stack pointer.
    called_above_data: Marks,
    /// Addresses outside the own function that compiled code takes: compilers take those of
    /// functions alone.
    taken_by_compiler: Marks,
    /// Where relocated pointers and symbols that may be a function's lead.
    pointed: Marks,
    /// Addresses that code takes as values.
    pub(crate) taken: Marks,
    /// Direct jumps between functions, from and to which address.
    pub(crate) jumps: Vec<(u64, u64)>,
}

impl References {
    /// Those that the file's tables make known.
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

    /// The best that leads to the byte at `offset` of a section.
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

    /// Whether a function that keeps something below its stack pointer calls the byte at `offset`
    /// of a section. Compilers use that memory in functions without calls alone; assembly counts on
    /// what it calls.
    pub(crate) fn is_called_above_data(&self, section: usize, offset: usize) -> bool {
        self.called_above_data.next(section, offset, offset + 1).is_some()
    }

    /// Adds what a function refers to. `is_compiled` is whether an unwinding record describes it.
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
                // Into the middle of a function, or at what an indirect jump leads to, perhaps.
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

/// What lies between `known` ranges, which are by address and disjoint.
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

/// The functions in `gaps`, by address, and the number of seeds that were rejected.
///
/// Decodes every byte of the gaps at most [`MOST_ROUNDS`] times.
pub(crate) fn find(
    sections: &[Section<'_>],
    gaps: &[Gap],
    references: &mut References,
    analyser: &mut Analyser,
) -> (Vec<Seeded>, usize) {
    // Section and offset to the end of the range and what is in it, `None` for data.
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

/// Those of `ranges` that are functions, by address, and the number of the others.
fn accept(ranges: BTreeMap<(usize, usize), (usize, Option<Analysis>)>) -> (Vec<Seeded>, usize) {
    let (mut accepted, mut rejected) = (Vec::new(), 0);
    // From the last, so that it is known whether what follows a range is a function.
    let mut next: Option<(usize, usize)> = None;
    for ((section, start), (end, analysis)) in ranges.into_iter().rev() {
        let goes_on = next == Some((section, end));
        let whole = |analysis: &Analysis| analysis.leaves || analysis.falls_through && goes_on;
        let Some(analysis) = analysis.filter(whole) else {
            rejected += 1;
            continue;
        };
        // Padding that execution does not reach belongs to nobody.
        let trimmed = start + usize::try_from(analysis.padding.0).unwrap_or_default();
        let end = if analysis.falls_through { end } else { trimmed };
        accepted.push(Seeded { section, start, end, analysis });
        next = Some((section, start));
    }
    accepted.reverse();
    (accepted, rejected)
}

/// The analysis of a range that may be a function, if what follows is one where it goes on there;
/// `None` if it is data. What it refers to counts only if it is code.
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
