//! Which of Dimmer's commands work on a machine, and why not.

use dimmer_host::capability::{Capability, State, Survey};

/// A use of Dimmer, by the command or the mechanism of `dimmer run` that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// `dimmer probe`.
    Probe,
    /// `dimmer ps`.
    Ps,
    /// `dimmer scan`.
    Scan,
    /// `dimmer stat`.
    Stat,
    /// `dimmer observe`.
    Observe,
    /// `dimmer run --narrow`.
    Narrow,
    /// `dimmer run --delegate`.
    Delegate,
    /// `dimmer run --migrate`.
    Migrate,
    /// `dimmer run --dedicate`.
    Dedicate,
    /// `dimmer specialise`.
    Specialise,
    /// `dimmer pstate`.
    Pstate,
    /// `dimmerd`.
    Daemon,
    /// `dimmer sim`.
    Sim,
}

/// How far a use works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Not at all.
    No,
    /// In part.
    Partly,
    /// All of it.
    Works,
}

impl Verdict {
    /// The name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Partly => "partly",
            Self::Works => "works",
        }
    }
}

/// The CPUs that moving work takes: one for the thread, one for its work.
const MOVING_CPUS: usize = 2;

impl Use {
    /// All uses, in the order in which they are shown.
    pub const ALL: [Self; 13] = [
        Self::Probe,
        Self::Ps,
        Self::Scan,
        Self::Stat,
        Self::Observe,
        Self::Narrow,
        Self::Delegate,
        Self::Migrate,
        Self::Dedicate,
        Self::Specialise,
        Self::Pstate,
        Self::Daemon,
        Self::Sim,
    ];

    /// The name on the command line and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Ps => "ps",
            Self::Scan => "scan",
            Self::Stat => "stat",
            Self::Observe => "observe",
            Self::Narrow => "narrow",
            Self::Delegate => "delegate",
            Self::Migrate => "migrate",
            Self::Dedicate => "dedicate",
            Self::Specialise => "specialise",
            Self::Pstate => "pstate",
            Self::Daemon => "daemon",
            Self::Sim => "sim",
        }
    }

    /// How far it works on the machine of `survey`, and a remark: what is missing, and what the use
    /// does without.
    pub fn verdict(self, survey: &Survey) -> (Verdict, String) {
        let lacks = |id: &str| missing(survey, id);
        let cpus = survey.machine.allowed.len();
        let one_cpu = (cpus < MOVING_CPUS).then(|| {
            format!("moving work takes {MOVING_CPUS} CPUs, and this process may use {cpus}")
        });
        let without = |id: &str, with: &str, without: &str| match lacks(id) {
            None => (Verdict::Works, with.to_owned()),
            Some(why) => (Verdict::Partly, format!("{without}: {why}")),
        };
        let needs = |missing: Option<String>, remark: &str| match missing {
            None => (Verdict::Works, remark.to_owned()),
            Some(why) => (Verdict::No, why),
        };
        match self {
            Self::Probe => match (lacks("tsc"), lacks("pmu")) {
                (Some(why), _) => (Verdict::No, why),
                (None, Some(_)) => {
                    (Verdict::Works, "by timing alone: no performance counters".to_owned())
                }
                (None, None) => {
                    (Verdict::Works, "by timing, checked by performance counters".to_owned())
                }
            },
            Self::Ps => without(
                "arch-status",
                "by the kernel's word, and the code that processes have mapped",
                "by the code that processes have mapped; not who uses AVX-512 registers",
            ),
            Self::Scan => (Verdict::Works, "finds wide code in files; runs nothing".to_owned()),
            Self::Stat => counted(survey),
            Self::Observe => without(
                "uprobes",
                "by preloaded hooks; running processes and static programs by uprobes",
                "by preloaded hooks; no running processes and no static programs",
            ),
            Self::Narrow => without(
                "cpuid-faulting",
                "by libraries' switches and CPUID",
                "by libraries' switches; code without one keeps its width",
            ),
            Self::Delegate => needs(one_cpu, "experimental"),
            Self::Migrate => needs(one_cpu.or_else(|| lacks("migration")), "experimental"),
            Self::Dedicate => needs(lacks("dedicated-cores"), "by cpusets"),
            Self::Specialise => match lacks("specialise-module") {
                Some(why) => (Verdict::No, why),
                None => without(
                    "specialise-scheduler",
                    "experimental; by the module and its scheduler",
                    "experimental; by the module alone (--affinity)",
                ),
            },
            Self::Pstate => match lacks("p-states") {
                Some(why) if TUNED.into_iter().any(|id| lacks(id).is_none()) => {
                    (Verdict::Partly, format!("experimental; tune alone: {why}"))
                }
                missing => needs(missing, "experimental; by registers"),
            },
            Self::Daemon => match (one_cpu, lacks("pmu")) {
                (Some(why), _) => (Verdict::No, why),
                (None, Some(_)) => (
                    Verdict::Works,
                    "experimental; license levels by timing: no performance counters".to_owned(),
                ),
                (None, None) => (Verdict::Works, "experimental".to_owned()),
            },
            Self::Sim => (Verdict::Works, "simulates processors, by models of them".to_owned()),
        }
    }
}

/// What `dimmer stat` counts besides cycles and instructions.
const COUNTED: [(&str, &str); 3] = [
    ("license-events", "license levels"),
    ("throttle-events", "throttling"),
    ("packed-events", "packed arithmetic"),
];

/// How far `dimmer stat` works: what it can count.
fn counted(survey: &Survey) -> (Verdict, String) {
    if let Some(why) = missing(survey, "pmu") {
        let remark = format!("the clock by timing, and what the kernel counts: {why}");
        return (Verdict::Partly, remark);
    }
    let reasons = COUNTED.map(|(id, what)| (what, missing(survey, id)));
    let counts = |is_counted: bool| -> String {
        let of = reasons.iter().filter(|(_, why)| why.is_none() == is_counted);
        of.map(|(what, _)| *what).collect::<Vec<_>>().join(", ")
    };
    match reasons.iter().find_map(|(_, why)| why.as_ref()) {
        None => (Verdict::Works, format!("counts {}", counts(true))),
        Some(why) => {
            let others = if counts(true).is_empty() { "cycles".to_owned() } else { counts(true) };
            (Verdict::Partly, format!("counts {others}; not {}: {why}", counts(false)))
        }
    }
}

/// What `dimmer pstate tune` can set, each by itself.
const TUNED: [&str; 3] = ["turbo", "clock-requests", "idle-states"];

/// Why a capability is missing; `None` if it is there.
fn missing(survey: &Survey, id: &str) -> Option<String> {
    let capability = survey.capabilities.iter().find(|capability| capability.id == id);
    match capability.map(|Capability { state, .. }| state) {
        Some(State::Available { .. }) => None,
        Some(State::Unavailable(unavailable)) => Some(unavailable.why.clone()),
        Some(State::NotApplicable { why }) => Some(why.clone()),
        None => Some(format!("{id} was not surveyed")),
    }
}
