//! Tests of `dimmer-host`'s public interface, on made-up machines and on this one.

mod affinity;
mod cpuid;
mod cpusets;
mod exclusion;
mod fixture;
mod garbage;
mod journal;
mod live;
mod operating_points;
mod pstate;
mod registers;
mod specialisation;
mod survey;
mod topology;
mod tune;
mod turbo;
