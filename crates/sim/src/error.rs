//! Errors that keep a simulation from starting or from going on.

use dimmer_processor::model::Missing;

/// Why a machine cannot start or cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// The scenario is invalid.
    #[error(transparent)]
    Scenario(#[from] crate::scenario::ScenarioError),
    /// The model lacks a value.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The scenario lacks what core specialisation needs.
    #[error("core specialisation needs {needed} in the scenario")]
    NotSpecialised {
        /// The key, and what it says.
        needed: &'static str,
    },
    /// The scenario does not say how threads migrate at marks.
    #[error("migrating at marks needs `[phases]` in the scenario")]
    NoPhases,
    /// The model has fewer cores than requested.
    #[error("{asked} cores were asked for, but the model of {model} has {has}")]
    TooManyCores {
        /// The requested number of cores.
        asked: u32,
        /// The model's name.
        model: String,
        /// The model's number of cores.
        has: u32,
    },
    /// The model lacks the requested P-state.
    #[error("the model of {model} has no P-state `{name}`, expected {}", told(.known))]
    NoPState {
        /// The model's name.
        model: String,
        /// The requested P-state.
        name: String,
        /// The P-states of the model.
        known: Vec<String>,
    },
    /// The model does not give the cost of this change of the P-state.
    #[error(
        "the model of {model} has no `[[transition]]` from {from} to {to}, which a thread asks for"
    )]
    NoTransition {
        /// The model's name.
        model: String,
        /// The P-state before the change.
        from: String,
        /// The P-state after the change.
        to: String,
    },
    /// A step of a thread names a CPU that the machine does not have.
    #[error("thread {thread} migrates to CPU {core}, expected 0 to {}", .has - 1)]
    NoCore {
        /// The thread's name.
        thread: String,
        /// The CPU.
        core: usize,
        /// The number of CPUs.
        has: usize,
    },
    /// Threads wait in a circle for locks that they hold themselves.
    #[error("deadlock at {at_us} µs of simulated time: {}", .waiting.join(", "))]
    Deadlock {
        /// The time of the deadlock (µs).
        at_us: u64,
        /// One sentence for each thread: which lock it waits for, and which thread holds that lock.
        waiting: Vec<String>,
    },
    /// A thread releases a lock that it does not hold.
    #[error(
        "thread {thread} gives back lock {lock} at {at_us} µs of simulated time, which it does not hold"
    )]
    NotLocked {
        /// The time of the release (µs).
        at_us: u64,
        /// The thread's name.
        thread: String,
        /// The lock's number.
        lock: usize,
    },
    /// A thread finishes while it holds a lock, so that no other thread can take the lock again.
    #[error("thread {thread} finishes at {at_us} µs of simulated time with lock {lock}")]
    KeepsLock {
        /// The time at which the thread finishes (µs).
        at_us: u64,
        /// The thread's name.
        thread: String,
        /// The lock's number.
        lock: usize,
    },
    /// A thread does not finish within the time that can be simulated: 2^64 ps.
    #[error(
        "thread {thread} has not finished after {at_us} µs of simulated time, and its next step \
         would end after the longest that can be simulated, 213 days; `end_us` ends a scenario earlier"
    )]
    NoEnd {
        /// The time of the last event (µs).
        at_us: u64,
        /// The thread's name.
        thread: String,
    },
    /// A thread takes steps without end that take no time.
    #[error("thread {thread} goes on at {at_us} µs of simulated time without doing anything")]
    NoProgress {
        /// The time at which the thread hangs (µs).
        at_us: u64,
        /// The thread's name.
        thread: String,
    },
}

/// Lists names as the accepted values.
fn told(names: &[String]) -> String {
    if names.is_empty() { "none: it has no P-states".to_owned() } else { names.join(", ") }
}
