//! Core specialisation on the simulated machine (paper 003): a thread that begins code for which
//! its core has no level is trapped, and waits for a core that has it.

use std::ops::Range;

use dimmer_policy::license::Chance as _;
use dimmer_policy::specialise::sets::{self, Sets};
use dimmer_policy::specialise::{self, Class, Core, Interrupts, Thread};
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_processor::units::{CoreId, LicenseLevel, Nanos, NodeId, Time, whole};

use super::{L0, Machine, Observer, moves, short};
use crate::core::Running;
use crate::program::Segment;
use crate::queue::Target;
use crate::region_moves::Specialising;
use crate::sched::Scheduler;
use crate::{Moment, Picos, Random, SimError};

/// Which cores are wide: the last ones of each package.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WideCores {
    /// This many, spread over packages, all of the highest level.
    Fixed(u32),
    /// As many as the load asks for.
    ByLoad(sets::Settings),
}

/// Which code is wide: what is trapped on narrow cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traps {
    /// All code with 512-bit registers, as XCR0 has it (§3.1). It may ask for the highest level.
    Registers,
    /// What asks for a level by the model's rules, for that level: what a processor would trap that
    /// raised an exception before it changes its clock (§5). It tells as well when a thread has
    /// been quiet for some time.
    Levels,
}

/// How threads are moved to wide cores. Threads are scheduled by MuQSS with classes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Specialise {
    /// Which cores are wide.
    pub wide_cores: WideCores,
    /// Which code is wide.
    pub traps: Traps,
    /// When a thread stops being wide.
    pub phases: specialise::Settings,
    /// Whether the core that is interrupted is drawn at random, as in the paper; otherwise it is
    /// the nearest one.
    pub is_random: bool,
    /// Whether threads stay near their data: a thread whose phase is over goes on where its own
    /// code ran before, and what waits stays at its core for a while ([`specialise::may_take`]).
    pub stays_near: bool,
    /// The time of the trap and the change of class (ns), on the core that the thread leaves.
    pub trap_ns: f64,
    /// The time until the interrupted core looks for work (ns).
    pub interrupt_ns: f64,
}

impl Specialise {
    /// What a trap and the change of class take, and then the other core's interrupt (ns): guesses.
    /// Paper 003 does not say it, and KVM and QEMU take other times than processors.
    pub(crate) const TRAP_NS: f64 = 1000.0;
    pub(crate) const INTERRUPT_NS: f64 = 1000.0;

    /// The time between two looks at how many threads could run: the kernel's tick.
    const LOOK: Picos = Picos::from_ps(1_000_000_000);

    /// As the kernel does it in paper 003, or by another way.
    ///
    /// * `wide_cores`: how many, in the paper's way.
    #[must_use]
    pub fn new(specialising: Specialising, wide_cores: u32, model: &Model) -> Self {
        let taking_over_ns = model.price(moves::BY_KERNEL).map_or(0.0, |ns| ns.value);
        let (trap_ns, interrupt_ns) = (Self::TRAP_NS, Self::INTERRUPT_NS);
        let round_trip = Picos::from_ns(trap_ns + interrupt_ns + 2.0 * taking_over_ns).nanos();
        let by_load = WideCores::ByLoad(sets::Settings::DEFAULT);
        let learning = specialise::Settings::learning(round_trip);
        let told = specialise::Settings { timeout: QUIET, ..learning };
        let (wide_cores, traps, phases, is_random) = match specialising {
            Specialising::Paper => {
                let phases = specialise::Settings::PAPER;
                (WideCores::Fixed(wide_cores), Traps::Registers, phases, true)
            }
            Specialising::Learning => (by_load, Traps::Registers, learning, false),
            Specialising::Told => (by_load, Traps::Levels, told, false),
        };
        let stays_near = specialising != Specialising::Paper;
        Self { wide_cores, traps, phases, is_random, stays_near, trap_ns, interrupt_ns }
    }
}

/// How long a thread is quiet when a processor of the paper's wish (§5) tells so, which is for
/// software to set: a guess.
const QUIET: Nanos = Nanos::from_us(100);

/// What the machine knows of it.
#[derive(Debug)]
pub(super) struct Specialised {
    settings: Specialise,
    threads: Vec<Thread>,
    levels: Vec<LicenseLevel>,
    /// For each package, if the number of wide cores follows the load.
    sets: Vec<Sets>,
    /// Draws the core that is interrupted.
    chance: Random,
}

impl Specialised {
    /// * `packages`: the cores of each package; `cpus`: the CPUs of each core.
    pub(super) fn new(
        settings: Specialise,
        packages: &[Range<usize>],
        cpus: usize,
        levels: usize,
        chance: Random,
    ) -> Self {
        let sets: Vec<Sets> = match settings.wide_cores {
            WideCores::Fixed(_) => Vec::new(),
            WideCores::ByLoad(by) => {
                packages.iter().map(|package| Sets::new(by, package.len(), cpus, levels)).collect()
            }
        };
        let levels = match settings.wide_cores {
            WideCores::Fixed(wide) => fixed(wide, packages, levels),
            WideCores::ByLoad(_) => sets.iter().flat_map(Sets::levels).collect(),
        };
        Self { settings, threads: Vec::new(), levels, sets, chance }
    }

    /// Cores are specialised from now on, or no longer: no thread is in a wide phase then. Returns
    /// the level of each core, and whether threads stay near their data.
    pub(super) fn set_in_force(&mut self, is_in_force: bool) -> (Vec<LicenseLevel>, bool) {
        if is_in_force {
            return (self.levels.clone(), self.settings.stays_near);
        }
        self.threads.iter_mut().for_each(Thread::interrupted);
        (vec![L0; self.levels.len()], false)
    }

    pub(super) fn class(&self, thread: usize) -> Class {
        self.threads.get(thread).map_or(Class::Default, Thread::class)
    }

    fn thread(&mut self, thread: usize) -> &mut Thread {
        if self.threads.len() <= thread {
            self.threads.resize(thread + 1, Thread::new());
        }
        &mut self.threads[thread]
    }
}

/// The levels of cores of which a fixed number is wide.
fn fixed(wide: u32, packages: &[Range<usize>], levels: usize) -> Vec<LicenseLevel> {
    let highest = LicenseLevel::new(short(levels.saturating_sub(1)));
    let mut levels = vec![L0; packages.last().map_or(0, |last| last.end)];
    let mut left = super::index(wide);
    for (index, package) in packages.iter().enumerate() {
        let wide = left.div_ceil(packages.len() - index).min(package.len());
        levels[package.end - wide..package.end].fill(highest);
        left -= wide;
    }
    levels
}

impl super::thread::Thread {
    /// Its CPU time, as the policy takes it.
    fn ran_until(&self) -> Time {
        (Moment::START + self.ran).time()
    }
}

impl<O: Observer> Machine<O> {
    /// The thread is about to execute this code on the core. Returns whether it is trapped there:
    /// then it waits for another core.
    pub(super) fn traps(&mut self, thread: usize, cpu: usize, segment: &Segment) -> bool {
        let (core, _) = self.place(cpu);
        let Some(of) = self.specialised.as_mut().filter(|_| self.mode.specialises) else {
            return false;
        };
        let highest = of.levels.iter().copied().max().unwrap_or(L0);
        let asks = match of.settings.traps {
            Traps::Registers if segment.class >= InstructionClass::Light512 => highest,
            Traps::Registers => L0,
            Traps::Levels => self.processor.rules().level_of(&segment.demand()),
        };
        // Corner case 2: it may run on this CPU alone, so it is allowed there.
        let is_confined = self.threads[thread].pinned.is_some();
        let phases = of.settings.phases;
        let trap = Picos::from_ns(of.settings.trap_ns);
        let now = self.threads[thread].ran_until();
        let is_trapped = asks > of.levels[core] && !is_confined;
        // On wide cores, XCR0 shows nothing; the processor of the wish knows when it was wide last.
        let is_seen = of.settings.traps == Traps::Levels && asks > L0 && !is_confined;
        if !is_trapped && !is_seen {
            return false;
        }
        let this = of.thread(thread);
        let has_changed = this.uses(asks, now, &phases);
        if !is_trapped {
            if has_changed {
                self.scheduler.classify(thread, this.class());
            }
            return false;
        }
        self.scheduler.classify(thread, this.class());
        self.scheduler.trapped(thread, cpu, self.now);
        self.cores[core].delays.delay(self.now, trap);
        self.threads[thread].totals.traps += 1;
        self.interrupts(core, asks);
        true
    }

    /// Makes a wide core that has nothing as wide to run look for work.
    fn interrupts(&mut self, from: usize, level: LicenseLevel) {
        let Some(of) = &mut self.specialised else { return };
        let seen = |core: usize| Core {
            id: CoreId::new(short(core)),
            level: of.levels[core],
            node: Some(NodeId::new(short(self.processor.package(core)))),
            runs: self.cores[core]
                .slots
                .iter()
                .map(|slot| slot.as_ref().map(|running| of.class(running.thread).level()))
                // A CPU without work is what gives way first.
                .min()
                .flatten(),
        };
        let cores: Vec<Core> = (0..self.cores.len()).map(seen).collect();
        let interrupts = if of.settings.is_random {
            Interrupts::Random(whole(of.chance.uniform() * 1e9))
        } else {
            Interrupts::Nearest(|one, other| one.index().abs_diff(other.index()))
        };
        let chosen = specialise::to_interrupt(&cores, &cores[from], level, interrupts);
        if let Some(chosen) = chosen {
            self.interrupt(super::index(chosen.index()));
        }
    }

    /// Makes a core look for work.
    fn interrupt(&mut self, core: usize) {
        let Some(of) = &self.specialised else { return };
        let looks = self.now + Picos::from_ns(of.settings.interrupt_ns);
        let this = &mut self.cores[core];
        this.looks = Some(this.looks.map_or(looks, |sooner| sooner.min(looks)));
        self.schedule(core);
    }

    /// The thread enters the kernel. Returns whether a phase of it ends.
    pub(super) fn enters_kernel(&mut self, thread: usize) -> bool {
        let Some(of) = self.specialised.as_mut().filter(|_| self.mode.specialises) else {
            return false;
        };
        let (phases, now) = (of.settings.phases, self.threads[thread].ran_until());
        let this = of.thread(thread);
        let has_ended = this.calls(false, now, &phases);
        if has_ended {
            self.scheduler.classify(thread, this.class());
        }
        has_ended
    }

    /// The thread calls the kernel and comes back on this CPU. Returns whether a phase of it ends:
    /// then it waits for its next turn.
    pub(super) fn calls_kernel(&mut self, thread: usize, cpu: usize) -> bool {
        let has_ended = self.enters_kernel(thread);
        if has_ended {
            let goes_on = self.scheduler.ends_phase(thread, cpu, self.now);
            if goes_on != cpu {
                self.interrupt(self.place(goes_on).0);
            }
        }
        has_ended
    }

    /// Time has passed while the thread ran: its phase may end.
    pub(super) fn phase_may_end(&mut self, thread: usize) {
        let Some(of) = self.specialised.as_mut().filter(|_| self.mode.specialises) else { return };
        let (phases, now) = (of.settings.phases, self.threads[thread].ran_until());
        let this = of.thread(thread);
        if this.wakes(false, now, &phases) {
            self.scheduler.classify(thread, this.class());
        }
    }

    /// When the thread's phase ends by time, if it runs from now on.
    pub(super) fn phase_due(&self, thread: usize) -> Moment {
        let due = self
            .specialised
            .as_ref()
            .and_then(|of| of.threads.get(thread).and_then(|this| this.due(&of.settings.phases)));
        due.map_or(Moment::MAX, |due| self.now + (due - self.threads[thread].ran_until()).picos())
    }

    /// The core was interrupted to look for work: its CPUs do so that run no wide code.
    pub(super) fn looks_for_work(&mut self, core: usize) -> Result<(), SimError> {
        if self.cores[core].looks.take_if(|looks| *looks <= self.now).is_none() {
            return Ok(());
        }
        let Some(of) = &self.specialised else {
            return (0..self.cores[core].slots.len())
                .try_for_each(|slot| self.keeps_apart(core, slot));
        };
        // On a narrow core, no thread gives way to another.
        let is_wide = of.levels[core] > L0;
        let gives_way = |running: &Running| is_wide && of.class(running.thread).level() == L0;
        let slots = &self.cores[core].slots;
        let look: Vec<usize> =
            (0..slots.len()).filter(|slot| slots[*slot].as_ref().is_none_or(gives_way)).collect();
        for slot in look {
            self.takes_turns(core, slot)?;
            self.fill(core, slot)?;
        }
        Ok(())
    }

    /// Tells the scheduler the levels of the cores, before anything runs.
    pub(super) fn prepare_specialised(&mut self) {
        let Some(of) = self.specialised.as_ref().filter(|_| self.mode.specialises) else { return };
        self.scheduler.widen(&of.levels);
        self.scheduler.stays_near(of.settings.stays_near);
        if !of.sets.is_empty() {
            self.queue.set(Target::Load, Some(self.now + Specialise::LOOK));
        }
    }

    /// Looks how many threads could run, and lets the sets of wide cores follow that.
    pub(super) fn looks_at_load(&mut self) -> Result<(), SimError> {
        if self.threads.iter().all(|thread| thread.totals.finished.is_some()) {
            return Ok(());
        }
        if !self.mode.specialises {
            return Ok(());
        }
        self.moves_on()?;
        let Some(of) = &mut self.specialised else { return Ok(()) };
        if of.sets.is_empty() {
            return Ok(());
        }
        let levels = self.processor.levels();
        let mut runnable = vec![vec![0; levels]; of.sets.len()];
        for (thread, this) in self.threads.iter().enumerate() {
            let is_awake = this.wakes.is_none_or(|wakes| wakes <= self.now);
            let executes = this.waits_for.is_none() || this.spins;
            let could = this.totals.finished.is_none() && executes && is_awake;
            let Some(cpu) = self.scheduler.home(thread).filter(|_| could) else { continue };
            let package =
                self.processor.package(cpu / super::index(self.settings.threads_per_core));
            let needs = of.threads.get(thread).map_or(L0, Thread::needs);
            let level = super::index(needs.index());
            runnable[package][level.min(levels - 1)] += 1;
        }
        let mut has_changed = false;
        for (sets, runnable) in of.sets.iter_mut().zip(&runnable) {
            has_changed |= sets.look(runnable);
        }
        self.queue.set(Target::Load, Some(self.now + Specialise::LOOK));
        if !has_changed {
            return Ok(());
        }
        let levels: Vec<LicenseLevel> = of.sets.iter().flat_map(Sets::levels).collect();
        self.scheduler.widen(&levels);
        let before = std::mem::replace(&mut of.levels, levels);
        let changed: Vec<usize> =
            (0..before.len()).filter(|core| before[*core] != of.levels[*core]).collect();
        // What runs there may have to go elsewhere, and what waits may have to come.
        for core in changed {
            self.advance(core);
            for slot in 0..self.cores[core].slots.len() {
                self.takes_turns(core, slot)?;
                self.fill(core, slot)?;
            }
            self.settle(core);
        }
        Ok(())
    }

    /// Threads that have waited long enough may go elsewhere, and CPUs without work look for them.
    fn moves_on(&mut self) -> Result<(), SimError> {
        self.scheduler.looks(self.now);
        for core in 0..self.cores.len() {
            if self.cores[core].slots.iter().all(Option::is_some) {
                continue;
            }
            self.advance(core);
            for slot in 0..self.cores[core].slots.len() {
                self.fill(core, slot)?;
            }
            self.settle(core);
        }
        Ok(())
    }
}
