//! A small, slow simulator, written from `docs/model.md` ("What a processor does by its model") and
//! `docs/scenario.md` ("How it runs") alone. It shares no code with the simulator that it checks
//! but the reading of models.
//!
//! It knows threads that stay on a CPU of their own, P-states without rated power, the governors
//! `avxfreq` and `user` on models without P-states, and models in which nothing is left to chance
//! but when clocks are raised, which it is given. At each moment it does all that is due, then
//! looks for the next moment at which anything can happen. Times are nanoseconds.

mod license;
mod pstates;
mod software;
mod threads;

use std::collections::{HashMap, VecDeque};

use dimmer_processor::model::{Model, Sourced};
use dimmer_sim::Governor;

use self::license::{Core, Doing, Request, Rule, Slots};
use self::pstates::Shared;
use self::software::Software;
use self::threads::{At, Lock, Thread};
use crate::drawn::{Step, Work};

/// Rounding: times that differ by less are one moment (ns).
const MOMENT_NS: f64 = 1e-4;

/// What came of a run.
#[derive(Debug, Default)]
pub(crate) struct Result {
    /// When it ended (ns).
    pub(crate) end_ns: f64,
    pub(crate) cores: Vec<CoreResult>,
    pub(crate) threads: Vec<ThreadResult>,
}

/// Where a core's time went (ns), and how often its level changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct CoreResult {
    pub(crate) level_ns: Vec<f64>,
    pub(crate) throttled_ns: f64,
    pub(crate) still_ns: f64,
    pub(crate) governor_ns: f64,
    pub(crate) idle_ns: f64,
    pub(crate) below_ns: f64,
    pub(crate) changes: u64,
    pub(crate) interrupts: u64,
}

/// What a thread did.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadResult {
    /// Instructions and time of each step, of blocks each of theirs.
    pub(crate) steps: Vec<(f64, f64)>,
    pub(crate) finished_ns: Option<f64>,
}

/// The simulator.
#[derive(Debug)]
pub(crate) struct Simulator<'a> {
    model: &'a Model,
    work: &'a Work,
    governor: Governor,
    /// When the power control of each package first decides about raised clocks (ns).
    raises_ns: Vec<f64>,
    rules: Vec<Rule>,
    cores: Vec<Core>,
    slots: Vec<Slots>,
    threads: Vec<Thread<'a>>,
    locks: HashMap<usize, Lock>,
    /// Threads that have got a lock at this moment.
    woken: VecDeque<usize>,
    software: Vec<Software>,
    /// The P-state that each core requests, and until when a request keeps it (ns).
    requests: Vec<Option<usize>>,
    kept_ns: Vec<f64>,
    /// As many as cores, whether these share a clock or not.
    shared: Vec<Shared>,
    now: f64,
    /// Whether something was done in this round.
    is_something_done: bool,
    result: Result,
}

/// Whole nanoseconds: the rules know no others.
fn whole(ns: f64) -> f64 {
    (ns + MOMENT_NS).floor()
}

/// Whole picoseconds.
fn rounded(ns: f64) -> f64 {
    (ns * 1e3).round() / 1e3
}

/// Whole picoseconds, rounded up.
fn rounded_up(ns: f64) -> f64 {
    (ns * 1e3 - 1e-6).ceil() / 1e3
}

fn value(value: &Option<Sourced<u64>>) -> f64 {
    value.as_ref().map_or(0.0, |value| value.value as f64)
}

impl<'a> Simulator<'a> {
    /// `raises_ns`: when the power control of each package first decides about clocks that software
    /// raises.
    pub(crate) fn run(
        model: &'a Model,
        work: &'a Work,
        governor: Governor,
        raises_ns: Vec<f64>,
    ) -> Result {
        let levels = model.levels.len();
        let empty = CoreResult { level_ns: vec![0.0; levels], ..CoreResult::default() };
        let of_thread = |thread: &crate::drawn::Thread| ThreadResult {
            steps: vec![(0.0, 0.0); Step::single(&thread.steps).len()],
            finished_ns: None,
        };
        let mut simulator = Self {
            model,
            work,
            governor,
            raises_ns,
            rules: Rule::all(model),
            cores: (0..work.cores).map(|_| Core::new(levels)).collect(),
            slots: vec![Slots::default(); work.cores],
            threads: work.threads.iter().map(|thread| Thread::new(thread, work)).collect(),
            locks: HashMap::new(),
            woken: VecDeque::new(),
            software: vec![Software::default(); work.cores],
            requests: vec![work.pstate; work.cores],
            kept_ns: vec![0.0; work.cores],
            shared: vec![Shared::new(work.pstate); work.cores],
            now: 0.0,
            is_something_done: false,
            result: Result {
                end_ns: 0.0,
                cores: vec![empty; work.cores],
                threads: work.threads.iter().map(of_thread).collect(),
            },
        };
        simulator.go();
        simulator.result
    }

    fn go(&mut self) {
        loop {
            self.do_all_that_is_due();
            let end = self.work.end_us.map(|us| rounded(us * 1000.0));
            let next = self.next_moment().into_iter().chain(end).min_by(f64::total_cmp);
            let Some(next) = next else { break };
            self.pass(next - self.now);
            self.now = next;
            if end.is_some_and(|end| next >= end) {
                break;
            }
        }
        self.result.end_ns = self.now;
    }

    fn do_all_that_is_due(&mut self) {
        // Each round of these may make something else due.
        self.is_something_done = true;
        while std::mem::take(&mut self.is_something_done) {
            for thread in 0..self.threads.len() {
                if matches!(self.threads[thread].at, At::Asleep { .. }) {
                    self.comes_to(thread);
                }
            }
            for core in 0..self.cores.len() {
                self.software_acts(core);
                self.governor_acts(core);
                for thread in self.running_on(core) {
                    self.comes_to(thread);
                }
            }
            while let Some(thread) = self.woken.pop_front() {
                self.threads[thread].at = At::Asleep { until_ns: self.now };
                self.comes_to(thread);
            }
        }
    }

    /// A thread goes on, if it is its time, and its core sees what comes of that.
    fn comes_to(&mut self, thread: usize) {
        self.thread_goes_on(thread);
        self.governor_looks(self.threads[thread].core);
        self.rules_pstate(self.threads[thread].core);
    }

    fn is_due(&self, ns: f64) -> bool {
        ns <= self.now + MOMENT_NS
    }

    /// When anything can happen next.
    fn next_moment(&self) -> Option<f64> {
        let mut next = Vec::new();
        for core in 0..self.cores.len() {
            next.extend(self.pstate_changes(core));
            next.extend(self.software_next(core));
            if self.is_kept(core) {
                next.push(self.kept_ns[core]);
            }
            match self.cores[core].doing {
                Doing::Nothing => {}
                Doing::Holding { until_ns } | Doing::Still { until_ns, .. } => next.push(until_ns),
                Doing::Waiting(Request { due_ns, .. }) => next.push(due_ns - self.stall_ns()),
                Doing::Counting { left, .. } => {
                    // Never, where nothing is executed.
                    next.push(self.now + rounded_up(left / self.count_rate(core)));
                }
            }
        }
        for (index, thread) in self.threads.iter().enumerate() {
            match thread.at {
                At::Finished | At::Waits => {}
                At::Asleep { until_ns } => next.push(until_ns),
                At::Runs { left, until_ns, .. } => {
                    next.push(until_ns);
                    next.push(self.now + rounded_up(left / self.rate(index)));
                }
            }
        }
        let next = next.into_iter().filter(|ns| ns.is_finite()).min_by(f64::total_cmp);
        next.map(|next| next.max(self.now + MOMENT_NS))
    }

    /// Time passes in which nothing happens.
    fn pass(&mut self, span: f64) {
        let rates: Vec<f64> = (0..self.threads.len()).map(|thread| self.rate(thread)).collect();
        for core in 0..self.cores.len() {
            self.software_counts(core, span);
            let counted = self.count_rate(core) * span;
            let is_throttled = self.is_throttled(core) && self.asks_for(self.code_on(core)) > 0;
            let (is_idle, is_still) = (self.running_on(core).is_empty(), self.is_still(core));
            let is_kept = self.is_kept(core);
            let is_governed = self.is_governed();
            let asks = self.asks_for(self.code_on(core));
            let this = &self.cores[core];
            let level = if is_governed { self.software[core].set } else { this.level };
            let is_executing = !is_idle && !is_still && !is_kept;
            let totals = &mut self.result.cores[core];
            *if is_idle {
                &mut totals.idle_ns
            } else if is_still {
                &mut totals.still_ns
            } else if is_kept {
                &mut totals.governor_ns
            } else if is_throttled {
                &mut totals.throttled_ns
            } else {
                &mut totals.level_ns[level]
            } += span;
            if is_governed && is_executing && asks > level {
                totals.below_ns += span;
            }
            if let Doing::Counting { left, .. } = &mut self.cores[core].doing {
                *left -= counted;
            }
        }
        let results = &mut self.result.threads;
        for ((thread, rate), result) in self.threads.iter_mut().zip(rates).zip(results) {
            if let At::Runs { step, left, .. } = &mut thread.at {
                *left -= rate * span;
                let (instructions, time) = &mut result.steps[*step];
                *instructions += rate * span;
                *time += span;
            }
        }
    }
}
