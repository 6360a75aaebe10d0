//! Why a simulation cannot begin or go on.

use dimmer_processor::model::Missing;

/// Why a machine cannot go on, or not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// The model lacks a value.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The model has fewer cores than were asked for.
    #[error("{asked} cores were asked for, but the model of {model} has {has}")]
    TooManyCores {
        /// How many were asked for.
        asked: u32,
        /// Whose model.
        model: String,
        /// How many it has.
        has: u32,
    },
    /// Threads wait for locks that they hold themselves, one for the other.
    #[error("deadlock at {at_us} µs of simulated time: {}", .waiting.join(", "))]
    Deadlock {
        /// When (µs).
        at_us: u64,
        /// Who waits for what.
        waiting: Vec<String>,
    },
    /// A thread gives back a lock that it does not hold.
    #[error(
        "thread {thread} gives back lock {lock} at {at_us} µs of simulated time, which it does not hold"
    )]
    NotLocked {
        /// When (µs).
        at_us: u64,
        /// Its name.
        thread: String,
        /// The lock's number.
        lock: usize,
    },
    /// A thread finishes with a lock that nobody can take any more.
    #[error("thread {thread} finishes at {at_us} µs of simulated time with lock {lock}")]
    KeepsLock {
        /// When (µs).
        at_us: u64,
        /// Its name.
        thread: String,
        /// The lock's number.
        lock: usize,
    },
    /// A thread takes steps for ever in no time.
    #[error("thread {thread} goes on at {at_us} µs of simulated time without doing anything")]
    NoProgress {
        /// When (µs).
        at_us: u64,
        /// Its name.
        thread: String,
    },
}
