//! Marked regions: a thread that enters one moves to a dedicated core if the policy decides so, and
//! moves back when it leaves the region.
//!
//! Paper 001 hands a closure to another thread and waits. Here the thread itself moves, which takes
//! the same time and leaves its core to others meanwhile, as waiting in a futex does (§4.3.2).
//! Regions entered within a region stay where that one is. Each thread is a client of the policy
//! server of `policy`, which gets reports of calls and takes its steps in simulated time. Which
//! clients belong to one program is set with [`Machine::belongs`].

use dimmer_policy::server::cores::Cores;
use dimmer_policy::server::decision::Action;
use dimmer_policy::server::evidence::{Evidence, LEVELS, place_of};
use dimmer_policy::server::{ClientId, ProgramId, Server, SiteId, UserId, Window};
use dimmer_processor::units::{LicenseLevel, Time};

use super::{Machine, index};
use crate::observer::Served;
use crate::queue::Target;
use crate::region_moves::{Decider, RegionMoves};
use crate::sched::Scheduler as _;
use crate::{Moment, Observer, Picos, SimError};

/// The component that decides about regions, and its current decision.
#[derive(Debug)]
pub(super) struct Regions {
    decides: Decides,
    /// The cost of a hand-over one way.
    hand_over: Picos,
    update_calls: u64,
    is_last_extra: bool,
    /// The number of dedicated cores, and the number decided on.
    dedicated: usize,
    wanted: usize,
    /// When its next step is due.
    due: Moment,
    /// The number of clients that have not ended.
    clients: usize,
    told: Served,
}

#[derive(Debug)]
enum Decides {
    Server(Box<Server>),
    Always(Cores),
}

/// What a thread did at a site since its last report to the server.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    told: Moment,
    window: Window,
    /// The time within regions, and on dedicated cores.
    in_region: Picos,
    moved: Picos,
    cycles: [u64; LEVELS],
    all: u64,
    is_moved: bool,
}

/// A thread's calls of marked regions.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// The program that it belongs to.
    program: u64,
    is_client: bool,
    /// The nesting depth of regions that the thread is within, and the site of the outermost.
    depth: usize,
    site: usize,
    began: Moment,
    /// The CPU that it came from while it is on a dedicated core.
    away: Option<usize>,
    /// Whether it is being handed over to a dedicated core.
    is_handed_over: bool,
    sites: Vec<Tally>,
}

impl Calls {
    /// Counts the time that the thread ran at this level.
    pub(super) fn ran(&mut self, level: LicenseLevel, span: Picos) {
        if let Some(tally) = self.sites.get_mut(self.site).filter(|_| self.depth > 0) {
            tally.all += span.ps();
            if let Some(place) = place_of(level) {
                tally.cycles[place] += span.ps();
            }
            if self.away.is_some() {
                tally.moved += span;
            }
        }
    }
}

impl Regions {
    pub(super) fn new(region_moves: &RegionMoves) -> Self {
        let decides = match &region_moves.decider {
            Decider::Server(settings) => {
                Decides::Server(Box::new(Server::new(settings.clone(), Time::START)))
            }
            Decider::Always(settings) => Decides::Always(Cores::new(*settings, Time::START)),
        };
        Self {
            decides,
            hand_over: Picos::from_ns(region_moves.hand_over_ns),
            update_calls: region_moves.update_calls.max(1),
            is_last_extra: region_moves.is_last_extra,
            dedicated: 0,
            wanted: 0,
            due: Moment::MAX,
            clients: 0,
            told: Served::default(),
        }
    }

    /// Steps the component that decides. Returns its decision if that has changed.
    ///
    /// * `is_in_force`: whether cores are dedicated at all.
    fn step(&mut self, now: Moment, is_in_force: bool) -> Option<Served> {
        let time = now.time();
        let (wanted, wakes, moved, threshold) = match &mut self.decides {
            Decides::Server(server) => {
                let cores = server.step(time).cores;
                let threshold = server.thresholds().map(|thresholds| thresholds[LEVELS - 1]);
                (cores, server.next_wakeup(), server.moved(), threshold)
            }
            Decides::Always(cores) => {
                let wanted = cores.step(time, self.clients > 0);
                (wanted, cores.next_wakeup(), self.clients, None)
            }
        };
        let wanted = if is_in_force { wanted } else { 0 };
        self.wanted = wanted;
        let wakes = wakes.map_or(Moment::MAX, Time::moment);
        // Cores are dedicated and given back at once, but not while a thread takes its steps.
        self.due =
            if wanted == self.dedicated { wakes.max(now + Picos::from_ps(1000)) } else { now };
        // No wake-up is needed when all clients have ended.
        if self.clients == 0 && wanted == self.dedicated {
            self.due = Moment::MAX;
        }
        let served = Served { moved, cores: wanted, threshold };
        (std::mem::replace(&mut self.told, served) != served).then_some(served)
    }
}

impl<O: Observer> Machine<O> {
    /// Assigns the thread to a program. The policy decides about a program's threads together. By
    /// default each thread is a program of its own.
    pub fn belongs(&mut self, thread: usize, program: u64) {
        if let Some(thread) = self.threads.get_mut(thread) {
            thread.calls.program = program;
        }
    }

    /// Dedicates the extra core that the settings ask for.
    pub(super) fn prepare_regions(&mut self) {
        let Some(regions) = &self.regions else { return };
        if regions.is_last_extra && self.cores.len() > 1 {
            let first = (self.cores.len() - 1) * index(self.settings.threads_per_core);
            let cpus = first..self.cpus();
            cpus.for_each(|cpu| self.scheduler.dedicate(cpu, true));
        }
    }

    /// The thread enters a region. Returns whether it moves to another core for that.
    pub(super) fn enters(&mut self, thread: usize, site: usize, cpu: usize) -> bool {
        let Some(regions) = &mut self.regions else { return false };
        let calls = &mut self.threads[thread].calls;
        calls.depth += 1;
        if calls.depth > 1 {
            return false;
        }
        if !calls.is_client {
            calls.is_client = true;
            regions.clients += 1;
            if let Decides::Server(server) = &mut regions.decides {
                server.join(ClientId(thread as u64), ProgramId(calls.program));
            }
        }
        if calls.sites.len() <= site {
            calls.sites.resize(site + 1, Tally { told: self.now, ..Tally::default() });
        }
        (calls.site, calls.began) = (site, self.now);
        let is_always = matches!(regions.decides, Decides::Always(_));
        let is_chosen = is_always || calls.sites[site].is_moved;
        let goes = is_chosen && regions.dedicated > 0 && self.mode.moves_regions;
        if goes {
            (calls.away, calls.is_handed_over) = (Some(cpu), true);
            self.queue.set(Target::Thread(thread), Some(self.now));
        }
        if is_always && regions.due == Moment::MAX {
            self.steps_server();
        }
        goes
    }

    /// The thread leaves a region. Returns whether it moves back for that.
    pub(super) fn leaves(&mut self, thread: usize) -> bool {
        let Some(regions) = &mut self.regions else { return false };
        let calls = &mut self.threads[thread].calls;
        calls.depth = calls.depth.saturating_sub(1);
        if calls.depth > 0 {
            return false;
        }
        let home = calls.away.take();
        let Some(tally) = calls.sites.get_mut(calls.site) else { return false };
        let way_back = if home.is_some() { regions.hand_over } else { Picos::ZERO };
        tally.window.calls += 1;
        tally.in_region += self.now + way_back - calls.began;
        tally.window.moved_calls += u64::from(home.is_some());
        let is_due = tally.window.calls >= regions.update_calls;
        let totals = &mut self.threads[thread].totals;
        totals.calls += 1;
        totals.moved += u64::from(home.is_some());
        if let Some(home) = home {
            let back = self.now + regions.hand_over;
            self.threads[thread].wakes = Some(back);
            self.scheduler.comes_home(thread, home);
            self.queue.set(Target::Thread(thread), Some(back));
        }
        if is_due {
            self.tells(thread);
        }
        home.is_some()
    }

    /// Reports to the server what the thread did at its site, and takes over the server's decision.
    fn tells(&mut self, thread: usize) {
        let Some(regions) = &mut self.regions else { return };
        let calls = &mut self.threads[thread].calls;
        let site = calls.site;
        let Some(tally) = calls.sites.get_mut(site) else { return };
        let told = std::mem::replace(
            tally,
            Tally { told: self.now, is_moved: tally.is_moved, ..Tally::default() },
        );
        let window = Window {
            span_ns: (self.now - told.told).nanos().ns(),
            in_region_ns: told.in_region.nanos().ns(),
            moved_ns: told.moved.nanos().ns(),
            evidence: Evidence::LicenseCycles { all: told.all, at: told.cycles },
            ..told.window
        };
        let (client, site) = (ClientId(thread as u64), SiteId(site as u64));
        match &mut regions.decides {
            Decides::Server(server) => {
                server.observe(client, site, &window);
            }
            Decides::Always(cores) => cores.worked(UserId::default(), window.moved_ns),
        }
        self.steps_server();
        let Some(regions) = &self.regions else { return };
        if let Decides::Server(server) = &regions.decides {
            let calls = &mut self.threads[thread].calls;
            let decided = server.decision(client, site);
            if let Some(tally) = calls.sites.get_mut(calls.site) {
                tally.is_moved = decided.is_some_and(|(action, _)| action == Action::Move);
            }
        }
    }

    /// The thread has finished.
    pub(super) fn ends(&mut self, thread: usize) {
        let Some(regions) = &mut self.regions else { return };
        if std::mem::take(&mut self.threads[thread].calls.is_client) {
            regions.clients -= 1;
            if let Decides::Server(server) = &mut regions.decides {
                server.leave(ClientId(thread as u64));
            }
            self.steps_server();
        }
    }

    /// Steps the component that decides, and schedules its next step.
    fn steps_server(&mut self) {
        let Some(regions) = &mut self.regions else { return };
        let before = regions.due;
        let served = regions.step(self.now, self.mode.moves_regions);
        if regions.due != before {
            let due = Some(regions.due).filter(|due| *due < Moment::MAX);
            self.queue.set(Target::Server, due);
        }
        if let Some(served) = served {
            self.observer.serves(self.now, served);
        }
    }

    /// The server is due.
    pub(super) fn serves(&mut self) -> Result<(), SimError> {
        if let Some(regions) = &mut self.regions {
            regions.due = Moment::MAX;
        }
        self.steps_server();
        self.dedicates()
    }

    /// Dedicates the decided number of cores, from the last one down, or gives some back.
    fn dedicates(&mut self) -> Result<(), SimError> {
        let Some(regions) = &mut self.regions else { return Ok(()) };
        let before = std::mem::replace(&mut regions.dedicated, regions.wanted);
        let (after, is_last_extra) = (regions.wanted, regions.is_last_extra);
        let all = self.cores.len();
        let threads = index(self.settings.threads_per_core);
        for core in all.saturating_sub(before.max(after))..all.saturating_sub(before.min(after)) {
            let is_extra = is_last_extra && core + 1 == all;
            for cpu in core * threads..(core + 1) * threads {
                self.scheduler.dedicate(cpu, after > before || is_extra);
            }
            if after > before {
                self.clears(core)?;
            } else {
                self.fills(core)?;
            }
        }
        if before != after {
            self.steps_server();
        }
        Ok(())
    }

    /// Moves threads that are outside of moved regions off the core.
    fn clears(&mut self, core: usize) -> Result<(), SimError> {
        self.advance(core);
        for slot in 0..self.cores[core].slots.len() {
            let cpu = self.cpu(core, slot);
            let is_own = |thread: usize| self.threads[thread].calls.away.is_none();
            let mut leaving = Vec::new();
            if self.cores[core].slots[slot].is_some_and(|running| is_own(running.thread))
                && let Some(running) = self.cores[core].slots[slot].take()
            {
                leaving.push(running.thread);
                self.observer.stops(self.now, core, running.thread);
                self.threads[running.thread].interrupted = Some(running);
            }
            leaving.extend(self.scheduler.clear(cpu));
            for thread in leaving {
                self.queue.set(Target::Thread(thread), Some(self.now));
            }
        }
        self.fills(core)
    }

    fn fills(&mut self, core: usize) -> Result<(), SimError> {
        self.advance(core);
        for slot in 0..self.cores[core].slots.len() {
            self.fill(core, slot)?;
        }
        self.settle(core);
        Ok(())
    }

    /// Chooses the CPU for a thread that has become ready.
    pub(super) fn seat(&mut self, thread: usize) -> usize {
        let is_dedicated = self.regions.as_ref().is_some_and(|regions| regions.dedicated > 0);
        let this = &mut self.threads[thread];
        if this.calls.away.is_some() && is_dedicated {
            return self.scheduler.ready_away(thread);
        }
        this.calls.away = None;
        self.scheduler.ready(thread, this.pinned, self.now)
    }

    /// Whether the thread is being handed over to a dedicated core, and what that costs.
    pub(super) fn handing_over(&mut self, thread: usize) -> Option<Picos> {
        let is_handed_over = std::mem::take(&mut self.threads[thread].calls.is_handed_over);
        self.regions.as_ref().filter(|_| is_handed_over).map(|regions| regions.hand_over)
    }

    fn cpus(&self) -> usize {
        self.cores.len() * index(self.settings.threads_per_core)
    }
}
