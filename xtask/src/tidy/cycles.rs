//! Rule about imports within a crate: its files form layers, and none imports, by way of others,
//! one that imports it.
//!
//! An import is a `use`, or a path that starts with `crate`, `super` or `self`, outside tests. A
//! name that a module re-exports from one below it counts as an import from where it comes from, so
//! modules that only declare and re-export others take no part in circles.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::str::FromStr as _;

use proc_macro2::{TokenStream, TokenTree};

use super::product::without_tests;
use crate::tree::{Problem, TextFile};

/// The crates whose files must not import each other in a circle.
const ACYCLIC: [&str; 5] = [
    "crates/hook/src/",
    "crates/locks/src/",
    "crates/processor/src/",
    "crates/protocol/src/",
    "crates/runtime/src/",
];

/// The most re-exports that a name is followed through.
const FAR: usize = 8;

/// A module's path below the root of its crate; empty: the root.
type Module = Vec<String>;

/// A path that a file names.
#[derive(Debug)]
struct Named {
    path: Vec<String>,
    /// The name that the file gives it; `*` for all names of a module.
    name: String,
    line: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A path in the midst of code.
    Path,
    /// A `use` for the file itself.
    Import,
    /// A `use` that others see.
    ReExport,
}

/// A file of a crate.
struct Source<'a> {
    path: &'a str,
    named: Vec<Named>,
}

/// Checks the crates that must be free of circles.
pub(crate) fn check(files: &[TextFile]) -> Vec<Problem> {
    ACYCLIC.iter().flat_map(|root| check_crate(root, files)).collect()
}

fn check_crate(root: &str, files: &[TextFile]) -> Vec<Problem> {
    let mut sources = BTreeMap::new();
    for file in files {
        let Some(below) = file.path.strip_prefix(root) else { continue };
        // `sources` reports what cannot be read.
        let Ok(tokens) = TokenStream::from_str(&file.text) else { continue };
        let mut named = Vec::new();
        names_in(without_tests(tokens), &mut named);
        sources.insert(module_of(below), Source { path: &file.path, named });
    }
    circles(&sources, &imports(&sources))
}

/// The module that a file is.
fn module_of(below_root: &str) -> Module {
    let name = below_root.strip_suffix(".rs").unwrap_or(below_root);
    let name = name.strip_suffix("/mod").unwrap_or(name);
    let is_root = ["lib", "main", "mod"].contains(&name);
    if is_root { Vec::new() } else { name.split('/').map(str::to_owned).collect() }
}

/// For each module, the modules that it imports from, and where.
fn imports(sources: &BTreeMap<Module, Source<'_>>) -> BTreeMap<Module, BTreeMap<Module, usize>> {
    let mut imports: BTreeMap<Module, BTreeMap<Module, usize>> = BTreeMap::new();
    for (module, source) in sources {
        let own = imports.entry(module.clone()).or_default();
        for named in &source.named {
            let Some(path) = absolute(module, &named.path, sources) else { continue };
            let is_below = path.starts_with(module);
            if named.kind == Kind::ReExport && is_below {
                continue;
            }
            let to = home_of(&path, sources);
            if to != *module {
                own.entry(to).or_insert(named.line);
            }
        }
    }
    imports
}

/// The path from the crate's root; `None` for what is not of this crate.
fn absolute(
    module: &Module,
    path: &[String],
    sources: &BTreeMap<Module, Source<'_>>,
) -> Option<Vec<String>> {
    let mut base = module.clone();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = &path[1..];
        }
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|part| part == "super") {
                base.pop();
                rest = &rest[1..];
            }
        }
        first => {
            let child = [module.as_slice(), &[first.to_owned()]].concat();
            sources.get(&child)?;
        }
    }
    Some([base.as_slice(), rest].concat())
}

/// The module that a path leads to, through re-exports.
fn home_of(path: &[String], sources: &BTreeMap<Module, Source<'_>>) -> Module {
    let mut path = path.to_vec();
    for _ in 0..FAR {
        let mut module = path.clone();
        while !module.is_empty() && !sources.contains_key(&module) {
            module.pop();
        }
        let (Some(name), Some(source)) = (path.get(module.len()), sources.get(&module)) else {
            return module;
        };
        let from_below = |named: &&Named| {
            named.kind != Kind::Path
                && absolute(&module, &named.path, sources)
                    .is_some_and(|path| path.starts_with(&module) && path != module)
        };
        let mut below = source.named.iter().filter(from_below);
        let found = below.clone().find(|named| named.name == *name);
        let Some(found) = found.or_else(|| below.find(|named| named.name == "*")) else {
            return module;
        };
        let Some(mut next) = absolute(&module, &found.path, sources) else { return module };
        if found.name == "*" {
            next.push(name.clone());
        }
        if next == path {
            return module;
        }
        path = next;
    }
    path
}

/// One circle for each set of modules that lie on circles together.
fn circles(
    sources: &BTreeMap<Module, Source<'_>>,
    imports: &BTreeMap<Module, BTreeMap<Module, usize>>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut reported = BTreeSet::new();
    for module in sources.keys() {
        if reported.contains(module) {
            continue;
        }
        let Some(circle) = circle_through(module, imports) else { continue };
        let line = imports[module].get(&circle[1]).copied().unwrap_or(0);
        let names: Vec<String> = circle.iter().map(name).collect();
        let place = format!("{}:{line}", sources[module].path);
        let what = format!(
            "imports in a circle: {}; what both need belongs into a file of its own",
            names.join(" -> ")
        );
        problems.push(Problem::new(place, what));
        reported.extend(circle);
    }
    problems
}

/// The shortest way from a module back to it.
fn circle_through(
    module: &Module,
    imports: &BTreeMap<Module, BTreeMap<Module, usize>>,
) -> Option<Vec<Module>> {
    let mut came_from: BTreeMap<&Module, &Module> = BTreeMap::new();
    let mut pending = VecDeque::from([module]);
    while let Some(at) = pending.pop_front() {
        for next in imports.get(at).into_iter().flat_map(BTreeMap::keys) {
            if next == module {
                let mut circle = vec![module.clone(), at.clone()];
                let mut at = at;
                while let Some(before) = came_from.get(at) {
                    circle.push((*before).clone());
                    at = before;
                }
                if at != module {
                    circle.push(module.clone());
                }
                circle.reverse();
                return Some(circle);
            }
            if !came_from.contains_key(next) {
                came_from.insert(next, at);
                pending.push_back(next);
            }
        }
    }
    None
}

fn name(module: &Module) -> String {
    if module.is_empty() { "crate".to_owned() } else { module.join("::") }
}

/// Adds the paths that are named.
fn names_in(tokens: TokenStream, named: &mut Vec<Named>) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    let mut is_public = false;
    while at < trees.len() {
        let is_after_path = at >= 2 && is_colon(&trees[at - 1]) && is_colon(&trees[at - 2]);
        match &trees[at] {
            TokenTree::Ident(word) if *word == "pub" => is_public = true,
            TokenTree::Ident(word) if *word == "use" => {
                let end = at + position_of_end(&trees[at..]);
                let kind = if is_public { Kind::ReExport } else { Kind::Import };
                used(&[], &trees[at + 1..end], kind, named);
                at = end;
                is_public = false;
            }
            TokenTree::Ident(word)
                if ["crate", "super", "self"].iter().any(|root| word == root)
                    && !is_after_path
                    && trees.get(at + 1).is_some_and(is_colon) =>
            {
                let (path, next) = path_from(&trees, at);
                let line = word.span().start().line;
                named.push(Named { path, name: String::new(), line, kind: Kind::Path });
                at = next;
                continue;
            }
            TokenTree::Group(group) => names_in(group.stream(), named),
            TokenTree::Punct(punct) if punct.as_char() == ';' => is_public = false,
            TokenTree::Ident(word)
                if ["fn", "struct", "mod", "const"].iter().any(|w| word == w) =>
            {
                is_public = false;
            }
            _ => {}
        }
        at += 1;
    }
}

/// Adds the paths of a `use`, from what stands after the word and `prefix`.
fn used(prefix: &[String], trees: &[TokenTree], kind: Kind, named: &mut Vec<Named>) {
    for part in trees.split(|tree| matches!(tree, TokenTree::Punct(p) if p.as_char() == ',')) {
        let mut path = prefix.to_vec();
        let mut alias = None;
        let mut is_alias = false;
        let mut line = 0;
        let mut has_group = false;
        for tree in part {
            line = tree.span().start().line;
            match tree {
                TokenTree::Ident(word) if *word == "as" => is_alias = true,
                TokenTree::Ident(word) if is_alias => alias = Some(word.to_string()),
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Punct(punct) if punct.as_char() == '*' => alias = Some("*".to_owned()),
                TokenTree::Group(group) => {
                    has_group = true;
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    used(&path, &inner, kind, named);
                }
                _ => {}
            }
        }
        if has_group || path.is_empty() {
            continue;
        }
        // `a::{self}` names `a`.
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let name = alias.or_else(|| path.last().cloned()).unwrap_or_default();
        named.push(Named { path, name, line, kind });
    }
}

/// The path that starts at a word, and the position after it.
fn path_from(trees: &[TokenTree], start: usize) -> (Vec<String>, usize) {
    let mut path = Vec::new();
    let mut at = start;
    while let Some(TokenTree::Ident(word)) = trees.get(at) {
        path.push(word.to_string());
        at += 1;
        let is_separated =
            trees.get(at).is_some_and(is_colon) && trees.get(at + 1).is_some_and(is_colon);
        if !is_separated {
            break;
        }
        at += 2;
    }
    (path, at.max(start + 1))
}

fn is_colon(tree: &TokenTree) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == ':')
}

/// The position of the next semicolon.
fn position_of_end(trees: &[TokenTree]) -> usize {
    let is_end = |tree: &TokenTree| matches!(tree, TokenTree::Punct(p) if p.as_char() == ';');
    trees.iter().position(is_end).unwrap_or(trees.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks files of `runtime`, given as path below `src` and text.
    #[track_caller]
    fn check(files: &[(&str, &str)], expected: &[(&str, &str)]) {
        let file = |(path, text): &(&str, &str)| TextFile {
            path: format!("crates/runtime/src/{path}"),
            text: (*text).to_owned(),
        };
        let files: Vec<TextFile> = files.iter().map(file).collect();
        let problem = |(place, circle): &(&str, &str)| {
            let what = format!(
                "imports in a circle: {circle}; what both need belongs into a file of its own"
            );
            Problem::new(format!("crates/runtime/src/{place}"), what)
        };
        let expected: Vec<Problem> = expected.iter().map(problem).collect();
        assert_eq!(super::check(&files), expected);
    }

    #[test]
    fn accepts_layers() {
        check(
            &[
                ("lib.rs", "mod a; mod b; pub use a::A; pub mod all { pub use crate::b::B; }"),
                ("a.rs", "use crate::b::B; use std::fmt; pub struct A;"),
                ("b.rs", "use std::{io, fmt::{self, Debug}}; pub struct B;"),
            ],
            &[],
        );
    }

    #[test]
    fn refuses_a_circle_of_two_and_of_three() {
        check(
            &[("a.rs", "\nuse crate::b::B;"), ("b.rs", "fn f() { crate::a::g(); }")],
            &[("a.rs:2", "a -> b -> a")],
        );
        check(
            &[
                ("a.rs", "use crate::{b::{self, B}, d};"),
                ("b.rs", "use super::c as other;"),
                ("c.rs", "macro_rules! m { () => { $crate::a::n!() } }"),
                ("d.rs", ""),
            ],
            &[("a.rs:1", "a -> b -> c -> a")],
        );
    }

    #[test]
    fn a_name_is_where_it_comes_from() {
        // The parent only re-exports, and takes no part.
        check(
            &[
                ("a.rs", "mod own; mod other; pub(crate) use own::Own; pub use other::*;"),
                ("a/own.rs", "use super::Other;"),
                ("a/other.rs", "pub struct Other;"),
            ],
            &[],
        );
        check(
            &[
                ("a.rs", "mod own; mod other; pub(crate) use own::Own; pub use other::*;"),
                ("a/own.rs", "use super::Other;"),
                ("a/other.rs", "\n\nuse crate::a::Own;"),
            ],
            &[("a/other.rs:3", "a::other -> a::own -> a::other")],
        );
        // This parent uses what its child has.
        check(
            &[("a.rs", "use own::Own; pub struct A;"), ("a/own.rs", "use super::A;")],
            &[("a.rs:1", "a -> a::own -> a")],
        );
    }

    #[test]
    fn tests_may_import_what_they_like() {
        check(
            &[
                ("a.rs", "use crate::b::B;"),
                ("b.rs", "#[cfg(test)]\n#[expect(x)]\nmod tests { use crate::a::A; }"),
                ("c.rs", "#[cfg(all(test, loom))]\nmod models { use crate::a::A; }"),
            ],
            &[],
        );
        check(
            &[("a.rs", "use crate::b::B;"), ("b.rs", "#[cfg(not(test))]\nuse crate::a::A;")],
            &[("a.rs:1", "a -> b -> a")],
        );
    }
}
