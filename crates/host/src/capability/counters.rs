//! Performance counters, and their events that give evidence about licenses.

use super::{Area, Capability, Context, Subject};
use crate::events::{self, Counts, PmuEvent};
use crate::perf::{Countable, Counters, PARANOID};
use crate::privilege::LinuxCapability;

const PMU: Subject = Subject {
    id: "pmu",
    title: "performance counters (perf_event_open)",
    area: Area::Counters,
    enables: Some("probe: counted cycles beside timed ones; dimmerd: evidence of license levels"),
};
const LICENSE_EVENTS: Subject = Subject {
    id: "license-events",
    title: "license-level events",
    area: Area::Counters,
    enables: Some("probe, dimmerd: license levels counted, not inferred from timing"),
};
const THROTTLE_EVENTS: Subject = Subject {
    id: "throttle-events",
    title: "throttle events",
    area: Area::Counters,
    enables: Some("probe: throttled cycles counted while a license is pending"),
};
const PACKED_EVENTS: Subject = Subject {
    id: "packed-events",
    title: "packed-arithmetic events",
    area: Area::Counters,
    enables: Some("dimmerd: evidence of wide floating point in a program"),
};

pub(super) fn survey(context: &Context) -> Vec<Capability> {
    let pmu = pmu(context);
    let usable = pmu.is_available();
    let events = |subject: &Subject, wanted: fn(&Counts) -> bool| {
        documented(context, subject, usable, wanted)
    };
    let license = events(&LICENSE_EVENTS, |counts| matches!(counts, Counts::LicenseCycles(_)));
    let throttle = events(&THROTTLE_EVENTS, |counts| matches!(counts, Counts::ThrottledCycles));
    let packed = events(&PACKED_EVENTS, |counts| {
        matches!(counts, Counts::PackedArithmetic { .. } | Counts::TileCycles)
    });
    vec![pmu, license, throttle, packed]
}

/// The alternative to counters.
const BY_TIMING: &str = "Dimmer concludes from timing instead";

fn pmu(context: &Context) -> Capability {
    let devices = "/sys/bus/event_source/devices";
    let names = context.root.list(devices).unwrap_or_default();
    let cores = ["cpu", "cpu_core", "cpu_atom"];
    let found: Vec<&str> =
        cores.into_iter().filter(|core| names.iter().any(|name| name == core)).collect();
    let Ok(paranoid) = context.root.integer(PARANOID) else {
        return PMU.unavailable(
            format!("no {PARANOID}: the kernel is built without perf, or a sandbox hides it"),
            BY_TIMING,
        );
    };
    if found.is_empty() {
        return PMU.unavailable(
            match &context.machine.hypervisor {
                Some(name) => {
                    format!(
                        "no core PMU in {devices}: the hypervisor ({name}) gives this guest none"
                    )
                }
                None => format!("no core PMU in {devices}"),
            },
            format!("use bare metal or a virtual machine with a PMU; {BY_TIMING}"),
        );
    }
    // Up to 2, a process may count its own user mode. Some distributions have 3 and 4, which allow
    // unprivileged processes nothing.
    if paranoid > 2 && !context.privileges.has_or_admin(LinuxCapability::Perfmon) {
        return PMU.unavailable(
            format!("{PARANOID} is {paranoid}"),
            "as root: sysctl kernel.perf_event_paranoid=2, or give CAP_PERFMON",
        );
    }
    // The files permit it, but a seccomp filter may still refuse. Only an attempt shows that.
    if context.root.is_live()
        && let Err(refused) = Counters::open(context.root, &[Countable::Cycles])
    {
        return PMU.unavailable(refused.why, refused.remedy);
    }
    let counters = match context.cpuid.general_counters() {
        Some(number) => format!(", {number} general counters"),
        None => String::new(),
    };
    PMU.available(format!("{}{counters}, perf_event_paranoid {paranoid}", found.join(", ")))
}

/// Whether events of a kind are documented for this microarchitecture and can be counted.
fn documented(
    context: &Context,
    subject: &Subject,
    pmu: bool,
    wanted: fn(&Counts) -> bool,
) -> Capability {
    let microarchitecture = context.machine.identity.microarchitecture;
    let Some(documented) = events::documented(microarchitecture) else {
        return subject.unavailable(
            format!(
                "the event tables of this microarchitecture ({microarchitecture}) are not known"
            ),
            BY_TIMING,
        );
    };
    let events: Vec<&PmuEvent> = documented.iter().filter(|event| wanted(&event.counts)).collect();
    if events.is_empty() {
        return subject
            .not_applicable(format!("the event tables of {microarchitecture} document none"));
    }
    let names: Vec<String> =
        events.iter().map(|event| format!("{} (r{:04x})", event.name, event.config())).collect();
    let names = names.join(", ");
    if pmu {
        subject.available(names)
    } else {
        subject.unavailable(
            format!("{microarchitecture} has {names}, but no counters can be opened"),
            format!("see pmu; {BY_TIMING}"),
        )
    }
}
