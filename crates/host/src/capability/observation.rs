//! Observing programs from outside: BPF, uprobes, the kernel's record of AVX-512 use.

use super::{Area, Capability, Context, Subject};
use crate::privilege::LinuxCapability;

const BPF: Subject =
    Subject { id: "bpf", title: "BPF programs", area: Area::Observation, enables: None };
const UPROBES: Subject = Subject {
    id: "uprobes",
    title: "probes in user programs (uprobes)",
    area: Area::Observation,
    enables: Some("observe -p, observe --via uprobes: calls counted from outside"),
};
const ARCH_STATUS: Subject = Subject {
    id: "arch-status",
    title: "AVX-512 use per process (arch_status)",
    area: Area::Observation,
    enables: Some("ps: who uses AVX-512 registers now"),
};

pub(super) fn survey(context: &Context) -> Vec<Capability> {
    vec![bpf(context), uprobes(context), arch_status(context)]
}

fn bpf(context: &Context) -> Capability {
    let switch = "/proc/sys/kernel/unprivileged_bpf_disabled";
    let Ok(setting) = context.root.integer(switch) else {
        return BPF.unavailable(
            format!("no {switch}: the kernel is built without BPF, or a sandbox hides it"),
            "use a kernel with CONFIG_BPF_SYSCALL",
        );
    };
    let types = "/sys/kernel/btf/vmlinux";
    if !context.root.exists(types) {
        return BPF.unavailable(
            format!("no {types}: programs cannot be fitted to this kernel"),
            "use a kernel with CONFIG_DEBUG_INFO_BTF",
        );
    }
    if context.privileges.has_or_admin(LinuxCapability::Bpf) {
        BPF.available(format!("permitted, types in {types}"))
    } else {
        BPF.unavailable(
            format!("no CAP_BPF; {switch} is {setting}, and tracing needs the capability anyway"),
            "run as root, or give CAP_BPF and CAP_PERFMON",
        )
    }
}

fn uprobes(context: &Context) -> Capability {
    let device = "/sys/bus/event_source/devices/uprobe/type";
    if !context.root.exists(device) {
        return UPROBES
            .unavailable(format!("no {device}"), "use a kernel with CONFIG_UPROBE_EVENTS");
    }
    if context.privileges.has_or_admin(LinuxCapability::Perfmon) {
        UPROBES.available("by perf_event_open")
    } else {
        UPROBES.unavailable("no CAP_PERFMON", "run as root, or give CAP_PERFMON")
    }
}

fn arch_status(context: &Context) -> Capability {
    let file = "/proc/self/arch_status";
    match context.root.text(file) {
        Ok(text) if text.contains("AVX512_elapsed_ms") => ARCH_STATUS
            .available(format!("{file}; best effort: noticed when a task is scheduled out")),
        Ok(_) => ARCH_STATUS.not_applicable("without AVX-512 the kernel has nothing to tell"),
        Err(_) => ARCH_STATUS.unavailable(
            format!("no {file}"),
            "use Linux 5.2 or later with CONFIG_PROC_PID_ARCH_STATUS",
        ),
    }
}
