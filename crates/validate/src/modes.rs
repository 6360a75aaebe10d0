//! The measurement modes of paper 000 (§3.2.5) on the simulated machine.
//!
//! As in the paper, code runs on one or more cores, and the time at which each core reaches a level
//! is recorded. Other cores may run wide code already ("pre-throttling").

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Upper;
use dimmer_sim::{
    Extent, Governor, Machine, Moment, Observer, Picos, Script, Segment, Settings, SimError, State,
    Step,
};

use crate::inputs::Inputs;

/// Number of runs, as in the thesis.
pub(crate) const RUNS: u64 = 1000;

pub(crate) const US: Picos = Picos::from_ps(1_000_000);
pub(crate) const MS: Picos = Picos::from_ps(1_000_000_000);

/// Scalar code before a run. The thesis waited for 150 ms for the clock to settle; here it is
/// settled from the start.
const BEFORE: Picos = MS;

/// When a run begins.
pub(crate) const BEGIN: Moment = Moment::from_ps(BEFORE.ps());

/// Independent 256-bit multiply-adds.
pub(crate) const FMA_256: Segment =
    Segment { class: InstructionClass::Heavy256, ..Segment::FMA_512 };

/// The same on one register triple.
pub(crate) const CHAINED_256: Segment =
    Segment { class: InstructionClass::Heavy256, ..Segment::CHAINED_512 };

/// 256-bit multiply-adds after a 512-bit register was set and not cleared.
pub(crate) const DIRTY_256: Segment = Segment { upper: Upper::Dirty, ..FMA_256 };

/// Light 512-bit code.
pub(crate) const LIGHT_512: Segment =
    Segment { class: InstructionClass::Light512, ..Segment::FMA_512 };

/// An observed change: the time, the core, the level, and whether the core is throttled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) at: Moment,
    pub(crate) core: usize,
    pub(crate) level: u32,
    pub(crate) is_throttled: bool,
}

/// All observed changes.
#[derive(Debug, Default)]
pub(crate) struct Log(pub(crate) Vec<Seen>);

impl Observer for Log {
    fn core(&mut self, at: Moment, core: usize, state: State) {
        let State { level, is_throttled, .. } = state;
        self.0.push(Seen { at, core, level: level.index(), is_throttled });
    }
}

impl Log {
    /// When the core first had the level, not before `from`.
    pub(crate) fn reached(&self, core: usize, level: u32, from: Moment) -> Option<Moment> {
        let is = |seen: &&Seen| seen.core == core && seen.level == level && seen.at >= from;
        self.0.iter().find(is).map(|seen| seen.at)
    }
}

/// Runs these steps on `cores` cores from [`BEGIN`] on, and each of `beside` on one more core from
/// the start. Stops `end` after [`BEGIN`].
pub(crate) fn run(
    inputs: &Inputs<'_>,
    (governor, seed): (Governor, u64),
    cores: u32,
    beside: &[Segment],
    steps: &[Step],
    end: Picos,
) -> Result<Machine<Log>, SimError> {
    let all = cores + u32::try_from(beside.len()).unwrap_or(0);
    let costs = inputs.costs;
    let settings = Settings { cores: all, governor, costs, seed, ..Settings::default() };
    let mut machine = Machine::new(&inputs.model, settings, Log::default())?;
    let before = Segment { extent: Extent::Time(BEFORE), ..Segment::SCALAR };
    // Of cores that start at the same time, each is the first equally often.
    for turn in 0..u64::from(cores) {
        let core = usize::try_from((turn + seed) % u64::from(cores)).ok();
        let steps = std::iter::once(Step::Run(before)).chain(steps.iter().copied());
        machine.spawn("measured", Box::new(Script::once(steps)), core);
    }
    for (core, code) in (usize::try_from(cores).unwrap_or(0)..).zip(beside) {
        let code = Segment { extent: Extent::Time(Picos::MAX), ..*code };
        machine.spawn("beside", Box::new(Script::once([Step::Run(code)])), Some(core));
    }
    machine.run(BEGIN + end)?;
    Ok(machine)
}

/// DOWNCLOCK: the time from the first instruction to the level (µs), for each core of each run.
pub(crate) fn downclock(
    inputs: &Inputs<'_>,
    code: Segment,
    level: u32,
    cores: u32,
    beside: &[Segment],
) -> Result<Vec<Vec<f64>>, SimError> {
    let step = Step::Run(Segment { extent: Extent::Time(MS), ..code });
    let one = |seed| {
        let machine = run(inputs, (Governor::Hardware, seed), cores, beside, &[step], MS)?;
        let log = machine.into_observer();
        let time = |core| log.reached(core, level, BEGIN).map_or(f64::NAN, |at| us(at - BEGIN));
        Ok((0..usize::try_from(cores).unwrap_or(0)).map(time).collect())
    };
    (0..RUNS).map(one).collect()
}

/// UPCLOCK: the time from the end of wide code, when the level is reached, to L0 (ms).
pub(crate) fn upclock(
    inputs: &Inputs<'_>,
    code: Segment,
    level: u32,
    beside: &[Segment],
) -> Result<Vec<f64>, SimError> {
    let one = |seed| {
        let kind = (Governor::Hardware, seed);
        // Finds when the level is reached, so that the code ends then: the same seed repeats the
        // run.
        let forever = Step::Run(Segment { extent: Extent::Time(MS), ..code });
        let log = run(inputs, kind, 1, beside, &[forever], MS)?.into_observer();
        let Some(reached) = log.reached(0, level, BEGIN) else { return Ok(f64::NAN) };
        let code_for = reached - BEGIN - inputs.ends_early;
        let until = Step::Run(Segment { extent: Extent::Time(code_for), ..code });
        let spin = Step::Run(Segment { extent: Extent::Time(5 * MS), ..Segment::SCALAR });
        let log = run(inputs, kind, 1, beside, &[until, spin], 4 * MS)?.into_observer();
        Ok(log.reached(0, 0, reached).map_or(f64::NAN, |at| us(at - reached) / 1000.0))
    };
    (0..RUNS).map(one).collect()
}

/// The highest level that this code ever has.
pub(crate) fn highest(inputs: &Inputs<'_>, code: Segment) -> Result<u32, SimError> {
    let step = Step::Run(Segment { extent: Extent::Time(MS), ..code });
    let log = run(inputs, (Governor::Hardware, 1), 1, &[], &[step], MS)?.into_observer();
    Ok(log.0.iter().map(|seen| seen.level).max().unwrap_or(0))
}

/// Instructions that the thesis's unrolled code grows by from one burst to the next (§3.3.2).
const COPY: u64 = 31;

/// REQUIRED_INSTRUCTIONS: the number of instructions of the shortest burst of this code after which
/// a core is at L1 within 1 ms, in copies of 31.
///
/// The thesis lets bursts grow by a copy until one is long enough, each after a pause. Here, all
/// bursts of a run have the run's seed, and so the machine draws the same need for each: the number
/// is that of the thesis's procedure if the need is constant over a run. (If each burst drew its
/// own, the procedure would stop at one that happened to draw little; by the published numbers, a
/// burst of 12 431 would do so in one of 200 cases.) Whether a burst is long enough then depends on
/// nothing but its length, so it is found by halving.
///
/// # Errors
/// If the model lacks what the machine needs. A run whose core never gets to L1 gives NaN.
pub(crate) fn required(inputs: &Inputs<'_>, code: Segment) -> Result<Vec<f64>, SimError> {
    let is_enough = |seed, copies: u64| -> Result<bool, SimError> {
        let burst = Segment { extent: Extent::Instructions((copies * COPY) as f64), ..code };
        let spin = Segment { extent: Extent::Time(MS), ..Segment::SCALAR };
        let steps = [Step::Run(burst), Step::Run(spin)];
        let machine = run(inputs, (Governor::Hardware, seed), 1, &[], &steps, MS)?;
        Ok(machine.into_observer().reached(0, 1, BEGIN).is_some())
    };
    let one = |seed| -> Result<f64, SimError> {
        let (mut short, mut long) = (0, 1 << 13);
        if !is_enough(seed, long)? {
            return Ok(f64::NAN);
        }
        while long - short > 1 {
            let middle = u64::midpoint(short, long);
            if is_enough(seed, middle)? { long = middle } else { short = middle }
        }
        Ok((long * COPY) as f64)
    };
    (0..RUNS).map(one).collect()
}

/// A span in microseconds.
pub(crate) fn us(span: Picos) -> f64 {
    span.as_f64() / US.as_f64()
}

/// A quantile of numbers, linear between them; NaN if any number is NaN, or if there is none.
pub(crate) fn quantile(values: &[f64], at: f64) -> f64 {
    if values.is_empty() || values.iter().any(|value| value.is_nan()) {
        return f64::NAN;
    }
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let place = at * (values.len() - 1) as f64;
    let (low, part) = (place.floor(), place.fract());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
    let low = low as usize;
    let high = (low + 1).min(values.len() - 1);
    values[low] * (1.0 - part) + values[high] * part
}

pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The part of the numbers that is below `limit`.
pub(crate) fn share_below(values: &[f64], limit: f64) -> f64 {
    values.iter().filter(|value| **value < limit).count() as f64 / values.len() as f64
}
