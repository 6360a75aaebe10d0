//! The context that makes a result understandable elsewhere: the machine and the run.

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
