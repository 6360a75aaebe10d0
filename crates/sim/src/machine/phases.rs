//! Marks that threads pass, and migrations there: paper 004, §3.3 and §4.1. The decisions are those
//! of `policy::phases`.

use dimmer_policy::phases::{self, Decision, MarkId, Plan};

use super::Machine;
use crate::Observer;
use crate::queue::Target;

/// How threads migrate at marks.
#[derive(Clone, Debug)]
pub struct Phases {
    /// What is done at each mark, by its number in [`Step::Mark`](crate::Step::Mark).
    pub plan: Plan,
    /// The CPU with the fast core.
    pub fast_cpu: usize,
    /// The CPU with the slow core.
    pub slow_cpu: usize,
}

impl Phases {
    fn cpu(&self, core: phases::Core) -> usize {
        match core {
            phases::Core::Fast => self.fast_cpu,
            phases::Core::Slow => self.slow_cpu,
        }
    }
}

/// What a thread's migrations depend on.
#[derive(Debug, Default)]
pub(super) struct Migrations {
    /// The policy's part; `None`: the thread has passed no mark.
    thread: Option<phases::Thread>,
    /// Whether it is on the way to another CPU.
    pub(super) is_under_way: bool,
}

impl<O: Observer> Machine<O> {
    /// The thread passes a mark on this CPU. Returns whether it migrates to another one.
    pub(super) fn passes(&mut self, thread: usize, mark: usize, cpu: usize) -> bool {
        let Some(phases) = &self.settings.phases else { return false };
        let this = &mut self.threads[thread];
        let on = if cpu == phases.slow_cpu { phases::Core::Slow } else { phases::Core::Fast };
        let now = self.now.time();
        let of_policy = this.migrations.thread.get_or_insert(phases::Thread::new(on, now));
        of_policy.set_core(on);
        let mark = MarkId::new(u32::try_from(mark).unwrap_or(u32::MAX));
        let Decision::Move(core) = of_policy.pass(mark, now, &phases.plan) else { return false };
        let to = phases.cpu(core);
        if to == cpu {
            return false;
        }
        this.pinned = Some(to);
        this.migrations.is_under_way = true;
        this.totals.migrations += 1;
        self.queue.set(Target::Thread(thread), Some(self.now));
        true
    }
}
