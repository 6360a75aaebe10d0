//! Gives the shared library the name by which programs load it: versions of the same name can
//! replace each other. Also keeps the library in memory once it was loaded: threads that have used
//! it run its code when they end, its workers run in it, and children of fork(2) call it.

fn main() {
    let part = |name| std::env::var(format!("CARGO_PKG_VERSION_{name}")).unwrap_or_default();
    let (major, minor) = (part("MAJOR"), part("MINOR"));
    // Before 1.0, each minor version may be incompatible with the last one. The Makefile and the
    // CMake package follow the same rule.
    let series = if major == "0" { format!("0.{minor}") } else { major };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdimmer.so.{series}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
