//! What threads do: steps, segments of code, and scripts.

mod distribution;
mod narrowing;
mod script;

use std::fmt;

use dimmer_policy::license::Demand;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Upper;
use dimmer_processor::units::LicenseLevel;

pub(crate) use self::distribution::Distribution;
pub(crate) use self::narrowing::Narrowing;
pub use self::script::Script;
pub(crate) use self::script::{Operation, Passes};
use crate::{Moment, Picos, Random};

/// A stretch of code of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// The instruction class, which determines the level that the code asks for.
    pub class: InstructionClass,
    /// Whether 512-bit code has left the upper register halves dirty.
    pub upper: Upper,
    /// Instructions of all kinds per cycle while nothing stalls them; above 0.
    pub ipc: f64,
    /// The share of instructions of the class; from 0 to 1.
    pub share: f64,
    /// Whether instructions wait for each other rather than for an execution unit.
    pub is_chained: bool,
    /// How long memory stalls an instruction, on average, independent of the clock (ns).
    pub memory_ns: f64,
    /// Switched capacitance of the core while it executes, relative to the model's busy core.
    pub activity: f64,
    /// Energy outside the core that an instruction causes, such as that of memory (nJ).
    pub traffic_nj: f64,
    /// The length of the segment.
    pub extent: Extent,
    /// Index of the counter for its instructions ([`ThreadTotals`](crate::ThreadTotals)).
    pub counter: usize,
}

/// The length of a segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Extent {
    /// A number of instructions.
    Instructions(f64),
    /// A time (ps), however many instructions that is.
    Time(Picos),
}

/// A system call of paper 000 §4.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum License {
    /// `avxfreq_set_reclocking`.
    Reclocking(bool),
    /// `avxfreq_set_license`.
    Set(LicenseLevel),
}

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// It runs code.
    Run(Segment),
    /// It sleeps for this long (ps).
    Sleep(Picos),
    /// It takes this lock, and waits until the lock is free.
    Lock(usize),
    /// It takes this lock. While another thread has it, this one executes this segment on its CPU,
    /// whatever the segment's extent.
    Spin(usize, Segment),
    /// It takes this lock. While another thread has it, its core waits by MONITOR and MWAIT, in the
    /// model's shallowest idle state.
    Mwait(usize),
    /// It releases this lock.
    Unlock(usize),
    /// It enters a marked region, by number.
    Enter(usize),
    /// It leaves the region that it entered last; the number is that region's.
    Leave(usize),
    /// It calls the governor; without effect under any other than
    /// [`Governor::User`](crate::Governor::User).
    Call(License),
    /// It requests a P-state for its core, given by its index in the model.
    Ask(usize),
    /// Core `by` requests a P-state for `core`, and the request keeps core `by`.
    AskBy {
        /// The core whose request it is from then on.
        core: usize,
        /// The core that makes it.
        by: usize,
        /// The P-state's index in the model.
        wish: usize,
    },
    /// It migrates to this CPU, by the kernel.
    Go(usize),
    /// It passes a mark, by number.
    Mark(usize),
    /// It enters the kernel by a system call, whose time is that of other steps.
    SystemCall,
    /// A request that arrived at this moment is done: its latency is counted.
    Served(Moment),
    /// Nothing: the program is not yet at its next step, but has already passed many ends of
    /// blocks and extents of 0. So no call of [`Program::next`] takes long.
    Skip,
    /// It has finished.
    End,
}

/// When requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Each arrives when the one before is done: a closed loop.
    Closed,
    /// At an average interval, whether the one before is done or not: an open loop. Evenly spaced,
    /// or random (exponentially distributed).
    Open {
        /// The average interval (ps).
        every: Picos,
        /// Whether the intervals are random.
        is_random: bool,
    },
}

/// The code of a thread.
pub trait Program: fmt::Debug + Send {
    /// The next step, called when the step before is done.
    fn next(&mut self, now: Moment, chance: &mut Random) -> Step;

    /// The next step, if it is code and would be the same at any time; `None` otherwise, and then
    /// the program is as before for [`Program::next`].
    fn code(&mut self, chance: &mut Random) -> Option<Segment> {
        let _ = chance;
        None
    }

    /// Another governor is in force: if the program decides, it calls that one before its next
    /// code.
    fn calls_again(&mut self) {}

    /// A copy of the program in its current state: the oracle runs it to see the future.
    fn copy(&self) -> Box<dyn Program>;
}

impl Segment {
    /// Scalar code of one instruction per cycle.
    pub const SCALAR: Self = Self {
        class: InstructionClass::Scalar,
        upper: Upper::Any,
        ipc: 1.0,
        share: 1.0,
        is_chained: false,
        memory_ns: 0.0,
        activity: 1.0,
        traffic_nj: 0.0,
        extent: Extent::Time(Picos::ZERO),
        counter: 0,
    };

    /// Independent 512-bit multiply-adds on two units, two per cycle (the unrolled code of paper
    /// 000 §3.3.2).
    pub const FMA_512: Self = Self { class: InstructionClass::Heavy512, ipc: 2.0, ..Self::SCALAR };

    /// The same on one register triple: each multiply-add waits 4 cycles for the one before.
    pub const CHAINED_512: Self = Self { ipc: 0.25, is_chained: true, ..Self::FMA_512 };

    /// The demand that a governor sees.
    #[must_use]
    pub fn demand(&self) -> Demand {
        Demand { class: self.class, upper: self.upper, per_cycle: self.ipc * self.share }
    }
}
