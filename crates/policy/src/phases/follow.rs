//! Following a program: its threads pass marks, and what they learn changes the plan.
//!
//! A [`Follower`] is one thread's part: it times edges and decides. A [`Leader`] is the program's:
//! it sums up what threads hand over, and plans again when enough has come.

use std::collections::{BTreeMap, BTreeSet};

use dimmer_processor::units::{Nanos, Time};

use super::{Core, Counters, Counts, Decision, Flow, Learned, MarkId, Plan, Settings, Thread};

/// The number of marks that a thread passes until it hands over what it has counted: so that
/// threads seldom meet there. A guess.
const HAND_OVER: u32 = 64;

/// Calls of each mark from one look to the next, on average: enough for a mean that some
/// interruptions do not spoil. A guess.
const CALLS: u64 = 64;

/// The shortest time from one look to the next. A guess: a plan for 1000 edges takes a millisecond
/// or less.
const SHORTEST: Nanos = Nanos::from_ms(10);

/// Edges, by the kind of core on which they ran.
pub type Edges = BTreeMap<(Core, (MarkId, MarkId)), Counts>;

/// A thread that passes marks, times what lies between, and goes where a plan wants it.
#[derive(Clone, Debug)]
pub struct Follower {
    thread: Thread,
    on_fast: Flow,
    on_slow: Flow,
    passed: u32,
}

impl Follower {
    /// A thread on this core that has passed no mark yet.
    ///
    /// * `overhead`: what passing a mark costs, as for [`Flow::new`].
    #[must_use]
    pub fn new(core: Core, now: Time, overhead: Counters) -> Self {
        let thread = Thread::new(core, now);
        let (on_fast, on_slow) = (Flow::new(overhead), Flow::new(overhead));
        Self { thread, on_fast, on_slow, passed: 0 }
    }

    /// The thread passes a mark. If the decision is to move, [`Follower::is_on`] must follow.
    ///
    /// * `core`: where it is. If it was elsewhere at the mark before, because it came home for a
    ///   system call, the edge counts on neither core.
    /// * `reading`: what its clock shows.
    pub fn pass(&mut self, mark: MarkId, core: Core, reading: Counters, plan: &Plan) -> Decision {
        if core != self.thread.core() {
            self.flow(self.thread.core()).interrupt();
            self.thread.set_core(core);
        }
        self.flow(core).pass(mark, reading);
        self.passed = self.passed.saturating_add(1);
        let now = Time::START + reading.time.unwrap_or(Nanos::ZERO);
        self.thread.pass(mark, now, plan)
    }

    /// After a decision to move at this mark, or another interruption: the thread is on this core,
    /// and goes on from the mark.
    pub fn is_on(&mut self, mark: MarkId, core: Core, reading: Counters) {
        self.on_fast.interrupt();
        self.on_slow.interrupt();
        self.thread.set_core(core);
        self.flow(core).pass(mark, reading);
    }

    /// Whether the thread has counted so much that it should hand it over.
    #[must_use]
    pub const fn is_due(&self) -> bool {
        self.passed >= HAND_OVER
    }

    /// Takes what was counted.
    pub fn take(&mut self) -> Edges {
        self.passed = 0;
        let mut edges = Edges::new();
        for core in [Core::Fast, Core::Slow] {
            for (edge, counts) in self.flow(core).take() {
                edges.entry((core, edge)).or_insert(Counts::NONE).add(&counts);
            }
        }
        edges
    }

    const fn flow(&mut self, core: Core) -> &mut Flow {
        match core {
            Core::Fast => &mut self.on_fast,
            Core::Slow => &mut self.on_slow,
        }
    }
}

/// What a program's threads have learned, and the plan by which they go.
#[derive(Clone, Debug)]
pub struct Leader {
    learned: Learned,
    plan: Plan,
    edges: Edges,
    looked: Time,
}

impl Leader {
    /// Nothing is known, so threads stay.
    #[must_use]
    pub fn new(settings: Settings, now: Time) -> Self {
        let (learned, plan) = (Learned::default(), Plan::new(settings));
        Self { learned, plan, edges: Edges::new(), looked: now }
    }

    /// Takes in what a thread has counted. Returns whether the plan is another one.
    ///
    /// # Cost
    /// Once in a while, that of [`Plan::update`].
    pub fn take_in(&mut self, edges: Edges, now: Time) -> bool {
        for (edge, counts) in edges {
            self.edges.entry(edge).or_insert(Counts::NONE).add(&counts);
        }
        let calls: u64 = self.edges.values().map(|counts| counts.calls).sum();
        let starts: BTreeSet<MarkId> = self.edges.keys().map(|(_, (start, _))| *start).collect();
        let is_enough = calls >= CALLS * u64::try_from(starts.len()).unwrap_or(u64::MAX);
        if !is_enough || now - self.looked < SHORTEST {
            return false;
        }
        self.looked = now;
        let edges = std::mem::take(&mut self.edges).into_iter();
        self.learned.look(edges.map(|((core, edge), counts)| (core, edge, counts)));
        let before = self.plan.clone();
        self.plan.update(&self.learned);
        before != self.plan
    }

    /// The plan.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What is known of the program's edges.
    #[must_use]
    pub const fn learned(&self) -> &Learned {
        &self.learned
    }
}

#[cfg(test)]
mod tests;
