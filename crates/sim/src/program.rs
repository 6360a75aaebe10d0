//! What threads do.

use std::fmt;

use dimmer_policy::license::{Chance as _, Demand};
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Upper;
use dimmer_processor::units::LicenseLevel;

use crate::{Governor, Moment, Random};

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
    /// It sleeps for so long (ps).
    Sleep(Moment),
    /// It takes this lock, and waits until it can.
    Lock(usize),
    /// It gives this lock back.
    Unlock(usize),
    /// It enters a marked region, by number.
    Enter(usize),
    /// It leaves the region that it entered last, which has this number.
    Leave(usize),
    /// It tells the governor; of no effect unless that is [`Governor::User`].
    Call(License),
    /// It asks for this P-state for its core, by its place in the model.
    Ask(usize),
    /// A request that came at this moment is done: its latency is counted.
    Served(Moment),
    /// It has finished.
    End,
}

/// When requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Each when the one before is done: a closed loop.
    Closed,
    /// So often on average (ps), whether the one before is done or not: an open loop. Evenly, or by
    /// chance (exponentially).
    Open {
        /// From one to the next (ps).
        every: Moment,
        /// Whether by chance.
        is_random: bool,
    },
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

    /// Independent 512-bit multiply-adds: two units, two a cycle (the unrolled code of paper 000
    /// §3.3.2).
    pub const FMA_512: Self = Self { class: InstructionClass::Heavy512, ipc: 2.0, ..Self::SCALAR };

    /// The same on one register triple: each waits 4 cycles for the one before.
    pub const CHAINED_512: Self = Self { ipc: 0.25, is_chained: true, ..Self::FMA_512 };

    /// What a governor sees of it.
    #[must_use]
    pub fn demand(&self) -> Demand {
        Demand { class: self.class, upper: self.upper, per_cycle: self.ipc * self.share }
    }
}

/// Steps one after the other, some times over.
#[derive(Clone, Debug)]
pub struct Script {
    /// The steps, and the level that each one's code asks for.
    steps: Vec<(Step, LicenseLevel)>,
    /// How often they are still to be begun.
    times: u64,
    next: usize,
    /// Whether it tells the governor what it is going to run.
    calls: bool,
    told: Option<LicenseLevel>,
    /// If each time over is a request: how they come.
    requests: Option<Arrivals>,
    /// When the one that is served came, if any is.
    came: Option<Moment>,
    /// When the next one comes, in an open loop.
    arrives: Moment,
    /// When it begins.
    begin: Moment,
}

impl Script {
    /// These steps, once.
    pub fn once(steps: impl IntoIterator<Item = Step>) -> Self {
        let steps = steps.into_iter().map(|step| (step, LicenseLevel::new(0)));
        Self::new(steps.collect(), 1)
    }

    /// These steps, so many times over; each with the level that its code asks for.
    #[must_use]
    pub fn new(steps: Vec<(Step, LicenseLevel)>, times: u64) -> Self {
        let times = if steps.is_empty() { 0 } else { times };
        let (requests, came) = (None, None);
        Self {
            steps,
            times,
            next: 0,
            calls: false,
            told: None,
            requests,
            came,
            arrives: 0,
            begin: 0,
        }
    }

    /// The same; each time over is a request, whose latency is counted.
    #[must_use]
    pub fn serving(self, requests: Arrivals) -> Self {
        Self { requests: Some(requests), ..self }
    }

    /// The same, from this moment on; its first request, if it serves any, comes then.
    #[must_use]
    pub fn from(self, begin: Moment) -> Self {
        Self { begin, arrives: begin, ..self }
    }

    /// The next request comes: when, or how long to sleep until then.
    fn arrival(
        &mut self,
        now: Moment,
        arrivals: Arrivals,
        chance: &mut Random,
    ) -> Result<Moment, Moment> {
        let Arrivals::Open { every, is_random } = arrivals else { return Ok(now) };
        if now < self.arrives {
            return Err(self.arrives - now);
        }
        let came = self.arrives;
        let span = if is_random { exponential(every, chance) } else { every };
        self.arrives = came.saturating_add(span);
        Ok(came)
    }

    /// The same; if the program decides, it tells the governor the level before code that asks for
    /// another one than the code before (paper 000 §4.2).
    #[must_use]
    pub fn under(self, governor: Governor) -> Self {
        Self { calls: governor == Governor::User, ..self }
    }
}

impl Program for Script {
    fn next(&mut self, now: Moment, chance: &mut Random) -> Step {
        if now < self.begin {
            return Step::Sleep(self.begin - now);
        }
        if self.next == self.steps.len() {
            if let Some(came) = self.came.take() {
                return Step::Served(came);
            }
            self.next = 0;
            self.times = self.times.saturating_sub(1);
        }
        if let Some(arrivals) = self.requests.filter(|_| self.next == 0 && self.times > 0)
            && self.came.is_none()
        {
            match self.arrival(now, arrivals, chance) {
                Ok(came) => self.came = Some(came),
                Err(span) => return Step::Sleep(span),
            }
        }
        let Some((step, level)) = self.steps.get(self.next).filter(|_| self.times > 0) else {
            return Step::End;
        };
        if self.calls && matches!(step, Step::Run(_)) && self.told != Some(*level) {
            self.told = Some(*level);
            return Step::Call(License::Set(*level));
        }
        self.next += 1;
        *step
    }

    fn copy(&self) -> Box<dyn Program> {
        Box::new(self.clone())
    }
}

/// A span with this mean, by chance (ps).
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative; out of range saturates"
)]
fn exponential(mean: Moment, chance: &mut Random) -> Moment {
    (-(1.0 - chance.uniform()).ln() * mean as f64).round() as Moment
}
