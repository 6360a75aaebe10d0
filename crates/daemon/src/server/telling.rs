//! What the server tells those who watch: the state of all that they may see, and recordings.

use std::io::{self, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::time::Instant;

use dimmer_policy::cost::CallCost;
use dimmer_protocol::{Socket, Welcome};
use tracing::warn;

use super::{Peer, Server, Wants, nanoseconds};
use crate::clients::{Client, Site};
use crate::record::{self, Line};
use crate::state::{self, State};

impl Server {
    /// Tells those who have asked what goes on, as far as it is their turn; when it is the next one's.
    pub(super) fn tell_states(&mut self) -> Option<Instant> {
        let asks = |peer: &Peer| matches!(peer.wants, Wants::Watch { asks: true });
        let asking: Vec<(u64, u32)> = self
            .peers
            .iter()
            .filter(|(_, peer)| asks(peer))
            .map(|(number, peer)| (*number, peer.user))
            .collect();
        let mut next = None::<Instant>;
        for (number, user) in asking {
            let from = self.may_ask.get(&user).copied().filter(|from| Instant::now() < *from);
            if from.is_some() {
                next = [next, from].into_iter().flatten().min();
            } else if let Err(why) = self.tell_state(number) {
                self.part(number, &why);
            }
        }
        next
    }

    fn tell_state(&mut self, number: u64) -> Result<(), String> {
        /// Of the server's time, telling one user takes no more than one part in so many.
        const PART: u32 = 10;
        let Some(peer) = self.peers.get_mut(&number) else { return Ok(()) };
        peer.wants = Wants::Watch { asks: false };
        let (begin, user) = (Instant::now(), peer.user);
        let text = serde_json::to_string(&self.state(user)).map_err(|error| error.to_string())?;
        let peer = self.peers.get(&number);
        let told = peer.map_or(Ok(()), |peer| tell(&peer.socket, &text));
        self.may_ask.retain(|_, from| begin < *from);
        self.may_ask.insert(user, Instant::now() + begin.elapsed() * PART);
        told.map_err(|error| error.to_string())
    }

    /// All that a user may see: root and the server's own user everything, as in recordings; others their own.
    pub(super) fn state(&self, user: u32) -> State {
        let [decides, unit, metric, mixing] = self.options.settings.words().map(str::to_owned);
        let sees_all = sees_all(user);
        let may_see = |client: &&Client| sees_all || client.user == user;
        let clients = self.clients().filter(may_see).map(|client| self.client_state(client));
        let clients: Vec<state::Client> = clients.collect();
        let hidden = self.clients().count() - clients.len();
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
                call_ns: self
                    .found
                    .prices
                    .as_ref()
                    .map(|prices| prices.calls.iter().map(CallCost::most_ns).collect()),
                thresholds: self.policy.thresholds().map(|thresholds| thresholds.to_vec()),
            },
            cores: state::Cores {
                may: self.found.spare.cpus.iter().map(|cpu| cpu.index()).collect(),
                dedicated: self.beacon.dedicated(),
                no_core: self.found.no_core.clone(),
            },
            clients,
            hidden,
        }
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
                action: state::action(action).to_owned(),
                reason: state::reason(reason),
            }
        };
        state::Client {
            client: client.id.0,
            pid: client.process,
            uid: client.user,
            name: client.name.clone(),
            lies: client.lies,
            metric: client.done_recently.map(|recent| recent.per_s()),
            sites: client.sites.iter().map(site).collect(),
        }
    }

    /// Begins to tell somebody every step. Only root and the server's own user see what all clients do.
    pub(super) fn begin_recording(&mut self, number: u64) -> Result<(), String> {
        let Some(peer) = self.peers.get_mut(&number) else { return Ok(()) };
        if !sees_all(peer.user) {
            return Err("only root and the server's own user may record".to_owned());
        }
        self.users.entry(peer.user).or_default().watch(number)?;
        // Those who record already get to know what they have not been told; the new one does from all clients below.
        self.tell_recordings();
        let Some(peer) = self.peers.get_mut(&number) else { return Ok(()) };
        peer.wants = Wants::Record;
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
            let (program, name) = (client.program.0, client.name.clone());
            lines.push(Line::Join { client: client.id.0, program, name });
            let site = |site: &Site| Line::Site { site: site.id.0, name: site.name.clone() };
            lines.extend(client.sites.iter().map(site));
        }
        if let Some(peer) = self.peers.get(&number) {
            tell(&peer.socket, &text_of(&lines)).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    pub(super) fn tell_recordings(&mut self) {
        if self.new_lines.is_empty() {
            return;
        }
        let text = text_of(&std::mem::take(&mut self.new_lines));
        let records = |peer: &Peer| matches!(peer.wants, Wants::Record);
        let slow: Vec<u64> = self
            .peers
            .iter()
            .filter(|(_, peer)| records(peer) && tell(&peer.socket, &text).is_err())
            .map(|(number, _)| *number)
            .collect();
        for number in slow {
            warn!("a recording was too slow, and has ended");
            self.part(number, "was too slow");
        }
    }
}

/// Whether a user sees what the programs of all users do.
fn sees_all(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

fn text_of(lines: &[Line]) -> String {
    let mut text = String::new();
    for line in lines {
        // Plain data: no key is anything but text, and no number is none.
        text.extend(serde_json::to_string(line).ok());
        text.push('\n');
    }
    text
}

/// Sends a text of any length as a file of memory.
fn tell(socket: &Socket, text: &str) -> io::Result<()> {
    let file = rustix::fs::memfd_create(c"dimmer-text", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(file);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    dimmer_protocol::send(socket.as_fd(), &Welcome.to_bytes(), &[file.as_fd()])
}
