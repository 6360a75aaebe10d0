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
//! | whose request is in force | `holders` |
//! | what the thread keeps | `thread` |
//! | which threads there are, and that requests follow them | `registry`, `follower` |
//! | requests that another thread makes | `neighbour` |
//! | cores that are always fast, cores that stay awake | `fast_core`, `awake` |
//! | this machine's back end | `machine` |
//! | back ends | `back_end`: `server`, `uclamp`; others, which share `cores` |
//!
//! A program never fails because of its requests. Without a back end they do nothing. What changes
//! a machine's files goes through the journal of [`dimmer_host`], which undoes it.
#![forbid(unsafe_code)]

mod awake;
mod back_end;
mod fast_core;
mod follower;
mod helper;
mod holders;
mod machine;
mod neighbour;
mod registry;
mod request;
mod thread;

pub use awake::{Awake, awake, awake_under};
pub use fast_core::{
    FastCoreError, FastCores, OnFastCore, dedicate_fast, dedicated_thread, fastest_cpus, go_home,
    go_to_fast_core, on_fast_core,
};
pub use holders::Holder;
pub use machine::{
    back_end, domain, end, prepare, prepare_direct, prepare_for_server, prepare_under, trouble,
};
pub use registry::{MoveError, Registered, move_to, register, registered};
pub use request::{Answer, Decision, Request, Wish};
pub use thread::{
    Scope, ask, at, at_least_for, begin, finish, hold, hold_by_neighbour, in_force, release,
    request, request_by_neighbour, request_for, stay, withdraw,
};
