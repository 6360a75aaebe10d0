//! What the server sends to watchers: recordings, and a state with everything that the user may
//! see. The server assembles it here, a part at a time, and the [`Teller`](super::teller::Teller)
//! writes it.

use std::time::{Duration, Instant};

use tracing::warn;

use super::teller::{Hearer, Job};
use super::{Peer, Server, Wants, nanoseconds};
use crate::clients::{Client, Site};
use dimmer_watch::record::{self, Line};
use dimmer_watch::state::{self, ClockRequests, State};

/// Publishing takes at most one part in this number of the time, on the thread that decides.
const OF_ALL: u32 = 5;

/// A part of a state ends with the first client after this number of sites, which takes some
/// 0.2 ms, or after this number of other peers.
const SITES: usize = 1024;
const PEERS: usize = 512;

/// How soon to try again when the teller has too much to do.
const BUSY: Duration = Duration::from_millis(10);

/// A state being assembled.
#[derive(Debug)]
pub(super) struct Publication {
    user: u32,
    to: Vec<Hearer>,
    /// The first peer that is not in it yet.
    next: u64,
    is_whole: bool,
    pub(super) clients: Vec<state::Client>,
    clocks: Vec<state::ClockClient>,
    hidden: usize,
    took: Duration,
}

impl Publication {
    fn new(user: u32, to: Vec<Hearer>) -> Self {
        let (clients, clocks, took) = (Vec::new(), Vec::new(), Duration::ZERO);
        Self { user, to, next: 0, is_whole: false, clients, clocks, hidden: 0, took }
    }
}

impl Server {
    /// A peer asks for the state. The answer comes when it is the user's turn.
    pub(super) fn ask(&mut self, number: u64) {
        if let Some(Peer { wants, user, .. }) = self.peers.get_mut(&number) {
            *wants = Wants::Watch { asks: Some(self.requests.ask(number, *user)) };
        }
    }

    /// Sends states to the watchers whose turn it is, a part at a time. Returns when to continue.
    pub(super) fn tell_states(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let mut publication = match self.publication.take() {
            Some(publication) => publication,
            None => match self.next_publication(now) {
                Ok(publication) => publication,
                Err(next) => return next,
            },
        };
        if now < self.may_tell {
            self.publication = Some(publication);
            return Some(self.may_tell);
        }
        self.tell_part(&mut publication);
        let took = now.elapsed();
        publication.took += took;
        self.may_tell = now + took * OF_ALL;
        if publication.is_whole {
            let Publication { user, to, took, .. } = publication;
            let mut state = self.head(user, publication.clients, publication.hidden);
            state.clocks = publication.clocks;
            let state = Box::new(state);
            match self.teller.tell(Job::State { user, state, to }) {
                // The time that writing it takes is added later.
                Ok(()) => self.requests.is_written(user, took),
                Err(Job::State { state, to, .. }) => {
                    self.publication = Some(Publication {
                        user,
                        to,
                        next: u64::MAX,
                        is_whole: true,
                        clients: state.clients,
                        clocks: state.clocks,
                        hidden: state.hidden,
                        took,
                    });
                    self.may_tell = now + BUSY;
                }
                Err(_) => {}
            }
        } else {
            self.publication = Some(publication);
        }
        Some(self.may_tell)
    }

    /// Starts a state for the user that asked first of those whose turn it is. If there is none,
    /// returns when the next turn is, as far as known.
    fn next_publication(&mut self, now: Instant) -> Result<Publication, Option<Instant>> {
        let (user, connections) = self.requests.take_next(now)?;
        let mut to = Vec::new();
        for number in connections {
            if let Some(peer) = self.peers.get_mut(&number) {
                peer.wants = Wants::Watch { asks: None };
                to.push(peer.hearer(number));
            }
        }
        Ok(Publication::new(user, to))
    }

    /// Handles the results of the teller's jobs.
    pub(super) fn note_told(&mut self) {
        for done in self.teller.done() {
            if let Some((user, took)) = done.user {
                self.requests.was_written(user, took, Instant::now());
            }
            for (number, why) in done.failed {
                if self.peers.get(&number).is_some_and(|peer| matches!(peer.wants, Wants::Record)) {
                    warn!("a recording was too slow, and has ended");
                }
                self.part(number, why);
            }
        }
    }

    /// Adds the next clients that the user may see. Root and the server's own user see everything,
    /// as in recordings; other users see their own clients.
    fn tell_part(&self, publication: &mut Publication) {
        let mut sites = 0;
        let sees_all = sees_all(publication.user);
        for (count, (number, peer)) in self.peers.range(publication.next..).enumerate() {
            if sites >= SITES || count >= PEERS {
                publication.next = *number;
                return;
            }
            if let Wants::Clocks(name) = &peer.wants
                && (sees_all || peer.user == publication.user)
            {
                publication.clocks.push(state::ClockClient {
                    pid: peer.process,
                    uid: peer.user,
                    name: name.clone(),
                    requests: match &self.moderation {
                        Some(Ok(moderation)) => moderation.counts(*number),
                        Some(Err(_)) | None => ClockRequests::default(),
                    },
                });
            }
            let Wants::Decisions(client) = &peer.wants else { continue };
            if sees_all || client.user == publication.user {
                sites += client.sites.len();
                publication.clients.push(self.client_state(client));
            } else {
                publication.hidden += 1;
            }
        }
        (publication.next, publication.is_whole) = (u64::MAX, true);
    }

    /// A user's state with these clients.
    fn head(&self, user: u32, clients: Vec<state::Client>, hidden: usize) -> State {
        let [decides, unit, metric, mixing] = self.options.settings.words().map(str::to_owned);
        State {
            schema: state::SCHEMA.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            up_s: self.begun.elapsed().as_secs_f64(),
            policy: state::Policy {
                decides,
                unit,
                metric,
                mixing,
                model: self.found.model.as_ref().map(|path| path.display().to_string()),
                no_prices: self.found.no_prices.clone(),
                hand_over_ns: self.found.prices.as_ref().map(|prices| prices.hand_over_ns),
                call_ns: self.found.prices.as_ref().map(|prices| {
                    prices.calls.iter().map(|cost| cost.most_ns(f64::INFINITY)).collect()
                }),
                thresholds: self.policy.thresholds().map(|thresholds| thresholds.to_vec()),
                mechanisms: self.policy.mechanisms().into_iter().map(Into::into).collect(),
            },
            cores: state::Cores {
                may: self.found.spare.cpus.iter().map(|cpu| cpu.index()).collect(),
                dedicated: self.lease.page.dedicated(),
                no_core: self.found.no_core.clone(),
            },
            clients,
            hidden,
            programs: if sees_all(user) { self.totals.programs().to_vec() } else { Vec::new() },
            clocks: Vec::new(),
            no_clocks: self.moderation.as_ref().and_then(|own| own.as_ref().err().cloned()),
            // The teller reads it: that takes files.
            specialise: None,
        }
    }

    /// Everything that a user may see, at once.
    #[cfg(test)]
    pub(super) fn state(&self, user: u32) -> State {
        let mut publication = Publication::new(user, Vec::new());
        while !publication.is_whole {
            self.tell_part(&mut publication);
        }
        self.head(user, publication.clients, publication.hidden)
    }

    fn client_state(&self, client: &Client) -> state::Client {
        let site = |site: &Site| {
            let (action, reason) = self.policy.decision(client.id, site.id).unwrap_or_default();
            state::Site {
                name: site.name.clone(),
                line: site.line,
                calls: site.sums.calls,
                moved: site.sums.moved,
                calls_per_s: site.recent.per_s(),
                share: site.recent.share().min(self.found.cores.max(1) as f64),
                stayed_ns: site.recent.stayed_ns(),
                moved_ns: site.recent.moved_ns(),
                clock: site.clock,
                action: state::action(action).into(),
                reason: state::reason(reason),
            }
        };
        state::Client {
            client: client.id.0,
            pid: client.process,
            uid: client.user,
            name: client.name.clone(),
            unit: client.unit.clone(),
            lies: client.lies,
            metric: client.done_recently.map(|recent| recent.per_s()),
            wide_threads: client.wide.map(|wide| wide.threads()),
            sites: client.sites.iter().map(site).collect(),
        }
    }

    /// Starts to send every step to a peer. Only root and the server's own user may see what all
    /// clients do.
    pub(super) fn begin_recording(&mut self, number: u64) -> Result<(), String> {
        let Some(peer) = self.peers.get_mut(&number) else { return Ok(()) };
        let user = peer.user;
        if !sees_all(user) {
            return Err("only root and the server's own user may record".to_owned());
        }
        self.users.watches(user, number)?;
        // Existing recordings get the lines that they have not received. The new one gets the
        // clients from the list below.
        self.tell_recordings();
        let Some(peer) = self.peers.get_mut(&number) else { return Ok(()) };
        peer.wants = Wants::Record;
        let to = vec![peer.hearer(number)];
        let prices = self.found.prices.as_ref().map(record::Prices::from);
        let mut lines = vec![Line::Begin(record::Begin {
            schema: record::SCHEMA.to_owned(),
            settings: Box::new(self.options.settings.clone()),
            now_ns: self.fresh_since_ns.unwrap_or(nanoseconds(self.looked - self.begun)),
            is_fresh: self.fresh_since_ns.is_some(),
            cores: (self.found.cores, self.found.most()),
            clocks: self.found.clocks.clone(),
            prices,
        })];
        for client in self.clients() {
            lines.push(client.line());
            let site =
                |site: &Site| Line::Site { site: site.id.0, name: site.name.as_ref().to_owned() };
            lines.extend(client.sites.iter().map(site));
        }
        let told = self.teller.tell(Job::Lines { lines, to });
        told.map_err(|_| "too much is told already".to_owned())
    }

    pub(super) fn tell_recordings(&mut self) {
        if self.new_lines.is_empty() {
            return;
        }
        let lines = std::mem::take(&mut self.new_lines);
        let records = |peer: &Peer| matches!(peer.wants, Wants::Record);
        let recordings = self.peers.iter().filter(|(_, peer)| records(peer));
        let to: Vec<Hearer> = recordings.map(|(number, peer)| peer.hearer(*number)).collect();
        if let Err(Job::Lines { to, .. }) = self.teller.tell(Job::Lines { lines, to }) {
            for Hearer { number, .. } in to {
                warn!("a recording was too slow, and has ended");
                self.part(number, "was too slow");
            }
        }
    }
}

/// Whether a user may see the programs of all users.
fn sees_all(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}
