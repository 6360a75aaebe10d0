//! Gives the shared library the name under which programs ask for it: versions that have the same one can stand in for each other.

fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdimmer.so.{major}");
    println!("cargo::rerun-if-changed=build.rs");
}
