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

/// The shortest time from one look to the next, and for each edge that is known. Guesses: a plan
/// takes some microseconds for each edge, so planning takes a few percent of one thread's time at
/// most.
const SHORTEST: Nanos = Nanos::from_ms(10);
const SHORTEST_OF_EDGE: Nanos = Nanos::from_us(200);

/// The weight of the cost that was measured before the program started, in migrations. A guess.
const MEASURED: f64 = 16.0;

/// The weight that migrations keep from one look to the next: half of it is gone after 34. So where
/// they turned out dear, they are tried again. A guess.
const KEEP: f64 = 0.98;

/// The most migrations that count, so that a change is soon known. A guess.
const MOST: f64 = 64.0;

/// What a thread has counted.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// Edges, by the kind of core on which they ran.
    edges: BTreeMap<(Core, (MarkId, MarkId)), Counts>,
    /// Migrations, and the time that they took.
    migrations: u32,
    migrating: Nanos,
}

impl Counted {
    fn add(&mut self, other: Self) {
        for (edge, counts) in other.edges {
            self.edges.entry(edge).or_insert(Counts::NONE).add(&counts);
        }
        self.migrations = self.migrations.saturating_add(other.migrations);
        self.migrating += other.migrating;
    }
}

/// A thread that passes marks, times what lies between, and goes where a plan wants it.
#[derive(Clone, Debug)]
pub struct Follower {
    thread: Thread,
    on_fast: Flow,
    on_slow: Flow,
    passed: u32,
    migrations: u32,
    migrating: Nanos,
    /// When it last decided to migrate.
    left: Time,
}

impl Follower {
    /// A thread on this core that has passed no mark yet. What passing a mark costs counts to the
    /// edges on either core.
    #[must_use]
    pub fn new(core: Core, now: Time) -> Self {
        let thread = Thread::new(core, now);
        let flow = || Flow::new(Counters::default());
        let (on_fast, on_slow) = (flow(), flow());
        Self {
            thread,
            on_fast,
            on_slow,
            passed: 0,
            migrations: 0,
            migrating: Nanos::ZERO,
            left: now,
        }
    }

    /// The thread passes a mark. If the decision is to move, [`Follower::arrive`] must follow.
    ///
    /// * `core`: where it is. If it was elsewhere at the mark before, because it came home for a
    ///   system call, the edge counts on that core: so long it takes if it starts there.
    /// * `reading`: what its clock shows.
    pub fn pass(&mut self, mark: MarkId, core: Core, reading: Counters, plan: &Plan) -> Decision {
        let before = self.thread.core();
        self.flow(before).pass(mark, reading);
        if core != before {
            self.flow(before).interrupt();
            self.thread.set_core(core);
            self.flow(core).pass(mark, reading);
        }
        self.passed = self.passed.saturating_add(1);
        self.left = time(&reading);
        self.thread.pass(mark, self.left, plan)
    }

    /// The thread has arrived where the decision at this mark has sent it, or is still where it
    /// was, and goes on. If it has arrived, the time in between is that of a migration: it has what
    /// no measurement before the program's start has, as waiting for a CPU that others use.
    pub fn arrive(&mut self, mark: MarkId, core: Core, reading: Counters) {
        if core == self.thread.core() {
            self.migrations = self.migrations.saturating_add(1);
            self.migrating += time(&reading) - self.left;
        }
        self.resume(mark, core, reading);
    }

    /// The thread goes on from this mark after something that belongs to no edge.
    pub fn resume(&mut self, mark: MarkId, core: Core, reading: Counters) {
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
    pub fn take(&mut self) -> Counted {
        let mut counted = Counted {
            edges: BTreeMap::new(),
            migrations: std::mem::take(&mut self.migrations),
            migrating: std::mem::take(&mut self.migrating),
        };
        self.passed = 0;
        for core in [Core::Fast, Core::Slow] {
            for (edge, counts) in self.flow(core).take() {
                counted.edges.entry((core, edge)).or_insert(Counts::NONE).add(&counts);
            }
        }
        counted
    }

    const fn flow(&mut self, core: Core) -> &mut Flow {
        match core {
            Core::Fast => &mut self.on_fast,
            Core::Slow => &mut self.on_slow,
        }
    }
}

/// What a reading's clock shows.
fn time(reading: &Counters) -> Time {
    Time::START + reading.time.unwrap_or(Nanos::ZERO)
}

/// What a program's threads have learned, and the plan by which they go.
#[derive(Clone, Debug)]
pub struct Leader {
    settings: Settings,
    learned: Learned,
    plan: Plan,
    plans: u32,
    counted: Counted,
    looked: Time,
    /// Migrations, faded, and the mean of what they took (ns).
    migrations: f64,
    migration_ns: f64,
}

impl Leader {
    /// Nothing is known, so threads stay.
    #[must_use]
    pub fn new(settings: Settings, now: Time) -> Self {
        Self {
            settings,
            learned: Learned::default(),
            plan: Plan::new(settings),
            plans: 0,
            counted: Counted::default(),
            looked: now,
            migrations: 0.0,
            migration_ns: 0.0,
        }
    }

    /// Takes in what a thread has counted, and plans again if it is time.
    ///
    /// # Cost
    /// O(n log n) in the thread's edges, and once in a while that of [`Plan::update`].
    pub fn take_in(&mut self, counted: Counted, now: Time) {
        self.counted.add(counted);
        let edges = u64::try_from(self.learned.edges()).unwrap_or(u64::MAX);
        let shortest = SHORTEST.max(SHORTEST_OF_EDGE * edges);
        if now - self.looked < shortest {
            return;
        }
        let edges = &self.counted.edges;
        let calls: u64 = edges.values().map(|counts| counts.calls).sum();
        let starts: BTreeSet<MarkId> = edges.keys().map(|(_, (start, _))| *start).collect();
        if calls < CALLS * u64::try_from(starts.len()).unwrap_or(u64::MAX) {
            return;
        }
        self.looked = now;
        let counted = std::mem::take(&mut self.counted);
        self.learn_cost(counted.migrations, counted.migrating);
        let edges = counted.edges.into_iter();
        self.learned.look(edges.map(|((core, edge), counts)| (core, edge, counts)));
        self.plan.update(&self.learned, self.cost());
        self.plans = self.plans.wrapping_add(1);
    }

    fn learn_cost(&mut self, migrations: u32, took: Nanos) {
        self.migrations *= KEEP;
        if migrations > 0 {
            let sum = self.migrations + f64::from(migrations);
            self.migration_ns += (took.as_f64() - f64::from(migrations) * self.migration_ns) / sum;
            self.migrations = sum.min(MOST);
        }
    }

    /// What a migration costs one way: as it was measured before, and as it has turned out since.
    fn cost(&self) -> Nanos {
        let before = MEASURED * self.settings.cost.as_f64();
        let since = self.migrations * self.migration_ns;
        Nanos::rounded((before + since) / (MEASURED + self.migrations))
    }

    /// The plan.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The number of the plan: one more for each.
    #[must_use]
    pub const fn plans(&self) -> u32 {
        self.plans
    }

    /// What is known of the program's edges.
    #[must_use]
    pub const fn learned(&self) -> &Learned {
        &self.learned
    }
}

#[cfg(test)]
mod tests;
