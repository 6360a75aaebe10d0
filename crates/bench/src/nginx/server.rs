//! The server as a process: starts it, finds its worker, and always ends it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dimmer_host::interrupt::Interrupt;
use dimmer_host::root::Root;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

use super::site::Site;
use super::tools::Tools;
use crate::BenchError;
use crate::process::{self, Process};

/// The interval between two looks at what goes on.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// How long the server may take to answer or to end: hooks make it read its libraries first.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the server may take to end by itself when its result is not needed any more.
const GRACE: Duration = Duration::from_secs(3);

/// Number of lines of the log that an error repeats.
const LAST_WORDS: usize = 8;

/// A running server. It ends when this is dropped, and so does everything that it has started.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    group: Option<Pid>,
    worker: u32,
    log: PathBuf,
}

impl Server {
    /// Starts the server in a process group of its own, and waits until it answers.
    ///
    /// If this process is killed, the kernel sends SIGTERM to the server (`setpriv --pdeathsig`).
    pub(super) fn start(
        root: &Root,
        tools: &Tools,
        site: &Site,
        prefix: &[OsString],
        interrupt: &Interrupt,
    ) -> Result<Self, BenchError> {
        let log = site.directory().join("log");
        let open = || File::options().create(true).append(true).open(&log);
        let cannot_log = || BenchError::system(format!("write {}", log.display()));
        fs::write(&log, "").map_err(cannot_log())?;
        let mut command = Command::new(&tools.setpriv);
        command.args(["--pdeathsig", "TERM", "--"]).args(prefix);
        command.arg(&tools.nginx).arg("-p").arg(site.directory());
        command.arg("-c").arg(site.directory().join("nginx.conf"));
        // For what nginx prints before it has read its configuration.
        command.args(["-e", "stderr"]);
        command.stdin(Stdio::null()).stdout(open().map_err(cannot_log())?);
        command.stderr(open().map_err(cannot_log())?).process_group(0);
        let child = command.spawn().map_err(BenchError::system("start the server"))?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let mut server = Self { child, group, worker: 0, log };
        server.await_worker(root, site.port(), interrupt)?;
        Ok(server)
    }

    fn await_worker(
        &mut self,
        root: &Root,
        port: u16,
        interrupt: &Interrupt,
    ) -> Result<(), BenchError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if interrupt.is_set() {
                return Err(BenchError::Interrupted);
            }
            if self.has_ended() {
                return Err(self.error("ended at once"));
            }
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
                && let Some(worker) = process::worker(root, self.child.id(), "nginx")?
            {
                self.worker = worker;
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(self.error("does not answer"));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The worker's present state.
    pub(super) fn worker(&self, root: &Root) -> Result<Process, BenchError> {
        let worker = Process::read(root, self.worker);
        worker.filter(|worker| worker.name == "nginx").ok_or_else(|| self.error("lost its worker"))
    }

    /// Ends the server with SIGTERM, and waits for its end.
    pub(super) fn end(self, interrupt: &Interrupt) -> Result<(), BenchError> {
        self.tell_to_end();
        let deadline = Instant::now() + PATIENCE;
        while !self.has_ended() {
            if interrupt.is_set() {
                return Err(BenchError::Interrupted);
            }
            if Instant::now() > deadline {
                return Err(self.error("does not end"));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn tell_to_end(&self) {
        if let Some(child) = self.group {
            // It may have ended just now. The wait finds that out.
            let _ = kill_process(child, Signal::TERM);
        }
    }

    /// Whether the server has ended. It stays waitable, so that its id and its group's are not used
    /// again.
    fn has_ended(&self) -> bool {
        let Some(child) = self.group else { return true };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(child), options), Ok(None))
    }

    fn error(&self, how: &str) -> BenchError {
        let said = fs::read(&self.log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said).into_owned();
        let lines: Vec<&str> = said.lines().collect();
        let last = &lines[lines.len().saturating_sub(LAST_WORDS)..];
        BenchError::Server { how: how.to_owned(), said: last.join("\n") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let deadline = Instant::now() + GRACE;
        if !self.has_ended() {
            self.tell_to_end();
        }
        while !self.has_ended() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        if let Some(group) = self.group {
            // Fails only if no process of the group is left.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}
