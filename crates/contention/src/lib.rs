//! Contention of locks, by *site*: the place in the code that calls a lock function.
//!
//! | module | what |
//! |---|---|
//! | [`ledger`] | the file in which a process counts, as both sides see it |
//! | [`own`] | the process's side: its file, and the site of a call |
//! | [`counters`] | what counters say of some of the thread's sections |
//! | [`held`] | which locks the calling thread holds, and since when |
//! | [`sections`] | sections of code that begin and end with functions |
//! | `origin` | the file that a site's code comes from |
//! | [`reader`] | the observer's side |
//! | [`board`] | where threads write which clocks they request, and the observer's side of it |
//! | [`requests`] | the process's side of that |
//! | [`stop`] | the end of it all in a process that gives up time stamps or system calls |
//!
//! The process's side allocates nothing and takes no lock. It makes system calls only in the first
//! call of a site, to wake an observer that sleeps while a thread requests a clock, and, with
//! [`counters`], to open and read these.

mod arch;
pub mod board;
pub mod counters;
pub mod held;
pub mod ledger;
mod origin;
pub mod own;
pub mod reader;
pub mod requests;
pub mod sections;
pub mod stop;

pub use dimmer_runtime::{filters, giving_up, off};

/// The variable with the directory in which processes make their ledgers. Without it, nothing is
/// observed.
pub const DIRECTORY: &str = "DIMMER_BOOST_LEDGERS";

/// The variable with the sections that begin and end with functions, as [`sections::begin`] takes
/// them. Without it, there are none.
pub const SECTIONS: &str = "DIMMER_BOOST_SECTIONS";

/// The variable with how sections are measured by counters, as [`counters::begin`] takes it.
/// Without it, none is.
pub const COUNTERS: &str = "DIMMER_BOOST_COUNTERS";

/// The variable with the path of the board on which threads request clocks. Without it, none does.
pub const REQUESTS: &str = "DIMMER_BOOST_REQUESTS";
