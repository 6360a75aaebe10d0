//! Programs that the tests compile and run under `dimmer`, and the library that is preloaded into
//! them.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::stderr;

/// A directory with the compiled programs and the library to preload, for tests on a machine
/// without a compiler (`ci/processors.sh`).
fn ready() -> Option<PathBuf> {
    std::env::var_os("DIMMER_VICTIMS").map(PathBuf::from)
}

/// Writes a program or script in a separate process. A file that is open for writing cannot be
/// executed, and each process that another test starts meanwhile would inherit the open file.
pub(crate) fn write_executable(file: &Path, bytes: &[u8]) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat >\"$0\""]).arg(file).stdin(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    assert!(child.wait().unwrap().success());
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Compiled programs.
pub(crate) struct Victims {
    pub(crate) directory: TempDir,
}

impl Victims {
    /// Compiles the C programs with these names; `plugin` and `early_thread` are libraries.
    /// Without a compiler, prints that and returns `None`.
    pub(crate) fn compile(names: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        for name in names {
            if let Some(ready) = ready() {
                let Ok(program) = fs::read(ready.join(name)) else {
                    println!("SKIPPED: {name} was not compiled");
                    return None;
                };
                write_executable(&directory.path().join(name), &program);
                continue;
            }
            let cpp = ["exceptions", "overloads"].contains(name);
            let (compiler, ending) = if cpp { ("c++", "cc") } else { ("cc", "c") };
            let source = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join(format!("tests/victims/{name}.{ending}"));
            let mut compile = Command::new(compiler);
            compile.args(["-O1", "-fexceptions", "-pthread", "-rdynamic", "-o"]);
            compile.arg(directory.path().join(name)).arg(&source);
            if ["plugin", "early_thread"].contains(name) {
                compile.args(["-shared", "-fPIC"]);
            }
            if *name == "early_thread" {
                compile.arg("-Wl,-z,initfirst");
            }
            match compile.args(["-ldl", "-lm"]).output() {
                Ok(output) => assert!(output.status.success(), "{name}: {}", stderr(&output)),
                Err(_) => {
                    println!("SKIPPED: there is no compiler `{compiler}`");
                    return None;
                }
            }
        }
        Some(Self { directory })
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }
}

/// The library to preload, built once.
pub(crate) fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(build_library)
}

fn build_library() -> PathBuf {
    if let Some(ready) = ready() {
        return ready.join("libdimmer_preload.so");
    }
    crate::built(&["--package", "dimmer-preload"]).join("libdimmer_preload.so")
}
