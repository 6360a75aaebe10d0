//! Names of functions whose file was stripped, from other files of this machine.
//!
//! In the order of trust: the file's own symbols, debug files of this machine, debug files of the
//! servers that the user has named, static archives of the same library.

use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use dimmer_host::bounded_file::BoundedFileError;
use dimmer_host::debuginfod::Debuginfod;
use dimmer_host::root::Root;
use dimmer_host::{program, symbols};
use dimmer_scan::{Archive, Code, DebugLink, Names, Scan, ScanError};

/// Longer files are not read for names (bytes). A guess: debug files of browsers are longer.
const LONGEST: u64 = 1 << 30;

/// A function's name, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The symbol.
    pub symbol: String,
    /// `symbol`, `debug` or `archive`.
    pub source: &'static str,
}

impl Name {
    /// The name of a function in the symbols of its own file.
    #[must_use]
    pub fn own(function: &dimmer_scan::Function) -> Option<Self> {
        function.name.clone().map(|symbol| Self { symbol, source: "symbol" })
    }
}

/// The scan of a file with all its functions, also those that are not wide, and their names.
#[derive(Clone, Debug)]
pub struct NamedScan {
    /// The scan; its functions have their names.
    pub scan: Scan,
    /// The source of each function's name.
    pub names: Vec<Option<Name>>,
}

/// Why a file's functions are not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamesError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] BoundedFileError),
    /// It is damaged, or no program or library.
    #[error(transparent)]
    Scan(#[from] ScanError),
}

/// Scans a file, and names its functions.
///
/// # Errors
/// [`NamesError`].
pub fn scan(root: &Root, file: &Path) -> Result<NamedScan, NamesError> {
    let bytes = program::read(file)?;
    let mut named = named(root, file, &bytes)?;
    named.scan.check_narrow(&bytes)?;
    Ok(named)
}

/// Scans the bytes of a file, without the checks of entries of functions that are not wide, and
/// names its functions.
///
/// # Errors
/// [`ScanError`].
pub(crate) fn named(root: &Root, file: &Path, bytes: &[u8]) -> Result<NamedScan, ScanError> {
    let mut scan = dimmer_scan::scan(bytes)?;
    let ranges: Vec<_> = scan.functions.iter().map(|function| function.addresses.clone()).collect();
    let mut names: Vec<_> = scan.functions.iter().map(Name::own).collect();
    Sources::find(root, file, bytes).name(bytes, &ranges, &mut names);
    for (function, name) in scan.functions.iter_mut().zip(&names) {
        function.name = name.as_ref().map(|name| name.symbol.clone());
    }
    Ok(NamedScan { scan, names })
}

/// A text that changes when this file, or a file with names of its functions, is replaced. `None`
/// if the file cannot be read.
pub(crate) fn stamp(root: &Root, file: &Path) -> Option<String> {
    let names = Sources::find(root, file, &program::read(file).ok()?).stamp();
    Some(format!("{}{names}", identity(file).ok()?))
}

/// Identifies this file in its present state: the identity also changes if the code was changed
/// while the build id and the times that can be set stayed the same.
pub(crate) fn identity(file: &Path) -> std::io::Result<String> {
    let file = std::fs::metadata(file)?;
    let (seconds, rest) = (file.ctime(), file.ctime_nsec());
    Ok(format!("{}-{}-{}-{seconds}.{rest}", file.dev(), file.ino(), file.len()))
}

/// The sources of names for one file's functions.
#[derive(Debug)]
pub struct Sources {
    build_id: Option<Vec<u8>>,
    link: Option<DebugLink>,
    debug_files: Vec<PathBuf>,
    servers: Option<Debuginfod>,
    archive: Option<PathBuf>,
}

impl Sources {
    /// Searches for files with names for `bytes`, which were read from `file`. Opens none of them,
    /// and asks no server.
    #[must_use]
    pub fn find(root: &Root, file: &Path, bytes: &[u8]) -> Self {
        let own = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        let origin = own.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
        // A file whose build id or link is damaged counts as having none.
        let build_id = dimmer_scan::build_id(bytes).ok().flatten();
        let link = dimmer_scan::debug_link(bytes).ok().flatten();
        let name = link.as_ref().map(|link| link.name.as_str());
        let debug_files = symbols::debug_files(root, &origin, build_id.as_deref(), name);
        let soname = dimmer_scan::soname(bytes).ok().flatten();
        let archive = soname.and_then(|soname| symbols::archive(root, &origin, &soname));
        let servers = Debuginfod::of_environment().filter(|_| build_id.is_some());
        Self { build_id, link, debug_files, servers, archive }
    }

    /// A text that changes when other files are found, one of them is replaced, or servers may be
    /// asked.
    #[must_use]
    pub fn stamp(&self) -> String {
        let files = self.debug_files.iter().chain(&self.archive);
        let stamps = files.filter_map(|file| {
            let metadata = std::fs::metadata(file).ok()?;
            Some(format!("-{:x}.{:x}", metadata.len(), metadata.mtime()))
        });
        stamps.chain(self.servers.iter().map(|_| "-debuginfod".to_owned())).collect()
    }

    /// Names the functions of `bytes` at these addresses that have no name. A file that cannot be
    /// read, or is not the right one, is ignored. Servers are asked if debug files of this machine
    /// leave functions without a name. Returns whether they had none to add: then another time may
    /// give more names.
    pub fn name(&self, bytes: &[u8], ranges: &[Range<u64>], names: &mut [Option<Name>]) -> bool {
        let is_complete = |names: &[Option<Name>]| names.iter().all(Option::is_some);
        let give = |found: &Names<'_>, source: &'static str, names: &mut [Option<Name>]| {
            for (range, name) in ranges.iter().zip(names).filter(|(_, name)| name.is_none()) {
                let symbol = found.at(range.start);
                *name = symbol.map(|symbol| Name { symbol: symbol.to_owned(), source });
            }
        };
        let by_debug_file = |file: &Path, names: &mut [Option<Name>]| {
            if let Some(debug) = read(file).filter(|debug| self.is_of(debug))
                && let Ok(found) = Names::read(&debug)
            {
                give(&found, "debug", names);
                return true;
            }
            false
        };
        for debug_file in &self.debug_files {
            if !is_complete(names) {
                by_debug_file(debug_file, names);
            }
        }
        if !is_complete(names)
            && let Ok(Some(debug)) = dimmer_scan::embedded_debug_file(bytes)
            && let Ok(found) = Names::read(&debug)
        {
            give(&found, "debug", names);
        }
        let mut may_have_more = false;
        if !is_complete(names)
            && let (Some(servers), Some(build_id)) = (&self.servers, &self.build_id)
        {
            let file = servers.find(build_id);
            may_have_more = !file.is_some_and(|file| by_debug_file(&file, names));
        }
        if !is_complete(names)
            && let Some(archive) = self.archive.as_deref().and_then(read)
            && let (Ok(archive), Ok(code)) = (Archive::read(&archive), Code::read(bytes))
        {
            give(&archive.names(&code, ranges), "archive", names);
        }
        may_have_more
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

fn read(file: &Path) -> Option<Vec<u8>> {
    dimmer_host::bounded_file::read(file, LONGEST).ok()
}
