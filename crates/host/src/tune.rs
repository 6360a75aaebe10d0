//! Sets the machine up for measurements: clocks that do not change by themselves, and cores that do
//! not sleep (paper 002, section 3.1: "enforcing P_base and C0 on all cores").
//!
//! Turbo is off, the governor is `performance`, preferences and limits are for the base clock, as
//! far as the machine has each. All that goes through the journal. Cores stay awake by the kernel's
//! interface for that, `/dev/cpu_dma_latency`, which lasts as long as the file is open: it ends
//! however the process ends.
//!
//! Source: Linux `Documentation/admin-guide/pm/{cpufreq,intel_pstate,amd-pstate}.rst`,
//! `Documentation/power/pm_qos_interface.rst`.

use std::fs::File;
use std::io::Write as _;

use dimmer_processor::units::KiloHertz;

use crate::cpufreq::clocks::Clocks;
use crate::cpufreq::{POLICIES, Policy, policies};
use crate::journal::{Journal, JournalError};
use crate::root::Root;
use crate::turbo::Turbo;
use crate::unavailable::Unavailable;

/// The longest time that cores may take to wake up, while the file is open.
pub const WAKE_UP: &str = "/dev/cpu_dma_latency";
/// Limits of `intel_pstate` for all CPUs, in percent of the fastest clock.
pub const PERCENT: [&str; 2] = [
    "/sys/devices/system/cpu/intel_pstate/max_perf_pct",
    "/sys/devices/system/cpu/intel_pstate/min_perf_pct",
];

const PERFORMANCE: &str = "performance";

/// A file to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The file, as the kernel names it.
    pub path: String,
    /// What it holds.
    pub before: String,
    /// What it gets.
    pub after: String,
}

/// What is to change on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The files to write, in this order.
    pub changes: Vec<Change>,
    /// Whether cores are kept awake.
    pub is_awake: bool,
    /// What this machine does not have, or does not let this process do.
    pub missing: Vec<Unavailable>,
}

/// Why the machine is not set up. What was changed until then is in the journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// Nothing at all can be set.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// A change failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl Plan {
    /// What there is to change on the machine under `root`. Changes nothing.
    #[must_use]
    pub fn new(root: &Root) -> Self {
        let mut plan = Self { changes: Vec::new(), is_awake: false, missing: Vec::new() };
        // First, because a driver's `boost` sets limits back. To write the same again afterwards
        // has no effect: the kernel compares it with the last request.
        plan.turbo(root);
        let policies = policies(root);
        if policies.is_empty() {
            let why = format!("no policy under {POLICIES}");
            plan.lacks(
                "governors and limits of clocks (cpufreq)",
                &why,
                "use bare metal, with a driver for cpufreq",
            );
        }
        policies.iter().for_each(|policy| plan.policy(root, policy));
        for path in PERCENT {
            if root.exists(path) {
                plan.change(root, path.to_owned(), "100");
            }
        }
        match check_awake(root) {
            Ok(()) => plan.is_awake = true,
            Err(missing) => plan.missing.push(missing),
        }
        plan
    }

    fn lacks(&mut self, what: &str, why: &str, remedy: &str) {
        let missing = Unavailable::new(what, why, remedy);
        if !self.missing.contains(&missing) {
            self.missing.push(missing);
        }
    }

    /// Plans a change of a file that exists, unless it holds that already.
    fn change(&mut self, root: &Root, path: String, after: &str) {
        match root.text(&path) {
            Ok(before) if before == after => {}
            Ok(_) if !root.is_writable(&path) => {
                self.lacks(
                    "settings of clocks",
                    &format!("no permission to write {path}"),
                    "run as root",
                );
            }
            Ok(before) => self.changes.push(Change { path, before, after: after.to_owned() }),
            Err(error) => self.lacks("settings of clocks", &error.to_string(), "run as root"),
        }
    }

    fn turbo(&mut self, root: &Root) {
        match Turbo::find(root) {
            Ok(switch) => {
                for file in switch.files() {
                    self.change(root, file.clone(), switch.off_value());
                }
            }
            Err(missing) => self.missing.push(missing),
        }
    }

    fn policy(&mut self, root: &Root, policy: &Policy) {
        let path = |name: &str| format!("{POLICIES}/{}/{name}", policy.name);
        let offers = |name: &str| {
            let all = root.text(&path(name)).unwrap_or_default();
            all.split_whitespace().any(|one| one == PERFORMANCE)
        };
        if policy.governor.as_deref() != Some(PERFORMANCE) {
            // First, because the kernel refuses it under the governor `performance` of some
            // drivers, which has this effect.
            if offers("energy_performance_available_preferences") {
                self.change(root, path("energy_performance_preference"), PERFORMANCE);
            }
            if offers("scaling_available_governors") {
                self.change(root, path("scaling_governor"), PERFORMANCE);
            } else {
                let why = format!("there is no governor {PERFORMANCE}");
                self.lacks(
                    "a governor that keeps the clock",
                    &why,
                    "as root: modprobe cpufreq_performance",
                );
            }
        }
        let base = Clocks::of(root, policy).and_then(|clocks| clocks.base);
        let Some((base, (lowest, highest))) = base.zip(policy.allowed) else {
            let why = "the driver does not report a base clock";
            self.lacks("limits at the base clock", why, "turbo that is off has the same effect");
            return;
        };
        self.limits(root, &path, base, (lowest, highest));
    }

    /// Both limits at the base clock, in an order in which the lower one never passes the upper.
    fn limits(
        &mut self,
        root: &Root,
        path: &dyn Fn(&str) -> String,
        base: KiloHertz,
        (lowest, highest): (KiloHertz, KiloHertz),
    ) {
        let khz = base.khz().to_string();
        let names = if base > highest {
            ["scaling_max_freq", "scaling_min_freq"]
        } else {
            ["scaling_min_freq", "scaling_max_freq"]
        };
        if (lowest, highest) != (base, base) {
            names.into_iter().for_each(|name| self.change(root, path(name), &khz));
        }
    }

    /// Sets the machine up, until the result is dropped and the journal undone.
    ///
    /// # Errors
    /// [`TuneError`]
    pub fn apply(&self, journal: &mut Journal) -> Result<Tuned, TuneError> {
        if self.changes.is_empty() && !self.is_awake {
            let why: Vec<&str> = self.missing.iter().map(|one| one.why.as_str()).collect();
            let remedies: Vec<&str> = self.missing.iter().map(|one| one.remedy.as_str()).collect();
            let why =
                if why.is_empty() { "all is set up already".to_owned() } else { why.join("; ") };
            return Err(
                Unavailable::new("a set-up for measurements", why, remedies.join("; ")).into()
            );
        }
        if let Ok(switch) = Turbo::find(journal.root())
            && self.changes.iter().any(|change| switch.files().contains(&change.path))
        {
            switch.hold_limits(journal)?;
        }
        let mut refused = Vec::new();
        for change in &self.changes {
            match journal.change(&change.path, &change.after) {
                Ok(()) => {}
                // The driver chooses, or rounds to what there was: no reason to give up the rest.
                Err(error @ (JournalError::NotTaken { .. } | JournalError::Change(_))) => {
                    refused.push(explain(&error));
                }
                Err(error) => return Err(error.into()),
            }
        }
        let awake = if self.is_awake { Some(keep_awake(journal.root())?) } else { None };
        Ok(Tuned { _awake: awake, refused })
    }
}

const AWAKE: &str = "cores that stay awake";

fn check_awake(root: &Root) -> Result<(), Unavailable> {
    if root.is_writable(WAKE_UP) {
        return Ok(());
    }
    let (why, remedy) = if root.exists(WAKE_UP) {
        (format!("no permission to write {WAKE_UP}"), "run as root")
    } else {
        (format!("no {WAKE_UP}"), "use a kernel with CONFIG_CPU_IDLE")
    };
    Err(Unavailable::new(AWAKE, why, remedy))
}

/// Has the kernel keep all cores awake while the file is open.
///
/// # Errors
/// [`Unavailable`]: no such file, or no permission.
pub fn keep_awake(root: &Root) -> Result<File, Unavailable> {
    check_awake(root)?;
    let refused = |error: &dyn std::error::Error| {
        Unavailable::new(AWAKE, explain(error), "run as root, outside of containers")
    };
    let mut file = root.open_to_write(WAKE_UP).map_err(|error| refused(&error))?;
    if root.is_live() {
        let written = file.write_all(&0_i32.to_ne_bytes());
        written.map_err(|source| refused(&root.write_error(WAKE_UP, source)))?;
    }
    Ok(file)
}

fn explain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// While this value lives, cores are kept awake.
#[derive(Debug)]
pub struct Tuned {
    _awake: Option<File>,
    /// Changes that the kernel refused.
    pub refused: Vec<String>,
}
