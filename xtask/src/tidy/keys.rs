//! Every key of a document is described, and nothing else is.
//!
//! Keys are the fields of the types with `Serialize` below [`DOCUMENTED`]; the header of their file
//! names the document below `docs/` that describes them. There each key stands between backticks,
//! and if the document has several schemas, in a section that names the file's.
//! The other way round, each key that begins a row of a table with the heading `key` is one of such
//! a type. So no measurement is needed to see all keys, and none is forgotten that is rarely
//! written.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr as _;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::promises::Documents;
use crate::tree::{Problem, TextFile};

/// Where types with `Serialize` are documents for users.
const DOCUMENTED: [&str; 2] = ["crates/report/src/", "crates/watch/src/"];

/// Checks the keys of `sources` against `documents`.
pub(crate) fn check(sources: &[TextFile], documents: &[TextFile]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut known: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for file in sources.iter().filter(|file| is_document(file)) {
        let Ok(tokens) = TokenStream::from_str(&file.text) else {
            problems.push(Problem::new(&file.path, "cannot be read"));
            continue;
        };
        let keys = keys(&tokens.into_iter().collect::<Vec<_>>());
        if keys.is_empty() {
            continue;
        }
        let header: String = file.header().collect::<Vec<_>>().join(" ");
        let is_named = |document: &&TextFile| header.contains(&format!("`{}`", document.path));
        let named: Vec<&TextFile> = documents.iter().filter(is_named).collect();
        if named.is_empty() {
            let what = "has types with `Serialize`: its header names no document of their keys";
            problems.push(Problem::new(&file.path, what));
        }
        let described = named.iter().flat_map(|one| sections(&one.text, &file.text));
        let described: BTreeSet<&str> = described.flat_map(words).collect();
        for key in keys.iter().filter(|key| !named.is_empty() && !described.contains(key.as_str()))
        {
            let paths: Vec<&str> = named.iter().map(|one| one.path.as_str()).collect();
            let what = format!("{} does not describe the key `{key}`", paths.join(" and "));
            problems.push(Problem::new(&file.path, what));
        }
        for document in named {
            known.entry(&document.path).or_default().extend(keys.iter().cloned());
        }
    }
    for document in documents {
        let Some(known) = known.get(document.path.as_str()) else { continue };
        for (number, key) in first_cells(&document.text) {
            if !known.contains(key) {
                let place = format!("{}:{number}", document.path);
                problems.push(Problem::new(place, format!("`{key}` is no key of a document")));
            }
        }
    }
    problems
}

/// The documents that `sources` write, by the pages among `documents` that describe them.
pub(super) fn written(sources: &[TextFile], documents: &[TextFile]) -> Documents {
    let mut written = Documents::new();
    for file in sources.iter().filter(|file| is_document(file)) {
        let Ok(tokens) = TokenStream::from_str(&file.text) else { continue };
        let keys = keys(&tokens.into_iter().collect::<Vec<_>>());
        let header: String = file.header().collect::<Vec<_>>().join(" ");
        // What tests read is no document.
        let text = file.text.split("#[cfg(test)]").next().unwrap_or_default();
        for page in documents.iter().filter(|page| header.contains(&format!("`{}`", page.path))) {
            if keys.is_empty() {
                continue;
            }
            let one = written.entry(page.path.clone()).or_default();
            one.keys.extend(keys.iter().cloned());
            one.schemas.extend(schemas(text).into_iter().map(str::to_owned));
        }
    }
    written
}

fn is_document(file: &TextFile) -> bool {
    DOCUMENTED.iter().any(|prefix| file.path.starts_with(prefix)) && !file.path.contains("/tests/")
}

/// The keys that types with `Serialize` write.
fn keys(tokens: &[TokenTree]) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let mut is_written = false;
    let mut kind = "";
    for token in tokens {
        match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                let text = group.stream().to_string();
                is_written |= text.starts_with("derive") && text.contains("Serialize");
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                match (is_written, kind) {
                    (true, "struct") => fields(&inside, &mut keys),
                    (true, "enum") => variants(&inside, &mut keys),
                    _ => keys.extend(self::keys(&inside)),
                }
                (is_written, kind) = (false, "");
            }
            TokenTree::Ident(word) if *word == "struct" => kind = "struct",
            TokenTree::Ident(word) if *word == "enum" => kind = "enum",
            TokenTree::Punct(sign) if sign.as_char() == ';' => (is_written, kind) = (false, ""),
            _ => {}
        }
    }
    keys
}

/// The fields between the braces of a type.
fn fields(inside: &[TokenTree], keys: &mut BTreeSet<String>) {
    for field in inside.split(|token| is_sign(token, ',')) {
        // Commas between the angle brackets of a type split it, so only what has a name counts.
        let Some(colon) = field.iter().position(|token| is_sign(token, ':')) else { continue };
        if field.get(colon + 1).is_some_and(|next| is_sign(next, ':')) {
            continue;
        }
        let Some(TokenTree::Ident(name)) = colon.checked_sub(1).map(|before| &field[before]) else {
            continue;
        };
        let attributes: String = field.iter().filter_map(bracketed).collect();
        let renamed =
            attributes.split("rename = \"").nth(1).and_then(|rest| rest.split('"').next());
        let is_left_out = ["(skip)", "(skip,", "flatten"].iter().any(|it| attributes.contains(it));
        if !is_left_out {
            let name = name.to_string();
            keys.insert(renamed.unwrap_or(&name).to_owned());
        }
    }
}

/// The fields of an enumeration's variants.
fn variants(inside: &[TokenTree], keys: &mut BTreeSet<String>) {
    for token in inside {
        if let TokenTree::Group(group) = token
            && group.delimiter() == Delimiter::Brace
        {
            fields(&group.stream().into_iter().collect::<Vec<_>>(), keys);
        }
    }
}

fn is_sign(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(sign) if sign.as_char() == wanted)
}

fn bracketed(token: &TokenTree) -> Option<String> {
    match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
            Some(group.stream().to_string())
        }
        _ => None,
    }
}

/// The parts of a document that describe what the source has: all of it, unless it has several
/// schemas.
fn sections<'a>(document: &'a str, source: &str) -> Vec<&'a str> {
    let (all, own) = (schemas(document), schemas(source));
    if all.len() < 2 || own.is_empty() {
        return vec![document];
    }
    let sections = document.split("\n## ");
    sections.filter(|section| !schemas(section).is_disjoint(&own)).collect()
}

/// The schemas that a text names: `dimmer/NAME/VERSION`.
fn schemas(text: &str) -> BTreeSet<&str> {
    let quoted = text.split(['`', '"']);
    quoted.filter(|part| part.starts_with("dimmer/") && part.matches('/').count() == 2).collect()
}

/// The words between backticks.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let spans = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    spans.flat_map(|span| span.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')))
}

/// The keys in the first cells of tables whose first heading starts with `key`, each with its line.
fn first_cells(text: &str) -> Vec<(usize, &str)> {
    let mut cells = Vec::new();
    let mut is_of_keys = false;
    for (line, number) in text.lines().zip(1..) {
        let Some(row) = line.strip_prefix("| ") else {
            is_of_keys &= line.starts_with('|');
            continue;
        };
        if row.starts_with("key") {
            is_of_keys = true;
            continue;
        }
        let first = row.split(" | ").next().unwrap_or_default();
        let names = first.split('`').skip(1).step_by(2).filter(|_| is_of_keys);
        // `trials.*` stands for keys that the second cell names.
        cells.extend(names.filter(|name| !name.ends_with('*')).map(|name| {
            let last = name.rsplit('.').next().unwrap_or(name);
            (number, last.trim_end_matches("[]"))
        }));
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "# A\n\n| key | meaning |\n|---|---|\n| `schema`, `runs[].cpu` | a, `of` |\n\n\
                            | track | what |\n|---|---|\n| `clock` | no key |\n";

    #[track_caller]
    fn check(source: &str, expected: &[&str]) {
        let file = |path: &str, text: &str| TextFile { path: path.into(), text: text.into() };
        let documents = [file("docs/a.md", DOCUMENT)];
        let found = super::check(&[file("crates/report/src/a.rs", source)], &documents);
        let expected = expected.iter().filter_map(|problem| problem.split_once(": "));
        let expected: Vec<Problem> =
            expected.map(|(place, what)| Problem::new(place, what)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn accepts_keys_that_are_described() {
        check(
            "//! As `docs/a.md` has it.\n#[derive(Debug, Serialize)]\npub struct A<'a> { schema: &'a str,\n\
             /// Doc: with colon.\n#[serde(rename = \"cpu\")]\n\
             pub(crate) cpus: Vec<BTreeMap<u8, std::path::PathBuf>>,\n\
             #[serde(flatten)] other: B, #[serde(skip)] hidden: u8 }\nstruct Plain { no: u8 }\n\
             mod inner { #[derive(Serialize)] struct C { of: u8 } }\n",
            &[],
        );
        check("//! Plain.\n#[derive(Debug)]\nstruct A { any: u8 }\n", &[]);
    }

    #[test]
    fn refuses_keys_that_are_not_described() {
        check(
            "//! As `docs/a.md` has it.\n#[derive(Serialize)]\nstruct A { schema: u8, cpu: u8, of: u8, new: u8 }\n\
             #[derive(Serialize)]\nenum E { V { other: u8 }, Unit }\n",
            &[
                "crates/report/src/a.rs: docs/a.md does not describe the key `new`",
                "crates/report/src/a.rs: docs/a.md does not describe the key `other`",
            ],
        );
    }

    #[test]
    fn refuses_descriptions_of_what_is_no_key() {
        check(
            "//! As `docs/a.md` has it.\n#[derive(Serialize)]\nstruct A { schema: u8 }\n",
            &["docs/a.md:5: `cpu` is no key of a document"],
        );
    }

    #[test]
    fn each_schema_has_a_section_of_its_own() {
        let file = |path: &str, text: &str| TextFile { path: path.into(), text: text.into() };
        let documents = [file(
            "docs/a.md",
            "# Both\n## `dimmer/a/1`\n`schema`, `one`\n## `dimmer/b/1`\n`schema`, `two`\n",
        )];
        let source = "//! As `docs/a.md` has it.\n#[derive(Serialize)]\n\
                      struct A { schema: u8, two: u8 }\nconst SCHEMA: &str = \"dimmer/a/1\";\n";
        let what = "docs/a.md does not describe the key `two`";
        assert_eq!(
            super::check(&[file("crates/report/src/a.rs", source)], &documents),
            [Problem::new("crates/report/src/a.rs", what)]
        );
    }

    #[test]
    fn refuses_types_without_a_document() {
        check(
            "//! No document.\n#[derive(Serialize)]\nstruct A { schema: u8 }\n",
            &[
                "crates/report/src/a.rs: has types with `Serialize`: its header names no document of their keys",
            ],
        );
    }
}
