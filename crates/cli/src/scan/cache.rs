//! Scans that were made before, as files named by build id and length.
//!
//! The build id stands for what was linked; a file stripped afterwards keeps it, but not its length.
//! A cache that cannot be read or written is none: scanning takes a fraction of a second.

use std::path::PathBuf;

use super::document::FileScan;
use crate::state;

/// Changes whenever the same bytes may give another scan.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-2");

pub(crate) fn read(build_id: Option<&[u8]>, length: usize) -> Option<FileScan> {
    let text = std::fs::read_to_string(path(build_id?, length)?).ok()?;
    serde_json::from_str(&text).ok()
}

pub(crate) fn write(build_id: Option<&[u8]>, length: usize, scan: &FileScan) {
    let path = build_id.and_then(|id| path(id, length));
    if let (Some(path), Ok(text)) = (path, serde_json::to_string(scan)) {
        // Without a cache the next scan takes as long as this one, nothing else.
        let _ = state::replace(&path, &text);
    }
}

fn path(build_id: &[u8], length: usize) -> Option<PathBuf> {
    let id: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(state::scans()?.join(VERSION).join(format!("{id}-{length}.json")))
}
