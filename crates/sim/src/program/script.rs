//! Scripts: programs that are given as lists of operations.

use std::sync::Arc;

use dimmer_policy::license::Chance as _;
use dimmer_processor::units::{LicenseLevel, nearest};

use super::{Arrivals, Distribution, Extent, License, Program, Segment, Step};
use crate::{Governor, Moment, Picos, Random};

/// Maximum number of operations without a step that [`Script::next`] performs in one call.
const MOST_AT_ONCE: usize = 1000;

/// One operation of a script. Places are indices of operations.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// Takes a step. The level is the one that its code asks for.
    Take(Step, LicenseLevel),
    /// Takes a step whose extent is drawn from a distribution of the script: microseconds or
    /// instructions. Is skipped if the extent is 0.
    Draw { step: Step, level: LicenseLevel, from: usize },
    /// Starts a block, or goes on after it if there are no passes.
    Repeat { passes: Passes, after: usize },
    /// Ends a pass of the innermost block, which starts there.
    Again { start: usize },
    /// Goes on at one of these places: the first whose number is above one drawn from 0 to 1.
    Choose(Arc<[(f64, usize)]>),
    /// Goes on there.
    Jump(usize),
}

/// How often a block is passed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Passes {
    /// This often.
    Fixed(u64),
    /// By a distribution of the script.
    Drawn(usize),
}

impl Operation {
    /// Its step, if it has one, with any extent if that is drawn.
    pub(crate) fn step(&self) -> Option<&Step> {
        match self {
            Self::Take(step, _) | Self::Draw { step, .. } => Some(step),
            _ => None,
        }
    }

    /// The same operation with another step of another level, if it has one.
    pub(crate) fn with(&self, change: impl Fn(&Step) -> (Step, LicenseLevel)) -> Self {
        match self {
            Self::Take(step, _) => {
                let (step, level) = change(step);
                Self::Take(step, level)
            }
            Self::Draw { step, from, .. } => {
                let (step, level) = change(step);
                Self::Draw { step, level, from: *from }
            }
            other => other.clone(),
        }
    }
}

/// Steps in order, repeated a number of times. A copy costs little: it shares the steps.
#[derive(Clone, Debug)]
pub struct Script {
    operations: Arc<[Operation]>,
    distributions: Arc<[Arc<Distribution>]>,
    /// How many rounds are still to start.
    times: u64,
    next: usize,
    /// How many passes are still to start of each block that has started, the innermost last.
    passes: Vec<u64>,
    /// The normal number of the last draw from each distribution.
    normals: Vec<Option<f64>>,
    /// Whether it calls the governor before code that asks for another level.
    calls: bool,
    told: Option<LicenseLevel>,
    /// How requests arrive, if each round is a request.
    requests: Option<Arrivals>,
    /// When the request in service arrived, if there is one.
    came: Option<Moment>,
    /// When the next request arrives, in an open loop.
    arrives: Moment,
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
        let take = |(step, level)| Operation::Take(step, level);
        Self::of(steps.into_iter().map(take).collect(), Arc::new([]), times)
    }

    /// A script of these operations, repeated `times` times, which draws from these distributions.
    pub(crate) fn of(
        operations: Arc<[Operation]>,
        distributions: Arc<[Arc<Distribution>]>,
        times: u64,
    ) -> Self {
        let times = if operations.is_empty() { 0 } else { times };
        Self {
            operations,
            normals: vec![None; distributions.len()],
            distributions,
            times,
            next: 0,
            passes: Vec::new(),
            calls: false,
            told: None,
            requests: None,
            came: None,
            arrives: Moment::START,
        }
    }

    /// The same script where each round is a request whose latency is counted.
    #[must_use]
    pub fn serving(self, requests: Arrivals) -> Self {
        Self { requests: Some(requests), ..self }
    }

    /// The same script, whose first request, if it serves any, arrives at this moment.
    #[must_use]
    pub fn arriving(self, first: Moment) -> Self {
        Self { arrives: first, ..self }
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

    /// Draws from a distribution.
    fn draw(&mut self, from: usize, chance: &mut Random) -> f64 {
        self.distributions[from].draw(&mut self.normals[from], chance)
    }

    /// The next step, if it is the very next operation; otherwise performs that operation.
    fn advance(&mut self, now: Moment, chance: &mut Random) -> Option<Step> {
        if self.next == self.operations.len() {
            if let Some(came) = self.came.take() {
                return Some(Step::Served(came));
            }
            self.next = 0;
            self.times = self.times.saturating_sub(1);
        }
        if let Some(arrivals) = self.requests.filter(|_| self.next == 0 && self.times > 0)
            && self.came.is_none()
        {
            match self.arrival(now, arrivals, chance) {
                Ok(came) => self.came = Some(came),
                Err(span) => return Some(Step::Sleep(span)),
            }
        }
        let Some(operation) = self.operations.get(self.next).filter(|_| self.times > 0) else {
            return Some(Step::End);
        };
        if let Operation::Take(step, level) | Operation::Draw { step, level, .. } = operation
            && self.calls
            && matches!(step, Step::Run(_))
            && self.told != Some(*level)
        {
            self.told = Some(*level);
            return Some(Step::Call(License::Set(*level)));
        }
        self.perform(chance)
    }

    /// Performs the next operation. Returns its step, if it has one.
    #[inline]
    fn perform(&mut self, chance: &mut Random) -> Option<Step> {
        let operation = self.operations.get(self.next)?;
        self.next += 1;
        match operation {
            Operation::Take(step, _) => return Some(*step),
            Operation::Draw { step, from, .. } => {
                let (step, from) = (*step, *from);
                return with_extent(step, self.draw(from, chance));
            }
            Operation::Repeat { passes, after } => {
                let (passes, after) = (*passes, *after);
                let passes = match passes {
                    Passes::Fixed(passes) => passes,
                    Passes::Drawn(from) => nearest(self.draw(from, chance)),
                };
                match passes.checked_sub(1) {
                    Some(others) => self.passes.push(others),
                    None => self.next = after,
                }
            }
            Operation::Again { start } => match self.passes.last_mut() {
                Some(left @ 1..) => {
                    *left -= 1;
                    self.next = *start;
                }
                _ => _ = self.passes.pop(),
            },
            Operation::Choose(branches) => {
                let drawn = chance.uniform();
                let chosen = branches.partition_point(|(below, _)| *below <= drawn);
                if let Some((_, start)) = branches.get(chosen).or(branches.last()) {
                    self.next = *start;
                }
            }
            Operation::Jump(place) => self.next = *place,
        }
        None
    }
}

impl Program for Script {
    fn next(&mut self, now: Moment, chance: &mut Random) -> Step {
        let step = (0..MOST_AT_ONCE).find_map(|_| self.advance(now, chance));
        step.unwrap_or(Step::Skip)
    }

    fn code(&mut self, chance: &mut Random) -> Option<Segment> {
        for _ in 0..MOST_AT_ONCE {
            let ends = self.next == self.operations.len();
            let next = if ends { 0 } else { self.next };
            let times = self.times.saturating_sub(u64::from(ends));
            // A round may end a request, and wait for the next one.
            let is_request = self.requests.is_some() && (ends || next == 0);
            if self.calls || is_request || times == 0 {
                return None;
            }
            match self.operations.get(next)? {
                Operation::Take(Step::Run(segment), _) => {
                    (self.next, self.times) = (next + 1, times);
                    return Some(*segment);
                }
                Operation::Draw { step: Step::Run(_), .. } => {}
                Operation::Take(..) | Operation::Draw { .. } => return None,
                _ => {}
            }
            (self.next, self.times) = (next, times);
            if let Some(Step::Run(segment)) = self.perform(chance) {
                return Some(segment);
            }
        }
        None
    }

    fn calls_again(&mut self) {
        self.told = None;
    }

    fn copy(&self) -> Box<dyn Program> {
        Box::new(self.clone())
    }
}

/// The step with this extent, in microseconds or instructions; `None` if it would be 0.
fn with_extent(step: Step, drawn: f64) -> Option<Step> {
    let span = Picos::rounded(drawn * 1e6);
    match step {
        Step::Sleep(_) => (span > Picos::ZERO).then_some(Step::Sleep(span)),
        Step::Run(mut segment) => {
            segment.extent = match segment.extent {
                Extent::Time(_) => Extent::Time(span),
                Extent::Instructions(_) => Extent::Instructions(drawn),
            };
            let is_some = match segment.extent {
                Extent::Time(span) => span > Picos::ZERO,
                Extent::Instructions(number) => number >= 1.0,
            };
            is_some.then_some(Step::Run(segment))
        }
        other => Some(other),
    }
}

/// A random span with this mean (ps), exponentially distributed.
fn exponential(mean: Picos, chance: &mut Random) -> Picos {
    Picos::rounded(-(1.0 - chance.uniform()).ln() * mean.as_f64())
}
