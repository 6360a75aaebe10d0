//! Which of the functions to hook are leaf functions, whose calls are lent to another core rather
//! than moved with their thread.

use std::path::{Path, PathBuf};

use dimmer_scan::{Code, Leaves, Scan};
use serde::{Deserialize, Serialize};

use super::How;
use crate::input;
use crate::named::Planned;

/// A function whose calls stay, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NoLeaf {
    pub(super) title: String,
    /// As [`dimmer_scan::NotLeaf`] says it.
    pub(super) why: String,
}

/// Says of each entry of these functions whether its calls are lent, and leaves out those whose
/// calls go neither way. Of functions of which nothing is left it is told why.
pub(super) fn judge(functions: &mut Vec<Planned>, how: How) -> Vec<NoLeaf> {
    let mut others = Vec::new();
    if !how.offloads {
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

/// Says of each entry of a function whether its calls are lent; why those of none are, if nothing
/// is left to be hooked.
pub(super) fn judge_one(
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
            how.borrows
        }
    });
    let why = first.filter(|_| planned.entries.is_empty())?;
    Some(NoLeaf { title: planned.title.clone(), why: why.to_string() })
}

/// Calls `then` with what can be told of a file's functions; `None` if it cannot be read or
/// scanned.
fn with_leaves<T>(file: &Path, then: impl FnOnce(&mut Leaves<'_, '_>) -> T) -> Option<T> {
    let bytes = input::program(file).ok()?;
    let scan: Scan = dimmer_scan::scan(&bytes).ok()?;
    let code = Code::read(&bytes).ok()?;
    let mut leaves = Leaves::read(&bytes, &code, &scan).ok()?;
    Some(then(&mut leaves))
}
