//! Which of the functions to hook are leaf functions: their calls are delegated to another core
//! rather than migrated with their thread.

use std::path::{Path, PathBuf};

use dimmer_host::program;
use dimmer_scan::{Code, Leaves, Scan};
use serde::{Deserialize, Serialize};

use crate::mechanism::How;
use crate::named::Planned;

/// A function whose calls stay, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoLeaf {
    /// Its name, as `dimmer scan` shows it.
    pub title: String,
    /// The reason in the words of [`dimmer_scan::NotLeaf`].
    pub why: String,
}

/// Sets for each entry of these functions whether its calls are delegated, and removes entries
/// whose calls can move neither way. Returns the functions of which no entry is left, with the
/// reason.
pub(crate) fn judge(functions: &mut Vec<Planned>, how: How) -> Vec<NoLeaf> {
    let mut others = Vec::new();
    if !how.delegates {
        return others;
    }
    let mut files: Vec<PathBuf> = functions.iter().map(|planned| planned.file.clone()).collect();
    files.sort_unstable();
    files.dedup();
    for file in files {
        let of_it = |planned: &&mut Planned| planned.file == file;
        let _ = with_leaves(&file, |leaves| {
            for planned in functions.iter_mut().filter(of_it) {
                others.extend(judge_one(planned, leaves, how));
            }
        });
    }
    functions.retain(|planned| !planned.entries.is_empty());
    others
}

/// Sets for each entry of a function whether its calls are delegated. Returns the reason if no
/// entry is left to be hooked.
pub(crate) fn judge_one(
    planned: &mut Planned,
    leaves: &mut Leaves<'_, '_>,
    how: How,
) -> Option<NoLeaf> {
    let mut first = None;
    planned.entries.retain_mut(|entry| match leaves.at(entry.address) {
        Ok(leaf) => {
            entry.leaf = Some(leaf);
            true
        }
        Err(why) => {
            first.get_or_insert(why);
            how.migrates
        }
    });
    let why = first.filter(|_| planned.entries.is_empty())?;
    Some(NoLeaf { title: planned.title.clone(), why: why.to_string() })
}

/// Calls `then` with what is known about a file's functions; `None` if the file cannot be read or
/// scanned.
fn with_leaves<T>(file: &Path, then: impl FnOnce(&mut Leaves<'_, '_>) -> T) -> Option<T> {
    let bytes = program::read(file).ok()?;
    let scan: Scan = dimmer_scan::scan(&bytes).ok()?;
    let code = Code::read(&bytes).ok()?;
    let mut leaves = Leaves::read(&bytes, &code, &scan).ok()?;
    Some(then(&mut leaves))
}
