//! What threads do.

use std::collections::VecDeque;
use std::fmt;

use dimmer_policy::licence::Demand;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Upper;
use dimmer_processor::units::LicenceLevel;

use crate::{Moment, Random};

/// A stretch of code of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// What it asks of the clock.
    pub class: InstructionClass,
    /// Whether 512-bit code has left the upper register halves dirty.
    pub upper: Upper,
    /// Instructions of all kinds per cycle while nothing stops them; above 0.
    pub ipc: f64,
    /// Which part of them is of the class; from 0 to 1.
    pub share: f64,
    /// Whether they wait for each other, rather than for an execution unit.
    pub is_chained: bool,
    /// How long memory stops an instruction, on average, whatever the clock (ns).
    pub memory_ns: f64,
    /// How much of it.
    pub extent: Extent,
    /// Under which number its instructions are counted ([`ThreadTotals`](crate::ThreadTotals)).
    pub counter: usize,
}

/// How long code goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Extent {
    /// So many instructions.
    Instructions(f64),
    /// For so long (ps), however much that is.
    Time(Moment),
}

/// A call of paper 000 §4.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Licence {
    /// `avxfreq_set_reclocking`.
    Reclocking(bool),
    /// `avxfreq_set_license`.
    Set(LicenceLevel),
}

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// It runs code.
    Run(Segment),
    /// It sleeps for so long (ps).
    Sleep(Moment),
    /// It takes this lock, and waits until it can.
    Lock(usize),
    /// It gives this lock back.
    Unlock(usize),
    /// It tells the governor; of no effect unless that is [`Governor::User`](crate::Governor::User).
    Call(Licence),
    /// It has finished.
    End,
}

/// A thread's code.
pub trait Program: fmt::Debug + Send {
    /// What it does next, the step before being done.
    fn next(&mut self, now: Moment, chance: &mut Random) -> Step;

    /// The same program at the same place: who knows the future runs a copy.
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
        extent: Extent::Time(0),
        counter: 0,
    };

    /// What a governor sees of it.
    pub(crate) fn demand(&self) -> Demand {
        Demand { class: self.class, upper: self.upper, per_cycle: self.ipc * self.share }
    }
}

/// Steps one after the other, once.
#[derive(Clone, Debug, Default)]
pub struct Once(VecDeque<Step>);

impl Once {
    /// These steps.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self(steps.into_iter().collect())
    }
}

impl Program for Once {
    fn next(&mut self, _: Moment, _: &mut Random) -> Step {
        self.0.pop_front().unwrap_or(Step::End)
    }

    fn copy(&self) -> Box<dyn Program> {
        Box::new(self.clone())
    }
}

/// The multi-phase tool (paper 000 §5.1.2): phases of given durations, scalar, of level 1 and of level 2 in turn.
#[derive(Clone, Debug)]
pub struct Phases {
    /// What runs in each phase; counted under the phase's number.
    segments: Vec<(Segment, LicenceLevel)>,
    /// Whether it sets the level of each phase itself.
    is_manual: bool,
    next: usize,
    has_called: bool,
}

impl Phases {
    /// The phases with the level that each asks for. If `is_manual`, it tells the governor so before each.
    #[must_use]
    pub fn new(segments: Vec<(Segment, LicenceLevel)>, is_manual: bool) -> Self {
        Self { segments, is_manual, next: 0, has_called: false }
    }
}

impl Program for Phases {
    fn next(&mut self, _: Moment, _: &mut Random) -> Step {
        let Some((segment, level)) = self.segments.get(self.next) else { return Step::End };
        if self.is_manual && !self.has_called {
            self.has_called = true;
            return Step::Call(Licence::Set(*level));
        }
        self.has_called = false;
        self.next += 1;
        Step::Run(Segment { counter: self.next - 1, ..*segment })
    }

    fn copy(&self) -> Box<dyn Program> {
        Box::new(self.clone())
    }
}

/// Wide bursts in scalar code, so many times (the injected bursts of paper 001 §3.2).
#[derive(Clone, Debug)]
pub struct Bursts {
    /// The code in between.
    pub scalar: Segment,
    /// The burst.
    pub burst: Segment,
    /// How many of both.
    pub times: u64,
    /// Whether the burst comes next.
    pub is_burst: bool,
}

impl Program for Bursts {
    fn next(&mut self, _: Moment, _: &mut Random) -> Step {
        if self.is_burst {
            self.is_burst = false;
            return Step::Run(self.burst);
        }
        let Some(times) = self.times.checked_sub(1) else { return Step::End };
        self.times = times;
        self.is_burst = true;
        Step::Run(self.scalar)
    }

    fn copy(&self) -> Box<dyn Program> {
        Box::new(self.clone())
    }
}
