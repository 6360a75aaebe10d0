//! `dimmer ps` on made-up hosts, and on this one.

use std::path::Path;

use serde_json::Value;

use crate::{dimmer, stderr, stdout};

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path.trim_start_matches('/'));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// A process of one thread, which had values in AVX-512 registers so long ago (ms).
fn process(root: &Path, pid: u32, name: &str, avx512: &str) {
    write(root, &format!("/proc/{pid}/status"), "Name:\tx\nUid:\t0\t7\t0\t0\nVmSize:\t1 kB\n");
    write(root, &format!("/proc/{pid}/comm"), &format!("{name}\n"));
    write(root, &format!("/proc/{pid}/cgroup"), &format!("0::/system.slice/{name}.service\n"));
    write(root, &format!("/proc/{pid}/task/{pid}/schedstat"), "5 5 5\n");
    let status = format!("AVX512_elapsed_ms:\t{avx512}\n");
    write(root, &format!("/proc/{pid}/task/{pid}/arch_status"), &status);
}

#[test]
fn shows_who_uses_avx512_registers_by_process_and_by_unit() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    process(root, 30, "wide", "0");
    process(root, 40, "idle", "-1");
    std::os::unix::fs::symlink("/bin/none", root.join("proc/30/exe")).unwrap();
    write(root, "/proc/30/maps", "");
    let shown = |arguments: &[&str]| {
        let options = ["--root", root.to_str().unwrap(), "ps", "--model", "i9-7940x"];
        let output = dimmer(root, &[&options, arguments].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let text = shown(&[]);
    assert!(text.starts_with("2 processes, for "), "{text}");
    assert!(text.contains("held values in 1 thread of 1 process."), "{text}");
    assert!(text.contains("wide.service") && !text.contains("idle"), "{text}");
    let text = shown(&["--all", "--cgroup"]);
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(".service")).collect();
    assert!(
        lines[0].starts_with("wide.service ") && lines[1].starts_with("idle.service "),
        "{text}"
    );
    let document: Value = serde_json::from_str(&shown(&["--all", "--json"])).unwrap();
    let [wide, idle] = &document["processes"].as_array().unwrap()[..] else { panic!("{document}") };
    assert_eq!(
        (&wide["pid"], &wide["avx512_threads"], &wide["avx512_ms_ago"]),
        (&30.into(), &1.into(), &0.0.into())
    );
    assert_eq!((&idle["avx512_threads"], &idle["avx512_ms_ago"]), (&0.into(), &Value::Null));
    assert_eq!((&wide["unit"], &wide["user"]), (&"wide.service".into(), &7.into()));
    assert!(idle["code_unknown"].as_str().unwrap().contains("/proc/40/exe"), "{document}");
    let alone = shown(&["-p", "40"]);
    assert!(alone.contains("idle") && !alone.contains("wide.service"), "{alone}");
}

#[test]
fn no_such_process_is_bad_input() {
    let directory = tempfile::tempdir().unwrap();
    let output = dimmer(directory.path(), &["--root", ".", "ps", "-p", "99"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--pid 99: no process"), "{}", stderr(&output));
}

/// Any kernel: the values are this machine's, the keys those of the document.
#[test]
fn every_key_of_this_host_is_documented() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = crate::command(directory.path(), &["ps", "--all", "--json"]);
    let output = command.env("HOME", directory.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let document: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let text = include_str!("../../../../docs/ps-json.md");
    let mut keys = Vec::new();
    crate::doctor::collect(&document, &mut keys);
    assert!(keys.len() > 20, "{document}");
    for key in keys.iter().filter(|key| !["name", "source", "levels"].contains(&key.as_str())) {
        assert!(text.contains(&format!("`{key}`")), "docs/ps-json.md lacks `{key}`");
    }
}
