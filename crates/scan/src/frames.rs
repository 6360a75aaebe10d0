//! Ranges of functions from `.eh_frame`, which also stripped files keep to unwind the stack.
//!
//! Only where functions begin and end is read, and whether they are entered by calls; by the `gimli`
//! crate.

use std::collections::HashMap;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EndianSlice, FrameDescriptionEntry, LittleEndian,
    UnwindContext, UnwindSection as _, X86_64,
};

use crate::error::ScanError;

/// A range that `.eh_frame` describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The first address.
    pub(crate) start: u64,
    /// The address after the last byte.
    pub(crate) end: u64,
    /// Whether the stack at its begin is as a call leaves it, the return address on top. It is not in parts
    /// that a function jumps to, like those that compilers move out of the way, nor in linkage tables.
    pub(crate) called: bool,
}

type Reader<'data> = EndianSlice<'data, LittleEndian>;

/// Every range that `.eh_frame`, lying at `address`, describes; in the file's order.
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
    // Each is read once, however many frames refer to it: one with a long augmentation would
    // otherwise cost its length each time.
    let mut commons = HashMap::new();
    let mut context = UnwindContext::new();
    // Instructions may be shared by many entries and executed for each: no more of them than this.
    let mut budget = bytes.len().saturating_mul(8);
    let mut frames = Vec::new();
    while let Some(entry) = entries.next().map_err(damaged)? {
        let CieOrFde::Fde(partial) = entry else { continue };
        let frame = partial
            .parse(|section, bases, offset| {
                if let Some(common) = commons.get(&offset) {
                    return Clone::clone(common);
                }
                let common = section.cie_from_offset(bases, offset);
                commons.insert(offset, common.clone());
                common
            })
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
            frames.push(Frame { start, end, called });
        }
    }
    Ok(frames)
}

/// Whether the frame's first row says that the stack's top is what lies eight bytes below the caller's.
fn is_called<'data>(
    frame: &FrameDescriptionEntry<Reader<'data>>,
    section: &EhFrame<Reader<'data>>,
    bases: &BaseAddresses,
    context: &mut UnwindContext<usize>,
) -> bool {
    let Ok(mut table) = frame.rows(section, bases, context) else { return false };
    let Ok(Some(row)) = table.next_row() else { return false };
    *row.cfa() == CfaRule::RegisterAndOffset { register: X86_64::RSP, offset: 8 }
}
