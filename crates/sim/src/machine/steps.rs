//! Threads get CPUs, and take their steps there.

use super::{Machine, Observer};
use crate::core::Running;
use crate::program::{Extent, Segment, Step};
use crate::queue::Target;
use crate::sched::Scheduler;
use crate::{Moment, Picos, SimError};

impl<O: Observer> Machine<O> {
    /// Gives an empty CPU a thread to run.
    pub(super) fn fill(&mut self, core: usize, slot: usize) -> Result<(), SimError> {
        let cpu = self.cpu(core, slot);
        while self.cores[core].slots[slot].is_none()
            && let Some((thread, before)) = self.scheduler.next(cpu, self.now)
        {
            let handing_over = self.handing_over(thread);
            let from = before.filter(|_| handing_over.is_none()).map(|cpu| self.place(cpu).0);
            let taking_over = self.taking_over(thread, from, core);
            let takes = handing_over.unwrap_or_default() + taking_over;
            if takes > Picos::ZERO {
                self.cores[core].delays.delay(self.now, takes);
            }
            let slice_ends = self.slice_ends(cpu).min(self.phase_due(thread));
            self.threads[thread].wakes = None;
            if let Some(home) = self.threads[thread].mwaits_on.take() {
                self.leaves_mwait(home, core);
            }
            // A step may have ended while its thread waited: none of its code is left.
            let interrupted = self.threads[thread].interrupted.take();
            if let Some(interrupted) = interrupted.filter(|running| !running.is_over(self.now)) {
                if self.traps(thread, cpu, &interrupted.segment) {
                    self.threads[thread].interrupted = Some(interrupted);
                    continue;
                }
                self.observer.runs(self.now, core, thread, &interrupted.segment);
                self.threads[thread].series.end();
                let over = Moment::MAX;
                self.cores[core].slots[slot] = Some(Running { slice_ends, over, ..interrupted });
            } else {
                self.takes_steps(core, slot, thread, slice_ends)?;
            }
        }
        self.keeps_apart(core, slot)
    }

    /// A thread that has waited by MWAIT on core `home` runs again, on core `on`. If that is
    /// another one, its home is idle as other cores are from now on.
    fn leaves_mwait(&mut self, home: usize, on: usize) {
        self.cores[home].mwaits -= 1;
        if home != on && self.cores[home].is_in_mwait && self.cores[home].mwaits == 0 {
            self.advance(home);
            self.cores[home].idle_since = self.now;
            self.cores[home].deep_at = self.processor.deep_from().map(|from| self.now + from);
            self.settle(home);
        }
    }

    /// The thread's segment is over, but not its time slice.
    pub(super) fn goes_on(&mut self, core: usize, slot: usize) -> Result<(), SimError> {
        if let Some(Running { thread, slice_ends, .. }) = self.cores[core].slots[slot].take() {
            self.takes_steps(core, slot, thread, slice_ends)?;
            if self.cores[core].slots[slot].is_none() {
                self.observer.stops(self.now, core, thread);
            }
        }
        self.fill(core, slot)?;
        self.is_left(core, slot)
    }

    /// Takes the thread's next steps, until one takes time. Meanwhile the thread is on the core,
    /// though in none of its slots.
    fn takes_steps(
        &mut self,
        core: usize,
        slot: usize,
        thread: usize,
        slice_ends: Moment,
    ) -> Result<(), SimError> {
        self.cores[core].is_between = true;
        let taken = self.takes_each(core, slot, thread, slice_ends);
        self.cores[core].is_between = false;
        taken
    }

    /// The thread runs this segment here, or waits for a core that may. Returns whether that takes
    /// time.
    fn starts_segment(
        &mut self,
        core: usize,
        slot: usize,
        thread: usize,
        segment: Segment,
        slice_ends: Moment,
    ) -> bool {
        self.segments += 1;
        let (segment, is_narrowed) = self.in_mode(segment);
        let mut running = Running::new(thread, segment, self.now, slice_ends);
        running.is_narrowed = is_narrowed;
        if running.is_over(self.now) {
            return false;
        }
        if self.traps(thread, self.cpu(core, slot), &segment) {
            self.threads[thread].interrupted = Some(running);
            return true;
        }
        self.needs_data(thread, core);
        running.slice_ends = slice_ends.min(self.phase_due(thread));
        self.tags(thread, core, &segment);
        self.observer.runs(self.now, core, thread, &segment);
        self.cores[core].slots[slot] = Some(running);
        true
    }

    /// Fails if a step of the thread names a core that the machine does not have.
    fn has_core(&self, thread: usize, core: usize) -> Result<(), SimError> {
        if core < self.cores.len() {
            return Ok(());
        }
        let (thread, has) = (self.threads[thread].totals.name.clone(), self.cores.len());
        Err(SimError::NoCore { thread, core, has })
    }

    fn takes_each(
        &mut self,
        core: usize,
        slot: usize,
        thread: usize,
        slice_ends: Moment,
    ) -> Result<(), SimError> {
        // More steps than any program here takes at once.
        const MOST: usize = 100_000;
        for _ in 0..MOST {
            let this = &mut self.threads[thread];
            let drawn = this.series.take().map(Step::Run);
            match drawn.unwrap_or_else(|| this.program.next(self.now, &mut this.chance)) {
                Step::Run(segment) => {
                    if self.starts_segment(core, slot, thread, segment, slice_ends) {
                        return Ok(());
                    }
                }
                Step::Spin(lock, code) => {
                    if !self.takes(thread, lock) {
                        self.no_deadlock(thread)?;
                        self.threads[thread].spins = true;
                        let code = Segment { extent: Extent::Time(Picos::MAX), ..code };
                        self.starts_segment(core, slot, thread, code, slice_ends);
                        return Ok(());
                    }
                }
                Step::Mwait(lock) => {
                    if !self.takes(thread, lock) {
                        self.threads[thread].mwaits_on = Some(core);
                        self.cores[core].mwaits += 1;
                        return self.no_deadlock(thread);
                    }
                }
                Step::Sleep(span) => {
                    let wakes = self.now + span;
                    this.wakes = Some(wakes);
                    self.enters_kernel(thread);
                    self.queue.set(Target::Thread(thread), Some(wakes));
                    return Ok(());
                }
                Step::Lock(lock) => {
                    if !self.takes(thread, lock) {
                        self.enters_kernel(thread);
                        return self.no_deadlock(thread);
                    }
                }
                Step::Enter(site) => {
                    let is_handed_over = self.enters(thread, site, self.cpu(core, slot));
                    self.enters_data(thread, site, is_handed_over);
                    if is_handed_over {
                        return Ok(());
                    }
                }
                Step::Leave(_) => {
                    self.leaves_data(thread);
                    if self.leaves(thread) {
                        return Ok(());
                    }
                }
                Step::Unlock(lock) => self.unlock(thread, lock)?,
                Step::Skip => {}
                Step::Ask(_) | Step::AskBy { .. } if !self.mode.requests_pstates => {}
                Step::Ask(wish) => self.ask(core, core, wish)?,
                Step::AskBy { core: of, by, wish } => {
                    self.has_core(thread, of.max(by))?;
                    self.ask_by(core, of, by, wish)?;
                }
                Step::Go(cpu) => {
                    self.has_core(thread, self.place(cpu).0)?;
                    if cpu != self.cpu(core, slot) {
                        self.threads[thread].pinned = Some(cpu);
                        self.enters_kernel(thread);
                        self.queue.set(Target::Thread(thread), Some(self.now));
                        return Ok(());
                    }
                }
                Step::Call(call) => self.call(core, call),
                Step::Served(came) => {
                    let latency = self.now - came;
                    self.threads[thread].totals.served(latency);
                    // A request comes and goes by the kernel.
                    if self.calls_kernel(thread, self.cpu(core, slot)) {
                        return Ok(());
                    }
                }
                Step::Mark(mark) => {
                    if self.passes(thread, mark, self.cpu(core, slot)) {
                        return Ok(());
                    }
                }
                Step::SystemCall => {
                    if self.calls_kernel(thread, self.cpu(core, slot)) {
                        return Ok(());
                    }
                }
                Step::End => {
                    this.totals.finished = Some(self.now);
                    self.ends(thread);
                    let kept = self.locks.held_by(thread);
                    let name = || self.threads[thread].totals.name.clone();
                    let at_us = self.now_us();
                    let error = |lock| SimError::KeepsLock { at_us, thread: name(), lock };
                    return kept.map_or(Ok(()), |lock| Err(error(lock)));
                }
            }
        }
        let (at_us, thread) = (self.now_us(), self.threads[thread].totals.name.clone());
        Err(SimError::NoProgress { at_us, thread })
    }
}
