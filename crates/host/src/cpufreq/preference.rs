//! The preference of processors that choose their clocks themselves (EPP), one for each policy: a
//! hint between speed and energy.
//!
//! Source: Linux `Documentation/admin-guide/pm/{intel_pstate,amd-pstate}.rst`; the order of the
//! names: `drivers/cpufreq/intel_pstate.c`, `energy_perf_strings`, and `amd-pstate.c`, likewise.

use super::clocks::Clocks;
use super::{POLICIES, Policy, policies};
use crate::root::Root;
use crate::unavailable::Unavailable;

/// The noun in refusals.
const WHAT: &str = "preference of the processor (EPP)";

/// The names, from the fastest to the one that saves most.
const NAMES: [&str; 4] = ["performance", "balance_performance", "balance_power", "power"];

/// The file of a policy's preference.
#[must_use]
pub fn path(policy: &Policy) -> String {
    format!("{POLICIES}/{}/energy_performance_preference", policy.name)
}

/// The names that the driver offers for a policy, from the fastest on; empty if it offers none.
#[must_use]
pub fn offered(root: &Root, policy: &Policy) -> Vec<&'static str> {
    let path = format!("{POLICIES}/{}/energy_performance_available_preferences", policy.name);
    let text = root.text(&path).unwrap_or_default();
    let is_offered = |name: &&str| text.split_whitespace().any(|one| one == *name);
    NAMES.into_iter().filter(is_offered).collect()
}

/// All policies, if this process may set the preference of each.
///
/// # Errors
/// [`Unavailable`]: there is none, or the first with which that does not work.
pub fn check(root: &Root) -> Result<Vec<(Policy, Clocks)>, Unavailable> {
    let missing = |why: String, remedy: &str| Err(Unavailable::new(WHAT, why, remedy));
    let driver = "use the driver intel_pstate or amd_pstate in active mode, on a processor with \
                  HWP or CPPC";
    let found = policies(root);
    if found.is_empty() {
        return missing(format!("no policy under {POLICIES}"), driver);
    }
    let mut checked = Vec::new();
    for policy in found {
        let file = path(&policy);
        if !root.exists(&file) {
            return missing(format!("no {file}"), driver);
        }
        if !root.is_writable(&file) {
            return missing(format!("no permission to write {file}"), "run as root");
        }
        if offered(root, &policy).len() < 2 {
            return missing(
                format!("{} offers no preferences to choose from", policy.name),
                driver,
            );
        }
        if policy.governor.as_deref() == Some("performance") {
            let why = format!("the governor performance of {} sets it", policy.name);
            return missing(why, "as root: echo powersave into each policy's scaling_governor");
        }
        match Clocks::of(root, &policy) {
            Some(clocks) => checked.push((policy, clocks)),
            None => {
                let why = format!("{} does not report the limits of its clock", policy.name);
                return missing(why, "use another driver for cpufreq");
            }
        }
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        let own = [
            ("affected_cpus", "0"),
            ("cpuinfo_min_freq", "800000"),
            ("cpuinfo_max_freq", "4000000"),
            ("scaling_governor", "powersave"),
            ("energy_performance_preference", "balance_performance"),
            (
                "energy_performance_available_preferences",
                "default performance balance_performance balance_power power",
            ),
        ];
        let folder = root.path(&format!("{POLICIES}/policy0"));
        std::fs::create_dir_all(&folder).unwrap();
        for (name, content) in own.iter().chain(files) {
            match *content {
                "" => std::fs::remove_file(folder.join(name)).unwrap(),
                content => std::fs::write(folder.join(name), content).unwrap(),
            }
        }
        (directory, root)
    }

    #[test]
    fn needs_a_file_names_to_choose_from_and_a_governor_that_leaves_it() {
        let why = |files: &[_]| check(&machine(files).1).err().map(|missing| missing.why);
        assert_eq!(why(&[]), None);
        let is = |files: &[_], expected: &str| {
            let found = why(files).unwrap();
            assert!(found.contains(expected), "{found}");
        };
        is(&[("energy_performance_preference", "")], "no /sys/devices/system/cpu/cpufreq/policy0");
        is(&[("energy_performance_available_preferences", "performance")], "offers no");
        is(&[("scaling_governor", "performance")], "the governor performance of policy0");
        is(&[("cpuinfo_min_freq", "")], "does not report the limits");
    }

    #[test]
    fn names_are_in_the_order_of_speed_whatever_the_driver_s() {
        let file = "energy_performance_available_preferences";
        let all = "power balance_power custom balance_performance performance default";
        let (_directory, root) = machine(&[(file, all)]);
        assert_eq!(offered(&root, &policies(&root)[0]), NAMES);
    }
}
