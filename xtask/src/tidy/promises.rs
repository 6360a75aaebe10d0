//! Keys of documents that a release had stay until the document's schema has another number.
//!
//! [`FILE`] has them by document: the page that describes it, its schemas, its keys.
//! `cargo xtask promises`, which belongs to a release, adds the new ones. What no release had may
//! change freely.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::keys;
use crate::tree::{self, Problem, TextFile};

/// Where the keys of released documents are, below the root of the repository.
pub(crate) const FILE: &str = "xtask/promises.txt";

const HEADING: &str = "\
# Keys of the documents of released versions: page, schemas, keys. A key goes only with a new number
# of a schema. Written by `cargo xtask promises`.
";

/// A document, as the sources write it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) schemas: BTreeSet<String>,
    pub(super) keys: BTreeSet<String>,
}

/// Documents by the page that describes them.
pub(super) type Documents = BTreeMap<String, Written>;

/// Checks what the sources write against `promised`, the text of [`FILE`].
pub(super) fn check(promised: &str, written: &Documents) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (page, was) in parse(promised) {
        let Some(is) = written.get(&page) else {
            problems.push(Problem::new(FILE, format!("no source writes the document of {page}")));
            continue;
        };
        if is.schemas != was.schemas {
            let what = format!("{page} has other schemas: `cargo xtask promises` notes them");
            problems.push(Problem::new(FILE, what));
            continue;
        }
        for key in was.keys.difference(&is.keys) {
            let schemas = list(&was.schemas);
            let what = format!("{page}: `{key}` is promised by {schemas}: it needs a new number");
            problems.push(Problem::new(FILE, what));
        }
    }
    problems
}

/// Adds to [`FILE`] what the sources write.
///
/// # Errors
/// When a key is gone without a new number, or a file cannot be read or written.
pub(crate) fn run(root: &Path) -> Result<()> {
    let path = root.join(FILE);
    let written = keys::written(&tree::rust_files(root)?, &tree::documents(root)?);
    let promised = std::fs::read_to_string(&path).with_context(|| format!("cannot read {FILE}"))?;
    let is_new =
        |page: &str, was: &Written| written.get(page).is_some_and(|is| is.schemas != was.schemas);
    let mut kept = parse(&promised);
    kept.retain(|page, was| !is_new(page, was));
    tree::none_of(&check(&text(&kept), &written))?;
    std::fs::write(&path, text(&written)).with_context(|| format!("cannot write {FILE}"))
}

fn text(documents: &Documents) -> String {
    let mut text = HEADING.to_owned();
    for (page, Written { schemas, keys }) in documents {
        let _ = writeln!(text, "{page}: {}: {}", list(schemas), list(keys));
    }
    text
}

fn list(words: &BTreeSet<String>) -> String {
    words.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
}

fn parse(text: &str) -> Documents {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let parts = lines.filter_map(|line| {
        let mut parts = line.splitn(3, ": ");
        Some((parts.next()?, parts.next()?, parts.next().unwrap_or_default()))
    });
    parts
        .map(|(page, schemas, keys)| {
            (page.to_owned(), Written { schemas: words(schemas), keys: words(keys) })
        })
        .collect()
}

/// What the sources write now against the file in the repository.
///
/// # Errors
/// When the file cannot be read.
pub(super) fn problems(
    root: &Path,
    sources: &[TextFile],
    documents: &[TextFile],
) -> Result<Vec<Problem>> {
    let promised = std::fs::read_to_string(root.join(FILE));
    let promised = promised.with_context(|| format!("cannot read {FILE}"))?;
    Ok(check(&promised, &keys::written(sources, documents)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMISED: &str = "# Text.\ndocs/a.md: dimmer/a/1: cpu schema\ndocs/b.md: : one\n";

    #[track_caller]
    fn check(written: &str, expected: &[&str]) {
        let found = super::check(PROMISED, &parse(written));
        let expected: Vec<Problem> =
            expected.iter().map(|what| Problem::new(FILE, *what)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn new_keys_and_documents_are_free() {
        check(PROMISED, &[]);
        check("docs/a.md: dimmer/a/1: cpu new schema\ndocs/b.md: : one\ndocs/c.md: : x\n", &[]);
    }

    #[test]
    fn a_key_goes_only_with_a_new_number() {
        let b = "docs/b.md: : one\n";
        let gone = "docs/a.md: `cpu` is promised by dimmer/a/1: it needs a new number";
        check(&format!("docs/a.md: dimmer/a/1: schema\n{b}"), &[gone]);
        let other = "docs/a.md has other schemas: `cargo xtask promises` notes them";
        check(&format!("docs/a.md: dimmer/a/2: schema\n{b}"), &[other]);
        check(b, &["no source writes the document of docs/a.md"]);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let documents = parse(PROMISED);
        assert_eq!(parse(&text(&documents)), documents);
    }
}
