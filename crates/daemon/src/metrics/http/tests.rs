//! Hostile scrapers: whatever they do, a well-behaved one gets its answer.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use dimmer_watch::state::{Client, Site, State};

/// How long to wait for something that will come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Times so long that a test does not depend on how fast its connections come and go.
const LIMITS: Limits = Limits { head: PATIENCE, whole: PATIENCE, ..Limits::USUAL };

/// Serves a state of `sites` sites. Returns the address, and the count of requests for the state.
fn serve_sites(limits: Limits, sites: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    serve(Listener::Tcp(listener), limits, move || {
        count.fetch_add(1, Ordering::Relaxed);
        let site = Site { name: "x".repeat(100).into(), ..Site::default() };
        let client = Client { sites: vec![site; sites], ..Client::default() };
        Ok(Measured::new(State { clients: vec![client], ..State::default() }, true))
    })
    .unwrap();
    (address, asked)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// What arrives until the server closes the connection.
fn answer(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset is an end as well.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

fn ask(address: SocketAddr, head: &str) -> String {
    let mut stream = connect(address);
    write!(stream, "{head}\r\nHost: x\r\n\r\n").unwrap();
    answer(&mut stream)
}

#[track_caller]
fn scrape(address: SocketAddr) {
    let text = ask(address, "GET /metrics HTTP/1.1");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.contains("\ndimmer_clients 1\n"), "{text}");
}

#[test]
fn a_page_is_told_in_the_format_asked_for() {
    let (address, _) = serve_sites(LIMITS, 1);
    scrape(address);
    let plain = ask(address, "GET /metrics?x=1 HTTP/1.1");
    assert!(plain.contains("content-type: text/plain; version=0.0.4") && !plain.contains("# EOF"));
    let open = ask(address, "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text");
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0"));
    assert!(open.contains("# EOF\n"));
    let head = ask(address, "HEAD /metrics HTTP/1.1");
    assert!(head.starts_with("HTTP/1.1 200 ") && !head.contains("dimmer_clients"), "{head}");
    assert!(ask(address, "GET / HTTP/1.1").starts_with("HTTP/1.1 404 "));
    assert!(ask(address, "POST /metrics HTTP/1.1").starts_with("HTTP/1.1 405 "));
    assert!(ask(address, "nonsense").starts_with("HTTP/1.1 400 "));
}

#[test]
fn a_body_is_refused_whatever_length_it_says_and_costs_nobody_else() {
    let (address, _) = serve_sites(LIMITS, 1);
    let _waiting: Vec<TcpStream> = ["1", "5", "10000000000000", "18446744073709551613"]
        .into_iter()
        .map(|length| {
            let mut stream = connect(address);
            write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n")
                .unwrap();
            // The body never comes, and the server does not wait for it.
            let text = answer(&mut stream);
            assert!(text.starts_with("HTTP/1.1 413 "), "{length}: {text}");
            scrape(address);
            stream
        })
        .collect();
    for length in ["18446744073709551615", "18446744073709551616", "-1", "x", "5, 6"] {
        let text = ask(address, &format!("GET /metrics HTTP/1.1\r\nContent-Length: {length}"));
        assert!(text.starts_with("HTTP/1.1 4"), "{length}: {text}");
        scrape(address);
    }
    let chunked = ask(address, "GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked");
    assert!(chunked.starts_with("HTTP/1.1 413 "), "{chunked}");
}

#[test]
fn a_head_without_an_end_is_cut_off() {
    let (address, _) = serve_sites(LIMITS, 1);
    for line in ["X: ".to_owned(), "GET /".to_owned(), "X: y\r\n".repeat(10)] {
        let mut stream = connect(address);
        stream.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
        let piece = if line.ends_with('\n') { line.clone() } else { "a".repeat(1 << 16) };
        stream.write_all(line.as_bytes()).unwrap();
        // More than the two sockets hold, which is some megabytes.
        let is_cut =
            (0..(1 << 30) / piece.len()).any(|_| stream.write_all(piece.as_bytes()).is_err());
        assert!(is_cut, "{line}");
        scrape(address);
    }
}

#[test]
fn a_head_that_comes_slowly_is_not_waited_for() {
    let limits = Limits { head: Duration::from_millis(50), ..LIMITS };
    let (address, _) = serve_sites(limits, 1);
    for said in ["", "GET /metrics HTTP/1.1\r\nX: "] {
        let mut stream = connect(address);
        stream.write_all(said.as_bytes()).unwrap();
        // The server closes the connection: otherwise this would wait for longer than the test may.
        let text = answer(&mut stream);
        assert!(!text.contains(" 200 "), "{text}");
    }
}

#[test]
fn thousands_of_connections_that_ask_nothing_keep_nobody_out() {
    let (address, asked) = serve_sites(LIMITS, 1);
    let mut idle = Vec::new();
    for number in 0..2000 {
        let mut stream = connect(address);
        // Some have started a request.
        if number % 2 == 0 {
            let _ = stream.write_all(b"GET /me");
        }
        // Connections that are closed already use no file of this process.
        if idle.len() >= 200 {
            drop(idle.remove(0));
        }
        idle.push(stream);
        if number % 500 == 499 {
            scrape(address);
        }
    }
    scrape(address);
    assert!(asked.load(Ordering::Relaxed) >= 1);
    // The newest may still ask; the server has closed the oldest.
    let mut newest = idle.pop().unwrap();
    assert_eq!(answer(&mut idle[0]), "");
    newest.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    assert!(answer(&mut newest).starts_with("HTTP/1.1 "));
}

#[test]
fn those_who_do_not_read_keep_nobody_out_and_share_a_state() {
    // More than the system buffers for a connection that is not read.
    let (address, asked) = serve_sites(LIMITS, 40_000);
    let deaf: Vec<TcpStream> = (0..3 * LIMITS.answered)
        .map(|_| {
            let mut stream = connect(address);
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            // Its answer has started.
            let mut first = [0];
            stream.read_exact(&mut first).unwrap();
            stream
        })
        .collect();
    scrape(address);
    assert!(asked.load(Ordering::Relaxed) <= deaf.len() + 1);
    let whole = ask(address, "GET /metrics HTTP/1.1").len();
    let is_cut = |mut stream: TcpStream| answer(&mut stream).len() + 1 < whole;
    assert!(is_cut(deaf.into_iter().next().unwrap()));
}

#[test]
fn one_request_is_all_that_a_connection_has() {
    let (address, _) = serve_sites(LIMITS, 1);
    let mut stream = connect(address);
    let twice = "GET /metrics HTTP/1.1\r\nConnection: keep-alive\r\n\r\n".repeat(2);
    stream.write_all(twice.as_bytes()).unwrap();
    let text = answer(&mut stream);
    assert_eq!(text.matches("HTTP/1.1 200").count(), 1, "{text}");
    let _ = stream.shutdown(Shutdown::Both);
}

#[test]
fn a_unix_socket_tells_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics");
    let address = Address::Unix(path.clone());
    assert_eq!(Address::parse(&address.to_string()), Some(address.clone()));
    // A leftover socket of a server is replaced; any other file stays.
    drop(StdUnixListener::bind(&path).unwrap());
    let listener = Listener::bind(&address).unwrap();
    assert!(Listener::bind(&address).is_err());
    let file = directory.path().join("file");
    std::fs::write(&file, "day").unwrap();
    assert!(Listener::bind(&Address::Unix(file.clone())).is_err());
    assert_eq!(std::fs::read(file).unwrap(), b"day");
    serve(listener, LIMITS, || Err("nothing yet".to_owned())).unwrap();
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 503 ") && text.ends_with("nothing yet"), "{text}");
}

#[test]
fn addresses_are_of_one_origin_by_who_may_have_them() {
    let origin = |text: &str| Origin::of(SocketAddr::new(text.parse().unwrap(), 1));
    assert_eq!(origin("2001:db8::1"), origin("2001:db8::ffff:2"));
    assert_ne!(origin("2001:db8::1"), origin("2001:db8:0:1::1"));
    assert_eq!(origin("::ffff:192.0.2.1"), origin("192.0.2.1"));
    assert_ne!(origin("192.0.2.1"), origin("192.0.2.2"));
}

#[test]
fn the_oldest_that_has_not_asked_ends_first_and_of_who_has_most() {
    let limits = Limits { connections: 4, of_origin: 3, answered: 1, ..LIMITS };
    let mut connections = Connections { limits, next: 0, known: BTreeMap::new() };
    let known = |connections: &Connections| connections.known.keys().copied().collect::<Vec<_>>();
    let (one, other) = (Origin::User(1), Origin::User(2));
    for origin in [one, one, one] {
        connections.admit(origin);
    }
    connections.answer(1);
    connections.admit(one);
    assert_eq!(known(&connections), [1, 3, 4]);
    connections.admit(other);
    connections.admit(other);
    assert_eq!(known(&connections), [1, 4, 5, 6]);
    connections.answer(4);
    assert_eq!(known(&connections), [4, 5, 6]);
}

#[test]
fn of_those_being_answered_the_oldest_of_the_origin_with_most_ends() {
    let limits = Limits { answered: 3, ..LIMITS };
    let mut connections = Connections { limits, next: 0, known: BTreeMap::new() };
    for user in [1, 2, 2, 2, 1] {
        let number = connections.admit(Origin::User(user));
        connections.answer(number);
    }
    let known: Vec<(u64, Origin)> =
        connections.known.iter().map(|(number, known)| (*number, known.origin)).collect();
    // The first connection is older than all of the other user.
    assert_eq!(known, [(1, Origin::User(1)), (4, Origin::User(2)), (5, Origin::User(1))]);
}
