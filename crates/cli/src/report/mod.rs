//! What a probe found, in four forms: JSON and CSV for programs, a table and a page for people.
//!
//! Only converts and words [`dimmer_probe::outcome::Findings`]; it measures and decides nothing.
//! The types with `serde` are in [`json`] alone, and `docs/probe-json.md` describes what they emit.

pub(crate) mod csv;
pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod number;
mod readings;
pub(crate) mod table;
mod words;

#[cfg(test)]
mod tests;

/// The machine that was measured and how: what a result needs so that it can be understood
/// elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MachineDescription {
    /// The processor's vendor, as the processor names it: `GenuineIntel`.
    pub(crate) vendor: String,
    /// Its brand string.
    pub(crate) brand: String,
    /// Its microarchitecture; `unknown` where it is not in Dimmer's table.
    pub(crate) microarchitecture: String,
    /// The version of its microcode; `None` where the kernel does not tell.
    pub(crate) microcode: Option<String>,
    /// The hypervisor underneath; `None` on bare metal, or if it hides.
    pub(crate) hypervisor: Option<String>,
    /// The release of the operating system's kernel; `None` where it does not tell.
    pub(crate) kernel: Option<String>,
    /// How many CPUs (hardware threads) the process may run on.
    pub(crate) cpus: usize,
    /// When the run began: RFC 3339, with the offset from UTC.
    pub(crate) time: String,
    /// The version of Dimmer.
    pub(crate) version: String,
    /// The command line.
    pub(crate) command: String,
}
