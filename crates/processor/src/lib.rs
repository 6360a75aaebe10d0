//! What a processor is: data and pure functions, without any input or output of their own.
//!
//! Everything else in Dimmer speaks these types: [`units`] for quantities, [`class`] for what an
//! instruction asks of the clock, [`topology`] for cores and what they share, [`model`] for
//! processors described in files, [`power`] for what cores take by them.
#![forbid(unsafe_code)]

pub mod class;
pub mod model;
pub mod power;
pub mod topology;
pub mod units;
