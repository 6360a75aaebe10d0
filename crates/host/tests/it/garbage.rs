//! Parsers of files are total: no content makes them panic.

use std::fs;
use std::path::{Path, PathBuf};

use dimmer_host::capability::Survey;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::journal::{OfLive, restore};
use dimmer_host::{cpufreq, steal};

use crate::fixture::{MACHINES, Machine};

/// Contents that have broken parsers before.
const GARBAGE: [&[u8]; 16] = [
    b"",
    b"\n",
    b"\0\0\0\0\0\0\0\0",
    b"-1",
    b"18446744073709551616",
    b"-9223372036854775809",
    b"9999999999999999999999999999999999999999",
    b"0-4294967295",
    b"4294967295",
    b"3-0,-,,,",
    b"\xff\xfe\x80\xc3\x28",
    b"[",
    b"] [",
    b"v2\t\t\t\t00000000\nv2\t/\\",
    b"cpu0 1 2 3 4 5 6 7 18446744073709551615\n\n\t : :: \ncgroup2\ncgroup2 a cgroup2 b c",
    "\u{1F980}K \u{0301}".as_bytes(),
];

fn regular_files(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            regular_files(&path, into);
        } else {
            into.push(path);
        }
    }
}

fn look_at_everything(machine: &Machine) {
    let cpuid = Cpuid::of(&machine.root).unwrap_or_else(|_| Cpuid::instruction());
    let survey = Survey::take(&machine.root, &cpuid);
    assert!(survey.capabilities.len() > 20, "the survey is always whole");
    let _ = cpufreq::policies(&machine.root);
    let _ = steal::stolen(&machine.root);
    let _ = restore(&machine.root, OfLive::Leave);
}

#[test]
fn survives_garbage_in_every_file_at_once() {
    for (_, text) in MACHINES {
        for garbage in GARBAGE {
            let machine = Machine::new(text);
            let mut files = Vec::new();
            regular_files(&machine.root.path("/"), &mut files);
            for file in &files {
                fs::remove_file(file).expect("removed");
                fs::write(file, garbage).expect("written");
            }
            look_at_everything(&machine);
        }
    }
}

#[test]
fn survives_garbage_in_single_files() {
    let (_, text) = MACHINES[0];
    let machine = Machine::new(text);
    let mut files = Vec::new();
    regular_files(&machine.root.path("/"), &mut files);
    for file in &files {
        let good = fs::read(file).expect("read");
        for garbage in [GARBAGE[5], GARBAGE[7], GARBAGE[10]] {
            fs::remove_file(file).expect("removed");
            fs::write(file, garbage).expect("written");
            look_at_everything(&machine);
        }
        fs::write(file, good).expect("written");
    }
}

#[test]
fn survives_directories_where_files_should_be() {
    let machine = Machine::new(
        "//- /sys/devices/system/cpu/online/x\n//- /proc/stat/x\n//- /proc/self/status/x\n\
         //- /run/dimmer/journal.1.0/x\n//- /dev/cpu/0/msr/x\n",
    );
    look_at_everything(&machine);
}
