//! One word for one thing: words that the list in ARCHITECTURE.md replaces must not come back.
//!
//! The list is the table of the section "Words". Its last column names the replaced words. They
//! must not occur in code or documents, not even as a part of a name (`LampLantern`,
//! `lamp_lantern`).

use std::collections::BTreeMap;

use crate::tree::{Problem, TextFile};

const LIST: &str = "ARCHITECTURE.md";
const SECTION: &str = "## Words";
/// Not checked, because it describes the past.
const HISTORY: &str = "CHANGELOG.md";

/// Checks all files against the list, which is in one of them.
pub(crate) fn check(files: &[TextFile]) -> Vec<Problem> {
    let list = files.iter().find(|file| file.path == LIST);
    let gone = gone(list.map_or("", |file| &file.text));
    if gone.is_empty() {
        return vec![Problem::new(LIST, format!("has no `{SECTION}` with a list of them"))];
    }
    let is_checked = |file: &&TextFile| ![LIST, HISTORY].contains(&&*file.path);
    files.iter().filter(is_checked).flat_map(|file| check_file(file, &gone)).collect()
}

fn check_file(file: &TextFile, gone: &BTreeMap<String, String>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (line, number) in file.text.lines().zip(1..) {
        for word in parts(line) {
            let word = word.to_ascii_lowercase();
            let singular = word.strip_suffix('s').unwrap_or(&word);
            if let Some(now) = gone.get(&word).or_else(|| gone.get(singular)) {
                let place = format!("{}:{number}", file.path);
                problems.push(Problem::new(place, format!("`{word}`: the word is {now}")));
            }
        }
    }
    problems
}

/// The replaced words, in lower case, each with the word that is used now.
fn gone(list: &str) -> BTreeMap<String, String> {
    let section = list.lines().skip_while(|line| *line != SECTION).skip(1);
    let rows = section.take_while(|line| !line.starts_with("## "));
    let cells = rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
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
                         | **lamp** | gives light | lantern, torchlight |\n\n## More\n\
                         | **other** | table | other |\n";

    #[track_caller]
    fn check(path: &str, text: &str, expected: &[&str]) {
        let file = |path: &str, text: &str| TextFile { path: path.into(), text: text.into() };
        let found = super::check(&[file(LIST, WORDS), file(path, text)]);
        let expected: Vec<Problem> = expected
            .iter()
            .map(|place| Problem::new(place, "`lantern`: the word is **lamp**"))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn refuses_words_that_are_gone_wherever_they_stand() {
        check("a.rs", "let lamp = 1; // other, lanternish", &[]);
        check("a.rs", "\nlet lamp_lantern = 1;", &["a.rs:2"]);
        check("docs/a.md", "The Lantern", &["docs/a.md:1"]);
        check("a.rs", "LampLantern LANTERN", &["a.rs:1", "a.rs:1"]);
        check(HISTORY, "The lantern is a lamp now.", &[]);
    }

    #[test]
    fn refuses_an_architecture_without_the_list() {
        let file = TextFile { path: LIST.into(), text: "## Words\n\nNone.\n".into() };
        let expected = Problem::new(LIST, "has no `## Words` with a list of them");
        assert_eq!(super::check(&[file]), [expected]);
    }

    #[test]
    fn the_plural_is_gone_as_well() {
        let files = [
            TextFile { path: LIST.into(), text: WORDS.into() },
            TextFile { path: "a.rs".into(), text: "lanterns".into() },
        ];
        let expected = Problem::new("a.rs:1", "`lanterns`: the word is **lamp**");
        assert_eq!(super::check(&files), [expected]);
    }
}
