//! The policy server of paper 001 (§4.2, §4.3.3): which clients' marked regions run on dedicated
//! cores, and how many of these there are.
//!
//! | module | what | paper |
//! |---|---|---|
//! | [`evidence`] | how dense wide SIMD code is in what ran | §4.2.2, §5.2 |
//! | [`timing`] | evidence from the clock, or from the marking alone | |
//! | [`performance`] | how well clients do | §4.2.4 |
//! | [`loops`] | what decides: the trait and the table of all loops | |
//! | [`loops::thresholds`] | the paper's feedback loop | §4.2.3 |
//! | [`loops::trials`] | a loop that asks one question at a time | |
//! | [`loops::auto`] | a loop that compares mechanisms for all clients at once | |
//! | [`work`] | the work of each client in all | |
//! | `asking` | clients that ask for cores | |
//! | [`cores`] | how many cores are dedicated | §4.2.1, §4.3.3 |
//! | [`canary`] | which programs the server acts on | |
//! | [`decision`] | what is done with a region's calls, and why | §4.2.2 |
//! | `shares` | whose calls may be moved if that takes cores from other users | |
//! | [`settings`] | all that can be chosen | §6.2.3 |
//!
//! This module stores what clients report, runs the loop at the end of each window, and returns
//! what has changed. It sends nothing to clients and touches no core: the caller does that.

mod asking;
pub mod canary;
pub mod cores;
pub mod decision;
pub mod evidence;
pub mod loops;
pub mod performance;
pub mod settings;
mod shares;
pub mod timing;
pub mod work;

use std::collections::BTreeMap;

use dimmer_processor::units::Time;

use asking::Asking;
use cores::Cores;
use decision::{Action, Change, Decide, Decided, Reason, Stayed};
use evidence::{Evidence, LEVELS};
use loops::{Loop, Mechanism, WindowEnd};
use performance::Performance;
use settings::{Settings, Unit};
use shares::{Seen, Shares};
use work::{Progress, Work};

/// A process with marked regions. The caller chooses the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A marked region of a program. The caller chooses the number, the same in all processes of the
/// program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteId(pub u64);

/// A program. The caller chooses the number, the same for all clients that run the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramId(pub u64);

/// A user. The caller chooses the number. One user's programs may cost each other something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(pub u32);

/// What a client did at a site since its last report.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    /// The time since that report (ns).
    pub span_ns: u64,
    /// Number of calls that ended.
    pub calls: u64,
    /// Their total time, the way to a dedicated core and back included (ns).
    pub in_region_ns: u64,
    /// Number of these calls that ran on dedicated cores.
    pub moved_calls: u64,
    /// How long dedicated cores worked on them (ns), preferably without the time that they waited
    /// there.
    pub moved_ns: u64,
    /// Evidence about the code that ran.
    pub evidence: Evidence,
}

/// What has changed after a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Decisions that have changed.
    pub changes: Vec<Change>,
    /// Number of cores to dedicate. Dedicate them before any call is sent to them.
    pub cores: usize,
}

/// The largest number of sites per client, so that a client that makes up sites cannot fill the
/// memory.
const MOST_SITES: usize = 4096;

#[derive(Clone, Debug, PartialEq)]
struct Client {
    program: ProgramId,
    user: UserId,
    performance: Performance,
    work: Work,
    /// Whether it is only observed.
    is_held: bool,
    units: BTreeMap<Option<SiteId>, Decided>,
}

/// Groups of units by program and site, numbered for the loop.
#[derive(Clone, Debug, Default, PartialEq)]
struct Groups {
    /// The number of each group, and how many members it has.
    known: BTreeMap<(ProgramId, Option<SiteId>), (usize, usize)>,
    unused: Vec<usize>,
}

impl Groups {
    /// Adds a member. Returns the group's number.
    fn join(&mut self, key: (ProgramId, Option<SiteId>)) -> usize {
        let next = self.known.len();
        let group = self.known.entry(key).or_insert_with(|| (self.unused.pop().unwrap_or(next), 0));
        group.1 += 1;
        group.0
    }

    /// Removes a member. Returns the group's number if it was the last member. The group keeps the
    /// number.
    fn leave(&mut self, key: (ProgramId, Option<SiteId>)) -> Option<usize> {
        let (number, members) = self.known.get_mut(&key)?;
        *members -= 1;
        (*members == 0).then_some(*number)
    }

    /// Frees the number of a group without members, and returns it.
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
    decides: Box<dyn Loop>,
    clients: BTreeMap<ClientId, Client>,
    /// Those of them that ask for cores.
    asking: BTreeMap<ClientId, Asking>,
    groups: Groups,
    cores: Cores,
    /// Decisions that have changed since the last step.
    changes: Vec<Change>,
    /// Number of moved units.
    moved: usize,
    shares: Shares,
    /// Time that is left, as a number of hardware threads, if that is measured.
    idle: Option<f64>,
    /// When the window started. `settles` is the time until which it does not count yet.
    begun: Time,
    settles: Option<Time>,
    /// When the last step was.
    stepped: Time,
}

impl Server {
    /// A server without clients.
    #[must_use]
    pub fn new(settings: Settings, now: Time) -> Self {
        let decides = settings.decides.start(now);
        let cores = Cores::new(settings.cores, now);
        Self {
            settings,
            decides,
            clients: BTreeMap::new(),
            asking: BTreeMap::new(),
            groups: Groups::default(),
            cores,
            changes: Vec::new(),
            moved: 0,
            shares: Shares::default(),
            idle: None,
            begun: now,
            settles: None,
            stepped: now,
        }
    }

    /// Adds a client that runs `program`, where all clients are one user's. An earlier client with
    /// the same id is forgotten.
    pub fn join(&mut self, client: ClientId, program: ProgramId) {
        self.join_of(UserId::default(), client, program);
    }

    /// Adds a client of `user` that runs `program`. A program belongs to one user. An earlier
    /// client with the same id is forgotten.
    pub fn join_of(&mut self, user: UserId, client: ClientId, program: ProgramId) {
        self.leave(client);
        let performance = Performance::new(self.decides.skips_first_window());
        let (work, units) = (Work::default(), BTreeMap::new());
        let new = Client { program, user, performance, work, is_held: false, units };
        self.clients.insert(client, new);
    }

    /// Makes a client ask for cores whenever it calls one of its functions, for a while: its calls
    /// count as moved then, whatever the loop would decide, unless other users would lose by it.
    pub fn ask(&mut self, client: ClientId) {
        if self.clients.contains_key(&client) {
            self.asking.insert(client, Asking::default());
        }
    }

    /// Makes all calls of a client stay, whatever the loop would decide; their decisions have the
    /// reason [`Reason::Held`] where they might be moved otherwise. Call it before anything is
    /// observed of the client. An unknown client changes nothing.
    pub fn hold(&mut self, client: ClientId) {
        if let Some(known) = self.clients.get_mut(&client) {
            known.is_held = true;
        }
    }

    /// Records for how long in all the threads of a client that asks for cores were on wide cores
    /// lately (ns). Returns false, and changes nothing, if there is no such client.
    pub fn was_wide(&mut self, client: ClientId, ns: u64) -> bool {
        let asking = self.asking.get_mut(&client).zip(self.clients.get(&client));
        let Some((asking, known)) = asking else { return false };
        if ns > 0 {
            asking.needs();
            self.cores.worked(known.user, ns);
        }
        true
    }

    /// Removes a client that has ended. An unknown client changes nothing. What the loop has
    /// learnt about its program is kept until [`Self::forget`].
    pub fn leave(&mut self, client: ClientId) {
        let Some(left) = self.clients.remove(&client) else {
            return;
        };
        self.asking.remove(&client);
        self.changes.retain(|change| change.client != client);
        for (site, unit) in left.units {
            self.moved -= usize::from(unit.action == Action::Move);
            let last = self.groups.leave((left.program, site));
            if unit.is_candidate {
                self.decides.candidate(unit.group, false);
            }
            if let Some(group) = last {
                self.decides.rest(group);
            }
        }
    }

    /// Forgets what was learnt about a program's site, or without a site about its processes as a
    /// whole, if no client has it. Without such calls, memory grows with every program that ever
    /// was there.
    pub fn forget(&mut self, program: ProgramId, site: Option<SiteId>) {
        if let Some(group) = self.groups.forget((program, site)) {
            self.decides.forget(group);
        }
    }

    /// Records what a client did at a site. Returns false, and changes nothing, if the client is
    /// not known or has too many sites.
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
        known.work.calls(window.calls);
        let asking = self.asking.get_mut(&client);
        let asked = asking.map(|asking| {
            if window.calls > 0 {
                asking.needs();
            }
            asking.is_wanted()
        });
        self.cores.worked(known.user, window.moved_ns);
        let (program, groups) = (known.program, &mut self.groups);
        let (user, decides) = (known.user, &mut self.decides);
        let new = || {
            let group = groups.join((program, key));
            decides.own(group, user);
            Decided { group, ..Decided::default() }
        };
        let unit = known.units.entry(key).or_insert_with(new);
        // On a dedicated core, other clients' code holds the level too (paper 001 §7.1).
        let is_elsewhere = window.moved_calls > 0 && unit.density.is_some();
        let is_taken = self.decides.counts_moved_calls() || !is_elsewhere;
        let (span, whole) = (window.span_ns as f64, self.decides.window_length().as_f64());
        let part = if span > 0.0 { span / (span + whole) } else { 0.0 };
        if window.moved_calls > 0 {
            if let Some(stayed) = unit.stayed {
                // The calls' threads spin while they wait, and the dedicated core works.
                let longer_ns = window.in_region_ns as f64 - window.calls as f64 * stayed.call_ns;
                self.decides.spend(unit.group, longer_ns, window.moved_ns as f64);
            }
        } else if window.calls > 0 {
            let newer = Stayed::new(window.calls, window.in_region_ns, window.span_ns);
            unit.stayed = Some(unit.stayed.map_or(newer, |was| was.towards(newer, part)));
        }
        if let Some(newer) = window.evidence.density(&self.settings.clocks).filter(|_| is_taken) {
            unit.density =
                Some(unit.density.map_or(newer, |density| density.towards(&newer, part)));
        }
        let decide = Decide {
            settings: &self.settings,
            lowest: [self.decides.negligible(); LEVELS],
            is_denied: self.shares.is_denied(user),
            is_held: known.is_held,
            asked,
        };
        if let Some((change, was)) = decide.unit((client, key), unit, self.decides.as_mut()) {
            self.moved += usize::from(change.action == Action::Move);
            self.moved -= usize::from(was == Action::Move);
            self.changes.push(change);
        }
        true
    }

    /// Decides again about all units of a client.
    fn decide(&mut self, client: ClientId) {
        let Some(known) = self.clients.get_mut(&client) else { return };
        let decide = Decide {
            settings: &self.settings,
            lowest: [self.decides.negligible(); LEVELS],
            is_denied: self.shares.is_denied(known.user),
            is_held: known.is_held,
            asked: self.asking.get(&client).map(Asking::is_wanted),
        };
        for (site, unit) in &mut known.units {
            if let Some((change, was)) = decide.unit((client, *site), unit, self.decides.as_mut()) {
                self.moved += usize::from(change.action == Action::Move);
                self.moved -= usize::from(was == Action::Move);
                self.changes.push(change);
            }
        }
    }

    /// Records how well a client does, in a unit of its own; higher is better. In a window with
    /// such a report, it counts instead of what is observed. Returns false, and changes nothing, if
    /// the value is not a number above zero, or the client is not known.
    pub fn metric(&mut self, client: ClientId, value: f64) -> bool {
        match self.clients.get_mut(&client) {
            Some(known) if value.is_finite() && value > 0.0 => {
                known.performance.tally.told(value);
                known.work.reports(value);
                true
            }
            _ => false,
        }
    }

    /// Records how much time was left lately on the hardware threads that are not dedicated, as a
    /// number of threads, by the caller's own measurement; `None` if that is not known. If that is
    /// less than a core takes, one user's calls are moved only as far as others do not lose by it.
    pub fn idle(&mut self, threads: Option<f64>) {
        self.idle = threads.filter(|threads| threads.is_finite());
    }

    /// The latest time for the next [`Self::step`]; `None` while there is nothing to decide.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Time> {
        let window = self.settles.unwrap_or(self.begun + self.decides.window_length());
        let window = (!self.clients.is_empty()).then_some(window);
        let asking = self.asking.values().filter_map(Asking::next_wakeup);
        let decides = self.decides.next_wakeup(self.stepped).filter(|_| !self.clients.is_empty());
        [window, decides, self.cores.next_wakeup()].into_iter().flatten().chain(asking).min()
    }

    /// Returns what has changed. Call it after something was observed, and at
    /// [`Self::next_wakeup`]. A decision that has changed twice is listed twice, the latest last. A
    /// time before the start of the window starts the window again.
    ///
    /// # Cost
    /// Linear in the clients that ask for cores, and in all clients if the loop takes their work.
    /// At the end of a window, linear in all clients, and in all sites if the loop has changed
    /// something.
    pub fn step(&mut self, now: Time) -> Step {
        let mut again = Vec::new();
        for (client, asking) in &mut self.asking {
            if asking.step(now) {
                again.push(*client);
            }
        }
        let span = now - std::mem::replace(&mut self.stepped, now);
        // Costs nothing under a loop that takes none of it.
        let mut progress = self.clients.iter_mut().map(|(id, known)| {
            let (unit, done) = known.work.step(now, span);
            Progress { client: *id, program: known.program, user: known.user, unit, done }
        });
        self.decides.step(now, &mut progress);
        if self.window(now) {
            again = self.clients.keys().copied().collect();
        }
        again.into_iter().for_each(|client| self.decide(client));
        let cores = self.cores.step(now, self.moved > 0);
        Step { changes: std::mem::take(&mut self.changes), cores }
    }

    /// The decision about a region and its reason, if anything was observed of the region.
    #[must_use]
    pub fn decision(&self, client: ClientId, site: SiteId) -> Option<(Action, Reason)> {
        let key = match self.settings.unit {
            Unit::Client => None,
            Unit::Site => Some(site),
        };
        let unit = self.clients.get(&client)?.units.get(&key)?;
        Some((unit.action, unit.reason))
    }

    /// Number of regions, or clients, that are moved.
    #[must_use]
    pub const fn moved(&self) -> usize {
        self.moved
    }

    /// The mechanisms that the loop compares, none first; empty if it compares none.
    #[must_use]
    pub fn mechanisms(&self) -> Vec<Mechanism> {
        self.decides.mechanisms()
    }

    /// The thresholds of L1, L2, ..., if the loop has any.
    #[must_use]
    pub fn thresholds(&self) -> Option<&[f64; LEVELS]> {
        self.decides.thresholds()
    }

    /// Ends the window if it is time. Returns whether all units have to be decided again.
    fn window(&mut self, now: Time) -> bool {
        if now < self.begun {
            (self.begun, self.settles) = (now, None);
        }
        let performances =
            self.clients.values_mut().map(|client| (client.user, &mut client.performance));
        let (ends_early, whole) = (self.decides.ends_early(), self.decides.window_length());
        if let Some(until) = self.settles.filter(|until| now >= *until && !ends_early) {
            performances.for_each(|(_, client)| client.tally = performance::Tally::default());
            (self.begun, self.settles) = (now, None);
            // Zero, unless there was no step for a long time.
            self.decides.pass((now - until).times(whole));
            return false;
        }
        if !ends_early && (self.settles.is_some() || now - self.begun < whole) {
            return false;
        }
        let Settings { metric, mixing, .. } = self.settings;
        let trend = performance::trend(performances, metric, mixing);
        let windows = (now - self.begun).times(whole);
        (self.begun, self.settles) = (now, None);
        let are_shares_changed = self.share();
        self.decides.pass(windows);
        let is_changed = self.decides.window(WindowEnd { now, trend, moved: self.moved });
        let is_changed = is_changed || are_shares_changed;
        let settles = self.decides.settling().filter(|_| is_changed);
        self.settles = settles.map(|span| now + span);
        is_changed
    }

    /// Estimates what users' calls cost other users, at the end of a window. Returns whether that
    /// changes anything.
    fn share(&mut self) -> bool {
        let mut users: BTreeMap<UserId, (Seen, f64)> = BTreeMap::new();
        for client in self.clients.values() {
            let (seen, told) = users.entry(client.user).or_default();
            seen.is_moved |= client.units.values().any(|unit| unit.action == Action::Move);
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
