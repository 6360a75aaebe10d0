//! What is to be set, checked against the processor before anything changes.

use dimmer_processor::pstate::{BoundsError, States};
use dimmer_processor::topology::Topology;
use dimmer_processor::units::{CpuId, KiloHertz, MicroVolts};

use super::{Part, Pstates};
use crate::root::format_cpu_list;

/// What the user wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// P-states to define otherwise.
    pub definitions: Vec<Redefinition>,
    /// CPUs that are to request a P-state, ascending.
    pub requests: Vec<(Vec<CpuId>, u8)>,
    /// CPUs that are to request the fastest P-state.
    pub fast: Option<Vec<CpuId>>,
    /// CPUs that are to request the slowest P-state; if only `fast` is there, all CPUs of which
    /// nothing else is wanted.
    pub slow: Option<Vec<CpuId>>,
    /// Whether turbo is to be off, so that no core is faster than its P-state.
    pub turbo_off: bool,
}

/// Another frequency and voltage for a P-state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redefinition {
    /// The number of the P-state.
    pub number: u8,
    /// Its frequency.
    pub frequency: KiloHertz,
    /// Its voltage; without one, the least that the frequency needs.
    pub voltage: Option<MicroVolts>,
}

/// What [`super::set()`] writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// New definitions, for all CPUs: their numbers and registers.
    pub definitions: Vec<(u8, u64)>,
    /// P-states and the CPUs that request them, ascending.
    pub requests: Vec<(u8, Vec<CpuId>)>,
    /// Whether turbo is switched off.
    pub turbo_off: bool,
}

/// Why it cannot be set. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Nothing is wanted.
    #[error("nothing to set: give --fast, --slow, --request or --define")]
    Nothing,
    /// A CPU is missing or offline.
    #[error("CPU {cpu} {what}; online are {online}")]
    NotOnline {
        /// The CPU.
        cpu: CpuId,
        /// `does not exist`, or `is offline`.
        what: &'static str,
        /// The CPUs that are online.
        online: String,
    },
    /// Two P-states are wanted of one CPU.
    #[error("CPU {cpu} is to request P{one} and P{other}: name it once")]
    Twice {
        /// The CPU.
        cpu: CpuId,
        /// A P-state.
        one: u8,
        /// Another one.
        other: u8,
    },
    /// SMT siblings and cores of a module run at the clock of the faster one.
    #[error("CPUs {siblings} share their clock: name all of them for the same P-state")]
    Split {
        /// The CPUs.
        siblings: String,
    },
    /// The processor alone chooses the P-state.
    #[error(
        "P{number} is boosted: only the processor chooses it; the fastest to request is P{base}"
    )]
    Boosted {
        /// The P-state.
        number: u8,
        /// The first one that is not boosted.
        base: u8,
    },
    /// The P-state is not in use, or outside of the limits.
    #[error("P{number} cannot be requested; the fastest is P{fastest}, the slowest P{slowest}")]
    Limits {
        /// The P-state.
        number: u8,
        /// The fastest P-state.
        fastest: u8,
        /// The slowest P-state.
        slowest: u8,
    },
    /// Intel's processors have no definitions.
    #[error("this processor has ratios within fixed limits, and no definitions to change")]
    NoDefinitions,
    /// A definition is outside of what the processor's own ones allow.
    #[error(transparent)]
    Bounds(#[from] BoundsError),
    /// The definitions are not those of the firmware, so they allow nothing to be checked.
    #[error(
        "CPUs {cpus} have other definitions than CPU {first}; `dimmer restore` undoes changes of \
         Dimmer's, a restart those of others"
    )]
    Differing {
        /// The CPUs.
        cpus: String,
        /// The CPU that they are compared with.
        first: CpuId,
    },
}

impl Plan {
    /// Checks what is wanted.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn new(pstates: &Pstates, topology: &Topology, wanted: &Wanted) -> Result<Self, PlanError> {
        let requests = requests(pstates, wanted);
        if requests.is_empty() && wanted.definitions.is_empty() {
            return Err(PlanError::Nothing);
        }
        for (number, _) in &requests {
            check_number(&pstates.part, *number)?;
        }
        check_cpus(topology, &requests)?;
        let definitions = match &pstates.part {
            Part::Amd { states, .. } => definitions(pstates, states, &wanted.definitions)?,
            Part::Intel { .. } if wanted.definitions.is_empty() => Vec::new(),
            Part::Intel { .. } => return Err(PlanError::NoDefinitions),
        };
        Ok(Self { definitions, requests, turbo_off: wanted.turbo_off })
    }

    /// The CPUs that request a P-state, with its number.
    pub fn cpus(&self) -> impl Iterator<Item = (CpuId, u8)> + '_ {
        self.requests.iter().flat_map(|(number, cpus)| cpus.iter().map(|&cpu| (cpu, *number)))
    }
}

/// All requests, with those for fast and slow CPUs.
fn requests(pstates: &Pstates, wanted: &Wanted) -> Vec<(u8, Vec<CpuId>)> {
    let named = wanted.requests.iter().map(|(cpus, number)| (*number, cpus.clone()));
    let mut requests: Vec<(u8, Vec<CpuId>)> = named.collect();
    let fast = wanted.fast.iter().map(|cpus| (pstates.part.fastest(), cpus.clone()));
    requests.extend(fast);
    let rest = || {
        let is_named = |cpu: &CpuId| requests.iter().any(|(_, cpus)| cpus.contains(cpu));
        let online = pstates.cpus.iter().map(|state| state.cpu);
        online.filter(|cpu| !is_named(cpu)).collect::<Vec<_>>()
    };
    let slow = wanted.slow.clone().or_else(|| wanted.fast.is_some().then(rest));
    requests.extend(slow.map(|cpus| (pstates.part.slowest(), cpus)));
    requests.retain(|(_, cpus)| !cpus.is_empty());
    requests
}

fn check_number(part: &Part, number: u8) -> Result<(), PlanError> {
    let (fastest, slowest) = (part.fastest(), part.slowest());
    let is_possible = match part {
        Part::Amd { states, .. } if number < states.base() => {
            return Err(PlanError::Boosted { number, base: states.base() });
        }
        Part::Amd { states, .. } => {
            (fastest..=slowest).contains(&number) && states.definition(number).is_some()
        }
        Part::Intel { .. } => (slowest..=fastest).contains(&number),
    };
    if is_possible { Ok(()) } else { Err(PlanError::Limits { number, fastest, slowest }) }
}

fn check_cpus(topology: &Topology, requests: &[(u8, Vec<CpuId>)]) -> Result<(), PlanError> {
    let online = topology.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.id);
    let online: Vec<CpuId> = online.collect();
    for (number, cpus) in requests {
        for &cpu in cpus {
            if !online.contains(&cpu) {
                let exists = topology.cpu(cpu).is_some();
                let what = if exists { "is offline" } else { "does not exist" };
                return Err(PlanError::NotOnline { cpu, what, online: format_cpu_list(&online) });
            }
            let others = requests.iter().filter(|(other, _)| other != number);
            if let Some((other, _)) = others.into_iter().find(|(_, cpus)| cpus.contains(&cpu)) {
                return Err(PlanError::Twice { cpu, one: *number, other: *other });
            }
            let siblings = topology.siblings(cpu).into_iter().filter(|id| online.contains(id));
            let mut core: Vec<CpuId> = siblings.chain([cpu]).collect();
            core.sort_unstable();
            let is_same = |id: &CpuId| {
                requests.iter().any(|(other, cpus)| other == number && cpus.contains(id))
            };
            if !core.iter().all(is_same) {
                return Err(PlanError::Split { siblings: format_cpu_list(&core) });
            }
        }
    }
    Ok(())
}

fn definitions(
    pstates: &Pstates,
    states: &States,
    wanted: &[Redefinition],
) -> Result<Vec<(u8, u64)>, PlanError> {
    if let (false, false, Some(first)) =
        (wanted.is_empty(), pstates.differing.is_empty(), pstates.cpus.first())
    {
        let cpus = format_cpu_list(&pstates.differing);
        return Err(PlanError::Differing { cpus, first: first.cpu });
    }
    let redefined = wanted.iter().map(|one| {
        let raw = states.redefined(one.number, one.frequency, one.voltage)?;
        Ok((one.number, raw))
    });
    redefined.collect()
}
