//! C programs that pass marks, with each of the libraries: they do the same, and the libraries do
//! what they are for.
#![expect(clippy::print_stdout, reason = "tests that cannot run here say so")]

mod measuring;
mod migrating;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// A program that includes the headers must get no warnings from them.
const STRICT: [&str; 7] =
    ["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"];

/// All packages of libraries.
const PACKAGES: [&str; 5] = [
    "dimmer-swp",
    "dimmer-swp-migrate",
    "dimmer-swp-dummy",
    "dimmer-ultmigration",
    "dimmer-ultmigration-dummy",
];

/// Whether this tool is there. Prints its name if not.
fn has(tool: &str) -> bool {
    let asked =
        Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let has = asked.is_ok_and(|status| status.success());
    if !has {
        println!("SKIPPED: there is no `{tool}` here");
    }
    has
}

#[track_caller]
fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The folder with the libraries.
fn libraries() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let own = std::env::current_exe().unwrap();
        let built = own.parent().unwrap().parent().unwrap().to_owned();
        // Cargo builds libraries of this kind only on request.
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--offline", "--target-dir"]).arg(built.parent().unwrap());
        build.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
        if built.ends_with("release") {
            build.arg("--release");
        }
        succeed(build.current_dir(FOLDER));
        built
    };
    BUILT.get_or_init(build)
}

/// How the loader is made to choose a library.
#[derive(Clone, Copy, Debug)]
enum By {
    /// `LD_PRELOAD`: before the library that the program is linked with.
    Preload,
    /// `LD_LIBRARY_PATH`: in its place.
    Path,
}

/// A compiled example.
struct Program {
    path: PathBuf,
    folder: TempDir,
}

/// What a program has printed.
#[derive(Debug)]
struct Printed {
    out: String,
    err: String,
}

impl Program {
    /// Compiles an example, as C or C++, linked with these libraries.
    fn compile(source: &str, compiler: &str, linked: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        let mut compile = Command::new(compiler);
        compile.args(STRICT).arg(format!("-I{FOLDER}/include"));
        compile.arg(format!("{FOLDER}/examples/{source}.c")).arg("-o").arg(&path).arg("-pthread");
        compile
            .arg("-Wl,--no-as-needed")
            .arg("-L")
            .arg(libraries())
            .args(linked.iter().map(|name| format!("-l{name}")));
        succeed(&mut compile);
        Self { path, folder }
    }

    /// A C program that is linked with libswp. `None`: there is no compiler.
    fn new(source: &str) -> Option<Self> {
        has("cc").then(|| Self::compile(source, "cc", &["swp"]))
    }

    /// Runs it with a library in place of `linked`.
    #[track_caller]
    fn run_in_place(
        &self,
        linked: &str,
        (library, by): (&str, By),
        arguments: &[&str],
        settings: &[(&str, &str)],
    ) -> Printed {
        let chosen = libraries().join(format!("lib{library}.so"));
        // Ends a program that hangs, which then fails.
        let mut command = Command::new("timeout");
        command.arg("60").arg("env");
        for name in ["SWP_CFG", "SWP_THRESHOLD", "FAST_CPU", "SLOW_CPU", "DIMMER_MARKS"] {
            command.env_remove(name);
        }
        match by {
            By::Preload => {
                command.arg(format!("LD_PRELOAD={}", chosen.display()));
                command.arg(format!("LD_LIBRARY_PATH={}", libraries().display()));
            }
            By::Path => {
                let place = self.folder.path().join(library);
                let _ = std::fs::create_dir(&place);
                let _ = std::os::unix::fs::symlink(chosen, place.join(format!("lib{linked}.so")));
                command.arg(format!("LD_LIBRARY_PATH={}", place.display()));
            }
        }
        command.arg(&self.path).args(arguments).envs(settings.iter().copied());
        let output = succeed(&mut command);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Printed { out: text(output.stdout), err: text(output.stderr) }
    }

    /// Runs it with a library in place of libswp.
    #[track_caller]
    fn run(&self, library: &str, arguments: &[&str], settings: &[(&str, &str)]) -> Printed {
        self.run_in_place("swp", (library, By::Preload), arguments, settings)
    }
}

/// Two CPUs that this process may run on.
fn two_cpus() -> Option<[String; 2]> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let list = list.trim();
    let first = list.split([',', '-']).next().unwrap();
    let last = list.rsplit([',', '-']).next().unwrap();
    if first == last {
        println!("SKIPPED: migration takes two CPUs, and this process may run on one");
        return None;
    }
    Some([first.to_owned(), last.to_owned()])
}
