//! Names of records: what the machine is, and the day, as in `epyc-zen5-vm-linux-6.18-2026-11-27`.
//!
//! The name of a machine comes from what its documents say of it, so it names no host. Several
//! hosts of one kind, and several runs on one day, have labels with a number:
//! `epyc-zen5-vm-linux-6.18-host2-2026-11-27`.

use std::time::{Duration, SystemTime};

use dimmer_host::machine::Machine;

/// A machine as its documents describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The processor's marketing name.
    pub brand: String,
    /// Its microarchitecture.
    pub microarchitecture: String,
    /// The microcode's version.
    pub microcode: Option<String>,
    /// The hypervisor.
    pub hypervisor: Option<String>,
    /// The kernel's release.
    pub kernel: Option<String>,
}

/// Words of marketing names that tell processors of a vendor apart, in the order of search.
const FAMILIES: [&str; 9] =
    ["epyc", "threadripper", "ryzen", "athlon", "xeon", "core", "pentium", "celeron", "atom"];

/// What a record's name must look like, for messages.
pub const EXPECTED: &str = "PROCESSOR-vm-linux-X.Y-YYYY-MM-DD or PROCESSOR-metal-...";

impl About {
    /// This machine.
    #[must_use]
    pub fn of(machine: &Machine) -> Self {
        Self {
            brand: machine.identity.brand.clone(),
            microarchitecture: machine.identity.microarchitecture.to_string(),
            microcode: machine.microcode.clone(),
            hypervisor: machine.hypervisor.clone(),
            kernel: machine.kernel_release.clone(),
        }
    }

    /// The name of machines of this kind: `epyc-zen5-vm-linux-6.18`.
    #[must_use]
    pub fn machine(&self) -> String {
        let brand = self.brand.to_ascii_lowercase();
        let family = FAMILIES.into_iter().find(|word| {
            brand.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| part == *word)
        });
        let microarchitecture = match self.microarchitecture.as_str() {
            // The first generation, which its own name does not say.
            "Zen" => "zen1".to_owned(),
            // `Zen 5` is `zen5`, `Emerald Rapids` is `emerald-rapids`.
            name => plain(&name.replace("Zen ", "zen")),
        };
        let place = if self.hypervisor.is_some() { "vm" } else { "metal" };
        let release = self.kernel.as_deref().unwrap_or("unknown");
        let series: Vec<&str> = release.split('.').take(2).collect();
        let kernel = format!("linux-{}", plain(&series.join(".")));
        let parts = [family.unwrap_or_default(), &microarchitecture, place, &kernel];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
    }
}

/// Lower case, with hyphens between words.
fn plain(text: &str) -> String {
    let parts = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    let parts: Vec<String> =
        parts.filter(|part| !part.is_empty()).map(str::to_ascii_lowercase).collect();
    parts.join("-")
}

/// The machine and the day in a record's name. `None` if it is none.
#[must_use]
pub fn parts(name: &str) -> Option<(&str, &str)> {
    let at = name.len().checked_sub("-YYYY-MM-DD".len())?;
    let (machine, date) = (name.get(..at)?, name.get(at..)?.strip_prefix('-')?);
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    let is_name = !machine.is_empty() && machine.chars().all(is_plain);
    (is_name && day(date).is_some()).then_some((machine, date))
}

/// The kind of a machine: its name without the label of a host or a run.
#[must_use]
pub fn kind(machine: &str) -> &str {
    match machine.rsplit_once('-') {
        Some((kind, label)) if is_label(label) => kind,
        _ => machine,
    }
}

/// Whether a text tells hosts of one kind apart, or runs on one day: `host2`, `run2`.
#[must_use]
pub fn is_label(text: &str) -> bool {
    let number = text.strip_prefix("host").or_else(|| text.strip_prefix("run"));
    number.is_some_and(|number| {
        (1..=3).contains(&number.len()) && number.bytes().all(|digit| digit.is_ascii_digit())
    })
}

/// The midnight at which a day starts (UTC): `2026-11-27`, also as the start of a longer time.
#[must_use]
pub fn day(time: &str) -> Option<SystemTime> {
    humantime::parse_rfc3339(&format!("{}T00:00:00Z", time.get(..10)?)).ok()
}

/// Whether a time lies in the day of a record, or in the next one, as of a run over midnight.
#[must_use]
pub fn is_of_day(time: &str, date: &str) -> bool {
    let after = day(time).zip(day(date)).and_then(|(time, date)| time.duration_since(date).ok());
    after.is_some_and(|after| after <= Duration::from_secs(86_400))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_named_by_what_it_is() {
        let check = |brand: &str, micro: &str, hypervisor: Option<&str>, kernel: &str, expected| {
            let about = About {
                brand: brand.to_owned(),
                microarchitecture: micro.to_owned(),
                microcode: None,
                hypervisor: hypervisor.map(str::to_owned),
                kernel: Some(kernel.to_owned()),
            };
            assert_eq!(about.machine(), expected);
        };
        check("AMD EPYC", "Zen 5", Some("KVM"), "6.18.44-fc-v669", "epyc-zen5-vm-linux-6.18");
        check("AMD EPYC 7551", "Zen", Some("KVM"), "6.18.44", "epyc-zen1-vm-linux-6.18");
        check(
            "Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz",
            "Skylake-SP",
            None,
            "5.10.0-21-amd64",
            "xeon-skylake-sp-metal-linux-5.10",
        );
        check("Genuine", "unknown", None, "7-rc1", "unknown-metal-linux-7-rc1");
    }

    #[test]
    fn names_are_taken_apart() {
        let check = |name: &str, expected| assert_eq!(parts(name), expected, "{name}");
        check("a-vm-linux-6.18-2026-11-27", Some(("a-vm-linux-6.18", "2026-11-27")));
        for wrong in [
            "2026-11-27",
            "-2026-11-27",
            "a-2026-13-01",
            "a-2026-02-30",
            "a",
            "A-2026-11-27",
            "é-2026-11-2é",
        ] {
            check(wrong, None);
        }
        assert_eq!(kind("a-vm-host12"), "a-vm");
        assert_eq!(kind("a-vm-run2"), "a-vm");
        assert_eq!(kind("a-vm-hosts"), "a-vm-hosts");
        assert_eq!(kind("a-vm-host+1"), "a-vm-host+1");
    }

    #[test]
    fn a_run_may_go_over_midnight() {
        assert!(is_of_day("2026-11-27T23:59:00Z", "2026-11-27"));
        assert!(is_of_day("2026-12-01T00:01:00+00:00", "2026-11-30"));
        assert!(!is_of_day("2026-11-29T00:01:00Z", "2026-11-27"));
        assert!(!is_of_day("2026-11-26T00:01:00Z", "2026-11-27"));
        assert!(!is_of_day("yesterday", "2026-11-27"));
    }
}
