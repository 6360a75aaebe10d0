//! Rules about links between documents: each anchor exists, and the book has each page once.
//!
//! That the files exist is checked with all other paths, by `documents`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::tree::{Problem, TextFile};

const SUMMARY: &str = "docs/SUMMARY.md";

/// Checks the anchors of all links, and that `docs/SUMMARY.md` has each file of `docs/` once.
pub(crate) fn check(documents: &[TextFile]) -> Vec<Problem> {
    let mut problems = check_anchors(documents);
    problems.extend(check_summary(documents));
    problems
}

/// The first heading of a document, as it is written.
pub(crate) fn title(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("# "))
}

/// The links of a document: the text before `#`, the anchor, and the line.
fn links(text: &str) -> Vec<(String, Option<String>, usize)> {
    let events = Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter();
    events
        .filter_map(|(event, range)| {
            let Event::Start(Tag::Link { dest_url, .. }) = event else { return None };
            let line = text[..range.start].matches('\n').count() + 1;
            let (path, anchor) = match dest_url.split_once('#') {
                Some((path, anchor)) => (path, Some(anchor.to_owned())),
                None => (&*dest_url, None),
            };
            (!path.contains(':')).then(|| (path.to_owned(), anchor, line))
        })
        .collect()
}

/// The path below the root that a link in `document` leads to.
fn target(document: &str, path: &str) -> String {
    if path.is_empty() {
        return document.to_owned();
    }
    let folder = Path::new(document).parent().unwrap_or(Path::new(""));
    let mut target = PathBuf::new();
    for part in folder.join(path).components() {
        match part {
            Component::ParentDir => _ = target.pop(),
            other => target.push(other),
        }
    }
    target.to_string_lossy().into_owned()
}

fn check_anchors(documents: &[TextFile]) -> Vec<Problem> {
    let anchors: BTreeMap<&str, BTreeSet<String>> =
        documents.iter().map(|document| (&*document.path, anchors(&document.text))).collect();
    let mut problems = Vec::new();
    for document in documents {
        for (path, anchor, line) in links(&document.text) {
            let Some(anchor) = anchor else { continue };
            let target = target(&document.path, &path);
            let known = anchors.get(&*target).is_none_or(|anchors| anchors.contains(&anchor));
            if !known {
                problems.push(Problem::new(
                    format!("{}:{line}", document.path),
                    format!("{target} has no heading `#{anchor}`"),
                ));
            }
        }
    }
    problems
}

/// The anchors of a document's headings, as GitHub and mdBook make them: lower case, without
/// punctuation, with `-` for blanks; a number after one that is there already.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(words) | Event::Code(words) => {
                if let Some(heading) = &mut heading {
                    *heading += &words;
                }
            }
            Event::SoftBreak => {
                if let Some(heading) = &mut heading {
                    heading.push(' ');
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor(&heading.take().unwrap_or_default());
                let numbered = (1..).map(|number| format!("{anchor}-{number}"));
                let mut names = std::iter::once(anchor.clone()).chain(numbered);
                let free = names.find(|name| !anchors.contains(name));
                anchors.extend(free);
            }
            _ => {}
        }
    }
    anchors
}

fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|character| match character {
        ' ' => Some('-'),
        '-' | '_' => Some(character),
        other => other.is_alphanumeric().then_some(other),
    });
    kept.flat_map(char::to_lowercase).collect()
}

fn check_summary(documents: &[TextFile]) -> Vec<Problem> {
    let Some(summary) = documents.iter().find(|document| document.path == SUMMARY) else {
        return vec![Problem::new(SUMMARY, "is missing")];
    };
    let listed: Vec<String> =
        links(&summary.text).iter().map(|(path, ..)| target(SUMMARY, path)).collect();
    let pages = documents.iter().map(|document| &document.path);
    let pages = pages.filter(|path| path.starts_with("docs/") && *path != SUMMARY);
    pages
        .filter_map(|page| match listed.iter().filter(|one| *one == page).count() {
            0 => Some(Problem::new(SUMMARY, format!("does not list {page}"))),
            1 => None,
            count => Some(Problem::new(SUMMARY, format!("lists {page} {count} times"))),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn anchors_are_those_of_github_and_mdbook() {
        let text =
            "# `dimmer probe`: what it costs\n## A & B, `C/1`\n## Run\n```\n# no\n```\n## Run\n";
        let expected = ["dimmer-probe-what-it-costs", "a--b-c1", "run", "run-1"];
        assert_eq!(anchors(text), expected.map(str::to_owned).into());
    }

    #[test]
    fn refuses_links_to_headings_that_are_not_there() {
        let documents = [
            file(
                "docs/a.md",
                "# A\n\n[a](#a) [b](#b)\n| |\n|-|\n| [r](../README.md#no) [x](https://x.org/#y) |\n",
            ),
            file("docs/sub/b.md", "[a](../a.md#a) [c](../a.md#c)\n"),
            file("README.md", "# Dimmer\n"),
        ];
        let expected = [
            Problem::new("docs/a.md:3", "docs/a.md has no heading `#b`"),
            Problem::new("docs/a.md:6", "README.md has no heading `#no`"),
            Problem::new("docs/sub/b.md:1", "docs/a.md has no heading `#c`"),
        ];
        assert_eq!(check_anchors(&documents), expected);
    }

    #[test]
    fn refuses_pages_that_the_book_does_not_have_once() {
        let summary = file(SUMMARY, "[R](../README.md)\n\n- [A](a.md)\n- [A](a.md)\n");
        let documents = [file("docs/a.md", ""), file("docs/sub/b.md", ""), file("README.md", "")];
        let all: Vec<TextFile> = std::iter::once(summary).chain(documents).collect();
        let expected = [
            Problem::new(SUMMARY, "lists docs/a.md 2 times"),
            Problem::new(SUMMARY, "does not list docs/sub/b.md"),
        ];
        assert_eq!(check_summary(&all), expected);
        assert_eq!(check_summary(&[]), [Problem::new(SUMMARY, "is missing")]);
    }
}
