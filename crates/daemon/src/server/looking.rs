//! Looks: reading what clients did, and the decisions that follow.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dimmer_policy::server::decision::Action;
use dimmer_policy::server::loops::Mechanism;
use dimmer_policy::server::{SiteId, Step, Window};
use dimmer_processor::units::Time;
use dimmer_protocol::SITES;
use tracing::{debug, info, warn};

use super::{Server, Wants, counting, nanoseconds};
use crate::clients::{Client, Look};
use crate::machine::Found;
use dimmer_watch::record::{self, Line, Seen};
use dimmer_watch::state;

impl Server {
    /// When clients are looked at next: at the period, but using no more than half of the time.
    pub(super) fn next_look(&self) -> Instant {
        self.looked + self.options.settings.period().max(2 * self.look_took)
    }

    /// Reads what clients did, and decides.
    pub(super) fn look(&mut self, now: Instant) {
        self.count_on(now + counting::AT_ONCE);
        let span = now.duration_since(self.looked);
        self.looked = now;
        let look = Self::view(&self.found, span);
        let settings = &self.options.settings;
        let ((_, most_sites), all_sites) = (settings.most_per_user(), settings.most_sites());
        let is_recorded = self.is_recorded();
        let mut step = record::Step { now_ns: nanoseconds(now - self.begun), ..Default::default() };
        for peer in self.peers.values_mut() {
            let Wants::Decisions(client) = &mut peer.wants else { continue };
            let before = client.sites.len();
            let room = self.users.room_for_sites(peer.user, most_sites, all_sites);
            let length = client.meet(&mut self.names, SITES.min(before.saturating_add(room)));
            self.users.add_sites(peer.user, length - before);
            for place in before..length {
                let site = &client.sites[place];
                if is_recorded {
                    let name = site.name.as_ref().to_owned();
                    self.new_lines.push(Line::Site { site: site.id.0, name });
                }
                // A decision for the client as a whole also holds for new sites.
                if let Some((Action::Move, _)) = self.policy.decision(client.id, site.id) {
                    client.table.decisions[place]
                        .store(dimmer_protocol::DELEGATE, Ordering::Relaxed);
                }
            }
            let seen = client.look(&Look { reference: self.users.reference(peer.user), ..look });
            self.totals.add_seen(client.total, &seen);
            if seen.lies > 0 && client.lies == seen.lies {
                warn!(pid = client.process, name = client.name, "client reports impossible values");
            }
            for (site, window) in &seen.windows {
                self.policy.observe(client.id, *site, window);
            }
            if let Some(metric) = seen.metric {
                self.policy.metric(client.id, metric);
            }
            if let Some(ns) = seen.wide_ns {
                self.policy.was_wide(client.id, ns);
            }
            if is_recorded {
                let seen_of =
                    |(site, window): &(SiteId, Window)| (client.id.0, site.0, Seen::from(window));
                step.seen.extend(seen.windows.iter().map(seen_of));
                step.metrics.extend(seen.metric.map(|metric| (client.id.0, metric)));
                let wide = seen.wide_ns.filter(|ns| *ns > 0);
                step.wide.extend(wide.map(|ns| (client.id.0, ns)));
            }
            if let Some(ticks) = client.chain_ticks() {
                self.users.note_clock(peer.user, ticks);
            }
            self.lease.keep();
        }
        self.users.end_look();
        let spare = &self.found.spare.cpus;
        let taken = &spare[..self.found.threads(self.dedicated).min(spare.len())];
        step.idle = self.idle.measure(&self.options.root, now, &self.found.all, taken);
        self.policy.idle(step.idle);
        let before = self.policy.mechanisms();
        let decided = self.policy.step(Time::from_ns(step.now_ns));
        log_mechanisms(&before, &self.policy.mechanisms());
        self.lease.keep();
        self.lease.page.note_decided(dimmer_protocol::ticks());
        self.apply(&decided);
        if is_recorded {
            step.changes = record::changes(&decided.changes);
            step.cores = decided.cores;
            self.new_lines.push(Line::Step(step));
            self.tell_recordings();
        }
        self.look_took = now.elapsed();
    }

    /// What is the same for all clients at a look, this time after the last one.
    fn view(found: &Found, span: Duration) -> Look<'_> {
        Look {
            span_ns: nanoseconds(span).max(1),
            ticks_per_ns: dimmer_protocol::ticks_per_ns(),
            cpus: found.cores.max(1),
            hand_over_ns: found.prices.as_ref().map_or(0.0, |prices| prices.hand_over_ns),
            clocks: &found.clocks,
            reference: None,
        }
    }

    /// Adds what a client that leaves did since the last look.
    pub(super) fn look_at_last(&mut self, client: &mut Client) {
        let look = Self::view(&self.found, self.looked.elapsed());
        let seen = client.look(&look);
        self.totals.add_seen(client.total, &seen);
    }

    /// Writes the policy's decisions.
    fn apply(&mut self, step: &Step) {
        // Cores are dedicated before work moves there, and given back after it has left.
        if step.cores > self.dedicated {
            self.lease.page.dedicate(self.found.threads(step.cores));
        }
        for change in &step.changes {
            let Some(peer) = self.peers.get(&change.client.0) else { continue };
            let Wants::Decisions(client) = &peer.wants else { continue };
            let word = match change.action {
                Action::Stay => dimmer_protocol::STAY,
                Action::Move => dimmer_protocol::DELEGATE,
            };
            for place in client.places(change.site) {
                client.table.decisions[place].store(word, Ordering::Relaxed);
                let site = client.sites.get(place).map_or("", |site| &site.name);
                let (action, reason) = (state::action(change.action), state::reason(change.reason));
                debug!(
                    pid = client.process,
                    name = client.name,
                    site,
                    action,
                    reason = &*reason,
                    "decision"
                );
            }
            self.lease.keep();
        }
        if step.cores != self.dedicated {
            self.dedicate(step.cores);
        }
    }

    pub(super) fn dedicate(&mut self, cores: usize) {
        info!(cores, "dedicated cores");
        self.lease.page.dedicate(self.found.threads(cores));
        self.dedicated = cores;
    }
}

/// Logs which mechanism has come into force, if the loop compares any, and why.
fn log_mechanisms(before: &[Mechanism], after: &[Mechanism]) {
    let is_known = after.iter().any(|of| of.gain.is_some());
    for (was, is) in before.iter().zip(after) {
        let gain_pct = is.gain.map(|gain| 100.0 * gain.mean);
        if is.is_chosen && !was.is_chosen && !is_known {
            info!(mechanism = is.name, "in force, as nothing is known of others");
        } else if is.is_chosen && !was.is_chosen {
            info!(mechanism = is.name, gain_pct, "does the most work, and is in force");
        } else if is.is_in_force && !was.is_in_force {
            debug!(mechanism = is.name, is_trial = !is.is_chosen, gain_pct, "mechanism");
        }
    }
}
