//! Gives the shared library the name under which programs ask for it: versions that have the same
//! one can stand in for each other. And keeps it where it is once it was loaded: threads that have
//! used it come back to it when they end, its workers stand in it, and children of fork(2) call it.

fn main() {
    let part = |name| std::env::var(format!("CARGO_PKG_VERSION_{name}")).unwrap_or_default();
    let (major, minor) = (part("MAJOR"), part("MINOR"));
    // Before 1.0, each minor version may break what the last one had. So says the Makefile, and
    // what CMake is told.
    let series = if major == "0" { format!("0.{minor}") } else { major };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdimmer.so.{series}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
