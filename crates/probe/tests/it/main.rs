//! Tests the probe on made-up processors: it must find the constants that were put there, and
//! nothing where there is nothing. Deterministic: no real time is measured here, except by
//! [`silicon`], which only checks properties that hold at any speed.
#![expect(clippy::print_stdout, reason = "tests say what they skip")]

mod agrees;
mod fake;
mod finds;
mod interleaved;
mod models;
mod phases;
mod silicon;
