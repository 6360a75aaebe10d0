//! A process whose regions a server moves.
#![expect(clippy::print_stdout, reason = "tests that cannot run here say so")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dimmer_host::affinity;
use dimmer_processor::units::CpuId;
use dimmer_protocol::{Hello, LeasePage, MIGRATE, Owned, STAY, Table, Welcome, ticks};
use dimmer_runtime::Site;
use rustix::net::{SocketFlags, accept_with};

const INNER: &str = "DIMMER_TEST_SERVED";

/// Timeout of everything here.
const LIMIT: Duration = Duration::from_secs(60);

/// Repeats until the condition is true.
#[track_caller]
fn until(mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A server that dedicates one core and decides about the client's only site.
struct Server {
    lease_page: Arc<Owned<LeasePage>>,
    /// Whether its lease is over.
    is_over: Arc<AtomicBool>,
    table: Owned<Table>,
    listener: OwnedFd,
    connection: Option<OwnedFd>,
}

impl Server {
    fn new(path: &std::path::Path, core: CpuId) -> Self {
        let lease_page = Arc::new(Owned::<LeasePage>::new().unwrap());
        lease_page.write(&[core.index()]);
        lease_page.dedicate(1);
        let is_over = Arc::new(AtomicBool::new(false));
        let (renewed, ends) = (Arc::clone(&lease_page), Arc::clone(&is_over));
        std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                renewed.renew(ticks() + (1 << 33));
                std::thread::sleep(Duration::from_millis(10));
            }
            // The server's end, as its clients see it.
            renewed.renew(0);
        });
        let table = Owned::<Table>::new().unwrap();
        table.write();
        let listener = dimmer_protocol::listen(path).unwrap();
        Self { lease_page, is_over, table, listener, connection: None }
    }

    /// Waits for the client, and sets the decision for its site.
    fn serve(&mut self, decision: u32) {
        let mut accepted = None;
        until(|| {
            accepted = accept_with(&self.listener, SocketFlags::CLOEXEC).ok();
            accepted.is_some()
        });
        let connection = accepted.unwrap();
        let mut bytes = [0; 256];
        let mut hello = None;
        until(|| {
            hello = dimmer_protocol::receive(&connection, &mut bytes).unwrap();
            hello.is_some()
        });
        let (length, _) = hello.unwrap();
        assert!(matches!(Hello::parse(&bytes[..length]), Ok(Hello::Serve { .. })));
        let files = [self.lease_page.as_fd(), self.table.as_fd()];
        dimmer_protocol::send(connection.as_fd(), &Welcome.to_bytes(), &files).unwrap();
        until(|| self.table.length() == 1);
        self.table.decisions[0].store(decision, Ordering::Relaxed);
        self.connection = Some(connection);
    }
}

/// Whether the calling kernel thread is not the home thread.
fn is_migrated(home: i32) -> bool {
    rustix::thread::gettid().as_raw_nonzero().get() != home
}

/// The client: the server dedicates the core, and its regions move if they `must_move`. Then it
/// enters no more regions, and may use the core again.
fn client(core: CpuId, must_move: bool) {
    static WORK: Site = Site::new("work", file!(), line!());
    let home = rustix::thread::gettid().as_raw_nonzero().get();
    until(|| {
        let _region = WORK.region();
        !must_move || is_migrated(home)
    });
    let may_use = || affinity::allowed().unwrap().contains(&core);
    until(|| {
        drop(WORK.region());
        !may_use()
    });
    println!("off");
    std::io::stdout().flush().unwrap();
    until(may_use);
    println!("let back");
}

/// Runs the test again in another process, whose regions get this decision.
fn check(test: &str, decision: u32) {
    let allowed = affinity::allowed().unwrap();
    if std::env::var_os(INNER).is_some() {
        client(*allowed.last().unwrap(), decision == MIGRATE);
        return;
    }
    if decision == MIGRATE
        && let Err(why) = dimmer_runtime::check_migration()
    {
        println!("SKIPPED: {why}");
        return;
    }
    let Some(last) = allowed.last().filter(|_| allowed.len() > 1) else {
        println!("SKIPPED: moving work takes two CPUs, and this process may run on one");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let mut server = Server::new(&socket, *last);
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "--nocapture", test]);
    again.env(INNER, "").env("DIMMER_SOCKET", &socket).stdout(Stdio::piped());
    again.env_remove(dimmer_runtime::POLICY).env_remove(dimmer_runtime::CORES);
    let mut child = again.spawn().unwrap();
    server.serve(decision);
    let told = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut told = told.filter(|line| line == "off" || line == "let back");
    assert_eq!(told.next().as_deref(), Some("off"));
    server.is_over.store(true, Ordering::Relaxed);
    drop(server);
    assert_eq!(told.next().as_deref(), Some("let back"));
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_process_that_enters_no_region_any_more_gets_the_servers_core_back() {
    check("a_process_that_enters_no_region_any_more_gets_the_servers_core_back", MIGRATE);
}

#[test]
fn a_process_that_never_moved_anything_gets_the_servers_core_back() {
    check("a_process_that_never_moved_anything_gets_the_servers_core_back", STAY);
}
