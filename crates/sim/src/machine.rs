//! The machine: cores, threads, and the events that change what they do.

mod ahead;
mod clocks;
mod core_scheduling;
mod locks;
mod mode;
mod moves;
mod phases;
mod processor;
mod regions;
mod series;
mod settings;
mod software;
mod specialised;
mod steps;
mod thread;

use std::ops::Range;

use dimmer_policy::license::Chance as _;
use dimmer_policy::license::hardware::PowerControl;
use dimmer_processor::model::{Missing, Model};
use dimmer_processor::power::PowerCurve;
use dimmer_processor::units::{LicenseLevel, Time};

use self::locks::Locks;
pub use self::mode::Mode;
use self::moves::Moves;
pub use self::phases::{Guide, Phases};
use self::processor::Processor;
use self::regions::Regions;
pub use self::settings::Settings;
use self::specialised::Specialised;
pub use self::specialised::{Specialise, Traps, WideCores};
use self::thread::Thread;
pub use self::thread::ThreadTotals;
use crate::core::{Act, Core, Running, Totals};
use crate::energy::{Energy, Meter, NoEnergy, Source};
use crate::governor::Software;
use crate::points::Points;
use crate::program::Narrowing;
use crate::queue::{Queue, Target};
use crate::sched::{Scheduler, Started, Topology};
use crate::{Moment, Observer, Picos, Random, Ruling, Scheduling, SimError, State, index};

const L0: LicenseLevel = LicenseLevel::new(0);

/// Why a machine no longer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// No event is pending.
    Done,
    /// The end of the requested time was reached.
    Reached,
    /// The caller stopped it before that.
    Stopped,
}

/// What the cores of a package share.
#[derive(Debug, Default)]
struct Package {
    control: PowerControl,
    /// Cores that execute something.
    active: u32,
    /// When the power control first decides about raised clocks.
    raises_from: Moment,
}

/// A processor that runs threads.
#[derive(Debug)]
pub struct Machine<O> {
    processor: Processor,
    /// The cost for a CPU to take over a thread from another one, where the model gives it.
    moves: Moves,
    /// The data of each region (KiB), where the scenario says it.
    region_kib: Vec<Option<u64>>,
    settings: Settings,
    packages: Vec<Package>,
    chance: Random,
    cores: Vec<Core>,
    threads: Vec<Thread>,
    locks: Locks,
    scheduler: Started,
    queue: Queue,
    now: Moment,
    /// The number of segments started.
    segments: u64,
    /// P-states that software requests, if the model has them.
    points: Option<Points>,
    /// The marked regions and what decides about them, if anything does.
    regions: Option<Regions>,
    /// What is known of threads and cores, if cores are specialised.
    specialised: Option<Specialised>,
    /// Whether threads may run series of segments by one event.
    has_series: bool,
    /// What is in force of the mechanisms that it has.
    mode: Mode,
    /// What is narrower in modes with narrower code.
    narrowing: Option<Narrowing>,
    /// The P-state that each core requests at the start.
    wishes: Vec<Option<usize>>,
    /// The power meter, if the model gives power.
    meter: Result<Meter, Missing>,
    observer: O,
}

impl<O: Observer> Machine<O> {
    /// A machine without threads.
    ///
    /// # Errors
    /// If the model lacks what it needs, or has too few cores.
    pub fn new(model: &Model, settings: Settings, observer: O) -> Result<Self, SimError> {
        let has = [&model.shape.packages, &model.shape.cores];
        let has = has.map(|number| number.as_ref().map_or(1, |number| number.value));
        if let (Some(_), [packages, cores]) = (&model.shape.cores, has)
            && packages.saturating_mul(cores) < settings.cores
        {
            let (asked, has) = (settings.cores, packages.saturating_mul(cores));
            return Err(SimError::TooManyCores { asked, model: model.identity.name.clone(), has });
        }
        let processor = Processor::new(model, &settings)?;
        let threads = index(settings.threads_per_core);
        let highest = LicenseLevel::new(short(processor.levels().saturating_sub(1)));
        let software = Software::new(Mode::of(&settings).governor, highest);
        let new_core = || Core::new(threads, processor.levels(), software.clone());
        let cores: Vec<Core> = (0..settings.cores).map(|_| new_core()).collect();
        let wishes = wishes(model, &settings)?;
        let curve = PowerCurve::new(model);
        let points = Points::new(model, curve.as_ref().ok(), &wishes);
        let waits_at = points.as_ref().map_or(f64::INFINITY, |points| points.ghz(0));
        let waits_at = waits_at.min(processor.ghz(L0, 1));
        let meter = Source::new(model, curve)
            .map(|source| Meter::new(model, source, cores.len(), waits_at))
            .map(|meter| meter.with_mwait(&settings.mwait_cores, waits_at));
        let meter = meter
            .map(|meter| if settings.idle_states { meter.with_idle_states(model) } else { meter });
        // Drawn apart, so that threads draw the same under every governor.
        let mut phases = Random::new(!settings.seed);
        let package = || Package {
            raises_from: Moment::START
                + Picos::rounded(processor.raise_period().as_f64() * phases.uniform()),
            ..Package::default()
        };
        let packages = std::iter::repeat_with(package).take(processor.packages(cores.len()));
        let topology = Topology {
            cpus: cores.len() * threads,
            threads_per_core: threads,
            cores_per_package: processor.cores_of(0, usize::MAX).len(),
        };
        let specialised = settings.specialise.map(|specialise| {
            let levels = processor.levels();
            let of = |package| processor.cores_of(package, cores.len());
            let packages: Vec<Range<usize>> =
                (0..processor.packages(cores.len())).map(of).collect();
            let chance = Random::new(settings.seed ^ 1);
            Specialised::new(specialise, &packages, threads, levels, chance)
        });
        let needs_classes = specialised.is_some() || settings.core_scheduling;
        let scheduler = if needs_classes { Scheduling::MuQss } else { settings.scheduler };
        let mut machine = Self {
            packages: packages.collect(),
            processor,
            moves: Moves::new(model),
            region_kib: Vec::new(),
            chance: Random::new(settings.seed),
            scheduler: scheduler.start(topology),
            cores,
            threads: Vec::new(),
            locks: Locks::default(),
            queue: Queue::new(index(settings.cores)),
            now: Moment::START,
            segments: 0,
            points,
            regions: settings.region_moves.as_ref().map(Regions::new),
            specialised,
            has_series: false,
            mode: Mode::of(&settings),
            narrowing: None,
            wishes,
            meter,
            observer,
            settings,
        };
        machine.has_series = machine.may_have_series();
        machine.prepare_regions();
        machine.prepare_specialised();
        machine.prepare_core_scheduling();
        for core in 0..machine.cores.len() {
            let pstate = machine.wishes[core];
            if let Some(from) = machine.processor.deep_from() {
                machine.cores[core].deep_at = Some(Moment::START + from);
                machine.schedule(core);
            }
            machine.set_clock(core);
            if machine.points.is_some() {
                let ruling = Ruling { pstate, is_changing: false };
                machine.observer.rules(Moment::START, core, ruling);
            }
        }
        Ok(machine)
    }

    /// Runs until `end`, or until no event is pending. Returns whether events are pending.
    ///
    /// # Errors
    /// If threads wait for each other, release locks that they do not hold, or take steps without
    /// end that take no time.
    pub fn run(&mut self, end: Moment) -> Result<bool, SimError> {
        Ok(self.run_unless(end, &|_| false)? == Ended::Reached)
    }

    /// Like [`Machine::run`], but stops when `stops`, called every 1024 events with the time that
    /// is reached, returns true. Then everything up to the last event is counted, and the machine
    /// may go on from there.
    ///
    /// # Errors
    /// As [`Machine::run`].
    pub fn run_unless(
        &mut self,
        end: Moment,
        stops: &dyn Fn(Moment) -> bool,
    ) -> Result<Ended, SimError> {
        const ASKED_EVERY: u32 = 1024;
        let mut events = 0_u32;
        loop {
            if events.is_multiple_of(ASKED_EVERY) && stops(self.now) {
                self.count_all();
                return Ok(Ended::Stopped);
            }
            events = events.wrapping_add(1);
            let Some((time, target)) = self.queue.next(end) else { break };
            self.now = time;
            match target {
                Target::Thread(thread) => {
                    let cpu = self.seat(thread);
                    self.wakes(thread, cpu)?;
                }
                Target::Core(core) => self.happens(core)?,
                Target::Server => self.serves()?,
                Target::Load => self.looks_at_load()?,
                Target::Domain(domain) => self.steps(domain),
            }
        }
        if end < Moment::MAX {
            self.now = self.now.max(end);
        }
        self.count_all();
        Ok(if self.queue.is_empty() { Ended::Done } else { Ended::Reached })
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.now
    }

    /// The number of segments started.
    #[must_use]
    pub fn segments(&self) -> u64 {
        self.segments
    }

    /// The totals of each core.
    pub fn cores(&self) -> impl Iterator<Item = &Totals> {
        self.cores.iter().map(|core| &core.totals)
    }

    /// The totals of each thread.
    pub fn threads(&self) -> impl Iterator<Item = &ThreadTotals> {
        self.threads.iter().map(|thread| &thread.totals)
    }

    /// The energy up to now.
    ///
    /// # Errors
    /// If the model does not give the power of its cores, or not at the clocks at which that many
    /// of them have executed.
    pub fn energy(&self) -> Result<Energy, NoEnergy> {
        match &self.meter {
            Ok(meter) => meter.energy(),
            Err(missing) => Err(missing.clone().into()),
        }
    }

    /// Starts to measure the energy now, and forgets what was before.
    pub fn measures_energy_from_now(&mut self) {
        if let Ok(meter) = &mut self.meter {
            meter.forget(self.now);
        }
    }

    /// Returns the observer.
    pub fn into_observer(self) -> O {
        self.observer
    }
}

impl<O: Observer> Machine<O> {
    /// A thread has become ready on this CPU.
    fn wakes(&mut self, thread: usize, cpu: usize) -> Result<(), SimError> {
        let (core, slot) = self.place(cpu);
        self.advance(core);
        let slice = self.scheduler.slice(cpu);
        match &mut self.cores[core].slots[slot] {
            None => self.fill(core, slot)?,
            Some(_) if self.scheduler.preempts(thread, cpu) => self.takes_turns(core, slot)?,
            Some(running) if running.slice_ends == Moment::MAX => {
                running.slice_ends = slice.map_or(Moment::MAX, |slice| self.now + slice);
            }
            Some(_) => {}
        }
        self.settle(core);
        Ok(())
    }

    /// The turn of the CPU's thread ends, and another thread may have its own.
    fn takes_turns(&mut self, core: usize, slot: usize) -> Result<(), SimError> {
        let Some(running) = self.cores[core].slots[slot].take() else { return Ok(()) };
        let thread = running.thread;
        self.observer.stops(self.now, core, thread);
        self.threads[thread].interrupted = Some(running);
        self.phase_may_end(thread);
        let cpu = self.cpu(core, slot);
        let waits_on = self.scheduler.preempted(thread, cpu, self.now);
        self.fill(core, slot)?;
        self.sees(core);
        if waits_on != cpu {
            return self.wakes(thread, waits_on);
        }
        if self.threads[thread].interrupted.is_some()
            && let Some(idle) = self.scheduler.idle_for(thread)
        {
            let (core, slot) = self.place(idle);
            self.advance(core);
            self.fill(core, slot)?;
            self.settle(core);
        }
        Ok(())
    }

    /// An event is due on this core.
    fn happens(&mut self, core: usize) -> Result<(), SimError> {
        self.advance(core);
        let time = self.now.time();
        if !self.cores[core].delays.is_stolen(self.now)
            && let Some(act) = self.cores[core].act.take()
        {
            self.act(core, act);
        }
        self.interrupt_if_due(core);
        let this = &mut self.cores[core];
        if this.raises.is_some_and(|raises| raises <= self.now) {
            let level = this.set;
            self.grant(core, level);
        }
        let this = &mut self.cores[core];
        if this.act.is_none() {
            let is_due = |wake: Option<Time>| wake.is_some_and(|wake| wake <= time);
            if this.release.is_some_and(|release| release <= self.now) {
                this.release = None;
                self.act(core, Act::Set(L0));
                self.steal(core, self.settings.costs.look_ns, None);
            } else if let Software::AvxFreq(avxfreq) = &this.software
                && is_due(avxfreq.next_wakeup())
            {
                self.act(core, Act::Look);
                self.steal(core, self.settings.costs.look_ns, None);
            }
        }
        self.wakes_hardware(core);
        for slot in 0..self.cores[core].slots.len() {
            let is_over = |running: &Running| running.is_over(self.now);
            if self.cores[core].slots[slot].as_ref().is_some_and(is_over) {
                self.goes_on(core, slot)?;
                self.sees(core);
            }
            let ends_turn = |running: &Running| running.slice_ends <= self.now;
            if self.cores[core].slots[slot].as_ref().is_some_and(ends_turn) {
                self.takes_turns(core, slot)?;
            }
        }
        self.looks_for_work(core)?;
        self.settle(core);
        Ok(())
    }

    /// The processor's governor acts, if it is due on this core.
    fn wakes_hardware(&mut self, core: usize) {
        let time = self.now.time();
        let Self { processor, packages, chance, .. } = self;
        let control = &mut packages[processor.package(core)].control;
        let this = &mut self.cores[core];
        if this.has_counted() {
            this.hardware.counted(time, processor.rules(), control, chance);
        }
        while this.hardware.next_wakeup().is_some_and(|wake| wake <= time) {
            this.hardware.wake(time, processor.rules(), control, chance);
            // A level that is released as soon as it is granted counts, too.
            this.obey();
        }
    }

    /// Counts what the core's current segments have done until then.
    fn count(&mut self, core: usize, now: Moment) {
        let Self { cores, threads, scheduler, regions, .. } = self;
        let level = cores[core].level();
        cores[core].advance(now, |running, done| {
            scheduler.ran(running.thread, done.span, now);
            let thread = &mut threads[running.thread];
            if regions.is_some() {
                thread.calls.ran(level, done.span);
            }
            thread.ran += done.span;
            thread.totals.ran(running, &done, level);
        });
    }

    /// Reports the running code to the governors.
    fn sees(&mut self, core: usize) {
        let demand = self.cores[core].most_demanding(self.processor.rules());
        let before = std::mem::replace(&mut self.cores[core].demand, demand);
        if demand != before {
            let time = self.now.time();
            let Self { processor, packages, chance, .. } = self;
            let control = &mut packages[processor.package(core)].control;
            self.cores[core].hardware.runs(time, demand, processor.rules(), control, chance);
            self.cores[core].asked = self.processor.rules().level_of(&demand);
            self.tell_software(core, &before);
        }
    }

    /// Reports the running code to the governors, sets clock and rates, and schedules the core's
    /// next event.
    fn settle(&mut self, core: usize) {
        self.sees(core);
        self.cores[core].obey();
        let package = self.processor.package(core);
        let before = self.packages[package].active;
        let is_active = self.cores[core].is_active();
        match (std::mem::replace(&mut self.cores[core].is_counted, is_active), is_active) {
            (false, true) => {
                self.packages[package].active += 1;
                let wakes = self.wake_up(core);
                let this = &mut self.cores[core];
                this.delays.delay(self.now, wakes);
                this.deep_at = None;
            }
            (true, false) => {
                self.packages[package].active -= 1;
                let this = &mut self.cores[core];
                this.idle_since = self.now;
                this.deep_at = self.processor.deep_from().map(|from| self.now + from);
            }
            _ => {}
        }
        let is_in_mwait = !is_active && self.cores[core].mwaits > 0;
        if std::mem::replace(&mut self.cores[core].is_in_mwait, is_in_mwait) != is_in_mwait
            && let Ok(meter) = &mut self.meter
        {
            let waits = is_in_mwait || self.settings.mwait_cores.contains(&core);
            meter.waits(self.now, core, waits);
        }
        // By the clocks with as many active cores as there are now.
        self.cores[core].halts = self.halts(core);
        self.count_if_armed(core);
        let active = self.packages[package].active;
        if active != before && self.processor.differs(active, before) {
            for other in self.processor.cores_of(package, self.cores.len()) {
                // Idle cores get their clock when they wake up.
                if other == core || !self.cores[other].is_active() {
                    continue;
                }
                self.advance(other);
                self.cores[other].halts = self.halts(other);
                self.count_if_armed(other);
                self.set_clock(other);
                self.schedule(other);
            }
        }
        // What executed only for a request may have stopped, or become deeply idle.
        let this = &mut self.cores[core];
        let is_deep = this.deep_at == Some(self.now);
        if std::mem::take(&mut this.has_asked) || active != before || is_deep {
            self.rule(core, None);
        }
        self.set_clock(core);
        self.schedule(core);
        self.tell_observer(core);
    }

    /// How long an idle core takes to wake up now.
    fn wake_up(&self, core: usize) -> Picos {
        let this = &self.cores[core];
        if this.is_in_mwait {
            return self.processor.mwait();
        }
        self.processor.wake_up(self.now - this.idle_since)
    }

    /// Reports the core's state to the observer, if it has changed.
    fn tell_observer(&mut self, core: usize) {
        let this = &mut self.cores[core];
        let state = State {
            level: this.level(),
            is_throttled: this.is_throttled(),
            is_still: this.is_still(self.now),
        };
        if std::mem::replace(&mut this.told, state) != state {
            self.observer.core(self.now, core, state);
        }
    }

    /// The number of cores of this core's package that execute something. The core itself counts
    /// as it is now, also where it has not settled yet.
    fn active(&self, core: usize) -> u32 {
        let this = &self.cores[core];
        let is_active = this.is_between || this.is_active();
        let counted = self.packages[self.processor.package(core)].active;
        counted - u32::from(this.is_counted) + u32::from(is_active)
    }

    fn schedule(&mut self, core: usize) {
        let next = self.next_event(core);
        self.queue.set(Target::Core(core), next);
        if let Ok(meter) = &mut self.meter
            && let Some(stalled) = meter.stalled()
        {
            meter.executes(self.now, core, self.cores[core].activity(stalled));
        }
    }

    /// The current time in microseconds, for error messages.
    fn now_us(&self) -> u64 {
        self.now.time().ns() / 1000
    }

    fn place(&self, cpu: usize) -> (usize, usize) {
        let threads = index(self.settings.threads_per_core);
        (cpu / threads, cpu % threads)
    }

    fn cpu(&self, core: usize, slot: usize) -> usize {
        core * index(self.settings.threads_per_core) + slot
    }

    fn slice_ends(&self, cpu: usize) -> Moment {
        let slice = self.scheduler.slice(cpu);
        slice.map_or(Moment::MAX, |slice| self.now + slice)
    }
}

/// The P-state that each core requests at the start.
fn wishes(model: &Model, settings: &Settings) -> Result<Vec<Option<usize>>, SimError> {
    if settings.core_pstates.is_empty() {
        let wish = settings.pstate.as_deref().map(|name| pstate(model, name)).transpose()?;
        return Ok(vec![wish; index(settings.cores)]);
    }
    let names = settings.core_pstates.iter().take(index(settings.cores));
    let mut wishes: Vec<Option<usize>> =
        names.map(|name| pstate(model, name).map(Some)).collect::<Result<_, _>>()?;
    wishes.resize(index(settings.cores), None);
    Ok(wishes)
}

/// The index of a P-state in the model.
pub(crate) fn pstate(model: &Model, name: &str) -> Result<usize, SimError> {
    model.pstates.iter().position(|state| state.name == name).ok_or_else(|| SimError::NoPState {
        model: model.identity.name.clone(),
        name: name.to_owned(),
        known: model.pstates.iter().map(|state| state.name.clone()).collect(),
    })
}

fn short(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
