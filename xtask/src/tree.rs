//! Reads the repository: its Rust sources, its documents and Cargo's metadata.
//!
//! Every function takes the root, so that the checkers' own tests can pass a made-up tree.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::{Metadata, MetadataCommand};

/// The only target that Dimmer is built for. Dependencies of other targets are not checked.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A text file of the repository.
#[derive(Debug)]
pub(crate) struct TextFile {
    /// Path below the root, with `/` between its parts.
    pub(crate) path: String,
    /// The content of the file.
    pub(crate) text: String,
}

impl TextFile {
    /// The file's last path component.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// The `//!` lines at the start of the file.
    pub(crate) fn header(&self) -> impl Iterator<Item = &str> {
        self.text.lines().take_while(|line| line.starts_with("//!"))
    }
}

/// Something that the tree must not contain, and where it is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem(String);

impl Problem {
    /// A problem at `place`, a path or `path:line`.
    pub(crate) fn new(place: impl std::fmt::Display, what: impl std::fmt::Display) -> Self {
        Self(format!("{place}: {what}"))
    }
}

/// Turns a list of problems into success or one error that shows them all.
///
/// # Errors
/// When there is at least one problem.
pub(crate) fn none_of(problems: &[Problem]) -> Result<()> {
    for Problem(text) in problems {
        eprintln!("{text}");
    }
    match problems.len() {
        0 => Ok(()),
        count => bail!("{count} problem(s) found"),
    }
}

/// The root of the repository from which Cargo runs this program or its tests.
///
/// Found at run time: clones that share a `CARGO_TARGET_DIR` share the compiled program too.
pub(crate) fn root() -> PathBuf {
    let manifest = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    manifest.and_then(|xtask| Some(xtask.parent()?.to_owned())).unwrap_or_else(|| ".".into())
}

/// All Rust sources of the workspace, sorted by path.
///
/// # Errors
/// When a directory or file cannot be read.
pub(crate) fn rust_files(root: &Path) -> Result<Vec<TextFile>> {
    files_below(root, &["crates", "xtask"], "rs")
}

/// The Markdown documents that people read: those in the root, in `docs` and in `models`.
///
/// # Errors
/// When a directory or file cannot be read.
pub(crate) fn documents(root: &Path) -> Result<Vec<TextFile>> {
    let mut found = files_below(root, &["docs", "models"], "md")?;
    for entry in sorted_entries(root)? {
        if entry.is_file() && entry.extension().is_some_and(|extension| extension == "md") {
            found.push(read(root, &entry)?);
        }
    }
    Ok(found)
}

/// All files with `extension` in or below the given directories of `root`, sorted by path. Missing
/// directories count as empty. Hidden ones and `target` are not entered.
///
/// # Errors
/// When a directory or file cannot be read.
pub(crate) fn files_below(
    root: &Path,
    directories: &[&str],
    extension: &str,
) -> Result<Vec<TextFile>> {
    let mut found = Vec::new();
    let mut pending: Vec<PathBuf> = directories
        .iter()
        .rev()
        .map(|name| root.join(name))
        .filter(|directory| directory.is_dir())
        .collect();
    while let Some(path) = pending.pop() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                pending.extend(sorted_entries(&path)?.into_iter().rev());
            }
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(read(root, &path)?);
        }
    }
    Ok(found)
}

/// The output of `cargo metadata` for the workspace at `root`; `options` are passed on.
///
/// # Errors
/// When Cargo fails, for example because `Cargo.lock` does not match the manifests.
pub(crate) fn metadata(root: &Path, options: &[&str]) -> Result<Metadata> {
    let options = options.iter().chain(&["--filter-platform", TARGET]);
    MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .other_options(options.map(ToString::to_string).collect::<Vec<_>>())
        .exec()
        .context("cannot read the workspace with `cargo metadata`")
}

fn sorted_entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let in_directory = || format!("cannot list {}", directory.display());
    let mut entries = fs::read_dir(directory)
        .with_context(in_directory)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()
        .with_context(in_directory)?;
    entries.sort();
    Ok(entries)
}

fn read(root: &Path, path: &Path) -> Result<TextFile> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let path = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
    Ok(TextFile { path, text })
}

/// Makes trees for the checkers' tests.
#[cfg(test)]
pub(crate) mod fixture {
    use std::fs;

    use tempfile::TempDir;

    /// A directory with the files of `fixture`, each introduced by a line `//- PATH`.
    pub(crate) fn tree(fixture: &str) -> TempDir {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for file in fixture.split("//- ").skip(1) {
            let (path, text) = file.split_once('\n').expect("a line after the path");
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            fs::write(path, text).expect("a file");
        }
        directory
    }
}
