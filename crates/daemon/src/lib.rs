//! The policy server: it sees every program on a machine that uses Dimmer, and decides all the time
//! which regions are worth moving and how many cores to dedicate (paper 001, chapter 4).
//!
//! What decides is [`dimmer_policy::server`]; what is agreed on with programs is
//! [`dimmer_protocol`]. Here the two are brought together: sums are read from clients' memory and
//! told to the policy, and what it says is written back.
//!
//! | module | what |
//! |---|---|
//! | [`server`] | the loop: who comes and goes, when to look and to decide |
//! | [`clients`] | what is known of a client, and what became of its sites since the last look |
//! | [`names`] | programs and sites by name, also those that have gone, as they may come again |
//! | [`recent`] | what was done lately, as people are told it |
//! | [`record`] | what the policy got to see and what it said, line by line, and the same again |
//! | [`state`] | all that goes on, as a document |
//! | [`metrics`] | the same for Prometheus |
//! | [`settings`] | the configuration file |
//! | [`log`] | the log, bounded and never waited for |
//! | [`counters`] | license levels or packed arithmetic, counted for each process |
//! | [`machine`] | cores and prices of the machine |
//! | [`watch`] | the other end, for who wants to see any of this |
#![forbid(unsafe_code)]

pub mod clients;
pub mod counters;
pub mod log;
pub mod machine;
pub mod metrics;
pub mod names;
pub mod recent;
pub mod record;
pub mod server;
pub mod settings;
pub mod state;
pub mod watch;
