//! Cached scans, as files named by build id, length, and the sources of names.
//!
//! The build id identifies the linked file; a file that was stripped later keeps it, but has
//! another length. If a debug file or another file with names is installed, the file is scanned
//! again. A cache that cannot be read or written is ignored: a scan takes a fraction of a second.

use std::path::PathBuf;

use dimmer_report::scan::FileScan;

use crate::{input, state};

/// Changes whenever the same bytes may give another scan.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-8");

/// What the scan of a file depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    /// Without a build id, nothing is cached.
    pub(crate) build_id: Option<&'a [u8]>,
    /// Length in bytes.
    pub(crate) length: usize,
    /// Identifies the files that names come from.
    pub(crate) names: &'a str,
}

pub(crate) fn read(key: Key<'_>) -> Option<FileScan> {
    let text = input::kept(&path(key)?).ok()?;
    serde_json::from_str(&text).ok()
}

pub(crate) fn write(key: Key<'_>, scan: &FileScan) {
    if let (Some(path), Ok(text)) = (path(key), serde_json::to_string(scan)) {
        state::cache(&path, &text);
    }
}

fn path(key: Key<'_>) -> Option<PathBuf> {
    let id: String = key.build_id?.iter().map(|byte| format!("{byte:02x}")).collect();
    let (length, names) = (key.length, key.names);
    Some(state::scans()?.join(VERSION).join(format!("{id}-{length}{names}.json")))
}
