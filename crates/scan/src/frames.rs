//! Ranges of functions from `.eh_frame`, which also stripped files keep to unwind the stack.
//!
//! Only where functions begin and end is read, not how to unwind; by the `gimli` crate.

use std::collections::HashMap;

use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection as _};

use crate::error::ScanError;

/// Begin and end of every range that `.eh_frame`, lying at `address`, describes; in the file's order.
///
/// # Errors
/// [`ScanError::Damaged`] at the first entry that cannot be read.
pub(crate) fn ranges(address: u64, bytes: &[u8]) -> Result<Vec<(u64, u64)>, ScanError> {
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
    let mut ranges = Vec::new();
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
            ranges.push((start, end));
        }
    }
    Ok(ranges)
}
