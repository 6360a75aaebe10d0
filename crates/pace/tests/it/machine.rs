//! A made-up machine with cpufreq for all CPUs that a real one can have, and processes that run a
//! test of this program on it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use dimmer_host::affinity;
use dimmer_host::root::Root;
use tempfile::TempDir;

/// Set for a process that a test starts: the directory of its machine.
const CHILD_ROOT: &str = "DIMMER_TEST_CHILD_ROOT";

/// The device of Intel Speed Select core power.
const CORE_POWER: &str = "/dev/isst_interface";

/// The clocks in force on a machine that was not asked.
pub(crate) const BEFORE: [u64; 2] = [1000, 3600];

pub(crate) struct Machine {
    directory: TempDir,
    pub(crate) root: Root,
}

impl Machine {
    /// Even and odd CPUs have a policy each, or all of them have one.
    pub(crate) fn new(policies: u32) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        for policy in 0..policies {
            let folder = directory.path().join(&policy_folder(policy)[1..]);
            fs::create_dir_all(&folder).expect("a folder");
            let cpus: Vec<String> = (0..8192)
                .filter(|cpu| cpu % policies == policy)
                .map(|cpu| cpu.to_string())
                .collect();
            for (name, content) in [
                ("affected_cpus", cpus.join(" ").as_str()),
                ("base_frequency", "3000000"),
                ("cpuinfo_max_freq", "4000000"),
                ("cpuinfo_min_freq", "800000"),
                ("scaling_cur_freq", "3950000"),
                ("scaling_governor", "schedutil"),
                ("scaling_max_freq", "3600000"),
                ("scaling_min_freq", "1000000"),
            ] {
                fs::write(folder.join(name), format!("{content}\n")).expect("a file");
            }
        }
        Self { root: Root::new(directory.path()), directory }
    }

    /// A machine whose files of cpufreq set no limits, and that has Intel Speed Select core power
    /// for the CPUs that this process may run on, 256 cores at most, all in one power domain.
    pub(crate) fn with_core_power() -> Self {
        let machine = Self::new(1);
        let limit = format!("{}/scaling_max_freq", policy_folder(0));
        fs::remove_file(machine.root.path(&limit)).expect("a file");
        let allowed = affinity::allowed().expect("CPUs");
        let cpus: Vec<u32> = allowed.iter().take(256).map(|cpu| cpu.index()).collect();
        let mut device = "version: 2\n".to_owned();
        device += "package 0 domain 0 supported: 1\npackage 0 domain 0 state: 0x0\n";
        for class in 0..4 {
            device += &format!("package 0 domain 0 class {class}: 0xff0000\n");
        }
        let list: Vec<String> = cpus.iter().map(ToString::to_string).collect();
        for (core, cpu) in cpus.iter().enumerate() {
            device +=
                &format!("cpu {cpu}: {:#x}\npackage 0 domain 0 core {core}: 0x0\n", core << 3);
            let folder = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            let folder = machine.directory.path().join(folder);
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join("physical_package_id"), "0\n").expect("a file");
        }
        let online = machine.root.path("/sys/devices/system/cpu/online");
        fs::write(online, list.join(",") + "\n").expect("a file");
        let path = machine.root.path(CORE_POWER);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, device).expect("a file");
        machine
    }

    /// What the device of core power answers.
    pub(crate) fn core_power(&self) -> String {
        self.root.text(CORE_POWER).expect("a file")
    }

    /// Both limits of a policy (MHz).
    pub(crate) fn limits(&self, policy: u32) -> [u64; 2] {
        let limit = |name| self.limit(policy, name).expect("a limit");
        [limit("scaling_min_freq"), limit("scaling_max_freq")]
    }

    /// The same while another thread writes them, if it is not about to.
    pub(crate) fn now(&self) -> Option<[u64; 2]> {
        Some([self.limit(0, "scaling_min_freq")?, self.limit(0, "scaling_max_freq")?])
    }

    /// Whether no limit is changed, as far as that shows while another process writes them.
    pub(crate) fn is_untouched(&self) -> bool {
        (0..2).all(|policy| {
            ["scaling_min_freq", "scaling_max_freq"]
                .into_iter()
                .zip(BEFORE)
                .all(|(name, before)| self.limit(policy, name) == Some(before))
        })
    }

    fn limit(&self, policy: u32, name: &str) -> Option<u64> {
        let khz = self.root.integer(&format!("{}/{name}", policy_folder(policy))).ok()?;
        Some(khz.unsigned_abs() / 1000)
    }

    /// The content of all files, without what Dimmer keeps there.
    pub(crate) fn files(&self) -> BTreeMap<String, String> {
        let mut files = BTreeMap::new();
        collect(&self.directory.path().join("sys"), &mut files);
        files
    }

    /// A process that runs the test of this name on this machine.
    pub(crate) fn command(&self, test: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
        command.env(CHILD_ROOT, self.directory.path()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

pub(crate) fn policy_folder(policy: u32) -> String {
    format!("/sys/devices/system/cpu/cpufreq/policy{policy}")
}

/// The machine of a process that a test has started.
pub(crate) fn child_root() -> Option<Root> {
    std::env::var_os(CHILD_ROOT).map(|directory| Root::new(Path::new(&directory)))
}

fn collect(folder: &Path, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            let text = fs::read_to_string(&path).expect("a file");
            files.insert(path.display().to_string(), text.trim_end().to_owned());
        }
    }
}
