//! Checks of the project itself, run as `cargo xtask`.
//!
//! Contains no part of Dimmer. `ci` is the one command that decides whether a change is acceptable.
//! Most other commands are parts of it that are quick enough to run while working.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "xtask is a command: standard output is where it reports"
)]

mod book;
mod ci;
mod dependencies;
mod header;
mod test_log;
mod tidy;
mod torture;
mod tree;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  ci            everything a change must pass; what `make test` and CI run
  tidy          the rules of ARCHITECTURE.md and CONTRIBUTING.md that a program can check
  dependencies  licenses, sources, duplicates and advisories of what Cargo.lock names;
                DIRECTORY: that of another workspace, as crates/python
  book          docs/ as a book in out/book, by mdBook from PyPI; needs a built `dimmer`
  header        writes the C header of libdimmer again
  promises      notes the keys of JSON that a release promises, in xtask/promises.txt
  torture       a hundred real programs, and hostile surroundings, with and without Dimmer; takes an hour or two,
                and goes on where it was interrupted. NAME...: only those; --binaries DIR: of another build
";

fn main() -> ExitCode {
    let root = &tree::root();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["ci"] => ci::run(root),
        ["tidy"] => tidy::run(root),
        ["dependencies"] => dependencies::run(root, ""),
        ["dependencies", workspace] => dependencies::run(root, workspace),
        ["book"] => ci::book(root),
        ["header"] => header::run(root),
        ["promises"] => tidy::promises::run(root),
        ["torture", ..] => torture::run(root, &arguments[1..]),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
