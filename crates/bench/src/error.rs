//! What can go wrong in an experiment.

use std::io;

use dimmer_host::affinity::AffinityError;
use dimmer_host::root::RootError;

/// Why there is no result. Everything that was started has ended when one of these is returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Server and load would share the only CPU, and so disturb each other.
    #[error(
        "server and load need a CPU each, and this process may run on {allowed} only: \
         let it use a second one (taskset, cpuset)"
    )]
    OneCpu {
        /// Number of CPUs that this process may run on.
        allowed: usize,
    },
    /// This process cannot be pinned to the load's CPU.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// The machine's processes cannot be read.
    #[error(transparent)]
    Proc(#[from] RootError),
    /// The system refuses a file, a port or a program.
    #[error("cannot {what}")]
    System {
        /// The operation that was tried.
        what: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Programs that the experiment needs are not installed.
    #[error("missing: {programs}; in Debian or Ubuntu, as root: {install}")]
    Missing {
        /// Their names.
        programs: String,
        /// The command that installs their packages.
        install: String,
    },
    /// A program with a single task did not do it.
    #[error("{program} failed: {said}")]
    Failed {
        /// The program's name.
        program: String,
        /// Its last output.
        said: String,
    },
    /// The server ended, or did not answer in time.
    #[error("the server {how}; it said: {said}")]
    Server {
        /// What it did or did not do.
        how: String,
        /// The last output of the server, and of the command that it ran under.
        said: String,
    },
    /// The load tool did not print what it should have.
    #[error("wrk does not say how many requests it made: {said}")]
    Load {
        /// What it printed.
        said: String,
    },
    /// A program did not print its result.
    #[error("the last word of {program}'s output should be what it did a second: {said}")]
    NoResult {
        /// The program's name.
        program: String,
        /// The end of its output.
        said: String,
    },
    /// The user has interrupted the experiment.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    /// Makes the error of trying `what`, for `map_err`.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what: what.into(), source }
    }
}
