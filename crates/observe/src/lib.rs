//! Observes unmodified programs: which functions with wide SIMD code they call, how often, for
//! how long, and how much time passes in between.
//!
//! [`Observer`] provides the environment in which to start a program, so that the preloaded library
//! hooks its functions. It reads what the hooks count while the program runs. Children and workers
//! inherit the environment, so it follows them too. [`Attached`] counts calls from outside, in
//! processes that take no library or run already.
#![forbid(unsafe_code)]

mod attached;
mod distribution;
mod observer;
mod pattern;
mod place;
mod seen;
mod tally;
mod times;
mod trace;

pub use attached::{Attached, MOST_COUNTERS, ProbePoint};
pub use distribution::{Distribution, Values};
pub use observer::{INTERVAL, Observer};
pub use pattern::{BURST_ENDS_NS, Pattern, Requests};
pub use place::{KEPT_OFF, NoPlace, Place, places, remove_left_behind};
pub use seen::{Decided, FunctionPlace, Observed, ThreadSeen};
pub use tally::{Clocks, Tally};
pub use times::Times;
pub use trace::{Event, ThreadTrace, TimedSpan};
