//! The Linux machine that Dimmer runs on: what it is, what it can do, and how to change it so that
//! every change is undone.
//!
//! Files of the machine are read and written under an injectable [`root::Root`], so that a test, or
//! `dimmer --root`, can substitute a made-up machine. This crate neither decides nor measures.
//!
//! * what the machine is: [`cpuid`], [`topology`], [`machine`];
//! * what it can do: [`capability`], which uses [`cpufreq`] and [`events`];
//! * which unit, container or pod a process belongs to: [`group`];
//! * which code its programs run: [`libraries`], [`program`]; where the names of that code are:
//!   [`symbols`]; what can be hidden from programs: [`faulting`]; what they give up: [`giving_up`],
//!   [`filters`]; what Dimmer itself stores: [`cache`];
//! * what a thread can request: [`affinity`], [`exclusion`], [`realtime`], [`memory`], [`tile`],
//!   [`perf`], [`uclamp`], [`uprobes`];
//! * files that a user names: [`bounded_file`], [`models`];
//! * what disturbed a measurement: [`steal`], [`usage`]; how much time was idle: [`idle`]; how
//!   busy it was before: [`load`];
//! * how to change the machine: [`turbo`], [`tune`], [`pstate`] by [`msr`], [`operating_points`],
//!   [`core_power`], [`cpusets`], [`specialisation`], always through the [`journal`], undone on an
//!   [`interrupt`] and [`at_exit`] too; how signals reach the programs that are run: [`relay`].

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("dimmer-host speaks to Linux on x86-64 only");

pub mod affinity;
pub mod at_exit;
pub mod bounded_file;
pub mod cache;
pub mod capability;
pub mod core_power;
pub mod cpufreq;
pub mod cpuid;
pub mod cpusets;
pub mod debuginfod;
mod environment;
pub mod events;
pub mod exclusion;
pub mod faulting;
pub mod file_limit;
pub mod filters;
pub mod giving_up;
pub mod group;
pub mod held;
pub mod idle;
pub mod interrupt;
pub mod journal;
pub mod libraries;
pub mod load;
pub mod machine;
pub mod memory;
pub mod microarchitecture;
pub mod migration;
pub mod models;
pub mod monitor;
pub mod msr;
pub mod off;
pub mod open_files;
pub mod operating_points;
pub mod own_event;
pub mod perf;
pub mod privilege;
pub mod process;
pub mod program;
pub mod pstate;
pub mod realtime;
pub mod relay;
pub mod root;
pub mod signals;
pub mod specialisation;
pub mod steal;
pub mod symbols;
pub mod tally;
pub mod tile;
pub mod timed_clock;
pub mod topology;
pub mod tune;
pub mod turbo;
pub mod uclamp;
pub mod unavailable;
pub mod uprobes;
pub mod usage;
pub mod user_counters;
