//! How a thread waits for a word that another one changes: at first by looking, then by a
//! processor's monitor-wait, at last by sleeping.
//!
//! A *way* to wait is a [`Way`], in a file of its own: spinning, sleeping, and those of the
//! processor ([`crate::arch::MONITORS`]).

mod doorbell;
mod futex;
#[cfg(not(all(test, loom)))]
pub mod monitor;
mod patience;
mod sleep;
mod spin;
mod way;
mod ways;
mod word;

pub(crate) use doorbell::Doorbell;
pub(crate) use patience::{Patience, Stretch};
pub(crate) use way::{IsWaitedFor, MONITOR_TICKS, Way};
pub(crate) use ways::choose;
pub(crate) use word::Word;
