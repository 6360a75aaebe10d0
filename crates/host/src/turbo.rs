//! The switch that disables frequencies above the nominal one.
//!
//! Source: Linux `Documentation/admin-guide/pm/{intel_pstate,cpufreq}.rst`.

use crate::cpufreq::POLICIES;
use crate::journal::{Journal, JournalError};
use crate::root::Root;
use crate::unavailable::Unavailable;

const NO_TURBO: &str = "/sys/devices/system/cpu/intel_pstate/no_turbo";
/// What the switch lowers to what is left without turbo, and does not raise again.
const LEAST: &str = "/sys/devices/system/cpu/intel_pstate/min_perf_pct";
const GLOBAL_BOOST: &str = "/sys/devices/system/cpu/cpufreq/boost";
/// What switches a driver's `boost` off.
const BOOST_OFF: &str = "0";

/// The turbo switch of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turbo {
    /// The files to write.
    files: Vec<String>,
    /// The value that switches turbo off.
    off: &'static str,
}

/// Why turbo cannot be switched off.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TurboError {
    /// There is no switch, or this process may not use it. Nothing has changed.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The change failed. Changes made until then are in the journal and will be undone.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl Turbo {
    /// The switch: `intel_pstate/no_turbo`, otherwise `cpufreq/boost`, otherwise each policy's
    /// `boost`.
    ///
    /// # Errors
    /// [`Unavailable`]: the machine has no switch.
    pub fn find(root: &Root) -> Result<Self, Unavailable> {
        if root.exists(NO_TURBO) {
            return Ok(Self { files: vec![NO_TURBO.to_owned()], off: "1" });
        }
        if root.exists(GLOBAL_BOOST) {
            return Ok(Self { files: vec![GLOBAL_BOOST.to_owned()], off: BOOST_OFF });
        }
        let policies = root.list(POLICIES).unwrap_or_default();
        let files: Vec<String> = policies
            .iter()
            .map(|policy| format!("{POLICIES}/{policy}/boost"))
            .filter(|file| root.exists(file))
            .collect();
        if files.is_empty() {
            return Err(Unavailable::new(
                "turbo switch",
                format!("neither {NO_TURBO} nor {GLOBAL_BOOST} nor a policy's boost is there"),
                "switch turbo off in the firmware; in a virtual machine only its host can",
            ));
        }
        Ok(Self { files, off: BOOST_OFF })
    }

    /// The files of the switch, as the kernel names them.
    #[must_use]
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// What the files hold if turbo is off.
    pub(crate) const fn off_value(&self) -> &'static str {
        self.off
    }

    /// Whether turbo is on for at least one policy.
    ///
    /// # Errors
    /// [`crate::root::RootError`].
    pub fn is_on(&self, root: &Root) -> Result<bool, crate::root::RootError> {
        for file in &self.files {
            if root.text(file)? != self.off {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether this process may use the switch.
    #[must_use]
    pub fn is_writable(&self, root: &Root) -> bool {
        self.files.iter().all(|file| root.is_writable(file))
    }

    /// Puts on record, before the switch is used, what the kernel writes with it: a driver's
    /// `boost` writes the upper limits of all policies when it is switched off, and when it is
    /// switched on again (Linux `drivers/cpufreq/cpufreq.c`, `cpufreq_boost_set_sw`); `no_turbo`
    /// lowers the global lower limit of `intel_pstate` (`drivers/cpufreq/intel_pstate.c`,
    /// `store_no_turbo`).
    ///
    /// # Errors
    /// [`JournalError`], as when another process has changed a limit.
    pub(crate) fn hold_limits(&self, journal: &mut Journal) -> Result<(), JournalError> {
        let limits = if self.off == BOOST_OFF {
            let policies = journal.root().list(POLICIES).unwrap_or_default();
            let of_policy = |policy: &String| {
                ["scaling_min_freq", "scaling_max_freq"]
                    .map(|name| format!("{POLICIES}/{policy}/{name}"))
            };
            policies.iter().flat_map(of_policy).collect()
        } else {
            vec![LEAST.to_owned()]
        };
        for path in limits {
            if journal.root().is_writable(&path) {
                journal.change_by_other(&path)?;
            }
        }
        Ok(())
    }

    /// Switches turbo off, if it is on, until `journal` is undone.
    ///
    /// # Errors
    /// [`TurboError`].
    pub fn off(journal: &mut Journal) -> Result<(), TurboError> {
        let switch = Self::find(journal.root())?;
        if !switch.is_writable(journal.root()) {
            return Err(Unavailable::new(
                "turbo switch",
                format!("no permission to write {}", switch.files.join(", ")),
                "run as root",
            )
            .into());
        }
        if switch.is_on(journal.root()).map_err(JournalError::Before)? {
            switch.hold_limits(journal)?;
        }
        for file in &switch.files {
            journal.change(file, switch.off)?;
        }
        Ok(())
    }
}
