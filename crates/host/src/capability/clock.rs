//! The clock and the power: model-specific registers, cpufreq and its drivers, turbo, RAPL.

use dimmer_processor::units::CpuId;

use super::{Area, Capability, Context, Subject};
use crate::core_power;
use crate::cpufreq::{self, POLICIES, Policy, clocks};
use crate::cpuid::Feature;
use crate::msr;
use crate::pstate::Pstates;
use crate::pstate::driver::{DEVICE, Driver};
use crate::pstate::levels::{self, Interface};
use crate::root::format_cpu_list;
use crate::tune;
use crate::turbo::Turbo;
use crate::uclamp;
use crate::uclamp::group::GroupClamps;

const MSR: Subject = Subject {
    id: "msr",
    title: "model-specific registers (msr)",
    area: Area::Clock,
    enables: Some("pstate: all of it"),
};
const PSTATES: Subject = Subject {
    id: "p-states",
    title: "P-states by registers",
    area: Area::Clock,
    enables: Some(
        "pstate: shows and sets them; probe --mode pstate without cpufreq; libdimmer: clocks that \
         threads ask for, the sixth choice",
    ),
};
const PSTATE_DRIVER: Subject = Subject {
    id: "dimmer-pstate",
    title: "P-states by the module dimmer_pstate",
    area: Area::Clock,
    enables: Some("libdimmer: clocks that threads ask for, the fifth choice"),
};
const UCLAMP: Subject = Subject {
    id: "uclamp",
    title: "clamps of a thread's utilization (uclamp)",
    area: Area::Clock,
    enables: Some("libdimmer: clocks that threads ask for, the first choice"),
};
const GROUP_CLAMPS: Subject = Subject {
    id: "group-clamps",
    title: "clamps of the control group (cpu.uclamp)",
    area: Area::Clock,
    enables: Some("libdimmer: clocks that threads ask for, the third choice"),
};
const CLOCK_REQUESTS: Subject = Subject {
    id: "clock-requests",
    title: "requests of clocks by files (cpufreq)",
    area: Area::Clock,
    enables: Some("libdimmer: clocks that threads ask for, the second choice"),
};
const MSR_SAFE: Subject = Subject {
    id: "msr-safe",
    title: "model-specific registers (msr-safe)",
    area: Area::Clock,
    enables: None,
};
const CPUFREQ: Subject = Subject {
    id: "cpufreq",
    title: "frequency policies (cpufreq)",
    area: Area::Clock,
    enables: Some(
        "top: the clock of each CPU; probe --turbo-off on some drivers; probe --mode pstate; pstate \
         tune: governor and limits",
    ),
};
const INTEL_PSTATE: Subject = Subject {
    id: "intel-pstate",
    title: "driver intel_pstate",
    area: Area::Clock,
    enables: Some("probe --turbo-off: the switch for turbo"),
};
const AMD_PSTATE: Subject =
    Subject { id: "amd-pstate", title: "driver amd_pstate", area: Area::Clock, enables: None };
const HWP: Subject = Subject {
    id: "hwp",
    title: "hardware-managed frequencies (HWP, CPPC)",
    area: Area::Clock,
    enables: None,
};
const HWP_REQUESTS: Subject = Subject {
    id: "hwp-requests",
    title: "performance levels by registers (HWP)",
    area: Area::Clock,
    enables: Some("libdimmer: clocks that threads ask for, the seventh choice"),
};
const CPPC_REQUESTS: Subject = Subject {
    id: "cppc-requests",
    title: "performance levels by registers (CPPC)",
    area: Area::Clock,
    enables: Some("libdimmer: clocks that threads ask for, the seventh choice"),
};
const CLOCK_MODERATION: Subject = Subject {
    id: "clock-moderation",
    title: "clocks that dimmerd moderates",
    area: Area::Clock,
    enables: Some("libdimmer: clocks that threads ask for, without rights; before all choices"),
};
/// The mark beside the socket of root's server (`dimmer_protocol::clocks_mark`).
const MODERATES: &str = "/run/dimmer/socket.clocks";
const SPEED_SELECT: Subject = Subject {
    id: "speed-select",
    title: "Intel Speed Select core power",
    area: Area::Clock,
    enables: Some("libdimmer: clocks that threads ask for, the eighth choice"),
};
const TURBO: Subject = Subject {
    id: "turbo",
    title: "turbo switch",
    area: Area::Clock,
    enables: Some("probe --turbo-off, pstate tune: measurements at a steady clock"),
};
const PREFERENCE: Subject = Subject {
    id: "energy-preference",
    title: "preference of the processor (EPP)",
    area: Area::Clock,
    enables: Some(
        "pstate tune: has the processor prefer speed; libdimmer: clocks that threads ask for, the \
         fourth choice",
    ),
};
const PERCENT: Subject = Subject {
    id: "intel-pstate-limits",
    title: "limits of intel_pstate for all CPUs",
    area: Area::Clock,
    enables: Some("pstate tune: the whole range of clocks"),
};
const WAKE_UP: Subject = Subject {
    id: "idle-states",
    title: "limit of idle states (cpu_dma_latency)",
    area: Area::Clock,
    enables: Some("pstate tune: keeps cores awake"),
};
const RAPL: Subject =
    Subject { id: "rapl", title: "energy counters (RAPL)", area: Area::Clock, enables: None };

pub(super) fn survey(context: &Context) -> Vec<Capability> {
    vec![
        msr(context),
        msr_safe(context),
        pstates(context),
        pstate_driver(context),
        cpufreq(context),
        uclamp(context),
        clock_requests(context),
        group_clamps(context),
        intel_pstate(context),
        amd_pstate(context),
        hwp(context),
        levels(context, &HWP_REQUESTS, Interface::Hwp),
        levels(context, &CPPC_REQUESTS, Interface::Cppc),
        clock_moderation(context),
        turbo(context),
        preference(context),
        percent(context),
        speed_select(context),
        wake_up(context),
        rapl(context),
    ]
}

/// Remedy for everything that only bare metal offers.
const BARE_METAL: &str = "only the host can: use bare metal where it matters; measuring by timing \
                          works here";

/// IA32_TIME_STAMP_COUNTER: every x86-64 processor has it, and reading it has no side effect.
const TSC_MSR: u32 = 0x10;

fn msr(context: &Context) -> Capability {
    let cpu = context.machine.topology.cpus.iter().find(|cpu| cpu.online);
    let cpu = cpu.map_or(CpuId::new(0), |cpu| cpu.id);
    let path = msr::path(context.root, cpu);
    match msr::value(context.root, cpu, TSC_MSR) {
        Ok(_) if context.root.is_writable(&path) => {
            MSR.available(format!("{path} readable, opens for writing"))
        }
        Ok(_) => MSR.available(format!("{path} readable, not writable")),
        Err(missing) => MSR.unavailable(missing.why, missing.remedy),
    }
}

fn pstates(context: &Context) -> Capability {
    match Pstates::read_first(context.root, context.cpuid) {
        Ok(Pstates { part, .. }) => {
            PSTATES.available(format!("P{} to P{}", part.fastest(), part.slowest()))
        }
        Err(missing) => PSTATES.unavailable(missing.why, missing.remedy),
    }
}

fn pstate_driver(context: &Context) -> Capability {
    match Driver::open(context.root) {
        Ok(driver) => {
            PSTATE_DRIVER.available(format!("{DEVICE} allows {} P-states", driver.states().len()))
        }
        Err(missing) => PSTATE_DRIVER.unavailable(missing.why, missing.remedy),
    }
}

fn msr_safe(context: &Context) -> Capability {
    let lists = ["/dev/cpu/msr_allowlist", "/dev/cpu/msr_whitelist"];
    let Some(list) = lists.into_iter().find(|path| context.root.exists(path)) else {
        return MSR_SAFE.unavailable(
            "no /dev/cpu/msr_allowlist: the module msr-safe is not loaded",
            "have the administrator load msr-safe with an allow list",
        );
    };
    let device = "/dev/cpu/0/msr_safe";
    if context.root.is_readable(device) {
        MSR_SAFE.available(format!("{device} readable, limited by {list}"))
    } else {
        MSR_SAFE.unavailable(
            format!("no permission to read {device}"),
            "have the administrator give this user's group access to /dev/cpu/*/msr_safe",
        )
    }
}

fn cpufreq(context: &Context) -> Capability {
    let policies = cpufreq::policies(context.root);
    if policies.is_empty() {
        let why = format!("no policy under {POLICIES}");
        return if context.is_virtual() {
            CPUFREQ.unavailable(why, BARE_METAL)
        } else {
            CPUFREQ.unavailable(
                why,
                "load a driver: intel_pstate, amd_pstate or acpi-cpufreq; enable P-states in the \
                 firmware",
            )
        };
    }
    // A machine has hundreds of equal policies of a few kinds.
    let mut kinds: Vec<(String, Vec<&Policy>)> = Vec::new();
    for policy in &policies {
        let kind = describe(policy);
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, members)) => members.push(policy),
            None => kinds.push((kind, vec![policy])),
        }
    }
    let details: Vec<String> = kinds
        .into_iter()
        .map(|(kind, members)| {
            let mut cpus: Vec<_> =
                members.iter().flat_map(|policy| policy.cpus.iter().copied()).collect();
            cpus.sort_unstable();
            format!("cpu {}: {kind}", format_cpu_list(&cpus))
        })
        .collect();
    CPUFREQ.available(details.join("; "))
}

fn uclamp(context: &Context) -> Capability {
    match uclamp::check(context.root) {
        Ok(()) => UCLAMP.available("the governor schedutil follows them"),
        Err(missing) => UCLAMP.unavailable(missing.why, missing.remedy),
    }
}

fn clock_requests(context: &Context) -> Capability {
    match clocks::check(context.root) {
        Ok(policies) => {
            let lacks_base = policies.iter().any(|(_, clocks)| clocks.base.is_none());
            let without = if lacks_base { ", without a base clock" } else { "" };
            CLOCK_REQUESTS.available(format!("every policy is writable{without}"))
        }
        Err(missing) => CLOCK_REQUESTS.unavailable(missing.why, missing.remedy),
    }
}

fn group_clamps(context: &Context) -> Capability {
    match GroupClamps::find(context.root) {
        Ok(found) => GROUP_CLAMPS.available(format!(
            "{}, for a program that is in it alone",
            found.files().join(" and ")
        )),
        Err(missing) => GROUP_CLAMPS.unavailable(missing.why, missing.remedy),
    }
}

fn speed_select(context: &Context) -> Capability {
    if !context.is_intel() {
        return SPEED_SELECT.not_applicable("no Intel processor");
    }
    let domains = match core_power::read(context.root) {
        Ok(domains) => domains,
        Err(missing) => return SPEED_SELECT.unavailable(missing.why, missing.remedy),
    };
    let details: Vec<String> = domains.iter().map(core_power::Domain::describe).collect();
    let detail = details.join("; ");
    match core_power::check(context.root, &domains) {
        Ok(()) => SPEED_SELECT.available(detail),
        Err(missing) => {
            SPEED_SELECT.available(format!("{detail}; not for requests of clocks: {}", missing.why))
        }
    }
}

fn clock_moderation(context: &Context) -> Capability {
    if context.root.exists(MODERATES) {
        return CLOCK_MODERATION.available("dimmerd moderates them: `dimmer top` shows requests");
    }
    let remedy = "have the administrator run dimmerd as root with clocks.moderate = true";
    CLOCK_MODERATION.unavailable(format!("no {MODERATES}"), remedy)
}

fn describe(policy: &Policy) -> String {
    let unknown = || "unknown".to_owned();
    let range =
        |range: Option<_>| range.map_or_else(unknown, |(low, high): (_, _)| mhz_range(low, high));
    format!(
        "{}, governor {}, hardware {}, allowed {}, {}",
        policy.driver.clone().unwrap_or_else(unknown),
        policy.governor.clone().unwrap_or_else(unknown),
        range(policy.hardware),
        range(policy.allowed),
        if policy.writable { "writable" } else { "read-only for this user" },
    )
}

fn mhz_range(
    low: dimmer_processor::units::KiloHertz,
    high: dimmer_processor::units::KiloHertz,
) -> String {
    format!("{}-{} MHz", low.khz() / 1000, high.khz() / 1000)
}

fn intel_pstate(context: &Context) -> Capability {
    if !context.is_intel() {
        return INTEL_PSTATE.not_applicable("no Intel processor");
    }
    pstate(
        context,
        &INTEL_PSTATE,
        "intel_pstate",
        "remove intel_pstate=disable from the kernel's \
        command line",
    )
}

fn amd_pstate(context: &Context) -> Capability {
    if !context.is_amd() {
        return AMD_PSTATE.not_applicable("no AMD processor");
    }
    pstate(
        context,
        &AMD_PSTATE,
        "amd_pstate",
        "use Linux 6.5 or later, enable CPPC in the \
        firmware, and boot with amd_pstate=active",
    )
}

fn pstate(context: &Context, subject: &Subject, driver: &str, remedy: &str) -> Capability {
    let status = format!("/sys/devices/system/cpu/{driver}/status");
    match context.root.text(&status) {
        Ok(mode) if mode == "active" || mode == "passive" || mode == "guided" => {
            subject.available(format!("mode {mode}"))
        }
        Ok(mode) => subject.unavailable(format!("{status} is `{mode}`"), remedy),
        Err(_) if context.is_virtual() => subject.unavailable(format!("no {status}"), BARE_METAL),
        Err(_) => subject.unavailable(format!("no {status}"), remedy),
    }
}

fn hwp(context: &Context) -> Capability {
    let name = if context.cpuid.has(Feature::Hwp) {
        "HWP"
    } else if context.cpuid.has(Feature::Cppc) {
        "CPPC"
    } else if context.is_virtual() {
        return HWP.not_applicable("the processor, as the hypervisor shows it, has none");
    } else {
        return HWP.not_applicable("the processor has none");
    };
    let preference = format!("{POLICIES}/policy0/energy_performance_preference");
    match context.root.text(&preference) {
        Ok(preference) => HWP.available(format!("{name}, preference of policy0: {preference}")),
        Err(_) if context.root.exists("/sys/devices/system/cpu/cpu0/acpi_cppc") => {
            HWP.available(format!("{name}, abilities in cpu*/acpi_cppc, no preference offered"))
        }
        Err(_) if context.is_virtual() => {
            HWP.unavailable(format!("{name} in CPUID, but no {preference}"), BARE_METAL)
        }
        Err(_) => HWP.unavailable(
            format!("{name} in CPUID, but no {preference}"),
            "use the driver intel_pstate or amd_pstate in active mode",
        ),
    }
}

fn levels(context: &Context, subject: &Subject, interface: Interface) -> Capability {
    if Interface::of(context.cpuid) != Some(interface) {
        return subject.not_applicable(format!("the processor shows no {}", interface.name()));
    }
    match levels::check(context.root, context.cpuid).as_deref() {
        Ok([first, ..]) => {
            let (cpu, lowest, highest) = (first.cpu, first.lowest, first.highest);
            subject.available(format!("levels {lowest} to {highest} of cpu {cpu}"))
        }
        Ok([]) => subject.unavailable("no CPU is online", BARE_METAL),
        Err(missing) => subject.unavailable(missing.why.clone(), missing.remedy.clone()),
    }
}

fn turbo(context: &Context) -> Capability {
    let switch = match Turbo::find(context.root) {
        Ok(switch) => switch,
        Err(missing) => return TURBO.unavailable(missing.why, missing.remedy),
    };
    let file = switch.files().first().cloned().unwrap_or_default();
    match switch.is_on(context.root) {
        Ok(on) if switch.is_writable(context.root) => {
            TURBO.available(format!("{file}, turbo is {}", if on { "on" } else { "off" }))
        }
        Ok(_) => TURBO.unavailable(format!("no permission to write {file}"), "run as root"),
        Err(error) => TURBO.unavailable(msr::cause(&error), "run as root"),
    }
}

fn preference(context: &Context) -> Capability {
    let file = "energy_performance_preference";
    let policies = cpufreq::policies(context.root);
    let path = |policy: &Policy| format!("{POLICIES}/{}/{file}", policy.name);
    let Some((path, now)) = policies.iter().find_map(|policy| {
        let path = path(policy);
        context.root.text(&path).ok().map(|now| (path, now))
    }) else {
        let why = format!("no policy has {file}");
        let remedy = if context.is_virtual() {
            BARE_METAL
        } else {
            "use the driver intel_pstate or amd_pstate in active mode, on a processor with HWP or CPPC"
        };
        return PREFERENCE.unavailable(why, remedy);
    };
    match cpufreq::preference::check(context.root) {
        Ok(_) => writable(context, &PREFERENCE, &path, &now),
        Err(missing) => {
            let detail = format!("{now}; not for requests of clocks: {}", missing.why);
            writable(context, &PREFERENCE, &path, &detail)
        }
    }
}

fn percent(context: &Context) -> Capability {
    let [upper, lower] = tune::PERCENT;
    match (context.root.text(lower), context.root.text(upper)) {
        (Ok(low), Ok(high)) => writable(context, &PERCENT, lower, &format!("{low} to {high} %")),
        _ if !context.is_intel() => PERCENT.not_applicable("no Intel processor"),
        _ if context.is_virtual() => PERCENT.unavailable(format!("no {lower}"), BARE_METAL),
        _ => PERCENT.unavailable(format!("no {lower}"), "use the driver intel_pstate"),
    }
}

fn wake_up(context: &Context) -> Capability {
    if context.root.exists(tune::WAKE_UP) {
        return writable(context, &WAKE_UP, tune::WAKE_UP, "opens for writing");
    }
    let why = format!("no {}", tune::WAKE_UP);
    WAKE_UP.unavailable(why, "use a kernel with CONFIG_CPU_IDLE, and mount /dev")
}

/// A file that is there, if it can be written.
fn writable(context: &Context, subject: &Subject, path: &str, detail: &str) -> Capability {
    if context.root.is_writable(path) {
        subject.available(format!("{path}: {detail}"))
    } else {
        subject.unavailable(format!("no permission to write {path}"), "run as root")
    }
}

fn rapl(context: &Context) -> Capability {
    let directory = "/sys/class/powercap";
    let names = context.root.list(directory).unwrap_or_default();
    // Packages are named intel-rapl:0, their parts intel-rapl:0:0. AMD processors use the same
    // names.
    let zones: Vec<String> =
        names.into_iter().filter(|name| name.starts_with("intel-rapl:")).collect();
    let Some(first) = zones.first() else {
        let why = format!("no intel-rapl zone under {directory}");
        return if context.is_virtual() {
            RAPL.unavailable(why, BARE_METAL)
        } else {
            RAPL.unavailable(why, "as root: modprobe intel_rapl_msr")
        };
    };
    let energy = format!("{directory}/{first}/energy_uj");
    if !context.root.is_readable(&energy) {
        return RAPL.unavailable(
            format!("no permission to read {energy}"),
            "run as root, or as root: chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj",
        );
    }
    let label = |zone: &String| {
        context.root.text(&format!("{directory}/{zone}/name")).unwrap_or_else(|_| zone.clone())
    };
    let labels: Vec<String> = zones.iter().map(label).collect();
    RAPL.available(labels.join(", "))
}
