//! Makes the linker have this library initialised before all others. At that moment none of their
//! threads runs yet, and none of their code has been called.
//!
//! Also prepares the unwinder that is linked into the library. It is that of the C compiler,
//! without the name `_Unwind_Backtrace`: this library exports a function of that name itself
//! (`backtrace`). Without the tools for that, the shared unwinder is linked, and loaded into each
//! program.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The C compiler's name for the unwinder.
const UNWINDER: &str = "libgcc_eh.a";

/// The renaming of the function whose name this library needs.
const RENAMED: &str = "_Unwind_Backtrace=dimmer_preload_unwind_backtrace";

/// Set by builds whose linker does not know `-z initfirst`, and which set that flag in the linked
/// file (`ci/dist.sh`).
const FLAGGED_LATER: &str = "DIMMER_INITFIRST_LATER";

/// Names another unwinder than that of the C compiler.
const OTHER_UNWINDER: &str = "DIMMER_UNWINDER";

fn main() {
    println!("cargo::rerun-if-env-changed={FLAGGED_LATER}");
    if std::env::var_os(FLAGGED_LATER).is_none() {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(own_unwinder)");
    let Some(directory) = std::env::var_os("OUT_DIR").map(PathBuf::from) else { return };
    match prepare(&directory.join("libdimmer_unwinder.a")) {
        Ok(()) => {
            println!("cargo::rustc-link-search=native={}", directory.display());
            println!("cargo::rustc-cfg=own_unwinder");
        }
        Err(why) => println!("cargo::warning=programs will start later: {why}"),
    }
}

/// Copies the unwinder to `own`, without that function's name.
fn prepare(own: &Path) -> Result<(), String> {
    println!("cargo::rerun-if-env-changed={OTHER_UNWINDER}");
    let path = match std::env::var(OTHER_UNWINDER) {
        Ok(path) => path,
        Err(_) => of_compiler()?,
    };
    println!("cargo::rerun-if-changed={path}");
    let renamed =
        Command::new("objcopy").args(["--redefine-sym", RENAMED, &path]).arg(own).status();
    match renamed {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("objcopy: {status}")),
        Err(error) => Err(format!("cannot run objcopy: {error}")),
    }
}

/// The path of the C compiler's unwinder.
fn of_compiler() -> Result<String, String> {
    let told = Command::new("cc").arg(format!("-print-file-name={UNWINDER}")).output();
    let told = told.map_err(|error| format!("cannot run cc: {error}"))?;
    let path = String::from_utf8_lossy(&told.stdout).trim().to_owned();
    // If the compiler has no such file, it prints the bare name.
    if Path::new(&path).is_absolute() { Ok(path) } else { Err(format!("cc has no {UNWINDER}")) }
}
