//! Descriptions of processors: data and pure functions, without input or output.
//!
//! All of Dimmer uses these types: [`units`] for quantities, [`class`] for an instruction's demand
//! on the clock, [`topology`] for cores and what they share, [`model`] for processors described in
//! files, [`power`] and [`supply`] for the power of cores, computed from a model, [`divisors`] for
//! clocks that depend on those of other cores, [`pstate`] for P-states as registers hold them,
//! [`text`] for places in files.
#![forbid(unsafe_code)]

pub mod class;
pub mod divisors;
pub mod model;
pub mod power;
pub mod pstate;
pub mod supply;
pub mod text;
pub mod topology;
pub mod units;
