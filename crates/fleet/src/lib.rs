//! Results of `dimmer probe` from several machines, or from one at several times, and the database
//! of machines with what all commands measured on them.
//!
//! | module | what |
//! |---|---|
//! | [`document`] | what is read of the JSON of a probe |
//! | [`measure`] | the costs in it, each with its interval |
//! | [`baseline`] | what has become worse since an earlier probe |
//! | [`merge`] | machines by kind, and those that differ from others of their kind |
//! | [`database`] | records of machines: a directory for each machine and day |
//! | [`kinds`] | which documents a record may have, and the figures in each |
//! | [`place`] | places in JSON, as in `ways[name=server].gain_pct` |
//! | [`names`] | names of records, which are those of machines and days |
//! | [`privacy`] | names of hosts and paths of users, which no record may have |
//! | [`check`] | whether a record is what its name says |
//! | [`compare`] | figures of several records side by side, and whether they agree |
//! | [`claims`] | sentences of the documentation that records confirm or refute |
//! | [`evidence`] | the record of this machine, made by running the commands |
#![forbid(unsafe_code)]

pub mod baseline;
pub mod check;
pub mod claims;
pub mod compare;
pub mod database;
pub mod document;
pub mod evidence;
pub mod kinds;
pub mod measure;
pub mod merge;
pub mod names;
pub mod place;
pub mod privacy;
