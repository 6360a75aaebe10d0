//! The Linux machine Dimmer stands on: what it is, what it can do, and how to change it so that
//! it is always changed back.
//!
//! Everything that is a file is read and written under an injectable [`root::Root`], so that a
//! test, or `dimmer --root`, can put a made-up machine there. Nothing here decides or measures.
//!
//! * what the machine is: [`cpuid`], [`topology`], [`machine`];
//! * what it can do: [`capability`], with [`cpufreq`] and [`events`] behind it;
//! * what programs on it run: [`libraries`], [`program`], and who knows names of it: [`symbols`];
//!   what can be hidden from them: [`faulting`]; what Dimmer itself keeps there: [`cache`];
//! * what one thread can ask of it: [`affinity`], [`exclusion`], [`realtime`], [`memory`],
//!   [`tile`], [`perf`], [`uprobes`];
//! * files that a user names: [`bounded_file`];
//! * what disturbed a measurement: [`steal`], [`usage`]; what time was left: [`idle`];
//! * how to change it: [`turbo`], [`cpusets`], always through the [`journal`], undone on an
//!   [`interrupt`] too; and what signals mean for the programs that are run: [`relay`].

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("dimmer-host speaks to Linux on x86-64 only");

pub mod affinity;
pub mod bounded_file;
pub mod cache;
pub mod capability;
pub mod cpufreq;
pub mod cpuid;
pub mod cpusets;
pub mod events;
pub mod exclusion;
pub mod faulting;
pub mod file_limit;
pub mod held;
pub mod idle;
pub mod interrupt;
pub mod journal;
pub mod libraries;
pub mod machine;
pub mod memory;
pub mod microarchitecture;
pub mod perf;
pub mod privilege;
pub mod process;
pub mod program;
pub mod realtime;
pub mod relay;
pub mod root;
pub mod steal;
pub mod symbols;
pub mod tile;
pub mod topology;
pub mod travel;
pub mod turbo;
pub mod unavailable;
pub mod uprobes;
pub mod usage;
