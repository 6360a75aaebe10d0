//! A discrete-event machine: cores with license levels, a governor for each core, and threads that
//! run code on them.
//!
//! [`Machine`] holds a processor [`Model`](dimmer_processor::model::Model), a [`Governor`] and
//! threads. A thread runs a [`Program`], which returns its next [`Step`]: a [`Segment`] of code or
//! a wait. Code runs at the current clock of its core, which the governors of `policy` decide. Each
//! change of the clock is an event. The machine counts the instructions executed, the time that
//! each core spends in each state ([`Totals`]), and the energy ([`Energy`]). An [`Observer`] sees
//! the changes.
//!
//! Deterministic: equal machines with equal seeds behave identically, to the picosecond.
#![forbid(unsafe_code)]

mod chance;
mod clock;
mod core;
mod energy;
mod error;
mod governor;
mod machine;
mod observer;
mod points;
mod program;
mod queue;
mod region_moves;
pub mod scenario;
mod sched;
mod series;

#[cfg(test)]
mod tests;

pub use self::chance::Random;
pub use self::clock::Clocks;
pub use self::core::Totals;
pub use self::energy::{AtPState, CoreEnergy, Energy, NoEnergy, PackageEnergy};
pub use self::error::SimError;
pub use self::governor::{Costs, Governor};
pub use self::machine::{
    Ended, Guide, Machine, Mode, Phases, Settings, Specialise, ThreadTotals, Traps, WideCores,
};
pub use self::observer::{Course, Observer, Ruling, Served, State};
pub use self::program::{Arrivals, Extent, License, Program, Script, Segment, Step};
pub use self::region_moves::{Decider, Guided, Moving, RegionMoves, Specialising};
pub use self::sched::Scheduling;
pub use dimmer_processor::units::{Moment, Picos};

/// A number of a model's, as an index.
fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
