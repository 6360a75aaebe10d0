//! What can go wrong in an experiment.

use std::io;

use dimmer_host::affinity::AffinityError;
use dimmer_host::root::RootError;

/// Why there is no result. Whatever had been started has been ended when one of these is returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Server and load would share the only CPU, and so disturb each other.
    #[error(
        "server and load need a CPU each, and this process may run on {allowed} only: \
         let it use a second one (taskset, cpuset)"
    )]
    OneCpu {
        /// How many it may run on.
        allowed: usize,
    },
    /// The CPU for the load does not take this process.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// The processes of the machine cannot be seen.
    #[error(transparent)]
    Proc(#[from] RootError),
    /// A file, a port or a program is refused.
    #[error("cannot {what}")]
    System {
        /// What was tried.
        what: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A program that has one thing to do did not do it.
    #[error("{program} failed: {said}")]
    Failed {
        /// Its name.
        program: String,
        /// Its last words.
        said: String,
    },
    /// The server ended, or did not answer in time.
    #[error("the server {how}; it said: {said}")]
    Server {
        /// What it did or did not do.
        how: String,
        /// Its last words, and those of what it ran under.
        said: String,
    },
    /// The tool for load did not say what it should have.
    #[error("wrk does not say how many requests it made: {said}")]
    Load {
        /// What it said.
        said: String,
    },
    /// The user wants it to end.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    /// Makes the error of trying `what`, for `map_err`.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what: what.into(), source }
    }
}
