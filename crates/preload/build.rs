//! Asks the linker to have this library initialised before all others: none of their threads runs
//! yet then, and none of their code has been called.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo::rerun-if-changed=build.rs");
}
