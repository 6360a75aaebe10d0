//! Lists the scenarios of the project, so that the wheel holds each of them.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let manifest = env::var("CARGO_MANIFEST_DIR")?;
    let directory = Path::new(&manifest).join("../../scenarios").canonicalize()?;
    println!("cargo::rerun-if-changed={}", directory.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(&directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    files.sort();
    let mut table = "&[".to_owned();
    for path in files {
        let name = path.file_stem().unwrap_or_default().display().to_string();
        write!(table, "({name:?}, include_str!({:?})),", path.display().to_string())?;
    }
    table.push(']');
    fs::write(Path::new(&env::var("OUT_DIR")?).join("scenarios.rs"), table)?;
    Ok(())
}
