//! The policy server: it sees every program on a machine that uses Dimmer, and decides continuously
//! which regions are worth moving and how many cores to dedicate (paper 001, chapter 4).
//!
//! [`dimmer_policy::server`] decides; [`dimmer_protocol`] defines the exchange with programs. This
//! crate connects the two: it reads sums from clients' memory, reports them to the policy, and
//! writes the decisions back. Its documents are [`dimmer_watch`]'s.
//!
//! | module | what |
//! |---|---|
//! | [`server`] | the loop: clients that connect and leave, when to read sums and to decide |
//! | [`clients`] | the state of a client, and what its sites did since the last look |
//! | [`names`] | numbers of programs and sites by name, also of absent ones, which may come again |
//! | [`recent`] | averages of the last seconds, for display |
//! | [`totals`] | what programs did since the start, by program and unit |
//! | [`metrics`] | the state for Prometheus |
//! | [`log`] | the log, bounded and never blocking |
//! | [`counters`] | license levels or packed arithmetic, counted for each process |
//! | [`machine`] | cores and prices of the machine |
#![forbid(unsafe_code)]

pub mod clients;
pub mod counters;
pub mod log;
pub mod machine;
pub mod metrics;
mod moderation;
pub mod names;
pub mod recent;
pub mod server;
pub mod totals;
