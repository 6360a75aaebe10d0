//! Launches programs under a mechanism, and follows them: the engine of `dimmer run` and
//! `dimmer observe`.
//!
//! | module | what |
//! |---|---|
//! | [`program`], [`mod@follow`], [`mod@preload`] | the program: files, process, Dimmer's library |
//! | `within` | the library within this program, which releases of one file have |
//! | [`run()`] | a program under [mechanisms](mechanism), from its start to its [`account`] |
//! | [`mechanism`] | one file for each, and the table of them |
//! | [`named`], [`names`] | functions that the user names, and where their names come from |
//! | `chosen`, `outermost`, `leaves` | functions that a processor model chooses |
//! | `served`, `forms`, `cores` | what the server decides, the code, the dedicated cores |
//! | [`trials`] | which mechanism the program is under, by trials of each |
//! | `wide_cores` | which CPUs are wide: the server's or the run's own |
//! | [`mod@observe`] | a program whose calls are counted and timed, or only counted from outside |
//! | [`locks`], `advice` | a program whose locks are observed, and what would pay there |
//! | [`measured`] | what counters say of their sections |
//! | `requester` | carries out the clocks that its threads request |
//! | [`note`] | what the caller may print meanwhile |
//! | [`cache`] | what is kept between runs |
//!
//! Nothing here prints, reads arguments, or has a document for users: what happens comes as
//! [notes](note::Note), [accounts](account::Account) and [errors](LaunchError).
#![forbid(unsafe_code)]

pub mod account;
mod advice;
pub mod cache;
mod chosen;
mod cores;
mod error;
pub mod follow;
mod forms;
mod leaves;
pub mod locks;
mod marks;
pub mod measured;
pub mod mechanism;
pub mod monitor;
pub mod named;
pub mod names;
pub mod note;
pub mod observe;
mod outermost;
pub mod phases;
pub mod preload;
pub mod program;
mod requester;
mod run;
mod sections;
mod served;
mod slow_cpus;
pub mod stat;
pub mod trials;
pub mod trips;
mod used_cores;
mod wide_cores;
mod wide_trips;
mod within;

pub use cores::cores;
pub use error::{LaunchError, Reserved};
pub use run::{Ended, Request, run};
