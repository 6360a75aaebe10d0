//! Finds the control-group hierarchy that has cpusets, and this process's place in it.

use dimmer_processor::units::CpuId;

use super::unavailable;
use crate::root::{Root, parse_cpu_list};
use crate::unavailable::Unavailable;

/// A mounted file system, from `/proc/self/mounts`.
pub(crate) struct Mount {
    pub(crate) point: String,
    pub(crate) kind: String,
    pub(crate) options: String,
}

/// All mounted file systems; none if the kernel does not list them.
pub(crate) fn mounts(root: &Root) -> Vec<Mount> {
    let text = root.text("/proc/self/mounts").unwrap_or_default();
    let mount = |line: &str| {
        let mut fields = line.split(' ').skip(1).map(str::to_owned);
        Some(Mount { point: fields.next()?, kind: fields.next()?, options: fields.next()? })
    };
    text.lines().filter_map(mount).collect()
}

impl Mount {
    /// Whether it is the version 1 hierarchy of cpusets.
    pub(crate) fn is_v1_cpuset(&self) -> bool {
        self.kind == "cgroup" && self.options.split(',').any(|option| option == "cpuset")
    }

    /// The directory of a group.
    pub(crate) fn directory(&self, group: &str) -> String {
        let path = format!("{}/{}", self.point, group.trim_matches('/'));
        path.trim_end_matches('/').to_owned()
    }
}

/// The control group of this process in the hierarchy of `controller`; empty name for version 2.
pub(crate) fn own_group(root: &Root, controller: &str) -> Option<String> {
    group_of(root, "/proc/self", controller)
}

/// As [`own_group`], for the process or thread with this directory in `/proc`.
fn group_of(root: &Root, process: &str, controller: &str) -> Option<String> {
    let text = root.text(&format!("{process}/cgroup")).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let path = fields.next()?;
        controllers.split(',').any(|name| name == controller).then(|| path.to_owned())
    })
}

/// The CPUs that a user thread may run on, by the thread's directory in `/proc`. `None` for threads
/// that have ended and for kernel threads, which have no memory.
pub(super) fn may_run_on(root: &Root, thread: &str) -> Option<Vec<CpuId>> {
    let status = root.text(&format!("{thread}/status")).ok()?;
    let value = |name| status.lines().find_map(|line| line.strip_prefix(name));
    value("VmSize:")?;
    parse_cpu_list(value("Cpus_allowed_list:")?)
}

/// Whether a file of names separated by blanks contains `name`.
pub(super) fn lists(root: &Root, file: &str, name: &str) -> bool {
    root.text(file).unwrap_or_default().split_whitespace().any(|found| found == name)
}

/// This process's control group in the hierarchy that has cpusets.
#[derive(Clone)]
pub(super) struct Base {
    /// The group's directory.
    pub(super) group: String,
    /// The hierarchy's directory.
    pub(super) mount: String,
    pub(super) is_v2: bool,
}

impl Base {
    pub(super) fn find(root: &Root) -> Result<Self, Unavailable> {
        let mounts = mounts(root);
        let v1 = mounts.iter().find(|mount| mount.is_v1_cpuset());
        let has_controller =
            |mount: &&Mount| lists(root, &format!("{}/cgroup.controllers", mount.point), "cpuset");
        let v2 = mounts.iter().filter(|mount| mount.kind == "cgroup2").find(has_controller);
        let (mount, is_v2) = match (v2, v1) {
            (Some(mount), _) => (mount, true),
            (None, Some(mount)) => (mount, false),
            (None, None) => {
                return Err(unavailable(
                    "no hierarchy of control groups with cpusets is mounted",
                    "as root: mount -t cgroup2 none /sys/fs/cgroup, with a kernel that has CONFIG_CPUSETS",
                ));
            }
        };
        let own = own_group(root, if is_v2 { "" } else { "cpuset" });
        let own = own.ok_or_else(|| {
            unavailable("/proc/self/cgroup does not name this process's group", "mount /proc")
        })?;
        let group = mount.directory(&own);
        Ok(Self { group, mount: mount.point.trim_end_matches('/').to_owned(), is_v2 })
    }

    /// As [`Self::find`], for the thread with this directory in `/proc`, in the same version 2
    /// hierarchy. If the thread's group has no cpuset, returns the nearest group above that has
    /// one. `None` if the thread has ended.
    pub(super) fn of(&self, root: &Root, thread: &str) -> Option<Self> {
        let group = group_of(root, thread, "")?;
        let its = Self { group: format!("{}{group}", self.mount), ..self.clone() };
        let has_cpuset = |group: &String| root.exists(&format!("{group}/cpuset.cpus.effective"));
        let group = its.path().into_iter().rev().find(has_cpuset);
        Some(Self { group: group.unwrap_or_else(|| self.mount.clone()), ..its })
    }

    /// A file of the group.
    pub(super) fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.group)
    }

    /// The groups from the hierarchy's root down to this one, both included.
    pub(super) fn path(&self) -> Vec<String> {
        let below = self.group.strip_prefix(&self.mount).unwrap_or_default();
        let mut path = vec![self.mount.clone()];
        for name in below.split('/').filter(|name| !name.is_empty()) {
            let above = path.last().cloned().unwrap_or_default();
            path.push(format!("{above}/{name}"));
        }
        path
    }

    /// The CPUs that threads of the group may run on, ascending. If the group does not list them
    /// (in version 2 the hierarchy's root does not), returns the online CPUs.
    pub(super) fn cpus(&self, root: &Root) -> Vec<CpuId> {
        let files = ["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"];
        let told = files.iter().find_map(|name| root.cpu_list(&self.file(name)).ok());
        let told = told.filter(|cpus| !cpus.is_empty());
        told.unwrap_or_else(|| crate::topology::online(root).unwrap_or_default())
    }
}
