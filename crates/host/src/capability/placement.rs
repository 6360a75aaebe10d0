//! Where and how threads may run: allowed CPUs, cpusets, sched_ext, real time.

use dimmer_processor::units::CpuId;

use super::{Area, Capability, Context, Subject};
use crate::cpusets::{self, Mount, mounts, own_group};
use crate::privilege::LinuxCapability;
use crate::root::format_cpu_list;
use crate::specialisation::{self, SCHED_EXT_DIRECTORY};

const ALLOWED: Subject = Subject {
    id: "allowed-cpus",
    title: "hardware threads for this process",
    area: Area::Placement,
    enables: Some("probe and workers pinned to CPUs; run --delegate and --migrate take two"),
};
const SMT: Subject = Subject {
    id: "smt",
    title: "SMT siblings visible",
    area: Area::Placement,
    enables: Some("run, dimmerd: whole cores dedicated; probe: a busy sibling recognised"),
};
const CPUSET_V2: Subject = Subject {
    id: "cpuset-v2",
    title: "cpusets (cgroup v2)",
    area: Area::Placement,
    enables: Some("run --dedicate: cores dedicated to wide code"),
};
const CPUSET_V1: Subject = Subject {
    id: "cpuset-v1",
    title: "cpusets (cgroup v1)",
    area: Area::Placement,
    enables: Some("run --dedicate on machines with the old hierarchy"),
};
const DEDICATED: Subject = Subject {
    id: "dedicated-cores",
    title: "cores dedicated by cpusets",
    area: Area::Placement,
    enables: Some("run --dedicate: no other program on the workers' cores"),
};
const SCHED_EXT: Subject = Subject {
    id: "sched-ext",
    title: "loadable schedulers (sched_ext)",
    area: Area::Placement,
    enables: Some("specialise: by its scheduler, which no program sees"),
};
const SPECIALISE_MODULE: Subject = Subject {
    id: "specialise-module",
    title: "faults of wide code on narrow CPUs (dimmer_xcr0)",
    area: Area::Placement,
    enables: Some("specialise: wide code moves to wide CPUs before it runs"),
};
const SPECIALISE_SCHEDULER: Subject = Subject {
    id: "specialise-scheduler",
    title: "scheduler of core specialisation (dimmer-specialise)",
    area: Area::Placement,
    enables: Some("specialise: moves threads; without it, --affinity does"),
};
const REAL_TIME: Subject = Subject {
    id: "real-time",
    title: "real-time scheduling",
    area: Area::Placement,
    enables: None,
};

pub(super) fn survey(context: &Context) -> Vec<Capability> {
    vec![
        allowed(context),
        smt(context),
        cpuset_v2(context),
        cpuset_v1(context),
        dedicated(context),
        sched_ext(context),
        specialise_module(context),
        specialise_scheduler(context),
        real_time(context),
    ]
}

fn allowed(context: &Context) -> Capability {
    let allowed = &context.machine.allowed;
    if allowed.is_empty() {
        return ALLOWED.unavailable(
            "no Cpus_allowed_list in /proc/self/status",
            "mount /proc; pinning is tried all the same",
        );
    }
    let cpus = &context.machine.topology.cpus;
    let offline: Vec<CpuId> = cpus.iter().filter(|cpu| !cpu.online).map(|cpu| cpu.id).collect();
    let mut detail =
        format!("{} of {} present: {}", allowed.len(), cpus.len(), format_cpu_list(allowed));
    if !offline.is_empty() {
        detail.push_str(&format!("; offline: {}", format_cpu_list(&offline)));
    }
    ALLOWED.available(detail)
}

fn smt(context: &Context) -> Capability {
    let topology = &context.machine.topology;
    let online = topology.cpus.iter().filter(|cpu| cpu.online).count();
    let cores = topology.online_cores();
    if online > cores {
        return SMT.available(format!("{online} hardware threads on {cores} cores"));
    }
    if context.is_virtual() {
        return SMT.unavailable(
            "the hypervisor shows one thread per core; whether another guest runs on the sibling \
             cannot be seen",
            "use bare metal or a dedicated host where the sibling matters",
        );
    }
    match context.root.text("/sys/devices/system/cpu/smt/control").as_deref() {
        Ok("off") => SMT.unavailable(
            "SMT is switched off",
            "as root: echo on > /sys/devices/system/cpu/smt/control",
        ),
        Ok("forceoff") => {
            SMT.unavailable("SMT is switched off for good", "boot without nosmt=force")
        }
        _ => SMT.not_applicable("one thread per core"),
    }
}

fn cpuset_v2(context: &Context) -> Capability {
    let root = context.root;
    let Some(mount) = mounts(root).into_iter().find(|mount| mount.kind == "cgroup2") else {
        return CPUSET_V2.unavailable(
            "no cgroup2 in /proc/self/mounts",
            "as root: mount -t cgroup2 none /sys/fs/cgroup",
        );
    };
    let listed = |file: &str| {
        let controllers = root.text(file).unwrap_or_default();
        controllers.split_whitespace().any(|name| name == "cpuset")
    };
    if !listed(&format!("{}/cgroup.controllers", mount.point)) {
        return CPUSET_V2.unavailable(
            format!("no cpuset in {}/cgroup.controllers", mount.point),
            "the controller is taken by cgroup v1 or missing in the kernel: boot with \
             systemd.unified_cgroup_hierarchy=1",
        );
    }
    let group = mount.directory(&own_group(root, "").unwrap_or_default());
    if !root.is_writable(&format!("{group}/cgroup.procs")) {
        return CPUSET_V2
            .unavailable(format!("no permission to write {group}/cgroup.procs"), "run as root");
    }
    if !listed(&format!("{group}/cgroup.controllers")) {
        return CPUSET_V2.unavailable(format!("cpuset is not delegated to {group}"), "run as root");
    }
    CPUSET_V2.available(format!("{group}, writable"))
}

fn cpuset_v1(context: &Context) -> Capability {
    let Some(mount) = mounts(context.root).into_iter().find(Mount::is_v1_cpuset) else {
        return CPUSET_V1.not_applicable("no cgroup v1 hierarchy with cpuset is mounted");
    };
    let group = mount.directory(&own_group(context.root, "cpuset").unwrap_or_default());
    if context.root.is_writable(&format!("{group}/tasks")) {
        CPUSET_V1.available(format!("{group}, writable"))
    } else {
        CPUSET_V1.unavailable(format!("no permission to write {group}/tasks"), "run as root")
    }
}

fn dedicated(context: &Context) -> Capability {
    match cpusets::check(context.root) {
        Ok(detail) => DEDICATED.available(detail),
        Err(missing) => DEDICATED.unavailable(missing.why, missing.remedy),
    }
}

fn sched_ext(context: &Context) -> Capability {
    if !context.root.exists(SCHED_EXT_DIRECTORY) {
        return SCHED_EXT.unavailable(
            format!("no {SCHED_EXT_DIRECTORY}: the kernel is built without it"),
            "use Linux 6.12 or later with CONFIG_SCHED_CLASS_EXT",
        );
    }
    let permitted = [LinuxCapability::Bpf, LinuxCapability::Perfmon]
        .into_iter()
        .all(|capability| context.privileges.has_or_admin(capability));
    if !permitted {
        return SCHED_EXT
            .unavailable("loading a scheduler needs CAP_BPF and CAP_PERFMON", "run as root");
    }
    let loaded = specialisation::loaded_scheduler(context.root);
    SCHED_EXT.available(loaded.map_or("disabled".to_owned(), |name| format!("loaded now: {name}")))
}

fn specialise_module(context: &Context) -> Capability {
    if let Err(missing) = specialisation::check_module(context.root) {
        return SPECIALISE_MODULE.unavailable(missing.why, missing.remedy);
    }
    SPECIALISE_MODULE.available(match context.root.text(specialisation::NARROW) {
        Ok(narrow) if narrow.is_empty() => "loaded; all CPUs are wide".to_owned(),
        Ok(narrow) => format!("loaded; narrow now: {narrow}"),
        Err(error) => error.to_string(),
    })
}

fn specialise_scheduler(context: &Context) -> Capability {
    match specialisation::check_scheduler(context.root) {
        Ok(loader) => SPECIALISE_SCHEDULER.available(format!("{}", loader.display())),
        Err(missing) => SPECIALISE_SCHEDULER.unavailable(missing.why, missing.remedy),
    }
}

fn real_time(context: &Context) -> Capability {
    let by = if context.privileges.has(LinuxCapability::SysNice) {
        "by CAP_SYS_NICE".to_owned()
    } else if context.privileges.real_time_priority > 0 {
        format!("up to priority {}", context.privileges.real_time_priority)
    } else {
        return REAL_TIME.unavailable(
            "no CAP_SYS_NICE, and the limit is 0 (ulimit -r)",
            "run as root, or raise rtprio in /etc/security/limits.conf",
        );
    };
    let share = match context.root.integer("/proc/sys/kernel/sched_rt_runtime_us") {
        Ok(-1) => ", without a limit of time",
        Ok(_) => ", a share of every second is kept for others",
        Err(_) => "",
    };
    REAL_TIME.available(format!("{by}{share}"))
}
