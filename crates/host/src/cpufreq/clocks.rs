//! The clocks that can be asked of a policy, and whether this process may ask.
//!
//! Source: Linux `Documentation/admin-guide/pm/{cpufreq,intel_pstate,amd-pstate}.rst`.

use dimmer_processor::units::KiloHertz;

use super::{POLICIES, Policy, policies};
use crate::root::Root;
use crate::unavailable::Unavailable;

/// The noun in refusals.
const WHAT: &str = "requests of clocks by files (cpufreq)";

/// The clocks of a policy's CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// The slowest one.
    pub slowest: KiloHertz,
    /// The fastest one without turbo; `None` if the kernel does not report it.
    pub base: Option<KiloHertz>,
    /// The fastest one.
    pub fastest: KiloHertz,
}

impl Clocks {
    /// Those of a policy; `None` if its driver does not report the hardware's limits.
    #[must_use]
    pub fn of(root: &Root, policy: &Policy) -> Option<Self> {
        let (slowest, fastest) = policy.hardware?;
        let base = base(root, policy).filter(|base| (slowest..=fastest).contains(base));
        (slowest <= fastest).then_some(Self { slowest, base, fastest })
    }
}

/// What the driver reports: `intel_pstate` in a file of the policy; ACPI (CPPC) in one of each CPU;
/// `acpi-cpufreq` by its table, which has boosted clocks apart on AMD's processors, and on Intel's
/// stands for turbo by a clock of 1 MHz more than the base.
fn base(root: &Root, policy: &Policy) -> Option<KiloHertz> {
    let directory = format!("{POLICIES}/{}", policy.name);
    let khz = |path: &str| root.count(path).ok().filter(|value| *value > 0);
    if let Some(base) = khz(&format!("{directory}/base_frequency")) {
        return Some(KiloHertz::from_khz(base));
    }
    let cpu = policy.cpus.first()?;
    if let Some(mhz) = khz(&format!("/sys/devices/system/cpu/cpu{cpu}/acpi_cppc/nominal_freq")) {
        return mhz.checked_mul(1000).map(KiloHertz::from_khz);
    }
    match *table(root, policy).as_slice() {
        [.., next, turbo] if turbo.khz() == next.khz() + 1000 => Some(next),
        [.., last] => Some(last),
        [] => None,
    }
}

/// The clocks that the policy's driver chooses from, ascending; empty if it can set any. They may
/// lack those with turbo.
#[must_use]
pub fn table(root: &Root, policy: &Policy) -> Vec<KiloHertz> {
    listed(root, policy, "scaling_available_frequencies")
}

/// The clocks with turbo that the policy's driver lists apart, ascending.
pub(crate) fn boosted(root: &Root, policy: &Policy) -> Vec<KiloHertz> {
    listed(root, policy, "scaling_boost_frequencies")
}

fn listed(root: &Root, policy: &Policy, file: &str) -> Vec<KiloHertz> {
    let text = root.text(&format!("{POLICIES}/{}/{file}", policy.name)).unwrap_or_default();
    let clocks = text.split_whitespace().filter_map(|khz| khz.parse().ok());
    let mut clocks: Vec<_> = clocks.map(KiloHertz::from_khz).collect();
    clocks.sort_unstable();
    clocks
}

/// All policies, if this process may ask each of them for clocks.
///
/// # Errors
/// [`Unavailable`]: there is none, or the first with which that does not work.
pub fn check(root: &Root) -> Result<Vec<(Policy, Clocks)>, Unavailable> {
    let missing = |why: String, remedy: &str| Unavailable::new(WHAT, why, remedy);
    let found = policies(root);
    if found.is_empty() {
        let why = format!("no policy under {POLICIES}");
        return Err(missing(why, "use bare metal, with a driver for cpufreq"));
    }
    let checked = found.into_iter().map(|policy| {
        if !policy.writable {
            let why = format!("no permission to write scaling_max_freq of {}", policy.name);
            return Err(missing(why, "run as root"));
        }
        let clocks = Clocks::of(root, &policy).ok_or_else(|| {
            let why = format!("{} does not report the limits of its clock", policy.name);
            missing(why, "use another driver for cpufreq")
        })?;
        Ok((policy, clocks))
    });
    checked.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The base clock (kHz) of a policy from 800 to 3900 MHz with these files.
    fn base_of(files: &[(&str, &str)]) -> Option<u64> {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        let own = [
            ("affected_cpus", "4 5"),
            ("cpuinfo_min_freq", "800000"),
            ("cpuinfo_max_freq", "3900000"),
        ];
        for (name, content) in own.iter().chain(files) {
            let path = match name.strip_prefix('/') {
                Some(path) => root.path(path),
                None => root.path(&format!("{POLICIES}/policy4/{name}")),
            };
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{content}\n")).unwrap();
        }
        let policy = policies(&root).remove(0);
        Clocks::of(&root, &policy).unwrap().base.map(KiloHertz::khz)
    }

    #[test]
    fn finds_the_base_clock_where_each_driver_has_it() {
        let table = "scaling_available_frequencies";
        let nominal = "/sys/devices/system/cpu/cpu4/acpi_cppc/nominal_freq";
        assert_eq!(base_of(&[("base_frequency", "3400000")]), Some(3_400_000));
        assert_eq!(base_of(&[(nominal, "3000"), (table, "800000")]), Some(3_000_000));
        assert_eq!(base_of(&[(table, "3401000 3400000 800000")]), Some(3_400_000));
        assert_eq!(base_of(&[(table, "1400000 3100000")]), Some(3_100_000));
        assert_eq!(base_of(&[]), None);
    }

    #[test]
    fn takes_no_base_clock_outside_of_the_limits() {
        assert_eq!(base_of(&[("base_frequency", "4000000")]), None);
        assert_eq!(base_of(&[("base_frequency", "none")]), None);
    }
}
