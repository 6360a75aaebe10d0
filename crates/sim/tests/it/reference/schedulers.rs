//! "Schedulers" and "Moves": which thread runs on which CPU, and what it costs to take one over.

use super::{MOMENT_NS, Simulator, rounded};
use crate::drawn::Thread;

/// A turn of `fair` while others wait (ns).
const TURN_NS: f64 = 1_500_000.0;

/// How long after another CPU of `fair` one looks for more to do (ns).
const LOOK_NS: f64 = 16_000_000.0;

/// A slice of `muqss`, how far away its deadline is, and what is left of a slice that is not worth
/// another turn (ns).
const SLICE_NS: f64 = 6.0 * 1_048_576.0;
const DEADLINE_NS: f64 = SLICE_NS * 836.0 / 128.0;
const LEAST_SLICE_NS: f64 = 100.0 * 1024.0;

const LINE_BYTES: f64 = 64.0;

/// A CPU.
#[derive(Clone, Debug)]
pub(super) struct Cpu {
    pub(super) running: Option<usize>,
    /// From when the turn counts: since it started or something came, if anything waits.
    turn_ns: Option<f64>,
    /// When it looks for more to do, and how often in a row it found something without taking it.
    look_ns: f64,
    in_vain: i32,
}

impl Cpu {
    pub(super) fn new(number: usize) -> Self {
        Self { running: None, turn_ns: None, look_ns: LOOK_NS * (number + 1) as f64, in_vain: 0 }
    }
}

/// What a scheduler knows of a thread.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    pinned: Option<usize>,
    /// The CPU where it runs or waits.
    at: Option<usize>,
    /// The CPU where it ran last.
    last: Option<usize>,
    /// Which of all that came to a queue it was.
    came: u64,
    /// When a busy CPU took it last.
    taken_ns: f64,
    ran_ns: f64,
    deadline_ns: f64,
    slice_ns: f64,
    cached_bytes: f64,
}

impl Turns {
    pub(super) fn new(thread: &Thread) -> Self {
        Self {
            pinned: (!thread.is_free).then_some(thread.cpu),
            at: None,
            last: None,
            came: 0,
            taken_ns: 0.0,
            ran_ns: 0.0,
            deadline_ns: 0.0,
            slice_ns: 0.0,
            cached_bytes: thread.cached_kib as f64 * 1024.0,
        }
    }

    fn may_run_on(&self, cpu: usize) -> bool {
        self.pinned.is_none_or(|pinned| pinned == cpu)
    }
}

impl Simulator<'_> {
    pub(super) fn core_of(&self, cpu: usize) -> usize {
        cpu / self.work.threads_per_core
    }

    /// The CPU that a thread is on.
    pub(super) fn cpu_of(&self, thread: usize) -> Option<usize> {
        self.turns[thread].at.filter(|cpu| self.cpus[*cpu].running == Some(thread))
    }

    pub(super) fn cpus_of(&self, core: usize) -> std::ops::Range<usize> {
        core * self.work.threads_per_core..(core + 1) * self.work.threads_per_core
    }

    /// Whether a core takes over threads.
    pub(super) fn is_delayed(&self, core: usize) -> bool {
        !self.is_due(self.delayed_ns[core])
    }

    /// The threads that are at a CPU, whether they wait or run.
    fn at(&self, cpu: usize) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.turns.len()).filter(move |thread| self.turns[*thread].at == Some(cpu))
    }

    fn waiting_at(&self, cpu: usize) -> impl DoubleEndedIterator<Item = usize> {
        self.at(cpu).filter(move |thread| self.cpus[cpu].running != Some(*thread))
    }

    fn is_idle(&self, cpu: usize) -> bool {
        self.cpus[cpu].running.is_none()
    }

    pub(super) fn is_core_idle(&self, core: usize) -> bool {
        self.cpus_of(core).all(|cpu| self.is_idle(cpu))
    }

    /// A thread can run that could not.
    pub(super) fn can_run(&mut self, thread: usize) {
        self.is_something_done = true;
        if self.work.is_muqss && self.turns[thread].slice_ns == 0.0 {
            self.renews(thread);
        }
        let place = if self.work.is_muqss { Self::muqss_place } else { Self::fair_place };
        let cpu = self.turns[thread].pinned.unwrap_or_else(|| place(self, thread));
        self.comes_to_queue(thread, cpu);
        let deadline_ns = self.turns[thread].deadline_ns;
        match self.cpus[cpu].running {
            None => {
                self.takes_next(cpu);
                self.settles(cpu);
            }
            Some(other) if self.work.is_muqss && self.turns[other].deadline_ns > deadline_ns => {
                self.ends_turn(cpu);
            }
            Some(_) => {}
        }
    }

    fn comes_to_queue(&mut self, thread: usize, cpu: usize) {
        let least = self.at(cpu).map(|other| self.turns[other].ran_ns).min_by(f64::total_cmp);
        self.came += 1;
        let this = &mut self.turns[thread];
        (this.at, this.came) = (Some(cpu), self.came);
        if let Some(least) = least {
            this.ran_ns = this.ran_ns.clamp(least - TURN_NS, least + TURN_NS);
        }
        let turn_ns = &mut self.cpus[cpu].turn_ns;
        *turn_ns = turn_ns.or(Some(self.now));
    }

    /// The turn of a thread has ended, and a CPU without work may take something over.
    fn idle_take_over(&mut self, thread: usize) {
        let is_waiting = self.turns[thread].at.is_some() && self.cpu_of(thread).is_none();
        if self.turns[thread].pinned.is_some() || !is_waiting {
            return;
        }
        let idle = if self.work.is_muqss {
            self.muqss_idle(thread)
        } else {
            (0..self.cpus.len()).find(|cpu| self.is_idle(*cpu))
        };
        if let Some(cpu) = idle {
            self.takes_next(cpu);
            self.settles(cpu);
        }
    }

    /// The thread that runs on a CPU goes on, and if it leaves, the next one, and the core sees it.
    pub(super) fn settles(&mut self, cpu: usize) {
        loop {
            let running = self.cpus[cpu].running;
            if let Some(thread) = running {
                self.thread_goes_on(thread);
            }
            if self.cpus[cpu].running == running {
                break;
            }
        }
        let core = self.core_of(cpu);
        self.governor_looks(core);
        self.rules_pstate(core);
    }

    /// The turn of the thread that runs on a CPU ends if it is time.
    pub(super) fn turn_may_end(&mut self, cpu: usize) {
        if self.turn_end(cpu).is_some_and(|ns| self.is_due(ns)) {
            self.is_something_done = true;
            self.ends_turn(cpu);
            self.settles(cpu);
        }
    }

    /// When the turn on a CPU ends.
    pub(super) fn turn_end(&self, cpu: usize) -> Option<f64> {
        let thread = self.cpus[cpu].running?;
        if self.work.is_muqss {
            return Some(self.now + rounded(self.turns[thread].slice_ns));
        }
        self.cpus[cpu].turn_ns.map(|ns| ns + TURN_NS)
    }

    /// The thread that runs on a CPU waits again, and the CPU takes the next one.
    fn ends_turn(&mut self, cpu: usize) {
        if let Some(thread) = self.cpus[cpu].running.take() {
            self.may_renew(thread);
            self.came += 1;
            self.turns[thread].came = self.came;
            let taker = self.taker(thread, cpu);
            if let Some(taker) = taker {
                self.turns[thread].at = None;
                self.comes_to_queue(thread, taker);
                self.turns[thread].taken_ns = self.now;
            }
            self.takes_next(cpu);
            // What comes takes its steps first, and may leave again.
            self.settles(cpu);
            match taker {
                Some(taker) if self.is_idle(taker) => {
                    self.takes_next(taker);
                    self.settles(taker);
                }
                Some(_) => {}
                None => self.idle_take_over(thread),
            }
        }
    }

    /// The CPU that looks for more to do and takes the thread whose turn on a CPU has ended.
    fn taker(&mut self, thread: usize, cpu: usize) -> Option<usize> {
        let is_free = |thread: usize| self.turns[thread].pinned.is_none();
        let taken_ns = self.turns[thread].taken_ns;
        let is_first = self
            .at(cpu)
            .filter(|other| is_free(*other))
            .all(|other| self.turns[other].taken_ns >= taken_ns);
        if self.work.is_muqss || !is_free(thread) || !is_first {
            return None;
        }
        let cpus = self.cpus.len();
        let of = |cpu: usize| self.at(cpu).count() as f64;
        let counts: Vec<f64> = (0..cpus).map(of).collect();
        let (most, average) = (counts[cpu], counts.iter().sum::<f64>() / cpus as f64);
        for (looks, own) in counts.into_iter().enumerate() {
            if !self.is_due(self.cpus[looks].look_ns) {
                continue;
            }
            let period_ns = LOOK_NS * cpus as f64;
            let now = self.now;
            let this = &mut self.cpus[looks];
            let missed = ((now - this.look_ns + MOMENT_NS / 2.0) / period_ns).floor();
            this.look_ns += period_ns * (missed + 1.0);
            let is_nothing = most < 2.0 || most <= average || own >= average || most <= 1.17 * own;
            if is_nothing {
                this.look_ns += period_ns;
            }
            if missed > 0.0 {
                this.in_vain = 0;
            }
            if is_nothing {
                this.in_vain = 0;
            } else if (most - average).min(average - own) * 2_f64.powi(this.in_vain) >= 1.0 {
                this.in_vain = 0;
                return Some(looks);
            } else {
                this.in_vain += 1;
            }
        }
        None
    }

    /// A thread leaves its CPU, as it sleeps, waits for a lock or has finished.
    pub(super) fn leaves(&mut self, thread: usize) {
        let Some(cpu) = self.turns[thread].at.take() else { return };
        self.cpus[cpu].running = None;
        self.may_renew(thread);
        self.takes_next(cpu);
    }

    fn may_renew(&mut self, thread: usize) {
        if self.work.is_muqss && self.turns[thread].slice_ns < LEAST_SLICE_NS {
            self.renews(thread);
        }
    }

    fn renews(&mut self, thread: usize) {
        let this = &mut self.turns[thread];
        (this.slice_ns, this.deadline_ns) = (SLICE_NS, rounded(self.now + DEADLINE_NS));
    }

    /// A CPU with nothing to run takes the thread whose turn it is, if there is one.
    fn takes_next(&mut self, cpu: usize) {
        let next = if self.work.is_muqss { self.muqss_next(cpu) } else { self.fair_next(cpu) };
        let Some(thread) = next else {
            self.cpus[cpu].turn_ns = None;
            return;
        };
        let from = self.turns[thread].at.unwrap();
        if from != cpu {
            self.turns[thread].at = None;
            self.comes_to_queue(thread, cpu);
        }
        self.cpus[cpu].running = Some(thread);
        let is_awaited = self.waiting_at(cpu).next().is_some();
        self.cpus[cpu].turn_ns = is_awaited.then_some(self.now);
        if let Some(last) = self.turns[thread].last.replace(cpu) {
            let price_ns = self.price(thread, last, cpu);
            if price_ns > 0.0 {
                let core = self.core_of(cpu);
                self.delayed_ns[core] = self.delayed_ns[core].max(self.now) + rounded(price_ns);
            }
        }
    }

    /// What it costs a CPU to take over a thread from another (ns).
    fn price(&self, thread: usize, from: usize, to: usize) -> f64 {
        let price = |kind: &str| {
            let known = self.model.moves.iter().find(|known| known.kind == kind);
            known.map_or(0.0, |known| known.ns.value)
        };
        if from == to {
            return 0.0;
        }
        let (from, to) = (self.core_of(from), self.core_of(to));
        let line = if from == to {
            0.0
        } else if self.package(from) == self.package(to) {
            price("cache-line within a package")
        } else {
            price("cache-line between packages")
        };
        let l2 = self.model.shape.l2_kib.as_ref();
        let l2_bytes = l2.map_or(f64::INFINITY, |l2| l2.value as f64 * 1024.0);
        let lines = self.turns[thread].cached_bytes.min(l2_bytes) / LINE_BYTES;
        price("thread by the kernel") + lines * line
    }

    /// Time passes in which nothing happens.
    pub(super) fn turns_pass(&mut self, span: f64) {
        for cpu in &self.cpus {
            if let Some(thread) = cpu.running {
                self.turns[thread].ran_ns += span;
                self.turns[thread].slice_ns =
                    (self.turns[thread].slice_ns - span).max(MOMENT_NS / 2.0);
            }
        }
    }

    fn fair_place(&self, thread: usize) -> usize {
        let on_core = |cpu: usize| -> usize {
            self.cpus_of(self.core_of(cpu)).map(|cpu| self.at(cpu).count()).sum()
        };
        if let Some(last) = self.turns[thread].last.filter(|last| on_core(*last) == 0) {
            return last;
        }
        let cpus = 0..self.cpus.len();
        cpus.min_by_key(|cpu| (self.at(*cpu).count(), on_core(*cpu))).unwrap()
    }

    fn fair_next(&self, cpu: usize) -> Option<usize> {
        let ran = |thread: &usize| rounded(self.turns[*thread].ran_ns);
        let own = self.waiting_at(cpu).min_by(|one, two| ran(one).total_cmp(&ran(two)));
        own.or_else(|| {
            let free = |cpu: usize| {
                let free =
                    self.waiting_at(cpu).filter(|thread| self.turns[*thread].pinned.is_none());
                free.min_by(|one, two| ran(one).total_cmp(&ran(two)))
            };
            let cpus = (0..self.cpus.len()).rev().filter(|cpu| free(*cpu).is_some());
            cpus.max_by_key(|cpu| self.waiting_at(*cpu).count()).and_then(free)
        })
    }

    /// The idle CPU for a thread.
    fn muqss_idle(&self, thread: usize) -> Option<usize> {
        let last = self.turns[thread].last.unwrap_or(0);
        let core = self.core_of(last);
        let is_other_package = |cpu: &usize| self.package(self.core_of(*cpu)) != self.package(core);
        let idle = (0..self.cpus.len()).filter(|cpu| self.is_idle(*cpu));
        idle.min_by_key(|cpu| {
            let is_core_busy = !self.is_core_idle(self.core_of(*cpu));
            let is_other_core = self.core_of(*cpu) != core;
            (*cpu != last, is_other_package(cpu), is_core_busy, is_other_core)
        })
    }

    fn muqss_place(&self, thread: usize) -> usize {
        let last = self.turns[thread].last.unwrap_or(0);
        let core = self.core_of(last);
        self.muqss_idle(thread).unwrap_or_else(|| {
            let to_do = |cpu: &usize| self.core_queue(self.core_of(*cpu)).len();
            let key = |cpu: &usize| {
                let other = self.core_of(*cpu);
                let is_far = self.package(other) != self.package(core);
                (to_do(cpu), *cpu != last, other != core, is_far)
            };
            (0..self.cpus.len()).min_by_key(key).unwrap()
        })
    }

    /// The threads that wait at a core, the earliest deadline first.
    fn core_queue(&self, core: usize) -> Vec<usize> {
        let mut queue: Vec<usize> =
            self.cpus_of(core).flat_map(|cpu| self.waiting_at(cpu)).collect();
        queue.sort_by(|one, two| {
            let (one, two) = (&self.turns[*one], &self.turns[*two]);
            one.deadline_ns.total_cmp(&two.deadline_ns).then(one.came.cmp(&two.came))
        });
        queue
    }

    fn muqss_next(&self, cpu: usize) -> Option<usize> {
        let core = self.core_of(cpu);
        let own = self.core_queue(core);
        let mut chosen = own.iter().copied().find(|thread| self.turns[*thread].may_run_on(cpu));
        let mut entries = chosen.map_or(0, |_| own.len());
        let cores = self.cores.len();
        let others = (0..cores).filter(|other| *other != core);
        let is_near = |other: &usize| self.package(*other) == self.package(core);
        let (near, far): (Vec<usize>, Vec<usize>) = others.partition(is_near);
        for other in near.into_iter().chain(far) {
            if chosen.is_some() && !is_near(&other) {
                break;
            }
            let queue = self.core_queue(other);
            if queue.len() <= entries || !self.turns[queue[0]].may_run_on(cpu) {
                continue;
            }
            let deadline_ns = |thread: usize| self.turns[thread].deadline_ns;
            if chosen.is_none_or(|chosen| deadline_ns(queue[0]) < deadline_ns(chosen)) {
                (chosen, entries) = (Some(queue[0]), queue.len());
            }
        }
        chosen
    }
}
