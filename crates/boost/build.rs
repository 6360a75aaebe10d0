//! Makes the linker have this library initialised before all others, so that it observes the locks
//! of their initialisation too.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo::rerun-if-changed=build.rs");
}
