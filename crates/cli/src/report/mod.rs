//! The findings of a probe in four forms: JSON and CSV for programs, a table and a page for people.
//!
//! Only converts [`dimmer_probe::outcome::Findings`] and puts them into words; it measures and
//! decides nothing. The types with `serde` are in [`json`] alone, and `docs/probe-json.md`
//! describes what they emit.

pub(crate) mod csv;
pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod number;
mod readings;
pub(crate) mod table;
mod verdict;
mod words;

#[cfg(test)]
mod tests;

/// The measured machine and the run: the context that makes a result understandable elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MachineDescription {
    /// The processor's vendor, as the processor names it: `GenuineIntel`.
    pub(crate) vendor: String,
    /// The processor's brand string.
    pub(crate) brand: String,
    /// The microarchitecture; `unknown` if it is not in Dimmer's table.
    pub(crate) microarchitecture: String,
    /// The microcode version; `None` if the kernel does not report it.
    pub(crate) microcode: Option<String>,
    /// The hypervisor; `None` on bare metal, or if the hypervisor hides itself.
    pub(crate) hypervisor: Option<String>,
    /// The kernel release; `None` if the kernel does not report it.
    pub(crate) kernel: Option<String>,
    /// Number of CPUs (hardware threads) that the process may run on.
    pub(crate) cpus: usize,
    /// Start of the run: RFC 3339, with the offset from UTC.
    pub(crate) time: String,
    /// The version of Dimmer.
    pub(crate) version: String,
    /// The command line.
    pub(crate) command: String,
}
