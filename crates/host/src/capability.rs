//! The survey: what this machine offers that Dimmer can use, what that enables, what is missing
//! and how to get it.
//!
//! Looks, and changes nothing. Needs no privilege, takes milliseconds, and never fails: whatever
//! cannot be found out is unavailable, with the reason.

mod clock;
mod counters;
mod instructions;
mod observation;
mod placement;
mod system;

use crate::cpuid::Cpuid;
use crate::machine::Machine;
use crate::privilege::Privileges;
use crate::root::Root;
use crate::unavailable::Unavailable;

/// Something that Dimmer can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// A stable name: `license-events`.
    pub id: &'static str,
    /// What it is, for people.
    pub title: &'static str,
    /// What it has to do with.
    pub area: Area,
    /// Whether it is here.
    pub state: State,
    /// What Dimmer does with it.
    pub enables: &'static str,
}

/// Whether a capability is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is here.
    Available {
        /// What is known about it.
        detail: String,
    },
    /// It is not, and should or could be.
    Unavailable(Unavailable),
    /// This processor or machine is not the kind that has it.
    NotApplicable {
        /// Why.
        why: String,
    },
}

/// What a capability has to do with; the order of the survey.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Area {
    /// Instructions that code may use.
    Instructions,
    /// Reading and setting the clock and the power.
    Clock,
    /// Performance counters.
    Counters,
    /// Where and how threads run.
    Placement,
    /// Watching programs from outside.
    Observation,
    /// The machine as a whole.
    System,
}

impl Area {
    /// All of them, in the order of the survey.
    pub const ALL: [Self; 6] = [
        Self::Instructions,
        Self::Clock,
        Self::Counters,
        Self::Placement,
        Self::Observation,
        Self::System,
    ];

    /// The name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Clock => "clock",
            Self::Counters => "counters",
            Self::Placement => "placement",
            Self::Observation => "observation",
            Self::System => "system",
        }
    }
}

/// The machine and what it can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Which machine this is.
    pub machine: Machine,
    /// What it can do, by area.
    pub capabilities: Vec<Capability>,
}

impl Survey {
    /// Surveys the machine under `root` with the processor `cpuid`.
    ///
    /// Under a made-up root nothing is asked of the running kernel: what only a system call could
    /// tell is concluded from files.
    ///
    /// # Cost
    /// Some hundred small files, one `perf_event_open`; below 100 ms.
    #[must_use]
    pub fn take(root: &Root, cpuid: &Cpuid) -> Self {
        let machine = Machine::read(root, cpuid);
        let context =
            Context { root, cpuid, machine: &machine, privileges: Privileges::read(root) };
        let capabilities = [
            instructions::survey(&context),
            clock::survey(&context),
            counters::survey(&context),
            placement::survey(&context),
            observation::survey(&context),
            system::survey(&context),
        ]
        .concat();
        Self { machine, capabilities }
    }

    /// The capability named `id`.
    #[must_use]
    pub fn capability(&self, id: &str) -> Option<&Capability> {
        self.capabilities.iter().find(|capability| capability.id == id)
    }
}

impl Capability {
    /// Whether it is here.
    #[must_use]
    pub const fn is_available(&self) -> bool {
        matches!(self.state, State::Available { .. })
    }
}

/// What the survey looks at.
struct Context<'a> {
    root: &'a Root,
    cpuid: &'a Cpuid,
    machine: &'a Machine,
    privileges: Privileges,
}

impl Context<'_> {
    fn is_intel(&self) -> bool {
        self.machine.identity.vendor == "GenuineIntel"
    }

    fn is_amd(&self) -> bool {
        self.machine.identity.vendor == "AuthenticAMD"
    }

    fn is_virtual(&self) -> bool {
        self.machine.hypervisor.is_some()
    }
}

/// A capability before it is known whether it is here.
struct Subject {
    id: &'static str,
    title: &'static str,
    area: Area,
    enables: &'static str,
}

impl Subject {
    fn available(&self, detail: impl Into<String>) -> Capability {
        self.with(State::Available { detail: detail.into() })
    }

    fn unavailable(&self, why: impl Into<String>, remedy: impl Into<String>) -> Capability {
        self.with(State::Unavailable(Unavailable::new(self.title, why, remedy)))
    }

    fn not_applicable(&self, why: impl Into<String>) -> Capability {
        self.with(State::NotApplicable { why: why.into() })
    }

    fn with(&self, state: State) -> Capability {
        Capability { id: self.id, title: self.title, area: self.area, state, enables: self.enables }
    }
}
