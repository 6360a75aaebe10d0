//! What threads do: steps, segments of code, and scripts.

use std::fmt;

use dimmer_policy::license::{Chance as _, Demand};
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Upper;
use dimmer_processor::units::LicenseLevel;

use crate::{Governor, Moment, Picos, Random};

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
    /// It releases this lock.
    Unlock(usize),
    /// It enters a marked region, by number.
    Enter(usize),
    /// It leaves the region that it entered last; the number is that region's.
    Leave(usize),
    /// It calls the governor; without effect under any other than [`Governor::User`].
    Call(License),
    /// It requests a P-state for its core, given by its index in the model.
    Ask(usize),
    /// A request that arrived at this moment is done: its latency is counted.
    Served(Moment),
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

/// Steps in order, repeated a number of times.
#[derive(Clone, Debug)]
pub struct Script {
    /// The steps, each with the license level that its code asks for.
    steps: Vec<(Step, LicenseLevel)>,
    /// How many rounds are still to start.
    times: u64,
    next: usize,
    /// Whether it calls the governor before code that asks for another level.
    calls: bool,
    told: Option<LicenseLevel>,
    /// How requests arrive, if each round is a request.
    requests: Option<Arrivals>,
    /// When the request in service arrived, if there is one.
    came: Option<Moment>,
    /// When the next request arrives, in an open loop.
    arrives: Moment,
    /// When the script starts.
    begin: Moment,
}

impl Script {
    /// A script of these steps, once.
    pub fn once(steps: impl IntoIterator<Item = Step>) -> Self {
        let steps = steps.into_iter().map(|step| (step, LicenseLevel::new(0)));
        Self::new(steps.collect(), 1)
    }

    /// A script of these steps, repeated `times` times; each step comes with the level that its
    /// code asks for.
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
            arrives: Moment::START,
            begin: Moment::START,
        }
    }

    /// The same script where each round is a request whose latency is counted.
    #[must_use]
    pub fn serving(self, requests: Arrivals) -> Self {
        Self { requests: Some(requests), ..self }
    }

    /// The same script, from this moment on; its first request, if it serves any, arrives then.
    #[must_use]
    pub fn from(self, begin: Moment) -> Self {
        Self { begin, arrives: begin, ..self }
    }

    /// Takes the next request. `Ok`: its arrival; `Err`: how long to sleep until it arrives.
    fn arrival(
        &mut self,
        now: Moment,
        arrivals: Arrivals,
        chance: &mut Random,
    ) -> Result<Moment, Picos> {
        let Arrivals::Open { every, is_random } = arrivals else { return Ok(now) };
        if now < self.arrives {
            return Err(self.arrives - now);
        }
        let came = self.arrives;
        let span = if is_random { exponential(every, chance) } else { every };
        self.arrives = came + span;
        Ok(came)
    }

    /// The same script under a governor. If the program decides, it calls the governor before code
    /// that asks for another level than the code before (paper 000 §4.2).
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

/// A random span with this mean (ps), exponentially distributed.
fn exponential(mean: Picos, chance: &mut Random) -> Picos {
    Picos::rounded(-(1.0 - chance.uniform()).ln() * mean.as_f64())
}
