//! Measures `dimmerd` under load: many clients with many sites, whose sums are written all the
//! time; and how soon a decision is visible to a client.
//!
//! The clients are in this process. To the server they look like real ones: each has a connection
//! and memory of its own. A *record* is an entry of a region that was examined closely; a ring of
//! statistics would hold one of them for each such entry.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dimmer_host::interrupt::Interrupt;
use dimmer_host::process;
use dimmer_host::root::Root;
use dimmer_protocol::{AnswerError, Client, Hello, Memory, SITES, STAY};

use crate::error::BenchError;

/// How long to wait for the server.
const PATIENCE: Duration = Duration::from_secs(10);

/// The load on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Number of programs.
    pub clients: usize,
    /// Number of sites of each program.
    pub sites: usize,
    /// Records per second, of all programs together.
    pub records: u64,
    /// How long the load lasts (s).
    pub seconds: usize,
    /// Number of programs that come during that time, to measure how soon decisions about them are
    /// visible.
    pub newcomers: usize,
}

/// The results of a load.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Taken {
    /// The server's time on CPUs, second by second, as a part of one core.
    pub cpu: Vec<f64>,
    /// The server's memory at the end, including what it shares with clients (MiB).
    pub resident_mib: f64,
    /// Records that were written per second.
    pub records: f64,
    /// The time from the policy's decision until a client sees it (us), for each newcomer that is
    /// to be moved; empty if no core can be dedicated.
    pub visible_us: Vec<f64>,
}

/// A server in a directory of its own. It ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    directory: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program, as the server sees one.
#[derive(Debug)]
struct Program {
    /// Open as long as the server shall have it as a client.
    _connection: Client,
    memory: Memory,
}

/// Loads a `dimmerd` server whose configuration is `policy` with extra limits. Calls `done` once
/// per second.
///
/// # Errors
/// If the server does not start, does not answer, or ends, or if the user interrupts.
pub fn measure(
    root: &Root,
    dimmerd: &Path,
    policy: &str,
    load: &Load,
    interrupt: &Interrupt,
    mut done: impl FnMut(),
) -> Result<Taken, BenchError> {
    let most = load.clients + load.newcomers + 1;
    let sites = most * SITES;
    // One user has at most half of all sites.
    let limits =
        format!("clients_per_user = {most}\nsites_per_user = {sites}\nsites = {}\n", 2 * sites);
    let mut server = Server::start(dimmerd, &format!("{policy}\n[server]\n{limits}"), false)?;
    let clients: Vec<Program> =
        (0..load.clients).map(|number| server.connect(number)).collect::<Result<_, _>>()?;
    for client in &clients {
        for site in 0..load.sites.min(SITES) {
            client.memory.table.add(format!("site {site}").as_bytes(), 1);
        }
    }
    let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let id = server.child.id();
    let spent = || process::on_cpu(root, id).into_values().sum::<Duration>();
    std::thread::scope(|scope| {
        scope.spawn(|| write(&clients, load, &is_over, &written));
        // Wait until the clients have joined: the cost of joining is not that of serving.
        std::thread::sleep(Duration::from_secs(1));
        let mut taken = Taken::default();
        let (begin, before) = (Instant::now(), written.load(Ordering::Relaxed));
        let mut measure = || {
            let (mut since, mut spent_before) = (begin, spent());
            for second in 0..load.seconds {
                let newcomers = load.newcomers * (second + 1) / load.seconds
                    - load.newcomers * second / load.seconds;
                for number in 0..newcomers {
                    taken.visible_us.extend(server.newcomer(second * load.newcomers + number)?);
                }
                let rest = Duration::from_secs(1).saturating_sub(since.elapsed());
                std::thread::sleep(rest);
                server.check()?;
                let (now, spent_now) = (Instant::now(), spent());
                let span = now.duration_since(since).as_secs_f64();
                taken.cpu.push((spent_now.saturating_sub(spent_before)).as_secs_f64() / span);
                (since, spent_before) = (now, spent_now);
                if interrupt.is_set() {
                    return Err(BenchError::Interrupted);
                }
                done();
            }
            Ok(())
        };
        let measured = measure();
        is_over.store(true, Ordering::Relaxed);
        let records = written.load(Ordering::Relaxed) - before;
        taken.records = records as f64 / begin.elapsed().as_secs_f64();
        let resident_mib = resident_mib(root, id);
        // First: that it has ended is the cause of all other failures.
        server.check()?;
        measured?;
        taken.resident_mib = resident_mib.ok_or_else(|| server.silent("has no memory"))?;
        Ok(taken)
    })
}

/// Writes records at an even rate, to one site after the other.
fn write(clients: &[Program], load: &Load, is_over: &AtomicBool, written: &AtomicU64) {
    let begin = Instant::now();
    let mut number = 0_u64;
    let mut places = clients
        .iter()
        .flat_map(|client| &client.memory.table.sites[..load.sites.min(SITES)])
        .cycle();
    while !is_over.load(Ordering::Relaxed) {
        let due = (begin.elapsed().as_secs_f64() * load.records as f64).round();
        while (number as f64) < due {
            let Some(site) = places.next() else { return };
            site.add_calls(100);
            site.add_stayed(20_000);
            number += 1;
        }
        written.store(number, Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(200));
    }
}

impl Server {
    /// Starts a server with these settings. `knows_prices`: whether the server has the known prices
    /// of this machine; it does not try what they exclude.
    ///
    /// # Errors
    /// If the server does not start, ends, or does not listen within 10 s.
    pub fn start(dimmerd: &Path, settings: &str, knows_prices: bool) -> Result<Self, BenchError> {
        let failed = |what: &str| BenchError::system(what.to_owned());
        let directory = tempfile::tempdir().map_err(failed("make a directory for dimmerd"))?;
        let file = directory.path().join("dimmerd.toml");
        std::fs::write(&file, settings).map_err(failed("write dimmerd's configuration"))?;
        let mut command = Command::new(dimmerd);
        command.arg("--config").arg(&file);
        command.arg("--socket").arg(directory.path().join("socket"));
        if !knows_prices {
            command.env("XDG_STATE_HOME", directory.path());
        }
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.map_err(failed("start dimmerd"))?;
        let mut server = Self { child, directory };
        let begin = Instant::now();
        while dimmer_protocol::connect(&server.socket()).is_err() {
            server.check()?;
            if begin.elapsed() > PATIENCE {
                return Err(server.silent("does not listen"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Checks that the server is still there: without it, its clients do as well as they can, and
    /// their results are not those of a server.
    ///
    /// # Errors
    /// [`BenchError::Server`] with its status, if it has ended.
    pub fn check(&mut self) -> Result<(), BenchError> {
        match self.child.try_wait().map_err(BenchError::system("wait for dimmerd"))? {
            Some(status) => Err(self.silent(&format!("has ended ({status})"))),
            None => Ok(()),
        }
    }

    /// The path of its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn silent(&self, how: &str) -> BenchError {
        BenchError::Server { how: how.to_owned(), said: "nothing".to_owned() }
    }

    fn connect(&self, number: usize) -> Result<Program, BenchError> {
        let failed = |what: &str| BenchError::system(what.to_owned());
        let begin = Instant::now();
        let connection = loop {
            match Client::connect(&self.socket()) {
                Ok(client) => break client,
                Err(error) if begin.elapsed() > PATIENCE => {
                    return Err(failed("connect to dimmerd")(error));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let hello = Hello::Serve { name: format!("client {number}") };
        connection.send(&hello.to_bytes()).map_err(failed("speak to dimmerd"))?;
        loop {
            let answer = match connection.memory() {
                Err(AnswerError::System(error)) => return Err(failed("hear dimmerd")(error)),
                Err(_) => return Err(self.silent("refuses a client")),
                Ok(answer) => answer,
            };
            match answer {
                Some(files) => {
                    let memory = files
                        .map()
                        .map_err(|error| failed("map memory")(std::io::Error::other(error)))?;
                    return Ok(Program { _connection: connection, memory });
                }
                None if begin.elapsed() > PATIENCE => return Err(self.silent("does not answer")),
                None => std::thread::yield_now(),
            }
        }
    }

    /// The time from the policy's decision until a new client sees it (us), if there is a decision
    /// to see.
    fn newcomer(&self, number: usize) -> Result<Option<f64>, BenchError> {
        let Program { _connection, memory: client } = self.connect(usize::MAX - number)?;
        if client.lease_page.cores().next().is_none() {
            return Ok(None);
        }
        client.table.add(b"new", 1);
        let begin = Instant::now();
        while client.table.decisions[0].load(Ordering::Acquire) == STAY {
            // So that the client is active whenever the server looks at it.
            client.table.sites[0].add_calls(1);
            if begin.elapsed() > PATIENCE {
                return Ok(None);
            }
            std::hint::spin_loop();
        }
        let now = dimmer_protocol::ticks();
        let ticks = now.saturating_sub(client.lease_page.decided()) as f64;
        Ok(Some(ticks / dimmer_protocol::ticks_per_ns() / 1000.0))
    }
}

/// A process's resident memory (MiB).
fn resident_mib(root: &Root, process: u32) -> Option<f64> {
    let text = root.text(&format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<f64>().ok().map(|kib| kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_has_ended_is_an_error_with_its_status() {
        let server = |script: &str| {
            let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            Server { child, directory: tempfile::tempdir().unwrap() }
        };
        let mut ended = server("exit 3");
        ended.child.wait().unwrap();
        let said = ended.check().unwrap_err().to_string();
        assert_eq!(said, "the server has ended (exit status: 3); it said: nothing");
        let mut killed = server("kill -KILL $$");
        killed.child.wait().unwrap();
        assert!(killed.check().unwrap_err().to_string().contains("has ended (signal: 9"));
        assert!(server("exec sleep 1000").check().is_ok());
    }

    #[test]
    fn a_server_that_does_not_start_is_not_waited_for() {
        let error = Server::start(Path::new("false"), "", false).unwrap_err().to_string();
        assert!(error.contains("has ended (exit status: 1)"), "{error}");
    }
}
