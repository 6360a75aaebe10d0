//! Which thread runs where: a fair scheduler in the manner of Linux's.
//!
//! Each CPU has a queue ordered by how long its threads have run. Who becomes ready goes to the CPU
//! that it ran on before if that is idle, else to an idle one, else to the shortest queue; a CPU
//! without work takes some from the longest queue. Others' schedulers implement [`Scheduler`].

use std::collections::BTreeSet;

use crate::Moment;

/// How long a thread runs before another one that waits gets its turn (ps): Linux's `base_slice_ns`
/// with two CPUs, 0.75 ms × (1 + log2 2) (kernel/sched/fair.c).
pub(crate) const SLICE: Moment = 1_500_000_000;

/// A thread of the machine and a CPU of it, by number.
pub(crate) type ThreadId = usize;
pub(crate) type CpuIndex = usize;

/// Decides which thread runs where.
pub(crate) trait Scheduler {
    /// A thread can run, on this CPU alone or on any; where it shall.
    fn ready(&mut self, thread: ThreadId, pinned: Option<CpuIndex>) -> CpuIndex;

    /// The thread has run on this CPU for long enough, and waits there for its next turn.
    fn preempted(&mut self, thread: ThreadId, cpu: CpuIndex);

    /// The CPU has nothing to run: what is next, and on which other CPU that ran before, if it did.
    fn next(&mut self, cpu: CpuIndex) -> Option<(ThreadId, Option<CpuIndex>)>;

    /// The thread has run for so long.
    fn ran(&mut self, thread: ThreadId, span: Moment);

    /// The CPU that the thread is expected on: where it waits for its turn, or ran last.
    fn home(&self, thread: ThreadId) -> Option<CpuIndex>;

    /// For how long the CPU's thread may go on: for ever if nobody else waits.
    fn slice(&self, cpu: CpuIndex) -> Option<Moment>;
}

/// The fair one.
#[derive(Clone, Debug)]
pub(crate) struct Fair {
    /// Hardware threads of a core; CPUs are numbered core by core.
    threads_per_core: usize,
    queues: Vec<BTreeSet<(Moment, ThreadId)>>,
    running: Vec<Option<ThreadId>>,
    /// How long each thread has run, and at least what those had that it would overtake by having
    /// slept.
    ran: Vec<Moment>,
    last_cpu: Vec<Option<CpuIndex>>,
    home: Vec<Option<CpuIndex>>,
    pinned: Vec<bool>,
    /// CPUs that are for moved regions alone.
    dedicated: Vec<bool>,
}

impl Fair {
    pub(crate) fn new(cpus: usize, threads_per_core: usize) -> Self {
        let (queues, running) = (vec![BTreeSet::new(); cpus], vec![None; cpus]);
        let (ran, last_cpu, home, pinned) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let dedicated = vec![false; cpus];
        Self { threads_per_core, queues, running, ran, last_cpu, home, pinned, dedicated }
    }

    fn load(&self, cpu: CpuIndex) -> usize {
        self.queues[cpu].len() + usize::from(self.running[cpu].is_some())
    }

    /// The CPU with the least to do, and of those one whose core has the least.
    fn choose(&self, thread: ThreadId, is_away: bool) -> CpuIndex {
        let of_core = |cpu: CpuIndex| -> usize {
            let first = cpu - cpu % self.threads_per_core;
            (first..first + self.threads_per_core).map(|sibling| self.load(sibling)).sum()
        };
        let is_for = |cpu: &CpuIndex| self.dedicated[*cpu] == is_away;
        let last = self.last_cpu[thread].filter(|last| is_for(last) && of_core(*last) == 0);
        let key = |cpu: &CpuIndex| (self.load(*cpu), of_core(*cpu), *cpu);
        last.or_else(|| (0..self.queues.len()).filter(is_for).min_by_key(key)).unwrap_or(0)
    }

    /// The thread waits on this CPU.
    fn queue(&mut self, thread: ThreadId, cpu: CpuIndex) {
        // Who has slept does not catch up on those who have not.
        if let Some(least) = self.least(cpu) {
            self.ran[thread] = self.ran[thread].max(least.saturating_sub(SLICE));
        }
        self.queues[cpu].insert((self.ran[thread], thread));
        self.home[thread] = Some(cpu);
    }

    /// A thread in a moved region can run; where it shall, of the dedicated CPUs.
    pub(crate) fn ready_away(&mut self, thread: ThreadId) -> CpuIndex {
        self.pinned[thread] = true;
        let cpu = self.choose(thread, true);
        self.queue(thread, cpu);
        cpu
    }

    /// The thread's region is over: it is to go on where it was, if it can.
    pub(crate) fn comes_home(&mut self, thread: ThreadId, home: CpuIndex) {
        self.last_cpu[thread] = Some(home);
    }

    /// The CPU is for moved regions alone, or no longer.
    pub(crate) fn dedicate(&mut self, cpu: CpuIndex, is_dedicated: bool) {
        self.dedicated[cpu] = is_dedicated;
    }

    /// Takes all threads that wait from a CPU.
    pub(crate) fn clear(&mut self, cpu: CpuIndex) -> Vec<ThreadId> {
        std::mem::take(&mut self.queues[cpu]).into_iter().map(|(_, thread)| thread).collect()
    }

    /// The least that anybody on this CPU has run who could run now.
    fn least(&self, cpu: CpuIndex) -> Option<Moment> {
        let first = self.queues[cpu].first().map(|(ran, _)| *ran);
        let running = self.running[cpu].map(|thread| self.ran[thread]);
        first.into_iter().chain(running).min()
    }
}

impl Scheduler for Fair {
    fn ready(&mut self, thread: ThreadId, pinned: Option<CpuIndex>) -> CpuIndex {
        if self.ran.len() <= thread {
            self.ran.resize(thread + 1, 0);
            self.last_cpu.resize(thread + 1, None);
            self.home.resize(thread + 1, None);
            self.pinned.resize(thread + 1, false);
        }
        let pinned = pinned.filter(|cpu| !self.dedicated[*cpu]);
        self.pinned[thread] = pinned.is_some();
        let cpu = pinned.unwrap_or_else(|| self.choose(thread, false));
        self.queue(thread, cpu);
        cpu
    }

    fn preempted(&mut self, thread: ThreadId, cpu: CpuIndex) {
        self.queues[cpu].insert((self.ran[thread], thread));
    }

    fn next(&mut self, cpu: CpuIndex) -> Option<(ThreadId, Option<CpuIndex>)> {
        self.running[cpu] = None;
        let own = self.queues[cpu].pop_first();
        let taken = own.or_else(|| {
            let movable = |other: CpuIndex| {
                self.queues[other].iter().copied().find(|(_, thread)| !self.pinned[*thread])
            };
            if self.dedicated[cpu] {
                return None;
            }
            let others = (0..self.queues.len()).filter(|other| *other != cpu);
            let with_some = others.filter(|other| movable(*other).is_some());
            let longest =
                with_some.max_by_key(|other| (self.queues[*other].len(), usize::MAX - other))?;
            let taken = movable(longest)?;
            self.queues[longest].remove(&taken);
            Some(taken)
        });
        let (_, thread) = taken?;
        self.running[cpu] = Some(thread);
        self.home[thread] = Some(cpu);
        let before = self.last_cpu[thread].replace(cpu);
        Some((thread, before.filter(|before| *before != cpu)))
    }

    fn ran(&mut self, thread: ThreadId, span: Moment) {
        self.ran[thread] += span;
    }

    fn home(&self, thread: ThreadId) -> Option<CpuIndex> {
        self.home.get(thread).copied().flatten()
    }

    fn slice(&self, cpu: CpuIndex) -> Option<Moment> {
        (!self.queues[cpu].is_empty()).then_some(SLICE)
    }
}
