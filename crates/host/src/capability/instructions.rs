//! Instructions: vectors, tiles, waiting, the time-stamp counter.

use super::{Area, Capability, Context, Subject};
use crate::cpuid::Feature;
use crate::{faulting, migration, tile};

const AVX2: Subject = Subject {
    id: "avx2",
    title: "256-bit vectors (AVX2, FMA)",
    area: Area::Instructions,
    enables: Some(
        "probe: kernels of 256 bits; run --narrow: the width that AVX-512 code falls back to",
    ),
};
const AVX512: Subject = Subject {
    id: "avx512",
    title: "512-bit vectors (AVX-512)",
    area: Area::Instructions,
    enables: Some("probe: kernels of 512 bits"),
};
const AMX: Subject = Subject {
    id: "amx",
    title: "tiles (AMX)",
    area: Area::Instructions,
    enables: Some("probe: kernels on tiles"),
};
const WAITPKG: Subject = Subject {
    id: "waitpkg",
    title: "user-mode waiting (UMONITOR, UMWAIT, TPAUSE)",
    area: Area::Instructions,
    enables: Some("run, regions: workers that wait without spinning at full power"),
};
const MIGRATION: Subject = Subject {
    id: "migration",
    title: "threads that change core by themselves (FSGSBASE)",
    area: Area::Instructions,
    enables: Some("run --migrate: a worker goes on with a thread's stack and thread-local storage"),
};
const MONITORX: Subject = Subject {
    id: "monitorx",
    title: "user-mode waiting (MONITORX, MWAITX)",
    area: Area::Instructions,
    enables: Some("run, regions: workers that wait without spinning at full power"),
};
const MONITOR: Subject = Subject {
    id: "monitor",
    title: "waiting in the kernel (MONITOR, MWAIT)",
    area: Area::Instructions,
    enables: None,
};
const TSC: Subject = Subject {
    id: "tsc",
    title: "invariant time-stamp counter",
    area: Area::Instructions,
    enables: Some("probe: the clock of a core measured by timing, without privilege"),
};

const CPUID_FAULTING: Subject = Subject {
    id: "cpuid-faulting",
    title: "CPUID answered by programs (CPUID faulting)",
    area: Area::Instructions,
    enables: Some("run --narrow: vector features hidden where a library has no switch for them"),
};

pub(super) fn survey(context: &Context) -> Vec<Capability> {
    vec![
        avx2(context),
        avx512(context),
        amx(context),
        migration(context),
        waitpkg(context),
        monitorx(context),
        monitor(context),
        tsc(context),
        cpuid_faulting(context),
    ]
}

/// Reason why a feature of the processor may not be used.
const STATE_OFF: &str = "the processor has it, but the operating system does not keep its \
                         registers (XCR0)";

fn avx2(context: &Context) -> Capability {
    let missing: Vec<&str> = [Feature::Avx2, Feature::Fma]
        .into_iter()
        .filter(|feature| !context.machine.has(*feature))
        .map(Feature::name)
        .collect();
    if missing.is_empty() {
        AVX2.available("avx2, fma")
    } else if context.cpuid.has(Feature::Avx2) && !context.machine.has(Feature::Avx2) {
        AVX2.unavailable(STATE_OFF, "remove noxsave or clearcpuid from the kernel's command line")
    } else {
        AVX2.not_applicable(format!("the processor does not show {}", missing.join(", ")))
    }
}

fn avx512(context: &Context) -> Capability {
    if context.machine.has(Feature::Avx512f) {
        let subsets = context.machine.features.iter().map(|feature| feature.name());
        let subsets: Vec<&str> = subsets.filter_map(|name| name.strip_prefix("avx512")).collect();
        let subsets: Vec<&str> = subsets.iter().map(|name| name.trim_start_matches('_')).collect();
        AVX512.available(subsets.join(", "))
    } else if context.cpuid.has(Feature::Avx512f) {
        AVX512.unavailable(STATE_OFF, "remove clearcpuid=avx512f from the kernel's command line")
    } else if context.is_virtual() {
        AVX512.not_applicable("the processor, as the hypervisor shows it, has none")
    } else {
        AVX512.not_applicable("the processor has none")
    }
}

fn amx(context: &Context) -> Capability {
    if !context.cpuid.has(Feature::AmxTile) {
        return AMX.not_applicable("the processor shows none");
    }
    if !context.machine.has(Feature::AmxTile)
        || (context.root.is_live() && !tile::kernel_supports())
    {
        return AMX.unavailable(STATE_OFF, "use Linux 5.16 or later");
    }
    let kinds = [Feature::AmxBf16, Feature::AmxInt8, Feature::AmxFp16];
    let kinds: Vec<&str> = kinds
        .into_iter()
        .filter(|feature| context.machine.has(*feature))
        .filter_map(|feature| feature.name().strip_prefix("amx_"))
        .collect();
    AMX.available(format!("{}; permission is given on request", kinds.join(", ")))
}

fn migration(context: &Context) -> Capability {
    if !context.cpuid.has(Feature::Fsgsbase) {
        return MIGRATION.not_applicable("the processor does not show fsgsbase");
    }
    if context.root.is_live() && !migration::can_change_thread_pointer() {
        let remedy = "use Linux 5.9 or later, without nofsgsbase on its command line";
        return MIGRATION
            .unavailable("the kernel does not let programs change the FS base", remedy);
    }
    if context.root.is_live() && migration::has_shadow_stack() {
        let remedy = "start without GLIBC_TUNABLES=glibc.cpu.hwcaps=SHSTK";
        return MIGRATION.unavailable("shadow stacks are on in this process", remedy);
    }
    MIGRATION.available("fsgsbase, no shadow stack")
}

fn waitpkg(context: &Context) -> Capability {
    if !context.cpuid.has(Feature::Waitpkg) {
        return WAITPKG.not_applicable("the processor shows none");
    }
    let control = "/sys/devices/system/cpu/umwait_control";
    let setting = |name: &str| context.root.integer(&format!("{control}/{name}")).ok();
    let longest = match setting("max_time") {
        Some(0) => "without a time limit".to_owned(),
        Some(cycles) => format!("up to {cycles} TSC ticks at a time"),
        None => "time limit unknown".to_owned(),
    };
    let deeper = match setting("enable_c02") {
        Some(0) => "C0.1 only",
        Some(_) => "C0.1 and C0.2",
        None => "depth unknown",
    };
    WAITPKG.available(format!("{longest}, {deeper}"))
}

fn monitorx(context: &Context) -> Capability {
    if context.cpuid.has(Feature::Monitorx) {
        MONITORX.available("monitorx, mwaitx")
    } else if context.is_amd() && context.is_virtual() {
        MONITORX.not_applicable("the hypervisor does not show it to this guest")
    } else {
        MONITORX.not_applicable("the processor shows none")
    }
}

fn monitor(context: &Context) -> Capability {
    if context.cpuid.has(Feature::Monitor) {
        MONITOR.available("privileged: the kernel's idle loop uses it")
    } else if context.is_virtual() {
        MONITOR.not_applicable("the hypervisor does not show it to this guest")
    } else {
        MONITOR.not_applicable("the processor shows none")
    }
}

fn tsc(context: &Context) -> Capability {
    let tsc = &context.machine.tsc;
    if !tsc.invariant {
        return TSC.unavailable(
            "the processor does not promise a constant rate (CPUID 0x80000007)",
            "in a virtual machine, have the host pass invtsc through (QEMU: -cpu host,+invtsc); \
             dimmer probe refuses to measure without it",
        );
    }
    let rate = match tsc.frequency {
        Some((frequency, source)) => format!("{:.6} GHz by {}", frequency.ghz(), source.name()),
        None => "rate not given, to be measured".to_owned(),
    };
    let clock = match tsc.clocksource.as_deref() {
        Some("tsc") => "the kernel tells the time by it".to_owned(),
        Some(other) => format!("the kernel tells the time by {other}"),
        None => "clock source unknown".to_owned(),
    };
    TSC.available(format!("{rate}; {clock}"))
}

fn cpuid_faulting(context: &Context) -> Capability {
    if context.root.is_live() {
        return match faulting::check() {
            Ok(()) => CPUID_FAULTING.available("by arch_prctl"),
            Err(missing) => CPUID_FAULTING.unavailable(missing.why, missing.remedy),
        };
    }
    let text = context.root.text("/proc/cpuinfo").unwrap_or_default();
    if text.split_whitespace().any(|flag| flag == faulting::FLAG) {
        CPUID_FAULTING.available(format!("{} in /proc/cpuinfo", faulting::FLAG))
    } else {
        let why = format!("no {} in /proc/cpuinfo", faulting::FLAG);
        CPUID_FAULTING.unavailable(why, faulting::NEEDS)
    }
}
