//! Measures what wide-vector code costs on the processor it runs on, by timing alone: no
//! counters, no privilege, also inside virtual machines.
//!
//! From the bottom up: a [`kernel`] is a stretch of wide-vector code; a [`program`] strings windows
//! of scalar and vector work together; a [`target`] executes programs and returns time stamps,
//! [`silicon`] being the real one; a [`mode`] turns stamps into constants of the processor, with
//! intervals; [`session`] runs modes on kernels; [`model`] writes what was found as a processor
//! model.
//!
//! Everything above `silicon` is the same on a made-up processor, and the tests let it find
//! constants that they have put there.

pub mod calibration;
mod detection;
mod epoch;
pub mod handoff;
pub mod interleaved;
pub mod kernel;
pub mod lab;
pub mod mode;
pub mod model;
pub mod outcome;
pub mod phases;
pub mod program;
mod response;
pub mod session;
pub mod silicon;
pub mod stats;
mod surroundings;
pub mod target;
