//! The rules of ARCHITECTURE.md and CONTRIBUTING.md that a program can check.
//!
//! [`sources`] checks the Rust files, [`cycles`] their imports, [`orderings`] their atomic
//! operations, [`edges`] the dependencies, [`documents`] the documentation, [`links`] its links,
//! [`keys`] what it says of JSON, [`promises`] that keys of releases stay, and [`words`] the words
//! that all of them use. What the compiler or clippy can check is left to them. Each rule has a
//! test that shows it failing on a made-up tree: a checker that never fails checks nothing.

mod cycles;
mod documents;
mod edges;
mod keys;
pub(crate) mod links;
mod orderings;
mod product;
pub(crate) mod promises;
mod sources;
mod words;

use std::path::Path;

use anyhow::Result;

use crate::header;
use crate::tree::{self, Problem};

/// Checks the tree at `root` and prints the problems in it.
///
/// # Errors
/// When a rule is broken, or the tree cannot be read.
pub(crate) fn run(root: &Path) -> Result<()> {
    tree::none_of(&problems(root)?)
}

fn problems(root: &Path) -> Result<Vec<Problem>> {
    let metadata = tree::metadata(root, &["--locked"])?;
    let sources = tree::rust_files(root)?;
    let mut problems = sources::check(&sources);
    problems.extend(cycles::check(&sources));
    problems.extend(orderings::check(&sources));
    problems.extend(edges::check(&metadata)?);
    problems.extend(documents::check(root, &metadata)?);
    problems.extend(links::check(&tree::documents(root)?));
    problems.extend(header::check(root, &metadata)?);
    let mut files = sources;
    let documents = tree::documents(root)?;
    problems.extend(keys::check(&files, &documents));
    problems.extend(promises::problems(root, &files, &documents)?);
    files.extend(documents);
    for extension in ["toml", "sh", "c", "cpp", "h", "hpp", "in"] {
        let directories = ["ci", "crates", "models", "scenarios"];
        files.extend(tree::files_below(root, &directories, extension)?);
    }
    problems.extend(words::check(&files));
    Ok(problems)
}

#[cfg(test)]
mod tests {
    use crate::tree;

    #[test]
    fn this_repository_keeps_its_rules() {
        assert_eq!(super::problems(&tree::root()).expect("a readable tree"), []);
    }
}
