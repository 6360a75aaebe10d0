//! Observes programs that nobody changed: which functions with wide-vector code they call, how
//! often, for how long, and how much time passes in between.
//!
//! [`Observer`] gives the environment in which a program has to be started, so that the preloaded
//! library hooks its functions, and reads what the hooks count meanwhile. Children and workers
//! inherit the environment, so they are followed too. [`Attached`] counts calls from outside, in
//! processes that take no library or run already.
#![forbid(unsafe_code)]

mod attached;
mod observer;
mod place;
mod seen;
mod tally;
mod times;

pub use attached::{Attached, MOST_COUNTERS, ProbePoint};
pub use observer::{INTERVAL, Observer};
pub use place::{KEPT_OFF, NoPlace, Place, places, remove_left_behind};
pub use seen::{FunctionPlace, Observed, ThreadSeen};
pub use tally::{Clocks, Tally};
pub use times::Times;
