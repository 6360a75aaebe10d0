//! Everything `dimmer-host` promises at its border, on made-up machines and on this one.

mod affinity;
mod cpuid;
mod cpusets;
mod fixture;
mod garbage;
mod journal;
mod live;
mod survey;
mod topology;
mod turbo;
