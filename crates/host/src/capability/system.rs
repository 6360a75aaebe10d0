//! The machine as a whole: the hypervisor and the time it steals, memory, the journal.

use dimmer_processor::units::Nanos;

use super::{Area, Capability, Context, Subject};
use crate::journal::{self, DIRECTORY, Owner};
use crate::privilege::LinuxCapability;
use crate::steal;

const STEAL: Subject = Subject {
    id: "steal",
    title: "stolen time",
    area: Area::System,
    enables: Some("probe: stretches in which the hypervisor ran another guest are recognised"),
};
const HUGE_PAGES: Subject = Subject {
    id: "huge-pages",
    title: "huge pages",
    area: Area::System,
    enables: Some("probe --huge-pages: code and buffers on huge pages"),
};
const LOCKED_MEMORY: Subject =
    Subject { id: "locked-memory", title: "locked memory", area: Area::System, enables: None };
const JOURNAL: Subject = Subject {
    id: "journal",
    title: "journal of changes",
    area: Area::System,
    enables: Some("probe --turbo-off, run --dedicate: changes are undone, after a crash as well"),
};

pub(super) fn survey(context: &Context) -> Vec<Capability> {
    vec![steal(context), huge_pages(context), locked_memory(context), journal(context)]
}

fn steal(context: &Context) -> Capability {
    if !context.is_virtual() {
        return STEAL.not_applicable("no hypervisor is seen");
    }
    match steal::stolen(context.root) {
        Ok(stolen) if !stolen.is_empty() => {
            let total: u64 = stolen.iter().map(|(_, time)| time.ns() / 1_000_000).sum();
            let total = Nanos::from_ms(total);
            STEAL.available(format!(
                "{:.2} s since boot; a hypervisor that does not tell leaves this at 0",
                total.us() / 1e6
            ))
        }
        _ => STEAL.unavailable("no processors in /proc/stat", "mount /proc"),
    }
}

fn huge_pages(context: &Context) -> Capability {
    let transparent = "/sys/kernel/mm/transparent_hugepage/enabled";
    let reserved = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    // The setting in force is in brackets: `always [madvise] never`.
    let mode = context
        .root
        .text(transparent)
        .ok()
        .and_then(|text| Some(text.split_once('[')?.1.split_once(']')?.0.to_owned()));
    let reserved = context.root.integer(reserved).unwrap_or(0);
    match mode.as_deref() {
        Some(mode @ ("always" | "madvise")) => {
            HUGE_PAGES.available(format!("transparent: {mode}, reserved 2 MiB pages: {reserved}"))
        }
        _ if reserved > 0 => {
            HUGE_PAGES.available(format!("transparent: no, reserved 2 MiB pages: {reserved}"))
        }
        _ => HUGE_PAGES.unavailable(
            format!("{transparent} does not say always or madvise, and none are reserved"),
            format!("as root: echo madvise > {transparent}"),
        ),
    }
}

/// Upper bound on the memory that a probe locks: its buffers and code, generously, in bytes.
const ENOUGH: u64 = 4 << 20;

fn locked_memory(context: &Context) -> Capability {
    let limit = context.privileges.locked_memory;
    if context.privileges.has(LinuxCapability::IpcLock) {
        LOCKED_MEMORY.available("without limit, by CAP_IPC_LOCK")
    } else if limit == u64::MAX {
        LOCKED_MEMORY.available("without limit")
    } else if limit >= ENOUGH {
        LOCKED_MEMORY
            .available(format!("up to {} KiB; a whole process may need more", limit / 1024))
    } else {
        LOCKED_MEMORY.unavailable(
            format!("the limit is {} KiB (ulimit -l)", limit / 1024),
            "run as root, or raise memlock in /etc/security/limits.conf",
        )
    }
}

fn journal(context: &Context) -> Capability {
    let pending = journal::pending(context.root);
    let crashed: Vec<&str> = pending
        .iter()
        .filter(|pending| pending.owner == Owner::Gone)
        .flat_map(|pending| pending.paths.iter().map(String::as_str))
        .collect();
    if !crashed.is_empty() {
        return JOURNAL.unavailable(
            format!("a crashed process has left changed: {}", crashed.join(", ")),
            "dimmer restore",
        );
    }
    if let Some(damaged) = pending.iter().find(|pending| pending.is_damaged) {
        return JOURNAL.unavailable(
            format!(
                "the journal of process {} was damaged, or is none of Dimmer's",
                damaged.process
            ),
            "dimmer restore, which says what of it cannot be followed",
        );
    }
    if let Some(hidden) = pending.iter().find(|pending| pending.owner == Owner::Hidden) {
        return JOURNAL.unavailable(
            format!("no permission to read the journal of process {}", hidden.process),
            "as root: dimmer restore, which leaves processes alone that still live",
        );
    }
    let kept = pending.iter().filter(|pending| pending.owner == Owner::Kept);
    let kept: Vec<&str> =
        kept.flat_map(|pending| pending.paths.iter().map(String::as_str)).collect();
    if !kept.is_empty() {
        let kept = kept.join(", ");
        return JOURNAL.available(format!("changed on request, until dimmer restore: {kept}"));
    }
    match journal::unwritable(context.root) {
        None => JOURNAL.available(format!("{DIRECTORY}, nothing to restore")),
        Some(path) => JOURNAL.unavailable(
            format!("no permission to write {path}"),
            "run as root, which changing the machine needs anyway",
        ),
    }
}
