//! Rules about documents: how long they may be, what ARCHITECTURE.md must contain, and that every
//! path in a text exists.

use std::path::Path;

use anyhow::Result;
use cargo_metadata::Metadata;
use pulldown_cmark::{Event, Parser, Tag};

use crate::tree::{self, Problem, TextFile};

const ARCHITECTURE: &str = "ARCHITECTURE.md";
/// Documents with a maximum size (bytes), and what to do about more.
const LIMITS: [(&str, usize, &str); 2] = [
    (ARCHITECTURE, 50_000, "it is a map, not the country"),
    ("README.md", 9_000, "what is not for everybody belongs to a page in docs/"),
];
/// Maximum columns of a line, except in tables and code.
const MOST_COLUMNS: usize = 100;

/// Checks the documents of the tree at `root`; `metadata` lists its crates.
///
/// # Errors
/// When the tree cannot be read.
pub(crate) fn check(root: &Path, metadata: &Metadata) -> Result<Vec<Problem>> {
    let documents = tree::documents(root)?;
    let mut problems = Vec::new();
    for needed in ["README.md", ARCHITECTURE, "CONTRIBUTING.md", "CHANGELOG.md"] {
        match documents.iter().find(|document| document.path == needed) {
            None => problems.push(Problem::new(needed, "is missing")),
            Some(document) if needed == ARCHITECTURE => {
                problems.extend(check_architecture(&document.text, &crates(metadata)));
            }
            Some(_) => {}
        }
    }
    for document in &documents {
        problems.extend(check_size(document));
        problems.extend(check_columns(document));
        problems.extend(check_paths(root, document));
    }
    for source in tree::rust_files(root)? {
        problems.extend(check_paths_in_comments(root, &source));
    }
    let models = tree::files_below(root, &["models"], "toml")?;
    problems.extend(check_models(&models, &documents));
    Ok(problems)
}

/// A crate of the workspace: its folder's name and its direct dependencies on foreign crates.
#[derive(Debug)]
struct Crate {
    folder: String,
    foreign: Vec<String>,
}

fn crates(metadata: &Metadata) -> Vec<Crate> {
    metadata
        .workspace_packages()
        .into_iter()
        .map(|package| Crate {
            folder: package
                .manifest_path
                .parent()
                .and_then(|path| path.file_name())
                .map_or_else(|| package.name.to_string(), ToOwned::to_owned),
            foreign: package
                .dependencies
                .iter()
                .filter(|dependency| dependency.path.is_none())
                .map(|dependency| dependency.name.clone())
                .collect(),
        })
        .collect()
}

fn check_size(document: &TextFile) -> Option<Problem> {
    let (path, most, advice) = LIMITS.iter().find(|(path, ..)| *path == document.path)?;
    let bytes = document.text.len();
    (bytes > *most)
        .then(|| Problem::new(path, format!("{bytes} bytes, more than {most}: {advice}")))
}

/// Checks the width of a document's lines. Tables, code blocks, and lines without a blank to break
/// at (such as a long link) may be wider.
fn check_columns(document: &TextFile) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut in_code = false;
    for (line, number) in document.text.lines().zip(1..) {
        let words = line.trim_start();
        if words.starts_with("```") {
            in_code = !in_code;
        }
        let is_exempt = in_code || words.starts_with('|') || !words.contains(' ');
        let columns = line.chars().count();
        if columns > MOST_COLUMNS && !is_exempt {
            problems.push(Problem::new(
                format!("{}:{number}", document.path),
                format!("{columns} columns, more than {MOST_COLUMNS}"),
            ));
        }
    }
    problems
}

fn check_architecture(text: &str, crates: &[Crate]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut report = |what: String| problems.push(Problem::new(ARCHITECTURE, what));
    let paragraphs = paragraphs(text);
    let mut foreign: Vec<&str> = Vec::new();
    for Crate { folder, foreign: dependencies } in crates {
        let spellings = [
            format!("`{folder}`"),
            format!("`crates/{folder}`"),
            format!("`crates/{folder}/`"),
            format!("`dimmer-{folder}`"),
        ];
        let names_it = |text: &str| spellings.iter().any(|spelling| text.contains(spelling));
        if !paragraphs.iter().any(|paragraph| names_it(paragraph)) {
            report(format!("does not name the crate `{folder}`"));
        } else if !paragraphs
            .iter()
            .any(|paragraph| names_it(paragraph) && paragraph.contains("**Invariant"))
        {
            report(format!("has no bold **Invariant** for the crate `{folder}`"));
        }
        foreign.extend(dependencies.iter().map(String::as_str));
    }
    foreign.sort_unstable();
    foreign.dedup();
    for name in foreign {
        if !text.contains(&format!("`{name}`")) {
            report(format!("does not say why Dimmer depends on `{name}`"));
        }
    }
    problems
}

/// The paragraphs of a document, each after its heading.
fn paragraphs(text: &str) -> Vec<String> {
    let mut heading = "";
    let mut paragraphs = vec![String::new()];
    let mut in_code = false;
    for line in text.lines() {
        if line.starts_with("```") {
            in_code = !in_code;
        } else if line.starts_with('#') && !in_code {
            heading = line;
            paragraphs.push(String::new());
        } else if line.trim().is_empty() {
            paragraphs.push(String::new());
        }
        if let Some(last) = paragraphs.last_mut() {
            if last.is_empty() {
                last.push_str(heading);
            }
            last.push('\n');
            last.push_str(line);
        }
    }
    paragraphs
}

/// Checks the links of a document and the paths that it shows as code.
fn check_paths(root: &Path, document: &TextFile) -> Vec<Problem> {
    let mut problems = Vec::new();
    let folder = document.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    for (event, range) in Parser::new(&document.text).into_offset_iter() {
        let missing = match &event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                let path = dest_url.split('#').next().unwrap_or_default();
                let is_local = !path.is_empty() && !path.contains(':');
                (is_local && !root.join(folder).join(path).exists()).then_some(dest_url)
            }
            Event::Code(code) => is_missing_path(root, code).then_some(code),
            _ => None,
        };
        if let Some(missing) = missing {
            let line = document.text[..range.start].lines().count().max(1);
            problems.push(Problem::new(
                format!("{}:{line}", document.path),
                format!("`{missing}` does not exist"),
            ));
        }
    }
    problems
}

fn check_paths_in_comments(root: &Path, source: &TextFile) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (line, number) in source.text.lines().zip(1..) {
        if !line.trim_start().starts_with("//") {
            continue;
        }
        for code in line.split('`').skip(1).step_by(2) {
            if is_missing_path(root, code) {
                problems.push(Problem::new(
                    format!("{}:{number}", source.path),
                    format!("`{code}` does not exist"),
                ));
            }
        }
    }
    problems
}

/// Whether `code` is a path in the repository that does not exist. It is such a path if it starts
/// with one of the repository's folders and has neither blanks nor placeholders. Build results, in
/// `target` and `out`, may be absent.
fn is_missing_path(root: &Path, code: &str) -> bool {
    let Some((folder, rest)) = code.split_once('/') else { return false };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let is_ours = !["", "target", "out"].contains(&folder) && root.join(folder).is_dir();
    is_ours && !rest.is_empty() && code.chars().all(is_plain) && !root.join(code).exists()
}

/// Each model must be named in a document, so that readers learn which processors there are.
fn check_models(models: &[TextFile], documents: &[TextFile]) -> Vec<Problem> {
    models
        .iter()
        .filter(|model| !documents.iter().any(|document| document.text.contains(model.name())))
        .map(|model| Problem::new(&model.path, "is named in no document"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::fixture;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[track_caller]
    fn check_architecture(text: &str, expected: &[&str]) {
        let crates = [
            Crate { folder: "host".to_owned(), foreign: vec!["libc".to_owned()] },
            Crate { folder: "xtask".to_owned(), foreign: vec![] },
        ];
        let expected: Vec<Problem> =
            expected.iter().map(|what| Problem::new("ARCHITECTURE.md", what)).collect();
        assert_eq!(super::check_architecture(text, &crates), expected);
    }

    const COMPLETE: &str = "# Dimmer\n\n## `crates/host`\n\nUses `libc`.\n\n**Invariant:** none.\n\n\
                            ## Tools\n\n**Invariant:** `xtask` is alone.\n";

    #[test]
    fn accepts_a_complete_architecture() {
        check_architecture(COMPLETE, &[]);
    }

    #[test]
    fn refuses_an_architecture_that_leaves_out_crates_invariants_or_dependencies() {
        check_architecture(
            &COMPLETE.replace("`crates/host`", "The machine"),
            &["does not name the crate `host`"],
        );
        check_architecture(
            &COMPLETE.replace("**Invariant:** none.", "Invariant: none."),
            &["has no bold **Invariant** for the crate `host`"],
        );
        check_architecture(
            &COMPLETE.replace("`libc`", "the C library"),
            &["does not say why Dimmer depends on `libc`"],
        );
    }

    #[test]
    fn refuses_documents_that_are_too_long() {
        let check = |path: &str, bytes: usize, expected: Option<&str>| {
            let found = check_size(&file(path, &"x".repeat(bytes)));
            assert_eq!(found, expected.map(|what| Problem::new(path, what)));
        };
        check("README.md", 9_000, None);
        check(
            "README.md",
            9_001,
            Some(
                "9001 bytes, more than 9000: what is not for everybody belongs to a page in docs/",
            ),
        );
        check(
            "ARCHITECTURE.md",
            50_001,
            Some("50001 bytes, more than 50000: it is a map, not the country"),
        );
        check("docs/model.md", 100_000, None);
    }

    #[test]
    fn refuses_wide_lines_outside_tables_and_code() {
        let fits = format!("{} b", "a".repeat(98));
        let wide = format!("{fits}b");
        let text = format!("{fits}\n| {wide}\n```sh\n{wide}\n```\n{}\n\n{wide}\n", "x".repeat(200));
        let expected = Problem::new("docs/a.md:8", "101 columns, more than 100");
        assert_eq!(check_columns(&file("docs/a.md", &text)), [expected]);
    }

    #[test]
    fn refuses_paths_to_nothing() {
        let tree = fixture::tree("//- docs/there.md\n//- crates/host/src/lib.rs\n");
        let document = file(
            "docs/a.md",
            "[a](there.md#part) [b](gone.md)\n[c](https://example.org/gone) [d](#part)\n\n\
             `crates/host/src/lib.rs` `crates/gone.rs` `crates/<name>/src` `and/or` `/dev/null`\n\
             ```sh\ncat docs/gone.md\n```\n",
        );
        assert_eq!(
            check_paths(tree.path(), &document),
            [
                Problem::new("docs/a.md:1", "`gone.md` does not exist"),
                Problem::new("docs/a.md:4", "`crates/gone.rs` does not exist"),
            ]
        );
        let source = file("crates/a.rs", "//! See `docs/there.md`.\n// Or `docs/gone.md`.\n");
        assert_eq!(
            check_paths_in_comments(tree.path(), &source),
            [Problem::new("crates/a.rs:2", "`docs/gone.md` does not exist")]
        );
    }

    #[test]
    fn refuses_models_that_no_document_names() {
        let models = [file("models/fast.toml", ""), file("models/slow.toml", "")];
        let documents = [file("models/README.md", "`fast.toml` is fast.\n")];
        assert_eq!(
            check_models(&models, &documents),
            [Problem::new("models/slow.toml", "is named in no document")]
        );
    }
}
