//! How long a request of a clock takes, and how long until the clock is there: table 4 of paper
//! 002, section 4.1, for all pairs of operating points.
//!
//! The paper waits until a status register names the new P-state. Here the clock itself is timed,
//! by windows of dependent multiplications, as Mazouz et al. do (FTaLaT, "Evaluation of CPU
//! frequency transition latency", 2014). At each point, windows are timed for a while. After a
//! request, the new clock is there from the first window on that is nearer to those of the new
//! point than to those of the old one, if the median of the next windows lies between the quartiles
//! of the new point: that tells a new clock from a single odd window. Requests come at random
//! moments, because some processors change clocks at set ones alone.
//!
//! **Invariant:** nothing here touches the machine: it makes requests and times windows by a trait.

mod machine;

use std::fmt;

use dimmer_processor::units::KiloHertz;

pub use self::machine::{Measured, TransitionError, measure_here};
use crate::lab::Observer;
use crate::stats::{Estimate, Samples};

/// Time after a request until the clock of a point is taken for settled (ns). A guess: some times
/// what drivers report as their longest transition.
const SETTLE_NS: f64 = 50e6;

/// Windows that show how long one takes at a point, in each of two passes.
const REFERENCE: usize = 500;

/// Windows whose median confirms a clock.
const CONFIRMING: usize = 16;

/// The longest wait for a clock (ns).
const LONGEST_NS: f64 = 100e6;

/// The longest random time at a clock before the next request (ns): twice the 0.5 ms at which
/// Haswell's server processors change clocks (Hackenberg et al., "An Energy Efficiency Feature
/// Survey of the Intel Haswell Processor", 2015).
const PHASE_NS: f64 = 1e6;

/// A window of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// When it began (ns, on the clock of [`Core::now_ns`]).
    pub begin_ns: f64,
    /// How long it took (ns).
    pub ns: f64,
}

/// A core whose clock can be requested.
pub trait Core {
    /// Why a request failed.
    type Error: fmt::Display;

    /// The clocks that can be requested, the slowest first.
    fn clocks(&self) -> &[KiloHertz];

    /// The step of the counter by which windows are timed (ns).
    fn step_ns(&self) -> f64;

    /// The time (ns).
    fn now_ns(&mut self) -> f64;

    /// Requests the clock with this index. Returns once the request is made.
    ///
    /// # Errors
    /// If the machine refuses.
    fn request(&mut self, point: usize) -> Result<(), Self::Error>;

    /// Executes a window of always the same work.
    fn window(&mut self) -> Window;

    /// A random number from 0 to 1.
    fn random(&mut self) -> f64;
}

/// An operating point.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The clock that is requested.
    pub clock: KiloHertz,
    /// Time of a window once the clock has settled (ns).
    pub window_ns: Samples,
}

/// From one point to another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pair {
    /// Index of the point before.
    pub from: usize,
    /// Index of the point that is requested.
    pub to: usize,
    /// From the request until it returns (ns).
    pub request_ns: Samples,
    /// From the request until the new clock is there (ns); never less than the request. Empty if
    /// the clocks cannot be told apart.
    pub transition_ns: Samples,
    /// Requests after which the clock was not seen within 0.1 s, or before which the old one was
    /// not.
    pub unseen: usize,
    /// Whether the windows of both points differ by more than their quartiles.
    pub is_distinct: bool,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Transitions {
    /// The points.
    pub points: Vec<Point>,
    /// All pairs, both directions.
    pub pairs: Vec<Pair>,
    /// Whether the observer stopped before all rounds were made.
    pub interrupted: bool,
}

impl Point {
    /// The clock in force over the first point's, as windows show it: the interval has the
    /// uncertainty of both. Exactly 1 for the first point itself.
    #[must_use]
    pub fn ratio_to(&self, first: &Self) -> Option<Estimate> {
        let (own, of) = (self.window_ns.estimate()?, first.window_ns.estimate()?);
        if self.clock == first.clock {
            return Some(Estimate { median: 1.0, ci95: (1.0, 1.0) });
        }
        let ci95 = (of.ci95.0 / own.ci95.1, of.ci95.1 / own.ci95.0);
        Some(Estimate { median: of.median / own.median, ci95 })
    }
}

/// Between which times the windows of a clock lie (ns).
#[derive(Clone, Copy, Debug, PartialEq)]
struct Quartiles {
    low: f64,
    high: f64,
}

impl Quartiles {
    /// Those of these windows, a step of the counter farther apart at either end: all windows may
    /// take the same number of steps.
    fn of(windows: &Samples, step_ns: f64) -> Self {
        let quartile = |q| windows.quantile(q).unwrap_or(f64::NAN);
        Self { low: quartile(0.25) - step_ns, high: quartile(0.75) + step_ns }
    }

    /// What lies between either.
    fn and(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    fn holds(self, ns: f64) -> bool {
        (self.low..=self.high).contains(&ns)
    }

    fn distance(self, ns: f64) -> f64 {
        (ns - f64::midpoint(self.low, self.high)).abs()
    }

    fn is_apart_from(self, other: Self) -> bool {
        self.high < other.low || other.high < self.low
    }
}

/// Measures the transitions between all pairs of points, each `rounds` times, in a random order in
/// each round.
///
/// # Errors
/// That of [`Core::request`]; nothing is undone here.
pub fn measure<C: Core>(
    core: &mut C,
    rounds: usize,
    observer: &mut dyn Observer,
) -> Result<Transitions, C::Error> {
    let clocks = core.clocks().to_vec();
    let step_ns = core.step_ns();
    let mut windows: Vec<Vec<f64>> = vec![Vec::new(); clocks.len()];
    let mut quartiles: Vec<Option<Quartiles>> = vec![None; clocks.len()];
    // Twice: what differs by chance from one moment to another must not look like a clock. Both
    // passes in the same order, so that those of each point are equally far apart.
    for index in (0..clocks.len()).chain(0..clocks.len()) {
        observer.begins("timing the clock at each operating point", 0.0);
        core.request(index)?;
        let begin = core.now_ns();
        while core.window().begin_ns < begin + SETTLE_NS {}
        let pass: Vec<f64> = (0..REFERENCE).map(|_| core.window().ns).collect();
        let of_pass = Quartiles::of(&pass.iter().copied().collect(), step_ns);
        quartiles[index] = Some(quartiles[index].map_or(of_pass, |before| before.and(of_pass)));
        windows[index].extend(pass);
    }
    let quartiles: Vec<Quartiles> = quartiles.into_iter().flatten().collect();
    let points: Vec<Point> = clocks
        .into_iter()
        .zip(windows)
        .map(|(clock, windows)| Point { clock, window_ns: Samples::new(windows) })
        .collect();
    let all = (0..points.len()).flat_map(|from| (0..points.len()).map(move |to| (from, to)));
    let mut pairs: Vec<(Pair, Vec<f64>, Vec<f64>)> = all
        .filter(|(from, to)| from != to)
        .map(|(from, to)| {
            let is_distinct = quartiles[from].is_apart_from(quartiles[to]);
            (Pair { from, to, is_distinct, ..Pair::default() }, Vec::new(), Vec::new())
        })
        .collect();
    let mut interrupted = false;
    'rounds: for round in 0..rounds {
        shuffle(core, &mut pairs);
        let count = pairs.len();
        for (done, (pair, requests, transitions)) in pairs.iter_mut().enumerate() {
            let share = (round as f64 + done as f64 / count as f64) / rounds as f64;
            observer.begins("measuring transitions", share);
            if observer.wants_stop() {
                interrupted = true;
                break 'rounds;
            }
            let (from, to) = (quartiles[pair.from], quartiles[pair.to]);
            core.request(pair.from)?;
            if pair.is_distinct && confirmed(core, from, |_| true).is_none() {
                pair.unseen += 1;
                continue;
            }
            let until = core.now_ns() + PHASE_NS * core.random();
            while core.window().begin_ns < until {}
            let begin = core.now_ns();
            core.request(pair.to)?;
            let requested = core.now_ns();
            requests.push(requested - begin);
            if pair.is_distinct {
                let is_new = |ns| to.distance(ns) < from.distance(ns);
                match confirmed(core, to, is_new) {
                    Some(there) => transitions.push(there.max(requested) - begin),
                    None => pair.unseen += 1,
                }
            }
        }
    }
    pairs.sort_unstable_by_key(|(pair, ..)| (pair.from, pair.to));
    let pairs = pairs.into_iter().map(|(pair, requests, transitions)| Pair {
        request_ns: Samples::new(requests),
        transition_ns: Samples::new(transitions),
        ..pair
    });
    Ok(Transitions { points, pairs: pairs.collect(), interrupted })
}

/// Executes windows until the clock is there. Returns when the first of them began that has it, as
/// this function sees by its time; `None` if none does in time.
fn confirmed<C: Core>(
    core: &mut C,
    wanted: Quartiles,
    has_it: impl Fn(f64) -> bool,
) -> Option<f64> {
    let mut windows: Vec<Window> = Vec::new();
    let begin = core.now_ns();
    let mut at = 0;
    loop {
        let window = core.window();
        windows.push(window);
        // The windows from `at` on are to confirm that the first of them has the clock.
        while let Some(confirming) = windows.get(at..at + CONFIRMING) {
            let all: Samples = confirming.iter().map(|window| window.ns).collect();
            let is_it = all.quantile(0.5).is_some_and(|median| wanted.holds(median));
            if is_it && has_it(confirming[0].ns) {
                return Some(confirming[0].begin_ns);
            }
            at += 1;
        }
        if window.begin_ns > begin + LONGEST_NS {
            return None;
        }
    }
}

fn shuffle<C: Core, T>(core: &mut C, values: &mut [T]) {
    for last in (1..values.len()).rev() {
        let other = crate::stats::floor_index(core.random() * (last + 1) as f64).min(last);
        values.swap(last, other);
    }
}

#[cfg(test)]
mod tests;
