//! A discrete-event machine: cores with licenses, a governor each, and threads that run code on
//! them.
//!
//! [`Machine`] holds a processor [`Model`](dimmer_processor::model::Model), a [`Governor`] and
//! threads. A thread is a [`Program`]: it says what it does next ([`Step`]), a [`Segment`] of code
//! or a wait. Code runs at the clock that the core has at that moment, as the governors of `policy`
//! decide; whatever changes that is an event. What was executed, and in which states cores spent
//! their time, is counted ([`Totals`]), and the energy that took ([`Energy`]); an [`Observer`] sees
//! the changes.
//!
//! Deterministic: the same machine and seed do the same, to the picosecond.
#![forbid(unsafe_code)]

mod chance;
mod clock;
mod core;
mod energy;
mod error;
mod governor;
mod machine;
mod observer;
mod offload;
mod points;
mod program;
mod queue;
pub mod scenario;
mod sched;

#[cfg(test)]
mod tests;

pub use self::chance::Random;
pub use self::clock::Clocks;
pub use self::core::Totals;
pub use self::energy::{AtPState, CoreEnergy, Energy, NoEnergy, PackageEnergy};
pub use self::error::SimError;
pub use self::governor::{Costs, Governor};
pub use self::machine::{Ended, Machine, Settings, ThreadTotals};
pub use self::observer::{Course, Observer, Ruling, Served, State};
pub use self::offload::{Decider, Mechanism, Offload};
pub use self::program::{Arrivals, Extent, License, Program, Script, Segment, Step};

/// A moment of simulated time (ps), from the machine's start; 213 days are as far as it goes.
pub type Moment = u64;

/// Picoseconds in a nanosecond.
pub const PS: u64 = 1000;
