//! The oracle's knowledge: when code on a core will ask for a higher level, and what runs there
//! until then.
//!
//! The oracle follows each CPU's threads through copies of their programs: the running thread, the
//! threads that wait for their turn, the sleeping threads, and the threads that wait for a lock. A
//! thread gets a lock when the owner and the earlier waiters will have released it. The forecast
//! follows the programs and assumes the clock of L0, time slices of the scheduler's length, and
//! turns in the order in which threads become ready. A thread that is not pinned is expected on the
//! CPU on which it last ran. Locks taken in the future are assumed free, and threads stay on their
//! CPUs.

use dimmer_policy::license::oracle::{Gap, Prices};
use dimmer_processor::units::LicenseLevel;

use super::{L0, Machine, Observer, Thread};
use crate::core::Running;
use crate::program::{Extent, Program, Segment, Step};
use crate::sched::Scheduler as _;
use crate::{Moment, Picos, Random};

/// Maximum number of steps to look ahead on each CPU: more than any scenario's gap has.
const LOOK_AHEAD: usize = 1000;

/// A thread followed into the future. Times are relative to now (ns).
#[derive(Debug)]
struct Followed {
    program: Box<dyn Program>,
    chance: Random,
    /// When it can run.
    ready: f64,
    /// The rest of its current code.
    code: Option<Code>,
}

/// The rest of a stretch of code.
#[derive(Clone, Copy, Debug)]
struct Code {
    level: LicenseLevel,
    /// How long it still takes, or when it ends if its extent is a time.
    left: Left,
    /// The share of its time that depends on the clock.
    scaled: f64,
}

#[derive(Clone, Copy, Debug)]
enum Left {
    Work(f64),
    Until(f64),
}

/// The forecast for a CPU.
#[derive(Clone, Copy, Debug, Default)]
struct Foretold {
    gap: Gap,
    /// Whether the gap ends because code asks for a higher level.
    is_asked: bool,
}

/// How far to look ahead.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Until this much time has passed.
    ns: f64,
    /// Until code whose speed depends on the clock has run for this long.
    scaled_ns: f64,
}

impl<O: Observer> Machine<O> {
    /// How long, at the clock of L0, until code on the core asks for more than this level. Stops
    /// earlier, when it is certain that keeping a higher level does not pay.
    pub(super) fn gap(&self, core: usize, asked: LicenseLevel, prices: &Prices) -> Gap {
        let cpus = self.cores[core].slots.len();
        let pays_ns =
            if prices.slower > 0.0 { prices.changes_ns / prices.slower } else { f64::MAX };
        let limits = Limits { ns: f64::MAX, scaled_ns: pays_ns * cpus as f64 };
        let look =
            |limits: Limits| (0..cpus).map(move |slot| self.foretell(core, slot, asked, limits));
        let asks = look(limits).filter(|cpu| cpu.is_asked).map(|cpu| cpu.gap.ns);
        let first = asks.min_by(f64::total_cmp);
        let limits = Limits { ns: first.unwrap_or(f64::MAX), ..limits };
        let (mut gap, mut busy) = (Gap::default(), 0.0);
        for cpu in look(limits) {
            gap.ns = gap.ns.max(cpu.gap.ns);
            gap.scaled_ns += cpu.gap.scaled_ns;
            busy += f64::from(u8::from(cpu.gap.scaled_ns > 0.0));
        }
        // The average loss per busy hardware thread.
        gap.scaled_ns /= f64::max(busy, 1.0);
        gap
    }

    /// Forecasts a CPU until code there asks for more than this level.
    fn foretell(&self, core: usize, slot: usize, asked: LicenseLevel, limits: Limits) -> Foretold {
        let running = self.cores[core].slots[slot].as_ref();
        let mut threads = self.followed(self.cpu(core, slot), running);
        let mut foretold = Foretold::default();
        let Gap { ns: now, scaled_ns } = &mut foretold.gap;
        // The thread that has its turn, and when the turn ends if others wait.
        let mut turn = running.map(|running| (0, self.ns_until(running.slice_ends)));
        for _ in 0..LOOK_AHEAD {
            if *now >= limits.ns || *scaled_ns > limits.scaled_ns {
                break;
            }
            let Some((this, turn_ends)) = turn.or_else(|| Some((first(&threads)?, f64::MAX)))
            else {
                break;
            };
            let waits = |(index, other): (usize, &Followed)| (index != this).then_some(other.ready);
            let other = threads.iter().enumerate().filter_map(waits).fold(f64::MAX, f64::min);
            let thread = &mut threads[this];
            *now = now.max(thread.ready);
            let slice_ends = other.max(*now) + self.scheduler.turn().ns();
            turn = Some((this, turn_ends.min(slice_ends)));
            let Some(code) = &mut thread.code else {
                let then = self.now + Picos::from_ns(*now);
                match thread.program.next(then, &mut thread.chance) {
                    Step::Run(segment) => thread.code = Some(self.code(core, &segment, *now)),
                    Step::Sleep(span) => {
                        thread.ready = *now + span.ns();
                        turn = None;
                    }
                    Step::End => {
                        threads.remove(this);
                        turn = None;
                    }
                    Step::Lock(_) | Step::Spin(..) | Step::Mwait(_) | Step::Unlock(_) => {}
                    Step::Call(_) | Step::Ask(_) | Step::AskBy { .. } | Step::Go(_) => {}
                    Step::Served(_) | Step::SystemCall | Step::Skip => {}
                    Step::Enter(_) | Step::Leave(_) | Step::Mark(_) => {}
                }
                continue;
            };
            if code.level > asked {
                foretold.is_asked = true;
                break;
            }
            let whole = match code.left {
                Left::Work(ns) => ns,
                Left::Until(end) => (end - *now).max(0.0),
            };
            let turn_ends = turn_ends.min(slice_ends);
            let span = whole.min(turn_ends - *now).min(limits.ns - *now).max(0.0);
            *now += span;
            *scaled_ns += span * code.scaled;
            if span >= whole {
                thread.code = None;
            } else {
                code.left = match code.left {
                    Left::Work(ns) => Left::Work(ns - span),
                    until => until,
                };
                thread.ready = *now;
                turn = None;
            }
        }
        foretold
    }

    /// The threads that will run on this CPU, the running one first.
    fn followed(&self, cpu: usize, running: Option<&Running>) -> Vec<Followed> {
        let of = |thread: &Thread, ready: f64, code: Option<&Running>| Followed {
            program: thread.program.copy(),
            chance: thread.chance.clone(),
            ready,
            code: code.map(|running| self.rest(self.place(cpu).0, running)),
        };
        let runs = running.map(|running| of(&self.threads[running.thread], 0.0, Some(running)));
        let is_running = |index: usize| running.is_some_and(|running| running.thread == index);
        let others = self.threads.iter().enumerate().filter_map(|(index, thread)| {
            let home = thread.pinned.or_else(|| self.scheduler.home(index));
            if home != Some(cpu) || is_running(index) {
                return None;
            }
            let ready = self.ready_in(self.place(cpu).0, index)?;
            Some(of(thread, ready, thread.interrupted.as_ref()))
        });
        runs.into_iter().chain(others).collect()
    }

    /// When a thread that does not run can run (ns from now), if that is known. Code is assumed to
    /// run at the clocks of this core's package.
    fn ready_in(&self, core: usize, index: usize) -> Option<f64> {
        let thread = &self.threads[index];
        match (thread.waits_for, thread.wakes) {
            (Some(_), _) if thread.spins => Some(0.0),
            (Some(lock), _) => self.gets_in(core, index, lock),
            (None, Some(wakes)) => Some(self.ns_until(wakes)),
            (None, None) => thread.interrupted.is_some().then_some(0.0),
        }
    }

    /// When a thread gets the lock that it waits for (ns from now), if that is known.
    fn gets_in(&self, core: usize, index: usize, lock: usize) -> Option<f64> {
        self.locks.before(lock, index).try_fold(0.0, |now, holder| {
            let waits = &self.threads[holder];
            let begins = if waits.waits_for == Some(lock) { now } else { self.begins(holder)? };
            self.gives_back(core, holder, lock, begins.max(now))
        })
    }

    /// When the owner of a lock goes on (ns from now).
    fn begins(&self, owner: usize) -> Option<f64> {
        let thread = &self.threads[owner];
        if thread.waits_for.is_some() {
            return None;
        }
        Some(thread.wakes.map_or(0.0, |wakes| self.ns_until(wakes)))
    }

    /// When a thread that goes on at `begins` releases a lock (ns from now).
    fn gives_back(&self, core: usize, index: usize, lock: usize, begins: f64) -> Option<f64> {
        let thread = &self.threads[index];
        let running = self.cores.iter().find_map(|core| {
            let running = core.slots.iter().flatten().find(|running| running.thread == index)?;
            // `left` is counted up to the core's last advance.
            let left = running.left - running.rate * (self.now - core.since).as_f64();
            Some(Running { left: left.max(0.0), ..*running })
        });
        // What a thread executes while it spins is over once it has the lock.
        let code = running.or(thread.interrupted).filter(|_| !thread.spins);
        let code = code.map(|running| self.rest(core, &running));
        let (mut program, mut chance) = (thread.program.copy(), thread.chance.clone());
        let after = |now: f64, code: Code| match code.left {
            Left::Work(ns) => now + ns,
            Left::Until(end) => now.max(end),
        };
        let mut now = code.map_or(begins, |code| after(begins, code));
        for _ in 0..LOOK_AHEAD {
            let then = self.now + Picos::from_ns(now);
            match program.next(then, &mut chance) {
                Step::Run(segment) => now = after(now, self.code(core, &segment, now)),
                Step::Sleep(span) => now += span.ns(),
                Step::Unlock(of) if of == lock => return Some(now),
                Step::End => return None,
                Step::Lock(_) | Step::Spin(..) | Step::Mwait(_) | Step::Unlock(_) => {}
                Step::Call(_) | Step::Ask(_) | Step::AskBy { .. } | Step::Go(_) => {}
                Step::Served(_) | Step::SystemCall | Step::Skip => {}
                Step::Enter(_) | Step::Leave(_) | Step::Mark(_) => {}
            }
        }
        None
    }

    /// The rest of code that has started. A thread that spins executes until it gets its lock.
    fn rest(&self, core: usize, running: &Running) -> Code {
        let extent = match running.segment.extent {
            Extent::Time(_) => Extent::Time(running.ends - self.now),
            Extent::Instructions(_) => Extent::Instructions(running.left),
        };
        let code = self.code(core, &Segment { extent, ..running.segment }, 0.0);
        let thread = &self.threads[running.thread];
        match thread.waits_for.filter(|_| thread.spins) {
            Some(lock) => {
                let gets_in = self.gets_in(core, running.thread, lock);
                Code { left: Left::Until(gets_in.unwrap_or(f64::MAX)), ..code }
            }
            None => code,
        }
    }

    /// Code that starts at `now`.
    fn code(&self, core: usize, segment: &Segment, now: f64) -> Code {
        let scaled_ns = 1.0 / (segment.ipc * self.processor.ghz(L0, self.active(core)));
        let each_ns = scaled_ns + segment.memory_ns;
        Code {
            level: self.processor.rules().level_of(&segment.demand()),
            left: match segment.extent {
                Extent::Time(span) => Left::Until(now + span.ns()),
                Extent::Instructions(n) => Left::Work(n * each_ns),
            },
            scaled: scaled_ns / each_ns,
        }
    }

    /// The time until a moment (ns).
    fn ns_until(&self, moment: Moment) -> f64 {
        if moment == Moment::MAX {
            return f64::MAX;
        }
        (moment - self.now).ns()
    }
}

/// The thread that gets the next turn if no thread has one: the first to be ready.
fn first(threads: &[Followed]) -> Option<usize> {
    let ready = |index: &usize| threads[*index].ready;
    (0..threads.len()).min_by(|one, other| ready(one).total_cmp(&ready(other)))
}
