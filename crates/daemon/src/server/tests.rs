//! Tests of the server from within: what many users, or recordings, do to it between two looks.

mod states;
mod unread;

use std::os::fd::AsFd as _;

use dimmer_policy::server::{ProgramId, SiteId};
use dimmer_protocol::{Credentials, Mapped, SITES};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::*;
use crate::counters::Counters;
use crate::counters::tests::unopened;
use dimmer_watch::state;

/// How long to wait for something that will come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server on a machine whose file system is empty; the test acts as its loop.
struct Fixture {
    server: Server,
    directory: tempfile::TempDir,
}

fn fixture() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        root: Root::new(directory.path()),
        socket: directory.path().join("socket"),
        inherited: None,
        file: Some(directory.path().join("dimmerd.toml")),
        settings: Settings::default(),
    };
    std::fs::write(directory.path().join("dimmerd.toml"), "").unwrap();
    let wake = Arc::new(UnixStream::pair().unwrap().0);
    let signals = Signals { end: Arc::default(), reload: Arc::default(), wake };
    Fixture { server: Server::new(options, signals).unwrap(), directory }
}

impl Fixture {
    /// Connects a peer that sends nothing.
    fn connect(&mut self, user: u32) -> (u64, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (here, there) = pair.unwrap();
        let number = self.server.next_peer;
        let here = Socket::new(here, &self.server.closer);
        self.server.admit(here, Credentials { process: 77, user });
        (number, there)
    }

    fn say(&mut self, user: u32, hello: &Hello) -> (u64, OwnedFd) {
        let (number, socket) = self.connect(user);
        dimmer_protocol::send(socket.as_fd(), &hello.to_bytes(), &[]).unwrap();
        self.server.hear(number);
        (number, socket)
    }

    fn client(&mut self, user: u32) -> (u64, OwnedFd, Mapped<Table>) {
        let (number, socket) = self.say(user, &Hello::Serve { name: "test".to_owned() });
        let mut bytes = [0; Welcome::BYTES];
        let welcome = dimmer_protocol::receive(&socket, &mut bytes).unwrap().unwrap();
        let (_, [_, Some(table)]) = welcome else { panic!("{welcome:?}") };
        (number, socket, Mapped::new(table.as_fd()).unwrap())
    }

    fn look(&mut self) {
        self.server.look(Instant::now());
    }

    /// The lines that a recording has received, once all are sent.
    fn lines(&self, socket: &OwnedFd) -> Vec<Line> {
        let (told, is_told) = std::sync::mpsc::channel();
        assert!(self.server.teller.tell(teller::Job::Fence(told)).is_ok());
        is_told.recv().unwrap();
        lines(socket)
    }

    /// Does what the server does between events until an answer has come.
    fn answer(&mut self, socket: &OwnedFd) -> OwnedFd {
        let begin = Instant::now();
        loop {
            self.server.tell_states();
            self.server.note_told();
            let mut bytes = [0; Welcome::BYTES];
            if let Some((_, [Some(file), None])) =
                dimmer_protocol::receive(socket, &mut bytes).unwrap()
            {
                return file;
            }
            assert!(begin.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn what_was_learnt_of_a_program_is_found_again_or_forgotten_for_good() {
    let mut fixture = fixture();
    let (_, recording) = fixture.say(0, &Hello::Record);
    let mut comes = |name: &[u8]| {
        let (number, _socket, table) = fixture.client(1000);
        table.add(name, 7);
        fixture.look();
        let client = fixture.server.clients().next().unwrap();
        let known = (client.program, client.sites[0].id);
        fixture.server.part(number, "has gone");
        known
    };
    let parse = comes(b"parse");
    assert_eq!(comes(b"parse"), parse);
    let write = comes(b"write");
    assert!(write.0 == parse.0 && write.1 != parse.1);
    let is_forget = |line: &Line| matches!(line, Line::Forget { .. });
    assert!(!fixture.lines(&recording).iter().any(is_forget));
    // More sites than the server remembers.
    let (number, _socket, table) = fixture.client(1000);
    let count = (0..SITES).filter(|site| table.add(format!("{site}").as_bytes(), 1).is_some());
    assert_eq!(count.count(), SITES);
    fixture.look();
    fixture.server.part(number, "has gone");
    fixture.server.tell_recordings();
    let forgotten: Vec<Line> = fixture.lines(&recording).into_iter().filter(is_forget).collect();
    let of = |(program, site): (ProgramId, SiteId)| Line::Forget {
        program: program.0,
        site: Some(site.0),
    };
    assert_eq!(forgotten, [of(parse), of(write)]);
}

/// The lines that a recording has received.
fn lines(socket: &OwnedFd) -> Vec<Line> {
    let mut text = String::new();
    let mut bytes = [0; Welcome::BYTES];
    while let Some((_, [Some(file), _])) = dimmer_protocol::receive(socket, &mut bytes).unwrap() {
        io::Read::read_to_string(&mut std::fs::File::from(file), &mut text).unwrap();
    }
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_user_who_says_nothing_keeps_nobody_out() {
    let mut fixture = fixture();
    let silent: Vec<_> = (0..300).map(|_| fixture.connect(1001)).collect();
    assert!(fixture.server.peers.len() < 20);
    // The newest may still send a request.
    assert!(fixture.server.peers.contains_key(&silent[299].0));
    assert!(!fixture.server.peers.contains_key(&silent[0].0));
    fixture.client(1000);
    // Those of the same user, too, even if their requests were not read at once.
    fixture.client(1001);
    let (number, socket) = fixture.connect(1001);
    let hello = Hello::Serve { name: "late".to_owned() }.to_bytes();
    dimmer_protocol::send(socket.as_fd(), &hello, &[]).unwrap();
    let _others: Vec<_> = (0..50).map(|_| fixture.connect(1001)).collect();
    assert!(matches!(fixture.server.peers[&number].wants, Wants::Decisions(_)));
}

#[test]
fn files_that_come_with_a_packet_hold_up_nothing() {
    let (ended, ends) = std::sync::mpsc::channel();
    // On a thread, because closing the file takes an hour.
    let _ = std::thread::spawn(move || {
        let mut fixture = fixture();
        let honest = fixture.client(1000);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for hello in [Hello::Serve { name: "x".to_owned() }, Hello::Watch, Hello::Record] {
            let file = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let _other = listener.accept().unwrap();
            file.set_nonblocking(true).unwrap();
            while io::Write::write(&mut &file, &[0; 65536]).is_ok() {}
            file.set_nonblocking(false).unwrap();
            let hour = Some(Duration::from_secs(3600));
            rustix::net::sockopt::set_socket_linger(&file, hour).unwrap();
            let silent = fixture.connect(1001);
            let heard = fixture.connect(1001);
            for (_, socket) in [&silent, &heard] {
                let files = [file.as_fd()];
                dimmer_protocol::send(socket.as_fd(), &hello.to_bytes(), &files).unwrap();
            }
            drop(file);
            fixture.server.hear(heard.0);
            assert!(!fixture.server.peers.contains_key(&heard.0));
            fixture.server.part(silent.0, "has gone");
        }
        assert!(fixture.server.peers.contains_key(&honest.0));
        drop(fixture);
        ended.send(())
    });
    ends.recv_timeout(PATIENCE).expect("the server waits");
}

#[test]
fn a_user_who_watches_keeps_no_other_out() {
    let mut fixture = fixture();
    let watching: Vec<_> = (0..300).map(|_| fixture.say(1001, &Hello::Watch)).collect();
    let many = fixture.server.peers.len();
    assert!(many < 100);
    let (number, _socket) = fixture.say(1000, &Hello::Watch);
    assert!(fixture.server.peers.contains_key(&number));
    fixture.client(1001);
    // Counts return to zero.
    watching.iter().for_each(|(number, _)| fixture.server.part(*number, "has gone"));
    assert_eq!(fixture.server.users.numbers(1001).unwrap()[3], 0);
    let numbers: Vec<u64> = fixture.server.peers.keys().copied().collect();
    numbers.into_iter().for_each(|number| fixture.server.part(number, "has gone"));
    assert_eq!(fixture.server.users.count(), 0);
}

#[test]
fn a_state_is_put_together_a_part_at_a_time_and_read_from_a_pipe() {
    let mut fixture = fixture();
    let clients: Vec<_> = (0..5).map(|_| fixture.client(1000)).collect();
    for (_, _, table) in &clients {
        assert!((0..SITES).all(|_| table.add(b"site", 1).is_some()));
    }
    fixture.look();
    let (_, watcher) = fixture.say(1000, &Hello::Watch);
    // Nothing is answered at once, and each part has a limited number of sites.
    let mut parts = Vec::new();
    loop {
        fixture.server.may_tell = Instant::now();
        fixture.server.tell_states();
        let Some(publication) = &fixture.server.publication else { break };
        parts.push(publication.clients.iter().map(|client| client.sites.len()).sum::<usize>());
    }
    assert_eq!(parts, [SITES, 2 * SITES, 3 * SITES, 4 * SITES, 5 * SITES]);
    let file = fixture.answer(&watcher);
    let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&file).unwrap().st_mode);
    assert_eq!(kind, rustix::fs::FileType::Fifo);
    let state: state::State = serde_json::from_reader(std::fs::File::from(file)).unwrap();
    let sites: usize = state.clients.iter().map(|client| client.sites.len()).sum();
    assert_eq!((state.clients.len(), sites, state.hidden), (5, 5 * SITES, 0));
}

#[test]
fn a_watcher_that_does_not_read_its_answer_has_to_go_and_others_are_told() {
    let mut fixture = fixture();
    let (_, _, table) = fixture.client(1000);
    // More than a pipe holds.
    assert!((0..SITES).all(|_| table.add(&[b'x'; 120], 1).is_some()));
    fixture.look();
    let (deaf, deaf_socket) = fixture.say(1000, &Hello::Watch);
    let _unread = fixture.answer(&deaf_socket);
    // Another user's watcher gets its state meanwhile; this user's other watchers get none
    // while the text is in memory.
    let (_, other) = fixture.say(0, &Hello::Watch);
    let file = fixture.answer(&other);
    let state: state::State = serde_json::from_reader(std::fs::File::from(file)).unwrap();
    assert_eq!(state.clients.len(), 1);
    let begin = Instant::now();
    while fixture.server.peers.contains_key(&deaf) {
        fixture.server.tell_states();
        fixture.server.note_told();
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(10));
    }
    let (_, again) = fixture.say(1000, &Hello::Watch);
    drop(fixture.answer(&again));
}

#[test]
fn a_recording_that_is_not_read_ends() {
    let mut fixture = fixture();
    let (number, socket) = fixture.say(0, &Hello::Record);
    let name = "x".repeat(1 << 20);
    let begin = Instant::now();
    let mut told = 0;
    while fixture.server.peers.contains_key(&number) {
        fixture.server.note(Line::Site { site: 1, name: name.clone() });
        fixture.server.tell_recordings();
        fixture.server.note_told();
        told += 1;
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(told < 1000, "{told}");
    drop(socket);
}

#[test]
fn sites_are_shared_so_that_something_is_left_for_each_user() {
    let mut fixture = fixture();
    let settings = "[server]\nsites = 3000\nsites_per_user = 2000\n";
    fixture.server.options.settings = toml::from_str(settings).unwrap();
    let mut sites = |user: u32| {
        let clients: Vec<_> = (0..3).map(|_| fixture.client(user)).collect();
        for (_, _, table) in &clients {
            assert!((0..SITES).all(|_| table.add(b"site", 1).is_some()));
        }
        fixture.look();
        fixture.server.users.numbers(user).unwrap()[1]
    };
    assert_eq!([sites(1000), sites(1001), sites(1002)], [1500, 750, 375]);
}

#[test]
fn watchers_and_clients_are_shared_as_well() {
    let mut fixture = fixture();
    fixture.server.most_peers = 40;
    let mut count = |user: u32, hello: &Hello| {
        let said: Vec<_> = (0..40).map(|_| fixture.say(user, hello)).collect();
        drop(said);
        let [clients, _, _, watchers] = fixture.server.users.numbers(user).unwrap();
        clients + watchers
    };
    let serve = Hello::Serve { name: "test".to_owned() };
    assert_eq!([count(1000, &serve), count(1001, &serve)], [20, 10]);
}

#[test]
fn the_lease_is_renewed_between_any_two_steps() {
    let mut fixture = fixture();
    let _clients: Vec<_> = (0..3).map(|_| fixture.client(1000)).collect();
    let lease = &mut fixture.server.lease;
    lease.hold();
    // The lease lapses during this; a look renews it before the look ends.
    std::thread::sleep(2 * dimmer_protocol::LEASE);
    assert!(!lease.page.holds(dimmer_protocol::ticks()));
    let before = dimmer_protocol::ticks();
    fixture.look();
    assert!(fixture.server.lease.page.holds(before));
    // Not if there are no clients to keep it for.
    fixture.server.lease.rest();
    std::thread::sleep(2 * dimmer_protocol::LEASE);
    fixture.server.lease.keep();
    assert!(!fixture.server.lease.page.holds(dimmer_protocol::ticks()));
}

#[test]
fn nothing_is_kept_for_recordings_that_nobody_makes() {
    let mut fixture = fixture();
    for _ in 0..100 {
        let (number, ..) = fixture.client(1000);
        fixture.server.part(number, "has gone");
    }
    assert!(fixture.server.new_lines.is_empty());
}

#[test]
fn each_recording_is_told_all() {
    let mut fixture = fixture();
    let (_, first) = fixture.say(0, &Hello::Record);
    let (one, ..) = fixture.client(1000);
    let (_, second) = fixture.say(0, &Hello::Record);
    fixture.server.part(one, "has gone");
    let (two, ..) = fixture.client(1000);
    fixture.look();
    for recording in [fixture.lines(&first), fixture.lines(&second)] {
        let joined = recording.iter().filter_map(|line| match line {
            Line::Join { client, .. } => Some(*client),
            _ => None,
        });
        assert_eq!(joined.collect::<Vec<_>>(), [one, two], "{recording:?}");
        let left = |line: &&Line| **line == Line::Leave { client: one };
        assert_eq!(recording.iter().filter(left).count(), 1);
        assert!(matches!(recording[..], [Line::Begin(_), .., Line::Step(_)]));
    }
}

#[test]
fn one_users_clock_is_no_evidence_for_another() {
    let mut fixture = fixture();
    fixture.server.found.clocks = vec![0.9];
    let clients = [fixture.client(1000), fixture.client(1001), fixture.client(1001)];
    let tell = |fixture: &mut Fixture, before: [u64; 3]| {
        for ((_, _, table), before) in clients.iter().zip(before) {
            (0..100).for_each(|_| table.sites[0].add_clock(before, 300));
        }
        fixture.look();
    };
    for (_, _, table) in &clients {
        table.add(b"work", 1);
    }
    fixture.look();
    // The second client reports a clock that is five times as high.
    tell(&mut fixture, [300, 60, 300]);
    tell(&mut fixture, [300, 60, 300]);
    let clocks: Vec<_> = fixture.server.clients().map(|client| client.sites[0].clock).collect();
    assert_eq!(clocks, [Some(1.0), Some(0.2), Some(0.2)]);
}

#[test]
fn settings_read_anew_leave_the_lease_and_a_policy_that_a_recording_begins_with() {
    let mut fixture = fixture();
    let begin = |fixture: &mut Fixture| {
        let (_, recording) = fixture.say(0, &Hello::Record);
        let Some(Line::Begin(begin)) = fixture.lines(&recording).into_iter().next() else {
            panic!()
        };
        (begin.is_fresh, begin.now_ns)
    };
    assert_eq!(begin(&mut fixture), (true, 0));
    let before = nanoseconds(fixture.server.begun.elapsed());
    fixture.server.reload().unwrap();
    let (is_fresh, now_ns) = begin(&mut fixture);
    assert!(is_fresh && now_ns >= before, "{now_ns} {before}");
    assert!(!fixture.server.lease.page.holds(dimmer_protocol::ticks()));
    let (number, ..) = fixture.client(1000);
    assert!(!begin(&mut fixture).0);
    let now = dimmer_protocol::ticks();
    fixture.server.reload().unwrap();
    assert!(fixture.server.lease.page.holds(now + 2 * lease::ticks_of(dimmer_protocol::LEASE)));
    assert!(!begin(&mut fixture).0);
    fixture.server.part(number, "has gone");
    fixture.server.reload().unwrap();
    assert!(begin(&mut fixture).0);
}

#[test]
fn the_last_client_leaves_no_core_dedicated() {
    let mut fixture = fixture();
    fixture.server.lease.page.write(&[2, 3]);
    let clients = [fixture.client(1000), fixture.client(1001)];
    fixture.server.lease.page.dedicate(2);
    fixture.server.dedicated = 1;
    fixture.server.part(clients[0].0, "has gone");
    assert_eq!(fixture.server.lease.page.dedicated(), 2);
    fixture.server.part(clients[1].0, "has gone");
    assert_eq!((fixture.server.lease.page.dedicated(), fixture.server.dedicated), (0, 0));
}

#[test]
fn one_users_counters_leave_files_for_others() {
    let mut fixture = fixture();
    // A quarter of the files are for counters: 120.
    fixture.server.most_peers = 480;
    let late = Instant::now() + Duration::from_secs(1000);
    let mut count = |user: u32, threads, children| {
        let (number, ..) = fixture.client(user);
        let counters = fixture.server.open(unopened(threads, children), (77, user), 0, late);
        let files = counters.as_ref().map(Counters::files);
        fixture.server.give(number, counters);
        (files, fixture.server.users.was_refused(user))
    };
    assert_eq!(count(1000, 15, 0), (Some(45), false));
    // Half of all are 60. Children's counters are found when some are open already.
    assert_eq!(count(1000, 6, 0), (None, true));
    assert_eq!(count(1000, 1, 5), (None, true));
    assert_eq!(count(1000, 1, 4), (Some(15), true));
    assert_eq!(count(1000, 1, 0), (None, true));
    // Half of what is left, for each new user.
    assert_eq!(count(1001, 11, 0), (None, true));
    assert_eq!(count(1001, 10, 0), (Some(30), true));
    assert_eq!(count(1002, 5, 0), (Some(15), false));
    assert_eq!(count(1000, 1, 0), (None, true), "no more, as others have come");
    // Files granted before the others came remain.
    let mut open = |granted| fixture.server.open(unopened(1, 0), (77, 1000), granted, late);
    assert!(open(3).is_some() && open(0).is_none());
    let numbers: Vec<u64> = fixture.server.clients().map(|client| client.id.0).collect();
    let files = |fixture: &Fixture, user| fixture.server.users.numbers(user).map(|of| of[2]);
    let one = files(&fixture, 1001);
    for number in &numbers[..numbers.len() - 1] {
        fixture.server.part(*number, "has gone");
    }
    assert_eq!((one, files(&fixture, 1000)), (Some(30), Some(0)));
    assert_eq!(files(&fixture, 1001), None);
}

#[test]
fn counters_are_opened_a_little_at_a_time() {
    let mut fixture = fixture();
    fixture.server.most_peers = 4800;
    let past = Instant::now();
    for (user, threads) in [(1000, 3), (1001, 1), (1001, 2)] {
        let (number, ..) = fixture.client(user);
        let counters = fixture.server.open(unopened(threads, 0), (77, user), 0, past).unwrap();
        fixture.server.give(number, Some(counters));
    }
    // Even if no time is left, one thread's counters are opened.
    for expected in [[false, true, false], [false, true, false], [true, true, false], [true; 3]] {
        let counters = fixture.server.clients().map(|client| client.counters.as_ref().unwrap());
        assert_eq!(counters.map(|one| one.is_open).collect::<Vec<_>>(), expected);
        fixture.server.count_on(past);
    }
    let files = |user| fixture.server.users.numbers(user).unwrap()[2];
    assert_eq!((files(1000), files(1001)), (9, 9));
}
