//! The policy server of paper 001 (§4.2, §4.3.3): which clients' marked regions run on dedicated
//! cores, and how many of these there are.
//!
//! | module | what | paper |
//! |---|---|---|
//! | [`evidence`] | how dense wide-vector code is in what ran | §4.2.2, §5.2 |
//! | [`timing`] | evidence by the clock, and without any | |
//! | [`performance`] | how well clients do | §4.2.4 |
//! | [`thresholds`] | the paper's feedback loop | §4.2.3 |
//! | [`trials`] | a loop that asks one question at a time | |
//! | [`cores`] | how many cores are dedicated | §4.2.1, §4.3.3 |
//! | [`decision`] | what is done with a region's calls, and why | §4.2.2 |
//! | `shares` | whose calls may be moved where that takes cores from other users | |
//! | [`settings`] | all that can be chosen | §6.2.3 |
//!
//! This module keeps what clients have told, asks the loop at the end of each window, and says what
//! has changed. Clients are told nothing here, and no core is touched: whoever calls does that.

pub mod cores;
pub mod decision;
pub mod evidence;
pub mod performance;
pub mod settings;
mod shares;
pub mod thresholds;
pub mod timing;
pub mod trials;

use std::collections::BTreeMap;

use crate::license::Time;
use cores::Cores;
use decision::{Action, Change, Decide, Decided, Reason, State, Stayed};
use evidence::{Evidence, LEVELS};
use performance::Performance;
use settings::{Loop, Settings, Unit};
use shares::{Seen, Shares};
use thresholds::Thresholds;
use trials::Trials;

/// A process with marked regions, by a number of the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A marked region of a program, by a number of the caller's, which is the same in all its
/// processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteId(pub u64);

/// A program, by a number of the caller's: clients that run the same program have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramId(pub u64);

/// A user, by a number of the caller's, whose programs may cost each other something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(pub u32);

/// What a client did at a site since it told last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    /// How long ago that was (ns).
    pub span_ns: u64,
    /// Calls that ended.
    pub calls: u64,
    /// How long they took together, the way to a dedicated core and back included (ns).
    pub in_region_ns: u64,
    /// Of these calls, those that ran on dedicated cores.
    pub offloaded_calls: u64,
    /// How long dedicated cores worked on them, best without their waiting there (ns).
    pub offloaded_ns: u64,
    /// What is known of the code that ran.
    pub evidence: Evidence,
}

/// What is new after a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Decisions that differ.
    pub changes: Vec<Change>,
    /// How many cores are to be dedicated. They should be before anything is sent to them.
    pub cores: usize,
}

/// No client has more sites than this: one that makes them up fills no memory.
const MOST_SITES: usize = 4096;

#[derive(Clone, Debug, PartialEq)]
struct Client {
    program: ProgramId,
    user: UserId,
    performance: Performance,
    units: BTreeMap<Option<SiteId>, Decided>,
}

/// Groups of units by program and site, numbered for the trials.
#[derive(Clone, Debug, Default, PartialEq)]
struct Groups {
    /// The number and the members of each.
    known: BTreeMap<(ProgramId, Option<SiteId>), (usize, usize)>,
    unused: Vec<usize>,
}

impl Groups {
    /// One more member.
    fn join(&mut self, key: (ProgramId, Option<SiteId>)) -> usize {
        let next = self.known.len();
        let group = self.known.entry(key).or_insert_with(|| (self.unused.pop().unwrap_or(next), 0));
        group.1 += 1;
        group.0
    }

    /// One fewer; its number, if it was the last. It keeps that.
    fn leave(&mut self, key: (ProgramId, Option<SiteId>)) -> Option<usize> {
        let (number, members) = self.known.get_mut(&key)?;
        *members -= 1;
        (*members == 0).then_some(*number)
    }

    /// Without members it gives back its number, which this is.
    fn forget(&mut self, key: (ProgramId, Option<SiteId>)) -> Option<usize> {
        let (number, _) = self.known.get(&key).copied().filter(|(_, members)| *members == 0)?;
        self.known.remove(&key);
        self.unused.push(number);
        Some(number)
    }
}

/// The policy server.
#[derive(Clone, Debug)]
pub struct Server {
    settings: Settings,
    state: State,
    clients: BTreeMap<ClientId, Client>,
    groups: Groups,
    cores: Cores,
    /// Decisions that differ since the last step.
    changes: Vec<Change>,
    /// How many are offloaded.
    offloaded: usize,
    shares: Shares,
    /// Hardware threads' worth of time that is left, if that is measured.
    idle: Option<f64>,
    /// When the window began, and until when it does not count yet.
    begun: Time,
    settles: Option<Time>,
}

impl Server {
    /// A server without clients.
    #[must_use]
    pub fn new(settings: Settings, now: Time) -> Self {
        let state = match settings.decides {
            Loop::Thresholds(settings) => State::Thresholds(Thresholds::new(settings, now)),
            Loop::Trials(settings) => State::Trials(Trials::new(settings)),
        };
        let cores = Cores::new(settings.cores, now);
        Self {
            settings,
            state,
            clients: BTreeMap::new(),
            groups: Groups::default(),
            cores,
            changes: Vec::new(),
            offloaded: 0,
            shares: Shares::default(),
            idle: None,
            begun: now,
            settles: None,
        }
    }

    /// A client that runs `program` begins, where all are one user's. One with the same id is
    /// forgotten.
    pub fn join(&mut self, client: ClientId, program: ProgramId) {
        self.join_of(UserId::default(), client, program);
    }

    /// A client of a user's that runs `program` begins; a program is one user's. One with the same
    /// id is forgotten.
    pub fn join_of(&mut self, user: UserId, client: ClientId, program: ProgramId) {
        self.leave(client);
        let performance = Performance::new(matches!(self.state, State::Trials(_)));
        let units = BTreeMap::new();
        self.clients.insert(client, Client { program, user, performance, units });
    }

    /// A client has ended; unknown ones are nothing. What the trials have learnt about its program
    /// is kept, and loses weight with time, until [`Self::forget`].
    pub fn leave(&mut self, client: ClientId) {
        let Some(left) = self.clients.remove(&client) else {
            return;
        };
        self.changes.retain(|change| change.client != client);
        for (site, unit) in left.units {
            self.offloaded -= usize::from(unit.action == Action::Offload);
            let last = self.groups.leave((left.program, site));
            if let State::Trials(trials) = &mut self.state {
                if unit.is_candidate {
                    trials.candidate(unit.group, false);
                }
                if let Some(group) = last {
                    trials.rest(group);
                }
            }
        }
    }

    /// Forgets what was learnt about a program's site, or without one about its processes as a
    /// whole, if no client has it. Whoever never calls this has memory grow with every program that
    /// ever was there.
    pub fn forget(&mut self, program: ProgramId, site: Option<SiteId>) {
        if let (Some(group), State::Trials(trials)) =
            (self.groups.forget((program, site)), &mut self.state)
        {
            trials.forget(group);
        }
    }

    /// A client tells what it did at a site. `false`, and nothing else, if the client is not known
    /// or has too many sites.
    ///
    /// # Cost
    /// Logarithmic in clients and in the client's sites.
    pub fn observe(&mut self, client: ClientId, site: SiteId, window: &Window) -> bool {
        let key = match self.settings.unit {
            Unit::Client => None,
            Unit::Site => Some(site),
        };
        let Some(known) = self.clients.get_mut(&client) else {
            return false;
        };
        if known.units.len() >= MOST_SITES && !known.units.contains_key(&key) {
            return false;
        }
        known.performance.tally.calls(window.calls, window.span_ns, window.in_region_ns);
        self.cores.worked(known.user, window.offloaded_ns);
        let (program, groups) = (known.program, &mut self.groups);
        let (user, state) = (known.user, &mut self.state);
        let new = || {
            let group = groups.join((program, key));
            if let State::Trials(trials) = state {
                trials.own(group, user);
            }
            Decided { group, ..Decided::default() }
        };
        let unit = known.units.entry(key).or_insert_with(new);
        // On a dedicated core, other clients' code holds the level too (paper 001 §7.1). The
        // paper's loop does not look where it was.
        let is_elsewhere = window.offloaded_calls > 0 && unit.density.is_some();
        let is_taken = matches!(self.state, State::Thresholds(_)) || !is_elsewhere;
        let (span, whole) = (window.span_ns as f64, self.settings.window_ns() as f64);
        let part = if span > 0.0 { span / (span + whole) } else { 0.0 };
        match (unit.stayed, &mut self.state) {
            (Some(stayed), State::Trials(trials)) if window.offloaded_calls > 0 => {
                // Their threads spin while they wait, and the dedicated core works.
                let longer_ns = window.in_region_ns as f64 - window.calls as f64 * stayed.call_ns;
                trials.spend(unit.group, longer_ns, window.offloaded_ns as f64);
            }
            (was, _) if window.calls > 0 && window.offloaded_calls == 0 => {
                let newer = Stayed::new(window.calls, window.in_region_ns, window.span_ns);
                unit.stayed = Some(was.map_or(newer, |was| was.towards(newer, part)));
            }
            _ => {}
        }
        if let Some(newer) = window.evidence.density(&self.settings.clocks).filter(|_| is_taken) {
            unit.density =
                Some(unit.density.map_or(newer, |density| density.towards(&newer, part)));
        }
        let decide = Decide {
            settings: &self.settings,
            lowest: self.settings.lowest(),
            is_denied: self.shares.is_denied(user),
        };
        if let Some((change, was)) = decide.unit((client, key), unit, &mut self.state) {
            self.offloaded += usize::from(change.action == Action::Offload);
            self.offloaded -= usize::from(was == Action::Offload);
            self.changes.push(change);
        }
        true
    }

    /// A client tells how well it does, in a unit of its own; higher is better. From then on that
    /// counts instead of what is observed, in windows in which it tells it. `false`, and nothing
    /// else, if it is no number above zero, or the client is not known.
    pub fn metric(&mut self, client: ClientId, value: f64) -> bool {
        match self.clients.get_mut(&client) {
            Some(known) if value.is_finite() && value > 0.0 => {
                known.performance.tally.told(value);
                true
            }
            _ => false,
        }
    }

    /// So many hardware threads' worth of time were left lately on those that are not dedicated, by
    /// the caller's own measurement; `None` if that is not known. Where there is less than a core
    /// takes, one user's calls are moved only as far as others do not lose by it.
    pub fn idle(&mut self, threads: Option<f64>) {
        self.idle = threads.filter(|threads| threads.is_finite());
    }

    /// When [`Self::step`] is to be called at the latest; `None` while there is nothing to decide.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Time> {
        let window = self.settles.unwrap_or(self.begun.saturating_add(self.settings.window_ns()));
        let window = (!self.clients.is_empty()).then_some(window);
        [window, self.cores.next_wakeup()].into_iter().flatten().min()
    }

    /// What has changed: after something was observed, and when [`Self::next_wakeup`] says. A
    /// decision that has changed twice stands there twice, the last one last. Times before an
    /// earlier step's begin the window anew.
    ///
    /// # Cost
    /// None to speak of, except at the end of a window: then linear in clients, and if the loop has
    /// changed something, in all sites.
    pub fn step(&mut self, now: Time) -> Step {
        if self.window(now) {
            for (client, known) in &mut self.clients {
                let decide = Decide {
                    settings: &self.settings,
                    lowest: self.settings.lowest(),
                    is_denied: self.shares.is_denied(known.user),
                };
                for (site, unit) in &mut known.units {
                    if let Some((change, was)) =
                        decide.unit((*client, *site), unit, &mut self.state)
                    {
                        self.offloaded += usize::from(change.action == Action::Offload);
                        self.offloaded -= usize::from(was == Action::Offload);
                        self.changes.push(change);
                    }
                }
            }
        }
        let cores = self.cores.step(now, self.offloaded > 0);
        Step { changes: std::mem::take(&mut self.changes), cores }
    }

    /// The decision about a region and why, if anything was observed of it.
    #[must_use]
    pub fn decision(&self, client: ClientId, site: SiteId) -> Option<(Action, Reason)> {
        let key = match self.settings.unit {
            Unit::Client => None,
            Unit::Site => Some(site),
        };
        let unit = self.clients.get(&client)?.units.get(&key)?;
        Some((unit.action, unit.reason))
    }

    /// How many regions, or clients, are offloaded.
    #[must_use]
    pub const fn offloaded(&self) -> usize {
        self.offloaded
    }

    /// The thresholds of L1, L2, ..., if the loop has any.
    #[must_use]
    pub const fn thresholds(&self) -> Option<&[f64; LEVELS]> {
        match &self.state {
            State::Thresholds(state) => Some(state.thresholds()),
            State::Trials(_) => None,
        }
    }

    /// Ends the window if it is time; whether all units are to be decided anew.
    fn window(&mut self, now: Time) -> bool {
        if now < self.begun {
            (self.begun, self.settles) = (now, None);
        }
        let performances =
            self.clients.values_mut().map(|client| (client.user, &mut client.performance));
        let is_dear = matches!(&self.state, State::Trials(state) if state.is_dear());
        if let Some(until) = self.settles.filter(|until| now >= *until && !is_dear) {
            performances.for_each(|(_, client)| client.tally = performance::Tally::default());
            (self.begun, self.settles) = (now, None);
            if let State::Trials(state) = &mut self.state {
                // None, unless nobody was there for long.
                state.pass((now - until) / self.settings.window_ns().max(1));
            }
        } else if is_dear
            || (self.settles.is_none() && now - self.begun >= self.settings.window_ns())
        {
            let Settings { metric, mixing, .. } = self.settings;
            let trend = performance::trend(performances, metric, mixing);
            let windows = (now - self.begun) / self.settings.window_ns().max(1);
            (self.begun, self.settles) = (now, None);
            let are_shares_changed = self.share();
            return match (&mut self.state, &self.settings.decides) {
                (State::Trials(state), Loop::Trials(settings)) => {
                    state.pass(windows);
                    let is_changed = state.window(trend).is_some() || are_shares_changed;
                    self.settles = is_changed.then(|| now.saturating_add(settings.settle_ns));
                    is_changed
                }
                (State::Thresholds(state), _) => {
                    state.window(now, trend.change(), self.offloaded) || are_shares_changed
                }
                (State::Trials(_), Loop::Thresholds(_)) => false,
            };
        }
        false
    }

    /// Finds out what users' calls cost other users, at the end of a window; whether that changes
    /// anything.
    fn share(&mut self) -> bool {
        let mut users: BTreeMap<UserId, (Seen, f64)> = BTreeMap::new();
        for client in self.clients.values() {
            let (seen, told) = users.entry(client.user).or_default();
            seen.is_moved |= client.units.values().any(|unit| unit.action == Action::Offload);
            if let Some(change) = client.performance.changed() {
                seen.change = Some(seen.change.unwrap_or(0.0) + change);
                *told += 1.0;
            }
        }
        let mean = |(user, (seen, told)): (UserId, (Seen, f64))| {
            let change = seen.change.map(|sum| sum / told);
            (user, Seen { change, ..seen })
        };
        let users: BTreeMap<UserId, Seen> = users.into_iter().map(mean).collect();
        self.shares.window(&users, self.cores.dedicated() > 0, self.idle)
    }
}

#[cfg(test)]
mod tests;
