//! A thread asks for the clock of the core that executes it.
//!
//! Implements the performance configuration of paper 002, section 3.2: threads ask for the fastest
//! clock, the base clock, the slowest one, or a share of the fastest in percent, whatever the
//! hardware and the kernel have for that. `docs/pace.md` says what each back end does.
//!
//! ```
//! use dimmer_pace::{Request, at};
//!
//! let _fast = at(Request::TURBO); // until the end of the block
//! {
//!     let _slow = at(Request::SLOW);
//! } // fast again
//! ```
//!
//! | layer | modules |
//! |---|---|
//! | what a thread asks | [`Request`], [`Wish`], [`Decision`], [`Answer`] |
//! | what the thread keeps | `thread` |
//! | this machine's back end | `machine` |
//! | back ends | `back_end`: `uclamp`; `cpufreq`, `driver` and `pstates`, which share `cores` |
//!
//! A program never fails because of its requests. Without a back end they do nothing. What changes
//! a machine's files goes through the journal of [`dimmer_host`], which undoes it.
#![forbid(unsafe_code)]

mod back_end;
mod machine;
mod request;
mod thread;

pub use machine::{back_end, end, prepare, prepare_under, trouble};
pub use request::{Answer, Decision, Request, Wish};
pub use thread::{Scope, ask, at, in_force, request, request_for, withdraw};
