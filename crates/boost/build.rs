//! Makes the linker have this library initialised before all others, so that it observes the locks
//! of their initialisation too.

/// As for the library with hooks (`crates/preload/build.rs`).
const FLAGGED_LATER: &str = "DIMMER_INITFIRST_LATER";

fn main() {
    println!("cargo::rerun-if-env-changed={FLAGGED_LATER}");
    if std::env::var_os(FLAGGED_LATER).is_none() {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
