//! Programs: what a measured core executes, and the trace of time stamps that comes back.
//!
//! A [`Program`] is a list of groups of *windows*, each window one piece of [`Work`]. The core
//! reads the time-stamp counter before every window and after the last. Nothing else happens in
//! between: no allocation, no system call, no page fault.

use std::sync::Arc;

use crate::kernel::Kernel;

/// One window's worth of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A chain of dependent 32-bit multiplications: its length in core cycles is known, so its
    /// duration is the clock. (Chains of immediate additions will not do: newer cores remove them
    /// at register renaming.)
    Clock {
        /// Multiplications in the chain; a multiple of [`Work::CLOCK_STEP`].
        links: u32,
    },
    /// A chain of dependent register additions, one cycle each on every x86-64 core; it tells the
    /// latency of a multiplication.
    Unit {
        /// Additions in the chain; a multiple of [`Work::CLOCK_STEP`].
        links: u32,
    },
    /// Independent additions, as many a cycle as the core issues: shows throttled issue, which
    /// the chain does not.
    Issue {
        /// Additions; a multiple of [`Work::ISSUE_STEP`].
        instructions: u32,
    },
    /// Instructions of a kernel.
    Burst {
        /// Which kernel.
        kernel: Arc<Kernel>,
        /// How many of its instructions, exactly; at least 1.
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

/// What a burst computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operands {
    /// Random numbers near one, loaded into the source register by one instruction of the
    /// kernel's own width, before the burst's own instructions. Data switch the wires, so this is
    /// what costs what real code costs.
    Loaded,
    /// Whatever the registers hold (zeros after `vzeroupper`): not one instruction more than the
    /// burst's own, for counting how many it takes.
    Bare,
}

impl Work {
    /// Chains come in multiples of this many links.
    pub const CLOCK_STEP: u32 = 16;
    /// Independent additions come in multiples of this many.
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

/// Windows that are executed in order, the whole group `times` times over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// One window each.
    pub works: Vec<Work>,
    /// How often.
    pub times: usize,
}

/// A list of groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    groups: Vec<Group>,
    windows: usize,
}

impl Program {
    /// Appends `works`, `times` times over, and returns the index of the first window appended.
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

    /// How many windows the program has.
    #[must_use]
    pub const fn windows(&self) -> usize {
        self.windows
    }
}

/// A time stamp and what happened since the one before.
///
/// | bit 63 | bits 62..0 |
/// |---|---|
/// | the core was interrupted since the last stamp | time-stamp counter |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Stamp(u64);

const _: () = assert!(size_of::<Stamp>() == 8);

impl Stamp {
    /// Bit 63.
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

    /// Whether an interrupt arrived between the stamp before and this one.
    #[must_use]
    pub const fn interrupted(self) -> bool {
        self.0 & Self::INTERRUPTED != 0
    }
}

/// What one core did: a stamp before every window and one after the last.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// One more than the program has windows.
    pub stamps: Vec<Stamp>,
    /// Page faults within the timed stretch; 0 unless something is wrong.
    pub page_faults: u64,
    /// How often the kernel took the core away for another thread within the timed stretch.
    pub preemptions: u64,
    /// What performance counters said, where there are any.
    pub counts: Option<Counts>,
}

/// Performance events of a stretch, in user mode.
#[derive(Clone, Debug, PartialEq)]
pub struct Counts {
    /// How long the counters ran (ns).
    pub ns: f64,
    /// Each event's name and number.
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

    /// The number of one event; `None` if it was not counted.
    #[must_use]
    pub fn of(&self, event: &str) -> Option<u64> {
        self.events.iter().find(|(name, _)| *name == event).map(|(_, number)| *number)
    }
}

impl Trace {
    /// How long window `index` took (TSC ticks).
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
