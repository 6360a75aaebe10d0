//! Made-up machines: one text per machine, written below a temporary directory.
//!
//! ```text
//! //- /sys/devices/system/cpu/cpu{0,1}/topology/core_id mode=0444
//! 0
//! ```
//!
//! A line that starts with `//- ` names a file; the lines up to the next such line are its content.
//! `{a,b}` stands for several files with the same content; `mode=` is octal. Text before the first
//! file describes the machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use dimmer_host::root::Root;
use tempfile::TempDir;

/// A made-up machine. Dropping it removes its files.
pub(crate) struct Machine {
    pub(crate) root: Root,
    _directory: TempDir,
}

impl Machine {
    #[track_caller]
    pub(crate) fn new(text: &str) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let root = Root::new(directory.path());
        for (header, content) in files(text) {
            let (pattern, mode) = match header.split_once(" mode=") {
                Some((pattern, mode)) => (pattern, u32::from_str_radix(mode, 8).expect("a mode")),
                None => (header, 0o644),
            };
            for path in expand(pattern) {
                let path = root.path(&path);
                fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
                fs::write(&path, &content).expect("a file");
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
            }
        }
        Self { root, _directory: directory }
    }
}

fn files(text: &str) -> Vec<(&str, String)> {
    let mut files: Vec<(&str, String)> = Vec::new();
    for line in text.lines() {
        if let Some(header) = line.strip_prefix("//- ") {
            files.push((header, String::new()));
        } else if let Some((_, content)) = files.last_mut() {
            content.push_str(line);
            content.push('\n');
        }
    }
    files
}

fn expand(pattern: &str) -> Vec<String> {
    let Some((before, rest)) = pattern.split_once('{') else { return vec![pattern.to_owned()] };
    let (choices, after) = rest.split_once('}').expect("a closing brace");
    choices.split(',').map(|choice| format!("{before}{choice}{after}")).collect()
}

/// The machines under `testdata/machines`, by name.
pub(crate) const MACHINES: [(&str, &str); 4] = [
    ("skylake-sp-bare-metal", include_str!("../../testdata/machines/skylake-sp-bare-metal.txt")),
    ("granite-rapids-vm", include_str!("../../testdata/machines/granite-rapids-vm.txt")),
    ("zen-5-vm", include_str!("../../testdata/machines/zen-5-vm.txt")),
    ("alder-lake-desktop", include_str!("../../testdata/machines/alder-lake-desktop.txt")),
];

/// The machine named `name` under `testdata/machines`.
#[track_caller]
pub(crate) fn machine(name: &str) -> Machine {
    let found = MACHINES.iter().find(|(known, _)| *known == name);
    Machine::new(found.expect("a machine of that name").1)
}
