//! Marks that threads pass, and migrations there: paper 004, §3.3 and §4.1. The decisions are those
//! of `policy::phases`.

use dimmer_policy::phases::{self, Counters, Decision, Follower, Leader, MarkId, Plan};
use dimmer_processor::units::Time;

use super::Machine;
use crate::Observer;
use crate::queue::Target;

/// How threads migrate at marks.
#[derive(Clone, Debug)]
pub struct Phases {
    /// By what.
    pub guide: Guide,
    /// The CPU with the fast core.
    pub fast_cpu: usize,
    /// The CPU with the slow core.
    pub slow_cpu: usize,
}

/// By what threads migrate at marks. These are known by their numbers in
/// [`Step::Mark`](crate::Step::Mark).
#[derive(Clone, Debug)]
pub enum Guide {
    /// By a plan that stays, as in the paper.
    Plan(Plan),
    /// By what the threads learn while they run.
    Leader(Leader),
}

impl Phases {
    const fn cpu(&self, core: phases::Core) -> usize {
        match core {
            phases::Core::Fast => self.fast_cpu,
            phases::Core::Slow => self.slow_cpu,
        }
    }

    fn core(&self, cpu: usize) -> phases::Core {
        if cpu == self.slow_cpu { phases::Core::Slow } else { phases::Core::Fast }
    }
}

/// What a thread's migrations depend on.
#[derive(Debug, Default)]
pub(super) struct Migrations {
    /// The policy's part; `None`: the thread has passed no mark.
    passer: Option<Passer>,
    /// Once it has migrated: the CPU that it was pinned to before, if it was.
    home: Option<Option<usize>>,
    /// The mark from which it is on the way to another CPU.
    pub(super) under_way: Option<MarkId>,
}

/// A thread that passes marks, for each [`Guide`].
#[derive(Debug)]
enum Passer {
    Thread(phases::Thread),
    Follower(Box<Follower>),
}

fn reading(now: Time) -> Counters {
    Counters { time: Some(now - Time::START), ..Counters::default() }
}

impl Passer {
    fn new(guide: &Guide, on: phases::Core, now: Time) -> Self {
        match guide {
            Guide::Plan(_) => Self::Thread(phases::Thread::new(on, now)),
            Guide::Leader(_) => Self::Follower(Box::new(Follower::new(on, now))),
        }
    }

    fn pass(&mut self, mark: MarkId, on: phases::Core, now: Time, guide: &mut Guide) -> Decision {
        match (self, guide) {
            (Self::Thread(thread), Guide::Plan(plan)) => {
                thread.set_core(on);
                thread.pass(mark, now, plan)
            }
            (Self::Follower(follower), Guide::Leader(leader)) => {
                let decision = follower.pass(mark, on, reading(now), leader.plan());
                if follower.is_due() {
                    leader.take_in(follower.take(), now);
                }
                decision
            }
            _ => Decision::Stay,
        }
    }
}

impl<O: Observer> Machine<O> {
    /// The thread passes a mark on this CPU. Returns whether it migrates to another one.
    pub(super) fn passes(&mut self, thread: usize, mark: usize, cpu: usize) -> bool {
        if !self.mode.migrates {
            return self.goes_home(thread, cpu);
        }
        let Some(phases) = &mut self.settings.phases else { return false };
        let this = &mut self.threads[thread];
        let (on, now) = (phases.core(cpu), self.now.time());
        let passer =
            this.migrations.passer.get_or_insert_with(|| Passer::new(&phases.guide, on, now));
        let mark = MarkId::new(u32::try_from(mark).unwrap_or(u32::MAX));
        let Decision::Move(core) = passer.pass(mark, on, now, &mut phases.guide) else {
            return false;
        };
        let to = phases.cpu(core);
        if to == cpu {
            return false;
        }
        this.migrations.home.get_or_insert(this.pinned);
        this.pinned = Some(to);
        this.migrations.under_way = Some(mark);
        this.totals.migrations += 1;
        self.queue.set(Target::Thread(thread), Some(self.now));
        true
    }

    /// Threads no longer migrate at marks: the thread goes back to where it was before its first
    /// migration. Returns whether that is another CPU.
    fn goes_home(&mut self, thread: usize, cpu: usize) -> bool {
        let this = &mut self.threads[thread];
        this.migrations.passer = None;
        let Some(home) = this.migrations.home.take() else { return false };
        this.pinned = home;
        let is_elsewhere = home.is_some_and(|home| home != cpu);
        if is_elsewhere {
            this.totals.migrations += 1;
            self.queue.set(Target::Thread(thread), Some(self.now));
        }
        is_elsewhere
    }

    /// A thread on the way from a mark arrives at this CPU at this time.
    pub(super) fn arrives(&mut self, thread: usize, mark: MarkId, cpu: usize, at: Time) {
        let Some(phases) = &self.settings.phases else { return };
        let on = phases.core(cpu);
        if let Some(Passer::Follower(follower)) = &mut self.threads[thread].migrations.passer {
            follower.arrive(mark, on, reading(at));
        }
    }
}
