//! Rule about atomic operations: each that orders others says what it pairs with.
//!
//! The note is a comment with `Ordering:` above the operation, with no blank line in between: what
//! is made visible, and to which operation. `Relaxed` orders nothing and needs none, and neither do
//! compiler fences, which order a thread and its own signal handlers.

use std::str::FromStr as _;

use proc_macro2::{TokenStream, TokenTree};

use super::product::without_tests;
use crate::tree::{Problem, TextFile};

/// The crates in which threads, or processes, share memory.
const SHARING: [&str; 5] = [
    "crates/hook/src/",
    "crates/locks/src/",
    "crates/preload/src/",
    "crates/protocol/src/",
    "crates/runtime/src/",
];

/// The orderings that need a note.
const ORDERING: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];

const NOTE: &str = "Ordering:";

/// Most lines from a note down to its operation.
const FAR: usize = 16;

/// Checks the files of the crates that share memory.
pub(crate) fn check(files: &[TextFile]) -> Vec<Problem> {
    let is_checked = |file: &&TextFile| {
        SHARING.iter().any(|root| file.path.starts_with(root)) && file.name() != "tests.rs"
    };
    files.iter().filter(is_checked).flat_map(check_file).collect()
}

fn check_file(file: &TextFile) -> Vec<Problem> {
    // `sources` reports what cannot be read.
    let Ok(tokens) = TokenStream::from_str(&file.text) else { return Vec::new() };
    let mut found = Vec::new();
    operations(without_tests(tokens), &mut found);
    found.dedup();
    let lines: Vec<&str> = file.text.lines().collect();
    let is_bare = |(line, _): &(usize, String)| !has_note(&lines, *line);
    let problem = |(line, ordering): (usize, String)| {
        let what = format!("`{ordering}` without `// {NOTE}` above: what does it pair with?");
        Problem::new(format!("{}:{line}", file.path), what)
    };
    found.into_iter().filter(is_bare).map(problem).collect()
}

/// Adds the line and the ordering of each operation.
fn operations(tokens: TokenStream, found: &mut Vec<(usize, String)>) {
    let mut before: [Option<String>; 3] = [const { None }; 3];
    let mut is_compiler_fence = false;
    for tree in tokens {
        let text = match &tree {
            TokenTree::Group(group) => {
                if !is_compiler_fence {
                    operations(group.stream(), found);
                }
                String::new()
            }
            other => other.to_string(),
        };
        let follows = [Some("Ordering"), Some(":"), Some(":")];
        if ORDERING.contains(&&*text) && before.each_ref().map(Option::as_deref) == follows {
            found.push((tree.span().start().line, text.clone()));
        }
        is_compiler_fence = text == "compiler_fence";
        before.rotate_left(1);
        before[2] = Some(text);
    }
}

/// Whether a note stands above a line, or on it.
fn has_note(lines: &[&str], line: usize) -> bool {
    let above = lines.iter().take(line).rev().take(FAR);
    let mut together = above.take_while(|line| !line.trim().is_empty());
    together.any(|line| line.split_once("//").is_some_and(|(_, comment)| comment.contains(NOTE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, text: &str, expected: &[&str]) {
        let file = TextFile { path: path.to_owned(), text: text.to_owned() };
        let problem = |place: &&str| {
            let (line, ordering) = place.split_once(' ').expect("a line and an ordering");
            let what = format!("`{ordering}` without `// {NOTE}` above: what does it pair with?");
            Problem::new(format!("{path}:{line}"), what)
        };
        let expected: Vec<Problem> = expected.iter().map(problem).collect();
        assert_eq!(super::check(&[file]), expected);
    }

    const PATH: &str = "crates/runtime/src/a.rs";

    #[test]
    fn refuses_an_operation_without_a_note() {
        check(PATH, "fn f() {\n    a.store(1, Ordering::Release);\n}\n", &["2 Release"]);
        let both = "a.compare_exchange(\n0, 1, Ordering::AcqRel,\nOrdering::Acquire);";
        check(PATH, both, &["2 AcqRel", "3 Acquire"]);
        check("crates/cli/src/a.rs", "a.store(1, Ordering::Release);", &[]);
    }

    #[test]
    fn a_note_stands_above_without_a_blank_line() {
        check(PATH, "// Ordering: pairs with `g`.\na.store(\n1, Ordering::Release);", &[]);
        check(PATH, "/// Ordering: pairs with `g`.\nfn f() { a.load(Ordering::Acquire) }", &[]);
        let apart = "// Ordering: of something else.\n\nfence(Ordering::SeqCst);";
        check(PATH, apart, &["3 SeqCst"]);
        check(PATH, "let x = \"Ordering:\"; fence(Ordering::SeqCst);", &["1 SeqCst"]);
    }

    #[test]
    fn what_orders_nothing_between_threads_needs_none() {
        check(PATH, "a.load(Ordering::Relaxed); compiler_fence(Ordering::SeqCst);", &[]);
        check(PATH, "#[cfg(test)]\nmod tests { fn f() { a.load(Ordering::Acquire); } }", &[]);
    }
}
