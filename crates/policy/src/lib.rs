//! Decisions about wide SIMD code, as pure functions: what it costs, which way out is best, and
//! which cores to dedicate to it. About a program's phases: which kind of core each runs on. And
//! about critical sections: which gain by a faster clock, and which thread asks for it.
//!
//! Numbers go in, decisions come out. The simulator and the commands for real machines use the same
//! functions. No code here uses a clock, a thread or a file.
#![forbid(unsafe_code)]

pub mod auto;
pub mod boost;
pub mod break_even;
pub mod cost;
pub mod dedicated;
pub mod hand_off;
pub mod headroom;
pub mod license;
pub mod moderation;
pub mod moving;
pub mod narrowing;
pub mod phases;
pub mod server;
pub mod specialise;
pub mod unhooking;
pub mod ways;
