//! "How it runs": threads, their steps, and how fast they are.

use std::collections::VecDeque;

use dimmer_sim::Governor;

use super::{LEAST, Simulator, rounded};
use crate::drawn::{self, Code, Length, Step};

#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    Asleep {
        until_ns: f64,
    },
    /// It waits for a CPU, or is on one, to take its next step.
    Between,
    /// It waits for a lock.
    Waits,
    Runs {
        step: usize,
        left: f64,
        until_ns: f64,
    },
    Finished,
}

/// Who has a lock, and the threads that wait for it, that which came first in front.
#[derive(Debug, Default)]
pub(super) struct Lock {
    pub(super) is_taken: bool,
    pub(super) waiting: VecDeque<usize>,
}

#[derive(Debug)]
pub(super) struct Thread<'a> {
    pub(super) at: At,
    /// Its steps that are no blocks, in the order of the file.
    pub(super) steps: Vec<&'a Step>,
    /// The steps of a round, with blocks written out, as indices of `steps`.
    pub(super) round: Vec<usize>,
    pub(super) next: usize,
    pub(super) rounds: u64,
    /// The level that it last called the governor for.
    told: Option<usize>,
}

impl<'a> Thread<'a> {
    pub(super) fn new(thread: &'a drawn::Thread) -> Self {
        Self {
            at: At::Asleep { until_ns: rounded(thread.begin_us * 1000.0) },
            steps: Step::single(&thread.steps),
            round: Step::written_out(&thread.steps),
            next: 0,
            rounds: thread.times,
            told: None,
        }
    }
}

impl Simulator<'_> {
    /// A thread that is on a CPU takes the steps that it is time for, and may leave the CPU.
    pub(super) fn thread_goes_on(&mut self, index: usize) {
        while let Some(cpu) = self.cpu_of(index) {
            let core = self.core_of(cpu);
            match self.threads[index].at {
                At::Runs { left, until_ns, .. } if left > LEAST && !self.is_due(until_ns) => {
                    return;
                }
                _ => {}
            }
            self.is_something_done = true;
            let thread = &mut self.threads[index];
            thread.at = At::Between;
            if thread.next == thread.round.len() {
                (thread.next, thread.rounds) = (0, thread.rounds - 1);
            }
            if thread.rounds == 0 {
                thread.at = At::Finished;
                self.leaves(index);
                self.result.threads[index].finished_ns = Some(self.now);
                return;
            }
            let step = thread.round[thread.next];
            thread.next += 1;
            if let (Governor::User, Step::Run { code, .. }) = (self.governor, thread.steps[step]) {
                let asks = self.asks_for(Some(self.work.codes[*code]));
                if self.threads[index].told.replace(asks) != Some(asks) {
                    self.calls(core, asks);
                }
            }
            let thread = &mut self.threads[index];
            thread.at = match *thread.steps[step] {
                Step::Sleep { us: 0.0 } | Step::Run { length: Length::Us(0.0), .. } => continue,
                Step::Run { length: Length::Instructions(n), .. } if n < 1.0 => continue,
                Step::Sleep { us } => At::Asleep { until_ns: self.now + rounded(us * 1000.0) },
                Step::Run { length: Length::Us(us), .. } => At::Runs {
                    step,
                    left: f64::INFINITY,
                    until_ns: self.now + rounded(us * 1000.0),
                },
                Step::Run { length: Length::Instructions(left), .. } => {
                    At::Runs { step, left, until_ns: f64::INFINITY }
                }
                Step::Lock(number) => {
                    let lock = self.locks.entry(number).or_default();
                    if lock.is_taken {
                        lock.waiting.push_back(index);
                        At::Waits
                    } else {
                        lock.is_taken = true;
                        continue;
                    }
                }
                Step::Unlock(number) => {
                    let lock = self.locks.entry(number).or_default();
                    if let Some(first) = lock.waiting.pop_front() {
                        self.threads[first].at = At::Asleep { until_ns: self.now };
                    } else {
                        lock.is_taken = false;
                    }
                    continue;
                }
                Step::Pstate(number) => {
                    self.asks_for_pstate(core, number);
                    continue;
                }
                Step::Repeat { .. } | Step::Choose { .. } => {
                    unreachable!("blocks are written out")
                }
            };
            if !matches!(self.threads[index].at, At::Runs { .. }) {
                self.leaves(index);
            }
        }
    }

    fn runs(&self, thread: usize) -> bool {
        self.cpu_of(thread).is_some() && matches!(self.threads[thread].at, At::Runs { .. })
    }

    /// The threads that run on a core, in the order of its CPUs.
    pub(super) fn running_on(&self, core: usize) -> Vec<usize> {
        let running = self.cpus_of(core).filter_map(|cpu| self.cpus[cpu].running);
        running.filter(|thread| self.runs(*thread)).collect()
    }

    /// The code that counts of what runs on a core.
    pub(super) fn code_on(&self, core: usize) -> Option<Code> {
        let codes = self.running_on(core).into_iter().map(|thread| self.code(thread));
        // Of equals, the first.
        codes.rev().max_by_key(|code| (self.asks_for(Some(*code)), code.class as usize))
    }

    /// What a thread that runs executes.
    pub(super) fn code(&self, thread: usize) -> Code {
        let Thread { at, steps, .. } = &self.threads[thread];
        match at {
            At::Runs { step, .. } => match steps[*step] {
                Step::Run { code, .. } => self.work.codes[*code],
                _ => unreachable!("no code runs in it"),
            },
            _ => unreachable!("it does not run"),
        }
    }

    pub(super) fn active_beside(&self, core: usize) -> u32 {
        let package = self.package(core);
        let cores = 0..self.cores.len();
        let active =
            cores.filter(|other| self.package(*other) == package && !self.is_core_idle(*other));
        u32::try_from(active.count()).unwrap()
    }

    /// A thread's instructions per nanosecond.
    pub(super) fn rate(&self, thread: usize) -> f64 {
        let Some(cpu) = self.cpu_of(thread).filter(|_| self.runs(thread)) else { return 0.0 };
        let core = self.core_of(cpu);
        if self.is_still(core) || self.is_kept(core) || self.is_delayed(core) {
            return 0.0;
        }
        let code = self.code(thread);
        let request = &self.model.request;
        let factor = request.throttle_factor.as_ref();
        let chained = request.chained_throttle_factor.as_ref().or(factor);
        let is_throttled = self.is_throttled(core) && self.asks_for(Some(code)) > 0;
        let throttle = match (is_throttled, code.is_chained) {
            (false, _) => 1.0,
            (true, false) => factor.map_or(1.0, |factor| factor.value),
            (true, true) => chained.map_or(1.0, |factor| factor.value),
        };
        let level = self.cores[core].level;
        let issue = match &self.model.levels[level].issue_ratio {
            Some(ratio) if !self.is_governed() && !self.is_between_bursts(core) => ratio.value,
            _ => 1.0,
        };
        let share = if self.running_on(core).len() > 1 { self.work.smt_share } else { 1.0 };
        let clock = share * self.pstate_ghz(core).min(self.cap(core));
        1.0 / (1.0 / (code.per_cycle * throttle * issue * clock) + code.memory_ns)
    }
}
