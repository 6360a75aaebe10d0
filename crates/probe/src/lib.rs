//! Measures what wide SIMD code costs on this processor, by timing alone: without counters and
//! without privilege, and also inside virtual machines.
//!
//! From the bottom up: a [`kernel`] is a stretch of wide SIMD code; a [`program`] strings windows
//! of scalar and vector work together; a [`target`] executes programs and returns time stamps, and
//! [`silicon`] is the real one; a [`mode`] turns stamps into constants of the processor, with
//! intervals; [`session`] runs modes on kernels, which [`request`] chooses; [`model`] writes the
//! findings as a processor model. [`machine`] is the one that is measured.
//!
//! [`latency`] measures what waiting, waking and moving cost, and [`transition`] how long a clock
//! takes to change: tables 4 and 5 of paper 002. They run no wide SIMD code.
//!
//! Everything above `silicon` also runs on a made-up processor. The tests put constants into one,
//! and check that the modes find them.

mod arch;
pub mod calibration;
pub mod clock;
mod detection;
mod epoch;
pub mod handoff;
pub mod interleaved;
pub mod kernel;
pub mod lab;
pub mod latency;
pub mod machine;
pub mod mode;
pub mod model;
pub mod outcome;
pub mod phases;
pub mod program;
pub mod question;
pub mod request;
mod response;
pub mod session;
pub mod silicon;
pub mod stats;
mod surroundings;
pub mod target;
pub mod transition;
