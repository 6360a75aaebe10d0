//! Experiments with unmodified programs: what wide SIMD code costs them, and what a mechanism
//! gives back.
//!
//! An experiment runs a program in several ways and compares them round by round. It does not
//! depend on what the ways do: each is a command to put before the program's own.
#![forbid(unsafe_code)]

pub mod auto;
pub mod daemon;
mod error;
pub mod latencies;
pub mod lock;
pub mod moves;
pub mod neighbours;
pub mod nginx;
pub mod pairs;
pub mod phases;
pub mod primesieve;
pub mod process;
pub mod program;
pub mod region;

pub use error::BenchError;
pub use pairs::order;
