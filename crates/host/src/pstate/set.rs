//! Sets P-states through the journal: the governors that would write the same registers are set
//! aside, P-states are defined, and then requested.

use dimmer_processor::pstate::Limits;
use dimmer_processor::units::CpuId;

use super::{AMD_CONTROL, AMD_DEFINITIONS, INTEL_CONTROL, Part, Plan, Pstates};
use crate::cpufreq::{self, POLICIES, Policy};
use crate::journal::{Journal, JournalError};
use crate::msr;
use crate::root::Root;
use crate::turbo::{Turbo, TurboError};
use crate::unavailable::Unavailable;

/// The governor that changes nothing by itself (Linux `Documentation/admin-guide/pm/cpufreq.rst`).
const USERSPACE: &str = "userspace";
/// The noun in refusals.
const WHAT: &str = "P-state requests";

/// Why P-states cannot be set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// Something is missing or in the way. Undoing the journal undoes what was set until then.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// A change failed. Changes made until then are in the journal and will be undone.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl From<TurboError> for SetError {
    fn from(error: TurboError) -> Self {
        match error {
            TurboError::Unavailable(missing) => Self::Unavailable(missing),
            TurboError::Journal(error) => Self::Journal(error),
        }
    }
}

/// Sets P-states as planned, until `journal` is undone. Checks first that the registers can be
/// written and that nothing else would write them.
///
/// A changed definition counts from the next transition to its P-state on, so a CPU that has the
/// P-state leaves it before. A CPU that has it when this is undone keeps it until its next
/// transition.
///
/// # Errors
/// [`SetError`].
pub fn set(journal: &mut Journal, pstates: &Pstates, plan: &Plan) -> Result<(), SetError> {
    let all = pstates.cpus.iter().map(|state| state.cpu);
    for cpu in all.clone() {
        msr::check_writable(journal.root(), cpu)?;
    }
    let governors = in_the_way(journal.root(), pstates, plan)?;
    if plan.turbo_off {
        // First, because the kernel's driver may request P-states when turbo changes.
        Turbo::off(journal)?;
    }
    for governor in governors {
        journal.change(&governor, USERSPACE)?;
    }
    leave(journal, pstates, plan)?;
    for cpu in all {
        for &(number, raw) in &plan.definitions {
            let register = AMD_DEFINITIONS + u32::from(number);
            write(journal, cpu, register, raw)?;
        }
    }
    for (cpu, number) in plan.cpus() {
        request(journal, &pstates.part, cpu, number)?;
    }
    Ok(())
}

/// Checks that [`request`] works for all CPUs, and that nothing else requests P-states.
///
/// # Errors
/// [`Unavailable`].
pub fn check_requests(root: &Root, pstates: &Pstates) -> Result<(), Unavailable> {
    for state in &pstates.cpus {
        msr::check_writable(root, state.cpu)?;
    }
    refuse_hwp(pstates)?;
    let Some(policy) = cpufreq::policies(root).into_iter().next() else { return Ok(()) };
    let driver = policy.driver.as_deref().unwrap_or("unknown");
    let why = format!("the driver {driver} requests P-states itself");
    Err(Unavailable::new(WHAT, why, "request clocks by its files (cpufreq)"))
}

fn refuse_hwp(pstates: &Pstates) -> Result<(), Unavailable> {
    if let Part::Intel { has_hwp: true, .. } = pstates.part {
        let why = "the processor chooses P-states by itself (HWP)";
        return Err(Unavailable::new(WHAT, why, "start the kernel with intel_pstate=no_hwp"));
    }
    Ok(())
}

/// The files of the governors to set aside.
fn in_the_way(root: &Root, pstates: &Pstates, plan: &Plan) -> Result<Vec<String>, Unavailable> {
    if plan.requests.is_empty() {
        return Ok(Vec::new());
    }
    refuse_hwp(pstates)?;
    let is_meant = |policy: &Policy| plan.cpus().any(|(cpu, _)| policy.cpus.contains(&cpu));
    let mut files = Vec::new();
    for policy in cpufreq::policies(root).into_iter().filter(is_meant) {
        files.extend(governor(root, &policy)?);
    }
    Ok(files)
}

/// The file of a policy's governor; `None` if the governor changes nothing by itself.
fn governor(root: &Root, policy: &Policy) -> Result<Option<String>, Unavailable> {
    let directory = format!("{POLICIES}/{}", policy.name);
    let driver = policy.driver.as_deref().unwrap_or("unknown");
    let refuse = |why: String, remedy: &str| Err(Unavailable::new(WHAT, why, remedy));
    if driver.starts_with("amd-pstate") {
        let why = format!("the driver {driver} has the processor choose P-states by itself (CPPC)");
        return refuse(why, "start the kernel with amd_pstate=disable, which loads acpi-cpufreq");
    }
    if driver == "intel_pstate" {
        let why = "the driver intel_pstate writes the same registers all the time".to_owned();
        let remedy = "as root: echo passive > /sys/devices/system/cpu/intel_pstate/status";
        return refuse(why, remedy);
    }
    if policy.governor.as_deref() == Some(USERSPACE) {
        return Ok(None);
    }
    let available = root.text(&format!("{directory}/scaling_available_governors"));
    if !available.unwrap_or_default().split_whitespace().any(|name| name == USERSPACE) {
        let governor = policy.governor.as_deref().unwrap_or("unknown");
        let why = format!(
            "the governor {governor} of {directory} writes the same registers, and there is no \
             governor {USERSPACE} to put in its place"
        );
        return refuse(why, "as root: modprobe cpufreq_userspace");
    }
    let file = format!("{directory}/scaling_governor");
    if !root.is_writable(&file) {
        return refuse(format!("no permission to write {file}"), "run as root");
    }
    Ok(Some(file))
}

/// Takes CPUs that will request a redefined P-state, and have it now, to another one.
fn leave(journal: &mut Journal, pstates: &Pstates, plan: &Plan) -> Result<(), SetError> {
    let (fastest, slowest) = (pstates.part.fastest(), pstates.part.slowest());
    for (cpu, number) in plan.cpus() {
        let is_redefined = plan.definitions.iter().any(|(redefined, _)| *redefined == number);
        let is_in = pstates.cpus.iter().any(|state| state.cpu == cpu && state.requested == number);
        if is_redefined && is_in {
            let other = if number == fastest { slowest } else { fastest };
            request(journal, &pstates.part, cpu, other)?;
        }
    }
    Ok(())
}

/// Has a CPU request a P-state, until `journal` is undone or it requests another one. The caller
/// has checked that it can be requested ([`check_requests`]).
///
/// # Errors
/// [`SetError`].
pub fn request(journal: &mut Journal, part: &Part, cpu: CpuId, number: u8) -> Result<(), SetError> {
    let (register, value) = control(journal.root(), part, cpu, number)?;
    write(journal, cpu, register, value)
}

/// The register by which a CPU requests a P-state, and its value for that.
pub(crate) fn control(
    root: &Root,
    part: &Part,
    cpu: CpuId,
    number: u8,
) -> Result<(u32, u64), Unavailable> {
    Ok(match part {
        Part::Amd { states, .. } => {
            let before = msr::value(root, cpu, AMD_CONTROL)?;
            (AMD_CONTROL, before & !7 | u64::from(number.saturating_sub(states.base())))
        }
        Part::Intel { .. } => {
            let before = msr::value(root, cpu, INTEL_CONTROL)?;
            (INTEL_CONTROL, Limits::with_ratio(before, number))
        }
    })
}

pub(super) fn write(
    journal: &mut Journal,
    cpu: CpuId,
    register: u32,
    value: u64,
) -> Result<(), SetError> {
    let path = msr::path(journal.root(), cpu);
    let written = journal.change_register(&path, register, value);
    written.map_err(|error| match &error {
        JournalError::Change(write) => {
            msr::refused(write).map_or(SetError::Journal(error), SetError::Unavailable)
        }
        _ => SetError::Journal(error),
    })
}
