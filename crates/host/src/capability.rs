//! The survey: what this machine offers that Dimmer can use, what each feature enables, what is
//! missing and how to get it.
//!
//! The survey changes nothing, needs no privilege, takes milliseconds and never fails: a feature
//! that cannot be determined is unavailable, with the reason.

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

/// A feature of the machine that Dimmer can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// A stable name: `license-events`.
    pub id: &'static str,
    /// Description for people.
    pub title: &'static str,
    /// The part of the machine that it belongs to.
    pub area: Area,
    /// Whether this machine has it.
    pub state: State,
    /// What Dimmer does with it, by command; `None` if no command uses it yet.
    pub enables: Option<&'static str>,
}

/// Whether the machine has a capability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The machine has it.
    Available {
        /// Details, in words.
        detail: String,
    },
    /// The machine lacks it, but should or could have it.
    Unavailable(Unavailable),
    /// It does not apply to this kind of processor or machine.
    NotApplicable {
        /// Reason, as a sentence.
        why: String,
    },
}

/// The part of the machine that a capability belongs to. The order is that of the survey.
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
    /// The machine's description.
    pub machine: Machine,
    /// Its capabilities, by area.
    pub capabilities: Vec<Capability>,
}

impl Survey {
    /// Surveys the machine under `root` with the processor `cpuid`.
    ///
    /// Under a made-up root, the running kernel is not queried: what otherwise needs a system call
    /// is derived from files.
    ///
    /// # Cost
    /// A few hundred small files and one `perf_event_open`; below 100 ms.
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
    /// Whether the machine has it.
    #[must_use]
    pub const fn is_available(&self) -> bool {
        matches!(self.state, State::Available { .. })
    }
}

/// The inputs of the survey.
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

/// A capability without its state.
struct Subject {
    id: &'static str,
    title: &'static str,
    area: Area,
    enables: Option<&'static str>,
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
