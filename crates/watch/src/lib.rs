//! What the policy server tells: its state, and recordings of what it saw and decided. Both as
//! documents, with the connection that asks for them, for the server itself and for all that watch
//! it without linking it.
//!
//! | module | what |
//! |---|---|
//! | [`state`] | the state of the server, as a document |
//! | [`record`] | inputs and decisions of the policy, line by line, and their replay |
//! | [`settings`] | the configuration file, with which a recording begins |
//! | [`address`] | where metrics are served, as the configuration file names it |
//! | [`watch`] | the connection of a program that watches or records |
#![forbid(unsafe_code)]

pub mod address;
pub mod record;
pub mod settings;
pub mod state;
pub mod watch;
