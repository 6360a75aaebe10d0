//! Licence governors: who decides which licence level a core holds, and when.
//!
//! A governor is a state machine. What happens to its core goes in, with the time; the level that it wants, and the time at which it
//! wants to be called again, come out. It has no clock, no thread and no chance of its own, so that the same code runs
//! against a simulated core and a real one.

pub mod avxfreq;

/// A moment on the clock of whoever calls (ns); where that begins does not matter.
pub type Time = u64;
