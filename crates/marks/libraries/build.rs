//! For each library: its own name in it, which programs look for, and that it stays in memory once
//! it was loaded. Threads that have used it run its code when they end, and its workers run in it.

fn main() {
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let name = package.trim_start_matches("dimmer-").replace('-', "_");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,lib{name}.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=../build.rs");
}
