//! Names of functions whose file was stripped, from other files of this machine.
//!
//! In the order of trust: the file's own symbols, debug files, static archives of the same library.

use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use dimmer_host::root::Root;
use dimmer_host::symbols;
use dimmer_report::scan::FileScan;
use dimmer_scan::{Archive, Code, DebugLink, Names};

/// Longer files are not read for names (bytes). A guess: debug files of browsers are longer.
const LONGEST: u64 = 1 << 30;

/// The sources of names for one file's functions.
#[derive(Debug)]
pub(crate) struct Sources {
    build_id: Option<Vec<u8>>,
    link: Option<DebugLink>,
    debug_files: Vec<PathBuf>,
    archive: Option<PathBuf>,
}

impl Sources {
    /// Searches for files with names for `bytes`, which were read from `file`. Opens none of them.
    pub(crate) fn find(root: &Root, file: &Path, bytes: &[u8]) -> Self {
        let own = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        let origin = own.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
        // A file whose build id or link is damaged counts as having none.
        let build_id = dimmer_scan::build_id(bytes).ok().flatten();
        let link = dimmer_scan::debug_link(bytes).ok().flatten();
        let name = link.as_ref().map(|link| link.name.as_str());
        let debug_files = symbols::debug_files(root, &origin, build_id.as_deref(), name);
        let soname = dimmer_scan::soname(bytes).ok().flatten();
        let archive = soname.and_then(|soname| symbols::archive(root, &origin, &soname));
        Self { build_id, link, debug_files, archive }
    }

    /// A text that changes when other files are found, or one of them is replaced.
    pub(crate) fn stamp(&self) -> String {
        let files = self.debug_files.iter().chain(&self.archive);
        let stamps = files.filter_map(|file| {
            let metadata = std::fs::metadata(file).ok()?;
            Some(format!("-{:x}.{:x}", metadata.len(), metadata.mtime()))
        });
        stamps.collect()
    }

    /// Names the functions that have no name. A file that cannot be read, or is not the right one,
    /// is ignored.
    pub(crate) fn name(&self, bytes: &[u8], scan: &mut FileScan) {
        for debug_file in &self.debug_files {
            if !is_complete(scan)
                && let Some(debug) = read(debug_file).filter(|debug| self.is_of(debug))
                && let Ok(names) = Names::read(&debug)
            {
                give(&names, "debug", scan);
            }
        }
        if !is_complete(scan)
            && let Ok(Some(debug)) = dimmer_scan::embedded_debug_file(bytes)
            && let Ok(names) = Names::read(&debug)
        {
            give(&names, "debug", scan);
        }
        if !is_complete(scan)
            && let Some(archive) = self.archive.as_deref().and_then(read)
            && let (Ok(archive), Ok(code)) = (Archive::read(&archive), Code::read(bytes))
        {
            let functions = scan.wide_functions.iter();
            let ranges: Vec<Range<u64>> = functions
                .map(|function| function.address..function.address.saturating_add(function.size))
                .collect();
            give(&archive.names(&code, &ranges), "archive", scan);
        }
    }

    /// Whether a debug file belongs to this file.
    fn is_of(&self, debug: &[u8]) -> bool {
        let build_id = dimmer_scan::build_id(debug).ok().flatten();
        match (&self.build_id, build_id) {
            (Some(own), Some(other)) => *own == other,
            _ => self.link.as_ref().is_some_and(|link| link.is_to(debug)),
        }
    }
}

fn is_complete(scan: &FileScan) -> bool {
    scan.wide_functions.iter().all(|function| function.name.is_some())
}

fn give(names: &Names<'_>, source: &str, scan: &mut FileScan) {
    for function in scan.wide_functions.iter_mut().filter(|function| function.name.is_none()) {
        if let Some(name) = names.at(function.address) {
            function.name = Some(name.to_owned());
            function.name_source = Some(source.to_owned());
        }
    }
}

fn read(file: &Path) -> Option<Vec<u8>> {
    dimmer_host::bounded_file::read(file, LONGEST).ok()
}
