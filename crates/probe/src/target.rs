//! What programs run on: the machine itself ([`crate::silicon::Silicon`]) or, in tests, a made-up
//! processor with known constants.

use dimmer_processor::units::{CpuId, TscFrequency};

use crate::kernel::Kernel;
use crate::program::{Program, Trace};

/// A program for one hardware thread.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Where it runs.
    pub cpu: CpuId,
    /// What runs.
    pub program: &'a Program,
}

/// Load on other cores while a program runs (pre-throttling, paper 000 §3.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Scalar code only.
    Scalar,
    /// The kernel under test.
    Vector,
}

/// Why a program could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The core has no time-stamp counter that counts evenly, or its clock does not settle: there
    /// is nothing to measure with. Fatal for the whole probe.
    #[error("cannot measure by timing here: {why}")]
    NoClock {
        /// What was found.
        why: String,
    },
    /// A CPU cannot be used. Nothing ran.
    #[error("cannot run on CPU {cpu}: {why}")]
    Cpu {
        /// Which.
        cpu: CpuId,
        /// Why not, and which can be used.
        why: String,
    },
    /// Memory for code or stamps could not be had. Nothing ran.
    #[error("cannot prepare {what}")]
    Memory {
        /// What for.
        what: &'static str,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A kernel cannot be assembled. A defect of this program, not of the machine.
    #[error("cannot assemble kernel {kernel}: {why}")]
    Assembly {
        /// Which kernel.
        kernel: String,
        /// The assembler's reason.
        why: String,
    },
    /// A measuring thread ended by itself. Fatal for the whole probe.
    #[error("the measuring thread of CPU {cpu} is gone")]
    ThreadGone {
        /// Whose thread.
        cpu: CpuId,
    },
}

/// Something that executes programs and returns time stamps.
pub trait Target {
    /// How fast the time-stamp counter counts.
    fn tsc(&self) -> TscFrequency;

    /// The hardware threads that programs may use.
    fn cpus(&self) -> &[CpuId];

    /// The other hardware threads of the core of `cpu`, as far as programs may use them.
    fn siblings(&self, cpu: CpuId) -> Vec<CpuId>;

    /// Why `kernel` cannot run here; `None` if it can.
    fn lacks(&self, kernel: &Kernel) -> Option<String>;

    /// Runs all jobs, each on its own CPU, started together; one trace a job, in the same order.
    ///
    /// # Errors
    /// [`TargetError`]; after an error nothing of this call is still running.
    fn run(&mut self, jobs: &[Job<'_>]) -> Result<Vec<Trace>, TargetError>;
}
