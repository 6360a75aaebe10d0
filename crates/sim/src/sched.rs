//! Which thread runs where: a fair scheduler in the manner of Linux's.
//!
//! Each CPU has a queue ordered by how long its threads have run. Who becomes ready goes to the CPU that it ran on before if that is
//! idle, else to an idle one, else to the shortest queue; a CPU without work takes some from the longest queue. Others' schedulers
//! implement [`Scheduler`].

use std::collections::BTreeSet;

use crate::Moment;

/// How long a thread runs before another one that waits gets its turn (ps): Linux's `base_slice_ns` with two CPUs, 0.75 ms × (1 + log2 2)
/// (kernel/sched/fair.c).
const SLICE: Moment = 1_500_000_000;

/// A thread of the machine and a CPU of it, by number.
pub(crate) type ThreadId = usize;
pub(crate) type CpuIndex = usize;

/// Decides which thread runs where.
pub(crate) trait Scheduler {
    /// A thread can run, on this CPU alone or on any; where it shall.
    fn ready(&mut self, thread: ThreadId, pinned: Option<CpuIndex>) -> CpuIndex;

    /// The thread has run on this CPU for long enough, and waits there for its next turn.
    fn preempted(&mut self, thread: ThreadId, cpu: CpuIndex);

    /// The CPU has nothing to run: what is next, and whether that ran on another CPU before.
    fn next(&mut self, cpu: CpuIndex) -> Option<(ThreadId, bool)>;

    /// The thread has run for so long.
    fn ran(&mut self, thread: ThreadId, span: Moment);

    /// For how long the CPU's thread may go on: for ever if nobody else waits.
    fn slice(&self, cpu: CpuIndex) -> Option<Moment>;
}

/// The fair one.
#[derive(Clone, Debug)]
pub(crate) struct Fair {
    queues: Vec<BTreeSet<(Moment, ThreadId)>>,
    is_idle: Vec<bool>,
    /// How long each thread has run, and at least what those had that it would overtake by having slept.
    ran: Vec<Moment>,
    last_cpu: Vec<Option<CpuIndex>>,
    pinned: Vec<bool>,
}

impl Fair {
    pub(crate) fn new(cpus: usize) -> Self {
        let (queues, is_idle) = (vec![BTreeSet::new(); cpus], vec![true; cpus]);
        Self { queues, is_idle, ran: Vec::new(), last_cpu: Vec::new(), pinned: Vec::new() }
    }

    fn choose(&self, thread: ThreadId) -> CpuIndex {
        if let Some(last) = self.last_cpu[thread].filter(|last| self.is_idle[*last]) {
            return last;
        }
        let load =
            |cpu: &CpuIndex| (self.queues[*cpu].len() + usize::from(!self.is_idle[*cpu]), *cpu);
        (0..self.queues.len()).min_by_key(load).unwrap_or(0)
    }
}

impl Scheduler for Fair {
    fn ready(&mut self, thread: ThreadId, pinned: Option<CpuIndex>) -> CpuIndex {
        if self.ran.len() <= thread {
            self.ran.resize(thread + 1, 0);
            self.last_cpu.resize(thread + 1, None);
            self.pinned.resize(thread + 1, false);
        }
        self.pinned[thread] = pinned.is_some();
        let cpu = pinned.unwrap_or_else(|| self.choose(thread));
        // Who has slept does not catch up on those who wait.
        if let Some((least, _)) = self.queues[cpu].first() {
            self.ran[thread] = self.ran[thread].max(least.saturating_sub(SLICE));
        }
        self.queues[cpu].insert((self.ran[thread], thread));
        cpu
    }

    fn preempted(&mut self, thread: ThreadId, cpu: CpuIndex) {
        self.queues[cpu].insert((self.ran[thread], thread));
    }

    fn next(&mut self, cpu: CpuIndex) -> Option<(ThreadId, bool)> {
        let own = self.queues[cpu].pop_first();
        let taken = own.or_else(|| {
            let others =
                (0..self.queues.len()).filter(|other| *other != cpu && !self.is_idle[*other]);
            let longest =
                others.max_by_key(|other| (self.queues[*other].len(), usize::MAX - other))?;
            let queue = &mut self.queues[longest];
            let taken = queue.iter().copied().find(|(_, thread)| !self.pinned[*thread])?;
            queue.remove(&taken);
            Some(taken)
        });
        self.is_idle[cpu] = taken.is_none();
        let (_, thread) = taken?;
        let before = self.last_cpu[thread].replace(cpu);
        Some((thread, before.is_some_and(|before| before != cpu)))
    }

    fn ran(&mut self, thread: ThreadId, span: Moment) {
        self.ran[thread] += span;
    }

    fn slice(&self, cpu: CpuIndex) -> Option<Moment> {
        (!self.queues[cpu].is_empty()).then_some(SLICE)
    }
}
