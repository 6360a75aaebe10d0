//! Dimmer's library in the programs that are started: where it lies, and how the loader gets it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use dimmer_host::filters::{FILTERS, Filters};

use crate::{LaunchError, within};

/// The library to preload. It lies beside the command, where libraries of installed programs lie,
/// or within the command.
const LIBRARY: &str = "libdimmer_preload.so";

/// The library that observes locks. It lies there too.
const BOOST_LIBRARY: &str = "libdimmer_boost.so";

/// The variable that lists libraries for the loader to load first, see ld.so(8).
const PRELOAD: &str = "LD_PRELOAD";

/// Directories that may contain the library, relative to the command's own directory.
const PLACES: [&str; 3] = ["", "deps", "../lib/dimmer"];

/// Makes the loader load Dimmer's library into the program that `command` starts. No marks are
/// hooked; [`crate::marks::set_environment`] comes after this.
///
/// # Errors
/// As [`library`].
pub(crate) fn preload(command: &mut Command) -> Result<(), LaunchError> {
    // Those of a run around this one.
    let own =
        [dimmer_hook::MARKS, dimmer_hook::PHASES, dimmer_hook::INTERVAL, dimmer_hook::SECTIONS];
    for variable in own {
        command.env_remove(variable);
    }
    add(command, &library()?);
    Ok(())
}

/// Makes the loader load the library that observes locks into the program that `command` starts.
///
/// # Errors
/// As [`library`].
pub(crate) fn preload_boost(command: &mut Command) -> Result<(), LaunchError> {
    add(command, &find(BOOST_LIBRARY)?);
    Ok(())
}

/// Puts a library before those that the program would be started with, and informs it of the
/// filters of system calls that were there before.
fn add(command: &mut Command, library: &Path) {
    match Filters::of_process() {
        Some(filters) => command.env(FILTERS, filters.to_string()),
        None => command.env_remove(FILTERS),
    };
    let set = command.get_envs().find(|(name, _)| *name == PRELOAD);
    let existing = match set {
        Some((_, value)) => value.map(OsStr::to_owned),
        None => std::env::var_os(PRELOAD),
    };
    command.env(PRELOAD, with_first(library, existing));
}

/// Finds the library to preload.
///
/// # Errors
/// [`LaunchError::NoLibrary`], [`LaunchError::LibraryPath`], [`LaunchError::Unpack`], or the
/// program's own file is not known.
pub fn library() -> Result<PathBuf, LaunchError> {
    find(LIBRARY)
}

fn find(library: &'static str) -> Result<PathBuf, LaunchError> {
    find_for(&std::env::current_exe().map_err(LaunchError::OwnFile)?, library)
}

/// Finds a library for the program in the file `own`.
fn find_for(own: &Path, library: &'static str) -> Result<PathBuf, LaunchError> {
    let directory = own.parent().unwrap_or(Path::new("/"));
    let mut places = PLACES.iter().map(|place| directory.join(place).join(library));
    let beside = places.find(|place| place.is_file());
    if let Some(found) = beside.as_ref().filter(|found| can_be_listed(found)) {
        return Ok(found.clone());
    }
    match (within::unpacked(library), beside) {
        (Some(unpacked), _) => unpacked.map_err(|error| LaunchError::Unpack { library, error }),
        (None, Some(file)) => Err(LaunchError::LibraryPath { file }),
        (None, None) => Err(LaunchError::NoLibrary { library, beside: own.to_path_buf() }),
    }
}

/// Whether the loader's list ([`PRELOAD`]) can have this path: nothing in it separates entries.
pub(crate) fn can_be_listed(path: &Path) -> bool {
    !path.as_os_str().as_encoded_bytes().iter().any(separates)
}

/// Whether a byte separates the entries of [`PRELOAD`], ld.so(8).
fn separates(byte: &u8) -> bool {
    matches!(byte, b':' | b' ')
}

/// The value of [`PRELOAD`] that makes the loader take `library` first, and then what is in
/// `existing`, the value so far.
fn with_first(library: &Path, existing: Option<OsString>) -> OsString {
    let Some(existing) = existing.filter(|existing| !existing.is_empty()) else {
        return library.as_os_str().to_owned();
    };
    let mut others = existing.as_encoded_bytes().split(separates);
    if others.any(|other| other == library.as_os_str().as_encoded_bytes()) {
        return existing;
    }
    let mut all = library.as_os_str().to_owned();
    all.push(":");
    all.push(existing);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_that_is_added_last_comes_first() {
        let mut command = Command::new("true");
        command.env(PRELOAD, "/l/users.so");
        add(&mut command, Path::new("/l/hooks.so"));
        add(&mut command, Path::new("/l/locks.so"));
        let set = command.get_envs().find_map(|(name, value)| (name == PRELOAD).then_some(value));
        assert_eq!(set.flatten().unwrap(), "/l/locks.so:/l/hooks.so:/l/users.so");
    }

    #[test]
    fn a_library_whose_path_the_loader_would_split_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for (name, is_taken) in [("plain", true), ("with space", false), ("with:colon", false)] {
            let own = directory.path().join(name).join("dimmer");
            let file = own.with_file_name("lib.so");
            std::fs::create_dir(file.parent().unwrap()).unwrap();
            std::fs::write(&file, "").unwrap();
            match find_for(&own, "lib.so") {
                Ok(found) => assert!(is_taken && found == file, "{name}"),
                Err(error) => {
                    assert!(!is_taken, "{name}: {error}");
                    assert!(error.to_string().contains(&file.display().to_string()), "{error}");
                }
            }
        }
    }

    #[test]
    fn library_is_preloaded_once_and_first() {
        let check = |existing: &str, expected: &str| {
            let all = with_first(Path::new("/l/own.so"), Some(existing.into()));
            assert_eq!(all.to_str().unwrap(), expected);
        };
        check("", "/l/own.so");
        check("other.so", "/l/own.so:other.so");
        check("/l/own.so", "/l/own.so");
        check("other.so /l/own.so", "other.so /l/own.so");
        assert_eq!(with_first(Path::new("/l/own.so"), None), "/l/own.so");
    }
}
