//! Tests of what a state contains, and for whom.

use super::*;

#[test]
fn root_and_the_servers_own_user_see_all_programs_and_others_their_own() {
    let mut fixture = fixture();
    let own = rustix::process::geteuid().as_raw();
    let _clients = [fixture.client(1000), fixture.client(1001), fixture.client(own)];
    let sees = |user| {
        let state = fixture.server.state(user);
        (state.clients.len(), state.hidden)
    };
    assert_eq!((sees(0), sees(own)), ((3, 0), (3, 0)));
    let others = [1000, 1001].into_iter().filter(|user| *user != own);
    assert!(others.map(sees).all(|seen| seen == (1, 2)));
    assert_eq!(sees(1002), (0, 3));
}

#[test]
fn a_state_has_core_specialisation_if_its_module_is_loaded() {
    let mut fixture = fixture();
    let module = fixture.directory.path().join("sys/kernel/dimmer_xcr0");
    let mut specialise = |user| {
        let (_, watcher) = fixture.say(user, &Hello::Watch);
        let file = std::fs::File::from(fixture.answer(&watcher));
        let state: state::State = serde_json::from_reader(file).unwrap();
        state.specialise
    };
    assert_eq!(specialise(1000), None);
    std::fs::create_dir_all(&module).unwrap();
    for (number, name) in [
        "faults",
        "moves",
        "move_ns",
        "returns",
        "ended_by_calls",
        "ended_by_time",
        "allowed",
        "limits",
        "without_scheduler",
        "switches",
        "missed",
    ]
    .iter()
    .enumerate()
    {
        std::fs::write(module.join(name), format!("{number}\n")).unwrap();
    }
    std::fs::write(module.join("narrow"), "2-3\n").unwrap();
    std::fs::write(module.join("wide"), "0-1\n").unwrap();
    let expected = state::Specialise {
        narrow: vec![2, 3],
        wide: vec![0, 1],
        is_scheduled: false,
        faults: 0,
        moves: 1,
        move_ns: 2,
        returns: 3,
        ended_by_calls: 4,
        ended_by_time: 5,
        allowed: 6,
        limits: 7,
        without_scheduler: 8,
        switches: 9,
        missed: 10,
    };
    assert_eq!(specialise(1001), Some(expected));
}

#[test]
fn a_client_that_asks_for_cores_is_shown_and_recorded_as_one() {
    let mut fixture = fixture();
    let four = dimmer_policy::server::settings::Settings::usual(4);
    fixture.server.policy = Policy::new(four, Time::START);
    let (_, recording) = fixture.say(0, &Hello::Record);
    let (number, socket) = fixture.say(1000, &Hello::Ask { name: "test".to_owned() });
    let mut bytes = [0; Welcome::BYTES];
    let welcome = dimmer_protocol::receive(&socket, &mut bytes).unwrap().unwrap();
    let (_, [_, Some(table)]) = welcome else { panic!("{welcome:?}") };
    let table = Mapped::<Table>::new(table.as_fd()).unwrap();
    table.add(b"kept", 0);
    fixture.look();
    table.sites[0].add_calls(1);
    // More than can be: it counts for one CPU, all that this machine has.
    table.head.client.set_wide(u64::MAX / 2);
    fixture.look();
    assert_eq!(fixture.server.dedicated, 1);
    let state = fixture.server.state(1000);
    let [client] = &state.clients[..] else { panic!("{state:?}") };
    assert!(client.wide_threads.is_some_and(|threads| threads > 0.0 && threads <= 1.0));
    let site = &client.sites[0];
    assert_eq!((&*site.action, &*site.reason), ("move", "asked for"));
    assert_eq!(table.decisions[0].load(Ordering::Relaxed), dimmer_protocol::DELEGATE);
    // A reload forgets everything but that it asks.
    assert!(fixture.server.reload().unwrap());
    assert_eq!(table.decisions[0].load(Ordering::Relaxed), dimmer_protocol::STAY);
    assert!(fixture.server.policy.was_wide(ClientId(number), 0));
    fixture.server.part(number, "has gone");
    assert_eq!(fixture.server.dedicated, 0);
    let lines = fixture.lines(&recording);
    let joins = |line: &Line| matches!(line, Line::Join { asks: true, .. });
    let wide = |line: &Line| matches!(line, Line::Step(step) if step.wide.len() == 1);
    assert!(lines.iter().any(joins) && lines.iter().any(wide), "{lines:?}");
}

/// The machine has no back end but those that follow threads, or not even that.
#[test]
fn what_keeps_the_server_from_moderating_is_in_its_state() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let file = directory.path().join("dimmerd.toml");
    std::fs::write(&file, "[clocks]\nmoderate = true\n").unwrap();
    let settings = Settings::read(&file).unwrap();
    let root = Root::new(directory.path());
    let options = Options { root, socket: socket.clone(), inherited: None, file: None, settings };
    let wake = Arc::new(UnixStream::pair().unwrap().0);
    let signals = Signals { end: Arc::default(), reload: Arc::default(), wake };
    let server = Server::new(options, signals).unwrap();
    let mut fixture = Fixture { server, directory };
    let why = fixture.server.state(0).no_clocks.unwrap();
    assert!(why.contains("uclamp: its requests follow threads"), "{why}");
    assert!(why.contains("cpufreq: no policy under /sys"), "{why}");
    assert!(!dimmer_protocol::clocks_mark(&socket).exists());
    let (number, client) = fixture.say(1000, &Hello::Clocks { name: "test".to_owned() });
    assert!(!fixture.server.peers.contains_key(&number) && !fixture.server.has_clients());
    assert!(fixture.server.fresh_since_ns.is_some());
    drop(client);
}

#[test]
fn what_a_client_did_stays_counted_when_it_has_gone() {
    let mut fixture = fixture();
    let process = fixture.directory.path().join("proc/77");
    std::fs::create_dir_all(&process).unwrap();
    std::fs::write(process.join("cgroup"), "0::/system.slice/x.service\n").unwrap();
    let (number, _socket, table) = fixture.client(1000);
    table.add(b"parse", 7);
    fixture.look();
    // No look follows before its end.
    table.sites[0].add_calls(30);
    fixture.server.part(number, "has gone");
    let again = fixture.client(1000);
    let state = fixture.server.state(0);
    let sums = state.programs.iter().map(|one| (&*one.program, &*one.unit, one.calls));
    assert_eq!(sums.collect::<Vec<_>>(), [("other", "other", 0), ("test", "x.service", 30)]);
    assert_eq!((state.programs[1].connections, &*state.clients[0].unit), (2, "x.service"));
    // Sums are of all users.
    let other = rustix::process::geteuid().as_raw() + 1;
    assert_eq!(fixture.server.state(other).programs, []);
    drop(again);
}
