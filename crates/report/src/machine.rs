//! The context that makes a result understandable elsewhere: the machine and the run.

use std::ffi::OsString;
use std::time::SystemTime;

use dimmer_host::machine::Machine;

use crate::shell;

/// The machine of a run, and the run itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineDescription {
    /// The processor's vendor, as the processor names it: `GenuineIntel`.
    pub vendor: String,
    /// The processor's brand string.
    pub brand: String,
    /// The microarchitecture; `unknown` if it is not in Dimmer's table.
    pub microarchitecture: String,
    /// The microcode version; `None` if the kernel does not report it.
    pub microcode: Option<String>,
    /// The hypervisor; `None` on bare metal, or if the hypervisor hides itself.
    pub hypervisor: Option<String>,
    /// The kernel release; `None` if the kernel does not report it.
    pub kernel: Option<String>,
    /// Number of CPUs (hardware threads) that the process may run on.
    pub cpus: usize,
    /// Start of the run: RFC 3339, in UTC.
    pub time: String,
    /// The version of Dimmer.
    pub version: String,
    /// The command line.
    pub command: String,
}

impl MachineDescription {
    /// This machine, for a run of this process that started at `begin`.
    #[must_use]
    pub fn new(machine: &Machine, begin: SystemTime, version: &str) -> Self {
        Self {
            vendor: machine.identity.vendor.clone(),
            brand: machine.identity.brand.clone(),
            microarchitecture: machine.identity.microarchitecture.to_string(),
            microcode: machine.microcode.clone(),
            hypervisor: machine.hypervisor.clone(),
            kernel: machine.kernel_release.clone(),
            cpus: machine.allowed.len(),
            time: humantime::format_rfc3339_seconds(begin).to_string(),
            version: version.to_owned(),
            command: command(std::env::args_os()),
        }
    }
}

/// A command line; what is not UTF-8 in it is replaced.
fn command(words: impl Iterator<Item = OsString>) -> String {
    shell::line(words.map(|word| word.to_string_lossy().into_owned()))
}

/// A time as in [`MachineDescription::time`], since 1970 (s).
pub(crate) fn unix_seconds(time: &str) -> Option<f64> {
    let since = humantime::parse_rfc3339(time).ok()?.duration_since(SystemTime::UNIX_EPOCH);
    since.ok().map(|since| since.as_secs_f64())
}
