//! The unit, container or pod of a process, by its control group.

/// Where a process belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// Its path in the hierarchy of control groups, as this process sees it.
    pub path: String,
    /// The innermost unit of systemd that is no slice.
    pub unit: Option<String>,
    /// The container's identifier, of 64 digits.
    pub container: Option<String>,
    /// The identifier of the Kubernetes pod, with `-`.
    pub pod: Option<String>,
}

/// Digits of a container's identifier (Docker, containerd, CRI-O, Podman).
const CONTAINER_DIGITS: usize = 64;

impl Group {
    /// The group by the content of `/proc/PID/cgroup`. Of several hierarchies, that of version 2
    /// counts, or else that of systemd, or else the first (cgroups(7)). `None` if there is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let lines = || {
            text.lines().filter_map(|line| {
                let (number, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                Some((number, controllers, path))
            })
        };
        let of = |is_one: fn(&str, &str) -> bool| {
            lines().find(|(number, controllers, path)| is_one(number, controllers) && *path != "/")
        };
        let found = of(|number, _| number == "0")
            .or_else(|| of(|_, controllers| controllers == "name=systemd"))
            .or_else(|| of(|_, _| true))
            .or_else(|| lines().next());
        found.map(|(_, _, path)| Self::of_path(path))
    }

    fn of_path(path: &str) -> Self {
        let mut group = Self { path: path.to_owned(), ..Self::default() };
        for part in path.split('/') {
            let name = part.rsplit_once('.').filter(|(_, kind)| is_unit(kind));
            if let Some(pod) = pod(part) {
                group.pod = Some(pod);
            } else if let Some(container) = container(name.map_or(part, |(name, _)| name)) {
                group.container = Some(container.to_owned());
            } else if name.is_some_and(|(_, kind)| kind != "slice") {
                group.unit = Some(part.to_owned());
            }
        }
        group
    }

    /// What a person calls it: the pod, or else the container, the unit, or the path.
    #[must_use]
    pub fn name(&self) -> String {
        /// Digits by which people know containers (`docker ps`).
        const SHORT: usize = 12;
        let container = self.container.as_ref().map(|id| format!("container {}", &id[..SHORT]));
        let pod = self.pod.as_ref().map(|pod| format!("pod {pod}"));
        pod.or(container).or_else(|| self.unit.clone()).unwrap_or_else(|| self.path.clone())
    }
}

/// Whether this is the end of the name of a unit that has a control group.
fn is_unit(kind: &str) -> bool {
    matches!(kind, "service" | "scope" | "slice" | "socket" | "mount" | "swap")
}

/// The pod of a control group of the kubelet's: `kubepods-burstable-pod<id>.slice`, where `_`
/// stands for `-`, or `pod<id>`.
fn pod(part: &str) -> Option<String> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let id = match name.strip_prefix("kubepods") {
        Some(rest) => rest.rsplit_once("-pod")?.1,
        None => name.strip_prefix("pod")?,
    };
    let is_id = id.len() >= 32 && id.chars().all(|c| c.is_ascii_hexdigit() || "-_".contains(c));
    is_id.then(|| id.replace('_', "-"))
}

/// The identifier in the name of a container's control group: `docker-<id>`, `cri-containerd-<id>`,
/// or the identifier alone.
fn container(name: &str) -> Option<&str> {
    let id = name.rsplit('-').next()?;
    let is_id = id.len() == CONTAINER_DIGITS && id.chars().all(|c| c.is_ascii_hexdigit());
    is_id.then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, name: &str) {
        assert_eq!(Group::parse(text).map(|group| group.name()).as_deref(), Some(name), "{text}");
    }

    #[test]
    fn units_containers_and_pods_are_known_by_their_groups() {
        let id = "0123456789abcdef".repeat(4);
        check("0::/system.slice/nginx.service\n", "nginx.service");
        check("0::/system.slice/system-getty.slice/getty@tty1.service", "getty@tty1.service");
        let user = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.scope";
        check(user, "app-x.scope");
        check("0::/user.slice/user-0.slice/session-1.scope/", "session-1.scope");
        check(&format!("0::/system.slice/docker-{id}.scope"), "container 0123456789ab");
        check(&format!("0::/docker/{id}"), "container 0123456789ab");
        let pod = "/kubepods.slice/kubepods-burstable.slice/\
                   kubepods-burstable-pod12345678_1234_1234_1234_123456789abc.slice";
        let inner = format!("0::{pod}/cri-containerd-{id}.scope");
        check(&inner, "pod 12345678-1234-1234-1234-123456789abc");
        assert_eq!(Group::parse(&inner).unwrap().container, Some(id.clone()));
        let older = format!("0::/kubepods/besteffort/pod12345678-1234-1234-1234-123456789abc/{id}");
        check(&older, "pod 12345678-1234-1234-1234-123456789abc");
        check("0::/\n", "/");
        check("0::/podman/with-no-id", "/podman/with-no-id");
    }

    #[test]
    fn of_several_hierarchies_the_newest_counts() {
        let text = "12:cpu,cpuacct:/one\n1:name=systemd:/system.slice/a.service\n0::/b.service\n";
        check(text, "b.service");
        check("12:cpu:/one\n1:name=systemd:/system.slice/a.service\n0::/\n", "a.service");
        check("12:cpu:/one\n", "/one");
        check("3:x:/a:b.service\n", "a:b.service");
        assert_eq!(Group::parse(""), None);
        assert_eq!(Group::parse("nothing"), None);
    }
}
