//! `dimmer observe --function`: functions that the user names, in what a program loads from the start.

use std::path::PathBuf;

use anyhow::Context;
use dimmer_hook::is_own_ground;
use dimmer_host::root::Root;
use tempfile::TempDir;

use crate::scan::document::{FileScan, WideFunction};
use crate::{bad_input, launch, scan};

/// How many names like a wrong one are told.
const NEAREST: usize = 3;

/// Whether the user may mean this function: by its symbol, or as `dimmer scan` shows it.
pub(super) fn is_named(function: &WideFunction, names: &[String]) -> bool {
    let title = function.name.is_some().then(|| scan::text::title(function));
    let is = |name: &String| function.name.as_ref() == Some(name) || title.as_ref() == Some(name);
    names.iter().any(is)
}

/// A directory of plans by which these functions are hooked, and nothing else.
pub(super) fn plans(program: &launch::Program, names: &[String]) -> anyhow::Result<TempDir> {
    let scanned = |loaded: launch::Loaded| -> Option<(PathBuf, FileScan)> {
        let file = loaded.file.canonicalize().ok()?;
        let scan = scan::scan_narrow_too(&Root::live(), &file).ok()?;
        Some((file, scan))
    };
    let files: Vec<(PathBuf, FileScan)> =
        program.loaded().into_iter().filter_map(scanned).collect();
    for name in names {
        check(name, &files, &program.file.display().to_string())?;
    }
    let directory = tempfile::tempdir().context("cannot make a directory for plans")?;
    let is_own = |scan: &FileScan| is_own_ground(scan.soname.as_deref().unwrap_or_default());
    for (file, scan) in files.iter().filter(|(_, scan)| !is_own(scan)) {
        let named = scan.wide_functions.iter().filter(|function| is_named(function, names));
        dimmer_hook::keep_plan(file, named.flat_map(entries).collect(), directory.path())
            .context("cannot write what to hook")?;
    }
    Ok(directory)
}

/// Whether there is a function of this name that can be hooked.
fn check(name: &str, files: &[(PathBuf, FileScan)], program: &str) -> anyhow::Result<()> {
    let wanted = [name.to_owned()];
    let mut problem = None;
    for (file, scan) in files {
        for function in scan.wide_functions.iter().filter(|function| is_named(function, &wanted)) {
            if is_own_ground(scan.soname.as_deref().unwrap_or_default()) {
                problem = Some("hooks themselves run on this library".to_owned());
            } else if entries(function).next().is_some() {
                return Ok(());
            } else {
                problem.clone_from(&function.unhookable_why);
            }
            problem = problem.map(|why| format!("`{name}` of {}: {why}", file.display()));
        }
    }
    if let Some(why) = problem {
        return Err(bad_input(format!("cannot hook {why}")));
    }
    let known = files.iter().flat_map(|(_, scan)| &scan.wide_functions);
    let nearest = nearest(name, known.filter(|one| one.name.is_some()).map(scan::text::title));
    let hint = if nearest.is_empty() {
        "`dimmer scan --libraries` lists those with wide-vector code".to_owned()
    } else {
        format!("the nearest are {}", nearest.join(", "))
    };
    Err(bad_input(format!(
        "no function `{name}` in {program} or the libraries that it needs; {hint}"
    )))
}

/// The entries of a function that can be hooked, and how many bytes each takes.
fn entries(function: &WideFunction) -> impl Iterator<Item = (u64, u8)> + '_ {
    let inner = function.entries.iter().map(|entry| (entry.address, entry.hook_bytes));
    let all = [(function.address, function.hook_bytes)].into_iter().chain(inner);
    all.filter_map(|(address, bytes)| Some((address, bytes?)))
}

/// The names that are most like this one, the best first; none that have little in common with it.
fn nearest(name: &str, known: impl Iterator<Item = String>) -> Vec<String> {
    const ALIKE: f64 = 0.8;
    let likeness = |other: String| (strsim::jaro_winkler(name, &other), other);
    let mut alike: Vec<(f64, String)> =
        known.map(likeness).filter(|(likeness, _)| *likeness >= ALIKE).collect();
    alike.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    alike.dedup_by(|a, b| a.1 == b.1);
    alike.into_iter().take(NEAREST).map(|(_, name)| format!("`{name}`")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_names_come_first_and_others_not_at_all() {
        let known = ["memcpy", "poly1305_block", "poly1305_blocks_avx512", "poly1305_blocks"];
        let found = nearest("poly1305_bloks", known.iter().map(|name| (*name).to_owned()));
        assert_eq!(found, ["`poly1305_blocks`", "`poly1305_block`", "`poly1305_blocks_avx512`"]);
        assert!(nearest("xyz", known.iter().map(|name| (*name).to_owned())).is_empty());
    }
}
