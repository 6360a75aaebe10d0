//! A fair scheduler in the manner of Linux's.
//!
//! Each CPU has a queue ordered by the run time of its threads. A thread that becomes ready goes to
//! the CPU that it ran on before if that is idle, otherwise to an idle one, otherwise to the
//! shortest queue. A CPU without work takes a thread from the longest queue. Busy CPUs look now and
//! then whether they have less to do than others, and take a thread from one ([`Balance`]): no
//! thread shares its CPU for ever while most have one for themselves. Dedicated CPUs neither take
//! threads from others nor give any.
//!
//! A thread that wakes up waits for the end of the turn of the one that runs, as in Linux since 6.6
//! (`RUN_TO_PARITY` in kernel/sched/features.h), for threads with slices of one length.

use std::collections::BTreeSet;

use dimmer_policy::specialise::Class;
use dimmer_processor::units::LicenseLevel;

use super::{CpuIndex, Scheduler, ThreadId, Topology};
use crate::{Moment, Picos};

/// How long a thread runs before a waiting thread gets its turn: Linux's `base_slice_ns` with
/// two CPUs, 0.75 ms × (1 + log2 2) (kernel/sched/fair.c).
const SLICE: Picos = Picos::from_ps(1_500_000_000);

/// How often a busy CPU looks for others that have more to do, for each CPU that there is: Linux's
/// `balance_interval` of 1 ms, times its `busy_factor` (`get_sd_balance_interval`).
const BALANCE_INTERVAL: Picos = Picos::from_ps(16_000_000_000);

/// A CPU takes a thread only from one with more than this many times its own load: Linux's
/// `imbalance_pct`.
const IMBALANCE: f64 = 1.17;

/// A busy CPU's search for CPUs that have more to do, as Linux's `sched_balance_rq` does it among
/// threads of one weight (kernel/sched/fair.c).
///
/// It differs from Linux's in this: the CPU takes from any CPU with more than the average, when a
/// turn ends there, where Linux searches for the busiest; of the threads there it takes the one
/// that was so taken longest ago, where Linux takes one that does not run just then, so that it is
/// not always the same one; loads are those of the moment, where Linux's are averages over some
/// 32 ms; all CPUs are one scheduling domain.
#[derive(Clone, Copy, Debug)]
struct Balance {
    /// When it looks next.
    due: Moment,
    /// How often in a row it has found [`Found::TooMuch`].
    failures: i32,
}

/// What a look finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Nothing to take.
    Nothing,
    /// A CPU with more to do, but a whole thread of it would be too much.
    TooMuch,
    /// A thread to take.
    Thread,
}

impl Balance {
    /// What a CPU with a load of `own` threads finds at one with `other`, if the average is
    /// `average`.
    ///
    /// Linux moves at most what brings both to the average (`calculate_imbalance`), but allows
    /// twice as much after each failure (`detach_tasks`).
    fn finds(&self, own: f64, other: f64, average: f64) -> Found {
        let is_busier = other >= 2.0 && other > average && other > IMBALANCE * own;
        if !is_busier || own >= average {
            return Found::Nothing;
        }
        let imbalance = (other - average).min(average - own);
        if imbalance * 2_f64.powi(self.failures) < 1.0 { Found::TooMuch } else { Found::Thread }
    }

    /// A CPU whose look is due looks. It looks again after `interval`, or twice that if it finds
    /// nothing. Returns whether it takes a thread.
    fn looks(
        &mut self,
        (own, other): (f64, f64),
        average: f64,
        interval: Picos,
        now: Moment,
    ) -> bool {
        let missed = (now - self.due).times(interval);
        if missed > 0 {
            // No turn has ended meanwhile, so nothing waited.
            self.failures = 0;
        }
        let found = self.finds(own, other, average);
        let intervals = missed + if found == Found::Nothing { 2 } else { 1 };
        self.due += interval * intervals;
        self.failures = if found == Found::TooMuch { self.failures + 1 } else { 0 };
        found == Found::Thread
    }
}

/// The fair scheduler.
#[derive(Clone, Debug)]
pub(crate) struct Fair {
    /// Hardware threads of a core; CPUs are numbered core by core.
    threads_per_core: usize,
    queues: Vec<BTreeSet<(Picos, ThreadId)>>,
    running: Vec<Option<ThreadId>>,
    /// Up to when the run time of the thread that runs on each CPU is counted.
    counted: Vec<Moment>,
    /// The run time of each thread, in the order of which those of a CPU get their turns. A thread
    /// that comes to a CPU gets what the others there have run, give or take a turn: it neither
    /// makes up for its sleep nor waits for what it ran elsewhere.
    ran: Vec<Picos>,
    last_cpu: Vec<Option<CpuIndex>>,
    home: Vec<Option<CpuIndex>>,
    pinned: Vec<bool>,
    /// When a busy CPU took each thread last.
    taken: Vec<Moment>,
    /// CPUs that are reserved for moved regions.
    dedicated: Vec<bool>,
    balance: Vec<Balance>,
}

impl Fair {
    pub(crate) fn new(topology: Topology) -> Self {
        let Topology { cpus, threads_per_core, .. } = topology;
        let (queues, running) = (vec![BTreeSet::new(); cpus], vec![None; cpus]);
        let (ran, last_cpu, home, pinned) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (dedicated, counted) = (vec![false; cpus], vec![Moment::START; cpus]);
        // They look one after the other.
        let due = |cpu| Moment::START + BALANCE_INTERVAL * (cpu as u64 + 1);
        let balance = (0..cpus).map(|cpu| Balance { due: due(cpu), failures: 0 }).collect();
        Self {
            threads_per_core,
            queues,
            running,
            counted,
            ran,
            last_cpu,
            home,
            pinned,
            taken: Vec::new(),
            dedicated,
            balance,
        }
    }

    fn load(&self, cpu: CpuIndex) -> usize {
        self.queues[cpu].len() + usize::from(self.running[cpu].is_some())
    }

    /// The CPU with the least to do; among equals, one whose core has the least to do.
    fn choose(&self, thread: ThreadId, is_migrated: bool) -> CpuIndex {
        let of_core = |cpu: CpuIndex| -> usize {
            let first = cpu - cpu % self.threads_per_core;
            (first..first + self.threads_per_core).map(|sibling| self.load(sibling)).sum()
        };
        let is_for = |cpu: &CpuIndex| self.dedicated[*cpu] == is_migrated;
        let last = self.last_cpu[thread].filter(|last| is_for(last) && of_core(*last) == 0);
        let key = |cpu: &CpuIndex| (self.load(*cpu), of_core(*cpu), *cpu);
        last.or_else(|| (0..self.queues.len()).filter(is_for).min_by_key(key)).unwrap_or(0)
    }

    /// The CPU that takes the thread whose turn on `cpu` ends, as it has less to do; `cpu` itself,
    /// if none does.
    fn balance(&mut self, thread: ThreadId, cpu: CpuIndex, now: Moment) -> CpuIndex {
        let goes_first = |(_, other): &(Picos, ThreadId)| {
            !self.pinned[*other] && self.taken[*other] < self.taken[thread]
        };
        if self.pinned[thread] || self.dedicated[cpu] || self.queues[cpu].iter().any(goes_first) {
            return cpu;
        }
        let shared = || (0..self.queues.len()).filter(|other| !self.dedicated[*other]);
        let interval = BALANCE_INTERVAL * shared().count() as u64;
        let load: usize = shared().map(|other| self.load(other)).sum();
        let average = load as f64 / shared().count() as f64;
        for other in 0..self.queues.len() {
            if self.balance[other].due > now || self.dedicated[other] {
                continue;
            }
            let loads = (self.load(other) as f64, self.load(cpu) as f64);
            if self.balance[other].looks(loads, average, interval, now) {
                return other;
            }
        }
        cpu
    }

    /// The thread waits on this CPU.
    fn queue(&mut self, thread: ThreadId, cpu: CpuIndex, now: Moment) {
        if let Some(least) = self.least(cpu, now) {
            self.ran[thread] = self.ran[thread].clamp(least - SLICE, least + SLICE);
        }
        self.queues[cpu].insert((self.ran[thread], thread));
        self.home[thread] = Some(cpu);
    }

    /// The least run time of the threads on this CPU that can run.
    fn least(&self, cpu: CpuIndex, now: Moment) -> Option<Picos> {
        let first = self.queues[cpu].first().map(|(ran, _)| *ran);
        let uncounted = now - self.counted[cpu].min(now);
        let running = self.running[cpu].map(|thread| self.ran[thread] + uncounted);
        first.into_iter().chain(running).min()
    }
}

impl Scheduler for Fair {
    fn ready(&mut self, thread: ThreadId, pinned: Option<CpuIndex>, now: Moment) -> CpuIndex {
        if self.ran.len() <= thread {
            self.ran.resize(thread + 1, Picos::ZERO);
            self.last_cpu.resize(thread + 1, None);
            self.home.resize(thread + 1, None);
            self.pinned.resize(thread + 1, false);
            self.taken.resize(thread + 1, Moment::START);
        }
        let pinned = pinned.filter(|cpu| !self.dedicated[*cpu]);
        self.pinned[thread] = pinned.is_some();
        let cpu = pinned.unwrap_or_else(|| self.choose(thread, false));
        self.queue(thread, cpu, now);
        cpu
    }

    fn preempts(&self, _: ThreadId, _: CpuIndex) -> bool {
        false
    }

    fn preempted(&mut self, thread: ThreadId, cpu: CpuIndex, now: Moment) -> CpuIndex {
        let waits_on = self.balance(thread, cpu, now);
        if waits_on == cpu {
            self.queues[cpu].insert((self.ran[thread], thread));
        } else {
            self.queue(thread, waits_on, now);
            self.taken[thread] = now;
        }
        waits_on
    }

    fn next(&mut self, cpu: CpuIndex, now: Moment) -> Option<(ThreadId, Option<CpuIndex>)> {
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
        (self.running[cpu], self.counted[cpu]) = (Some(thread), now);
        self.home[thread] = Some(cpu);
        let before = self.last_cpu[thread].replace(cpu);
        Some((thread, before.filter(|before| *before != cpu)))
    }

    fn idle_for(&self, thread: ThreadId) -> Option<CpuIndex> {
        let is_free = |cpu: &CpuIndex| self.running[*cpu].is_none() && !self.dedicated[*cpu];
        (0..self.running.len()).find(is_free).filter(|_| !self.pinned[thread])
    }

    fn looks(&mut self, _: Moment) {}

    fn ran(&mut self, thread: ThreadId, span: Picos, now: Moment) {
        self.ran[thread] += span;
        if let Some(cpu) = self.home[thread] {
            self.counted[cpu] = now;
        }
    }

    fn home(&self, thread: ThreadId) -> Option<CpuIndex> {
        self.home.get(thread).copied().flatten()
    }

    fn slice(&self, cpu: CpuIndex) -> Option<Picos> {
        (!self.queues[cpu].is_empty()).then_some(SLICE)
    }

    fn ready_away(&mut self, thread: ThreadId) -> CpuIndex {
        self.pinned[thread] = true;
        let cpu = self.choose(thread, true);
        self.queue(thread, cpu, self.counted[cpu]);
        cpu
    }

    fn comes_home(&mut self, thread: ThreadId, home: CpuIndex) {
        self.last_cpu[thread] = Some(home);
    }

    /// It knows no classes.
    fn ends_phase(&mut self, thread: ThreadId, cpu: CpuIndex, now: Moment) -> CpuIndex {
        self.trapped(thread, cpu, now);
        cpu
    }

    /// It knows no classes, so the thread may go on there.
    fn trapped(&mut self, thread: ThreadId, cpu: CpuIndex, _: Moment) {
        self.queues[cpu].insert((self.ran[thread], thread));
    }

    fn keeps_apart(&mut self) {}

    fn stays_near(&mut self, _: bool) {}

    fn widen(&mut self, _: &[LicenseLevel]) {}

    fn classify(&mut self, _: ThreadId, _: Class) {}

    fn dedicate(&mut self, cpu: CpuIndex, is_dedicated: bool) {
        self.dedicated[cpu] = is_dedicated;
    }

    fn clear(&mut self, cpu: CpuIndex) -> Vec<ThreadId> {
        std::mem::take(&mut self.queues[cpu]).into_iter().map(|(_, thread)| thread).collect()
    }

    fn turn(&self) -> Picos {
        SLICE
    }
}
