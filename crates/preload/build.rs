//! Asks the linker to have this library initialised before all others: none of their threads runs
//! yet then, and none of their code has been called.
//!
//! And prepares the unwinder that is linked into it: that of the C compiler, but for
//! `_Unwind_Backtrace`, which this library has itself for others to call (`backtrace`). Without the
//! tools for that, the shared one is linked, and loaded into each program.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What the C compiler calls it.
const UNWINDER: &str = "libgcc_eh.a";

/// Who else has the function that is renamed there.
const RENAMED: &str = "_Unwind_Backtrace=dimmer_preload_unwind_backtrace";

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
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
    let told = Command::new("cc").arg(format!("-print-file-name={UNWINDER}")).output();
    let told = told.map_err(|error| format!("cannot run cc: {error}"))?;
    let path = String::from_utf8_lossy(&told.stdout).trim().to_owned();
    // Of a file that it does not know, the compiler gives the name alone.
    if !Path::new(&path).is_absolute() {
        return Err(format!("cc has no {UNWINDER}"));
    }
    println!("cargo::rerun-if-changed={path}");
    let renamed =
        Command::new("objcopy").args(["--redefine-sym", RENAMED, &path]).arg(own).status();
    match renamed {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("objcopy: {status}")),
        Err(error) => Err(format!("cannot run objcopy: {error}")),
    }
}
