//! A small, slow simulator, written from `docs/model.md` ("What a processor does by its model") and
//! `docs/scenario.md` ("How it runs") alone. It shares no code with the simulator that it checks
//! but the reading of models.
//!
//! It knows threads under both schedulers, P-states without rated power and without divisors, cores
//! of one kind, the governors `avxfreq` and `user` on models without P-states, and models in which
//! nothing is left to chance but when clocks are raised, which it is given. It knows neither marks
//! nor energy. At each moment it does all that is due, then looks for the next moment at which
//! anything can happen. Times are nanoseconds.

mod license;
mod pstates;
mod schedulers;
mod software;
mod threads;

use std::collections::HashMap;

use dimmer_processor::model::{Model, Sourced};
use dimmer_sim::Governor;

use self::license::{Core, Doing, Request, Rule, Slots};
use self::pstates::Shared;
use self::schedulers::{Cpu, Turns};
use self::software::Software;
use self::threads::{At, Lock, Thread};
use crate::drawn::{Step, Work};

/// Rounding: times that differ by less are one moment (ns).
const MOMENT_NS: f64 = 1e-4;

/// Times are whole picoseconds (ns).
const LEAST_SPAN_NS: f64 = 1e-3;

/// Rounding: what is left of instructions or cycles that are executed.
const LEAST: f64 = 1e-3;

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
    pub(crate) delayed_ns: f64,
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
    cpus: Vec<Cpu>,
    threads: Vec<Thread<'a>>,
    /// What the scheduler knows of each thread.
    turns: Vec<Turns>,
    /// How often a thread has come to a queue, or left its CPU.
    came: u64,
    locks: HashMap<usize, Lock>,
    software: Vec<Software>,
    /// The P-state that each core requests, and until when a request keeps it (ns).
    requests: Vec<Option<usize>>,
    kept_ns: Vec<f64>,
    /// Until when each core takes over threads (ns).
    delayed_ns: Vec<f64>,
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
    (ns * 1e3 - 1e-3).ceil() / 1e3
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
            cores: (0..work.cores)
                .map(|_| Core::new(levels, model.long_recurrences.len()))
                .collect(),
            slots: vec![Slots::default(); work.cores],
            cpus: (0..work.cores * work.threads_per_core).map(Cpu::new).collect(),
            threads: work.threads.iter().map(Thread::new).collect(),
            turns: work.threads.iter().map(Turns::new).collect(),
            came: 0,
            locks: HashMap::new(),
            software: vec![Software::default(); work.cores],
            requests: vec![work.pstate; work.cores],
            kept_ns: vec![0.0; work.cores],
            delayed_ns: vec![0.0; work.cores],
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
            let Some(next) = next.map(rounded) else { break };
            self.pass(next - self.now);
            self.now = next;
            if end.is_some_and(|end| next >= end) {
                break;
            }
        }
        self.result.end_ns = self.now;
    }

    /// Each thing that is done may make others due, which come before the rest.
    fn do_all_that_is_due(&mut self) {
        while self.does_something_due() {}
        // What is on a core for no time is not executed.
        (0..self.cores.len()).for_each(|core| self.arms(core));
    }

    fn does_something_due(&mut self) -> bool {
        self.is_something_done = false;
        for thread in 0..self.threads.len() {
            if matches!(self.threads[thread].at, At::Asleep { until_ns } if self.is_due(until_ns)) {
                self.wakes(thread);
                return true;
            }
        }
        for core in 0..self.cores.len() {
            self.software_acts(core);
            self.governor_acts(core);
            for cpu in self.cpus_of(core) {
                self.settles(cpu);
                self.turn_may_end(cpu);
            }
            if self.is_something_done {
                return true;
            }
        }
        false
    }

    fn wakes(&mut self, thread: usize) {
        self.threads[thread].at = At::Between;
        self.can_run(thread);
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
            if self.is_delayed(core) {
                next.push(self.delayed_ns[core]);
            }
            if self.is_kept(core) {
                next.push(self.kept_ns[core]);
            }
            let long = self.cores[core].long_until.iter().map(|(_, until_ns)| *until_ns);
            next.extend(long.filter(|until_ns| !self.is_due(*until_ns)));
            match self.cores[core].doing {
                Doing::Nothing => {}
                Doing::Holding { until_ns, .. } | Doing::Still { until_ns, .. } => {
                    next.push(until_ns)
                }
                Doing::Waiting(Request { still_ns, .. }) => next.push(still_ns),
                Doing::Counting { left, .. } => {
                    // Never, where nothing is executed.
                    next.push(self.now + rounded_up(left / self.count_rate(core)));
                }
            }
        }
        next.extend((0..self.cpus.len()).filter_map(|cpu| self.turn_end(cpu)));
        for (index, thread) in self.threads.iter().enumerate() {
            match thread.at {
                At::Asleep { until_ns } => next.push(until_ns),
                At::Runs { left, until_ns, .. } if self.cpu_of(index).is_some() => {
                    next.push(until_ns);
                    next.push(self.now + rounded_up(left / self.rate(index)));
                }
                At::Between | At::Finished | At::Waits | At::Runs { .. } => {}
            }
        }
        let next = next.into_iter().filter(|ns| ns.is_finite()).min_by(f64::total_cmp);
        next.map(|next| next.max(self.now + LEAST_SPAN_NS))
    }

    /// Time passes in which nothing happens.
    fn pass(&mut self, span: f64) {
        let rates: Vec<f64> = (0..self.threads.len()).map(|thread| self.rate(thread)).collect();
        for core in 0..self.cores.len() {
            self.software_counts(core, span);
            let counted = self.count_rate(core) * span;
            let is_throttled = self.is_throttled(core) && self.asks_for(self.code_on(core)) > 0;
            let (is_idle, is_still) = (self.running_on(core).is_empty(), self.is_still(core));
            let (is_kept, is_delayed) = (self.is_kept(core), self.is_delayed(core));
            let is_governed = self.is_governed();
            let asks = self.asks_for(self.code_on(core));
            let this = &self.cores[core];
            let level = if is_governed { self.software[core].set } else { this.level };
            let is_executing = !is_idle && !is_still && !is_kept && !is_delayed;
            let totals = &mut self.result.cores[core];
            *if is_idle {
                &mut totals.idle_ns
            } else if is_still {
                &mut totals.still_ns
            } else if is_kept {
                &mut totals.governor_ns
            } else if is_delayed {
                &mut totals.delayed_ns
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
        for (index, rate) in rates.into_iter().enumerate() {
            let is_on_cpu = self.cpu_of(index).is_some();
            if let At::Runs { step, left, .. } = &mut self.threads[index].at
                && is_on_cpu
            {
                *left -= rate * span;
                let (instructions, time) = &mut self.result.threads[index].steps[*step];
                *instructions += rate * span;
                *time += span;
            }
        }
        self.turns_pass(span);
    }
}
