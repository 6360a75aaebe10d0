//! Tests of answers that are not received or not read, and of what is left of ended connections.

use super::*;

/// Sends another request over a connection.
fn ask(fixture: &mut Fixture, (number, socket): (u64, &OwnedFd)) {
    dimmer_protocol::send(socket.as_fd(), &Hello::Watch.to_bytes(), &[]).unwrap();
    fixture.server.hear(number);
}

/// Does what the server does between events until the condition is true.
#[track_caller]
fn until(fixture: &mut Fixture, is_so: impl Fn(&Server) -> bool) {
    let begin = Instant::now();
    while !is_so(&fixture.server) {
        fixture.server.tell_states();
        fixture.server.note_told();
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Number of packets that a peer can receive.
fn packets(socket: &OwnedFd) -> usize {
    let mut bytes = [0; Welcome::BYTES];
    let receive = || dimmer_protocol::receive(socket, &mut bytes).unwrap();
    std::iter::repeat_with(receive).take_while(|got| matches!(got, Some((1.., _)))).count()
}

/// Checks ended connections, as if it were time to: at a later moment than the last one.
fn close_received(fixture: &mut Fixture, at: &mut Instant) {
    *at += PATIENCE;
    fixture.server.close_received(*at);
}

/// Checks them until all are closed: the thread that closes sockets has copies of all files of this
/// process for a moment, which the other side's are here.
#[track_caller]
fn until_closed(fixture: &mut Fixture, at: &mut Instant) {
    let begin = Instant::now();
    while fixture.server.unreceived.count() > 0 {
        close_received(fixture, at);
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_client_that_receives_nothing_counts_until_it_does() {
    let mut fixture = fixture();
    fixture.server.options.settings = toml::from_str("[server]\nclients_per_user = 2\n").unwrap();
    let serve = Hello::Serve { name: "test".to_owned() };
    let sockets = [(); 2].map(|()| {
        let (number, socket) = fixture.say(1000, &serve);
        fixture.server.part(number, "has gone");
        socket
    });
    assert!(!fixture.server.has_clients());
    let is_served = |fixture: &mut Fixture, user| {
        let (number, _socket) = fixture.say(user, &serve);
        let is_served = fixture.server.peers.contains_key(&number);
        fixture.server.part(number, "has gone");
        is_served
    };
    let mut at = Instant::now();
    close_received(&mut fixture, &mut at);
    assert!(!is_served(&mut fixture, 1000) && is_served(&mut fixture, 1001));
    // One receives its answer, and the other closes its end.
    assert_eq!(packets(&sockets[0]), 1);
    drop(sockets);
    until_closed(&mut fixture, &mut at);
    assert!(is_served(&mut fixture, 1000));
    until_closed(&mut fixture, &mut at);
    assert_eq!(fixture.server.users.count(), 0);
}

#[test]
fn a_watcher_has_one_unreceived_answer_at_most() {
    let mut fixture = fixture();
    let (number, socket) = fixture.say(1000, &Hello::Watch);
    until(&mut fixture, |server| {
        let socket = server.peers.get(&number).map(|peer| &peer.socket);
        socket.is_some_and(|socket| !dimmer_protocol::is_all_received(socket).unwrap())
    });
    ask(&mut fixture, (number, &socket));
    until(&mut fixture, |server| !server.peers.contains_key(&number));
    let mut at = Instant::now();
    close_received(&mut fixture, &mut at);
    assert_eq!(fixture.server.users.count(), 1);
    assert_eq!(packets(&socket), 1);
    until_closed(&mut fixture, &mut at);
    assert_eq!(fixture.server.users.count(), 0);
}

#[test]
fn a_watcher_that_does_not_wait_for_its_answer_is_refused() {
    let mut fixture = fixture();
    let (number, socket) = fixture.say(1000, &Hello::Watch);
    drop(fixture.answer(&socket));
    ask(&mut fixture, (number, &socket));
    assert!(fixture.server.peers.contains_key(&number));
    ask(&mut fixture, (number, &socket));
    assert!(!fixture.server.peers.contains_key(&number));
}

#[test]
fn an_answer_that_is_not_read_keeps_no_memory() {
    let mut fixture = fixture();
    let (number, socket) = fixture.say(1000, &Hello::Watch);
    let pipe = fixture.answer(&socket);
    let length = || rustix::io::ioctl_fionread(&pipe).unwrap();
    // The pipe holds all of it.
    until(&mut fixture, |_| length() > 0);
    until(&mut fixture, |server| !server.peers.contains_key(&number));
    assert_eq!(length(), 0);
}

#[test]
fn a_client_that_has_left_keeps_no_memory_of_its_sites() {
    let mut fixture = fixture();
    let (number, _socket, table) = fixture.client(1000);
    table.add(b"parse", 7);
    fixture.look();
    fixture.server.part(number, "has gone");
    // The first page is still there.
    assert!(table.is_left() && table.length() == 1);
    assert_eq!(table.sites[0].name().1, 0);
}

#[test]
fn a_thread_of_the_server_is_a_peer_of_the_servers_user() {
    let mut fixture = fixture();
    let number = fixture.server.next_peer;
    let _client = fixture.server.connector().connect().unwrap();
    fixture.server.accept_internal();
    let peer = &fixture.server.peers[&number];
    assert_eq!(peer.process.cast_unsigned(), std::process::id());
    assert_eq!(peer.user, rustix::process::geteuid().as_raw());
}
