//! Puts the libraries to preload into programs that link this crate, for releases of one file:
//! those in the directory that `DIMMER_WITHIN` names (`ci/dist.sh`). Other builds have none.

use std::path::PathBuf;

/// Names the directory.
const WITHIN: &str = "DIMMER_WITHIN";

/// The libraries that `dimmer run` and `observe` preload.
const LIBRARIES: [&str; 2] = ["libdimmer_preload.so", "libdimmer_boost.so"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={WITHIN}");
    let directory = std::env::var_os(WITHIN).map(PathBuf::from);
    let entry = |directory: &PathBuf, name: &str| {
        let path = directory.join(name);
        println!("cargo::rerun-if-changed={}", path.display());
        format!("    ({name:?}, include_bytes!({path:?})),\n")
    };
    let entries =
        directory.iter().flat_map(|directory| LIBRARIES.map(|name| entry(directory, name)));
    let text = format!("&[\n{}]\n", entries.collect::<String>());
    let Some(out) = std::env::var_os("OUT_DIR").map(PathBuf::from) else { return };
    if let Err(error) = std::fs::write(out.join("within.rs"), text) {
        println!("cargo::error=cannot write to {}: {error}", out.display());
    }
}
