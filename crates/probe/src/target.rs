//! Targets, on which programs run: the machine itself ([`crate::silicon::Silicon`]) or, in tests, a
//! made-up processor with known constants.

use std::time::Duration;

use dimmer_processor::units::{CpuId, TscFrequency};

use crate::kernel::Kernel;
use crate::program::{Program, Trace};

/// A program for one hardware thread.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The CPU that runs it.
    pub cpu: CpuId,
    /// The program.
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
        /// The finding, as a phrase.
        why: String,
    },
    /// A CPU cannot be used. Nothing ran.
    #[error("cannot run on CPU {cpu}: {why}")]
    Cpu {
        /// The CPU.
        cpu: CpuId,
        /// The reason, and the CPUs that can be used.
        why: String,
    },
    /// Memory for code or stamps was not available. Nothing ran.
    #[error("cannot prepare {what}")]
    Memory {
        /// Purpose of the memory.
        what: &'static str,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A kernel cannot be assembled. This is a defect of this program, not of the machine.
    #[error("cannot assemble kernel {kernel}: {why}")]
    Assembly {
        /// The kernel's name.
        kernel: String,
        /// The assembler's reason.
        why: String,
    },
    /// A measuring thread ended by itself. Fatal for the whole probe.
    #[error("the measuring thread of CPU {cpu} is gone")]
    ThreadGone {
        /// CPU of the thread.
        cpu: CpuId,
    },
}

/// Executes programs and returns time stamps.
pub trait Target {
    /// Rate of the time-stamp counter.
    fn tsc(&self) -> TscFrequency;

    /// The hardware threads that programs may use.
    fn cpus(&self) -> &[CpuId];

    /// The other hardware threads of the core of `cpu` that programs may use.
    fn siblings(&self, cpu: CpuId) -> Vec<CpuId>;

    /// The reason why `kernel` cannot run here; `None` if it can.
    fn lacks(&self, kernel: &Kernel) -> Option<String>;

    /// Time since some fixed moment, on the clock that limits how long measuring may take. A
    /// made-up processor returns its own time, so that results do not depend on the time that
    /// making them up takes.
    fn now(&self) -> Duration;

    /// Starts all jobs together, each on its own CPU. Returns one trace for each job, in the same
    /// order.
    ///
    /// # Errors
    /// [`TargetError`]; after an error nothing of this call is still running.
    fn run(&mut self, jobs: &[Job<'_>]) -> Result<Vec<Trace>, TargetError>;
}
