//! `dimmer scan` on files of this machine and on files that it cannot scan.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{command, stderr, stdout};

/// Runs `dimmer scan` with a home directory of its own.
fn scan(home: &Path, arguments: &[&str]) -> std::process::Output {
    let mut command = command(home, &[]);
    command.env("HOME", home).env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME");
    command.arg("scan").args(arguments).output().unwrap()
}

fn json(home: &Path, arguments: &[&str]) -> Value {
    let output = scan(home, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

/// The program under test also serves as a file to scan.
const SELF: &str = env!("CARGO_BIN_EXE_dimmer");

/// The C library of this test, which has wide code for memory and strings; if it is not glibc,
/// prints that and returns `None`.
fn libc() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().filter_map(|line| line.split_whitespace().last());
    let found = path.map(PathBuf::from).find(|path| path.ends_with("libc.so.6"));
    if found.is_none() {
        println!("SKIPPED: this test runs on another C library than glibc");
    }
    found
}

#[test]
fn wide_functions_of_the_c_library_are_found() {
    let home = tempfile::tempdir().unwrap();
    let Some(libc) = libc() else { return };
    let report = json(home.path(), &[libc.to_str().unwrap(), "--model", "i9-7940x"]);
    let file = &report["files"][0];
    assert_eq!(file["soname"], "libc.so.6");
    let wide = file["wide_functions"].as_array().unwrap();
    // The glibc of Debian, Fedora and Alpine alike have variants of memcpy for each width.
    assert!(wide.len() > 50, "{}", wide.len());
    assert!(wide.iter().any(|function| function["zmm_instructions"].as_u64() > Some(0)));
    let levels = wide.iter().map(|function| function["level"].as_str().unwrap());
    let levels: BTreeSet<&str> = levels.collect();
    assert!(levels.len() > 1, "{levels:?}");
}

#[test]
fn second_scan_says_the_same_from_the_cache() {
    let home = tempfile::tempdir().unwrap();
    let Some(libc) = libc() else { return };
    let first = json(home.path(), &[libc.to_str().unwrap()]);
    let cached = home.path().join(".cache/dimmer/scan");
    let version = std::fs::read_dir(&cached).unwrap().next().unwrap().unwrap().path();
    let entry = std::fs::read_dir(version).unwrap().next().unwrap().unwrap().path();
    assert_eq!(json(home.path(), &[libc.to_str().unwrap()]), first);
    // The output is the content of the cache: the file is not scanned again.
    let text = std::fs::read_to_string(&entry).unwrap().replace("libc.so.6", "libd.so.7");
    std::fs::write(&entry, text).unwrap();
    let told = json(home.path(), &[libc.to_str().unwrap()]);
    assert_eq!(told["files"][0]["soname"], "libd.so.7");
    // A damaged entry is ignored.
    std::fs::write(&entry, "{").unwrap();
    assert_eq!(json(home.path(), &[libc.to_str().unwrap()]), first);
}

#[test]
fn what_was_not_used_for_long_makes_room_in_a_full_cache() {
    let home = tempfile::tempdir().unwrap();
    let Some(libc) = libc() else { return };
    let kept = home.path().join(".cache/dimmer/scan/of-another-version");
    std::fs::create_dir_all(&kept).unwrap();
    // The files have 80 MiB, but take no room on the disk.
    for hours in 0..80_u64 {
        let file = std::fs::File::create(kept.join(hours.to_string())).unwrap();
        file.set_len(1 << 20).unwrap();
        let used = std::time::SystemTime::now() - std::time::Duration::from_secs(hours * 3600);
        let times = std::fs::FileTimes::new().set_accessed(used).set_modified(used);
        file.set_times(times).unwrap();
    }
    json(home.path(), &[libc.to_str().unwrap()]);
    let left: BTreeSet<u64> = std::fs::read_dir(&kept)
        .unwrap()
        .map(|file| file.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    assert_eq!(left, (0..64).collect());
    assert_eq!(std::fs::read_dir(kept.parent().unwrap()).unwrap().count(), 2);
}

#[test]
fn libraries_of_a_program_and_of_a_process_are_the_same() {
    let home = tempfile::tempdir().unwrap();
    let paths = |report: &Value| -> BTreeSet<PathBuf> {
        let files = report["files"].as_array().unwrap().iter();
        files
            .map(|file| Path::new(file["path"].as_str().unwrap()).canonicalize().unwrap())
            .collect()
    };
    let mut sleeping = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    // The process loads its libraries some time after its start; a statically linked one has none.
    let maps = format!("/proc/{}/maps", sleeping.id());
    for _ in 0..1000 {
        if std::fs::read_to_string(&maps).unwrap().contains("libc.") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let process = json(home.path(), &["-p", &sleeping.id().to_string(), "--libraries"]);
    sleeping.kill().unwrap();
    sleeping.wait().unwrap();
    let program = process["files"][0]["path"].as_str().unwrap();
    let file = json(home.path(), &[program, "--libraries"]);
    assert_eq!(file["failed"].as_array().unwrap().len(), 0);
    let missing: Vec<_> = paths(&process).difference(&paths(&file)).cloned().collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn table_names_functions_and_says_what_is_not_known() {
    let home = tempfile::tempdir().unwrap();
    let text = stdout(&scan(home.path(), &[SELF]));
    assert!(text.starts_with("Levels are left out: nothing is known"), "{text}");
    assert!(text.contains("known by a symbol"), "{text}");
    let with_levels = stdout(&scan(home.path(), &[SELF, "--model", "i9-7940x"]));
    assert!(with_levels.starts_with("Levels as "), "{with_levels}");
}

/// A hidden wide function, long enough to be identified by its bytes.
const HIDDEN: &str = r#"
__asm__(".text\n.globl hidden_wide\n.hidden hidden_wide\n.type hidden_wide, @function\n"
        "hidden_wide:\n.cfi_startproc\n.rept 12\nvpxor %ymm1, %ymm2, %ymm3\n.endr\n"
        "vzeroupper\nret\n.cfi_endproc\n.size hidden_wide, . - hidden_wide\n");
"#;

#[test]
fn stripped_functions_are_named_as_soon_as_a_file_knows_them() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("wide.c"), HIDDEN).unwrap();
    let shell = |commands: &str| {
        let mut shell = std::process::Command::new("sh");
        shell
            .args(["-ec", commands])
            .current_dir(home.path())
            .output()
            .is_ok_and(|output| output.status.success())
    };
    let soname = "-Wl,-soname,libwide.so.1 -Wl,--build-id -nostdlib";
    let debug = "objcopy --only-keep-debug libwide.so.1 kept && strip libwide.so.1";
    let link = "objcopy --add-gnu-debuglink=kept libwide.so.1";
    if !shell(&format!("cc -c wide.c && cc -shared {soname} -o libwide.so.1 wide.o && {debug}"))
        || !shell(&format!("{link} && mv kept libwide.debug"))
    {
        println!("SKIPPED: there is no compiler `cc` with its tools");
        return;
    }
    let library = home.path().join("libwide.so.1");
    let tools = format!("{}:{}", home.path().display(), std::env::var("PATH").unwrap());
    let named_by = |urls: &str| {
        let mut command = command(home.path(), &["scan", library.to_str().unwrap(), "--json"]);
        command.env("HOME", home.path()).env_remove("XDG_CACHE_HOME").env("PATH", &tools);
        let output = command.env("DEBUGINFOD_URLS", urls).output().unwrap();
        let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
        let wide = report["files"][0]["wide_functions"].as_array().unwrap();
        assert_eq!(wide.len(), 1, "{wide:?}");
        ["name", "name_source"].map(|key| wide[0][key].as_str().map(str::to_owned))
    };
    let named = || named_by("");
    let by = |source: &str| ["hidden_wide", source].map(|text| Some(text.to_owned()));
    assert_eq!(named(), [None, None]);
    // A server of debug files is asked if the user has named one, until it has the file.
    let server = "cat >debuginfod-find && chmod +x debuginfod-find";
    assert!(shell(&format!(
        "printf '#!/bin/sh\necho $* $DEBUGINFOD_URLS >>asked; exit 1' | {server}"
    )));
    assert_eq!([named(), named_by("")], [[None, None], [None, None]]);
    assert!(!home.path().join("asked").exists());
    assert_eq!([named_by("http://a"), named_by("http://a")], [[None, None], [None, None]]);
    let asked = std::fs::read_to_string(home.path().join("asked")).unwrap();
    let line = asked.lines().next().unwrap();
    assert!(line.starts_with("debuginfo ") && line.ends_with(" http://a"), "{asked}");
    assert_eq!(asked.lines().count(), 2);
    assert!(shell(&format!("printf '#!/bin/sh\necho /bin/sh' | {server}")));
    assert_eq!(named_by("http://a"), [None, None]);
    assert!(shell(&format!("printf '#!/bin/sh\necho '$PWD/libwide.debug | {server}")));
    assert_eq!([named_by("http://a"), named()], [by("debug"), [None, None]]);
    // Names are cached.
    assert!(shell(&format!("printf '#!/bin/sh\\nexit 1' | {server}")));
    assert_eq!(named_by("http://a"), by("debug"));
    assert!(shell("ar rc libwide.a wide.o"));
    assert_eq!(named(), by("archive"));
    assert!(shell("mkdir .debug && cp libwide.debug .debug/kept"));
    assert_eq!(named(), by("debug"));
    // The debug file of another program is not used.
    assert!(shell("cp /bin/sh .debug/kept"));
    assert_eq!(named(), by("archive"));
}

#[track_caller]
fn refuses(target: &[&str], says: &[&str]) {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("script.sh"), "#!/bin/sh\n").unwrap();
    std::fs::write(home.path().join("empty"), "").unwrap();
    let output = scan(home.path(), target);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    for part in says {
        assert!(message.contains(part), "`{part}` is not in:\n{message}");
    }
    assert!(output.stdout.is_empty());
}

#[test]
fn what_cannot_be_scanned_is_refused_with_the_reason() {
    refuses(&["no-such-file"], &["no file `no-such-file`", "a program or a library"]);
    refuses(&["script.sh"], &["script.sh", "not an ELF file", "23, 21"]);
    refuses(&["empty"], &["empty", "not an ELF file"]);
    refuses(&["/"], &["/: a directory; expected a program"]);
    refuses(&["4194305"], &["no file `4194305`", "`-p 4194305` scans a process"]);
    refuses(&["-p", "4194305"], &["4194305", "process"]);
}

#[test]
fn documentation_describes_every_key_and_no_other() {
    let documentation = include_str!("../../../../docs/scan-json.md");
    let rows = documentation.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.map(|row| row.split(" | ").next().unwrap());
    let keys = cells.flat_map(|cell| cell.split(", ").map(|key| key.trim_matches('`').to_owned()));
    let documented: BTreeSet<String> = keys.collect();
    let home = tempfile::tempdir().unwrap();
    let Some(libc) = libc() else { return };
    let mut report = json(home.path(), &[libc.to_str().unwrap(), "--model", "i9-7940x"]);
    // The list of failures is empty here; its keys are added by hand.
    report["failed"] = serde_json::json!([{ "path": "", "error": "" }]);
    let mut found = BTreeSet::new();
    collect(&report, &mut found);
    assert_eq!(found, documented);
}

fn collect(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(entries) => entries.iter().for_each(|entry| collect(entry, found)),
        Value::Object(entries) => {
            for (key, value) in entries {
                found.insert(key.clone());
                // Its keys are names of classes.
                if key != "instructions" {
                    collect(value, found);
                }
            }
        }
        _ => {}
    }
}

#[test]
fn a_limit_that_is_reached_ends_with_status_3() {
    let home = tempfile::tempdir().unwrap();
    let Some(libc) = libc() else { return };
    let status = |limit: &str| {
        let output = scan(home.path(), &[libc.to_str().unwrap(), "--fail-on", limit]);
        (output.status.code(), stderr(&output))
    };
    let (code, said) = status("light-256");
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("libc.so.6: ") && said.contains(" functions, as "), "{said}");
    assert_eq!(status("tile"), (Some(0), String::new()));
    let (code, said) = status("wide");
    assert_eq!(code, Some(2));
    assert!(
        said.contains("--fail-on: unknown class or level `wide`; expected light-256"),
        "{said}"
    );
}

/// A made-up process that runs a file of this machine, and whose library an upgrade has deleted.
#[test]
fn a_library_that_was_deleted_since_keeps_the_limit_from_being_answered() {
    let home = tempfile::tempdir().unwrap();
    let Some(libc) = libc() else { return };
    let process = home.path().join("proc/7");
    std::fs::create_dir_all(&process).unwrap();
    std::os::unix::fs::symlink(&libc, process.join("exe")).unwrap();
    let maps = "888-999 r-xp 00000000 fe:00 3   /usr/lib/libgone.so.1 (deleted)\n";
    std::fs::write(process.join("maps"), maps).unwrap();
    let root = ["--root", home.path().to_str().unwrap(), "-p", "7", "--fail-on", "tile"];
    assert_eq!(scan(home.path(), &root).status.code(), Some(0));
    let output = scan(home.path(), &[&root[..], &["--libraries", "--json"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("not answered, as 1 file could not be scanned"));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["failed"][0]["path"], "/usr/lib/libgone.so.1");
    let why = report["failed"][0]["error"].as_str().unwrap();
    assert!(why.starts_with("deleted since the process loaded it"), "{why}");
}
