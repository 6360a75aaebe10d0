//! The thread that moderates clocks: reads the boards of all programs, has
//! `policy::moderation` decide, and carries that out by `dimmer-pace`, whose journal undoes
//! it if the server is killed.
//!
//! It is a thread of its own, because a change of a clock by files takes some hundred microseconds.
//! A program may write anything on its board: `process` verifies requests, `boards` bounds what
//! each user can make the thread do.

mod boards;
mod mark;
mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use dimmer_host::cpufreq::clocks::Clocks;
use dimmer_pace::{Decision, at_least_for, request_for};
use dimmer_policy::moderation::{Domain, Limits, Moderator, Outcome, Request};
use dimmer_processor::units::{CpuId, Time, whole};
use dimmer_protocol::{Clocks as Board, LEASE, Mapped, OnBoard, Socket, ticks, ticks_per_ns};
use dimmer_watch::state::ClockRequests;
use rustix::event::{EventfdFlags, epoll, eventfd};
use tracing::warn;

use boards::{Boards, Client, Found};
pub(crate) use mark::Mark;
pub(crate) use process::Process;

/// How often it verifies that requests still count.
const INTERVAL: Duration = Duration::from_millis(20);
/// The number of the event that wakes it; others are clients.
const WAKE: u64 = 0;
/// Maximum number of clients that are heard between two decisions, and of packets of each.
const PACKETS: usize = 64;
/// Maximum number of programs that wait to join. A guess: some milliseconds' worth.
const JOINS: usize = 256;

enum Event {
    Join(u64, Client),
    End,
}

/// The moderator as the server's loop sees it.
#[derive(Debug)]
pub(crate) struct Moderation {
    events: SyncSender<Event>,
    wake: Arc<OwnedFd>,
    counts: Arc<Mutex<BTreeMap<u64, ClockRequests>>>,
    thread: Option<JoinHandle<()>>,
    /// Programs see it before they connect, and not once this value is dropped.
    mark: Option<Mark>,
}

impl Moderation {
    /// Starts it. The process has a back end already.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn start(limits: Limits, mark: Mark) -> io::Result<Self> {
        let (events, of_thread) = sync_channel(JOINS);
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, &wake, data, epoll::EventFlags::IN)?;
        let counts = Arc::default();
        let desk = Desk {
            events: of_thread,
            wake: Arc::clone(&wake),
            epoll,
            counts: Arc::clone(&counts),
            boards: Boards::default(),
            moderator: Moderator::new(limits, Vec::new()),
            clocks: BTreeMap::new(),
            in_force: BTreeMap::new(),
            failed: BTreeMap::new(),
            begun: Instant::now(),
            looked: Instant::now(),
        };
        let thread = Builder::new().name("clocks".to_owned()).spawn(move || desk.work())?;
        Ok(Self { events, wake, counts, thread: Some(thread), mark: Some(mark) })
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// A program asks. It leaves by ending its connection.
    ///
    /// # Errors
    /// If too many others have come at the same time, or the moderator has failed.
    pub(crate) fn join(
        &self,
        number: u64,
        process: Process,
        board: Mapped<Board>,
        socket: Arc<Socket>,
    ) -> Result<(), String> {
        let client = Client::new(process, board, socket);
        let joined = self.events.try_send(Event::Join(number, client));
        joined.map_err(|error| match error {
            TrySendError::Full(_) => "too many programs ask for clocks at once".to_owned(),
            TrySendError::Disconnected(_) => "the moderator has failed".to_owned(),
        })?;
        self.wake();
        Ok(())
    }

    /// What became of a program's requests at the last decision.
    pub(crate) fn counts(&self, number: u64) -> ClockRequests {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(&number).cloned().unwrap_or_default()
    }
}

impl Drop for Moderation {
    /// Ends all requests, and then the connections.
    fn drop(&mut self) {
        self.mark = None;
        // The thread takes what is in the channel, unless it has ended.
        if self.events.send(Event::End).is_ok() {
            self.wake();
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A request that was made of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Made {
    cpu: u32,
    wanted: dimmer_pace::Request,
    /// Whether the machine may choose a faster clock.
    is_least: bool,
}

struct Desk {
    events: Receiver<Event>,
    wake: Arc<OwnedFd>,
    epoll: OwnedFd,
    counts: Arc<Mutex<BTreeMap<u64, ClockRequests>>>,
    boards: Boards,
    moderator: Moderator,
    /// The clocks of each CPU for which there was a request.
    clocks: BTreeMap<CpuId, Clocks>,
    /// By the number that a request has with the back end ([`Found::id`]).
    in_force: BTreeMap<u32, Made>,
    /// Requests that the machine did not take, by the same number. They are not made again, because
    /// their CPUs are left alone from then on, and take no other request's turn.
    failed: BTreeMap<u32, OnBoard>,
    begun: Instant,
    looked: Instant,
}

impl Desk {
    fn work(mut self) {
        let mut events = Vec::with_capacity(PACKETS);
        loop {
            let begin = Instant::now();
            if self.must_end() {
                return;
            }
            let again_at = self.step();
            // Programs that ring all the time take half of a CPU at most.
            sleep(begin.elapsed());
            let next = again_at.map(|at| self.begun + Duration::from_nanos(at.ns()));
            let look = (!self.boards.is_empty()).then(|| self.looked + INTERVAL);
            let next = [next, look].into_iter().flatten().min();
            let timeout = next.map(|next| next.saturating_duration_since(Instant::now()));
            let timeout = timeout.and_then(|timeout| timeout.try_into().ok());
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, room, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    warn!(%error, "clocks are moderated no longer");
                    return;
                }
            }
            for event in &events {
                match event.data.u64() {
                    WAKE => {
                        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
                    }
                    number => self.hear(number),
                }
            }
        }
    }

    /// Takes programs that join. Returns whether the moderator must end.
    fn must_end(&mut self) -> bool {
        for _ in 0..JOINS {
            match self.events.try_recv() {
                Ok(Event::Join(number, client)) => {
                    let data = epoll::EventData::new_u64(number);
                    let added =
                        epoll::add(&self.epoll, client.socket(), data, epoll::EventFlags::IN);
                    if added.is_ok() {
                        self.boards.join(number, client);
                    } else {
                        client.hang_up();
                    }
                }
                Ok(Event::End) => return true,
                Err(_) => return false,
            }
        }
        false
    }

    /// Takes a client's bells.
    fn hear(&mut self, number: u64) {
        let Some(client) = self.boards.client(number) else { return };
        for _ in 0..PACKETS {
            match dimmer_protocol::hear(client.socket(), &mut [0; 8]) {
                Ok(Some(1..)) => {}
                Ok(None) => return,
                // It has gone, or sends what no client does.
                Ok(Some(_)) | Err(_) => return self.leave(number),
            }
        }
    }

    /// A client leaves: its requests end at the next step.
    fn leave(&mut self, number: u64) {
        if let Some(client) = self.boards.leave(number) {
            let _ = epoll::delete(&self.epoll, client.socket());
            client.hang_up();
        }
    }

    /// Decides, and carries that out. Returns when to decide again.
    fn step(&mut self) -> Option<Time> {
        let elapsed = self.begun.elapsed().as_nanos();
        let now = Time::from_ns(u64::try_from(elapsed).unwrap_or(u64::MAX));
        let is_look = self.looked.elapsed() >= INTERVAL;
        if is_look {
            self.looked = Instant::now();
            let ended = self.boards.ended();
            ended.into_iter().for_each(|number| self.leave(number));
        }
        let until = ticks().saturating_add(whole(LEASE.as_nanos() as f64 * ticks_per_ns()));
        let (found, mut counts) = self.boards.read(now, until, is_look);
        let (mut asked, mut requests) = (Vec::new(), Vec::new());
        let failed = std::mem::take(&mut self.failed);
        for found in found {
            if failed.get(&found.id) == Some(&found.own) {
                self.failed.insert(found.id, found.own);
                counts.entry(found.client).or_default().refused += 1;
                continue;
            }
            match self.understand(&found) {
                Some((wanted, request)) => {
                    asked.push((found, wanted));
                    requests.push(request);
                }
                None => counts.entry(found.client).or_default().refused += 1,
            }
        }
        let decisions = self.moderator.decide(now, &requests);
        let mut granted = Vec::new();
        for ((outcome, request), (found, wanted)) in
            decisions.outcomes.iter().zip(&requests).zip(asked)
        {
            let count = counts.entry(found.client).or_default();
            let (clock, is_least) = match *outcome {
                Outcome::Granted(clock) => (clock, false),
                Outcome::AtLeast(clock) => (clock, true),
                Outcome::Waits => {
                    count.waiting += 1;
                    continue;
                }
                Outcome::HeldBack => {
                    count.held_back += 1;
                    continue;
                }
                Outcome::Refused => {
                    count.refused += 1;
                    continue;
                }
            };
            let limit = self.moderator.most_percent(request.user);
            let limited = dimmer_pace::Request::percent(limit).unwrap_or(wanted);
            let wanted = if clock == request.wanted { wanted } else { limited };
            let cpu = found.own.cpu;
            granted.push((found, Made { cpu, wanted, is_least }));
        }
        self.carry_out(granted, &mut counts);
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = counts;
        decisions.again_at
    }

    /// A request as the policy sees it; `None` if the machine does not know the CPU or the clock.
    fn understand(&mut self, found: &Found) -> Option<(dimmer_pace::Request, Request)> {
        let wanted = dimmer_pace::Request::of_number(found.own.number)?;
        let cpu = CpuId::new(found.own.cpu);
        let clocks = match self.clocks.get(&cpu) {
            Some(clocks) => *clocks,
            None => {
                let (clocks, cpus) = dimmer_pace::domain(cpu)?;
                let Clocks { slowest, base, fastest } = clocks;
                self.moderator.know(cpu, || Domain { cpus, slowest, base, fastest });
                *self.clocks.entry(cpu).or_insert(clocks)
            }
        };
        let clock = wanted.clock(&clocks)?;
        Some((wanted, Request { user: found.user, cpu, wanted: clock, since: found.since }))
    }

    /// Ends what is not granted any more, and makes the requests that are.
    fn carry_out(
        &mut self,
        granted: Vec<(Found, Made)>,
        counts: &mut BTreeMap<u64, ClockRequests>,
    ) {
        // What ends goes first, so that never more are boosted.
        let stays: BTreeSet<u32> = granted.iter().map(|(found, _)| found.id).collect();
        self.in_force.retain(|id, made| {
            let is_granted = stays.contains(id);
            if !is_granted {
                request_for(*id, CpuId::new(made.cpu), None);
            }
            is_granted
        });
        for (found, new) in granted {
            let count = counts.entry(found.client).or_default();
            if self.in_force.get(&found.id) == Some(&new) {
                count.granted += 1;
                continue;
            }
            // What was verified at the last look may have changed.
            let is_verified = self.boards.verify(&found);
            if is_verified && make(found.id, new) == Decision::Requested {
                self.in_force.insert(found.id, new);
                count.granted += 1;
                continue;
            }
            count.refused += 1;
            request_for(found.id, CpuId::new(found.own.cpu), None);
            self.in_force.remove(&found.id);
            if is_verified {
                self.failed.insert(found.id, found.own);
            }
        }
    }
}

fn make(id: u32, made: Made) -> Decision {
    let cpu = CpuId::new(made.cpu);
    if made.is_least {
        at_least_for(id, cpu, made.wanted)
    } else {
        request_for(id, cpu, Some(made.wanted))
    }
}

impl Drop for Desk {
    /// However the thread ends: first all requests, then the connections. A program that finds its
    /// connection ended may make its requests by itself.
    fn drop(&mut self) {
        match dimmer_pace::end() {
            Ok(report) if report.is_complete() => {}
            Ok(report) => warn!(?report, "some clocks could not be given back"),
            Err(error) => warn!(%error, "clocks could not be given back"),
        }
        self.boards.hang_up();
        while let Ok(Event::Join(_, client)) = self.events.try_recv() {
            client.hang_up();
        }
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
