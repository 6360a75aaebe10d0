//! Metrics, as Prometheus gets them from the program itself.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use dimmer_protocol::SITES;

use super::{PATIENCE, Server, said};

#[test]
fn metrics_are_told_over_http() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = Server::start(&format!("[metrics]\nlisten = \"{free}\"\nper_client = true\n"));
    let client = server.client(3000);
    server.wait(|state| state.clients.iter().any(|client| !client.sites.is_empty()));
    let get = |path: &str| {
        let mut stream = TcpStream::connect(free).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let text = get("/metrics");
    assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("text/plain; version=0.0.4"));
    // The line of the site in the example.
    let source = include_str!("../../../runtime/examples/client.rs");
    let line = 1 + source.lines().position(|line| line.starts_with("static WORK")).unwrap();
    let site = format!("region=\"work\",line=\"{line}\",place=\"0\"}} ");
    assert!(text.contains(&site) && text.contains("dimmer_clients 1\n"), "{text}");
    assert!(get("/").starts_with("HTTP/1.1 404 "));
    said(client);
}

#[test]
fn metrics_are_told_over_a_unix_socket_that_goes_with_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("not/there/metrics");
    let mut server = Server::start(&format!("[metrics]\nlisten = \"unix:{}\"\n", path.display()));
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("\ndimmer_clients 0\n"), "{text}");
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.child.wait().unwrap().success());
    assert!(!path.exists());
}

/// The server's user may have no right to connect there either.
#[test]
fn metrics_need_no_way_to_the_servers_socket() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = Server::start(&format!("[metrics]\nlisten = \"{free}\"\n"));
    std::fs::remove_file(server.socket()).unwrap();
    let mut stream = TcpStream::connect(free).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
}

#[test]
fn who_does_not_read_metrics_keeps_them_from_nobody() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = Server::start(&format!("[metrics]\nlisten = \"{free}\"\nper_client = true\n"));
    // More than the system buffers for a connection that is not read.
    let clients: Vec<_> = (0..8).map(|_| server.connect("many")).collect();
    for (_, table) in &clients {
        assert!((0..SITES).all(|_| table.add(&[b'x'; 120], 1).is_some()));
    }
    server.wait(|state| state.clients.iter().all(|client| client.sites.len() == SITES));
    let ask = || {
        let mut stream = TcpStream::connect(free).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        stream
    };
    let _deaf = ask();
    std::thread::sleep(Duration::from_millis(500));
    let mut second = ask();
    second.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut text = String::new();
    second.read_to_string(&mut text).unwrap();
    assert!(
        text.contains("# TYPE dimmer_region_moved ") && text.ends_with("0\r\n\r\n"),
        "{}",
        text.len()
    );
}
