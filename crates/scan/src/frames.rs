//! Ranges of functions from `.eh_frame`, which stripped files also keep, to unwind the stack.
//!
//! Reads only where functions start and end, and whether they are entered by calls. Uses the
//! `gimli` crate.

use std::collections::HashMap;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, CommonInformationEntry, EhFrame, EhFrameOffset, EndianSlice,
    FrameDescriptionEntry, LittleEndian, UnwindContext, UnwindSection as _, UnwindTableRow, X86_64,
};

use crate::error::ScanError;

/// A range that `.eh_frame` describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The first address.
    pub(crate) start: u64,
    /// The address after the last byte.
    pub(crate) end: u64,
    /// Whether the stack at its start is as a call leaves it, with the return address on top. This
    /// is not so in linkage tables, nor in parts that a function jumps to, like those that
    /// compilers move out of the way.
    pub(crate) called: bool,
    /// Offset of its entry in the section.
    entry: usize,
}

type Reader<'data> = EndianSlice<'data, LittleEndian>;

/// Every range that an `.eh_frame` at `address` describes, in the order of the file.
///
/// # Errors
/// [`ScanError::Damaged`] at the first entry that cannot be read.
pub(crate) fn frames(address: u64, bytes: &[u8]) -> Result<Vec<Frame>, ScanError> {
    let section = EhFrame::new(bytes, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(address);
    let damaged = |error: gimli::Error| ScanError::Damaged {
        place: ".eh_frame".to_owned(),
        problem: error.to_string(),
    };
    let mut entries = section.entries(&bases);
    let mut commons = Commons::default();
    let mut context = UnwindContext::new();
    // Many entries may share instructions, which are executed for each. This limits their total.
    let mut budget = bytes.len().saturating_mul(8);
    let mut frames = Vec::new();
    while let Some(entry) = entries.next().map_err(damaged)? {
        let CieOrFde::Fde(partial) = entry else { continue };
        let frame = partial
            .parse(|section, bases, offset| commons.get(section, bases, offset))
            .map_err(damaged)?;
        let start = frame.initial_address();
        if let Some(end) = start.checked_add(frame.len()).filter(|end| *end > start) {
            let cost = frame.entry_len().saturating_add(frame.cie().entry_len());
            let called = match budget.checked_sub(cost) {
                Some(rest) => {
                    budget = rest;
                    is_called(&frame, &section, &bases, &mut context)
                }
                None => false,
            };
            frames.push(Frame { start, end, called, entry: frame.offset() });
        }
    }
    Ok(frames)
}

/// Whether the return address is on top of the stack in the frame's first row.
fn is_called<'data>(
    frame: &FrameDescriptionEntry<Reader<'data>>,
    section: &EhFrame<Reader<'data>>,
    bases: &BaseAddresses,
    context: &mut UnwindContext<usize>,
) -> bool {
    let Ok(mut table) = frame.rows(section, bases, context) else { return false };
    table.next_row().is_ok_and(|row| row.is_some_and(is_as_called))
}

/// Whether the return address is on top of the stack in a row.
fn is_as_called(row: &UnwindTableRow<usize>) -> bool {
    *row.cfa() == CfaRule::RegisterAndOffset { register: X86_64::RSP, offset: 8 }
}

/// Parts that frames have in common, by offset. Each is read once, even if many frames refer to it:
/// one with a long augmentation would otherwise cost its length each time.
#[derive(Default)]
struct Commons<'data>(HashMap<EhFrameOffset, gimli::Result<CommonInformationEntry<Reader<'data>>>>);

impl<'data> Commons<'data> {
    fn get(
        &mut self,
        section: &EhFrame<Reader<'data>>,
        bases: &BaseAddresses,
        offset: EhFrameOffset,
    ) -> gimli::Result<CommonInformationEntry<Reader<'data>>> {
        let read = || section.cie_from_offset(bases, offset);
        self.0.entry(offset).or_insert_with(read).clone()
    }
}

/// For each of `places`, ascending addresses, whether the stack there is as a call leaves it. False
/// where there is no frame, or none that can be read.
///
/// `frames` are those of the section, by address. Each is read at most once.
pub(crate) fn called_at(address: u64, bytes: &[u8], frames: &[Frame], places: &[u64]) -> Vec<bool> {
    let section = EhFrame::new(bytes, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(address);
    let (mut commons, mut context) = (Commons::default(), UnwindContext::new());
    let mut budget = bytes.len().saturating_mul(4);
    let mut called = vec![false; places.len()];
    let frame_at = |place: u64| {
        let after = frames.partition_point(|frame| frame.start <= place);
        after.checked_sub(1).filter(|index| place < frames[*index].end)
    };
    let mut first = 0;
    while let Some(place) = places.get(first) {
        let frame = frame_at(*place);
        let same = places[first..].iter().take_while(|place| frame_at(**place) == frame).count();
        let range = first..first + same;
        first = range.end;
        let Some(frame) = frame else { continue };
        let entry = section.fde_from_offset(
            &bases,
            EhFrameOffset(frames[frame].entry),
            |section, bases, offset| commons.get(section, bases, offset),
        );
        let Ok(entry) = entry else { continue };
        let cost = entry.entry_len().saturating_add(entry.cie().entry_len());
        let Some(rest) = budget.checked_sub(cost) else { break };
        budget = rest;
        let Ok(mut table) = entry.rows(&section, &bases, &mut context) else { continue };
        let mut next = range.start;
        while let Ok(Some(row)) = table.next_row() {
            while next < range.end && places[next] < row.end_address() {
                called[next] = row.contains(places[next]) && is_as_called(row);
                next += 1;
            }
            if next == range.end {
                break;
            }
        }
    }
    called
}
