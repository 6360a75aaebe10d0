//! Results of `dimmer probe` from several machines, or from one at several times.
//!
//! | module | what |
//! |---|---|
//! | [`document`] | what is read of the JSON of a probe |
//! | [`measure`] | the costs in it, each with its interval |
//! | [`baseline`] | what has become worse since an earlier probe |
//! | [`merge`] | machines by kind, and those that differ from others of their kind |
#![forbid(unsafe_code)]

pub mod baseline;
pub mod document;
pub mod measure;
pub mod merge;
