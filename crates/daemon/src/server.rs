//! The server's loop: one thread that waits for connections, reads clients' sums at its period,
//! asks the policy, and writes the policy's decisions.

mod admission;
mod clocks;
mod counting;
mod idle;
mod internal;
mod lease;
mod listener;
mod looking;
mod parting;
mod publisher;
mod requests;
mod specialise;
mod teller;
#[cfg(test)]
mod tests;
mod users;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dimmer_host::group::Group;
use dimmer_host::root::Root;
use dimmer_policy::server::{ClientId, Server as Policy, UserId};
use dimmer_processor::units::Time;
use dimmer_protocol::{Closer, Hello, LeasePage, Owned, Socket, Table, Welcome};
use rustix::event::epoll;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use tracing::{info, warn};

use crate::clients::{Client, Wide};
use crate::machine::Found;
use crate::moderation::Moderation;
use crate::names::Names;
use crate::totals::{self, Totals};
use admission::Pause;
use dimmer_watch::record::Line;
use dimmer_watch::settings::{Settings, SettingsError};
use idle::Idle;
pub use internal::Connector;
use internal::Internal;
use lease::Lease;
pub(crate) use listener::make_directory_of;
pub use listener::{Place, check_group};
use parting::Unreceived;
use publisher::Publication;
use requests::Requests;
use teller::{Hearer, Teller};
use users::Users;

/// Why the server cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A server runs there already.
    #[error("a policy server runs already at {}", .0.display())]
    Taken(PathBuf),
    /// The server cannot listen there.
    #[error("cannot listen at {}", path.display())]
    Listen {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The group that the socket should have does not exist.
    #[error(
        "there is no group `{0}` (`server.socket_group`): expected a name of /etc/group or a number"
    )]
    NoGroup(String),
    /// The system refuses something that the server needs.
    #[error("cannot {what}")]
    System {
        /// What the system refuses.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// Shared memory cannot be created.
    #[error(transparent)]
    Memory(#[from] dimmer_protocol::MemoryError),
}

/// Event numbers: the source of an event.
const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
const TELLER: u64 = 2;
const INTERNAL: u64 = 3;
const FIRST_PEER: u64 = 4;

/// Maximum number of connections admitted before other events get their turn.
const WELCOMES: usize = 64;

/// How long decisions hold while the machine is examined again: five times the maximum of what that
/// takes.
const FINDING_OUT: Duration = Duration::from_secs(1);

/// A connection.
#[derive(Debug)]
struct Peer {
    socket: Arc<Socket>,
    process: i32,
    user: u32,
    wants: Wants,
}

impl Peer {
    fn hearer(&self, number: u64) -> Hearer {
        Hearer { number, socket: Arc::clone(&self.socket) }
    }
}

#[derive(Debug)]
enum Wants {
    /// It has not sent a request yet.
    Unknown,
    /// Decisions.
    Decisions(Box<Client>),
    /// Clocks. The name of the program.
    Clocks(String),
    /// To watch. `asks` is the order of its request, if it waits for the answer.
    Watch {
        /// Order number of the request.
        asks: Option<u64>,
    },
    /// To receive every step.
    Record,
}

/// The requests of signals.
#[derive(Clone, Debug)]
pub struct Signals {
    end: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    wake: Arc<UnixStream>,
}

impl Signals {
    /// Makes SIGTERM, SIGINT and SIGQUIT end the server, and SIGHUP reload its settings.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn install() -> io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let (end, reload) = (Arc::default(), Arc::default());
        for (signal, flag) in [(SIGTERM, &end), (SIGINT, &end), (SIGQUIT, &end), (SIGHUP, &reload)]
        {
            signal_hook::flag::register(signal, Arc::clone(flag))?;
            signal_hook::low_level::pipe::register(signal, woken.try_clone()?)?;
        }
        Ok(Self { end, reload, wake: Arc::new(wake) })
    }
}

/// What a server needs to start.
#[derive(Debug)]
pub struct Options {
    /// The root of the machine's file system.
    pub root: Root,
    /// Path of the socket.
    pub socket: PathBuf,
    /// A socket that listens already, as systemd passes it.
    pub inherited: Option<OwnedFd>,
    /// File of the settings, for reloading.
    pub file: Option<PathBuf>,
    /// The settings.
    pub settings: Settings,
}

/// The server.
#[derive(Debug)]
pub struct Server {
    options: Options,
    /// Path of the socket, unless the socket was passed.
    place: Option<Place>,
    found: Found,
    /// Closed by `closer`, as the peers' sockets are: peers that wait to be admitted may have sent
    /// files.
    listener: Socket,
    closer: Closer,
    events: OwnedFd,
    signals: Signals,
    lease: Lease,
    policy: Policy,
    /// When the policy started (ns since the server did), as long as it has had no client.
    fresh_since_ns: Option<u64>,
    peers: BTreeMap<u64, Peer>,
    next_peer: u64,
    names: Names,
    totals: Totals,
    users: Users,
    unreceived: Unreceived,
    internal: Internal,
    teller: Teller,
    /// Moderates clocks, or why it does not; `None`: the settings do not say that it should.
    moderation: Option<Result<Moderation, String>>,
    /// Watchers' requests for the state.
    requests: Requests,
    /// The state being assembled, and when assembling may continue.
    publication: Option<Publication>,
    may_tell: Instant,
    /// Maximum number of connections: each needs a file.
    most_peers: usize,
    pause: Pause,
    begun: Instant,
    looked: Instant,
    look_took: Duration,
    idle: Idle,
    dedicated: usize,
    /// Lines that recordings have not received; empty if there are no recordings.
    new_lines: Vec<Line>,
}

impl Server {
    /// A server that listens. Takes up to 0.2 s to measure hand-overs.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn new(mut options: Options, signals: Signals) -> Result<Self, ServerError> {
        let system = |what| {
            move |error: rustix::io::Errno| ServerError::System { what, source: error.into() }
        };
        let (listener, place) = match options.inherited.take() {
            Some(socket) => (socket, None),
            None => {
                let access = options.settings.socket_access();
                let socket = listener::listen(&options.root, &options.socket, access)?;
                (socket, Some(Place::new(&options.socket)))
            }
        };
        let most_peers = listener::allow_many_files();
        let thread = |source| ServerError::System { what: "start a thread", source };
        let closer = Closer::new().map_err(thread)?;
        let teller = Teller::new(options.root.clone()).map_err(thread)?;
        let internal = Internal::new()
            .map_err(|source| ServerError::System { what: "wait for events", source })?;
        let listener = Socket::new(listener, &closer);
        let events =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("wait for events"))?;
        let wanted = epoll::EventFlags::IN;
        for (fd, which) in [
            (listener.as_fd(), LISTENER),
            (signals.wake.as_fd(), SIGNALS),
            (teller.as_fd(), TELLER),
            (internal.as_fd(), INTERNAL),
        ] {
            epoll::add(&events, fd, epoll::EventData::new_u64(which), wanted)
                .map_err(system("wait for events"))?;
        }
        let found = Found::new(&options.root, &options.settings);
        let lease_page = Owned::<LeasePage>::new()?;
        let cores: Vec<u32> = found.spare.cpus.iter().map(|cpu| cpu.index()).collect();
        lease_page.write(&cores);
        let moderation = clocks::moderation(&options).map_err(thread)?;
        let now = Instant::now();
        let policy = new_policy(&options.settings, &found, 0);
        Ok(Self {
            options,
            place,
            found,
            listener,
            closer,
            events,
            signals,
            lease: Lease::new(lease_page),
            policy,
            fresh_since_ns: Some(0),
            peers: BTreeMap::new(),
            next_peer: FIRST_PEER,
            names: Names::default(),
            totals: Totals::default(),
            users: Users::default(),
            unreceived: Unreceived::default(),
            internal,
            teller,
            moderation,
            requests: Requests::default(),
            publication: None,
            may_tell: now,
            most_peers,
            pause: Pause::default(),
            begun: now,
            looked: now,
            look_took: Duration::ZERO,
            idle: Idle::default(),
            dedicated: 0,
            new_lines: Vec::new(),
        })
    }

    /// Whether its socket was passed by a service manager, which decides who may connect.
    #[must_use]
    pub const fn is_inherited(&self) -> bool {
        self.place.is_none()
    }

    /// The settings in force.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.options.settings
    }

    /// What was found out about the machine.
    #[must_use]
    pub const fn found(&self) -> &Found {
        &self.found
    }

    /// Connects threads of this process to this server.
    #[must_use]
    pub fn connector(&self) -> Connector {
        self.internal.connector()
    }

    /// Serves until a signal ends it. Calls `told` after each request to reload the settings, with
    /// whether there is a file, or with what is wrong in it.
    ///
    /// # Errors
    /// If the system refuses a call that the server needs.
    pub fn run(
        &mut self,
        told: &mut dyn FnMut(Result<bool, SettingsError>),
    ) -> Result<(), ServerError> {
        let mut events = Vec::with_capacity(WELCOMES);
        loop {
            if self.signals.end.load(Ordering::Relaxed) {
                self.end();
                return Ok(());
            }
            if self.signals.reload.swap(false, Ordering::Relaxed) {
                told(self.reload());
                self.lease.rest();
            }
            let has_clients = self.has_clients();
            if has_clients {
                self.lease.hold();
                let now = Instant::now();
                if now >= self.next_look() {
                    self.look(now);
                }
            } else {
                self.lease.rest();
            }
            let told = self.tell_states();
            let looks = has_clients.then(|| self.next_look());
            let closes = self.close_received(Instant::now());
            let next = [told, looks, closes, self.lease.next(), self.end_pause()];
            let next = next.into_iter().flatten().min();
            let timeout = next.map(|next| next.saturating_duration_since(Instant::now()));
            events.clear();
            let timeout = timeout.and_then(|timeout| timeout.try_into().ok());
            match epoll::wait(
                &self.events,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    return Err(ServerError::System {
                        what: "wait for events",
                        source: error.into(),
                    });
                }
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    SIGNALS => {
                        let mut bytes = [0; 64];
                        let _ = io::Read::read(&mut &*self.signals.wake, &mut bytes);
                    }
                    TELLER => self.note_told(),
                    INTERNAL => self.accept_internal(),
                    peer => self.hear(peer),
                }
                self.lease.keep();
            }
        }
    }

    /// Handles a packet from a peer.
    fn hear(&mut self, number: u64) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        if matches!(peer.wants, Wants::Clocks(_)) {
            // Its bells are the moderator's.
            return self.part(number, "has gone");
        }
        let mut bytes = [0; Hello::BYTES];
        let hello = match dimmer_protocol::hear(&peer.socket, &mut bytes) {
            Ok(None) => return,
            Ok(Some(length @ 1..)) => {
                let hello = Hello::parse(&bytes[..length.min(bytes.len())]);
                hello.map_err(|error| error.to_string())
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error.to_string()),
            _ => return self.part(number, "has gone"),
        };
        let is_known = !matches!(peer.wants, Wants::Unknown);
        let answered = match hello {
            Ok(Hello::Serve { name }) if !is_known => self.serve(number, name, false),
            Ok(Hello::Ask { name }) if !is_known => self.serve(number, name, true),
            Ok(Hello::Clocks { name }) if !is_known => return self.moderate(number, name),
            // A watcher that waits for an answer asks for no other one.
            Ok(Hello::Watch)
                if matches!(peer.wants, Wants::Unknown | Wants::Watch { asks: None }) =>
            {
                let user = peer.user;
                let watches = if is_known { Ok(()) } else { self.users.watches(user, number) };
                watches.map(|()| self.ask(number))
            }
            Ok(Hello::Record) if !is_known => self.begin_recording(number),
            Ok(_) => Err("asks twice".to_owned()),
            Err(why) => Err(why),
        };
        if let Err(why) = answered {
            let Some(peer) = self.peers.get(&number) else { return };
            warn!(pid = peer.process, uid = peer.user, %why, "refused");
            self.part(number, "was refused");
        }
    }

    /// Accepts a client. `asks`: whether it asks for cores.
    fn serve(&mut self, number: u64, name: String, asks: bool) -> Result<(), String> {
        let (most, _) = self.options.settings.most_per_user();
        let Some(peer) = self.peers.get(&number) else { return Ok(()) };
        let who = (peer.process, peer.user);
        self.users.may_serve(peer.user, most, self.most_peers)?;
        let table = Owned::<Table>::new().map_err(|error| error.to_string())?;
        table.write();
        // Counting starts before the answer, after which the client goes on, so it misses no new
        // thread.
        let counters = self.count(who);
        let Some(peer) = self.peers.get_mut(&number) else { return Ok(()) };
        let is_first = !self.users.has_clients();
        let files = [self.lease.page.as_fd(), table.as_fd()];
        dimmer_protocol::send(peer.socket.as_fd(), &Welcome.to_bytes(), &files)
            .map_err(|error| error.to_string())?;
        self.users.serves(peer.user, number);
        let id = ClientId(number);
        let table = table.into_memory();
        let program = self.names.join(peer.user, &name);
        info!(pid = peer.process, uid = peer.user, name, "client");
        let mut client = Box::new(Client::new(id, who, name, program, table));
        client.wide = asks.then(Wide::default);
        let group = self.options.root.text(&format!("/proc/{}/cgroup", client.process)).ok();
        let group = group.and_then(|text| Group::parse(&text));
        client.unit = group.as_ref().map(totals::unit).unwrap_or_default();
        let most = self.options.settings.most_programs();
        client.total = self.totals.join(client.user, &client.name, &client.unit, most);
        let line = client.line();
        join(&mut self.policy, &client, &self.options.settings);
        peer.wants = Wants::Decisions(client);
        self.give(number, counters);
        self.note(line);
        self.fresh_since_ns = None;
        if is_first {
            // The time without clients is not part of a window.
            self.looked = Instant::now();
        }
        Ok(())
    }

    /// Keeps a line for recordings, if there are any.
    fn note(&mut self, line: Line) {
        /// This many lines are sent without waiting for the next look.
        const MANY: usize = 4096;
        if self.is_recorded() {
            self.new_lines.push(line);
        }
        if self.new_lines.len() >= MANY {
            self.tell_recordings();
        }
    }

    fn is_recorded(&self) -> bool {
        self.peers.values().any(|peer| matches!(peer.wants, Wants::Record))
    }

    fn has_clients(&self) -> bool {
        self.users.has_clients()
    }

    fn clients(&self) -> impl Iterator<Item = &Client> {
        self.peers.values().filter_map(|peer| match &peer.wants {
            Wants::Decisions(client) => Some(&**client),
            _ => None,
        })
    }

    /// Reloads the settings, if there is a file, and starts with a new policy that has learnt
    /// nothing. If the settings are wrong, everything stays as it is.
    fn reload(&mut self) -> Result<bool, SettingsError> {
        let Some(path) = &self.options.file else { return Ok(false) };
        let settings = Settings::read(path)?;
        let core_settings = |settings: &Settings| (settings.named_cores(), settings.most_cores());
        if core_settings(&settings) != core_settings(&self.options.settings) {
            warn!("`cores` in the configuration takes effect when dimmerd is restarted");
        }
        if settings.socket_access() != self.options.settings.socket_access() {
            warn!("`server.socket_group` and `socket_mode` take effect when dimmerd is restarted");
        }
        let served = |settings: &Settings| (settings.listen(), settings.is_per_client());
        if served(&settings) != served(&self.options.settings) {
            warn!("`metrics` in the configuration takes effect when dimmerd is restarted");
        }
        if !settings.has_clocks_of(&self.options.settings) {
            warn!("`clocks` in the configuration takes effect when dimmerd is restarted");
        }
        self.options.settings = settings;
        if self.has_clients() {
            // Examining the machine takes longer than the lease.
            self.lease.renew(FINDING_OUT);
        }
        let spare = std::mem::take(&mut self.found.spare);
        let cores = self.found.cores;
        self.found = Found::new(&self.options.root, &self.options.settings);
        (self.found.spare, self.found.cores) = (spare, cores);
        let now_ns = nanoseconds(self.begun.elapsed());
        self.policy = new_policy(&self.options.settings, &self.found, now_ns);
        self.fresh_since_ns = Some(now_ns).filter(|_| !self.has_clients());
        for peer in self.peers.values() {
            if let Wants::Decisions(client) = &peer.wants {
                client
                    .table
                    .decisions
                    .iter()
                    .for_each(|word| word.store(dimmer_protocol::STAY, Ordering::Relaxed));
                join(&mut self.policy, client, &self.options.settings);
            }
        }
        let recordings: Vec<u64> = self
            .peers
            .iter()
            .filter(|(_, peer)| matches!(peer.wants, Wants::Record))
            .map(|(number, _)| *number)
            .collect();
        recordings.into_iter().for_each(|number| self.part(number, "ends with its settings"));
        Ok(true)
    }

    /// Tells clients that the server ends, and ends the lease.
    fn end(&mut self) {
        self.moderation = None;
        self.lease.page.renew(0);
        self.clients().for_each(|client| client.table.leave());
        info!("ended");
    }
}

/// Adds a client to a policy.
fn join(policy: &mut Policy, client: &Client, settings: &Settings) {
    policy.join_of(UserId(client.user), client.id, client.program);
    if client.wide.is_some() {
        policy.ask(client.id);
    }
    if !settings.acts_on(&client.name) {
        policy.hold(client.id);
    }
}

fn new_policy(settings: &Settings, found: &Found, now_ns: u64) -> Policy {
    let settings = settings.policy(found.cores, found.most(), &found.clocks, found.prices.clone());
    Policy::new(settings, Time::from_ns(now_ns))
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
