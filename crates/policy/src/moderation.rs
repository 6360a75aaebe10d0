//! Which requests of clocks are in force when programs ask that do not know of each other.
//!
//! Not for carrying them out: that is the server's.
//!
//! Paper 002 (section 6, third observation) has unprivileged programs request clocks, which takes a
//! moderator. Domains (cores that share a clock) are held for a quantum at a time. Among users who
//! wait, the one with the least virtual time is next: its boosted time, divided by its weight.
//! Source: P. Goyal, H. M. Vin, H. Cheng, "Start-time Fair Queuing", SIGCOMM 1996. A user who comes
//! back does not bring credit along: its virtual time is at least that of the others. Boosted time
//! costs nothing while a user is the only one who asks, or while no request waits.
//!
//! A request is for a clock that is at least as fast, so that no thread is slowed. Only users who
//! may slow others get a clock exactly: on a CPU with a clock of its own, or in a domain of several
//! CPUs once each of them has a request of such a user, as in a module of the paper's processor
//! (section 2.1).

use std::collections::{BTreeMap, BTreeSet};

use dimmer_processor::units::{CpuId, KiloHertz, Nanos, Time};

/// How long a domain is held before another user's turn comes. A guess: long compared with a change
/// of the clock by files, which takes less than a millisecond.
pub const QUANTUM: Nanos = Nanos::from_ms(20);

/// What a user may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Boosted time is shared in proportion to it; above zero.
    pub weight: f64,
    /// The highest clock that a request can demand, in percent of the domain's highest; zero: no
    /// request is granted.
    pub most_percent: u8,
    /// Whether a request of this user may make a CPU slower than it is without the request.
    pub may_slow: bool,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: 1.0, most_percent: 100, may_slow: false }
    }
}

/// The limits of all users.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// How many domains may have a clock above their base at once; `None`: all.
    pub most_boosted: Option<usize>,
    /// Users who have another share than the usual one.
    pub users: BTreeMap<u32, Share>,
}

impl Limits {
    fn share(&self, user: u32) -> Share {
        self.users.get(&user).copied().unwrap_or_default()
    }
}

/// CPUs that share a clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// The CPUs.
    pub cpus: Vec<CpuId>,
    /// The slowest clock.
    pub slowest: KiloHertz,
    /// The highest clock that is not boosted. Without it, all above the slowest are.
    pub base: Option<KiloHertz>,
    /// The fastest clock.
    pub fastest: KiloHertz,
}

/// The request of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The user whose thread it is.
    pub user: u32,
    /// The CPU that executes the thread.
    pub cpu: CpuId,
    /// The clock.
    pub wanted: KiloHertz,
    /// Since when.
    pub since: Time,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Exactly this clock is in force, unless other requests are for a faster one: the wanted one,
    /// or the highest that the user may have. It may be slower than without the request.
    Granted(KiloHertz),
    /// At least this clock is in force. The machine may choose a faster one, as without the
    /// request.
    AtLeast(KiloHertz),
    /// The user waits for its turn.
    Waits,
    /// It is for a clock that is not boosted, and could slow threads that its user may not slow.
    HeldBack,
    /// The user may have none, or no domain has the CPU.
    Refused,
}

/// A domain that is held.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Held {
    user: u32,
    until: Time,
}

/// Decides.
#[derive(Clone, Debug)]
pub struct Moderator {
    limits: Limits,
    domains: Vec<Domain>,
    /// The domain of each CPU.
    of_cpu: BTreeMap<CpuId, usize>,
    held: BTreeMap<usize, Held>,
    /// Virtual time of users: of those who ask, and of those who are ahead.
    spent: BTreeMap<u32, f64>,
    /// The least virtual time of a user who asks; never less than before.
    least: f64,
    /// Users who asked for a boosted clock when it decided last, and those of them who waited.
    active: BTreeSet<u32>,
    waiting: BTreeSet<u32>,
    decided: Time,
}

/// All decisions.
#[derive(Clone, Debug, PartialEq)]
pub struct Decisions {
    /// What becomes of each request, in their order.
    pub outcomes: Vec<Outcome>,
    /// When to decide again, if nothing changes before.
    pub again_at: Option<Time>,
}

impl Moderator {
    /// For a machine with these domains.
    #[must_use]
    pub fn new(limits: Limits, domains: Vec<Domain>) -> Self {
        let mut of_cpu = BTreeMap::new();
        for (index, domain) in domains.iter().enumerate() {
            of_cpu.extend(domain.cpus.iter().map(|cpu| (*cpu, index)));
        }
        Self {
            limits,
            domains,
            of_cpu,
            held: BTreeMap::new(),
            spent: BTreeMap::new(),
            least: 0.0,
            active: BTreeSet::new(),
            waiting: BTreeSet::new(),
            decided: Time::from_ns(0),
        }
    }

    /// Adds the domain of a CPU, unless it is known.
    pub fn know(&mut self, cpu: CpuId, domain: impl FnOnce() -> Domain) {
        if !self.of_cpu.contains_key(&cpu) {
            let domain = domain();
            let new = domain.cpus.iter().chain([&cpu]);
            new.for_each(|cpu| {
                self.of_cpu.entry(*cpu).or_insert(self.domains.len());
            });
            self.domains.push(domain);
        }
    }

    /// The highest clock of a user, in percent of the domain's highest.
    #[must_use]
    pub fn most_percent(&self, user: u32) -> u8 {
        self.limits.share(user).most_percent
    }

    /// Decides about all outstanding requests. `now` is never earlier than at the last call.
    pub fn decide(&mut self, now: Time, requests: &[Request]) -> Decisions {
        self.charge(now);
        let limited: Vec<Option<(usize, KiloHertz)>> =
            requests.iter().map(|request| self.limited(request)).collect();
        // The domains that each user wants boosted, with the time of the first request.
        let mut wanted: BTreeMap<u32, BTreeMap<usize, Time>> = BTreeMap::new();
        for (request, limited) in requests.iter().zip(&limited) {
            if let Some((domain, clock)) = *limited
                && self.is_boosted(domain, clock)
            {
                let since = wanted.entry(request.user).or_default().entry(domain);
                let since = since.or_insert(request.since);
                *since = request.since.min(*since);
            }
        }
        self.enter(&wanted);
        self.assign(now, &wanted);
        self.waiting = self.waiting_of(&wanted).collect();
        self.active = wanted.keys().copied().collect();
        let again_at = if self.waiting.is_empty() {
            None
        } else {
            self.held.values().map(|held| held.until).min()
        };
        let outcomes = self.outcomes(requests, &limited);
        Decisions { outcomes, again_at }
    }

    /// Charges users for what they had while a request waited, if several users asked. A user whose
    /// own requests wait is charged for what it had, too: otherwise its virtual time would stay
    /// behind that of a user who wants less, and has all of it.
    fn charge(&mut self, now: Time) {
        let span = now.ns().saturating_sub(self.decided.ns()) as f64;
        self.decided = now;
        if self.waiting.is_empty() || self.active.len() < 2 {
            return;
        }
        for held in self.held.values() {
            let weight = self.limits.share(held.user).weight;
            *self.spent.entry(held.user).or_default() += span / weight;
        }
    }

    /// The domain of a request and the clock that its user may have there.
    fn limited(&self, request: &Request) -> Option<(usize, KiloHertz)> {
        let index = *self.of_cpu.get(&request.cpu)?;
        let domain = self.domains.get(index)?;
        let most_percent = u64::from(self.limits.share(request.user).most_percent);
        let most = domain.fastest.khz().saturating_mul(most_percent) / 100;
        let most = KiloHertz::from_khz(most).max(domain.slowest);
        (most_percent > 0).then(|| (index, request.wanted.min(most)))
    }

    fn is_boosted(&self, domain: usize, clock: KiloHertz) -> bool {
        self.domains.get(domain).is_some_and(|own| clock > own.base.unwrap_or(own.slowest))
    }

    /// Gives users who ask again, or have all that they asked for, the virtual time of the others:
    /// at most one quantum of the user with the least weight before the first who waits.
    fn enter(&mut self, wanted: &BTreeMap<u32, BTreeMap<usize, Time>>) {
        for user in wanted.keys().filter(|user| !self.active.contains(user)) {
            let spent = self.spent.entry(*user).or_default();
            *spent = spent.max(self.least);
        }
        let spent = |user: &u32| self.spent.get(user).copied().unwrap_or_default();
        let weight = |user: &u32| self.limits.share(*user).weight;
        let lightest = wanted.keys().map(weight).fold(f64::INFINITY, f64::min);
        let first = self.waiting_of(wanted).map(|user| spent(&user)).fold(f64::INFINITY, f64::min);
        let floor = first - QUANTUM.as_f64() / lightest;
        if floor.is_finite() {
            for user in wanted.keys() {
                let spent = self.spent.entry(*user).or_default();
                *spent = spent.max(floor);
            }
        }
        let active = wanted.keys().map(|user| self.spent.get(user).copied().unwrap_or_default());
        let least = active.fold(f64::INFINITY, f64::min);
        if least.is_finite() {
            self.least = self.least.max(least);
        }
        let least = self.least;
        self.spent.retain(|user, spent| wanted.contains_key(user) || *spent > least);
    }

    /// Takes back what is not wanted any more, or whose time is over, and assigns what is free.
    fn assign(&mut self, now: Time, wanted: &BTreeMap<u32, BTreeMap<usize, Time>>) {
        self.held.retain(|domain, held| {
            let is_wanted = wanted.get(&held.user).is_some_and(|all| all.contains_key(domain));
            is_wanted && held.until > now
        });
        let most = self.limits.most_boosted.unwrap_or(self.domains.len());
        while self.held.len() < most {
            let next = wanted.iter().filter_map(|(user, domains)| {
                let free = domains.iter().filter(|(domain, _)| !self.held.contains_key(domain));
                let (domain, since) = free.min_by_key(|(domain, since)| (**since, **domain))?;
                let held = self.held.values().filter(|held| held.user == *user).count() as f64;
                let ahead = held * QUANTUM.as_f64() / self.limits.share(*user).weight;
                let spent = self.spent.get(user).copied().unwrap_or_default() + ahead;
                Some((spent, *since, *user, *domain))
            });
            let least = next.min_by(|one, other| {
                one.0.total_cmp(&other.0).then((one.1, one.2).cmp(&(other.1, other.2)))
            });
            let Some((_, _, user, domain)) = least else { return };
            let until = Time::from_ns(now.ns().saturating_add(QUANTUM.ns()));
            self.held.insert(domain, Held { user, until });
        }
    }

    /// Users with a domain that is not held.
    fn waiting_of(
        &self,
        wanted: &BTreeMap<u32, BTreeMap<usize, Time>>,
    ) -> impl Iterator<Item = u32> {
        let is_held = |domain: &usize| self.held.contains_key(domain);
        let waits = move |domains: &BTreeMap<usize, Time>| !domains.keys().all(is_held);
        wanted.iter().filter(move |(_, domains)| waits(domains)).map(|(user, _)| *user)
    }

    fn outcomes(
        &self,
        requests: &[Request],
        limited: &[Option<(usize, KiloHertz)>],
    ) -> Vec<Outcome> {
        // By domain, CPUs with a request of a user who may slow others, and those of them with one
        // for a clock that is not boosted; domains where a boost waits.
        let (mut exact, mut slowed) = (BTreeSet::new(), BTreeSet::new());
        let mut waiting = BTreeSet::new();
        for (request, limited) in requests.iter().zip(limited) {
            let Some((domain, clock)) = *limited else { continue };
            let is_boosted = self.is_boosted(domain, clock);
            if is_boosted && !self.held.contains_key(&domain) {
                waiting.insert(domain);
            } else if self.limits.share(request.user).may_slow {
                exact.insert((domain, request.cpu));
                if !is_boosted {
                    slowed.insert((domain, request.cpu));
                }
            }
        }
        let all_of = |of: &BTreeSet<(usize, CpuId)>, domain: usize| {
            let count = of.range((domain, CpuId::new(0))..(domain + 1, CpuId::new(0))).count();
            self.domains.get(domain).is_some_and(|own| count >= own.cpus.len())
        };
        let outcome = |(request, limited): (&Request, &Option<(usize, KiloHertz)>)| {
            let Some((domain, clock)) = *limited else { return Outcome::Refused };
            let may_slow = self.limits.share(request.user).may_slow;
            match (self.is_boosted(domain, clock), waiting.contains(&domain)) {
                (true, true) => Outcome::Waits,
                (true, false) if may_slow && all_of(&exact, domain) => Outcome::Granted(clock),
                (true, false) => Outcome::AtLeast(clock),
                (false, false) if may_slow && all_of(&slowed, domain) => Outcome::Granted(clock),
                (false, _) => Outcome::HeldBack,
            }
        };
        requests.iter().zip(limited).map(outcome).collect()
    }
}

#[cfg(test)]
mod tests;
