//! Puts the records of `machines/` and the claims into the library, without the blanks between the
//! words of the JSON: these are half of it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The database, from this crate.
const DATABASE: &str = "../../machines";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={DATABASE}");
    let Some(out) = std::env::var_os("OUT_DIR").map(PathBuf::from) else { return };
    if let Err(error) = embed(Path::new(DATABASE), &out) {
        println!("cargo::error=cannot put {DATABASE} into the library: {error}");
    }
}

fn embed(database: &Path, out: &Path) -> io::Result<()> {
    let mut table = String::from("&[\n");
    for record in sorted(database)? {
        if !record.is_dir() || name(&record).starts_with('.') {
            continue;
        }
        println!("cargo::rerun-if-changed={}", record.display());
        let _ = writeln!(table, "    ({:?}, &[", name(&record));
        for file in sorted(&record)? {
            println!("cargo::rerun-if-changed={}", file.display());
            let to = out.join(format!("{}.{}", name(&record), name(&file)));
            fs::write(&to, without_blanks(&fs::read_to_string(&file)?))?;
            let _ = writeln!(table, "        ({:?}, include_str!({to:?})),", name(&file));
        }
        table += "    ]),\n";
    }
    fs::write(out.join("builtin.rs"), table + "]\n")
}

fn sorted(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(directory)?.map(|entry| Ok(entry?.path()));
    let mut paths = paths.collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The JSON without blanks and line ends outside of strings.
fn without_blanks(json: &str) -> String {
    let (mut in_string, mut is_escaped) = (false, false);
    let keeps = |&c: &char| {
        let keeps = in_string || !c.is_ascii_whitespace();
        in_string ^= c == '"' && !is_escaped;
        is_escaped = in_string && c == '\\' && !is_escaped;
        keeps
    };
    json.chars().filter(keeps).collect()
}
