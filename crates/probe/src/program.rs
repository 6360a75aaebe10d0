//! Programs that a measured core executes, and the traces of time stamps that they return.
//!
//! A [`Program`] is a list of groups of *windows*; each window is one piece of [`Work`]. The core
//! reads the time-stamp counter before every window and after the last. Nothing else happens in
//! between: no allocation, no system call, no page fault.

use std::sync::Arc;

use crate::kernel::Kernel;

/// The work of one window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A chain of dependent 32-bit multiplications. Its length in core cycles is known, so its
    /// duration shows the clock. (Chains of immediate additions do not work: newer cores remove
    /// them at register renaming.)
    Clock {
        /// Multiplications in the chain; a multiple of [`Work::CLOCK_STEP`].
        links: u32,
    },
    /// A chain of dependent register additions, one cycle each on every x86-64 core. It shows the
    /// latency of a multiplication.
    Unit {
        /// Additions in the chain; a multiple of [`Work::CLOCK_STEP`].
        links: u32,
    },
    /// Independent additions, as many a cycle as the core issues. They show throttled issue, which
    /// the chain does not.
    Issue {
        /// Number of additions; a multiple of [`Work::ISSUE_STEP`].
        instructions: u32,
    },
    /// Instructions of a kernel.
    Burst {
        /// The kernel.
        kernel: Arc<Kernel>,
        /// Exact number of its instructions; at least 1.
        instructions: u32,
        /// Whether its operands are loaded first.
        operands: Operands,
    },
    /// Writes a 512-bit register and leaves its upper half dirty, or cleans it at once.
    TouchUpper {
        /// Whether `vzeroupper` follows.
        clean: bool,
    },
}

/// Operands of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operands {
    /// Random numbers near one. One instruction of the kernel's own width loads them into the
    /// source register before the burst's own instructions. Data switch the wires, so such a burst
    /// costs as much as real code.
    Loaded,
    /// The present contents of the registers (zeros after `vzeroupper`). Not one instruction is
    /// added to the burst's own, so that instructions can be counted exactly.
    Bare,
}

impl Work {
    /// Number of links of which chains are multiples.
    pub const CLOCK_STEP: u32 = 16;
    /// Number of additions of which issue windows are multiples.
    pub const ISSUE_STEP: u32 = 64;

    /// A chain of about `links` multiplications.
    #[must_use]
    pub fn clock(links: u32) -> Self {
        Self::Clock { links: links.div_ceil(Self::CLOCK_STEP).max(1) * Self::CLOCK_STEP }
    }

    /// About `instructions` independent additions.
    #[must_use]
    pub fn issue(instructions: u32) -> Self {
        let steps = instructions.div_ceil(Self::ISSUE_STEP).max(1);
        Self::Issue { instructions: steps * Self::ISSUE_STEP }
    }

    /// A burst with loaded operands.
    #[must_use]
    pub fn burst(kernel: &Arc<Kernel>, instructions: u32) -> Self {
        Self::Burst { kernel: Arc::clone(kernel), instructions, operands: Operands::Loaded }
    }
}

/// Windows that are executed in order; the whole group is repeated `times` times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The work of each window.
    pub works: Vec<Work>,
    /// Number of repetitions.
    pub times: usize,
}

/// A list of groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    groups: Vec<Group>,
    windows: usize,
}

impl Program {
    /// Appends `works`, repeated `times` times, and returns the index of the first window appended.
    pub fn push(&mut self, works: &[Work], times: usize) -> usize {
        let first = self.windows;
        if !works.is_empty() && times > 0 {
            self.windows += works.len() * times;
            self.groups.push(Group { works: works.to_vec(), times });
        }
        first
    }

    /// The groups in order.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Number of windows in the program.
    #[must_use]
    pub const fn windows(&self) -> usize {
        self.windows
    }
}

/// A time stamp, with a flag for what happened since the previous one.
///
/// | bit 63 | bits 62..0 |
/// |---|---|
/// | the core was interrupted since the last stamp | time-stamp counter |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Stamp(u64);

const _: () = assert!(size_of::<Stamp>() == 8);

impl Stamp {
    /// Mask of bit 63, set if the core was interrupted.
    pub const INTERRUPTED: u64 = 1 << 63;

    /// The stamp with these bits.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The time-stamp counter.
    #[must_use]
    pub const fn ticks(self) -> u64 {
        self.0 & !Self::INTERRUPTED
    }

    /// Whether an interrupt arrived between the previous stamp and this one.
    #[must_use]
    pub const fn interrupted(self) -> bool {
        self.0 & Self::INTERRUPTED != 0
    }
}

/// Trace of one core: a stamp before every window and one after the last.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Stamps; one more than the program has windows.
    pub stamps: Vec<Stamp>,
    /// Page faults within the timed stretch; 0 unless something is wrong.
    pub page_faults: u64,
    /// How often the kernel gave the core to another thread within the timed stretch.
    pub preemptions: u64,
    /// Values of the performance counters, if there are any.
    pub counts: Option<Counts>,
}

/// Performance events of a stretch, in user mode.
#[derive(Clone, Debug, PartialEq)]
pub struct Counts {
    /// Time for which the counters ran (ns).
    pub ns: f64,
    /// Each event's name and count.
    pub events: Vec<(&'static str, u64)>,
}

impl Counts {
    /// Adds a later stretch of the same events.
    pub fn add(&mut self, later: &Self) {
        self.ns += later.ns;
        for (event, later) in self.events.iter_mut().zip(&later.events) {
            event.1 += later.1;
        }
    }

    /// The count of one event; `None` if it was not counted.
    #[must_use]
    pub fn of(&self, event: &str) -> Option<u64> {
        self.events.iter().find(|(name, _)| *name == event).map(|(_, number)| *number)
    }
}

impl Trace {
    /// Duration of window `index` (TSC ticks).
    #[must_use]
    pub fn ticks(&self, index: usize) -> u64 {
        self.stamps[index + 1].ticks().saturating_sub(self.stamps[index].ticks())
    }

    /// Whether an interrupt arrived in window `index`.
    #[must_use]
    pub fn interrupted(&self, index: usize) -> bool {
        self.stamps[index + 1].interrupted()
    }
}
