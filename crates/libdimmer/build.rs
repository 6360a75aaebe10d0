//! Gives the shared library the name under which programs ask for it: versions that have the same one can stand in for each other. And keeps it where it
//! is once it was loaded: threads that have used it come back to it when they end, its workers stand in it, and children of fork(2) call it.

fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdimmer.so.{major}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
