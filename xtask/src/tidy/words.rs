//! One word for one thing: words that the list in ARCHITECTURE.md replaces must not come back.
//!
//! The list is the table of the section "Words". Its last column names the replaced words. They
//! must not occur in code or documents, not even as a part of a name (`LampLantern`,
//! `lamp_lantern`). A replaced word with an underscore or a hyphen is a whole name (`light_again`,
//! `lamp-like`). Below the table, lines such as ``- `lantern` in `a.rs`: a quotation`` name files
//! that may have a word.

use std::collections::BTreeMap;

use crate::tree::{Problem, TextFile};

const LIST: &str = "ARCHITECTURE.md";
const SECTION: &str = "## Words";
/// Not checked, because it describes the past.
const HISTORY: &str = "CHANGELOG.md";

/// Checks all files against the list, which is in one of them.
pub(crate) fn check(files: &[TextFile]) -> Vec<Problem> {
    let list = files.iter().find(|file| file.path == LIST).map_or("", |file| &file.text);
    let gone = gone(list);
    if gone.is_empty() {
        return vec![Problem::new(LIST, format!("has no `{SECTION}` with a list of them"))];
    }
    let exceptions = exceptions(list);
    let mut problems: Vec<Problem> = exceptions
        .iter()
        .filter(|(word, path)| !files.iter().any(|file| file.path == *path && has(file, word)))
        .map(|(word, path)| Problem::new(LIST, format!("`{path}` needs no exception for `{word}`")))
        .collect();
    for file in files.iter().filter(|file| file.path != HISTORY) {
        let may = |word: &str| exceptions.contains(&(word, &*file.path));
        problems.extend(check_file(file, &gone, may));
    }
    problems
}

fn check_file(
    file: &TextFile,
    gone: &BTreeMap<String, String>,
    may: impl Fn(&str) -> bool,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut in_list = false;
    for (line, number) in file.text.lines().zip(1..) {
        if file.path == LIST && line.starts_with("## ") {
            in_list = line == SECTION;
        }
        if in_list {
            continue;
        }
        let mut report = |found: &str, now: &str| {
            let place = format!("{}:{number}", file.path);
            problems.push(Problem::new(place, format!("`{found}`: the word is {now}")));
        };
        for word in parts(line) {
            let word = word.to_ascii_lowercase();
            let singular = word.strip_suffix('s').unwrap_or(&word);
            let old = [&*word, singular].into_iter().find(|word| gone.contains_key(*word));
            if let Some(old) = old.filter(|old| !may(old)) {
                report(&word, &gone[old]);
            }
        }
        for (name, now) in gone.iter().filter(|(name, _)| name.contains(['_', '-'])) {
            if line.to_ascii_lowercase().contains(&**name) && !may(name) {
                report(name, now);
            }
        }
    }
    problems
}

/// Whether a word or its plural is in a file.
fn has(file: &TextFile, word: &str) -> bool {
    let is_it = |part: &str| {
        let part = part.to_ascii_lowercase();
        part == word || part.strip_suffix('s') == Some(word)
    };
    file.text.lines().any(|line| parts(line).into_iter().any(is_it))
}

/// The lines of the section.
fn section(list: &str) -> impl Iterator<Item = &str> {
    let section = list.lines().skip_while(|line| *line != SECTION).skip(1);
    section.take_while(|line| !line.starts_with("## "))
}

/// The replaced words, in lower case, each with the word that is used now.
fn gone(list: &str) -> BTreeMap<String, String> {
    let cells = section(list)
        .map(|row| row.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    let mut gone = BTreeMap::new();
    for cells in cells {
        let [word, _, replaced] = *cells else { continue };
        if !word.starts_with("**") {
            continue;
        }
        for old in replaced.split(',').map(str::trim).filter(|old| !old.is_empty()) {
            gone.insert(old.to_ascii_lowercase(), word.to_owned());
        }
    }
    gone
}

/// Words and the paths of the files that may have them.
fn exceptions(list: &str) -> Vec<(&str, &str)> {
    let mut exceptions = Vec::new();
    for line in section(list).filter(|line| line.starts_with("- `")) {
        let mut quoted = line.split('`').skip(1).step_by(2);
        let Some(word) = quoted.next() else { continue };
        exceptions.extend(quoted.map(|path| (word, path)));
    }
    exceptions
}

/// The words of a line, including the parts of names.
fn parts(line: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for name in line.split(|c: char| !c.is_ascii_alphabetic()) {
        let mut begin = 0;
        let bytes = name.as_bytes();
        for end in 1..bytes.len() {
            if bytes[end].is_ascii_uppercase() && bytes[end - 1].is_ascii_lowercase() {
                parts.push(&name[begin..end]);
                begin = end;
            }
        }
        parts.push(&name[begin..]);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str = "# A\n\n## Words\n\n| word | meaning | gone |\n|---|---|---|\n\
                         | **lamp** | gives light | \
                         lantern, torchlight, light_again, lamp-like |\n\n\
                         - `lantern` in `quoting.rs`: a quotation\n\n## More\n\
                         | **other** | table | other |\n";

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.into(), text: text.into() }
    }

    fn quoting() -> TextFile {
        file("quoting.rs", "// \"hang up a Lantern\"\n")
    }

    #[track_caller]
    fn check(path: &str, text: &str, expected: &[(&str, &str)]) {
        let found = super::check(&[file(LIST, WORDS), file(path, text), quoting()]);
        let expected: Vec<Problem> = expected
            .iter()
            .map(|(place, word)| Problem::new(place, format!("`{word}`: the word is **lamp**")))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn refuses_words_that_are_gone_wherever_they_stand() {
        check("a.rs", "let lamp = 1; // other, lanternish", &[]);
        check("a.rs", "\nlet lamp_lantern = 1;", &[("a.rs:2", "lantern")]);
        check("docs/a.md", "The Lantern", &[("docs/a.md:1", "lantern")]);
        check("a.rs", "LampLantern LANTERN", &[("a.rs:1", "lantern"), ("a.rs:1", "lantern")]);
        check("a.rs", "lanterns", &[("a.rs:1", "lanterns")]);
        check(HISTORY, "The lantern is a lamp now.", &[]);
    }

    #[test]
    fn refuses_names_that_are_gone() {
        check("a.rs", "fn light_again() {}", &[("a.rs:1", "light_again")]);
        check("a.rs", "light again", &[]);
        check("a.rs", "// Lamp-like", &[("a.rs:1", "lamp-like")]);
        check("a.rs", "a lamp, like", &[]);
    }

    #[test]
    fn an_exception_is_for_one_word_in_one_file() {
        check("quoting.rs", "lantern torchlight", &[("quoting.rs:1", "torchlight")]);
    }

    #[test]
    fn refuses_exceptions_that_nothing_needs() {
        let found = super::check(&[file(LIST, WORDS), file("quoting.rs", "a lamp")]);
        let expected = Problem::new(LIST, "`quoting.rs` needs no exception for `lantern`");
        assert_eq!(found, [expected]);
    }

    #[test]
    fn the_list_is_not_checked_but_what_surrounds_it() {
        let text = format!("{WORDS}A lantern.\n");
        let found = super::check(&[file(LIST, &text), quoting()]);
        let expected = Problem::new("ARCHITECTURE.md:13", "`lantern`: the word is **lamp**");
        assert_eq!(found, [expected]);
    }

    #[test]
    fn refuses_an_architecture_without_the_list() {
        let expected = Problem::new(LIST, "has no `## Words` with a list of them");
        assert_eq!(super::check(&[file(LIST, "## Words\n\nNone.\n")]), [expected]);
    }
}
