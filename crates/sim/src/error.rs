//! Why a simulation cannot begin or go on.

use dimmer_processor::model::Missing;

/// Why a machine cannot go on, or not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// What is to run is no scenario.
    #[error(transparent)]
    Scenario(#[from] crate::scenario::ScenarioError),
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
    /// The model has no such P-state.
    #[error("the model of {model} has no P-state `{name}`, expected {}", told(.known))]
    NoPState {
        /// Whose model.
        model: String,
        /// What was asked for.
        name: String,
        /// Those that it has.
        known: Vec<String>,
    },
    /// The model does not say what a change of the P-state takes.
    #[error(
        "the model of {model} has no `[[transition]]` from {from} to {to}, which a thread asks for"
    )]
    NoTransition {
        /// Whose model.
        model: String,
        /// From which P-state.
        from: String,
        /// To which.
        to: String,
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

/// Names as a choice.
fn told(names: &[String]) -> String {
    if names.is_empty() { "none: it has no P-states".to_owned() } else { names.join(", ") }
}
