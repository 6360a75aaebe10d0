//! Observes programs that nobody changed: which functions with wide-vector code they call, how often, for
//! how long, and how much time passes in between.
//!
//! [`Observer`] gives the environment in which a program has to be started, so that the preloaded library
//! hooks its functions, and reads what the hooks count meanwhile. Children and workers inherit the
//! environment, so they are followed too.
#![forbid(unsafe_code)]

mod observer;
mod tally;
mod times;

pub use observer::{FunctionPlace, FunctionSeen, INTERVAL, Observed, Observer, ThreadSeen};
pub use tally::Tally;
pub use times::Times;
