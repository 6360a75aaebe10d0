//! A scheduler in the manner of MuQSS, which papers 001 (§6.1) and 003 (§3.2) ran.
//!
//! MuQSS is "the multiple queue skiplist scheduler" of Linux's -ck patches. What is here follows
//! its source, `linux/kernel/sched/MuQSS.c` of the versions 0.157 and 0.202, for threads of one
//! priority, with a queue for each core (paper 003 §3.2) and `interactive` set to 0 (paper 001
//! §6.1). Paper 003 does not name that setting; MuQSS has it at 1 by default, where a thread that
//! wakes up may end a turn on any CPU, and a CPU takes the earliest deadline of all cores.
//!
//! Each thread has a deadline. Of those that wait, the one with the earliest runs next. A thread
//! runs for up to a slice, over as many turns as it takes; then it gets a new slice, and a deadline
//! that counts from then. So a thread that sleeps often has an old deadline when it wakes up, and
//! takes the CPU from one that computes all the time.
//!
//! Threads have classes, and cores levels, as in paper 003 §3.2: of what waits, what
//! [`specialise::rank`] puts first goes first, then what has the earliest deadline. The paper keeps
//! a queue for each class and core; one queue that is searched by class is the same. Without wide
//! cores, all threads are of one rank.
//!
//! Left out: other priorities; the interrupts that make a busy CPU look at its queue once more,
//! which with `interactive` at 0 never brings it the thread that woke up; and the order in which a
//! CPU asks the other cores, which depends on the version.

use std::collections::BTreeMap;

use dimmer_policy::specialise::{self, Class};
use dimmer_processor::units::LicenseLevel;

use super::{CpuIndex, Scheduler, ThreadId, Topology};
use crate::{Moment, Picos};

/// How long a thread runs until it gets a new deadline: `rr_interval` of 6 ms, each counted as 2^20
/// ns.
const SLICE: Picos = Picos::from_ps(6 * MILLISECOND_PS);
/// How far a new deadline is away, with nice level 0: `prio_ratios[20]` is 836, of 128.
const DEADLINE: Picos = Picos::from_ps(836 * 6 * MILLISECOND_PS / 128);
/// A thread that leaves its CPU with less of its slice gets a new one: `RESCHED_US` of 100, each
/// counted as 2^10 ns.
const USED_UP: Picos = Picos::from_ps(100 * 1024 * 1000);
const NARROW: LicenseLevel = LicenseLevel::new(0);
const MILLISECOND_PS: u64 = (1 << 20) * 1000;

/// The scheduler.
#[derive(Clone, Debug)]
pub(crate) struct MuQss {
    topology: Topology,
    /// The threads that wait at each core: by deadline, then in the order in which they came.
    queues: Vec<BTreeMap<(Moment, u64), ThreadId>>,
    /// How many threads have ever waited.
    arrivals: u64,
    running: Vec<Option<ThreadId>>,
    tasks: Vec<Task>,
    /// Cores that are reserved for moved regions.
    dedicated: Vec<bool>,
    /// The highest license level that threads may ask for on each core.
    levels: Vec<LicenseLevel>,
    /// Whether no core is wide.
    is_uniform: bool,
    /// Whether CPUs of a core run wide threads or others, not both at a time.
    is_apart: bool,
    /// Whether threads stay near their data.
    is_near: bool,
}

#[derive(Clone, Debug)]
struct Task {
    deadline: Moment,
    /// What is left of its slice.
    slice: Picos,
    /// Where it waits, or was last.
    cpu: Option<CpuIndex>,
    /// Where it ran last, and ran last while it was not wide.
    ran_on: Option<CpuIndex>,
    own: Option<CpuIndex>,
    /// When it left a CPU that it could have gone on using.
    left: Option<Moment>,
    may_run: MayRun,
    class: Class,
}

impl Task {
    /// A thread that was never ready.
    const fn new() -> Self {
        let (cpu, ran_on, may_run) = (None, None, MayRun::Anywhere);
        let class = Class::Normal;
        let (deadline, slice) = (Moment::START, SLICE);
        Self { deadline, slice, cpu, ran_on, own: None, left: None, may_run, class }
    }
}

/// Where a thread may run.
#[derive(Clone, Copy, Debug)]
enum MayRun {
    Anywhere,
    On(CpuIndex),
    Away,
}

impl MuQss {
    pub(crate) fn new(topology: Topology) -> Self {
        let cores = topology.cpus / topology.threads_per_core;
        Self {
            topology,
            queues: vec![BTreeMap::new(); cores],
            arrivals: 0,
            running: vec![None; topology.cpus],
            tasks: Vec::new(),
            dedicated: vec![false; cores],
            levels: vec![NARROW; cores],
            is_uniform: true,
            is_apart: false,
            is_near: false,
        }
    }

    fn core(&self, cpu: CpuIndex) -> usize {
        cpu / self.topology.threads_per_core
    }

    fn may_run(&self, thread: ThreadId, cpu: CpuIndex) -> bool {
        let is_dedicated = self.dedicated[self.core(cpu)];
        match self.tasks[thread].may_run {
            MayRun::Anywhere => !is_dedicated,
            MayRun::On(only) => cpu == only,
            MayRun::Away => is_dedicated,
        }
    }

    /// When the CPU takes the thread, if its affinity allows that; `None`: never.
    fn rank(&self, thread: ThreadId, cpu: CpuIndex) -> Option<u32> {
        if self.is_uniform {
            return Some(0);
        }
        let task = &self.tasks[thread];
        let level = |core: usize| self.levels[core];
        let home = match task.may_run {
            MayRun::Anywhere => specialise::home(task.class, self.levels.iter().copied()),
            MayRun::On(only) => specialise::home(task.class, [level(self.core(only))]),
            MayRun::Away => None,
        };
        specialise::rank(level(self.core(cpu)), task.class, home)
    }

    /// Whether the thread may run on the CPU beside what its siblings run: threads of its kind, or
    /// such as give way to it because their deadlines are later.
    fn fits(&self, thread: ThreadId, cpu: CpuIndex) -> bool {
        if !self.is_apart {
            return true;
        }
        let is_wide = |of: &Task| matches!(of.class, Class::Wide(_));
        let first = cpu - cpu % self.topology.threads_per_core;
        let siblings = first..first + self.topology.threads_per_core;
        let this = &self.tasks[thread];
        siblings.filter(|sibling| *sibling != cpu).filter_map(|sibling| self.running[sibling]).all(
            |running| {
                let other = &self.tasks[running];
                is_wide(this) == is_wide(other) || this.deadline < other.deadline
            },
        )
    }

    /// Threads that wait at the CPU's core, and the one that runs on it.
    fn load(&self, cpu: CpuIndex) -> usize {
        self.queues[self.core(cpu)].len() + usize::from(self.running[cpu].is_some())
    }

    /// How far a CPU is from another one: itself, the same core, the same package, any.
    fn distance(&self, from: CpuIndex, to: CpuIndex) -> u8 {
        let [core, other] = [from, to].map(|cpu| self.core(cpu));
        match () {
            () if from == to => 0,
            () if core == other => 1,
            () if self.topology.package(core) == self.topology.package(other) => 2,
            () => 3,
        }
    }

    /// The CPUs that a thread may run on.
    fn allowed(&self, thread: ThreadId) -> impl Iterator<Item = CpuIndex> {
        let is_allowed =
            move |cpu: &CpuIndex| self.may_run(thread, *cpu) && self.rank(thread, *cpu).is_some();
        (0..self.running.len()).filter(is_allowed)
    }

    /// The idle CPU that takes the thread first: of the first rank, the nearest one, one whose
    /// siblings are idle as well if there is one in the package.
    fn idle(&self, thread: ThreadId) -> Option<CpuIndex> {
        let from = self.tasks[thread].ran_on.unwrap_or(0);
        let is_shared = |cpu: CpuIndex| {
            let first = cpu - cpu % self.topology.threads_per_core;
            let mut siblings = first..first + self.topology.threads_per_core;
            siblings.any(|sibling| self.running[sibling].is_some())
        };
        let key = |cpu: &CpuIndex| {
            let distance = self.distance(from, *cpu);
            let rank = self.rank(thread, *cpu);
            (rank, distance > 0, distance > 2, is_shared(*cpu), distance, *cpu)
        };
        let is_free = |cpu: &CpuIndex| self.running[*cpu].is_none() && self.fits(thread, *cpu);
        self.allowed(thread).filter(is_free).min_by_key(key)
    }

    /// The CPU for a thread that can run: an idle one, otherwise of those that take it as soon as
    /// any other thread the nearest with the least to do.
    fn choose(&self, thread: ThreadId) -> CpuIndex {
        let from = self.tasks[thread].ran_on.unwrap_or(0);
        let least = |cpu: &CpuIndex| (self.load(*cpu), self.distance(from, *cpu), *cpu);
        let first = || self.allowed(thread).filter(|cpu| self.rank(thread, *cpu) == Some(0));
        self.idle(thread).or_else(|| first().min_by_key(least)).unwrap_or(0)
    }

    /// The thread waits at this CPU.
    fn queue(&mut self, thread: ThreadId, cpu: CpuIndex) {
        let core = self.core(cpu);
        self.arrivals += 1;
        self.queues[core].insert((self.tasks[thread].deadline, self.arrivals), thread);
        self.tasks[thread].cpu = Some(cpu);
    }

    /// The thread leaves its CPU.
    fn leaves(&mut self, thread: ThreadId, now: Moment) {
        let task = &mut self.tasks[thread];
        if task.slice < USED_UP {
            (task.slice, task.deadline) = (SLICE, now + DEADLINE);
        }
    }

    /// The thread that is next on this CPU: the core and the key of its place.
    fn earliest(&self, cpu: CpuIndex, now: Moment) -> Option<(usize, (Moment, u64))> {
        let ranks = specialise::ranks(self.levels[self.core(cpu)]);
        (0..ranks).find_map(|rank| self.earliest_of(rank, cpu, now))
    }

    /// The next thread of a rank: that of the core's own queue; or of one where more wait, if its
    /// deadline is earlier.
    fn earliest_of(&self, rank: u32, cpu: CpuIndex, now: Moment) -> Option<(usize, (Moment, u64))> {
        let core = self.core(cpu);
        let is_elsewhere = |task: &Task| matches!(task.may_run, MayRun::On(only) if only != cpu);
        let of_rank =
            |thread: ThreadId| self.rank(thread, cpu) == Some(rank) && self.fits(thread, cpu);
        let is_own = |thread: ThreadId| of_rank(thread) && !is_elsewhere(&self.tasks[thread]);
        let own = self.queues[core].iter().find(|(_, thread)| is_own(**thread));
        let mut best = own.map(|(key, _)| (core, *key));
        let mut most = if best.is_some() { self.waiting(core, rank, cpu) } else { 0 };
        if self.dedicated[core] {
            return best;
        }
        let package = self.topology.package(core);
        let is_near = |other: &usize| self.topology.package(*other) == package;
        let others = || (0..self.queues.len()).filter(|other| *other != core);
        let near = others().filter(is_near);
        // Other packages are for CPUs without work.
        let far = others().filter(|other| !is_near(other));
        for (other, is_far) in near.map(|near| (near, false)).chain(far.map(|far| (far, true))) {
            if is_far && best.is_some() {
                break;
            }
            let could = |thread: ThreadId| of_rank(thread) && self.may_take(thread, other, now);
            let first = self.queues[other].iter().find(|(_, thread)| could(**thread));
            let Some((key, thread)) = first else { continue };
            let is_earlier = best.is_none_or(|(_, best)| key.0 < best.0);
            let waiting = self.waiting(other, rank, cpu);
            if waiting > most && is_earlier && self.may_run(*thread, cpu) {
                (best, most) = (Some((other, *key)), waiting);
            }
        }
        best
    }

    /// Whether another core may take the thread that waits at this one.
    fn may_take(&self, thread: ThreadId, core: usize, now: Moment) -> bool {
        let task = &self.tasks[thread];
        let Some(left) = task.left.filter(|_| self.is_near) else { return true };
        let first = core * self.topology.threads_per_core;
        let mut running =
            (first..first + self.topology.threads_per_core).filter_map(|cpu| self.running[cpu]);
        let is_wide = |thread: ThreadId| matches!(self.tasks[thread].class, Class::Wide(_));
        specialise::may_take(task.class, (now - left).nanos(), running.any(is_wide))
    }

    /// Whether the thread has waited so long that nothing keeps it where it is.
    fn is_late(&self, thread: ThreadId, now: Moment) -> bool {
        let task = &self.tasks[thread];
        let waited = task.left.map(|left| (now - left).nanos());
        waited.is_some_and(|waited| specialise::may_take(task.class, waited, true))
    }

    /// The number of threads of a rank that wait at a core.
    fn waiting(&self, core: usize, rank: u32, cpu: CpuIndex) -> usize {
        if self.is_uniform {
            return self.queues[core].len();
        }
        self.queues[core].values().filter(|thread| self.rank(**thread, cpu) == Some(rank)).count()
    }
}

impl Scheduler for MuQss {
    fn ready(&mut self, thread: ThreadId, pinned: Option<CpuIndex>, now: Moment) -> CpuIndex {
        if self.tasks.len() <= thread {
            self.tasks.resize(thread + 1, Task::new());
        }
        if self.tasks[thread].cpu.is_none() {
            self.tasks[thread].deadline = now + DEADLINE;
        }
        let pinned = pinned.filter(|cpu| !self.dedicated[self.core(*cpu)]);
        self.tasks[thread].may_run = pinned.map_or(MayRun::Anywhere, MayRun::On);
        let cpu = self.choose(thread);
        self.queue(thread, cpu);
        cpu
    }

    fn ready_away(&mut self, thread: ThreadId) -> CpuIndex {
        self.tasks[thread].may_run = MayRun::Away;
        let cpu = self.choose(thread);
        self.queue(thread, cpu);
        cpu
    }

    fn comes_home(&mut self, thread: ThreadId, home: CpuIndex) {
        self.tasks[thread].ran_on = Some(home);
    }

    fn preempts(&self, thread: ThreadId, cpu: CpuIndex) -> bool {
        let key = |one: ThreadId| Some((self.rank(one, cpu)?, self.tasks[one].deadline));
        let running = self.running[cpu];
        running.is_some_and(|running| {
            key(thread).zip(key(running)).is_some_and(|(new, old)| new < old)
        })
    }

    fn preempted(&mut self, thread: ThreadId, cpu: CpuIndex, now: Moment) -> CpuIndex {
        self.running[cpu] = None;
        self.leaves(thread, now);
        self.tasks[thread].left = Some(now);
        self.queue(thread, cpu);
        cpu
    }

    fn trapped(&mut self, thread: ThreadId, cpu: CpuIndex, now: Moment) {
        self.running[cpu] = None;
        self.leaves(thread, now);
        let cpu = self.choose(thread);
        self.queue(thread, cpu);
    }

    fn ends_phase(&mut self, thread: ThreadId, cpu: CpuIndex, now: Moment) -> CpuIndex {
        let own = self.tasks[thread].own.filter(|own| self.is_near && *own != cpu);
        let Some(own) = own else {
            return self.preempted(thread, cpu, now);
        };
        self.running[cpu] = None;
        self.leaves(thread, now);
        let is_free = self.running[own].is_none() && self.may_run(thread, own);
        let goes_on = specialise::goes_on(own, is_free, self.idle(thread));
        self.queue(thread, goes_on);
        goes_on
    }

    fn next(&mut self, cpu: CpuIndex, now: Moment) -> Option<(ThreadId, Option<CpuIndex>)> {
        if let Some(left) = self.running[cpu].take() {
            self.leaves(left, now);
        }
        let (core, key) = self.earliest(cpu, now)?;
        let thread = self.queues[core].remove(&key)?;
        self.running[cpu] = Some(thread);
        let task = &mut self.tasks[thread];
        task.cpu = Some(cpu);
        task.left = None;
        if !matches!(task.class, Class::Wide(_)) {
            task.own = Some(cpu);
        }
        Some((thread, task.ran_on.replace(cpu).filter(|before| *before != cpu)))
    }

    fn idle_for(&self, thread: ThreadId) -> Option<CpuIndex> {
        self.idle(thread)
    }

    fn looks(&mut self, now: Moment) {
        if !self.is_near {
            return;
        }
        for core in 0..self.queues.len() {
            let cpu = core * self.topology.threads_per_core;
            let is_last = |thread: ThreadId| self.rank(thread, cpu) > Some(0);
            let waiting = self.queues[core].iter();
            let late =
                waiting.filter(|(_, thread)| is_last(**thread) && self.is_late(**thread, now));
            let late: Vec<(Moment, u64)> = late.map(|(key, _)| *key).collect();
            for key in late {
                let Some(thread) = self.queues[core].remove(&key) else { continue };
                let cpu = self.choose(thread);
                self.queue(thread, cpu);
            }
        }
    }

    fn ran(&mut self, thread: ThreadId, span: Picos, now: Moment) {
        let task = &mut self.tasks[thread];
        let mut span = span;
        while span >= task.slice {
            span = span - task.slice;
            // Where nothing else could run, the slice ended earlier than now.
            (task.slice, task.deadline) = (SLICE, now - span + DEADLINE);
        }
        task.slice = task.slice - span;
    }

    fn home(&self, thread: ThreadId) -> Option<CpuIndex> {
        self.tasks.get(thread).and_then(|task| task.cpu)
    }

    fn slice(&self, cpu: CpuIndex) -> Option<Picos> {
        self.running[cpu].map(|thread| self.tasks[thread].slice)
    }

    fn turn(&self) -> Picos {
        SLICE
    }

    fn keeps_apart(&mut self) {
        self.is_apart = true;
    }

    fn stays_near(&mut self, stays: bool) {
        self.is_near = stays;
    }

    fn widen(&mut self, levels: &[LicenseLevel]) {
        self.levels.copy_from_slice(levels);
        self.is_uniform = levels.iter().all(|level| *level == NARROW);
    }

    fn classify(&mut self, thread: ThreadId, class: Class) {
        self.tasks[thread].class = class;
    }

    fn dedicate(&mut self, cpu: CpuIndex, is_dedicated: bool) {
        let core = self.core(cpu);
        self.dedicated[core] = is_dedicated;
    }

    fn clear(&mut self, cpu: CpuIndex) -> Vec<ThreadId> {
        let core = self.core(cpu);
        std::mem::take(&mut self.queues[core]).into_values().collect()
    }
}
